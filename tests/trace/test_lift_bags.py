"""EmbeddingBag in machine code: every mode, form of bags and dtype as eager's, strange offsets too."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import weft
from weft.config import overrides

ROWS = 11
Make = Callable[[torch.dtype], tuple[torch.Tensor, torch.Tensor | None]]
FORMS: dict[str, Make] = {
    "matrix": lambda kind: (torch.randint(ROWS, (6, 4)).to(kind), None),
    "matrix of no rows": lambda kind: (torch.empty(0, 6, dtype=kind), None),
    "matrix of a transposed one": lambda kind: (torch.randint(ROWS, (4, 6)).to(kind).t(), None),
    "offsets": lambda kind: (torch.randint(ROWS, (19,)).to(kind), torch.tensor([0, 3, 3, 4, 11, 19]).to(kind)),
    "one bag": lambda kind: (torch.randint(ROWS, (9,)).to(kind), torch.tensor([0]).to(kind)),
    "no indices": lambda kind: (torch.empty(0, dtype=kind), torch.tensor([0, 0, 0]).to(kind)),
    "many bags": lambda kind: (torch.randint(ROWS, (300,)).to(kind), torch.randint(300, (65,)).sort()[0].to(kind)),
    "bags of one": lambda kind: (torch.randint(ROWS, (5,)).to(kind), torch.arange(5).to(kind)),
}


def made(form: str, kind: torch.dtype = torch.int64) -> tuple[torch.Tensor, torch.Tensor | None]:
    indices, offsets = FORMS[form](kind)
    if offsets is not None:
        offsets[0] = 0
    return indices, offsets


def agree(function: Callable[..., torch.Tensor], *inputs: Any) -> None:
    with torch.no_grad(), overrides(codegen="native"):
        compiled = weft.hybridize(function)
        for _ in range(3):
            found, expected = compiled(*inputs), function(*inputs)
            assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
            bits = torch.finfo(expected.dtype).eps
            torch.testing.assert_close(found, expected, rtol=8 * bits, atol=8 * bits, equal_nan=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 3])
def test_bags_are_eagers(mode: str, form: str, padding: int | None) -> None:
    for dtype, kind, width in ((torch.float32, torch.int64, 16), (torch.float64, torch.int32, 5)):
        indices, offsets = made(form, kind)

        def bags(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor | None = offsets) -> torch.Tensor:
            return functional.embedding_bag(indices, weight, offsets, mode=mode, padding_idx=padding)

        agree(bags, torch.randn(ROWS, width, dtype=dtype), indices, *([] if offsets is None else [offsets]))


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_of_single_indices_are_eagers(form: str, dtype: torch.dtype) -> None:
    indices, offsets = made(form)
    given = [] if offsets is None else [offsets]

    def bags(
        weight: torch.Tensor, factors: torch.Tensor, indices: torch.Tensor, *offsets: torch.Tensor
    ) -> torch.Tensor:
        return functional.embedding_bag(indices, weight, *offsets, mode="sum", per_sample_weights=factors)

    agree(bags, torch.randn(ROWS, 16).to(dtype), torch.randn(indices.shape).to(dtype), indices, *given)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_last_offset_may_end_the_last_bag(mode: str) -> None:
    indices, offsets = made("offsets")
    assert offsets is not None
    net = nn.EmbeddingBag(ROWS, 8, mode=mode, include_last_offset=True)
    agree(net, indices, offsets)
    agree(net, indices[:0], torch.tensor([0, 0]))


@pytest.mark.parametrize("mode", ["sum", "max"])
def test_what_is_no_number_goes_where_it_goes_in_eager(mode: str) -> None:
    indices, offsets = made("many bags")
    weight = torch.randn(ROWS, 7)
    weight[2, 3], weight[5], weight[4, :2] = torch.nan, torch.nan, -torch.inf
    agree(lambda w, i, o: functional.embedding_bag(i, w, o, mode=mode), weight, indices, offsets)
    agree(lambda w, i: functional.embedding_bag(i, w, mode=mode, padding_idx=1), weight, indices.reshape(30, 10))


def test_bags_are_part_of_the_region_around_them() -> None:
    net = nn.EmbeddingBag(ROWS, 8)
    indices, offsets = made("offsets")
    with torch.no_grad(), overrides(codegen="native"):
        program = weft.program(weft.hybridize(lambda i, o: net(i, o).relu() + 1), indices, offsets)
    assert "0 calls" in program.summary()


STRANGE = {"begin late": [1, 4, 9], "end late": [0, 4, 40], "end before the last bag": [0, 4, 9, 12]}


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("which", STRANGE)
@pytest.mark.parametrize("has_end", [False, True])
def test_strange_offsets_give_what_they_give_in_eager(mode: str, which: str, has_end: bool) -> None:
    weight, indices = torch.randn(ROWS, 4), torch.randint(ROWS, (19,))

    def bags(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return functional.embedding_bag(indices, weight, offsets, mode=mode, include_last_offset=has_end)

    usual = torch.tensor([0, 3, 19] if len(STRANGE[which]) == 3 else [0, 3, 5, 19])
    strange = torch.tensor(STRANGE[which])
    with torch.no_grad(), overrides(codegen="native"):
        compiled = weft.hybridize(bags)
        compiled(weight, indices, usual)
        try:
            expected = bags(weight, indices, strange)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=re.escape(str(error))):
                compiled(weight, indices, strange)
        else:
            torch.testing.assert_close(compiled(weight, indices, strange), expected)
        torch.testing.assert_close(compiled(weight, indices, usual), bags(weight, indices, usual))


@pytest.mark.parametrize("wrong", [ROWS, -1])
def test_an_index_out_of_range_is_eagers_error(wrong: int) -> None:
    net = nn.EmbeddingBag(ROWS, 8)
    indices, offsets = made("offsets")
    with torch.no_grad(), overrides(codegen="native"):
        compiled = weft.hybridize(net)
        compiled(indices, offsets)
        indices[7] = wrong
        with pytest.raises(RuntimeError, match="valid range"):
            compiled(indices, offsets)


def test_offsets_that_the_program_makes_are_checked_too() -> None:
    net = nn.EmbeddingBag(ROWS, 8)

    def bags(indices: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        return net(indices, torch.cat([indices.new_zeros(1), sizes.exp2().long()[:-1]]))

    indices, _ = made("offsets")
    agree(bags, indices, torch.tensor([1.0, 3.0, 5.0]))
    with torch.no_grad(), overrides(codegen="native"), pytest.raises(RuntimeError):
        weft.hybridize(bags)(indices, torch.tensor([3.0, 1.0, 5.0]))
