"""Find the results of a trace that are computed from others of its results, and what lies between.

In eager a hidden state that is returned beside a loss is an ancestor of it: hooks of the hidden state see, and change,
the gradient on its way down. See docs/decisions/0083-linked-results.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from weft.errors import UnsupportedError, source_line
from weft.ir.graph import Place, Value
from weft.ir.library import Path
from weft.trace.backward import Derivatives, Differentiator, Wanted
from weft.trace.interception.capture import has_gradient_hooks, is_of_function
from weft.trace.tracer import TracedInput, Tracer

Edge = tuple[Any, int]  # where the gradient of a tensor arrives: a node of autograd, and which of its outputs


def find_groups(roots: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Number the roots: those of one number have nodes in common that save something, which one backward lets go.

    Backwards of others may run one after the other.
    """
    numbers = list(range(len(roots)))
    owners: dict[Any, int] = {}
    saving: dict[Any, bool] = {}
    for number, root in enumerate(roots):
        waiting = [root.grad_fn] if root.grad_fn is not None else []
        while waiting:
            node = waiting.pop()
            owner = owners.setdefault(node, number)
            if owner == number and node not in saving:
                waiting += [source for source, _ in node.next_functions if source not in (None, node)]
                saving[node] = _saves(type(node))
            elif numbers[owner] != numbers[number] and _save_below(node, saving):
                first, other = sorted((numbers[owner], numbers[number]))
                numbers = [first if one == other else one for one in numbers]
    return tuple(numbers)


def _save_below(start: Any, saving: Mapping[Any, bool]) -> bool:
    waiting, seen = [start], {start}
    while waiting:
        node = waiting.pop()
        if saving.get(node, True):
            return True
        sources = {source for source, _ in node.next_functions if source is not None} - seen
        seen |= sources
        waiting += sources
    return False


@lru_cache(maxsize=1024)
def _saves(kind: type) -> bool:
    """Whether nodes of a kind may save tensors."""
    if issubclass(kind, BackwardCFunction):
        return is_of_function(kind)
    return any(name.startswith("_raw_saved") for name in dir(kind))


@dataclass(frozen=True, slots=True)
class Carrying:
    """A result that carries a gradient: its number, what stands for it, what is differentiated for it, if anything.

    `path` are the views that are taken of what it lies in.
    """

    number: int
    tensor: torch.Tensor
    root: torch.Tensor | None
    path: Path


@dataclass(frozen=True, eq=False)
class Link:
    """What is differentiated, a root, and computed from other results.

    `root` is its number among the roots, `result` that of a result that lies in it. It is computed from the results
    `sources`, which lie in the roots of the links `upstream` or in none, and from `inputs` by ways around these. With
    `watched`, beside the sources what these are views of, all that it is computed from is there or upstream.
    """

    root: int
    result: int
    sources: tuple[int, ...]
    watched: tuple[int, ...]
    upstream: tuple[int, ...]
    inputs: tuple[int, ...]
    tracer: Tracer = field(repr=False)
    tensor: torch.Tensor = field(repr=False)
    wanted: tuple[Wanted, ...] = field(repr=False)
    values: tuple[Value, ...] = field(repr=False)  # of the sources
    whole: Derivatives = field(repr=False)
    is_passed_twice: bool = False

    @cached_property
    def derivatives(self) -> Derivatives:
        """The backwards from the root to its sources, and to inputs by ways around these. Callers hold the lock."""
        if self.is_passed_twice:
            raise _in_parts(self.tracer.recorder.value_of(self.tensor).place)
        sources = [entry.leaf for entry in self.wanted[: len(self.sources)]]
        differentiator = Differentiator(self.tracer, [self.tensor], self.wanted, sources)
        differentiator.own = [self.tensor] if self.is_read else []
        return Derivatives(differentiator, self.whole.saved)

    @property
    def is_read(self) -> bool:
        """Whether backwards read the root."""
        return self.tracer.recorder.value_of(self.tensor) in self.whole.saved


def find_views(results: Sequence[Carrying]) -> dict[int, int]:
    """Of which other result each result is a view, where both lie in one tensor: numbers by numbers."""
    found = {}
    ends = {_edge(result.tensor): result for result in results if result.path}
    for result in results if len(ends) > 1 else ():
        node = result.tensor.grad_fn
        for _ in result.path:
            edge = node.next_functions[0] if node is not None and node.next_functions else (None, 0)
            source, node = ends.get(edge), edge[0]
            if source is not None and source.path == result.path[: len(source.path)]:
                found[result.number] = source.number
                break
    return found


def find_links(
    tracer: Tracer,
    results: Sequence[Carrying],
    roots: Sequence[torch.Tensor],
    wanted: Sequence[int],
    whole: Derivatives,
) -> tuple[Link, ...]:
    """Give the links of a trace, those first that others go on from."""
    if len(results) < 2 or whole.first is None:
        return ()
    own = {id(result.root) for result in results}
    if any(id(root) not in own for root in roots):
        return ()  # what is written carries a gradient, and becomes an ancestor later
    pairs = zip(wanted, whole.first.gradients, strict=True)
    ways = _Ways(tracer, results, [number for number, gradient in pairs if gradient is not None])
    starts = [ways.of(root) for root in roots]
    passed = [way.touched for way in starts]
    found = [
        ways.link(place, root, starts[place], _is_passed_twice(passed, place))
        for place, root in enumerate(roots)
        if starts[place].results
    ]
    order = {value: number for number, value in enumerate(tracer.recorder.values)} if len(found) > 1 else {}
    found.sort(key=lambda start: (start.below, order.get(tracer.recorder.value_of(start.root), -1)))
    numbers = {id(start.root): number for number, start in enumerate(found)}
    lies_in = {result.number: numbers.get(id(result.root), -1) for result in results}
    return tuple(
        Link(
            start.place,
            next(result.number for result in results if result.root is start.root),
            start.sources,
            ways.watched(start.sources),
            tuple(sorted({lies_in[number] for number in start.sources} - {-1})),
            start.inputs,
            tracer,
            start.root,
            (*(Wanted(ways.tensors[number]) for number in start.sources), *map(ways.wanted, start.inputs)),
            tuple(tracer.recorder.value_of(ways.tensors[number]) for number in start.sources),
            whole,
            start.is_passed_twice,
        )
        for start in found
    )


