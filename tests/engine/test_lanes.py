"""The order in which a worker takes tasks, without workers."""

from weft.engine.lanes import Lane, Pool, choose
from weft.engine.task import Placement, Task


def task(number, priority=0, pending=0):
    made = Task(lambda: None, (), (), Lane("nowhere"))
    made.number, made.pending, made.placement = number, pending, Placement("cpu", priority)
    return made


def taken(queue):
    return [item.number for item in iter(queue.take, None)]


def test_a_lane_keeps_the_order_of_pushes_and_waits_for_its_head():
    lane, head = Lane("cpu:0"), task(1, pending=1)
    for item in (head, task(2)):
        lane.add(item)
    assert lane.head() is None
    head.pending = 0
    assert taken(lane) == [1, 2]


def test_a_lane_whose_order_is_loosened_gives_what_is_ready():
    lane = Lane("cpu:0")
    for item in (task(1, pending=1), task(2), task(3, priority=1, pending=1), task(4)):
        lane.add(item)
    lane.strict = False
    assert taken(lane) == [2, 4]
    assert lane.head() is None


def test_a_pool_has_no_order_but_that_of_becoming_ready():
    pool, late = Pool("cpu"), task(1, pending=1)
    for item in (late, task(2)):
        pool.add(item)
    late.pending = 0
    pool.now_ready(late)
    assert taken(pool) == [2, 1]


def test_a_higher_priority_goes_first_and_a_head_that_is_not_ready_holds_up_only_its_own():
    lane = Lane("cpu:0")
    for item in (task(1), task(2, priority=-1), task(3, priority=2, pending=1), task(4, priority=2)):
        lane.add(item)
    assert taken(lane) == [1, 2]


def test_between_a_lane_and_a_pool_priority_decides_then_age():
    lane, pool = Lane("cpu:0"), Pool("cpu")
    for item in (task(1), task(4), task(5)):
        lane.add(item)
    for item in (task(2), task(3, priority=1)):
        pool.add(item)
    assert [choose(lane, pool).number for _ in range(5)] == [3, 1, 2, 4, 5]
    assert choose(lane, pool) is None
