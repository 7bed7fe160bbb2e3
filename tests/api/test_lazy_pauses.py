"""Code that looks at values all the time runs as if it were not lazy, with the order and the answers of eager code."""

import contextlib
import functools
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
from weft.api.lazy import pauses as lazy_pauses
from weft.api.lazy import plan as lazy_plan
from weft.api.lazy import recording as lazy_recording
from weft.api.lazy.questions import is_called_by_user
from weft.api.lazy.session import SESSION
from weft.api.lazy.tasks import engine, idle
from weft.api.lazy.tensor import LazyTensor
from weft.errors import ExecutionError
from weft.trace.modes import function_mode_count

pytestmark = pytest.mark.usefixtures("own_engine")

LOSS = lazy_pauses.Pauses._loss


@pytest.fixture(autouse=True)
def pauses(no_pauses: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let lazy code pause soon, and go on when a test wants it to."""
    del no_pauses
    monkeypatch.setattr(lazy_pauses, "MOST_LOST", 1e-3)
    monkeypatch.setattr(lazy_pauses.Pauses, "_loss", lambda _: 4e-4)  # whatever the clock says
    monkeypatch.setattr(lazy_pauses, "SHORTEST", 1e3)
    monkeypatch.setattr(lazy_pauses, "LONGEST", 1e3)
    yield
    assert function_mode_count() == 0
    assert not SESSION.pauses.paused


def look(x: torch.Tensor) -> float:
    return float((x + 1).sum())


def look_until(paused: bool, x: torch.Tensor) -> None:
    """Look until a pause has begun, or let the code run until it has ended."""
    last = time.monotonic() + 20
    while SESSION.pauses.paused is not paused:
        assert time.monotonic() < last, what_is_left()
        look(x)


def what_is_left() -> str:
    """Say what may keep a pause from beginning."""
    pauses = SESSION.pauses
    queue = [engine(), idle(), SESSION._recordings, SESSION.memories.all(), SESSION.gradients.memories()]
    return f"queue {queue}, others {pauses._others}, held {pauses._held}, wanted {pauses.wanted}, mode {pauses._mode}"


def switched_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_pauses, "SHORTEST", 1e-4)
    monkeypatch.setattr(lazy_pauses, "LONGEST", 1e-4)


def test_looks_that_cost_more_than_they_wait_for_begin_a_pause() -> None:
    x = torch.arange(20.0)
    with weft.lazy():
        x + 1  # tells how it looks
        assert type(x + 1) is LazyTensor
        look_until(True, x)
        assert type(x + 1) is torch.Tensor
        assert look(x) == 210
    with weft.lazy():
        assert type(x + 1) is LazyTensor


def test_looks_at_much_work_begin_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_pauses.Pauses, "_loss", LOSS)
    plan = lazy_plan.Plan((), ())
    plan.operator_seconds = plan.program_seconds = 1e-2
    with weft.lazy():
        for _ in range(100):
            SESSION.pauses.sent(plan, 3, 0.0)
            SESSION.pauses.waited()
        assert not SESSION.pauses.wanted
        assert not plan.loses
        plan.program_seconds = 2e-2
        SESSION.pauses.sent(plan, 3, 0.0)
        SESSION.pauses.waited()
        assert SESSION.pauses.wanted


def test_code_that_never_waits_begins_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.api.lazy.sending.FIRST_SECONDS", 0.0)
    x = torch.ones(20, 20)
    with weft.lazy():
        for _ in range(100):
            x = x * 1.0 + 0
        assert not SESSION.pauses.paused
        assert weft.wait(x).sum() == 400
        assert not SESSION.pauses.paused


def test_blocks_that_end_with_their_only_look_pause_from_their_beginning() -> None:
    x = torch.arange(20.0)
    paused = []
    for _ in range(12):
        with weft.lazy():
            paused.append(SESSION.pauses.paused)
            found = weft.wait([x + 1, x * 2])
        assert [one.sum().item() for one in found] == [210, 380]
    assert not paused[0]
    assert paused[-1]


def test_a_pause_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(20, 20)
    with weft.lazy():
        monkeypatch.setattr(lazy_pauses, "SHORTEST", 0.02)
        SESSION.pauses._habit.length = 0.02
        look_until(True, x)
        last = time.monotonic() + 20
        while type(x + 1) is not LazyTensor:
            assert time.monotonic() < last
        assert not SESSION.pauses.paused


def test_lazy_tensors_from_before_a_pause_become_ordinary_ones_with_their_views_and_gradients() -> None:
    weight = torch.ones(20, requires_grad=True)
    with weft.lazy():
        for _ in range(2):  # the first time tells how everything looks
            y = weight * 2
            base = torch.zeros(20, 2) + 1
            view, other = base[:, 0], base
            held = y * y
        look_until(True, weight.detach())
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
        look_until(True, torch.ones(20))
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


def test_training_with_a_look_at_each_step_gives_what_eager_gives_however_often_it_pauses(
    by_library: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    switched_often(monkeypatch)
    begun = []
    turned = lazy_pauses.Pauses._turned
    monkeypatch.setattr(lazy_pauses.Pauses, "_turned", lambda self: begun.append(None) or turned(self))
    for steps in (30, 60):
        with weft.lazy():
            found = train(steps)
        assert found == pytest.approx(train(steps), rel=1e-4, abs=1e-5)
    assert begun


def test_spawned_work_is_waited_for_in_a_pause_as_anywhere() -> None:
    x, gate = torch.zeros(20), threading.Event()

    def write(x: torch.Tensor) -> None:
        assert gate.wait(20)
        x.add_(1)

    with weft.lazy():
        look_until(True, torch.ones(20))
        weft.spawn(write, x)
        assert not SESSION.pauses.paused
        total = x.sum()
        gate.set()
        assert total.item() == 20


def test_blocks_of_one_place_go_on_pausing_until_the_pause_is_over() -> None:
    x = torch.ones(20)
    kinds = []
    for block in range(4):
        with weft.lazy():
            kinds.append(type(x + 1))
            if block == 1:
                look_until(True, x)
            if block == 2:
                assert look(x) == 40
                SESSION.pauses._habit.until = 0.0  # the time is over
        assert function_mode_count() == 0
    assert kinds[1:] == [LazyTensor, torch.Tensor, LazyTensor]  # the first may tell how it looks
    with weft.lazy():
        assert type(x + 1) is LazyTensor  # the code of another place may be of another kind


def test_blocks_too_short_for_a_pause_of_their_own_add_up() -> None:
    x = torch.ones(20)
    for block in range(20):
        with weft.lazy():
            first = type(x + 1)
            look(x)
        if first is torch.Tensor and block:
            break
    else:
        pytest.fail("no block began with a pause")


def test_no_block_pauses_while_another_thread_is_in_one() -> None:
    x, begun, left = torch.ones(20), threading.Event(), threading.Event()

    def other() -> None:
        with weft.lazy():
            begun.set()
            assert left.wait(20)

    thread = threading.Thread(target=other)
    with weft.lazy():
        thread.start()
        assert begun.wait(20)
        try:
            for _ in range(50):
                look(x)
                assert not SESSION.pauses.paused
        finally:
            left.set()
            thread.join(20)
        look_until(True, x)


def test_a_thread_that_ended_in_its_lazy_block_keeps_no_other_from_pausing() -> None:
    thread = threading.Thread(target=weft.lazy, args=(True,))
    thread.start()
    thread.join(20)
    with weft.lazy():
        look_until(True, torch.ones(20))


def test_neither_does_one_that_python_did_not_begin() -> None:
    left = threading.Event()

    def begin() -> None:
        weft.lazy(True)
        assert isinstance(threading.current_thread(), threading._DummyThread)
        left.set()

    start_new_thread(begin, ())
    assert left.wait(20)
    with weft.lazy():
        look_until(True, torch.ones(20))


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
        look_until(True, x)
        assert shared.sum() == 40


def test_to_begin_a_pause_nobody_waits_for_work_that_may_need_what_the_code_holds() -> None:
    lock = threading.Lock()
    with weft.lazy():
        lock.acquire()
        spawned = weft.spawn(lock.acquire, timeout=5)
        SESSION.pauses.wanted = True
        SESSION.pauses.turn(sys._getframe())
        assert not SESSION.pauses.paused
        lock.release()
        assert weft.wait(spawned)


def test_behind_a_lock_operators_come_after_what_another_thread_spawned_there_in_a_pause() -> None:
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
            look_until(True, x)
            thread.start()
            waits.set()
            line = sys._getframe().f_lineno + 1
            with lock:
                seen = shared.clone()
            assert seen.unique().tolist() == [5000.0]
            thread.join(20)


def test_another_thread_that_begins_lazy_code_ends_a_pause() -> None:
    x, begun, left = torch.ones(20), threading.Event(), threading.Event()

    def other() -> None:
        with weft.lazy():
            begun.set()
            assert left.wait(20)

    with weft.lazy():
        look_until(True, x)
        thread = threading.Thread(target=other)
        thread.start()
        assert begun.wait(20)
        last = time.monotonic() + 20
        while SESSION.pauses.paused:
            assert time.monotonic() < last
        assert type(x + 1) is LazyTensor
        left.set()
        thread.join()


def test_an_operator_that_fails_in_a_pause_raises_at_its_call() -> None:
    with weft.lazy():
        look_until(True, torch.ones(20))
        with pytest.raises(IndexError) as caught:
            functional.embedding(torch.tensor([50]), torch.ones(20, 4))
        assert not isinstance(caught.value, ExecutionError)


def test_a_block_that_is_left_in_a_pause_by_an_error_leaves_nothing_behind() -> None:
    x = torch.ones(20)

    def leave() -> None:
        look_until(True, x)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), weft.lazy(), weft.lazy():
        leave()
    assert function_mode_count() == 0
    weft.lazy(True)
    look_until(True, x)
    assert function_mode_count() == 0
    weft.lazy(False)
    assert type(x + 1) is torch.Tensor


def test_a_mode_that_is_entered_in_a_pause_stays_above_the_lazy_one() -> None:
    x = torch.ones(20)
    with weft.lazy():
        look_until(True, x)
        with torch.device("meta"):
            SESSION.pauses.end()
            assert torch.zeros(3).device.type == "meta"
            assert function_mode_count() == 2
        assert function_mode_count() == 1
        assert type(x + 1) is LazyTensor


class Turning(torch.autograd.Function):
    """Asks for the end of a pause where none may end."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        ask_for_a_turn()
        context.save_for_backward(x)
        made = x * 2
        assert type(made) is torch.Tensor
        return made

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        ask_for_a_turn()
        made = gradients[0] * 2
        assert type(made) is torch.Tensor
        return made


def ask_for_a_turn() -> None:
    SESSION.pauses.turn(sys._getframe())
    assert SESSION.pauses.paused


def test_no_pause_ends_inside_a_function_of_autograd_or_a_hook() -> None:
    x = torch.ones(20, requires_grad=True)
    with weft.lazy():
        look_until(True, torch.ones(20))
        x.register_hook(lambda _: ask_for_a_turn())
        Turning.apply(x).sum().backward()
        assert x.grad is not None
        assert x.grad.sum().item() == 40


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
    monkeypatch.setattr(lazy_pauses, "MOST_LOST", float("inf"))
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
    monkeypatch.setattr(lazy_pauses, "MOST_LOST", float("inf"))
    monkeypatch.setattr("weft.api.lazy.plan.COMPILED_FROM", compiled_from)
    table, count = torch.ones(40, 4), torch.zeros(20)
    good, bad = torch.zeros(20, dtype=torch.long), torch.full((20,), 50)
    threads = ran_on(monkeypatch)
    with weft.lazy():
        for index in (good, good, good, bad):
            weft.waitall()  # as above
            count.add_(1)
            found, other = functional.embedding(index, table), count * 2
            if index is bad:
                with pytest.raises(IndexError, match=r"(?s)embedding failed.*where.*test_lazy_pauses"):
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


def caller_in(filename: str) -> Callable[[Callable[[], Any]], Any]:
    """A function that calls another, in code that seems to be of a file."""
    scope: dict[str, Any] = {}
    text = "def caller(function):\n    return function()\n"
    exec(compile(text, filename, "exec"), scope)
    found: Callable[[Callable[[], Any]], Any] = scope["caller"]
    return found


@pytest.mark.parametrize(
    ("callers", "users"),
    [
        ([], True),
        ([contextlib.__file__], True),
        ([torch.overrides.__file__], False),
        # PyTorch takes the mode off the stack in a generator that the standard library runs.
        ([torch.overrides.__file__, contextlib.__file__], False),
        ([torch.overrides.__file__, contextlib.__file__, "<frozen abc>"], False),
        ([torch.nn.modules.module.__file__, "model.py"], True),
        ([torch.nn.modules.module.__file__, "model.py", contextlib.__file__], True),
    ],
)
def test_turns_are_taken_in_code_that_the_user_runs(callers: list[str], users: bool) -> None:
    def work() -> bool:
        return is_called_by_user(sys._getframe(1))

    call: Callable[[], Any] = work
    for filename in reversed(callers):
        call = functools.partial(caller_in(filename), call)
    assert call() is users


def test_turns_cut_no_call_of_a_module_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    switched_often(monkeypatch)
    net, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 1)), torch.ones(4, 8)
    expected = functional.mse_loss(net(x), torch.zeros(4, 1)).item()
    last = time.monotonic() + 3
    with weft.lazy():
        while time.monotonic() < last:
            assert functional.mse_loss(net(x), torch.zeros(4, 1)).item() == pytest.approx(expected)
