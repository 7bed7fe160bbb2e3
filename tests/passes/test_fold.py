"""What needs no input is computed when the program is made, as eager PyTorch would have computed it."""

import pytest
import torch
from tests.passes.runs import assert_same

from weft.ir.graph import Graph
from weft.ir.parser import parse_graph
from weft.passes.fold import fold_constants
from weft.passes.simplify import simplify


def folded(body: str) -> Graph:
    graph = parse_graph("graph g(%x: f32[4]) {" + body + "}")
    after = fold_constants(graph)
    assert_same(graph, after, [torch.tensor([1.0, -0.0, float("nan"), 2.0])])
    return after


def ops(graph: Graph) -> list[str]:
    return [value.op for value in graph]


def test_a_fill_in_complex_numbers_is_folded() -> None:
    graph = folded(
        """%0: c64[3] = library aten.full.default([3], complex(1.0, -2.0), dtype=c64)
           %1: c64[3] = library aten.conj_physical.default(%0)
           %2: c64[3] = library aten.neg.default(%1)
           return %2"""
    )
    assert ops(graph)[:2] == ["constant", "expand"]
    assert graph.values[0].attributes["tensor"].item() == 1 - 2j


def test_zeros_of_forward_mode_that_have_no_memory_are_a_constant_that_has() -> None:
    graph = parse_graph("""graph g(%x: f32[4]) {
           %0: f32[3] = library aten._efficientzerotensor.default([3])
           %1: f32[4,3] = library aten.outer.default(%x, %0)
           return %1}""")
    kept = [value.attributes["tensor"] for value in fold_constants(graph) if value.op == "constant"]
    assert [tensor.tolist() for tensor in kept] == [0.0]


def test_a_fill_keeps_the_strides_that_a_library_call_gives() -> None:
    graph = folded(
        """%0: f32[2,2]{1,2} = library aten.empty_strided.default([2, 2], [1, 2])
           %1: f32[2,2]{1,2} = library aten.ones_like.default(%0)
           %2: f32[2,2]{1,2} = library aten.neg.default(%1)
           return %2"""
    )
    assert str(graph.values[2].type) == "f32[2,2]{1,2}"


def test_a_number_that_changes_from_call_to_call_fills_at_every_call() -> None:
    graph = parse_graph(
        """graph g(%n: float) {
             %0: f32[3] = library aten.full.default([3], %n)
             %1: f32[3] = neg %0
             return %1
           }"""
    )
    assert fold_constants(graph) is graph


def test_what_raises_is_left_to_raise_when_it_runs() -> None:
    graph = parse_graph(
        """graph g() {
             %0: f32[2,2] = constant [0.0, 0.0, 0.0, 0.0]
             %1: f32[2,2] = library aten.cholesky.default(%0)
             %2: u8[3] = library aten.full.default([3], 300, dtype=u8)
             %3: f32[2,2] = neg %1
             %4: u8[3] = bitwise_not %2
             return %3, %4
           }"""
    )
    assert fold_constants(graph) is graph


def test_what_the_caller_sees_is_made_anew_at_every_call() -> None:
    assert ops(folded("%0: f32[3] = library aten.zeros.default([3]) return %0")) == ["library"]
    assert ops(
        folded(
            """%0: f32[2] = constant [1.0, 2.0]
               %1: f32[2] = exp %0
               %2: f32[1,2] = reshape %1, shape=[1, 2]
               return %2"""
        )
    ) == ["constant", "exp", "reshape"]


@pytest.mark.parametrize(("size", "is_folded"), [(2**13, True), (2**13 + 1, False)])
def test_tables_stay_within_64_kib(size: int, is_folded: bool) -> None:
    graph = folded(
        f"""%0: i64[{size}] = library aten.arange.default({size})
            %1: i64[] = sum %0, dimensions=[0], keep=False
            %2: i64[1] = reshape %1, shape=[1]
            %3: i64[1] = neg %2
            return %3"""
    )
    assert (graph.values[0].op == "constant") is is_folded


def test_a_small_constant_does_not_become_a_large_table() -> None:
    graph = folded(
        """%0: f32[1,1] = constant [1.0]
           %1: f32[60,60] = pad %0, low=[0, 0], high=[59, 59], value=0.0
           %2: f32[60,60] = neg %1
           return %2"""
    )
    assert "pad" in ops(graph)


def test_the_surroundings_of_whoever_compiles_do_not_matter() -> None:
    text = """graph g() {
      %0: f32[2,2] = constant [0.1, 0.2, 0.3, 0.4]
      %1: f32[2,2] = matmul %0, %0
      %2: f32[2,2] = neg %1
      return %2
    }"""
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        graph = fold_constants(parse_graph(text))
    tensor = graph.values[1].attributes["tensor"]
    assert graph.values[1].op == "constant"
    assert not tensor.is_inference()
    given = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    assert torch.equal(tensor, given @ given)


def test_a_part_of_a_large_constant_does_not_keep_all_of_it() -> None:
    large = torch.arange(100_000.0)
    graph = parse_graph(
        """graph g() {
             %0: f32[100000] = constant #0
             %1: f32[2] = slice %0, start=[5], stop=[7], step=[1]
             %2: f32[2] = neg %1
             %3: f32[2] = exp %2
             return %3
           }""",
        [large],
    )
    part = fold_constants(graph).values[1].attributes["tensor"]
    assert part.tolist() == [5.0, 6.0]
    assert part.untyped_storage().nbytes() == 8


def test_folding_makes_laws_apply() -> None:
    graph = folded(
        """%0: f32[4] = library aten.ones_like.default(%x)
           %1: f32[4] = exp %x
           %2: f32[4] = mul %1, %0
           return %2"""
    )
    assert simplify(graph).values[-1].op == "exp"
