"""Once somebody was told of a failure, what it kept from being changed is as before, and code goes on as eager code."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.lazy_tensors.lazy_work import compiled_work
from torch import nn
from torch.nn import functional

import weft
from weft.config import overrides
from weft.errors import ExecutionError
from weft.lazy_tensors import segment_plan as lazy_plan
from weft.lazy_tensors.segment_plan import SegmentPrograms
from weft.lazy_tensors.session import SESSION
from weft.runtime.compiled_graph import IN_PLACE

GOOD = torch.zeros(20, dtype=torch.long)
BAD = torch.full((20,), 50)


pytestmark = pytest.mark.usefixtures("own_engine", "by_library")


@pytest.fixture(params=[2, 1000], ids=["compiled", "by operators"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each segment as a program, or operator by operator."""
    monkeypatch.setattr(lazy_plan, "COMPILED_FROM", request.param)


def rows(index: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return functional.embedding(index, table)


def often(work: Callable[[torch.Tensor], Any]) -> None:
    """Let the operators of some work be known, so that they are queued, and be compiled."""
    for _ in range(4):
        with weft.lazy():
            weft.wait(work(GOOD))


class Training:
    """Trains a small net, which a bad word or a bad target makes fail."""

    def __init__(self, optimizer: Callable[..., torch.optim.Optimizer], **options: Any) -> None:
        torch.manual_seed(0)
        self.words = nn.Embedding(40, 8)
        self.eager_calls = nn.Sequential(nn.Flatten(), nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Linear(16, 5))
        self.optimizer = optimizer([*self.words.parameters(), *self.eager_calls.parameters()], **options)

    def step(self, number: int, bad: str) -> torch.Tensor:
        drawn = torch.Generator().manual_seed(number)
        words = torch.randint(0, 40, (6, 4), generator=drawn)
        targets = torch.randint(0, 5, (6,), generator=drawn)
        if bad == "word":
            words[2, 2] = 77
        if bad == "target":
            targets[3] = 9
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.eager_calls(self.words(words)), targets)
        loss.backward()
        self.optimizer.step()
        return loss

    def tensors(self) -> list[torch.Tensor]:
        """All that changes, copied, but counts of few numbers: they are changed at once."""
        state = [t for group in self.optimizer.state.values() for t in group.values() if isinstance(t, torch.Tensor)]
        found = [*self.words.state_dict().values(), *self.eager_calls.state_dict().values(), *state]
        return [tensor.detach().clone() for tensor in found if tensor.dim()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("bad", ["word", "target"])
@pytest.mark.parametrize("when", [{1}, {4}, {4, 5}, {7}], ids=str)
def test_training_goes_on_after_a_bad_batch_as_eager_training_does(bad: str, when: set[int]) -> None:
    def train(training: Training) -> list[int]:
        caught = []
        for number in range(8):
            try:
                training.step(number, bad if number in when else "").item()
            except IndexError:
                caught.append(number)
        return caught

    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    eager, warm, lazy = (Training(torch.optim.SGD, **options) for _ in range(3))
    assert train(eager) == sorted(when)
    with weft.lazy():
        for number in range(4):
            warm.step(number, "").item()
    with weft.lazy():
        assert train(lazy) == sorted(when)
    assert same(lazy.tensors(), eager.tensors())


def test_leaving_tells_that_parameters_were_not_changed_and_leaves_the_last_good_ones() -> None:
    def until(count: int, training: Training, bad: int = -1) -> Training:
        for number in range(count):
            training.step(number, "word" if number == bad else "")
        return training

    eager, lazy = (Training(torch.optim.SGD, lr=0.1, momentum=0.9) for _ in range(2))
    until(4, eager)
    with weft.lazy():
        until(8, Training(torch.optim.SGD, lr=0.1, momentum=0.9))
    with pytest.raises(IndexError, match=r"(?s)embedding failed.*test_recovery.py"), weft.lazy():
        until(8, lazy, bad=4)
    weights = [parameter.detach() for parameter in lazy.words.parameters()]
    assert same(weights, [parameter.detach() for parameter in eager.words.parameters()])
    with weft.lazy():  # it was told of, and nothing misses anything any more
        lazy.step(9, "")
    eager.step(9, "")
    assert same([p.detach() for p in lazy.words.parameters()], [p.detach() for p in eager.words.parameters()])


def test_a_change_after_one_that_is_missing_is_not_made_until_somebody_was_told() -> None:
    table, p = torch.ones(40, 4), torch.zeros(20, 4)

    def work(index: torch.Tensor) -> torch.Tensor:
        return p.add_(rows(index, table))

    often(work)
    often(lambda _: p.add_(1))
    p.zero_()
    with weft.lazy():
        work(BAD)
        weft.wait(torch.ones(20, 4) * 2)
        SESSION.end_recording()
        p.add_(1)  # in a segment of its own
        SESSION.end_recording()
        with pytest.raises(IndexError, match="embedding failed"):
            weft.wait(p)
        assert weft.wait(p).sum().item() == 0
        p.add_(1)
        assert weft.wait(p).sum().item() == 80
    assert p.sum().item() == 80


def test_what_was_queued_before_the_failure_was_told_is_skipped_however_far_it_came() -> None:
    table, p = torch.ones(40, 4), torch.zeros(20, 4)

    def work(index: torch.Tensor) -> torch.Tensor:
        p.add_(1)
        return p.add_(rows(index, table))

    often(work)
    often(lambda _: p.mul_(3).add_(5))
    for _ in range(5):
        p.zero_()
        with weft.lazy():
            lost = work(BAD)
            for _ in range(6):
                SESSION.end_recording()
                p.mul_(3)
                p.add_(5)
            with pytest.raises(IndexError):
                weft.wait(lost)
            p.add_(7)
        assert p.sum().item() == 8 * 80  # what came before the failure was done


def test_a_whole_change_that_misses_its_end_is_not_begun_after_the_failure() -> None:
    table, momentum, other = torch.ones(40, 4), torch.ones(20, 4), torch.ones(20, 4)

    def work(index: torch.Tensor) -> torch.Tensor:
        gradient = rows(index, table) * 2
        momentum.mul_(0.5)
        other.mul_(0.5)
        seen = momentum * 1
        other.add_(momentum)
        momentum.add_(gradient)
        return seen

    often(work)
    momentum.fill_(1)
    other.fill_(1)
    with weft.lazy():
        seen = work(BAD)
        with pytest.raises(IndexError):
            weft.wait(seen)
    assert momentum.unique().tolist() == [1.0]
    assert other.unique().tolist() == [1.0]


def test_two_operators_that_fail_in_one_segment_are_told_apart() -> None:
    table = torch.ones(40, 4)

    def work(index: torch.Tensor) -> list[torch.Tensor]:
        first = rows(index, table) + 1
        second = table.index_select(0, index)
        return [first, second * 2, first + second, table * 3]

    often(work)
    with weft.lazy():
        first, second, both, fine = work(BAD)
        assert weft.wait(fine).sum().item() == 480
        for tensor, name in ((second, "index_select"), (first, "embedding"), (both, "embedding"), (second, "select")):
            with pytest.raises((IndexError, RuntimeError), match=name):
                weft.wait(tensor)


def test_what_does_not_depend_on_a_failure_of_before_is_computed_in_a_segment_with_what_does() -> None:
    table, x, count = torch.ones(40, 4), torch.ones(20, 4), torch.zeros(20, 4)

    def work(index: torch.Tensor) -> list[torch.Tensor]:
        lost = rows(index, table)
        weft.wait(x * 2)
        SESSION.end_recording()
        count.add_(1)
        return [lost * 2, x * 3, count + lost, count.view(-1), lost.view(-1)]

    often(work)
    count.zero_()
    with weft.lazy():
        derived, fine, mixed, view, lost_view = work(BAD)
        assert weft.wait(fine).sum().item() == 240
        assert weft.wait(view).sum().item() == 80
        for tensor in (derived, mixed, lost_view):
            for _ in range(2):  # what was never made is told of each time
                with pytest.raises(IndexError, match="embedding"):
                    weft.wait(tensor)
        assert weft.wait(view + 1).sum().item() == 160
    assert count.sum().item() == 80


@pytest.mark.parametrize("overwrite", ["zero_", "fill_", "copy_"])
def test_memory_that_is_written_anew_has_nothing_to_do_with_what_failed_before(overwrite: str) -> None:
    table, p = torch.ones(40, 4), torch.ones(20, 4)
    fill: dict[str, Callable[[], Any]] = {
        "zero_": p.zero_,
        "fill_": lambda: p.fill_(3),
        "copy_": lambda: p.copy_(torch.full((20, 4), 2.0)),
    }

    def work(index: torch.Tensor) -> torch.Tensor:
        p.add_(rows(index, table))
        SESSION.end_recording()
        fill[overwrite]()
        return p

    often(work)
    with weft.lazy():
        work(BAD)
        assert weft.wait(p).sum().item() == {"zero_": 0, "fill_": 240, "copy_": 160}[overwrite]
        with pytest.raises(IndexError):
            weft.waitall()


def test_what_is_frozen_and_then_written_anew_ends_the_search_for_what_misses_a_change() -> None:
    table, p, q = torch.ones(40, 4), torch.ones(20, 4), torch.ones(20, 4)

    def work(index: torch.Tensor) -> torch.Tensor:
        lost = rows(index, table)
        p.mul_(2)
        p.add_(lost)
        q.add_(p)
        p.fill_(3)
        return p

    often(work)
    q.fill_(1)
    with weft.lazy():
        assert weft.wait(work(BAD)).sum().item() == 240
        with pytest.raises(IndexError):
            weft.wait(q)
    assert q.sum().item() == 80


def test_a_part_that_is_written_anew_leaves_the_rest_as_unknown_as_it_was() -> None:
    table, p = torch.ones(40, 4), torch.ones(20, 4)

    def work(index: torch.Tensor) -> torch.Tensor:
        p.add_(rows(index, table))
        SESSION.end_recording()
        p[:10].zero_()
        return p

    often(work)
    p.fill_(1)
    with weft.lazy():
        work(BAD)
        with pytest.raises(IndexError):
            weft.wait(p)
    assert p.sum().item() == 80


def test_a_gradient_that_failed_is_told_of_at_the_end_of_the_block_and_is_not_an_old_one() -> None:
    table = nn.Parameter(torch.ones(40, 4))

    def work(index: torch.Tensor) -> torch.Tensor:
        table.grad = None
        rows(index, table).square().sum().backward()
        return table.grad  # type: ignore[return-value]

    often(work)
    assert table.grad is not None
    with pytest.raises(IndexError, match="embedding"), weft.lazy():
        work(BAD)
    assert table.grad is None


def test_gradients_that_are_accumulated_keep_what_they_had_and_cleared_ones_are_cleared() -> None:
    table, weight = nn.Parameter(torch.ones(40, 4)), nn.Parameter(torch.ones(4))

    def work(index: torch.Tensor) -> torch.Tensor:
        (rows(index, table) * weight).sum().backward()
        return weight.grad  # type: ignore[return-value]

    often(work)
    before = weight.grad.clone()  # type: ignore[union-attr]
    with weft.lazy():
        lost = work(BAD)
        with pytest.raises(IndexError):
            weft.wait(lost)
    assert torch.equal(weight.grad, before)  # type: ignore[arg-type]
    with weft.lazy():
        weight.grad = None
        lost = work(BAD)
        with pytest.raises(IndexError):
            weft.wait(lost)
    assert weight.grad is None


def test_an_error_of_the_block_itself_is_not_hidden_by_what_was_queued() -> None:
    table, p = torch.ones(40, 4), torch.zeros(20, 4)

    def work(index: torch.Tensor) -> torch.Tensor:
        return p.add_(rows(index, table))

    often(work)

    def stop() -> None:
        work(BAD)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), weft.lazy():
        stop()
    with pytest.raises(IndexError), weft.lazy():  # nobody was told yet
        pass


