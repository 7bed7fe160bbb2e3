"""What the backward of a step computes once more, and what it does not."""

from __future__ import annotations

from weft.ir.graph import Graph
from weft.ir.parser import parse_graph
from weft.ir.verifier import verify
from weft.plan.regions.recompute import recompute

STEP = """graph step(%x: f32[8, 16], %w: f32[16, 16]) {{
  %0: f32[8, 16] = matmul %x, %w
  %1: f32[8, 16] = {op} %0
  %2: f32[] = sum %1, dimensions=[0, 1], keep=False
  %3: f32[8, 16] = mul {reads}, {reads}
  %4: f32[16, 8] = permute %1, order=[1, 0]
  %5: f32[16, 16] = matmul %4, %3
  return %2, %5
}}"""


def recomputed(text: str) -> tuple[list[str], int]:
    """The ops after recomputing behind the first result, and how many copies are to be stored."""
    graph = parse_graph(text)
    found = recompute(graph, [graph.results[0].value])
    verify(found.graph)
    return ops(found.graph), len(found.copies)


def ops(graph: Graph) -> list[str]:
    return [value.op for value in graph.values]


def test_what_is_made_of_a_value_that_stays_is_made_again_where_it_is_read() -> None:
    found, copies = recomputed(STEP.format(op="tanh", reads="%0"))
    assert found == ["matmul", "tanh", "sum", "mul", "tanh", "permute", "matmul"]
    assert copies == 1


def test_what_would_keep_as_much_memory_alive_is_not_made_again() -> None:
    found, copies = recomputed(STEP.format(op="tanh", reads="%1"))
    assert found == ["matmul", "tanh", "sum", "mul", "permute", "matmul"]
    assert copies == 0


def test_products_are_not_made_again() -> None:
    text = STEP.format(op="tanh", reads="%0").replace("tanh %0", "matmul %0, %w")
    assert recomputed(text) == (["matmul", "matmul", "sum", "mul", "permute", "matmul"], 0)


def test_a_graph_without_a_backward_stays_as_it_is() -> None:
    text = "graph f(%x: f32[8]) {\n  %0: f32[8] = tanh %x\n  return %0\n}"
    assert recomputed(text) == (["tanh"], 0)
