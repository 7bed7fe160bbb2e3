"""Run the backward of a program, also as a node of autograd that can be differentiated again, to any order.

A gradient penalty, a force from an energy, or a learned step of learning differentiates gradients. Such a backward
computes its gradients from what the forward has saved and the tangents; its node is tied to the inputs of the program
and to the tangents, and has a backward of its own. See docs/decisions/0064-gradients-of-gradients.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

from weft.codegen.torch_functions import has_storage, in_slices, is_batched
from weft.ir.graph import Graph, Value
from weft.ir.types import TensorType, Type, type_of
from weft.runtime.binding import BoundProgram
from weft.runtime.new_tensors import OutputType
from weft.runtime.saved_strides import SavedStrides
from weft.trace.backward import MOST_VERSIONS
from weft.trace.interception.modes import Autocast, graph_is_retained

AUTOCAST = ("cpu", "cuda")
Tangents = tuple[TensorType | None, ...]
MOST_LOOKS = 256  # of tangents, by which their backward is found at once
TypesOf = Callable[[Sequence["torch.Tensor | None"]], Tangents]
Keep = Callable[[Sequence[torch.Tensor]], None]
Holds = Callable[[], bool]
# What a backward computes, of which saved values, which of its results is whose, what is kept, and for how long.
BackwardGraph = tuple[Graph, tuple[int, ...], tuple[int | None, ...], "Keep | None", "Holds | None"]
# By the kinds of devices that operators cast for, as the backward runs.
BackwardOf = Callable[[Tangents, Autocast], BackwardGraph]
AgainOf = Callable[[Tangents, frozenset[int]], "BackwardAgain"]


class Runs(Protocol):
    """What runs a graph: takes its inputs in order, gives its roots in order, each once."""

    @property
    def roots(self) -> tuple[Value, ...]:
        """What it gives."""

    @property
    def types(self) -> tuple[Type, ...]:
        """Of what type that is."""

    @property
    def order(self) -> tuple[int, ...] | None:
        """In what order a region that is all of it gives it, where that is another one."""

    @property
    def is_one_region(self) -> bool:
        """Whether all of it is one region."""

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run the graph."""

    def bound(self, arguments: Sequence[int]) -> tuple[BoundProgram, tuple[OutputType, ...]] | None:
        """Give what runs it as it is bound now, where it can be."""


Compile = Callable[..., Runs]  # as weft.compile.pipeline.compile_graph


@dataclass(frozen=True, slots=True, eq=False)
class BackwardAgain:
    """A backward that is differentiated again.

    `graph` takes the values in places `saved` of what was saved, then the tangents there are. Its first results are the
    different gradients, and `carries` says which of these have gradients; `gradients` says which result is each wanted
    input's, `handed_on` which results its own backwards read. `keep` is done with the results where Python keeps some.
    `holds` tells whether it is as it was, where code that reads Python runs in it.
    """

    graph: Graph
    saved: tuple[int, ...]
    gradients: tuple[int | None, ...]
    handed_on: tuple[int, ...]
    carries: tuple[bool, ...]
    keep: Keep | None
    holds: Holds | None
    backward_of: BackwardOf
    again_of: AgainOf


