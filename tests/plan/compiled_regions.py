"""A Graph of small ops -> its answers in machine code, region by region, beside the interpreter's."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.conformance.compare import same_bits, same_rounding
from tests.ir.random_graphs import graphs, random_inputs

from weft.ir.graph import Graph, Result, Value
from weft.ir.interpreter import evaluate
from weft.ir.printer import print_graph
from weft.ir.types import TensorType
from weft.plan.fuse.fuse import fuse
from weft.plan.fuse.fusion import declared, tensor_type
from weft.plan.fuse.merge_loops import merge_loops
from weft.plan.memory.arena import place
from weft.plan.regions.attention import with_attentions
from weft.plan.regions.lazy import is_dense
from weft.plan.regions.region import Region, find_regions
from weft.runtime.executable import NativeExecutable
from weft.target import host_target

SHORT_FLOATS = (torch.float16, torch.bfloat16)
Known = dict[Value, object]


def interpreted(graph: Graph, inputs: Sequence[object]) -> Known | None:
    """Give every value of a graph; None where eager PyTorch raises an error on these inputs."""
    known: Known = dict(zip(graph.inputs, inputs, strict=True))
    try:
        for value in graph.values:
            known[value] = evaluate(value, [known[operand] for operand in value.operands])
    except (RuntimeError, IndexError):
        return None
    return known


def compiled(region: Region, known: Known) -> list[torch.Tensor]:
    """Run a region in machine code on the values it reads; loose outputs are laid out as its kernels like it."""
    target = host_target()
    fused = fuse(region, target)
    run = NativeExecutable(place(merge_loops(fused.plan, target)), target, fused.constants)
    kinds = (replace(tensor_type(value), strides=s) for value, s in zip(region.outputs, fused.strides, strict=True))
    outputs = list(map(like, kinds))
    # As whoever calls a region hands them in: laid out as their types say.
    run([like(value.type).copy_(known[value]) for value in region.inputs], outputs)
    return outputs


def like(kind: object) -> torch.Tensor:
    """Give new memory of a type."""
    assert isinstance(kind, TensorType)
    return torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype)


def agree(expected: torch.Tensor, actual: torch.Tensor, precision: torch.dtype) -> bool:
    """Compare with the freedom of a sum in another order."""
    return same_bits(expected, actual) or same_rounding(expected, actual, precision)


def disagreements(graph: Graph, weights: Sequence[Value] = (), number: int = 0, *, loose: bool = False) -> list[str]:
    """Run a graph's regions one by one; gives a text for each output that differs from the interpreter's.

    With `loose`, kernels choose the layouts of all outputs that have no gaps.
    """
    known = interpreted(graph, random_inputs(graph, number))
    if known is None:
        return []
    kinds = {value.type.dtype for value in known if isinstance(value.type, TensorType)}
    precision = torch.bfloat16 if kinds & set(SHORT_FLOATS) else torch.float32
    found = []
    for region in find_regions(graph, frozenset(weights)):
        if loose:
            dense = (value for value in region.outputs if is_dense(declared(tensor_type(value))))
            region = replace(region, loose=frozenset(dense))
        for value, actual in zip(region.outputs, compiled(region, known), strict=True):
            expected = known[value]
            assert isinstance(expected, torch.Tensor)
            if not agree(expected, actual, precision):
                text = print_graph(graph, places=False)
                found.append(f"{value.op} gives {actual}, the interpreter {expected} in\n{text}")
    return found


def random_graphs(first_seed: int, count: int) -> list[Graph]:
    """Give the graphs of a seed, the same ones in every process."""
    found: list[Graph] = []

    @seed(first_seed)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(graphs(most_values=16, calls=False))
    def collect(graph: Graph) -> None:
        found.append(with_attentions(ending_in_all(graph), host_target()))

    collect()
    return found


def ending_in_all(graph: Graph) -> Graph:
    """The graph with every value that nobody reads as a result, so that no value is computed in vain."""
    users = graph.users()
    ends = [value for value in graph.values if not users[value] and isinstance(value.type, TensorType)]
    return replace(graph, results=tuple(map(Result, ends)), writes=())