def test_a_program_that_failed_half_way_leaves_what_nobody_may_read_until_it_is_written_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lazy_plan, "COMPILED_FROM", 1)
    x = torch.zeros(20, 20)
    work = compiled_work(x)

    def half_way(self: SegmentPrograms, tensors: list[torch.Tensor], numbers: list[Any]) -> Any:
        IN_PLACE.regions += 1
        raise RuntimeError("broken")

    with monkeypatch.context() as patched:
        patched.setattr(SegmentPrograms, "run", half_way)
        with pytest.raises(ExecutionError, match="after it had changed tensors in place"), weft.lazy():
            work()
    with weft.lazy():
        for _ in range(2):
            with pytest.raises(ExecutionError, match="in place"):
                weft.wait(x + 1)
        x.zero_()
        assert weft.wait(x + 1).sum().item() == 400


def test_a_spawned_function_that_failed_leaves_its_tensors_as_a_call_would() -> None:
    p, table = torch.zeros(20, 4), torch.ones(40, 4)

    def work(index: torch.Tensor) -> torch.Tensor:
        p.add_(1)
        return p.add_(rows(index, table))

    first = weft.spawn(work, BAD)
    second = weft.spawn(work, GOOD)
    for spawned in (second, first):
        with pytest.raises(IndexError):
            weft.wait(spawned)
    assert p.sum().item() == 80
    assert weft.wait(weft.spawn(work, GOOD)).sum().item() == 3 * 80


def test_with_the_engine_to_debug_with_code_goes_on_after_an_error() -> None:
    table, p = torch.ones(40, 4), torch.zeros(20, 4)

    def work(index: torch.Tensor) -> torch.Tensor:
        return p.add_(rows(index, table))

    often(work)
    p.zero_()
    with overrides(engine="serial"):
        SESSION.finish()
        weft.lazy_tensors.tasks.engine().close()
        with weft.lazy():
            with pytest.raises(IndexError):
                work(BAD)
            weft.wait(work(GOOD))
        weft.lazy_tensors.tasks.engine().close()
    assert p.sum().item() == 80


def test_a_block_is_not_told_what_another_thread_did() -> None:
    table, p = torch.ones(40, 4), torch.zeros(20, 4)

    def work(index: torch.Tensor) -> torch.Tensor:
        return p.add_(rows(index, table))

    often(work)
    failed, left = threading.Event(), threading.Event()
    told: list[BaseException] = []

    def other() -> None:
        try:
            with weft.lazy():
                work(BAD)
                failed.set()
                assert left.wait(20)
        except IndexError as error:
            told.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    assert failed.wait(20)
    try:
        with weft.lazy():
            pass
    finally:
        left.set()
        thread.join(20)
    assert len(told) == 1
