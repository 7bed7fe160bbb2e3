"""What fails in queued work is told with its own line, and spoils what depends on it alone, compiled or not."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.lazy_tensors.lazy_work import compiled_work
from torch import nn
from torch.nn import functional

import weft
from weft.errors import ExecutionError
from weft.lazy_tensors import segment_plan as lazy_plan
from weft.lazy_tensors.segment_plan import SegmentPrograms
from weft.runtime.compiled_graph import IN_PLACE

GOOD = torch.zeros(20, dtype=torch.long)
BAD = torch.full((20,), 50)


pytestmark = pytest.mark.usefixtures("own_engine")


@pytest.fixture(params=[1, 1000], ids=["compiled", "by operators"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each segment as a program, or operator by operator."""
    monkeypatch.setattr(lazy_plan, "COMPILED_FROM", request.param)


def often(work: Callable[[torch.Tensor], Any]) -> None:
    for _ in range(4):
        with weft.lazy():
            weft.wait(work(GOOD))


def test_a_failure_spares_what_does_not_depend_on_it() -> None:
    table, other, x = torch.ones(40, 4), torch.zeros(20, 20), torch.ones(20, 20)

    def work(index: torch.Tensor) -> list[torch.Tensor]:
        other.fill_(3)
        found = functional.embedding(index, table)  # the line that fails
        return [found, found * 2, x @ x, (x @ x + 1).sum()]

    often(work)
    other.zero_()
    with weft.lazy():
        lost, derived, product, total = work(BAD)
        assert weft.wait(total).item() == 8400
        assert weft.wait(product).sum().item() == 8000
        assert weft.wait(other).sum().item() == 1200
        for tensor in (lost, derived):
            with pytest.raises(ExecutionError) as caught:
                weft.wait(tensor)
            fact, where, why = str(caught.value).splitlines()
            assert fact == "the task embedding failed"
            assert where.startswith("  where test_failures.py:") or "/test_failures.py:" in where
            assert where.endswith("found = functional.embedding(index, table)  # the line that fails")
            assert why == "  why   it raised IndexError: index out of range in self"


def test_what_is_changed_in_place_beside_a_failure_is_changed_once() -> None:
    table, count = torch.ones(40, 4), torch.zeros(20, 20)

    def work(index: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return functional.embedding(index, table) + 1

    often(work)
    before = int(count[0, 0].item())
    with weft.lazy():
        lost = work(BAD)
        assert weft.wait(count)[0, 0].item() == before + 1
        with pytest.raises(ExecutionError, match="embedding"):
            weft.wait(lost)
        work(GOOD)
        assert weft.wait(count)[0, 0].item() == before + 2


def test_a_bad_batch_changes_no_parameter_and_names_the_line_of_the_forward() -> None:
    net = nn.Sequential(nn.Embedding(40, 8), nn.Flatten(0), nn.Linear(160, 4))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def work(index: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(index).square().sum()  # the forward
        loss.backward()
        optimizer.step()
        return loss.detach()  # type: ignore[no-any-return]

    often(work)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    with weft.lazy(), pytest.raises(ExecutionError, match=r"(?s)embedding failed.*# the forward"):
        weft.wait(work(BAD))
    for parameter, old in zip(net.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


@pytest.mark.parametrize("by_version", [True, False], ids=["by PyTorch", "by machine code"])
def test_a_program_that_failed_after_a_write_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch, by_version: bool
) -> None:
    monkeypatch.setattr(lazy_plan, "COMPILED_FROM", 1)
    x = torch.zeros(20, 20)
    work = compiled_work(x)

    def half_way(self: SegmentPrograms, tensors: list[torch.Tensor], numbers: list[Any]) -> Any:
        (x if by_version else x.detach().numpy()).__iadd__(1)
        IN_PLACE.regions += not by_version
        raise RuntimeError("broken")

    monkeypatch.setattr(SegmentPrograms, "run", half_way)
    with (
        weft.lazy(),
        pytest.raises(ExecutionError, match=r"(?s)2 operators.*after it had changed tensors in place.*broken"),
    ):
        weft.wait(work())
    assert x[0, 0].item() == 4


def test_a_program_that_failed_before_any_write_runs_by_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_plan, "COMPILED_FROM", 1)
    x = torch.zeros(20, 20)
    work = compiled_work(x)

    def fail(self: SegmentPrograms, tensors: list[torch.Tensor], numbers: list[Any]) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(SegmentPrograms, "run", fail)
    with weft.lazy():
        assert weft.wait(work())[0, 0].item() == 8
    assert x[0, 0].item() == 4


def test_a_late_error_is_caught_as_what_eager_raises() -> None:
    table = torch.ones(40, 4)

    def work(index: torch.Tensor) -> torch.Tensor:
        return functional.embedding(index, table) + 1

    often(work)
    with weft.lazy():
        lost = work(BAD)
        with pytest.raises(IndexError, match="the task embedding failed") as caught:
            weft.wait(lost)
    assert isinstance(caught.value, ExecutionError)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (type(copied), str(copied)) == (ExecutionError, str(caught.value))


def test_a_failed_backward_spoils_no_tensor_beside_it() -> None:
    weight, x, count = torch.ones(8, 8, requires_grad=True), torch.ones(4, 8), torch.zeros(40, 40)

    def loss_after_its_backward() -> torch.Tensor:
        weight.grad = None
        loss = (x @ weight).square().sum()
        loss.backward()
        return loss

    def sum_of_changed() -> float:
        count.add_(1)
        return weft.wait((count @ count).sum() + (count * 2).sum()).item()

    with weft.lazy():
        for times in range(1, 6):
            loss = loss_after_its_backward()
            weft.wait(loss)
            assert sum_of_changed() == 40**3 * times**2 + 2 * 40**2 * times
        loss.backward()
        assert sum_of_changed() == 40**3 * 6**2 + 2 * 40**2 * 6
        with pytest.raises(RuntimeError, match="second time"):
            weft.waitall()
