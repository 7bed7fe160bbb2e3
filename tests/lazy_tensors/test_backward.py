"""A backward in lazy code gives the gradients, and leaves the graphs, that eager would."""

import pytest
import torch

import weft
from weft.lazy_tensors import segment_plan as lazy_plan

pytestmark = pytest.mark.usefixtures("own_engine")


def backward_now(loss: torch.Tensor) -> None:
    loss.backward()
    weft.waitall()


def test_gradients_held_after_a_step_are_those_of_the_step() -> None:
    weight = torch.ones(8, 8, requires_grad=True)
    x = torch.full((4, 8), 2.0)
    with weft.lazy():
        for _ in range(5):
            weight.grad = None
            (x @ weight).sum().backward()
            held = weight.grad
            assert held is not None
            with torch.no_grad():
                weight.sub_(held * 0)
        assert weft.wait(held)[0, 0].item() == 8
    assert weight.grad is not None
    assert weight.grad[0, 0].item() == 8


def test_a_graph_is_used_up_by_its_backward() -> None:
    weight = torch.ones(8, 8, requires_grad=True)
    x = torch.ones(4, 8)
    with weft.lazy():
        for _ in range(5):
            weight.grad = None
            loss = (x @ weight).square().sum()
            loss.backward()
            weft.wait(loss)
        with pytest.raises(RuntimeError, match="second time"):
            backward_now(loss)


def test_a_graph_beside_the_one_used_up_stays() -> None:
    first = torch.ones(8, 8, requires_grad=True)
    second = torch.ones(8, 8, requires_grad=True)
    x = torch.ones(4, 8)
    with weft.lazy():
        for _ in range(5):
            first.grad = second.grad = None
            one, two = (x @ first).square().sum(), (x @ second).square().sum()
            one.backward()
            two.backward()
            assert first.grad is not None
            assert second.grad is not None
            assert torch.equal(first.grad * 1, second.grad * 1)
            assert first.grad.sum().item() == 8 * 64 * 8


def test_a_backward_that_cannot_be_traced_runs_by_operators() -> None:
    x = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    value = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    places = torch.tensor([0, 2])
    expected = torch.autograd.grad(x.index_fill(0, places, value).sum(), (x, value))
    for _ in range(4):
        with weft.lazy():
            found = weft.wait(torch.autograd.grad(x.index_fill(0, places, value).sum(), (x, value)))
        assert all(torch.equal(mine, right) for mine, right in zip(found, expected, strict=True))


@pytest.mark.parametrize("compiled_from", [1, 1000], ids=["compiled", "by operators"])
def test_gradients_have_memory_and_strides_as_backward_gives_them(
    monkeypatch: pytest.MonkeyPatch, compiled_from: int
) -> None:
    monkeypatch.setattr(lazy_plan, "COMPILED_FROM", compiled_from)
    for _ in range(3):
        x, y = (torch.zeros(20, 20, requires_grad=True) for _ in range(2))
        with weft.lazy():
            (x + y).sum().backward()
            assert x.grad is not None
            assert y.grad is not None
            x.grad.mul_(2)
        assert x.grad.stride() == (20, 1)
        assert x.grad.sum().item() == 2 * y.grad.sum().item() == 800
