"""torch.topk in machine code: the numbers and the places of eager, also among equals and where there is no number."""

from __future__ import annotations

import pytest
import torch
from tests.plan.compiled_regions import disagreements

import weft
from weft.config import overrides
from weft.ir.parser import parse_graph

DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
)


def agree(x: torch.Tensor, count: int, dimension: int = -1, *, largest: bool = True, in_order: bool = True) -> None:
    def top(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = torch.topk(x, count, dimension, largest, in_order)
        return values, places

    with overrides(codegen="native"):
        compiled = weft.hybridize(top)
        for found, expected in zip(compiled(x), top(x), strict=True):
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert "0 calls" in weft.program(compiled, x).summary()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [True, False])
def test_among_equals_the_places_are_eagers(dtype: torch.dtype, largest: bool) -> None:
    for extent, count in ((8, 2), (16, 1), (31, 7), (64, 3)):
        agree(torch.randint(5, (40, extent)).to(dtype), count, largest=largest)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 17])
def test_every_length_is_eagers(count: int, largest: bool, in_order: bool) -> None:
    for extent in (count, count + 1, count + 2, 3 * count + 5, min(64 * count - 1, 300)):
        if extent < 64 * count:
            agree(torch.randint(2 * extent, (9, extent)).float(), count, largest=largest, in_order=in_order)


@pytest.mark.parametrize("largest", [True, False])
def test_what_is_no_number_is_the_largest(largest: bool) -> None:
    x = torch.randn(50, 12)
    x[torch.rand(50, 12) < 0.3] = torch.nan
    x[torch.rand(50, 12) < 0.2] = torch.inf
    x[torch.rand(50, 12) < 0.2] = -torch.inf
    for count in (1, 4, 12):
        agree(x, count, largest=largest)


def test_any_dimension_of_any_layout_is_searched() -> None:
    for dimension in range(3):
        agree(torch.randn(6, 5, 7).permute(2, 0, 1), 3, dimension)
        agree(torch.randn(12, 10, 14)[::2, ::2, ::2], 2, dimension)
    agree(torch.randn(7), 2)


def test_sizes_that_pytorch_sorts_in_another_way_are_left_to_it() -> None:
    with overrides(codegen="native"):
        for rows, extent, count in ((6, 64, 1), (6, 300, 2), (6, 40, 20), (0, 8, 2)):
            x = torch.randint(4, (rows, extent)).float()
            found = weft.hybridize(lambda x, count=count: torch.topk(x, count))(x)
            assert all(map(torch.equal, found, torch.topk(x, count)))


@pytest.mark.parametrize("largest", [True, False])
def test_rows_of_ever_other_lengths_give_places_within_them_and_equal_numbers_as_eager_does(largest: bool) -> None:
    def mask(x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(x > 0, -float("inf") if largest else float("inf"))

    def first(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, places = mask(x).topk(3, largest=largest)
        return values, places, x.gather(1, places) + 1, x.transpose(0, 1).topk(2, 0).indices

    compiled = weft.hybridize(first)
    for rows, length in ((4, 5), (4, 7), (6, 9), (5, 7), (4, 6), (7, 15)):
        for x in (torch.randint(-1, 3, (rows, length)).float(), torch.ones(rows, length)):
            assert all(map(torch.equal, compiled(x), first(x)))
    assert "1 program, " in str(weft.explain(compiled))


def test_what_is_read_at_the_places_is_part_of_the_region() -> None:
    def route(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        values, places = torch.topk(x.softmax(-1), 2)
        return (weights[places] * values[..., None]).sum(1)

    x, weights = torch.randn(11, 8), torch.randn(8, 5)
    with overrides(codegen="native"):
        compiled = weft.hybridize(route)
        torch.testing.assert_close(compiled(x, weights), route(x, weights))
        assert str(weft.program(compiled, x, weights).plan).count("region") == 1


def test_a_graph_of_it_is_the_interpreters() -> None:
    text = "graph g(%x: bf16[9,8]) { %0: i64[9,3] = top_places %x, count=3, largest=False, sorted=True return %0 }"
    assert not disagreements(parse_graph(text))
