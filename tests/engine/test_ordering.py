"""The rules of reading and writing, without an engine."""

import pytest

from weft.engine.lanes import Lane
from weft.engine.task import FEWEST_READERS_TO_PRUNE, Task, Var, link, predecessors, retire


@pytest.fixture
def lane():
    return Lane("cpu:0")


def linked(lane, reads=(), writes=()):
    task = Task(lambda: None, tuple(reads), tuple(writes), lane)
    link(task)
    return task


def test_a_first_task_waits_for_nothing(lane):
    assert linked(lane, reads=[Var()], writes=[Var()]).pending == 0


def test_a_read_waits_for_the_last_write(lane):
    x = Var()
    first, second = linked(lane, writes=[x]), linked(lane, writes=[x])
    read = linked(lane, reads=[x])
    assert first.successors == [second]
    assert second.successors == [read]


def test_reads_wait_only_for_the_write_and_a_write_for_all_reads(lane):
    x = Var()
    linked(lane, writes=[x])
    reads = [linked(lane, reads=[x]) for _ in range(3)]
    write = linked(lane, writes=[x])
    assert [read.pending for read in reads] == [1, 1, 1]
    assert write.pending == 3


def test_a_change_in_place_does_not_wait_for_itself(lane):
    x = Var()
    assert linked(lane, reads=[x], writes=[x]).pending == 0
    assert linked(lane, reads=[x, x], writes=[x, x]).pending == 2


def test_a_task_that_is_done_is_not_waited_for(lane):
    x = Var()
    write = linked(lane, writes=[x])
    write.done = True
    assert linked(lane, reads=[x]).pending == 0


def test_retiring_releases_what_waited_and_keeps_nothing(lane):
    x = Var()
    write = linked(lane, writes=[x])
    read = linked(lane, reads=[x])
    write.done = True
    retire(write)
    assert read.pending == 0
    assert (write.call, write.reads, write.writes, write.successors) == (None, (), (), None)


def test_predecessors_are_named_whether_done_or_not(lane):
    x, y = Var(), Var()
    write, read = linked(lane, writes=[x]), linked(lane, reads=[x])
    write.done = True
    task = Task(lambda: None, (y,), (x,), lane)
    assert predecessors(task) == {write, read}


def test_readers_that_are_done_are_forgotten_while_others_remain(lane):
    x = Var()
    alive = linked(lane, reads=[x])
    for _ in range(4 * FEWEST_READERS_TO_PRUNE):
        linked(lane, reads=[x]).done = True
    assert alive in x.readers
    assert len(x.readers) <= FEWEST_READERS_TO_PRUNE + 1