def _is_passed_twice(passed: Sequence[int], place: int) -> bool:
    return any(passed[place] & touched for number, touched in enumerate(passed) if number != place)


@dataclass(frozen=True, slots=True)
class _Start:
    """A root that is computed from other results, `below` so many of them in all."""

    place: int
    root: torch.Tensor
    sources: tuple[int, ...]
    inputs: tuple[int, ...]
    below: int
    is_passed_twice: bool


@dataclass(frozen=True, slots=True)
class _Way:
    """What lies between a tensor and the results and inputs that it is computed from: sets of numbers, as bits.

    `touched` are nodes that may do with a sum of gradients what they do not with its terms.
    """

    results: int = 0
    inputs: int = 0
    touched: int = 0


class _Ways:
    def __init__(self, tracer: Tracer, results: Sequence[Carrying], wanted: Iterable[int]) -> None:
        self._tracer = tracer
        self._roots = {result.number: result.root for result in results}
        self.tensors = {result.number: result.tensor for result in results}
        self._ends: dict[Edge, int] = {_edge(result.tensor): result.number for result in results}
        self._inputs: dict[int, int] = {}
        for number in wanted:
            for tensor in _leaves(tracer.trace.inputs[number]):
                self._inputs[id(tensor)] = self._inputs.get(id(tensor), 0) | 1 << number
        tensors = (state.tensor for state in tracer.recorder.states.values())
        self._hooked = {tensor.grad_fn for tensor in tensors if has_gradient_hooks(tensor)}
        self._known: dict[Any, _Way] = {}
        self._touching = 0
        self._below: dict[int, int] = {}

    def wanted(self, number: int) -> Wanted:
        entry = self._tracer.trace.inputs[number]
        return Wanted(entry.leaf, entry.tensor if entry.tensor.requires_grad else None)

    def link(self, place: int, root: torch.Tensor, way: _Way, is_passed_twice: bool) -> _Start:
        sources, inputs = _numbers(way.results), _numbers(way.inputs)
        below = way.results
        for number in sources:
            below |= self.below(number)
        twice = is_passed_twice or any(has_gradient_hooks(self.tensors[number]) for number in sources)
        return _Start(place, root, sources, inputs, below.bit_count(), twice)

    def of(self, tensor: torch.Tensor) -> _Way:
        """What lies between a tensor, its own node included, and what it is computed from."""
        return self._of(tensor.grad_fn)

    def below(self, number: int) -> int:
        """All results that a result is computed from."""
        waiting = [number]
        while waiting:
            last = waiting[-1]
            direct = self.of(self.tensors[last]).results
            more = [one for one in _numbers(direct) if one not in self._below] if last not in self._below else []
            if more:
                waiting += more
                continue
            waiting.pop()
            for one in _numbers(direct):
                direct |= self._below[one]
            self._below[last] = direct
        return self._below[number]

    def watched(self, sources: tuple[int, ...]) -> tuple[int, ...]:
        """Give results, and those that they are views of."""
        more = [
            number
            for source in sources
            for number in _numbers(self.below(source))
            if self._roots[number] is self._roots[source] and number not in sources
        ]
        return (*sources, *dict.fromkeys(more))

    def _of(self, start: Any) -> _Way:
        known, waiting = self._known, [start]
        while waiting:
            node = waiting[-1]
            if node in known:
                waiting.pop()
                continue
            edges = [edge for edge in node.next_functions if edge[0] is not None]
            more = [edge[0] for edge in edges if edge not in self._ends and edge[0] not in known]
            if more:
                waiting += more
                continue
            known[waiting.pop()] = self._through(node, edges)
        return known[start]

    def _through(self, node: Any, edges: Sequence[Edge]) -> _Way:
        results = inputs = touched = 0
        for edge in edges:
            if edge in self._ends:
                results |= 1 << self._ends[edge]
            else:
                way = self._known[edge[0]]
                results, inputs, touched = results | way.results, inputs | way.inputs, touched | way.touched
        variable = getattr(node, "variable", None)
        if variable is not None:
            inputs |= self._inputs.get(id(variable), 0)
        if is_of_function(type(node)) or node in self._hooked:
            touched |= 1 << self._touching
            self._touching += 1
        return _Way(results, inputs, touched)


def _numbers(bits: int) -> tuple[int, ...]:
    return tuple(number for number in range(bits.bit_length()) if bits >> number & 1)


def _edge(tensor: torch.Tensor) -> Edge:
    return tensor.grad_fn, tensor.output_nr


def _leaves(entry: TracedInput) -> tuple[torch.Tensor, ...]:
    """What its gradient arrives at; code that goes around the Python interface reaches parameters themselves."""
    return (entry.leaf, entry.tensor) if entry.tensor.requires_grad else (entry.leaf,)


def _in_parts(place: Place | None) -> UnsupportedError:
    return UnsupportedError(
        "somebody asks outside for the gradient of a result that another result is computed from",
        where=None if place is None else source_line(place.filename, place.line),
        why="a hook, or a backward of its own, that the program has would see in two parts what it has to see as a sum",
        fix="put the hook on inside, return one of the results, or run it imperatively (weft.hybridize(net, False))",
    )