class BackwardRun:
    """A backward that is not differentiated again, compiled for saved values of some types."""

    def __init__(self, found: BackwardGraph, types: Sequence[Type], compile_graph: Compile) -> None:
        graph, saved, gradients, self._keep, self.holds = found
        given = dict(zip(graph.inputs, types, strict=False))  # behind the saved values come tangents
        self._executable = compile_graph(graph, frozenset(), trusted=False, strides=SavedStrides(given=given))
        order = {value: index for index, value in enumerate(self._executable.roots)}
        self._saved = saved
        self._results = tuple(order[result.value] for result in graph.results)
        self._gradients = tuple(None if index is None else self._results[index] for index in gradients)

    def __call__(self, saved: Sequence[Any], tangents: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Give the gradients of what is wanted."""
        outputs = self._executable([*(saved[index] for index in self._saved), *tangents])
        if self._keep is not None:
            self._keep([outputs[index] for index in self._results])
        return [None if index is None else outputs[index] for index in self._gradients]


class Version(Protocol):
    """A backward for what its code has found in Python."""

    @property
    def holds(self) -> Holds | None:
        """What tells whether it would find that again; None where it reads nothing."""


Run = TypeVar("Run", bound=Version)


class Versions(Generic[Run]):
    """The backwards of one kind, each for what its code has found in Python: one, where that reads nothing."""

    def __init__(self) -> None:
        self._known: tuple[Run, ...] = ()

    def current(self) -> Run | None:
        """Give the one whose code would find what it has found."""
        return next((run for run in self._known if _holds(run.holds)), None)

    def add(self, run: Run) -> Run:
        """Add one, unless another thread has added one that will do."""
        found = self.current()
        if found is None:
            found, self._known = run, (run, *self._known[: MOST_VERSIONS - 1])
        return found


def _holds(holds: Holds | None) -> bool:
    return holds is None or holds()


class BackwardRuns:
    """The backwards of one forward, or of one backward that is differentiated, compiled when they are asked for."""

    def __init__(
        self,
        backward_of: BackwardOf,
        again_of: AgainOf,
        compile_: Compile,
        types_of: TypesOf | None = None,
    ) -> None:
        """`types_of` says for what kind of tangents a backward is made; for those that lie just so where it is None."""
        self._types = types_of or _types
        self._backward_of = backward_of
        self._again_of = again_of
        self._compile = compile_
        self._found: dict[Tangents, BackwardGraph] = {}  # not compiled yet
        self._runs: dict[tuple[Tangents, tuple[Type, ...], Autocast], Versions[BackwardRun]] = {}
        # The same by what is quick to look at: which object the types are (it is kept), and the looks of tangents.
        self._quick: dict[tuple[Any, ...], tuple[tuple[Type, ...], BackwardRun]] = {}
        self._again: dict[tuple[Tangents, frozenset[int], tuple[Type, ...]], Versions[_AgainRun]] = {}

    def prepare(self, types: Tangents) -> None:
        """Find the backward for these tangents: what is in its way shows now."""
        self._found[types] = self._backward_of(types, None)

    def make(self, types: Tangents, kinds: tuple[Type, ...], autocast: Autocast = None) -> BackwardRun:
        """Compile the backward for these tangents, and saved values of these types."""
        found = None if autocast else self._found.pop(types, None)
        if found is None or not _holds(found[4]):
            found = self._backward_of(types, autocast)
        made = BackwardRun(found, [kinds[index] for index in found[1]], self._compile)
        return self._runs.setdefault((types, kinds, autocast), Versions()).add(made)

    def run(
        self,
        saved: Sequence[Any],
        kinds: tuple[Type, ...],
        tangents: Sequence[torch.Tensor | None],
        autocast: Autocast = None,
    ) -> list[torch.Tensor | None]:
        """Give the gradients of what is wanted, below autograd; `kinds` are one object for forwards of one kind."""
        looks = (id(kinds), autocast, *map(_look, tangents))
        quick = self._quick.get(looks)
        if quick is None or not (quick[1].holds is None or quick[1].holds()):
            if any(map(is_batched, tangents)):
                return [*in_slices(lambda *one: self.run(saved, kinds, one, autocast), tangents)]
            if any(map(_is_lazy, tangents)):
                return self.run(saved, kinds, [*map(_resolved, tangents)], autocast)
            if len(self._quick) >= MOST_LOOKS:
                self._quick.clear()
            types = self._types(tangents)
            known = self._runs.setdefault((types, kinds, autocast), Versions())
            quick = self._quick[looks] = (kinds, known.current() or self.make(types, kinds, autocast))
        return quick[1](saved, [tangent for tangent in tangents if tangent is not None])

    def run_again(
        self,
        saved: Sequence[Any],
        kinds: tuple[Type, ...],
        wanted: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
    ) -> list[torch.Tensor | None]:
        """Give the gradients of what is wanted as ones that can be differentiated, by that and by the tangents."""
        if any(map(is_batched, tangents)):
            return [*in_slices(lambda *one: self.run_again(saved, kinds, wanted, one), tangents)]
        tangents = [*map(_resolved, tangents)]
        present = [tangent for tangent in tangents if tangent is not None]
        asking = frozenset(index for index, tangent in enumerate(present) if tangent.requires_grad)
        types = _types(tangents)
        known = self._again.setdefault((types, asking, kinds), Versions())
        run = known.current()
        if run is None:
            run = known.add(_AgainRun(self._again_of(types, asking), asking, kinds, self._compile))
        return run(saved, wanted, present)


class _AgainRun:
    def __init__(
        self, found: BackwardAgain, asking: frozenset[int], kinds: tuple[Type, ...], compile_: Compile
    ) -> None:
        graph = found.graph
        given = dict(zip(graph.inputs, (kinds[index] for index in found.saved), strict=False))
        self._executable = compile_(graph, frozenset(), trusted=False, strides=SavedStrides(given=given))
        order = {value: index for index, value in enumerate(self._executable.roots)}
        self._results = tuple(order[result.value] for result in graph.results)
        self._kinds = tuple(self._executable.types[self._results[index]] for index in found.handed_on)
        self._found = found
        self.holds = found.holds
        self._asking = asking
        self.backwards = BackwardRuns(found.backward_of, found.again_of, compile_)

    def __call__(
        self, saved: Sequence[Any], wanted: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        gradients = _Again.apply(self, saved, len(wanted), *wanted, *tangents)  # type: ignore[no-untyped-call]
        return [None if index is None else gradients[index] for index in self._found.gradients]

    def forward(self, context: Any, saved: Sequence[Any], tangents: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        found = self._found
        with without_autocast():
            outputs = self._executable([*(saved[index] for index in found.saved), *tangents])
        results = [outputs[index] for index in self._results]
        if found.keep is not None:
            found.keep(results)
        save(context, [results[index] for index in found.handed_on])
        context.saved_types = self._kinds
        # What was saved is no result of this node, whatever a backward of the user's gives.
        own = {id(value) for value in saved}
        gradients = [result.clone() if id(result) in own else result for result in results[: len(found.carries)]]
        context.mark_non_differentiable(
            *(gradient for gradient, carries in zip(gradients, found.carries, strict=True) if not carries)
        )
        return tuple(gradients)

    def backward(self, context: Any, tangents: Sequence[torch.Tensor | None]) -> list[Any]:
        present = [tangent for tangent, carries in zip(tangents, self._found.carries, strict=True) if carries]
        saved = saved_by(context)
        if torch.is_grad_enabled():
            found = self.backwards.run_again(saved, context.saved_types, self._leaves(context), present)
        else:
            with torch.no_grad():
                found = self.backwards.run(saved, context.saved_types, present)
        if not graph_is_retained():
            context.inputs = None
        count = context.wanted
        gradients: list[Any] = [*found[:count], *[None] * context.tangents]
        for place, gradient in zip(sorted(self._asking), found[count:], strict=True):
            gradients[count + place] = gradient
        return gradients

    def _leaves(self, context: Any) -> list[torch.Tensor]:
        """What a gradient is wanted of: that of the program, and tangents."""
        wanted, tangents = context.inputs[: context.wanted], context.inputs[context.wanted :]
        return [*wanted, *(tangents[place] for place in sorted(self._asking))]


class _Again(torch.autograd.Function):
    """The node of a backward that is differentiated again."""

    @staticmethod
    def forward(
        context: Any, owner: _AgainRun, saved: Sequence[Any], wanted: int, *inputs: torch.Tensor
    ) -> tuple[Any, ...]:
        context.owner = owner
        context.wanted, context.tangents = wanted, len(inputs) - wanted
        context.inputs = inputs
        context.set_materialize_grads(False)
        return owner.forward(context, saved, inputs[wanted:])

    @staticmethod
    def backward(context: Any, *tangents: Any) -> tuple[Any, ...]:
        return (None, None, None, *context.owner.backward(context, tangents))


@contextmanager
def without_autocast() -> Iterator[None]:
    """In this block operators do not cast."""
    with ExitStack() as stack:
        for kind in AUTOCAST:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def save(context: Any, values: Sequence[Any]) -> None:
    """Save tensors and numbers for the backward of a node."""
    numbers = [None if isinstance(value, torch.Tensor) else value for value in values]
    context.numbers = None if numbers.count(None) == len(numbers) else numbers
    if context.numbers is not None:
        values = [value if isinstance(value, torch.Tensor) else None for value in values]
    context.save_for_backward(*values)


def saved_by(context: Any) -> Sequence[Any]:
    """What a node has saved."""
    if not context.saved_types:
        return ()  # it can run again
    if context.numbers is None:
        return context.saved_tensors  # type: ignore[no-any-return]
    pairs = zip(context.saved_tensors, context.numbers, strict=True)
    return [number if tensor is None else tensor for tensor, number in pairs]


def _look(tangent: torch.Tensor | None) -> tuple[Any, ...] | None:
    """What a backward depends on of a tangent; it is on the device of the result, as autograd has seen to."""
    if tangent is None or not has_storage(tangent):
        return None if tangent is None else (tangent.layout,)
    return (tangent.dtype, tangent.shape, tangent.stride(), tangent.is_neg(), tangent.is_conj())


def _is_lazy(tangent: torch.Tensor | None) -> bool:
    """Whether a tangent's memory holds the numbers of the other sign, or conjugates: code reads memory as it is."""
    return tangent is not None and (tangent.is_neg() or tangent.is_conj())


def _resolved(tangent: torch.Tensor | None) -> torch.Tensor | None:
    return None if tangent is None else tangent.resolve_conj().resolve_neg()


def _types(tangents: Sequence[torch.Tensor | None]) -> Tangents:
    return tuple(None if tangent is None else type_of(tangent) for tangent in tangents)
