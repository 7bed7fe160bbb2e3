"""Compile graphs whose sizes vary: each is planned for the largest ones, and runs for any smaller ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from weft.compile.calibration import calibrated_inputs
from weft.compile.lifted_sizes import lifted_for_all_sizes
from weft.compile.precision import FULL, lowered
from weft.config import config
from weft.ir.at_sizes import at_sizes, has_extents
from weft.ir.extents import Polynomial
from weft.ir.generator import generator_state
from weft.ir.graph import Graph, LiftedGraph, Value
from weft.ir.interpreter import evaluate
from weft.ir.library import UNDECLARED_WRITES, packet_name
from weft.ir.types import TensorType, TupleType
from weft.passes.bounded import bounded
from weft.passes.by_sizes import split_by_sizes
from weft.passes.growing import growing_inputs
from weft.passes.within import UnboundedError, Within, any_varies, prefix
from weft.passes.work import work_of
from weft.plan.extents.parts import VaryingSizes
from weft.runtime.compiled_graph import CompiledGraph
from weft.runtime.large_forms import GrowingInput, ResultPart, VaryingInput, has_known_strides
from weft.runtime.saved_strides import PYTORCHS, SavedStrides
from weft.runtime.varying_sizes import Largest, SizePlace, VaryingExecutable, memories_of, parts_of_results
from weft.target import host_target
from weft.trace.traced import Traced


class VaryingCompiler:
    """Compiles the graphs of one program, as `compile_graph` does those whose sizes are numbers.

    What a forward saves for its backward stays as large as it can be; the backward knows what is within of it.
    """

    def __init__(
        self,
        sizes: Mapping[Value, SizePlace],
        compile_graph: Callable[..., CompiledGraph],
        precision: str = FULL,
        *,
        is_alone: bool = False,
    ) -> None:
        """With `is_alone`, sizes are found by a run of the one graph itself; else they are inputs of graphs."""
        self._compile = compile_graph
        self._sizes = dict(sizes)
        self._precision = precision
        self._calibrated: Mapping[Value, Any] = {}
        self._is_alone = is_alone
        self._fixed: frozenset[Value] = frozenset()  # results whose strides are the same at any size
        self._within: Mapping[Value, Within] = {}  # of what the forward gives, of which some is
        self._kept: frozenset[Value] = frozenset()  # as large as it can be
        self._given: dict[Graph, dict[Value, Within]] = {}  # of what backwards take: saved values, and
        self._tangents: dict[Graph, dict[Value, Within]] = {}  # gradients, which come in the form of what they are of

    def __call__(
        self,
        graph: Graph,
        weights: frozenset[Value],
        *,
        trusted: bool = True,
        forward: Collection[Value] = (),
        strides: SavedStrides = PYTORCHS,
    ) -> VaryingExecutable:
        """Compile a forward or, once it has been noted, one of its backwards."""
        sizes = tuple(self._sizes.values()) if self._is_alone else _given_sizes(graph, self._sizes)
        given, tangents = self._given.get(graph, {}), self._tangents.get(graph, {})
        # Programs of PyTorch's operators give eager's bits: no sum of theirs may have zeros behind it.
        native = config().codegen == "native"
        by_call = lifted_for_all_sizes(graph, none_larger=not self._is_alone) if native else LiftedGraph.of(graph)
        lifted = by_call.graph
        growing = growing_inputs(lifted) if self._is_alone else {}
        largest = bounded(by_call, given | tangents, growing)
        inputs = dict(zip(graph.inputs, largest.graph.inputs, strict=True))
        found = split_by_sizes(largest, [inputs[place.value] for place in sizes])
        lasting = frozenset(inputs[value] for value in weights)
        known = {inputs[value]: one for value, one in self._calibrated.items() if value in inputs}
        found = replace(found, graph=lowered(found.graph, lasting, self._precision, host_target(), known))
        within = {result.value: one for result, one in zip(found.graph.results, found.within, strict=True)}
        now = dict(zip(graph.roots(), found.graph.roots(), strict=False))  # behind them what grows is written
        ends = [now[value] for value in forward]
        numbers = {inputs[place.value]: Polynomial.atom(place.value) for place in sizes}
        pairs = zip(graph.roots(), lifted.roots(), strict=True)
        kept = frozenset(root for root, value in pairs if root in strides.loose and has_extents(value.type))
        given_out = [root.value for root in graph.results if root.value not in kept]
        if not all(has_known_strides(value.type, is_fixed=value in self._fixed) for value in given_out):
            raise UnboundedError("a result whose size varies has gaps in memory")
        lifted_of = dict(zip(graph.roots(), lifted.roots(), strict=True))
        parts = parts_of_results(
            graph, lifted_of, dict(zip(graph.roots(), found.within, strict=False)), (kept, self._fixed)
        )
        memories = memories_of(graph, given, growing, tangents)
        dense = {**_dense_inputs(graph, memories, inputs), **_dense_results(graph, parts, now)}
        varying = VaryingSizes(found.sizes, within, _within_inputs(graph, inputs, given | tangents), numbers, dense)
        compiled = self._compile(found.graph, lasting, trusted=trusted, forward=ends, varying=varying)
        compiled.of_operators = False
        made = Largest(
            compiled, found, sizes, not self._is_alone, kept, frozenset(given), tangents, growing, work_of(lifted),
            self._fixed,
        )  # fmt: skip
        run = VaryingExecutable(graph, lifted, made)
        if not self._given:
            self._within, self._kept = run.within, kept
        return run

    @classmethod
    def of(cls, traced: Traced, compile_graph: Callable[..., CompiledGraph]) -> VaryingCompiler:
        """Make one for a program whose arguments vary in size."""
        sizes = {value: SizePlace(value, *place) for value, place in traced.size_places.items()}
        is_alone = traced.gradient is None  # those with gradients compute in full precision
        found = cls(sizes, compile_graph, traced.precision if is_alone else FULL, is_alone=is_alone)
        found._calibrated, found._fixed = calibrated_inputs(traced.inputs), traced.fixed_strides
        return found

    @property
    def sizes(self) -> Sequence[SizePlace]:
        """Where calls have the sizes."""
        return tuple(self._sizes.values())

    def note_backward(self, graph: Graph, saved: Sequence[Value], roots: Sequence[Value]) -> None:
        """Say which saved values are the first inputs of a backward, and of which values the rest are gradients."""
        pairs = zip(graph.inputs, saved, strict=False)
        self._given[graph] = {value: self._within[source] for value, source in pairs if source in self._kept}
        pairs = zip(graph.inputs[len(saved) :], roots, strict=True)
        within = {value: self._within_of(root) for value, root in pairs}
        self._tangents[graph] = {value: one for value, one in within.items() if any_varies(one)}

    def _within_of(self, root: Value) -> Within:
        """What counts of what carries a gradient: of what is written there is no telling, but where nothing varies."""
        if root not in self._within and has_extents(root.type):
            raise UnboundedError("what is written carries a gradient, and its size varies")
        return self._within.get(root, ())


def _within_inputs(graph: Graph, now: Mapping[Value, Value], known: Mapping[Value, Within]) -> dict[Value, Within]:
    """What counts of the inputs of a graph of the largest sizes."""
    kinds = ((value, value.type) for value in graph.inputs)
    return {
        now[value]: known[value] if value in known else tuple(map(prefix, kind.shape))
        for value, kind in kinds
        if isinstance(kind, TensorType) and has_extents(kind)
    }


Strides = tuple[Polynomial, ...]


def _dense_inputs(graph: Graph, memories: Iterable[VaryingInput], now: Mapping[Value, Value]) -> dict[Value, Strides]:
    """The strides of inputs that nothing is written to, for a graph of the largest sizes to take them as they lie."""
    written = {write.input for write in graph.writes}
    values = ((graph.inputs[one.index], one) for one in memories if not isinstance(one, GrowingInput))
    return {now[value]: one.own_strides for value, one in values if value not in written}


def _dense_results(graph: Graph, parts: Mapping[Value, ResultPart], now: Mapping[Value, Value]) -> dict[Value, Strides]:
    """The same of results that are no writes, and of which no other one is a part."""
    written, times = (
        {write.value for write in graph.writes},
        Counter(now[root] for root in dict.fromkeys(graph.roots())),
    )
    return {
        now[root]: part.own_strides for root, part in parts.items() if root not in written and times[now[root]] == 1
    }


def replay(
    graph: Graph, sizes: Collection[Value], constants: Iterable[Value], given: int = 0
) -> Callable[..., Sequence[Any]]:
    """What computes a forward's results from its inputs, the sizes among them, by operators that autograd sees.

    It sees `constants` as such. The last `given` results are given, too.
    """
    quiet = frozenset(constants)
    are_constant = [value in quiet for value in graph.values]
    places = {value: place for place, value in enumerate(graph.inputs) if value in sizes}
    count = len(graph.results) - given

    def run(inputs: Sequence[Any], known: Sequence[Any] = ()) -> Sequence[Any]:
        now = at_sizes(graph, {value: inputs[place] for value, place in places.items()})
        found = dict(zip(now.inputs, inputs, strict=True))
        found |= zip((result.value for result in now.results[count:]), known, strict=True)
        for value, is_constant in zip(now.values, are_constant, strict=True):
            if value not in found:
                with torch.set_grad_enabled(not is_constant):
                    found[value] = evaluate(value, [found[operand] for operand in value.operands])
        return [found[result.value] for result in now.results[:count]]

    return run


def reads_what_it_writes(graph: Graph) -> bool:
    """Whether results are computed from what inputs held that the graph writes.

    Norms that keep averages of batches do not read them where they write them.
    """
    read, kept = {write.input for write in graph.writes}, dict[Value, int]()
    for value in graph.values:
        places = [place for place, operand in enumerate(value.operands) if operand in read]
        if value.op == "item" and value.operands[0] in kept:
            if value.attributes["index"] >= kept[value.operands[0]]:
                read.add(value)
        elif places and value.op == "update" and packet_name(value.attributes["call"].target) in UNDECLARED_WRITES:
            count = len({place.base for place in value.attributes["call"].written})
            if places[-1] < count and isinstance(value.type, TupleType):
                kept[value] = len(value.type.items) - count
            else:
                read.add(value)
        elif places:
            read.add(value)
    return any(result.value in read or result.value in kept for result in graph.results)


def drawing_again(run: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """The same of what draws random numbers: behind its inputs is the state of the generator before it ran."""

    def again(inputs: Sequence[Any], known: Sequence[Any] = ()) -> Sequence[Any]:
        now = generator_state()
        torch.set_rng_state(inputs[-1])
        try:
            return run(inputs[:-1], known)
        finally:
            torch.set_rng_state(now)

    return again


def _given_sizes(graph: Graph, sizes: dict[Value, Any]) -> tuple[SizePlace, ...]:
    return tuple(SizePlace(value, place, None) for place, value in enumerate(graph.inputs) if value in sizes)
