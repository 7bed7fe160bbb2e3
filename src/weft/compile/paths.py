"""Cut a path at its decisions into segments, and compile each: those that say the same are compiled once.

A segment computes what its decision needs and no earlier segment has computed, so that the last one, which computes the
rest, has most to fuse. Views are taken again in each segment: memory that a segment hands on nobody else has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.ir.at_sizes import at_sizes, found_sizes
from weft.ir.graph import Graph, Result, Value
from weft.ir.ops import effect_of
from weft.ir.same_graph import same_graph
from weft.ir.sharing import sources
from weft.ir.types import TensorType, TupleType, Type, UnsizedType
from weft.passes.pipeline import run_pipeline
from weft.passes.within import UnboundedError
from weft.runtime.path_graph import PathDecision, PathGraph, PathSegment, Runs
from weft.trace.decisions import Decision, FoundSize

Compile = Callable[..., Runs]  # as weft.compile.pipeline.compile_graph


class CompiledSegments:
    """The segments of one object's paths, each compiled once; callers hold the object's lock."""

    def __init__(self) -> None:
        self._found: list[tuple[tuple[Graph, ...], tuple[int, ...], Runs]] = []
        self._others: dict[str, CompiledSegments] = {}

    def of(self, precision: str) -> CompiledSegments:
        """The segments that compute products in a precision."""
        return self._others.setdefault(precision, CompiledSegments())

    def compiled(self, graph: Graph, weights: Mapping[Value, int], compile_graph: Compile) -> Runs:
        """Compile a graph, or find one that says the same; `weights` are inputs that last, and which tensor each is.

        What packs weights keeps them, so that other weights of the same sizes have a program of their own.
        """
        lasting = tuple(weights.get(value, -1) for value in graph.inputs)
        sizes = found_sizes(graph)
        # What is simplified are calls with numbers, not with sizes that vary.
        simplified = graph if sizes else run_pipeline(graph)
        graphs = (simplified, *(at_sizes(simplified, numbers) for numbers in _told_apart(sizes)))
        for known, places, compiled in self._found:
            if places == lasting and len(known) == len(graphs) and all(map(same_graph, known, graphs)):
                return compiled
        # Operators of earlier segments may lay a result out otherwise than their rules say.
        trusted = all(value.name != HANDED_ON for value in graph.inputs)
        compiled = compile_graph(simplified, frozenset(weights) & {*graph.inputs}, trusted=trusted)
        self._found.append((graphs, lasting, compiled))
        return compiled

    def __len__(self) -> int:
        return len(self._found) + sum(map(len, self._others.values()))


HANDED_ON = "handed_on"
FOUND = "found"  # handed on by an operator that finds it, which lays it out as the trace has seen
FAR_APART = (1_000_003, 10_007)  # sizes that differ in such steps: other ones of a program are other numbers


def _told_apart(sizes: Sequence[Value]) -> list[dict[Value, int]]:
    """Numbers for sizes: equal ones that are made of other sizes become other numbers."""
    return [{size: step * (at + 1) for at, size in enumerate(sizes)} for step in FAR_APART] if sizes else []


@dataclass(frozen=True, slots=True, eq=False)
class SegmentPart:
    """What one segment computes, in order; what it reads of earlier ones; what is handed on or asked for."""

    values: tuple[Value, ...]
    reads: tuple[Value, ...]
    gives: tuple[Value, ...]


class PathCut:
    """Says which segment computes each value of a path."""

    def __init__(self, graph: Graph, decisions: Sequence[Decision]) -> None:
        self._graph = graph
        self._segment: dict[Value, int] = dict.fromkeys(graph.inputs, -1)
        self._order = {value: place for place, value in enumerate((*graph.inputs, *graph.values))}
        self._items: dict[Value, list[Value]] = {}
        for value in graph.values:
            if value.op == "item":
                self._items.setdefault(value.operands[0], []).append(value)
        self._effects: list[list[Value]] = []
        self._decisions = decisions
        begun = 0
        for number, decision in enumerate(decisions):
            # What has an effect keeps its order: what code did before it decided is done before that.
            end = max(begun, *(self._order[value] + 1 - len(graph.inputs) for value in decision.values))
            self._begin(number, [value for value in graph.values[begun:end] if effect_of(value) is not None])
            self._assign(decision.values, number)
            begun = end
        self._begin(len(decisions), [value for value in graph.values[begun:] if effect_of(value) is not None])
        self._assign(graph.roots(), len(decisions))

    @property
    def draws(self) -> bool:
        """Whether anything is drawn."""
        return any(effect_of(value) == "random" for effects in self._effects for value in effects)

    def _begin(self, number: int, effects: list[Value]) -> None:
        self._effects.append(effects)
        self._assign(effects, number)

    def _assign(self, roots: Iterable[Value], number: int) -> None:
        waiting = list(roots)
        while waiting:
            value = waiting.pop()
            if value in self._segment:
                continue
            self._segment[value] = number
            waiting += value.operands
            if isinstance(value.type, TupleType):  # its parts can be handed on, the whole cannot
                waiting += self._items.get(value, [])

    def parts(self) -> list[SegmentPart]:
        """What each segment computes: from the last one on, as each says what it reads of those before it."""
        found: list[SegmentPart] = []
        read: set[Value] = set()
        for number in reversed(range(len(self._decisions) + 1)):
            if number == len(self._decisions):
                ends = [root for root in self._graph.roots() if self._is_made_in(root, number)]
                read.update(root for root in self._graph.roots() if not self._is_made_in(root, number))
            else:
                asked = self._decisions[number].values
                ends = [value for value in asked if self._is_made_in(value, number)]
                read.update(value for value in asked if not self._is_made_in(value, number))
            handed = [value for value in read if self._segment[value] == number]
            gives = sorted(dict.fromkeys([*handed, *ends]), key=self._order.__getitem__)
            part = self._part(number, gives)
            read.update(part.reads)
            found.append(part)
        return found[::-1]

    def _is_made_in(self, value: Value, number: int) -> bool:
        """Whether a segment that wants a value makes it: it is its own, or a view of what others have made."""
        return self._segment[value] == number or (self._segment[value] >= 0 and _is_made_again(value))

    def _part(self, number: int, gives: Sequence[Value]) -> SegmentPart:
        made: set[Value] = set()
        reads: set[Value] = set()
        waiting = [*gives, *self._effects[number]]
        while waiting:
            value = waiting.pop()
            if value in made or value in reads:
                continue
            if self._is_made_in(value, number):
                made.add(value)
                waiting += value.operands
            else:
                reads.add(value)
        in_order = self._order.__getitem__
        return SegmentPart(tuple(sorted(made, key=in_order)), tuple(sorted(reads, key=in_order)), tuple(gives))


def _is_made_again(value: Value) -> bool:
    """Whether each segment makes a value anew: it is written down, a view, in memory of others, or no tensor."""
    return value.op == "constant" or bool(sources(value)) or not isinstance(value.type, TensorType)


def compile_path(
    graph: Graph, decisions: Sequence[Decision], weights: Mapping[Value, int], kept: CompiledSegments, compile_: Compile
) -> PathGraph:
    """Compile a path, the segments that another path has not compiled; `weights` says which tensor each is."""
    cut = PathCut(graph, decisions)
    places = {value: place for place, value in enumerate(graph.inputs)}
    segments: list[PathSegment] = []
    found = (decision.values[0] for decision in decisions if isinstance(decision.ask, FoundSize))
    unsized = frozenset(found) - {*graph.inputs}
    for number, part in enumerate(cut.parts()):
        segment = _segment_graph(graph, part, unsized)
        takes = tuple(places[value] for value in part.reads)
        takes += tuple(places[value] for value in segment.inputs[len(takes) :])
        for value in part.gives:
            places[value] = max(places.values(), default=-1) + 1
        run = kept.compiled(segment, weights, compile_) if part.values else None
        gives = tuple(places[value] for value in part.gives) if run is not None else ()
        decision = None
        if number < len(decisions):
            asked = decisions[number]
            of = tuple(places[value] for value in asked.values)
            decision = PathDecision(of, asked.ask, asked.outcome, asked.read)
        segments.append(PathSegment(run, takes, gives, decision))
    return PathGraph(graph, places, segments, draws=cut.draws)


def _segment_graph(graph: Graph, part: SegmentPart, unsized: frozenset[Value]) -> Graph:
    """A segment as a graph of its own: what earlier segments have made goes in, and behind it sizes that were found.

    What finds out sizes here gives results of any.
    """
    given = {*graph.inputs}
    entries = {
        value: Value("input", (), value.type, name=FOUND if value in unsized else HANDED_ON)
        for value in part.reads
        if value not in given
    }
    replaced = dict(entries)
    finding = {one for value in unsized for one in (value, *value.operands) if value.op == "item" or one is value}
    values = []
    for value in part.values:
        operands = tuple(replaced.get(operand, operand) for operand in value.operands)
        is_found = value in finding or (value.op == "item" and value.operands[0] in finding)
        kind = _unsized(value.type) if is_found else value.type
        if not is_found and any(isinstance(operand.type, UnsizedType) for operand in operands):
            raise UnboundedError("what is found is read in the segment that finds it")
        values.append(replace(value, operands=operands, type=kind) if is_found or operands != value.operands else value)
        replaced[value] = values[-1]
    inputs = tuple(entries.get(value, value) for value in part.reads)
    results = tuple(Result(replaced.get(value, value)) for value in part.gives)
    made = Graph(graph.name, inputs, tuple(values), results)
    return replace(made, inputs=(*inputs, *(size for size in found_sizes(made) if size not in inputs)))


def _unsized(kind: Type) -> Type:
    if isinstance(kind, TupleType):
        return TupleType(tuple(map(_unsized, kind.items)))
    return UnsizedType(kind.dtype, kind.device) if isinstance(kind, TensorType) else kind
