"""Sizes that an operator refuses, among sizes of which one program computes: eager's error, and then as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it

import weft

ONE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "select": lambda x: x[:, 10] * 2,
    "narrow": lambda x: x.narrow(1, 3, 8) + 1,
    "unfold": lambda x: x.unfold(1, 10, 2) + 1,
    "topk": lambda x: x.topk(10, 1)[0],
    "reflect": lambda x: F.pad(x[None], (9, 0), mode="reflect") * 2,
    "conv": lambda x: F.conv1d(x[None], torch.ones(2, 3, 4), dilation=3),
    "pool": lambda x: F.max_pool1d(x[None], 10, 2),
    "max": lambda x: x.max(1)[0] + 1,
    "view": lambda x: x.view(3, -1, 3) + 1,
    "split": lambda x: torch.cat(x.split([4, 6, x.shape[1] - 10], 1)[::-1], 1) + 1,
    "chunk": lambda x: x.chunk(5, 1)[4] + 1,
}
TWO: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, y: (x * 2 + y).sum(0),
    "matmul": lambda x, y: x.t() @ y,
    "cat": lambda x, y: torch.cat([x, y], 1) + 1,
    "mse_loss": lambda x, y: F.mse_loss(x, y, reduction="sum"),
    "index_add": lambda x, y: torch.zeros(4, 4).index_add(0, (x[:, 0] * 4).long(), y) + 1,
    "expand_as": lambda x, y: x[:1].expand_as(y) + 1,
}


def assert_same(hybrid: Any, function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> None:
    ours, eagers = given(hybrid, *shapes), given(function, *shapes)
    if isinstance(eagers, type) or isinstance(ours, type):
        assert ours is eagers
    else:
        torch.testing.assert_close(ours, eagers)


def given(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Any:
    """What a call gives, with gradients where there are any; or the type of what it raises."""
    torch.manual_seed(0)
    tensors = [torch.rand(shape, requires_grad=True) for shape in shapes]
    try:
        result = function(*tensors)
        result.backward(torch.rand(result.shape))
    except Exception as error:  # noqa: BLE001 - whatever eager raises
        return type(error)
    return [result.detach(), *(tensor.grad for tensor in tensors if tensor.grad is not None)]


@pytest.mark.parametrize("name", ONE)
@pytest.mark.filterwarnings("ignore")
def test_a_size_that_is_refused_raises_as_in_eager(name: str) -> None:
    hybrid = weft.hybridize(ONE[name])
    for size in (12, 14, 15, 9, 10, 1, 0, 2, 16):
        assert_same(hybrid, ONE[name], (3, size))


@pytest.mark.parametrize("name", TWO)
@pytest.mark.filterwarnings("ignore")
def test_two_sizes_that_do_not_go_together_raise_as_in_eager(name: str) -> None:
    hybrid = weft.hybridize(TWO[name])
    for first, second in (
        (5, 5),
        (7, 7),
        (6, 6),
        (6, 5),
        (5, 6),
        (1, 6),
        (6, 1),
        (1, 1),
        (0, 0),
        (0, 1),
        (9, 9),
        (9, 8),
    ):
        assert_same(hybrid, TWO[name], (first, 4), (second, 4))


def contrasted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logits = F.normalize(x, dim=1) @ F.normalize(y, dim=1).T / 0.1
    return F.cross_entropy(logits, torch.arange(x.shape[0]))


def classified(x: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, classes)


def marked_classes(x: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return F.one_hot(classes, x.shape[1]) * x


@pytest.mark.parametrize("grad", [False, True], ids=["no gradients", "gradients"])
def test_as_many_classes_as_rows(*, grad: bool) -> None:
    hybrid = weft.hybridize(contrasted)
    for size in (40, 23, 57, 31, 44, 19):
        x, y = torch.randn(size, 4, requires_grad=grad), torch.randn(size, 4)
        torch.testing.assert_close(hybrid(x, y), contrasted(x, y))
        if grad:
            found, wanted = (torch.autograd.grad(one(x, y), x)[0] for one in (hybrid, contrasted))
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("function", [classified, marked_classes])
def test_classes_are_compared_with_how_many_there_are_now(function: Callable[..., torch.Tensor]) -> None:
    hybrid = weft.hybridize(function)
    for size in (40, 23, 57, 31, 44, 19):
        x, classes = torch.randn(size, size + 1), torch.randint(0, size + 1, (size,))
        torch.testing.assert_close(hybrid(x, classes), function(x, classes))
        for wrong in (size + 1, -3, 63):
            classes[size // 2] = wrong
            with pytest.raises((IndexError, RuntimeError)) as eagers:
                function(x, classes)
            with pytest.raises(eagers.type) as ours:
                hybrid(x, classes)
            assert str(ours.value) == str(eagers.value)
