"""Run a symbol as one operator: a torch function of its variables, compiled whole by Weft.

Arrays are given to programs as inputs, which may be others at each call: products then read them as they lie, and
convolutions pack them each time. While a network is trained that is right. Weights that came as the same tensors for a
few calls are held; a write to a part of one shows by its version, a write of the whole by another tensor.
"""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from weft.api.hybrid import ModuleForward
from weft.api.hybrid_function import HybridFunction
from weft.api.hybrid_options import DEFAULTS, HybridOptions
from weft.guards.entry import MISSED
from weft.mx.arrays.at_once import as_arrays, kind_key, kind_of, take_turn
from weft.mx.arrays.custom import call_custom
from weft.mx.arrays.invoke import invoke
from weft.mx.arrays.ndarray import NDArray
from weft.mx.arrays.tape import modes
from weft.mx.base.context import current_context
from weft.mx.operators.table import OperatorRule
from weft.mx.symbols.symbol import Entry, Symbol

CALLS = 3  # with the same weights, after which they are held
FEWEST_BYTES = 1 << 20  # of weights: fewer are read as soon as packed


class _Forward(ModuleForward):
    """Runs a module's programs. It is traced by a task, while the user's thread draws random numbers and seeds them."""

    draws = False


class _Module(nn.Module):
    """A function of tensors, of which some are buffers."""

    def __init__(self, function: Callable[..., Any], places: Sequence[int], count: int) -> None:
        super().__init__()
        self._function = function
        self._places = {place: f"weight{place}" for place in places}
        self._count = count

    def hold(self, weights: Sequence[Tensor]) -> None:
        """Let the buffers be these."""
        for name, weight in zip(self._places.values(), weights, strict=True):
            self.register_buffer(name, weight)

    def forward(self, *inputs: Tensor) -> Any:
        """Call the function with inputs and buffers in their places."""
        others = iter(inputs)
        return self._function(
            *[
                getattr(self, self._places[place]) if place in self._places else next(others)
                for place in range(self._count)
            ]
        )


