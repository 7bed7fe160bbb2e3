"""Whatever is written into whichever inputs, from old values of others and new ones, every input ends as in eager."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import weft

Program = Callable[..., Tensor]
SIZES = (6, 5)


def program(seed: int) -> Program:
    """Make a function of three tensors that computes a little, then writes into some of them, whole or in part."""
    dice = random.Random(seed)
    steps = [(dice.randrange(6), dice.randrange(9), dice.randrange(9)) for _ in range(dice.randrange(2, 6))]
    writes = [(dice.randrange(3), dice.randrange(9), dice.randrange(5)) for _ in range(dice.randrange(1, 5))]
    early = dice.random() < 0.3
    given_back = dice.randrange(9)

    def function(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        values = [a, b, c]
        if early:
            a.mul_(2)
        for kind, one, other in steps:
            x, y = values[one % len(values)], values[other % len(values)]
            values.append(
                (x + y, x * 2, x - y.mean(), x @ y.t()[:, :5] if x.shape == y.shape else x, x.exp(), x.flip(0))[kind]
            )
        # What is written are values as they were before any write: old inputs are copied where that is meant.
        sources = [value.clone() if dice_is_old(number) else value for number, value in enumerate(values)]
        for target, source, kind in writes:
            value = sources[source % len(sources)]
            value = value.clone() if kind == 2 else value  # eager refuses to copy a tensor's rows onto each other
            (a, b, c)[target][slice(*((None, None), (1, 4), (0, 3), (2, None), (None, None))[kind])].copy_(
                value[slice(*((None, None), (1, 4), (2, 5), (2, None), (None, None))[kind])]
            )
        return values[given_back % len(values)] + 1

    def dice_is_old(number: int) -> bool:
        return (seed >> number) & 1 == 1

    return function


@pytest.mark.parametrize("seed", range(48))
def test_inputs_end_as_in_eager(seed: int) -> None:
    function = program(seed)
    hybrid = weft.hybridize(program(seed))
    for call in range(3):
        torch.manual_seed(call)
        given = [torch.rand(SIZES) for _ in range(3)]
        ours = [one.clone() for one in given]
        expected, found = function(*given), hybrid(*ours)
        torch.testing.assert_close(found, expected)
        for mine, theirs in zip(ours, given, strict=True):
            torch.testing.assert_close(mine, theirs)
