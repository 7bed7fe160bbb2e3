"""What has no rule runs by PyTorch's operator at the sizes of a call, and gives what eager gives."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import pytest
import torch

from weft.codegen.library import LibraryExecutable
from weft.ir.extents import Extent, extent_of_size
from weft.ir.graph import Graph, LiftedGraph, Result, Value
from weft.ir.interpreter import interpret
from weft.ir.library import HOLE, Call, Operand, ViewStep, WrittenArgument, WrittenPlace
from weft.ir.ops import build
from weft.ir.types import NumberType, TensorType, TupleType, Type, UnsizedType, contiguous
from weft.ir.verifier import verify
from weft.passes import true_sizes
from weft.passes.bounded import bounded
from weft.passes.true_sizes import CUT, PUT, UnforeseenSizesError
from weft.passes.within import UnboundedError
from weft.plan.library_plan import plan_library
from weft.trace.lift.lift import lift, lift_by_call

TOP, WIDTH = 8, 3
SIZES = (8, 5, 2, 1)
F32 = torch.float32


def size() -> tuple[Value, Extent]:
    number = Value("input", (), NumberType("int"), name="n")
    extent = extent_of_size(number, TOP)
    assert isinstance(extent, Extent)
    return number, extent


def call(
    target: str, operands: Sequence[Value], kind: Type, *arguments: Any, op: str = "library", **given: Any
) -> Value:
    made = Call(target, arguments, tuple(given.pop("keywords", ())), **given)
    return Value(op, tuple(operands), kind, MappingProxyType({"call": made}))


def graph(inputs: Sequence[Value], values: Sequence[Value], results: Sequence[Value]) -> Graph:
    found = Graph("test", tuple(inputs), tuple(values), tuple(map(Result, results)))
    verify(found)
    return found


def first_of(found: Graph, inputs: Sequence[Any], count: int) -> torch.Tensor:
    """Interpret a graph of one result, and give so many rows; what is generated for it must give the same."""
    (result,) = interpret(found, inputs)
    (generated,) = LibraryExecutable(plan_library(found))(inputs)
    assert torch.equal(generated[:count], result[:count])
    rows: torch.Tensor = result[:count]
    return rows


def behind(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    memory = torch.full(tuple(shape), float("nan"))
    memory[tuple(map(slice, tensor.shape))] = tensor
    return memory


@pytest.mark.parametrize("count", SIZES)
def test_an_operator_sees_what_counts_of_its_operands_alone(count: int) -> None:
    number, n = size()
    x = Value("input", (), contiguous(F32, (n, WIDTH)), name="x")
    total = call("aten.cumsum.default", [x], contiguous(F32, (n, WIDTH)), Operand(0), 0)
    found = bounded(lift_by_call(graph([x, number], [total], [total])))
    given = torch.randn(count, WIDTH)
    assert torch.equal(first_of(found.graph, [behind(given, (TOP, WIDTH)), count], count), given.cumsum(0))


@pytest.mark.parametrize("count", SIZES)
def test_merged_dimensions_are_cut_factor_by_factor(count: int) -> None:
    number, n = size()
    x = Value("input", (), contiguous(F32, (WIDTH, n)), name="x")
    row = call("aten.view.default", [x], contiguous(F32, (n * WIDTH,)), Operand(0), (n * WIDTH,))
    total = call("aten.cumsum.default", [row], contiguous(F32, (n * WIDTH,)), Operand(0), 0)
    found = bounded(lift_by_call(graph([x, number], [row, total], [total])))
    given = torch.randn(WIDTH, count)
    result = first_of(found.graph, [behind(given, (WIDTH, TOP)), count], count * WIDTH)
    assert torch.equal(result, given.flatten().cumsum(0))


@pytest.mark.parametrize("count", SIZES)
def test_each_of_several_results_goes_on(count: int) -> None:
    number, n = size()
    x = Value("input", (), contiguous(F32, (n, WIDTH)), name="x")
    kinds = (contiguous(F32, (n, WIDTH)), contiguous(torch.int64, (n, WIDTH)))
    whole = call("aten.sort.default", [x], TupleType(kinds), Operand(0), 0)
    items = [build("item", whole, type=kind, index=index) for index, kind in enumerate(kinds)]
    twice = call("aten.add.Tensor", items[:1] * 2, kinds[0], Operand(0), Operand(1))
    found = bounded(lift_by_call(graph([x, number], [whole, *items, twice], [twice, items[1]])))
    assert sum(value.op == "add" for value in found.graph.values) == 1
    given = torch.randn(count, WIDTH)
    values, places = interpret(found.graph, [behind(given, (TOP, WIDTH)), count])
    assert torch.equal(values[:count], given.sort(0)[0] * 2)
    assert torch.equal(places[:count], given.sort(0)[1])


@pytest.mark.parametrize("count", SIZES)
def test_numbers_among_arguments_and_in_views_that_are_written_are_those_of_the_call(count: int) -> None:
    number, n = size()
    kind = contiguous(F32, (n, WIDTH))
    x = Value("input", (), kind, name="x")
    half = ViewStep("aten.slice.Tensor", (HOLE, 0, n // 2, 9223372036854775807))
    written = call(
        "aten.cumsum_.default",
        [x],
        kind,
        WrittenArgument(0),
        0,
        op="update",
        written=(WrittenPlace(0, (half,)),),
    )
    found = bounded(lift_by_call(graph([x, number], [written], [written])))
    given = torch.randn(count, WIDTH)
    expected = given.clone()
    expected[count // 2 :].cumsum_(0)
    assert torch.equal(first_of(found.graph, [behind(given, (TOP, WIDTH)), count], count), expected)


def test_lifting_leaves_what_runs_at_true_sizes_to_pytorch() -> None:
    number, n = size()
    x = Value("input", (), contiguous(F32, (n, WIDTH)), name="x")
    sorted_ = call("aten.cumsum.default", [x], contiguous(F32, (n, WIDTH)), Operand(0), 0)
    total = call("aten.sum.default", [sorted_], contiguous(F32, ()), Operand(0))
    plain = graph([x, number], [sorted_, total], [total])
    found = bounded(lift_by_call(plain, {total})).graph
    targets = [value.attributes["call"].target for value in lift(found).values if value.op == "library"]
    # The second takes what the first gave, as it is: larger memory is for kernels, and here nobody reads it.
    assert targets == [CUT, "aten.cumsum.default", PUT, "aten.sum.default"]
    assert sum(isinstance(value.type, UnsizedType) for value in found.values) == 2


def test_a_rule_that_refuses_leaves_nothing_behind() -> None:
    number, n = size()
    x = Value("input", (), contiguous(F32, (n, WIDTH)), name="x")
    hidden = build("argmax", x, dimension=None, keep=False)
    with pytest.raises(UnboundedError, match="a place among all elements"):
        bounded(LiftedGraph.of(graph([x, number], [hidden], [hidden])))
    place = call("aten.argmax.default", [x], contiguous(torch.int64, ()), Operand(0))
    found = bounded(lift_by_call(graph([x, number], [place], [place]))).graph
    assert not any(value.op in ("select", "iota", "reshape") for value in found.values)
    given = torch.randn(5, WIDTH)
    assert interpret(found, [behind(given, (TOP, WIDTH)), 5]) == [given.argmax()]


def test_an_operator_that_reads_memory_as_such_is_refused() -> None:
    number, n = size()
    x = Value("input", (), contiguous(F32, (n, WIDTH)), name="x")
    window = call("aten.as_strided_copy.default", [x], contiguous(F32, (2, 2)), Operand(0), (2, 2), (1, 1))
    with pytest.raises(UnboundedError, match="reads memory as such"):
        bounded(lift_by_call(graph([x, number], [window], [window])))


def test_other_sizes_than_were_said_are_found() -> None:
    with pytest.raises(UnforeseenSizesError, match=r"sizes \[3\], where it was to have \[2\]"):
        torch.ops.weft.put_in_largest(torch.zeros(3), [2], [8], [1])


def test_what_lies_as_it_should_is_not_copied() -> None:
    x = torch.randn(8, 3)
    rows = torch.ops.weft.cut_to_sizes(x, [8, 3], [5, 3], [5, 3], [0, 1])
    columns = torch.ops.weft.cut_to_sizes(x, [8, 3], [8, 2], [8, 2], [0, 1])
    assert rows.data_ptr() == x.data_ptr()
    assert (columns.stride(), columns.data_ptr() == x.data_ptr()) == ((2, 1), False)
    assert torch.equal(columns, x[:, :2])


def test_gaps_are_where_eager_has_them() -> None:
    x = torch.randn(8, 3)
    gaps = torch.ops.weft.cut_to_sizes(x, [8, 3], [5, 2], [5, 2], [~0, 1])
    assert (gaps.stride(), gaps.data_ptr() == x.data_ptr()) == ((3, 1), True)
    made = torch.ops.weft.cut_to_sizes(x, [8, 3], [5, 3], [5, 3], [~0, ~1])
    assert made.stride() == (7, 2)
    assert torch.equal(made, x[:5])


def test_strides_are_those_of_the_order_in_memory() -> None:
    kind = TensorType(F32, (4, 3), (1, 4))
    found = torch.ops.weft.put_in_largest(torch.randn(2, 3), [2, 3], kind.shape, kind.strides)
    assert found.stride() == kind.strides


def test_what_is_repeated_is_put_into_larger_memory_once() -> None:
    x = torch.tensor([[1.0], [2.0]]).expand(2, 3)
    found = true_sizes.put_in_largest(x, (2, 3), (4, 5), (1, 0))
    assert torch.equal(found[:2, :3], x)
