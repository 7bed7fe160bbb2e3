"""A program keeps none of the tensors that it was traced with: each call brings its own."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.lazy_tensors.lazy_work import compiled_work
from torch import nn

import weft
from weft.errors import ExecutionError
from weft.lazy_tensors import segment_plan as lazy_plan
from weft.lazy_tensors.segment_plan import SegmentPrograms
from weft.lazy_tensors.session import SESSION


@pytest.fixture(autouse=True)
def collects_nothing() -> Iterator[None]:
    """No circle leads to a tensor: it ends with its last name, not when the collector comes by."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("grad", [False, True])
def test_a_hybridized_module_keeps_no_batch(grad: bool) -> None:
    net = weft.hybridize(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    batch = torch.ones(4, 8)
    first = weakref.ref(batch.untyped_storage())
    with torch.set_grad_enabled(grad):
        found = net(batch)
        if grad:
            found.sum().backward()
        del batch, found
        assert first() is None
        assert torch.allclose(net(torch.zeros(4, 8)), net[0].bias.tanh().expand(4, 8))


def test_a_backward_for_other_gradients_is_found_when_the_batch_is_gone() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.first(x).tanh(), self.second(x)

    net = weft.hybridize(Two())
    sum(one.sum() for one in net(torch.ones(4, 8))).backward()
    net.zero_grad()
    x = torch.full((4, 8), 2.0)
    net(x)[0].sum().backward()
    found, wanted = net.first.weight.grad, torch.autograd.grad(net.first(x).tanh().sum(), net.first.weight)[0]
    assert found is not None
    assert torch.allclose(found, wanted)
    assert net.second.weight.grad is None


@pytest.mark.usefixtures("own_engine")
def test_lazy_code_keeps_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_plan, "COMPILED_FROM", 1)
    seen = []
    with weft.lazy():
        for step in range(4):
            batch = torch.full((20, 20), float(step))
            seen.append(weakref.ref(batch.untyped_storage()))
            assert weft.wait(batch * 2 + 1)[0, 0].item() == 2 * step + 1
            del batch
    assert [one() for one in seen] == [None] * 4


@pytest.mark.usefixtures("own_engine")
def test_what_a_failed_program_spoilt_keeps_no_operator_from_running_at_once_once_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lazy_plan, "COMPILED_FROM", 1)

    def spoil() -> None:
        x = torch.zeros(20, 20)
        work = compiled_work(x)

        def half_way(self: SegmentPrograms, tensors: list[torch.Tensor], numbers: list[Any]) -> Any:
            x.add_(1)
            raise RuntimeError("broken")

        with monkeypatch.context() as patch:
            patch.setattr(SegmentPrograms, "run", half_way)
            with weft.lazy(), pytest.raises(ExecutionError):
                weft.wait(work())
        assert SESSION.storages.all()
        assert not SESSION.is_settled()

    spoil()
    assert SESSION.is_settled()
    assert not SESSION.storages.all()
