"""Sizes that code divides into windows, pairs and patches, and puts together again: one program for a range of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it

import weft
from weft.ir.extents import Polynomial
from weft.ir.graph import Value
from weft.ir.types import NumberType


def windows(side: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        b, h, w, c = x.shape
        t = x.view(b, h // side, side, w // side, side, c).transpose(2, 3).reshape(-1, side * side, c)
        t = F.scaled_dot_product_attention(t[:, None], t[:, None], t[:, None])[:, 0]
        return t.view(b, h // side, w // side, side, side, c).transpose(2, 3).reshape(b, h, w, c) + x

    return function


def pixels_as_channels(x: torch.Tensor) -> torch.Tensor:
    b, c, h, w = x.shape
    return x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 1, 2, 4).reshape(b, c * 4, h // 2, w // 2) * 2


# For each a function, and the shape of its argument of n parts.
Case = tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[int], tuple[int, ...]]]
CASES: dict[str, Case] = {
    "pairs": (lambda x: x.view(x.shape[0], -1, 2).sum(-1) * 2, lambda n: (4, 2 * n)),
    "rows in pairs": (lambda x: x.view(x.shape[0] // 2, 2, -1).amax(1) * 2, lambda n: (2 * n, 5)),
    "threes": (lambda x: x.view(x.shape[0], x.shape[1] // 3, 3)[:, :, 1] * 2, lambda n: (3, 3 * n)),
    "unflatten": (lambda x: x.unflatten(1, (-1, 4)).amax(-1) * 2, lambda n: (4, 4 * n)),
    "frames and back": (
        lambda x: x.view(x.shape[0], x.shape[1] // 8, 8).softmax(1).view(x.shape) * x,
        lambda n: (n + 1, 8 * n),
    ),
    "patches": (
        lambda x: x.view(2, 3, x.shape[2] // 4, 4, x.shape[3] // 4, 4).permute(0, 2, 4, 1, 3, 5).flatten(3) * 2,
        lambda n: (2, 3, 4 * n, 4 * n + 4),
    ),
    "pixels as channels": (pixels_as_channels, lambda n: (2, 3, 2 * n, 2 * n + 2)),
    "windows of 4": (windows(4), lambda n: (2, 4 * n, 4 * n + 4, 6)),
    "windows of 7": (windows(7), lambda n: (2, 7 * n, 7 * n + 7, 6)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_parts_of_a_size_have_one_program(name: str, with_gradients: bool) -> None:
    function, shape = CASES[name]
    hybrid = weft.hybridize(function)
    for parts in (3, 5, 4, 7, 2, 6):
        ours = torch.rand(shape(parts), requires_grad=with_gradients)
        eagers = ours.detach().clone().requires_grad_(with_gradients)
        found, right = hybrid(ours), function(eagers)
        torch.testing.assert_close(found, right)
        assert found.stride() == right.stride()
        if with_gradients:
            pull = torch.rand(right.shape)
            found.backward(pull)
            right.backward(pull)
            torch.testing.assert_close(ours.grad, eagers.grad)
    told = weft.explain(hybrid)
    assert "do not vary" not in told
    assert "imperatively" not in told
    for place in range(len(shape(4))):
        other = torch.rand([size + (at == place) for at, size in enumerate(shape(4))])
        try:
            right = function(other)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                hybrid(other)
        else:
            torch.testing.assert_close(hybrid(other), right)


def test_what_one_window_decides_says_nothing_of_many() -> None:
    function = windows(7)
    hybrid = weft.hybridize(function, whole=False)
    for high, wide in ((4, 8), (8, 4), (3, 5), (1, 1), (9, 9), (9, 6), (7, 9)):
        x = torch.rand(2, 7 * high, 7 * wide, 6)
        torch.testing.assert_close(hybrid(x), function(x))
    ranges = [line for line in weft.explain(hybrid).splitlines() if line.startswith("  for sizes")]
    assert len(ranges) == 2


def test_what_is_multiplied_by_what_it_was_divided_by_is_whole_where_nothing_is_left_over() -> None:
    size, other = (Polynomial.atom(Value("input", (), NumberType("int"), name=name)) for name in "st")
    four = Polynomial.constant(4)
    quarter = size.over(4)
    assert quarter.times(four).undivided() == size
    assert quarter.times(four).times(other).plus(other).undivided() == size.times(other).plus(other)
    assert quarter.undivided() == quarter
    assert quarter.times(Polynomial.constant(6)).undivided() != size


def test_what_grows_no_faster_than_what_it_is_taken_from_does_not_shrink() -> None:
    size, other = (Polynomial.atom(Value("input", (), NumberType("int"), name=name)) for name in "st")

    def minus(one: Polynomial) -> Polynomial:
        return one.times(Polynomial.constant(-1))

    half = size.over(2)
    for growing in (
        size.plus(minus(half)),
        size.times(other).plus(minus(half.times(other))),
        minus(minus(size).over(2)),
    ):
        assert not growing.shrinks
    remainder = size.plus(minus(half)).plus(minus(half))
    for one in (remainder, minus(size), half.plus(minus(other)), half.plus(minus(size)), remainder.plus(other)):
        assert one.shrinks
