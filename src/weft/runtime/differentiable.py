"""Show a program with gradients to autograd as one node: its forward runs one plan, its backward another.

A forward that is followed by backwards takes parameters as they are at each call: an optimizer changes them. One that
is not reads them packed, as a program without gradients does. See docs/decisions/0044-weights-that-train.md.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import torch

from weft.codegen.torch_functions import put_node, version_of
from weft.errors import UnsupportedError
from weft.ir.graph import Graph, Value
from weft.ir.types import TensorType, Type
from weft.runtime.binding import BoundProgram
from weft.runtime.differentiable_backward import (
    AgainOf,
    BackwardOf,
    BackwardRuns,
    Compile,
    Runs,
    Tangents,
    TypesOf,
    save,
    saved_by,
    without_autocast,
)
from weft.runtime.memory_layout import EVERY_BIT, Row
from weft.runtime.new_tensors import OutputType
from weft.runtime.saved_strides import SavedStrides
from weft.trace.interception.modes import Autocast, autocast_now, forward_levels, graph_is_retained, number_of_backward

Replay = Callable[[Sequence[Any]], Sequence[Any]]
Connect = Callable[[tuple[Any, ...], Sequence[Any]], Any]
Done = tuple[Runs, tuple[Any, ...]]  # a forward that has run, and what it gave
MOST_UNANSWERED = 8  # forwards without a backward, after which parameters are taken for what stays as it is


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """The forward of a program with gradients.

    `graph` ends in the saved values (the last `saved` results); `differentiable` says which results and writes (in this
    order, saved ones left out) carry gradients; `wanted` which inputs ask for one, and `unreached` which of those never
    get it; `weights` are inputs that change rarely. `own` are saved values that are results others are computed from.
    `groups` numbers what carries gradients: backwards of different numbers may run one after the other.
    """

    graph: Graph
    saved: int
    differentiable: Sequence[bool]
    wanted: Sequence[int]
    unreached: Sequence[int]
    weights: frozenset[Value]
    own: Sequence[int] = ()
    groups: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class BoundForward:
    """A forward as it is bound: what runs it and makes tensors of some types, and what connects those to autograd.

    `connect` takes what was made and all inputs, and gives the results.
    """

    run: BoundProgram
    types: tuple[OutputType, ...]
    connect: Connect


class DifferentiableExecutable:
    """Takes a program's inputs in order, gives its roots in order, connected to autograd.

    `backward_of` gives the graph for a pattern of tangents, which saved values it takes, which of its results is each
    wanted input's gradient, and what is done with the results where Python keeps some. `replay`, where there is one,
    gives the graph's results from its inputs anew, by operators that autograd sees one by one: for gradients of
    gradients, and for backwards under autocast.
    """

    def __init__(
        self,
        forward: Forward,
        backward_of: BackwardOf,
        compile_graph: Compile,
        again_of: AgainOf,
        types_of: TypesOf | None = None,
    ) -> None:
        self._compile = compile_graph
        graph = forward.graph
        count = len(graph.results) - forward.saved
        self.graph = replace(graph, results=graph.results[:count])
        visible = tuple(dict.fromkeys(self.graph.roots()))
        saved = [result.value for result in graph.results[count:]]
        inputs = {value: index for index, value in enumerate(graph.inputs)}
        # What is given needs no computing: it is handed out, or saved, as it is.
        self._whole = replace(graph, results=tuple(result for result in graph.results if result.value not in inputs))
        self._strides = SavedStrides(loose=frozenset(saved) - {*visible, *graph.inputs})
        self._weights = forward.weights
        trained = {graph.inputs[index] for index in forward.wanted}
        self._training = compile_graph(self._whole, forward.weights - trained, strides=self._strides)
        self._resting = None if trained & forward.weights else self._training
        self._unanswered = 0
        self._turn = ctypes.c_uint64(0)  # bound forwards compare it: another number, and they do not run
        position = {value: index for index, value in enumerate(self._training.roots)}
        carries = dict.fromkeys(visible, False)
        for value, flag in zip(self.graph.roots(), forward.differentiable, strict=True):
            carries[value] = carries[value] or flag
        self.sources = tuple(inputs.get(value, -1) for value in visible)
        fresh = [value for value in visible if value not in inputs]
        self.roots = tuple(position[value] for value in fresh)
        self.carries = tuple(carries[value] for value in fresh)
        self._all_carry = all(self.carries)
        self._fresh = tuple(fresh)
        self.groups = self._grouped_by(forward.groups)
        self.tie_apart()
        self._saved = _Saved(saved, position, inputs, is_grouped=bool(self.groups))
        self.wanted = tuple(forward.wanted)
        self._own = tuple(forward.own)
        self._written = frozenset(inputs[write.input] for write in graph.writes)
        self._unreached = tuple(index for index in forward.unreached if index not in self._written)
        # A region gives new tensors; an operator may give one of its operands, which autograd has to be shown then.
        self._is_new = self._training.is_one_region and not graph.writes
        shown = [index for index in self.wanted if index not in self._unreached]
        self._shown = tuple(shown) if self._is_new else tuple(range(len(inputs)))
        self._gradients = tuple(self.wanted.index(one) if one in self.wanted else None for one in self._shown)
        self._backwards = BackwardRuns(backward_of, again_of, compile_graph, types_of)
        # A tensor whose history the program changes would hold the node that holds it.
        self._ties = not any(flag for flag in forward.differentiable[len(self.graph.results) :])
        self.replay: Replay | None = None
        whole = {result.value: index for index, result in enumerate(self.graph.results) if not result.path}
        self._result_of = tuple(whole.get(value) for value in fresh)

    def tie_apart(self, linked: Sequence[int] = ()) -> None:
        """Let each result have a node of its own above the program's, or hooks of those that nobody uses see None.

        One alone needs none, and those that are `linked` to others, by number, get theirs elsewhere.
        """
        others = {self.graph.results[number].value for number in linked}
        rest = [at for at, carries in enumerate(self.carries) if carries and self._fresh[at] not in others]
        alone = {places[0] for places in self.groups if len(places) == 1}  # they have nodes of their own
        apart = self._as_computed([at for at in rest if at not in alone]) if len(rest) > 1 else []
        self._complex = tuple(at for at in apart if _is_complex(self._training.roots[self.roots[at]]))
        self._apart = tuple(at for at in apart if at not in self._complex)

    def _grouped_by(self, numbers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The places of fresh results that carry gradients, by group; nothing where all are in one."""
        groups: dict[int, list[int]] = {}
        for value, number in dict(zip(self.graph.roots(), numbers, strict=False)).items():
            if value in self._fresh and self.carries[self._fresh.index(value)]:
                groups.setdefault(number, []).append(self._fresh.index(value))
        by_last = {self._as_computed(places)[-1]: tuple(places) for places in groups.values()}
        return tuple(by_last[last] for last in self._as_computed(by_last)) if len(groups) > 1 else ()

    def _as_computed(self, places: Iterable[int]) -> list[int]:
        """Places of fresh results in the order of what computes them: hooks of the last are called first."""
        order = {value: number for number, value in enumerate(self.graph.values)}
        return sorted(places, key=lambda at: order.get(self._fresh[at], -1))

    def _finished(self, made: tuple[Any, ...]) -> Sequence[Any]:
        """What a forward has made, with nodes of groups and of single results above its node."""
        if self.groups:
            found = list(made)
            node = made[self.groups[0][0]].grad_fn
            saved, node.for_groups = node.for_groups, None
            for places in self.groups:
                own = [made[place] for place in places]
                above = _put_group((node, saved, tuple(one.detach() for one in own)), *own)
                for place, one in zip(places, above, strict=True):
                    found[place] = one
            made = tuple(found)
        for place in self._apart:
            put_node(made[place])
        if self._complex:
            found = list(made)
            for place in self._complex:
                found[place] = _put_above((made[place].detach(),), made[place])
            made = tuple(found)
        return made

    @property
    def forward_graph(self) -> Any:
        """What runs the forward in a training loop: its graph, or that of a path."""
        return self._training

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the forward."""
        given = self._detached(inputs)
        shown = [given[index] for index in self._shown]
        if forward_levels():  # a tangent of any input is refused
            shown += given
        made = self._finished(_Node.apply(self, given, None, *shown))  # type: ignore[no-untyped-call]
        fresh = iter(made)
        if given is not inputs and isinstance(inputs, list):  # numbers that were read meanwhile
            inputs[:] = [new if not isinstance(new, torch.Tensor) else old for old, new in zip(inputs, given)]  # noqa: B905
        return [inputs[source] if source >= 0 else next(fresh) for source in self.sources]

    @property
    def is_one_region(self) -> bool:
        """Whether all of a forward is one region, whose results are new."""
        return self._is_new

    def bound(self, arguments: Sequence[int]) -> BoundForward | None:
        """Give what runs the forward as it is bound now, where it may be; the first inputs are `arguments`."""
        run = self._training if self._unanswered <= MOST_UNANSWERED else self._resting
        found = run.bound(arguments) if run is not None and self._is_new and not self._unreached else None
        if run is None or found is None:
            return None
        turn = (ctypes.addressof(self._turn), EVERY_BIT, self._turn.value)
        program = replace(found[0], rows=[*found[0].rows, turn], kept=(found[0].kept, self._turn))
        return BoundForward(program, found[1], partial(self._connected, run))

    def walked(self) -> tuple[Runs, Connect, Row] | None:
        """Give the path that the forward is, what connects its results to autograd, and a word that tells: current."""
        run = self._training if self._unanswered <= MOST_UNANSWERED else self._resting
        if run is None or not self._is_new:
            return None
        return run, partial(self._connected, run), (ctypes.addressof(self._turn), EVERY_BIT, self._turn.value)

    def _connected(self, run: Runs, outputs: tuple[Any, ...], inputs: Sequence[Any]) -> Any:
        """Connect what a bound forward has made to autograd."""
        order = run.order
        if order is not None:
            outputs = tuple([outputs[index] for index in order])
        self._unanswered += 1
        if self._unanswered > MOST_UNANSWERED and run is self._training is not self._resting:
            self._turn.value += 1  # the next forward is another one
        given = self._detached(inputs)
        made = _connect(self, given, (run, outputs), *[given[index] for index in self._shown])
        return self._finished(made) if self._apart or self._complex or self.groups else made

    def _detached(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The inputs, of which some no gradient goes through: a graph behind one may be spent."""
        if not self._unreached:
            return inputs
        given = list(inputs)
        for index in self._unreached:
            given[index] = given[index].detach()
        return given

    def prepare_backward(self) -> None:
        """Find the backward for gradients of every result that look as the results do: what is in its way shows now."""
        self._backwards.prepare(self._types_of_all())

    def answered(self) -> None:
        """Note that a backward follows a forward."""
        self._unanswered = 0

    def backwards(self, backward_of: BackwardOf, again_of: AgainOf) -> BackwardRuns:
        """Give backwards of one of the results, of what a forward saves."""
        return BackwardRuns(backward_of, again_of, self._compile)

    def _types_of_all(self) -> Tangents:
        made = [self._training.roots[index].type for index in self.roots]
        carrying = [kind for kind, carries in zip(made, self.carries, strict=True) if carries]
        return tuple(kind if isinstance(kind, TensorType) else None for kind in carrying)

    def forward(self, context: Any, inputs: Sequence[Any], done: Done | None) -> tuple[Any, ...]:
        """The forward below autograd, or what is left of one that is `done`."""
        if done is None:
            run = self._run_now()
            with torch.enable_grad():
                outputs = run(inputs)
        else:
            run, outputs = done
        self._saved.keep(context, run, inputs, outputs)
        context.set_materialize_grads(False)
        context.unpacked = None
        context.inputs = inputs if self._ties else None
        context.given = self._given(inputs) if self.replay is not None and self._ties else None
        roots = tuple([outputs[index] for index in self.roots])
        if not self._all_carry:
            pairs = zip(roots, self.carries, strict=True)
            context.mark_non_differentiable(*(root for root, carries in pairs if not carries))
        return roots

    def _given(self, inputs: Sequence[Any]) -> list[tuple[Any, int | None]]:
        """The inputs with their versions, but for those that it writes itself: its replay does not read these."""
        return [(one, None if place in self._written else _version(one)) for place, one in enumerate(inputs)]

    def _run_now(self) -> Runs:
        self._unanswered += 1
        if self._unanswered <= MOST_UNANSWERED:
            return self._training
        if self._resting is None:  # two threads may both make it
            self._resting = self._compile(self._whole, self._weights, strides=self._strides)
        return self._resting

    def backward(
        self,
        saved: Sequence[Any],
        kinds: tuple[Type, ...],
        tangents: Sequence[torch.Tensor | None],
        autocast: Autocast = None,
    ) -> list[Any]:
        """The backward below autograd, of what a forward saved: a gradient, or None, for every input it was shown."""
        self.answered()
        present = tangents
        if not self._all_carry:
            present = [tangent for tangent, carries in zip(tangents, self.carries, strict=True) if carries]
        return self._by_shown(self._backwards.run(saved, kinds, present, autocast))

    def backward_again(
        self, saved: Sequence[Any], context: Any, tangents: Sequence[torch.Tensor | None]
    ) -> list[Any] | None:
        """The same as one that autograd can differentiate; None where nothing ties it to the inputs."""
        if context.inputs is None:
            return None
        self.answered()
        present = [tangent for tangent, carries in zip(tangents, self.carries, strict=True) if carries]
        wanted = [context.inputs[index] for index in self.wanted] + [saved[place] for place in self._own]
        return self._by_shown(self._backwards.run_again(saved, context.saved_types, wanted, present))

    def backward_by_operators(self, given: Sequence[Any], tangents: Sequence[torch.Tensor | None]) -> list[Any] | None:
        """The backward through operators that autograd sees; None where there are none, or inputs have changed."""
        inputs = _unchanged(given)
        if self.replay is None or inputs is None:
            return None
        pairs = [
            (index, tangent) for index, tangent in zip(self._result_of, tangents, strict=True) if tangent is not None
        ]
        if any(index is None for index, _ in pairs):
            return None  # only a view of it was given out
        with torch.enable_grad(), without_autocast():
            results = self.replay(inputs)
        reached = [index for index in self.wanted if index not in self._unreached]
        found = torch.autograd.grad(
            [results[index] for index, _ in pairs if index is not None],
            [inputs[index] for index in reached],
            [tangent for _, tangent in pairs],
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
        gradients = dict(zip(reached, found, strict=True))
        return self._by_shown([gradients.get(index) for index in self.wanted])

    def given_to(self, node: Any) -> list[Any] | None:
        """What a forward was given, for its replay; None where that has changed."""
        return _unchanged(node.given)

    def _by_shown(self, found: Sequence[torch.Tensor | None]) -> list[Any]:
        """Gradients of what is wanted -> one, or None, for every input that autograd was shown."""
        return [None if place is None else found[place] for place in self._gradients]


class _Saved:
    """What a forward saves for its backward: results of it, and inputs as they are."""

    def __init__(
        self,
        values: Sequence[Value],
        position: Mapping[Value, int],
        inputs: Mapping[Value, int],
        *,
        is_grouped: bool = False,
    ) -> None:
        self._is_grouped = is_grouped  # nodes of groups save it
        self._places = tuple((True, inputs[value]) if value in inputs else (False, position[value]) for value in values)
        self._of_inputs = {inputs[value]: value.type for value in values if value in inputs}
        self._are_tensors = all(isinstance(value.type, TensorType) for value in values)
        self._types: dict[Runs, tuple[Type, ...]] = {}

    def keep(self, context: Any, run: Runs, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Save what one run has been given, and has made."""
        saved = [inputs[index] if is_given else outputs[index] for is_given, index in self._places]
        context.saved_types = self._types.get(run) or self.types_of(run)
        if self._is_grouped:
            context.for_groups, context.handed = saved, None
        elif self._are_tensors:
            context.numbers = None
            context.save_for_backward(*saved)
        else:
            save(context, saved)

    def types_of(self, run: Runs) -> tuple[Type, ...]:
        """Give the types of what a forward saves; its runs lay out what nobody else reads as their kernels like."""
        types = tuple(self._of_inputs[index] if is_given else run.types[index] for is_given, index in self._places)
        return self._types.setdefault(run, types)


class Unpacked:
    """What a node has saved, in the backward of some number, where a linked result has asked for it before."""

    __slots__ = ("__weakref__", "number", "saved")

    def __init__(self) -> None:
        self.number: int | None = None
        self.saved: Sequence[Any] = ()

    def taken(self, node: Any) -> Sequence[Any]:
        """What the node has saved; it is not kept here any longer."""
        found = self.saved if self.number == number_of_backward() else saved_by(node)
        self.number, self.saved = None, ()
        return found


class _Node(torch.autograd.Function):
    """The node that autograd sees."""

    @staticmethod
    def forward(
        context: Any, owner: DifferentiableExecutable, inputs: Sequence[Any], done: Done | None, *shown: Any
    ) -> tuple[Any, ...]:
        context.owner, context.count = owner, len(shown)  # autograd knows the inputs by what it is shown of them
        return owner.forward(context, inputs, done)

    @staticmethod
    def jvp(context: Any, *tangents: Any) -> NoReturn:
        del context, tangents
        raise UnsupportedError(
            "the program is differentiated in forward mode",
            why="a program has a backward, but computes no tangents",
            fix="call it imperatively there (weft.hybridize(net, False)), or use torch.autograd.grad",
        )

    @staticmethod
    def backward(context: Any, *tangents: Any) -> tuple[Any, ...]:
        unpacked = None if context.unpacked is None else context.unpacked()
        if all(tangent is None for tangent in tangents):  # they went other ways
            nothing: tuple[Any, ...] = (None,) * (3 + context.count)
            return nothing
        again, autocast = torch.is_grad_enabled(), autocast_now()
        if again or autocast is not None:
            found = context.owner.backward_by_operators(context.given, tangents)
            if found is not None:
                return (None, None, None, *found, *([None] * (context.count - len(found))))
        if context.owner.groups:
            saved = _handed(context)
        else:
            saved = saved_by(context) if unpacked is None else unpacked.taken(context)
        gradients = context.owner.backward_again(saved, context, tangents) if again else None
        if gradients is None:
            with torch.no_grad() if again else nullcontext():
                gradients = context.owner.backward(saved, context.saved_types, tangents, autocast)
            if again:
                leaves = _leaves(context)
                gradients = [None if found is None else _Once.apply(found, *leaves) for found in gradients]  # type: ignore[no-untyped-call]
        if not graph_is_retained() and not context.owner.groups:  # the backward of another group may need them
            context.inputs = None
        return (None, None, None, *gradients, *([None] * (context.count - len(gradients))))


def _handed(context: Any) -> Sequence[Any]:
    """What the node of a group has handed to the program's; another thread may have taken it."""
    if context.handed is None:
        raise RuntimeError("Trying to backward through the graph of a program in several threads at a time.")
    found: Sequence[Any] = context.handed
    context.handed = None
    return found


class _Group(torch.autograd.Function):
    """The node of results that share no node that saves something with others: it saves what a backward reads.

    The program's node, below those of all groups, saves nothing, and may run once for each of them.
    """

    @staticmethod
    def forward(
        context: Any, given: tuple[Any, Sequence[Any], tuple[torch.Tensor, ...]], *shown: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        del shown
        context.program, saved, made = given
        context.saved_types, context.unpacked = context.program.saved_types, None
        context.set_materialize_grads(False)
        save(context, saved)
        return made

    @staticmethod
    def backward(context: Any, *tangents: Any) -> tuple[Any, ...]:
        unpacked = None if context.unpacked is None else context.unpacked()
        if any(tangent is not None for tangent in tangents):  # else they went other ways
            context.program.handed = saved_by(context) if unpacked is None else unpacked.taken(context)
        return (None, *tangents)


# The same as _Group.apply: the program's node has been made, so that this is in no transform of functorch.
_put_group: Callable[..., tuple[torch.Tensor, ...]] = super(torch.autograd.Function, _Group).apply


class _Above(torch.autograd.Function):
    """A node that changes nothing, above the program's, of one complex result: `put_node` refuses these."""

    @staticmethod
    def forward(context: Any, given: tuple[torch.Tensor], made: torch.Tensor) -> torch.Tensor:
        del context, made
        return given[0]

    @staticmethod
    def backward(context: Any, *tangents: Any) -> tuple[Any, ...]:
        del context
        return (None, *tangents)


# The same as _Above.apply: the program's node has been made, so that this is in no transform of functorch.
_put_above: Callable[..., torch.Tensor] = super(torch.autograd.Function, _Above).apply

# The same as _Node.apply, for calls that are known to be in no transform of functorch.
_connect: Callable[..., tuple[Any, ...]] = super(torch.autograd.Function, _Node).apply


class _Once(torch.autograd.Function):
    """A gradient that eager could differentiate again, tied to what it would be differentiated by: that is an error.

    Without the tie PyTorch would take the gradient for a constant, and a gradient penalty would silently do nothing.
    """

    @staticmethod
    def forward(context: Any, gradient: torch.Tensor, *leaves: torch.Tensor) -> torch.Tensor:
        del context, leaves
        return gradient.view_as(gradient)

    @staticmethod
    def backward(context: Any, *tangents: Any) -> NoReturn:
        del context, tangents
        raise UnsupportedError(
            "a gradient of a hybridized program is differentiated again",
            why="it writes a result that carries a gradient into what it is given, whose history is gone after that",
            fix="write into a clone, run this part imperatively (weft.hybridize(net, False)), "
            "or call torch.autograd.grad inside the hybridized function, with create_graph=True",
        )


def _unchanged(given: Sequence[tuple[Any, int | None]] | None) -> list[Any] | None:
    if not given or any(version is not None and _version(tensor) != version for tensor, version in given):
        return None
    return [tensor for tensor, _ in given]


def _is_complex(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_complex


def _version(thing: Any) -> int | None:
    return version_of(thing) if isinstance(thing, torch.Tensor) else None


def _leaves(node: Any) -> list[torch.Tensor]:
    """The leaves of the autograd graph that a node's inputs were computed from."""
    found: dict[int, torch.Tensor] = {}
    seen, waiting = {node}, [node]
    while waiting:
        for source, _ in waiting.pop().next_functions:
            if source is None or source in seen:
                continue
            seen.add(source)
            waiting.append(source)
            if hasattr(source, "variable"):
                found[id(source.variable)] = source.variable
    return list(found.values())