class HeldWeights:
    """A function of tensors whose weights, those of one device, are held while they stay the same."""

    def __init__(self, function: Callable[..., Any], places: Sequence[int], count: int) -> None:
        self._module = _Module(function, places, count).eval()
        self._program = _Forward(self._module)
        self._places = list(places)
        self._others = [place for place in range(count) if place not in set(places)]
        self._weights: list[Tensor] = []  # those that came last, and for how many calls
        self._calls = 0
        # On the other side: another task that runs with these weights; it runs with inputs instead, and never waits.
        self._lock = threading.Lock()

    @property
    def are_held(self) -> bool:
        """Whether the last call ran with weights that are held."""
        return self._calls > CALLS

    def run(self, given: Sequence[Tensor]) -> Any:
        """What the function gives with weights that are held; None if they are not."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            weights = [given[place] for place in self._places]
            known = self._weights
            if len(known) != len(weights) or any(old is not new for old, new in zip(known, weights, strict=True)):
                self._weights, self._calls = weights, 0
            self._calls += 1
            if self._calls <= CALLS:
                return None
            if self._calls == CALLS + 1:
                self._module.hold(weights)
            return self._program(*[given[place] for place in self._others])
        finally:
            self._lock.release()


def are_worth_holding(weights: Sequence[Tensor]) -> bool:
    """Whether weights are large enough."""
    return sum(weight.numel() * weight.element_size() for weight in weights) >= FEWEST_BYTES


Mode = namedtuple("Mode", ["train"])  # noqa: PYI024  # `_replace` is what rules are given
PREDICT = Mode(False)


class _Step:
    """One operator of the graph, with its parameters read for both modes."""

    def __init__(self, node: Any, places: dict[Entry, int]) -> None:
        self.rule = node.row.rule
        p = node.p
        if "sparse_grad" in p._fields:  # a program's gradients have all rows
            p = p._replace(sparse_grad=False)
        self.p = {False: p, True: p._replace(train=True) if self.rule.modal else p}
        self.inputs = [places[entry] for entry in node.inputs]
        self.node = node
        self.count = node.output_count()
        self.first = len(places)
        for place in range(self.count):
            places[node, place] = self.first + place
        self.aux = [self.inputs[place] for place in self.rule.aux]


class _TracedBesideOthers(HybridFunction):
    """Runs a graph's programs. It is traced by a task, while the user's thread draws random numbers and seeds them."""

    draws = False


class GraphFunction:
    """A symbol as a function of tensors: its outputs, and while training new values of its auxiliary states."""

    def __init__(self, symbol: Symbol, inputs: Sequence[str], weights: Sequence[int] = ()) -> None:
        """`weights`: the places of inputs that are likely to stay the same from call to call."""
        places: dict[Entry, int] = {}
        nodes = symbol.nodes()
        by_name = {node.name: node for node in nodes if node.row is None}
        self._inputs = [by_name.get(name) for name in inputs]
        self._given: list[int] = []  # which inputs the graph reads
        for place, node in enumerate(self._inputs):
            if node is not None:
                places[node, 0] = len(self._given)
                self._given.append(place)
        self._steps = [_Step(node, places) for node in nodes if node.row is not None]
        self._symbol = symbol
        self._unsized = [
            step for step in self._steps if step.rule.creates and 0 in (getattr(step.p[False], "shape", ()) or ())
        ]
        self._sizes: dict[Any, dict[_Step, Any]] = {}
        self._outputs = [places[entry] for entry in symbol.entries]
        changed = dict.fromkeys(place for step in self._steps for place in step.aux)
        self._aux = list(changed)
        self.random = any(step.rule.random for step in self._steps)
        # What decides by elements runs as paths, however strict hybridized code is to be.
        self._by_python = any(step.rule.by_python for step in self._steps)
        self._options = HybridOptions(whole=False) if any(step.rule.decides for step in self._steps) else DEFAULTS
        self.rule = OperatorRule(
            self.compute if not self.random else self._compute_random,
            outputs=len(self._outputs),
            aux=tuple(self._given[place] for place in self._aux),
            modal=True,
            random=self.random,
            mixed=True,
            by_program=True,
        )
        self._weights = [place for place, each in enumerate(self._given) if each in set(weights)]
        self._held: dict[Any, HeldWeights | None] = {}  # None where weights are too small
        self._compiled: dict[Any, HybridFunction] = {}
        self._rules: dict[str, OperatorRule] = {}
        self.compiles = True

    def call(self, name: str, inputs: Sequence[NDArray], device: str = "") -> list[NDArray]:
        """The outputs: queued as one operator, or, where users' code stands in the graph, as many."""
        if self._by_python:
            return self._call_each(inputs)
        return invoke(self.rule_on(device) if device else self.rule, name, PREDICT, inputs)

    def _call_each(self, inputs: Sequence[NDArray]) -> list[NDArray]:
        values = [inputs[place] for place in self._given]
        context = values[0].context if values else current_context()
        sized = self._sizes_at(values)[1]
        for step in self._steps:
            arguments = [values[place] for place in step.inputs]
            if step.rule.by_python:
                found = call_custom(*arguments, **step.node.texts)
                values += found if isinstance(found, list) else [found]
                continue
            with context:
                values += invoke(step.rule, step.node.name, sized.get(step, step.p[False]), arguments)[: step.count]
        return [values[place] for place in self._outputs]

    def rule_on(self, device: str) -> OperatorRule:
        """The graph as an operator of one device, which has weights of its own."""
        found = self._rules.get(device)
        if found is None:
            found = self._rules[device] = replace(self.rule, compute=partial(self.rule.compute, device=device))
        return found

    def compute(self, p: Any, *tensors: Tensor, device: str = "") -> Any:
        """Run the program of a graph that draws no random numbers."""
        return self._compute_random(p, None, *tensors, device=device)

    def _compute_random(self, p: Any, generator: torch.Generator | None, *tensors: Tensor, device: str = "") -> Any:
        """Run the program; tensors without elements only go through the operators."""
        given = [tensors[place] for place in self._given]
        shapes, sized = self._sizes_at(given)
        if not self.compiles or not given or given[0].device.type == "meta":
            return self._run(p.train, generator, sized, given)
        key = p.train, generator, shapes
        if self._weights and not p.train and self._options is DEFAULTS:
            found = self._with_held_weights((*key, device), generator, sized, given)
            if found is not None:
                return found
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = _TracedBesideOthers(self._alone(p.train, generator, sized), self._options)
        return compiled(*given)

    def _with_held_weights(
        self, key: Any, generator: torch.Generator | None, sized: dict[_Step, Any], given: Sequence[Tensor]
    ) -> Any:
        if key not in self._held:
            is_worth = are_worth_holding([given[place] for place in self._weights])
            function = self._alone(False, generator, sized)
            self._held[key] = HeldWeights(function, self._weights, len(given)) if is_worth else None
        held = self._held[key]
        return None if held is None else held.run(given)

    @property
    def program_of_predictions(self) -> HybridFunction | None:
        """What has run the graph outside training; None if it has not, draws, or has arrays of sizes that vary."""
        return None if self.random or self._unsized else self._compiled.get((False, None, ()))

    @property
    def places_read(self) -> Sequence[int]:
        """The places of the inputs that the graph reads, which its program is given."""
        return self._given

    @property
    def output_count(self) -> int:
        """Count the outputs, without new values of auxiliary states."""
        return len(self._outputs)

    @property
    def changed_inputs(self) -> tuple[int, ...]:
        """The places of the inputs whose new values follow the outputs while training."""
        return self.rule.aux

    def run(self, train: bool, generator: torch.Generator | None, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the operators one after the other: for code that is itself traced, or not to be."""
        given = [tensors[place] for place in self._given]
        return self._run(train, generator, self._sizes_at(given)[1], given)

    def _sizes_at(self, given: Sequence[Any]) -> tuple[tuple[Any, ...], dict[_Step, Any]]:
        if not self._unsized:
            return (), {}
        shapes = tuple(tuple(tensor.shape) for tensor in given)
        return shapes, self._sized(shapes)

    def _alone(self, train: bool, generator: torch.Generator | None, sized: dict[_Step, Any]) -> Callable[..., Any]:
        """The graph as a function of tensors alone."""

        def run(*tensors: Tensor) -> Any:
            return self._run(train, generator, sized, tensors)

        return run

    def _sized(self, shapes: Sequence[Any]) -> dict[_Step, Any]:
        """The parameters of what makes arrays, some of whose sizes follow from those of the inputs."""
        found = self._sizes.get(shapes)
        if found is None:
            names = [node.name for node in self._inputs if node is not None]
            kinds = self._symbol._infer(dict(zip(names, shapes, strict=True)))
            found = self._sizes[shapes] = {
                step: step.p[False]._replace(shape=kinds[step.node, 0][0]) for step in self._unsized
            }
        return found

    def _run(
        self, train: bool, generator: torch.Generator | None, sized: dict[_Step, Any], tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        values = list(tensors)
        changed: dict[int, Tensor] = {}
        for step in self._steps:
            arguments = [values[place] for place in step.inputs]
            rule = step.rule
            p = sized.get(step, step.p[train])
            found = rule.compute(p, generator, *arguments) if rule.random else rule.compute(p, *arguments)
            results = found if isinstance(found, tuple) else (found,)
            values += results[: step.count]
            changed.update(zip(step.aux, results[step.count :], strict=False))
        outputs = [values[place] for place in self._outputs]
        return (*outputs, *[changed.get(place, values[place]) for place in self._aux]) if train else tuple(outputs)


class ReadyCall:
    """Runs a block at its call, if its program is cheap and the call is like those before: one native call.

    It is the block's program with the arrays of its parameters on one device, for inputs of one size and type.
    """

    __slots__ = ("_arrays", "_at", "_context", "_kind", "_program", "_shape", "_type")

    def __init__(self, program: Any, kind: Any, arrays: Sequence[NDArray], at: int) -> None:
        given = arrays[at]
        self._program, self._kind = program, kind
        self._shape, self._type, self._context = given._shape, given._dtype, given._chunk.context
        self._arrays, self._at = list(arrays), at  # the block's input is to be put in at that place

    def run(self, x: NDArray) -> list[NDArray] | None:
        """The outputs; None if the call is to go the longer way, which knows all calls."""
        if modes.recording or modes.training or x.__class__ is not NDArray or x._begin >= 0:
            return None
        chunk = x._chunk
        if chunk.context is not self._context or x._shape != self._shape or x._dtype is not self._type:
            return None
        inputs = self._arrays.copy()
        inputs[self._at] = x
        runner = take_turn(inputs)
        if runner is None:
            return None
        try:
            tensors: list[Any] = [array._chunk.tensor for array in inputs]
            # The entry alone: what makes a program may wait for others, which nobody may who holds the turn.
            results = self._program.entry(*tensors)
            return None if results is MISSED else as_arrays(results, tensors, inputs, self._kind.types)
        except Exception:  # noqa: BLE001  # it is queued, fails there, and is told to whoever waits
            return None
        finally:
            runner.give_turn_back()


def ready_call(function: GraphFunction, inputs: Sequence[NDArray], x: NDArray) -> ReadyCall | None:
    """What runs calls like one that has just been queued; None if its program is not there, or not cheap."""
    kind = kind_of(kind_key(function.rule_on(x.context.name), PREDICT, inputs))
    program = function.program_of_predictions
    if kind is None or not kind.cheap or program is None:
        return None
    read = [inputs[place] for place in function.places_read]
    places = [place for place, array in enumerate(read) if array is x]
    if len(places) != 1 or any(array._begin >= 0 or array.__class__ is not NDArray for array in read):
        return None
    return ReadyCall(program, kind, read, places[0])
