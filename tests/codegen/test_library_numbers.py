"""Python numbers of machine code become tensors together, with the bits that they would have alone."""

from __future__ import annotations

import math

import pytest
import torch
from tests.conformance.compare import same_bits

import weft
from weft.codegen.library import number_tensors

FLOATS = (0.1, -0.0, 1e39, -1e300, 1e-46, math.inf, math.nan, 65520.0, 2.0**-140 * 1.5)
INTEGERS = (0, -1, 2**24 + 1, 2**53 + 1, 2**63 - 1, -(2**63))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind, numbers", [("float", FLOATS), ("int", INTEGERS)])
def test_each_has_the_bits_that_filling_a_tensor_gives(
    kind: str, numbers: tuple[float, ...], dtype: torch.dtype
) -> None:
    found = number_tensors(kind, dtype, numbers)
    for number, tensor in zip(numbers, found, strict=True):
        assert tensor.shape == ()
        assert same_bits(torch.full((), number, dtype=torch.float64).to(dtype), tensor)


def test_an_integer_too_large_for_eager_is_too_large() -> None:
    with pytest.raises(OverflowError):
        number_tensors("int", torch.float32, (1, 2**70))


def test_a_program_with_many_numbers_takes_new_ones_at_each_call() -> None:
    x = torch.randn(5, 7)

    def work(first: int) -> list[torch.Tensor]:
        return [x + number for number in range(first, first + 6)] + [x * (0.1 * first), x - 1e39, x + first]

    for first in range(80):
        with weft.lazy():
            found = weft.wait(work(first))
        assert all(map(torch.equal, found, work(first)))
