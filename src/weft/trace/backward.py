"""Trace the backward of a traced forward as a Graph of its own: from saved values and tangents to gradients.

The stand-ins of the forward carry PyTorch's own autograd graph. Running it backward under the same interception records
the backward's operators; the forward's values that they read are what the forward has to save. Views and constants are
made again in the backward instead of being saved. Which results get a gradient is known only when backward runs (a
result that the loss does not use gets none, and so its parameters get none, as in eager), so there is one backward
graph for each pattern of tangents; the first assumes all.

A gradient that is differentiated again is traced by running PyTorch's backward so that it can be (`create_graph`): what
it computes has a gradient of its own, of the inputs and of the tangents, and so on to any order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from weft.errors import UnsupportedError, WeftError
from weft.ir.graph import Graph, Result, Value, replace_operands
from weft.ir.library import is_view
from weft.ir.types import NumberType, TensorType
from weft.trace.interception.capture import has_gradient_hooks, kind_of
from weft.trace.interception.modes import Autocast, autocast_now, under_autocast
from weft.trace.interception.refusals import is_refusal, refuse
from weft.trace.interception.user_lines import user_place
from weft.trace.python_state.backward_code import (
    BackwardCode,
    ReadByBackward,
    has_functions,
    may_hook_nodes,
    may_run_code,
)
from weft.trace.python_state.containers import Touched
from weft.trace.python_state.effects import Change, Kept, Rebound
from weft.trace.python_state.reachable import PythonState, find_state
from weft.trace.python_state.trees import TakenApart, TensorLeaf
from weft.trace.tracer import Tracer

REENTRANT = "CheckpointFunctionBackward"  # the node of torch.utils.checkpoint with use_reentrant=True
HOOKED = "hooked result"
Tangents = tuple[TensorType | None, ...]
MOST_VERSIONS = 16  # of a backward, for what its code has found in Python


@dataclass(frozen=True, slots=True, eq=False)
class Backward:
    """One backward: its graph takes `saved`, then the tangents there are; `gradients` say which result is whose.

    What hooks that run in it leave in Python is `kept`: of their leaves, numbers of results stand for tensors. Where it
    is differentiated again, `handed_on` are the results that its own backwards read. `read` is what must be as it was.
    """

    graph: Graph
    saved: tuple[Value, ...]
    gradients: tuple[int | None, ...]
    kept: tuple[Rebound, ...] = ()
    handed_on: tuple[int, ...] = ()
    read: ReadByBackward | None = None

    def holds(self) -> bool:
        """Whether code that runs in it would find in Python what it has found."""
        return self.read is None or self.read.holds()


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """What a gradient is asked of: a stand-in, and the real tensor if code that goes around stand-ins may reach it."""

    leaf: torch.Tensor
    tensor: torch.Tensor | None = None


class Differentiator:
    """Traces backwards of one forward trace, a Graph a pattern of tangents."""

    def __init__(
        self,
        tracer: Tracer,
        roots: Sequence[torch.Tensor],
        wanted: Sequence[Wanted],
        ends: Sequence[torch.Tensor] = (),
    ) -> None:
        """Gradients of `ends` are not handed on to what these were computed from.

        Where a backward is differentiated again, `own` are ends as well: roots that backwards read.
        """
        self.tracer = tracer
        self.roots = roots
        self.wanted = wanted
        self.ends = ends
        self.own: Sequence[torch.Tensor] = ()
        self.touched = Touched()  # what backwards leave tensors in
        self._is_unknown = tracer.recorder.hides_writes or may_hook_nodes(tracer.request.state)
        self.runs_code = tracer.interception.packs or may_run_code(tracer.request.state, roots)
        # As it still is when the first backward is traced.
        self._state: PythonState | None = None if ends else tracer.request.state

    def full_pattern(self) -> Tangents:
        """Every result gets a gradient of its own layout."""
        return tuple(kind_of(root) for root in self.roots)

    def is_of_operators(self) -> bool:
        """Whether the operators of the forward have these backwards: no function or hook of somebody's changes them.

        Nor has anything been written without autograd's knowledge.
        """
        hooked = any(has_gradient_hooks(state.tensor) for state in self.tracer.recorder.states.values())
        return not (self._is_unknown or hooked or self.tracer.interception.packs or has_functions(self.roots))

    def trace(self, tangents: Tangents, autocast: Autocast = None) -> Backward:
        """Record the backward for this pattern of tangents, as it is under autocast."""
        recorded = self._record(tangents, frozenset(), create_graph=False, autocast=autocast)
        return recorded.backward()

    def trace_again(self, tangents: Tangents, asking: frozenset[int]) -> tuple[Recorded, Derivatives]:
        """Record it as one that is differentiated again, by what is wanted and by the tangents that are `asking`."""
        recorded = self._record(tangents, asking, create_graph=True)
        leaves = [tangent for index, tangent in enumerate(recorded.tangents) if index in asking]
        wanted = [*self.wanted, *map(Wanted, self.own), *map(Wanted, leaves)]
        roots = [gradient for gradient in recorded.carrying() if gradient is not None]
        return recorded, Derivatives(Differentiator(self.tracer, roots, wanted, [*self.ends, *self.own]))

    def _record(
        self, tangents: Tangents, asking: frozenset[int], *, create_graph: bool, autocast: Autocast = None
    ) -> Recorded:
        recorder = self.tracer.recorder
        start = len(recorder.values)
        inputs: list[Value] = []
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for index, (root, tangent_type) in enumerate(zip(self.roots, tangents, strict=True)):
            if tangent_type is not None:
                value = Value("input", (), tangent_type, name=f"tangent{index}")
                tangent = self.tracer.interception.empty_like(root, tangent_type).requires_grad_(len(pairs) in asking)
                recorder.add_input(tangent, value)
                inputs.append(value)
                pairs.append((root, tangent))
        state, self._state = self._state or find_state(*self.tracer.request.state.roots), None
        before, versions, code = Kept(state), self._versions(), BackwardCode()
        try:
            with (
                under_autocast(autocast),
                code.noting() if self.runs_code else nullcontext(),
                self._arriving_unchanged(pairs),
            ):
                gradients = self._differentiate(pairs, create_graph=create_graph)
        finally:
            changed = before.touched() if self.runs_code else Touched()
            changes = before.take_back(state)
            error = before.of_first_call()
        if error is not None:
            raise error
        if versions != self._versions():
            refuse("backward write", recorder.values[-1].place)
        kept = self._kept(changes)
        read = code.read(self.tracer.of_calls, changed, self._own_tensors())
        results = [None if gradient is None else recorder.value_of(gradient) for gradient in gradients]
        leaves = [leaf for entry in kept for leaf in entry.leaves]
        values = [recorder.value_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        recorded = recorder.values[start:]
        del recorder.values[start:]
        return Recorded(recorded, inputs, results, kept, values, gradients, [tangent for _, tangent in pairs], read)

    @contextmanager
    def _arriving_unchanged(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[None]:
        """Refuse hooks on roots that change what arrives: outside, who asks for it asks for what they make of it."""
        value_of, found = self.tracer.recorder.value_of, []
        last = [  # hooks that look: these are called after all others
            root.register_hook(lambda gradient, tangent=tangent: found.append((gradient, tangent)))
            for root, tangent in pairs
            if has_gradient_hooks(root)
        ]
        try:
            yield
        finally:
            for handle in last:
                handle.remove()
        if any(value_of(gradient) is not value_of(tangent) for gradient, tangent in found):
            refuse(HOOKED, None)

    def _own_tensors(self) -> dict[int, torch.Tensor]:
        """The tensors that the function reaches by itself."""
        return {id(entry.tensor): entry.tensor for entry in self.tracer.trace.inputs if entry.argument is None}

    def _versions(self) -> list[int]:
        """How often the memory of each input of the forward has been written."""
        found = (self.tracer.recorder.state_of(entry.stand_in).memory for entry in self.tracer.trace.inputs)
        return [memory.version for memory in found]

    def _kept(self, changes: list[Change]) -> tuple[Rebound, ...]:
        real = {id(entry.stand_in): entry.tensor for entry in self.tracer.trace.inputs}
        apart = TakenApart()
        found = [change.settled(real, apart) for change in changes]
        kept = tuple(entry for entry in found if entry is not None)
        for entry in kept:
            if entry.refills:
                refuse("kept tensor", None, detail="a list that a hook of the backward changes")
            if entry.count():
                refuse("counter", None, detail=entry.slot.path)
            self.touched.give(entry.slot.container, entry.keys)
        return kept

    def _differentiate(
        self, pairs: list[tuple[torch.Tensor, torch.Tensor]], *, create_graph: bool
    ) -> list[torch.Tensor | None]:
        refuse_reentrant(root for root, _ in pairs)
        leaves = [entry.leaf for entry in self.wanted]
        # Code that goes around the Python interface (autograd.Function.apply) reaches parameters themselves.
        first: dict[int, int] = {}
        reals: list[torch.Tensor] = []
        for index, entry in enumerate(self.wanted):
            if entry.tensor is not None and id(entry.tensor) not in first:
                first[id(entry.tensor)] = index
                reals.append(entry.tensor)
        with self.tracer.backward([root for root, _ in pairs]), _ending_at(self.ends):
            found = torch.autograd.grad(
                [root for root, _ in pairs],
                [*leaves, *reals],
                [tangent for _, tangent in pairs],
                retain_graph=True,
                create_graph=create_graph,
                allow_unused=True,
            )
            gradients: list[torch.Tensor | None] = [*found[: len(leaves)]]
            with torch.set_grad_enabled(create_graph):
                for index, gradient in zip(first.values(), found[len(leaves) :], strict=True):
                    gradients[index] = _sum(gradients[index], gradient)
            return gradients


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """What running a backward once showed: values, inputs (the tangents), results, and what hooks leave in Python.

    `gradients` and `tangents` are the stand-ins.
    """

    values: list[Value]
    inputs: list[Value]
    results: list[Value | None]
    kept: tuple[Rebound, ...]
    kept_values: list[Value]
    gradients: list[torch.Tensor | None]
    tangents: list[torch.Tensor]
    read: ReadByBackward | None

    def backward(self, more: Sequence[Value] = ()) -> Backward:
        """The backward as a Graph; with `more`, what a further backward reads ends its results."""
        found = _assemble(self.values, self.inputs, [*self.results, *self.kept_values, *more])
        count, kept = len(self.results), len(self.results) + len(self.kept_values)
        numbers = [number for number in found.gradients[count:kept] if number is not None]
        handed_on = tuple(number for number in found.gradients[kept:] if number is not None)
        kept_now = _numbered(self.kept, numbers)
        return replace(found, gradients=found.gradients[:count], kept=kept_now, handed_on=handed_on, read=self.read)

    def carrying(self) -> list[torch.Tensor | None]:
        """The gradients that have gradients of their own, each once, in the order of the results."""
        return [self.gradients[place] if self._carries(place) else None for place in self._first_places()]

    def _first_places(self) -> list[int]:
        first: dict[Value, int] = {}
        for place, result in enumerate(self.results):
            if result is not None:
                first.setdefault(result, place)
        return list(first.values())

    def _carries(self, place: int) -> bool:
        gradient = self.gradients[place]
        return gradient is not None and gradient.requires_grad


class Derivatives:
    """The backwards of a trace, or of a backward of one, found by the pattern of tangents: traced when seen first.

    `saved` is what all of them may read, `failure` what eager raises when the backward runs. Callers hold the lock of
    the program.
    """

    def __init__(self, differentiator: Differentiator, saved: tuple[Value, ...] | None = None) -> None:
        """`saved` is given where the forward has been made already."""
        self._differentiator = differentiator
        self._backwards: dict[tuple[Tangents, Autocast], deque[Backward]] = {}
        self._again: dict[tuple[Tangents, frozenset[int]], deque[Again]] = {}
        self.failure: Exception | None = None
        self.saved: tuple[Value, ...] = ()
        self.first: Backward | None = None
        pattern = differentiator.full_pattern()
        # Most call backward outside of the block of autocast that the forward is in; it may work in there alone.
        for autocast in dict.fromkeys((None, autocast_now())):
            try:
                self.first = differentiator.trace(pattern, autocast)
            except (RuntimeError, WeftError) as error:
                if isinstance(error, UnsupportedError) and is_refusal(error, HOOKED):
                    raise  # before the call has left anything
                # Eager raises when backward runs, not before; a program that is never differentiated must not fail.
                self.failure = self.failure or error
            else:
                self._backwards[pattern, autocast] = deque([self.first], MOST_VERSIONS)
                self.failure = None
                break
        if self.first is None:
            return
        self.saved = self.first.saved
        if saved is not None:
            check_saved(self.first, saved)
            self.saved = saved

    def full_pattern(self) -> Tangents:
        """Every result gets a gradient of its own layout."""
        return self._differentiator.full_pattern()

    @property
    def is_of_operators(self) -> bool:
        """Whether the operators of the forward have these backwards."""
        return self.first is not None and self._differentiator.is_of_operators()

    @property
    def constants(self) -> Collection[Value]:
        """The values that are constants to autograd, as they were computed where it records nothing."""
        return self._differentiator.tracer.recorder.constants

    def backward(self, tangents: Tangents, autocast: Autocast = None) -> Backward:
        """The backward for a pattern of tangents, and for what autocast it runs under."""
        if self.failure is not None:
            raise self.failure
        known = self._backwards.setdefault((tangents, autocast), deque(maxlen=MOST_VERSIONS))
        found = next((backward for backward in known if backward.holds()), None)
        if found is None:
            found = self._differentiator.trace(tangents, autocast)
            check_saved(found, self.saved)
            known.append(found)
        return found

    def again(self, tangents: Tangents, asking: frozenset[int]) -> Again:
        """The same as one that is differentiated again; `asking` are those of the tangents that want a gradient."""
        if self.failure is not None:
            raise self.failure
        known = self._again.setdefault((tangents, asking), deque(maxlen=MOST_VERSIONS))
        found = next((again for again in known if again.backward.holds()), None)
        if found is None:
            recorded, derivatives = self._differentiator.trace_again(tangents, asking)
            backward = recorded.backward(derivatives.saved)
            check_saved(backward, self.saved)
            carries = tuple(gradient is not None for gradient in recorded.carrying())
            found = Again(backward, carries, derivatives)
            known.append(found)
        return found

    def positions(self, backward: Backward) -> tuple[int, ...]:
        """Where the values that a backward reads stand among the saved ones."""
        order = {value: index for index, value in enumerate(self.saved)}
        return tuple(order[value] for value in backward.saved)


@dataclass(frozen=True, slots=True, eq=False)
class Again:
    """A backward that is differentiated again.

    Its first results are the different gradients; `carries` says of each whether it has a gradient of its own.
    """

    backward: Backward
    carries: tuple[bool, ...]
    derivatives: Derivatives


@contextmanager
def _ending_at(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """In this block gradients of these tensors go no further."""
    places: dict[Any, set[int]] = {}
    for tensor in tensors:
        places.setdefault(tensor.grad_fn, set()).add(tensor.output_nr)
    handles = [node.register_prehook(partial(_without, numbers)) for node, numbers in places.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _without(numbers: set[int], gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if number in numbers else gradient for number, gradient in enumerate(gradients))


def _numbered(kept: Sequence[Rebound], numbers: Sequence[int]) -> tuple[Rebound, ...]:
    waiting = iter(numbers)
    return tuple(
        entry.described(
            TensorLeaf(next(waiting), requires_grad=False) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in entry.leaves
        )
        for entry in kept
    )


def _sum(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    return (first if second is None else second) if first is None or second is None else first + second


def refuse_reentrant(roots: Iterable[torch.Tensor]) -> None:
    """Refuse checkpoints that call backward() themselves; of gradients asked for by name they would give none."""
    waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if type(node).__name__ == REENTRANT:
            refuse("reentrant checkpoint", user_place())
        sources = {source for source, _ in node.next_functions if source is not None} - seen
        seen |= sources
        waiting += sources


def _assemble(recorded: list[Value], inputs: list[Value], results: list[Value | None]) -> Backward:
    known = {*recorded, *inputs}
    saved: dict[Value, None] = {}
    again: dict[Value, None] = {}
    roots = [result for result in results if result is not None]
    read = [operand for value in recorded for operand in value.operands]
    for needed in (*read, *roots):
        _need(needed, known, saved, again)
    order = {root: index for index, root in enumerate(dict.fromkeys(roots))}
    entries = {value: _saved_input(value, index) for index, value in enumerate(saved)}
    replaced = dict(entries)
    values = replace_operands((*again, *recorded), replaced)
    found = tuple(Result(replaced.get(root, root)) for root in order)
    graph = Graph("backward", (*entries.values(), *inputs), values, found)
    return Backward(graph, tuple(saved), tuple(None if result is None else order[result] for result in results))


def _saved_input(value: Value, index: int) -> Value:
    """What stands for a saved value in the backward: numbers for themselves, as types speak of them too."""
    return value if isinstance(value.type, NumberType) else Value("input", (), value.type, name=f"saved{index}")


def _need(value: Value, known: set[Value], saved: dict[Value, None], again: dict[Value, None]) -> None:
    """Sort a value of the forward that the backward reads: made again (cheap, no memory) or saved."""
    if value in known or value in saved or value in again:
        return
    if _is_cheap(value):
        for operand in value.operands:
            _need(operand, known, saved, again)
        again[value] = None
    else:
        saved[value] = None


def _is_cheap(value: Value) -> bool:
    if value.op == "library":
        return is_view(value.attributes["call"].target)
    if value.op == "item":
        return _is_cheap(value.operands[0])
    return value.op in ("constant", "number")


def check_saved(backward: Backward, saved: Iterable[Value]) -> None:
    """A backward traced later may read only what the forward has saved already."""
    if not set(backward.saved) <= set(saved):
        refuse("uneven backward", backward.graph.values[-1].place if backward.graph.values else None)
