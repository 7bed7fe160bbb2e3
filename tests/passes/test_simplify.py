"""Laws hold bit for bit; each one is seen at work, and each has its reason."""

import pytest
import torch
from tests.passes.golden_cases import CASES, GoldenCase
from tests.passes.runs import assert_same, inputs_for

from weft.ir.graph import Graph, Result, Value
from weft.ir.ops import OPS, build
from weft.ir.parser import parse_graph
from weft.ir.types import contiguous
from weft.passes.simplify import EXACT_CASTS, LAWS, simplify

SIMPLIFIED = [case for case in CASES if "simplify" in case.passes]


def test_every_law_is_at_work_in_a_golden_file() -> None:
    idle = {law.name for law in LAWS}
    for case in SIMPLIFIED:
        graph = case.graph()
        for step in (graph, simplify(graph)):
            idle -= {law.name for law in LAWS for value in step if value.op in law.ops and law.apply(value) is not None}
    assert idle == set()


def test_laws_name_ops_that_exist_and_have_names_of_their_own_and_reasons() -> None:
    assert {op for law in LAWS for op in law.ops} <= set(OPS)
    assert len({law.name for law in LAWS}) == len(LAWS)
    assert all(law.reason for law in LAWS)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("case", SIMPLIFIED, ids=lambda case: case.name)
def test_simplified_graphs_give_the_same_bits_for_special_numbers(case: GoldenCase, seed: int) -> None:
    graph = case.graph()
    assert_same(graph, simplify(graph), inputs_for(graph, seed))


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i8", "u8", "i16", "i32", "i64"])
def test_a_neutral_number_is_neutral_in_every_dtype(dtype: str) -> None:
    number = 1.0 if "f" in dtype else 1
    nothing = -0.0 if "f" in dtype else 0
    text = f"""graph g(%x: {dtype}[64]) {{
      %0: {dtype}[] = constant [{number}]
      %1: {dtype}[64] = expand %0, shape=[64]
      %2: {dtype}[] = constant [{nothing}]
      %3: {dtype}[64] = expand %2, shape=[64]
      %4: {dtype}[64] = mul %x, %1
      %5: {dtype}[64] = pow %4, %1
      %6: {dtype}[64] = add %5, %3
      %7: {dtype}[64] = neg %6
      return %7
    }}"""
    graph = parse_graph(text)
    after = simplify(graph)
    assert after.values[-1].operands == graph.inputs
    assert_same(graph, after, inputs_for(graph))


DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts_that_are_left_out_lose_nothing(source: torch.dtype) -> None:
    for middle in DTYPES:
        for target in DTYPES:
            graph = cast_twice(source, middle, target)
            after = simplify(graph)
            if after is not graph:  # else there is nothing to compare, and floats too large for an integer differ
                assert_same(graph, after, inputs_for(graph, 3))


@pytest.mark.parametrize("source", EXACT_CASTS, ids=str)
def test_a_cast_called_exact_gives_back_every_number(source: torch.dtype) -> None:
    numbers = every_number(source)
    for middle in EXACT_CASTS[source]:
        back = numbers.to(middle).to(source)
        assert torch.equal(torch.nan_to_num(back, nan=-1.0), torch.nan_to_num(numbers, nan=-1.0))
        assert torch.equal(torch.signbit(back)[numbers == 0], torch.signbit(numbers)[numbers == 0])


def every_number(dtype: torch.dtype) -> torch.Tensor:
    """Every number of a narrow dtype; of a wide one, many and the ones at its ends."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype.itemsize <= 2:
        return (
            torch.arange(-(2**15), 2**15)
            .to(torch.int16)
            .view(torch.uint8 if dtype.itemsize == 1 else dtype)
            .view(dtype)
        )
    bits = torch.randint(-(2**31), 2**31, (100_000,)).to(torch.int32)
    return torch.cat([bits, torch.tensor([-(2**31), 2**31 - 1, 0, 1, -1], dtype=torch.int32)]).view(dtype)


def cast_twice(source: torch.dtype, middle: torch.dtype, target: torch.dtype) -> Graph:
    given = Value("input", (), contiguous(source, (64,)))
    first = build("cast", given, dtype=middle)
    second = build("cast", first, dtype=target)
    last = build("concat", second, second, dimension=0)  # so that the cast is not what the caller sees
    return Graph("casts", (given,), (first, second, last), (Result(last),))
