"""Code that looks at values all the time runs as if it were not lazy, with the order and the answers of eager code."""

import ctypes
import logging
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import weft
from weft.errors import ExecutionError
from weft.lazy_tensors import backoff as lazy_backoff
from weft.lazy_tensors import recording as lazy_recording
from weft.lazy_tensors import segment_plan as lazy_plan
from weft.lazy_tensors.backoff import EagerBackoff
from weft.lazy_tensors.session import SESSION
from weft.lazy_tensors.tasks import engine, idle
from weft.lazy_tensors.tensor import LazyTensor
from weft.trace.interception.modes import function_mode_count

pytestmark = pytest.mark.usefixtures("own_engine")

LOSS = EagerBackoff._loss


@pytest.fixture(autouse=True)
def few_looks(always_queued: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let three looks be too many, and operators run at once until a test ends that."""
    del always_queued
    monkeypatch.setattr(lazy_backoff, "MOST_LOST", 1e-3)
    monkeypatch.setattr(EagerBackoff, "_loss", lambda _: 4e-4)  # whatever the clock says
    monkeypatch.setattr(lazy_backoff, "FEWEST", 10**9)
    monkeypatch.setattr(lazy_backoff, "MOST", 10**9)
    yield
    assert function_mode_count() == 0
    assert SESSION.own.backoff is None


def look(x: torch.Tensor) -> float:
    return float((x + 1).sum())


def looks() -> EagerBackoff:
    """Those of the lazy block that this thread is in."""
    found = SESSION.own.backoff
    assert found is not None
    return found


def look_too_often(x: torch.Tensor) -> None:
    """Look until operators run at once."""
    last = time.monotonic() + 20
    while not looks().eager_calls or type(x + 1) is not torch.Tensor:
        assert time.monotonic() < last, what_is_left()
        look(x)


def what_is_left() -> str:
    """Say what may keep operators from running at once."""
    queue = [engine(), idle(), SESSION._recordings, SESSION.storages.all(), SESSION.gradients.storages()]
    return f"queue {queue}, rest {looks().eager_calls}, lost {looks().lost_seconds}"


def switched_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_backoff, "FEWEST", 20)
    monkeypatch.setattr(lazy_backoff, "MOST", 20)


def test_looks_that_cost_more_than_they_wait_for_let_operators_run_at_once() -> None:
    x = torch.arange(20.0)
    with weft.lazy():
        x + 1  # tells how it looks
        assert type(x + 1) is LazyTensor
        look_too_often(x)
        assert type(x + 1) is torch.Tensor
        assert look(x) == 210
    with weft.lazy():
        assert type(x + 1) is LazyTensor


def test_that_is_told_once_with_the_line_of_the_block_and_of_the_look(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    switched_often(monkeypatch)
    caplog.set_level(logging.WARNING, "weft")
    x = torch.ones(20)
    for _ in range(3):
        with weft.lazy():  # the block
            for _ in range(50):
                if (x * 2).sum() > 50:  # the look
                    pytest.fail("it is 40")
    (record,) = caplog.records
    assert "with weft.lazy():  # the block" in record.getMessage()
    assert "if (x * 2).sum() > 50:  # the look" in record.getMessage()


def test_looks_at_much_work_let_it_be_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EagerBackoff, "_loss", LOSS)
    plan = lazy_plan.SegmentPlan((), ())
    plan.operator_seconds = plan.program_seconds = 1e-2
    with weft.lazy():
        for _ in range(100):
            looks().pushed(plan, 3, 0.0)
            looks().waited()
        assert not looks().eager_calls
        assert not plan.loses
        plan.program_seconds = 2e-2
        looks().pushed(plan, 3, 0.0)
        looks().waited()
        assert looks().eager_calls


def test_code_that_never_waits_is_always_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.lazy_tensors.session.FIRST_SECONDS", 0.0)
    x = torch.ones(20, 20)
    with weft.lazy():
        for _ in range(100):
            x = x * 1.0 + 0
        assert not looks().eager_calls
        assert weft.wait(x).sum() == 400
        assert not looks().eager_calls


def test_blocks_that_end_with_their_only_look_run_at_once_from_their_beginning() -> None:
    x = torch.arange(20.0)
    kinds = []
    for _ in range(12):
        with weft.lazy():
            y = x + 1
            kinds.append(type(y))
            found = weft.wait([y, x * 2])
        assert [one.sum().item() for one in found] == [210, 380]
    assert kinds[1] is LazyTensor  # the first tells how it looks
    assert kinds[-1] is torch.Tensor


def test_after_a_while_operators_are_queued_again_and_then_for_less_and_less_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lazy_backoff, "FEWEST", 10)
    monkeypatch.setattr(lazy_backoff, "MOST", 40)
    x, at_once = torch.ones(20, 20), []
    with weft.lazy():
        for _ in range(200):
            y = x + 1
            at_once.append(type(y) is torch.Tensor)
            float(y[0, 0])
    runs = [len(run) for run in "".join("x" if one else " " for one in at_once[2:]).split()]
    assert len(runs) > 3
    assert runs[0] < runs[1] < runs[2] == runs[3]


def test_lazy_tensors_from_before_become_ordinary_ones_with_their_views_and_gradients() -> None:
    weight = torch.ones(20, requires_grad=True)
    with weft.lazy():
        for _ in range(2):  # the first time tells how everything looks
            y = weight * 2
            base = torch.zeros(20, 2) + 1
            view, other = base[:, 0], base
            held = y * y
        look_too_often(weight.detach())
        assert type(base) is LazyTensor
        view.add_(3)
        assert base.sum().item() == 20 * 5
        assert type(base) is torch.Tensor
        assert other is base
        assert "value" not in vars(base)
        base.fill_(7)
        assert view.sum().item() == 140
        (held.sum() + y.sum()).backward()
        assert weight.grad is not None
        assert torch.equal(weight.grad, torch.full((20,), 10.0))


def test_a_lazy_tensor_whose_ordinary_one_others_hold_stays_what_it_is() -> None:
    with weft.lazy():
        for _ in range(2):  # the first time tells how it looks
            y = torch.zeros(20) + 1
        real = weft.wait(y)
        look_too_often(torch.ones(20))
        assert (y + 1).sum().item() == 40
        y.add_(1)
        assert real.sum().item() == 40
        assert type(y) is LazyTensor
        del real
        assert (y + 1).sum().item() == 60
        assert type(y) is torch.Tensor


def train(steps: int) -> list[Any]:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    x, y, count = torch.randn(16, 8), torch.randint(3, (16,)), torch.zeros(40)
    found: list[Any] = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x + torch.rand(16, 8)), y)
        loss.backward()
        optimizer.step()
        count[step % 40] += loss.detach()
        half = count[::2]
        half *= 0.5
        found.append(loss.item())
        if count.sum() > 3:
            count.zero_()
            found.append(torch.randint(100, ()).item())
    return [*found, *count.tolist(), *(p.detach().sum().item() for p in net.parameters())]


def test_training_with_a_look_at_each_step_gives_what_eager_gives_however_often_it_changes(
    by_library: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    switched_often(monkeypatch)
    begun = []
    begin = EagerBackoff._run_at_once
    monkeypatch.setattr(EagerBackoff, "_run_at_once", lambda self: begun.append(None) or begin(self))
    for steps in (30, 60):
        with weft.lazy():
            found = train(steps)
        assert found == pytest.approx(train(steps), rel=1e-4, abs=1e-5)
    assert len(begun) > 3


def test_spawned_work_is_waited_for_as_anywhere() -> None:
    x, gate = torch.zeros(20), threading.Event()

    def write(x: torch.Tensor) -> None:
        assert gate.wait(20)
        x.add_(1)

    with weft.lazy():
        look_too_often(torch.ones(20))
        weft.spawn(write, x)
        total = x.sum()
        gate.set()
        assert total.item() == 20


def test_blocks_of_one_place_go_on_until_as_many_operators_have_run() -> None:
    x = torch.ones(20)
    kinds = []
    for block in range(4):
        with weft.lazy():
            kinds.append(type(x + 1))
            if block == 1:
                look_too_often(x)
            if block == 2:
                assert look(x) == 40
                looks().eager_calls = 0
        assert function_mode_count() == 0
    assert kinds[1:] == [LazyTensor, torch.Tensor, LazyTensor]  # the first may tell how it looks
    with weft.lazy():
        assert type(x + 1) is LazyTensor  # the code of another place may be of another kind


def test_blocks_too_short_to_look_too_often_on_their_own_add_up() -> None:
    x = torch.ones(20)
    for block in range(20):
        with weft.lazy():
            first = type(x + 1)
            look(x)
        if first is torch.Tensor and block:
            break
    else:
        pytest.fail("no block began with an operator that ran at once")


def test_operators_are_ordered_with_what_another_thread_has_queued() -> None:
    x, shared, begun, left = torch.ones(20), torch.zeros(20), threading.Event(), threading.Event()

    def other() -> None:
        with weft.lazy():
            for _ in range(3):  # the first time tells how it looks
                shared.add_(1)
            begun.set()
            assert left.wait(20)

    thread = threading.Thread(target=other)
    with weft.lazy():
        look_too_often(x)
        thread.start()
        assert begun.wait(20)
        try:
            assert type(x + 1) is LazyTensor  # where nothing is asked of the other thread, it goes on recording
        finally:
            left.set()
            thread.join(20)
        look_too_often(x)
        assert shared.sum() == 60


def test_a_thread_that_ended_in_its_lazy_block_keeps_no_other_from_running_at_once() -> None:
    thread = threading.Thread(target=weft.lazy, args=(True,))
    thread.start()
    thread.join(20)
    with weft.lazy():
        look_too_often(torch.ones(20))


def test_neither_does_one_that_python_did_not_begin() -> None:
    left = threading.Event()

    def begin() -> None:
        weft.lazy(True)
        assert isinstance(threading.current_thread(), threading._DummyThread)
        left.set()

    start_new_thread(begin, ())
    assert left.wait(20)
    with weft.lazy():
        look_too_often(torch.ones(20))


def test_neither_does_what_such_a_thread_has_queued() -> None:
    shared, x = torch.zeros(20), torch.ones(20)

    def work() -> None:
        weft.lazy(True)
        for _ in range(2):  # the first time tells how it looks
            shared.add_(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    with weft.lazy():
        look_too_often(x)
        assert shared.sum() == 40


def test_nobody_waits_for_work_that_may_need_what_the_code_holds() -> None:
    lock, x = threading.Lock(), torch.ones(20)
    with weft.lazy():
        look_too_often(x)
        lock.acquire()
        spawned = weft.spawn(lock.acquire, timeout=20)
        y = x + 1
        assert not weft.ready(spawned)
        lock.release()
        assert weft.wait(spawned)
        assert weft.wait(y).sum() == 40


def test_behind_a_lock_operators_come_after_what_another_thread_spawned_there() -> None:
    shared, x = torch.zeros(1000), torch.ones(20)
    lock, waits = threading.Lock(), threading.Event()

    def count() -> None:
        for _ in range(5000):
            shared.add_(1)

    def other() -> None:
        assert waits.wait(20)
        while sys._current_frames()[main].f_lineno != line:  # the main thread does not wait for the lock yet
            pass
        weft.spawn(count)
        lock.release()

    main = threading.get_ident()
    for _ in range(3):
        shared.zero_()
        lock.acquire()
        waits.clear()
        thread = threading.Thread(target=other)
        with weft.lazy():
            look_too_often(x)
            thread.start()
            waits.set()
            line = sys._getframe().f_lineno + 1
            with lock:
                seen = shared.clone()
            assert seen.unique().tolist() == [5000.0]
            thread.join(20)


def test_an_operator_that_fails_at_once_raises_at_its_call() -> None:
    with weft.lazy():
        look_too_often(torch.ones(20))
        with pytest.raises(IndexError) as caught:
            functional.embedding(torch.tensor([50]), torch.ones(20, 4))
        assert not isinstance(caught.value, ExecutionError)


def test_whoever_looks_at_what_a_failure_spoilt_is_told_however_often_the_code_looks() -> None:
    count, good, bad = torch.zeros(()), torch.zeros(20, dtype=torch.long), torch.full((20,), 50)
    with weft.lazy():
        for index in (good, good, bad):  # the first time tells how it looks
            count.add_(functional.embedding(index, torch.ones(20, 4)).sum())
        for _ in range(10):
            look(torch.ones(20))
        with pytest.raises(ExecutionError, match="embedding failed"):
            count.item()
        look_too_often(torch.ones(20))
        assert count.item() == 160


def test_a_block_that_is_left_by_an_error_while_operators_run_at_once_leaves_nothing_behind() -> None:
    x = torch.ones(20)

    def leave() -> None:
        look_too_often(x)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), weft.lazy(), weft.lazy():
        leave()
    assert function_mode_count() == 0
    weft.lazy(True)
    look_too_often(x)
    weft.lazy(False)
    assert function_mode_count() == 0
    assert type(x + 1) is torch.Tensor


def test_a_mode_of_the_users_in_the_block_takes_part() -> None:
    x = torch.ones(20)
    with weft.lazy():
        look_too_often(x)
        with torch.device("meta"):
            assert torch.zeros(3).device.type == "meta"
            assert type(x + 1) is torch.Tensor
        assert torch.zeros(3).device.type == "cpu"
        looks().eager_calls = 0
        assert type(x + 1) is LazyTensor


class Doubled(torch.autograd.Function):
    """Twice what it is given, by operators that are to run at once."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        made = x * 2
        assert type(made) is torch.Tensor
        return made

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        made = gradients[0] * 2
        assert type(made) is torch.Tensor
        return made


def test_functions_of_autograd_and_hooks_get_ordinary_tensors() -> None:
    x, hooked = torch.ones(20, requires_grad=True), []
    with weft.lazy():
        look_too_often(torch.ones(20))
        x.register_hook(lambda gradient: hooked.append(type(gradient * 2)))
        Doubled.apply(x).sum().backward()
        assert x.grad is not None
        assert x.grad.sum().item() == 40
    assert hooked == [torch.Tensor]


def test_memory_whose_address_was_taken_while_operators_ran_at_once_is_written_by_none_that_is_queued() -> None:
    x = torch.ones(20)
    with weft.lazy():
        x.add_(1)  # tells how it looks
        look_too_often(torch.ones(20))
        seen = (ctypes.c_float * 20).from_address(x.data_ptr())
        looks().eager_calls = 0
        x.add_(1)
        assert sum(seen) == 60


def ran_on(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    threads: list[int] = []
    call: Callable[..., Any] = lazy_recording.Segment.__call__

    def noted(self: lazy_recording.Segment) -> None:
        threads.append(threading.get_ident())
        call(self)

    monkeypatch.setattr(lazy_recording.Segment, "__call__", noted)
    return threads


@pytest.mark.usefixtures("by_library")
def test_what_is_waited_for_runs_on_the_thread_that_waits_if_nothing_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_backoff, "MOST_LOST", float("inf"))
    x, gate = torch.ones(20, 20), threading.Event()
    threads = ran_on(monkeypatch)
    with weft.lazy():
        for _ in range(4):
            weft.waitall()  # the worker that compiled may have told us, and still count its task
            assert look(x) == 800
        assert threads[-1] == threading.get_ident()
        with weft.on("cpu:1"):
            weft.spawn(gate.wait, 20)
        assert look(x) == 800
        assert threads[-1] != threading.get_ident()
        gate.set()


@pytest.mark.parametrize("compiled_from", [1, 1000])
def test_a_failure_on_the_thread_that_waits_is_told_as_any_other(
    monkeypatch: pytest.MonkeyPatch, compiled_from: int
) -> None:
    monkeypatch.setattr(lazy_backoff, "MOST_LOST", float("inf"))
    monkeypatch.setattr("weft.lazy_tensors.segment_plan.COMPILED_FROM", compiled_from)
    table, count = torch.ones(40, 4), torch.zeros(20)
    good, bad = torch.zeros(20, dtype=torch.long), torch.full((20,), 50)
    threads = ran_on(monkeypatch)
    with weft.lazy():
        for index in (good, good, good, bad):
            weft.waitall()  # as above
            count.add_(1)
            found, other = functional.embedding(index, table), count * 2
            if index is bad:
                with pytest.raises(IndexError, match=r"(?s)embedding failed.*where.*test_backoff"):
                    found.sum().item()
                with pytest.raises(ExecutionError):
                    found.sum().item()
            else:
                assert found.sum().item() == 80
        assert threads[-1] == threading.get_ident()
        assert other.sum().item() == 160
        assert engine().statistics().failed == 1


def test_threads_that_look_at_once_neither_mix_their_answers_nor_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    switched_often(monkeypatch)
    shared = torch.ones(20)
    wrong: list[object] = []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait(20)
        own = torch.full((20,), float(number))
        with weft.lazy():
            for step in range(60):
                own.add_(1)
                total = (own * shared).sum()
                if step % 7 == 0:
                    weft.spawn(torch.sum, shared)
                if total.item() != 20 * (number + step + 1):
                    wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    work(3)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


def test_first_calls_are_no_looks(caplog: pytest.LogCaptureFixture) -> None:
    """A loop that never looks meets each kind of call once, and is queued from then on."""
    net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 1))
    optimizer = torch.optim.Adam(net.parameters())
    with weft.lazy():
        for _ in range(3):
            loss = net(torch.ones(20, 64)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert looks().lost_seconds < 0.01  # on a busy machine a call may be waited for, which is no look of the loop
        assert not looks().eager_calls
    assert not caplog.records


def test_first_calls_without_end_are_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_backoff, "FIRST_CALLS", 3)
    known = torch.ones(200)
    with weft.lazy():
        for size in range(201, 220):
            queued = known + 1
            torch.ones(size) + 1
        assert looks().eager_calls
    assert torch.equal(queued, known + 1)
