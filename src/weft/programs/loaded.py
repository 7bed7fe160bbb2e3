"""Call a program from a file like the function or module it was made from, natively once its file is known to be true.

Kernels rely on the sizes and types that a graph declares. A graph that was traced has them from the operators; one from
a file may say anything, so at the first call each value is compared with what PyTorch's operator gives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from threading import RLock
from types import MappingProxyType
from typing import Any, Protocol

import torch

from weft.codegen.library import LibraryExecutable
from weft.compile.pipeline import compile_graph
from weft.errors import InternalError, UnsupportedError, UsageError
from weft.guards.back_off import BackOff
from weft.guards.entry import MISSED, Entry, Ways, bound_run, make_entry, refuse_all
from weft.guards.guarded import NewResults, TakenLeaves
from weft.guards.likeness import CallItems, likeness_of
from weft.guards.words import Words, can_watch
from weft.ir.extents import Extent
from weft.ir.generator import generator_put_back
from weft.ir.graph import Graph, Value
from weft.ir.interpreter import evaluate
from weft.ir.library import split
from weft.ir.ops import effect_of
from weft.ir.printer import name_inputs
from weft.ir.size_text import extents_of, read_condition, with_sizes
from weft.ir.types import CPU, NUMBER_KINDS, NumberType, TensorType, Type, type_of
from weft.passes.pipeline import run_pipeline
from weft.plan.library_plan import plan_library
from weft.plan.regions.indices import INDEXED
from weft.programs.boundary import Boundary
from weft.programs.drawing import draw
from weft.programs.listing import ProgramPlan, listing
from weft.programs.parts import SPACES, ProgramParts, calls
from weft.programs.structure import LeafPort, build, take_apart
from weft.runtime.binding import BoundProgram
from weft.runtime.compiled_graph import CompiledGraph
from weft.runtime.new_tensors import OutputType
from weft.trace.interception.capture import PLAIN_TYPES, traced_elsewhere
from weft.trace.signature import memory_key
from weft.tracebacks import show_less


class LoadedCode(Protocol):
    """What computes the roots of a graph from its inputs."""

    @property
    def plan(self) -> ProgramPlan:
        """How it is computed."""

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run the graph."""

    def bound(self, arguments: Sequence[int]) -> tuple[BoundProgram, tuple[OutputType, ...]] | None:
        """Give what runs the graph as it is bound now, if something does."""

    def check(self, inputs: Sequence[Any]) -> None:
        """Raise UsageError if a value is not what the graph declares."""


class LoadedGraph:
    """Runs a graph of any origin on inputs that fit it; gives its roots in order, each once."""

    def __init__(self, graph: Graph, weights: frozenset[Value]) -> None:
        self._graph = graph
        self._weights = weights
        self._operators = LibraryExecutable(plan_library(graph))
        self._why_not = _why_not_native(graph)
        self._draws = any(effect_of(value) == "random" for value in graph.values)
        # On the other side: another thread's first call, which runs operators and compiles; a finalizer may come again.
        self._lock = RLock()
        self._planned: CompiledGraph | None = None
        self._is_true = False

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run the graph."""
        if self._why_not or not _are_ordinary(inputs):
            return self._operators(inputs)
        if not self._is_true:
            with self._lock:
                if not self._is_true:
                    self.check(inputs)
        return self._compiled()(inputs)

    def __str__(self) -> str:
        if self._why_not:
            return listing(self._graph, self._why_not)
        if not self._is_true:
            return listing(self._graph, "its first call compares each value with what the file says")
        return listing(run_pipeline(self._graph))

    @property
    def plan(self) -> ProgramPlan:
        """How the graph is computed."""
        if self._why_not:
            return ProgramPlan((), self._operators.plan)
        compiled = self._compiled()
        return ProgramPlan(tuple(region.plan for region in compiled.regions), compiled.executable.plan)

    def bound(self, arguments: Sequence[int]) -> tuple[BoundProgram, tuple[OutputType, ...]] | None:
        """Give what runs the graph as it is bound now, where that is one region; the first inputs are `arguments`."""
        return self._compiled().bound(arguments) if self._is_true and self._compiled().order is None else None

    def check(self, inputs: Sequence[Any]) -> None:
        """Run the graph by PyTorch's operators, and raise UsageError if a value is not what the graph declares."""
        if self._why_not:
            raise UnsupportedError(
                f"{self._graph.name} runs by PyTorch's operators alone",
                why=self._why_not,
            )
        known = dict(zip(self._graph.inputs, inputs, strict=True))
        # The run proper draws the same random numbers again; what other threads draw meanwhile is theirs.
        with torch.no_grad(), generator_put_back() if self._draws else nullcontext():
            for step in self._operators.plan.steps:
                operands = [known[operand] for operand in step.value.operands]
                try:
                    known[step.value] = evaluate(step.value, operands)
                except InternalError as error:
                    raise UsageError(
                        f"{self._graph.name} is not what its file says: {error.fact}",
                        where=error.where,
                        why="the file was written by another version of PyTorch, or is forged",
                        fix="save the program again, with this version",
                    ) from error
                for value in step.dying:
                    del known[value]
        self._is_true = True

    def _compiled(self) -> CompiledGraph:
        with self._lock:
            if self._planned is None:
                self._planned = compile_graph(run_pipeline(self._graph), self._weights)
            return self._planned


def _why_not_native(graph: Graph) -> str | None:
    """Why kernels may not compute a graph even once it is known to be true, if they may not.

    Indices are compared with sizes where operators are lifted, not in small ops that stand in a file; and operators of
    other packages may do something more than compute, so they must not run once more.
    """
    kinds = (value.type for value in (*graph.inputs, *graph.values))
    if any(kind.device != CPU for kind in kinds if isinstance(kind, TensorType)):
        return "it is on another device"
    if any(value.op in INDEXED for value in graph.values):
        return "its file has small ops with indices"
    if any(split(call.target)[0] not in SPACES for call in calls(graph)):
        return "its file calls operators of other packages"
    return None


def _are_ordinary(inputs: Sequence[Any]) -> bool:
    """Whether inputs are memory and nothing more, and no mode wants to see operators."""
    tensors = [given for given in inputs if isinstance(given, torch.Tensor)]
    return all(type(tensor) in PLAIN_TYPES for tensor in tensors) and not traced_elsewhere(inputs)


class LoadedSizes:
    """The sizes that vary in calls of a loaded program."""

    def __init__(self, parts: ProgramParts) -> None:
        self._inputs = parts.graph.inputs
        self._sizes = parts.sizes
        names = name_inputs(self._inputs)
        self._names = {size: names[self._inputs[size.input]] for size in parts.sizes}
        self._conditions = [(text, read_condition(text, {*self._names.values()})) for text in parts.conditions]
        self._varying = {index for index, value in enumerate(self._inputs) if any(True for _ in extents_of(value.type))}
        self._name = parts.graph.name

    def types(self, given: Mapping[int, tuple[str, Any]]) -> dict[int, Type]:
        """The types that arguments whose sizes vary must have, by input, or UsageError for sizes that it cannot be."""
        if not self._sizes:
            return {}
        numbers: dict[Value, int] = {}
        for size in self._sizes:
            name, tensor = given[size.of]
            declared = self._inputs[size.of].type
            assert isinstance(declared, TensorType)
            if not isinstance(tensor, torch.Tensor) or tensor.dim() != declared.rank:
                is_ = type_of(tensor) if isinstance(tensor, torch.Tensor) else f"a {type(tensor).__name__}"
                raise UsageError(f"{name} must be a tensor {declared}, and is {is_}")
            number = numbers[self._inputs[size.input]] = tensor.shape[size.dimension]
            if number < size.least or (size.most is not None and number > size.most):
                raise UsageError(
                    f"{self._names[size]} is {number} (dim {size.dimension} of {name}), and {self._name} is made for"
                    f" {size.range}",
                    why="the program was saved for sizes in this range",
                    fix="pass sizes in this range, or save a program with another one in sizes=",
                )
        self._check_conditions(numbers)
        return {index: _at(self._inputs[index].type, numbers) for index in self._varying}

    def _check_conditions(self, numbers: Mapping[Value, int]) -> None:
        sizes = {name: numbers[self._inputs[size.input]] for size, name in self._names.items()}
        for text, holds in self._conditions:
            if not holds(sizes):
                now = ", ".join(f"{name} is {number}" for name, number in sizes.items())
                raise UsageError(
                    f"{self._name} is made for sizes of which {text} holds; {now}",
                    why="the code decides by sizes, and was saved for the way that it goes for those of the example",
                    fix="save another program from a call with such sizes",
                )


def _at(kind: Type, numbers: Mapping[Value, int]) -> Type:
    """The type of an argument for the sizes of a call."""
    assert isinstance(kind, TensorType)

    def value(size: Extent) -> int:
        found: int = size.expression.value(numbers.__getitem__)
        return found

    return replace(kind, shape=with_sizes(kind.shape, value), strides=with_sizes(kind.strides, value))


class LoadedProgram:
    """A program that runs without the source of its model: for inference, so what it returns carries no gradient.

    Called with arguments like those it was made for. `state` holds its parameters and buffers by name; what the program
    writes (running statistics, counters) is written there, and what you write there is seen by the next call.
    """

    def __init__(self, parts: ProgramParts, execute: LoadedCode | None = None) -> None:
        """`execute` runs a graph whose sizes vary."""
        self.parts = parts
        self._sizes = LoadedSizes(parts)
        self._state = MappingProxyType({entry.name: entry.tensor for entry in parts.state})
        written = {write.input for write in parts.graph.writes}
        own = (parts.graph.inputs[entry.input] for entry in parts.state)
        if execute is None and parts.sizes:
            raise InternalError(f"nothing runs {parts.graph.name} for all its sizes")
        weights = frozenset(value for value in own if value not in written)
        self._execute = execute or LoadedGraph(parts.graph, weights)
        self._shortcut = Shortcut(parts, self._execute.bound)
        self._entry: Entry = refuse_all
        self._boundary = Boundary(parts.graph, [False] * len(parts.graph.results))

    @property
    def graph(self) -> Graph:
        """What is computed."""
        return self.parts.graph

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """The parameters and buffers, by their names in the module."""
        return self._state

    @property
    def plan(self) -> ProgramPlan:
        """How it is computed: kernels, tiles, lanes, memory; `print` shows it."""
        return self._execute.plan

    def check(self, inputs: Sequence[Any]) -> None:
        """Raise UsageError unless the graph, on these inputs of it, gives what its file says; then kernels may run."""
        self._execute.check(inputs)

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Write a picture of the graph as SVG."""
        draw(self.graph, path, {entry.input: entry.name for entry in self.parts.state})

    def __str__(self) -> str:
        return str(self._execute)

    def __repr__(self) -> str:
        return f"<loaded program {self.graph.name}: {len(self.graph.values)} values>"

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the program."""
        if not keywords:
            result = self._entry(*arguments)
            if result is not MISSED:
                return result
        try:
            return self._run(arguments, keywords)
        except Exception as error:
            show_less(error)
            raise

    def _run(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run the program with arguments that are looked at first."""
        inputs = self._inputs(arguments, keywords)
        with _modes(self.parts.grad_mode):
            results = self._boundary.apply(inputs, self._execute(inputs))
        # One that refused this call guards itself, and may do for the next: in another thread's call it is busy.
        self._entry = self._shortcut.after(arguments, keywords) or self._entry
        return build(self.parts.results, results)

    def _inputs(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
        """The inputs of the graph in order, each as the graph declares it."""
        call = self.parts.arguments
        arguments, keywords = self._by_position(arguments, keywords)
        found: dict[int, tuple[str, Any]] = {}
        for (name, node), given in zip(call.positional, arguments, strict=True):
            take_apart(node, given, name, found)
        for name, node in call.keywords:
            take_apart(node, keywords[name], name, found)
        inputs: list[Any] = [None] * len(self.graph.inputs)
        types = self._sizes.types(found)
        for index, (name, given) in found.items():
            check_argument(name, types.get(index, self.graph.inputs[index].type), given)
            inputs[index] = given
        if not self._shortcut.state_is_as_before():
            self._look_at_state()
        for entry in self.parts.state:
            inputs[entry.input] = entry.tensor
        self._check_modes(inputs)
        return inputs

    def _by_position(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as in the call that the program was made from; a positional one may be given by its name."""
        names = [name for name, _ in self.parts.arguments.positional]
        expected = [name for name, _ in self.parts.arguments.keywords]
        rest = dict(keywords)
        given = list(arguments)
        while len(given) < len(names) and names[len(given)] in rest:
            given.append(rest.pop(names[len(given)]))
        if len(given) != len(names) or rest.keys() != set(expected):
            wanted = ", ".join([*names, *(f"{name}=" for name in expected)])
            got = ", ".join([*(["..."] * len(arguments)), *(f"{name}=" for name in keywords)])
            raise UsageError(
                f"{self.graph.name} takes ({wanted}), and was given ({got})",
                why="a saved program is made for one way to call it",
            )
        return tuple(given), rest

    def _look_at_state(self) -> None:
        """Compare the program's own tensors with the graph: `.data` and `.resize_` may have changed their sizes."""
        for entry in self.parts.state:
            check_argument(f"state[{entry.name!r}]", self.graph.inputs[entry.input].type, entry.tensor)
        self._shortcut.look_again()

    def _check_modes(self, inputs: list[Any]) -> None:
        if torch.get_default_dtype() is not self.parts.default_dtype:
            raise UsageError(
                f"the default dtype is {torch.get_default_dtype()}; {self.graph.name} was made for"
                f" {self.parts.default_dtype}",
                why="PyTorch's operators look at it",
                fix=f"torch.set_default_dtype({self.parts.default_dtype})",
            )
        if self.parts.memory is not None:
            tensors = [given for given in inputs if isinstance(given, torch.Tensor)]
            if memory_key(tensors) != self.parts.memory:
                raise UsageError(
                    f"the arguments of {self.graph.name} share memory in another way than when it was made",
                    why="it writes into its arguments, or gives views of them",
                    fix="give tensors with memory of their own: tensor.clone()",
                )


def check_argument(name: str, declared: Type, given: Any) -> None:
    """Raise UsageError, naming the argument, unless it is as the graph declares it."""
    if isinstance(declared, NumberType):
        if type(given) is not NUMBER_KINDS[declared.kind]:
            raise UsageError(f"{name} must be {declared}, and is a {type(given).__name__}")
        return
    if not isinstance(given, torch.Tensor) or not isinstance(declared, TensorType):
        raise UsageError(f"{name} must be a tensor {declared}, and is a {type(given).__name__}")
    found = type_of(given)
    if not _fits(declared, found):
        raise UsageError(
            f"{name} must be {_with_strides(declared, found)}, and is {_with_strides(found, declared)}",
            why="a saved program is made for these sizes, types, strides and devices",
            fix="x.contiguous() where only strides differ; else save a program from a call with such an argument",
        )
    if given.is_conj() or given.is_neg():
        raise UsageError(f"{name} is a lazy conjugate or negative", fix="x.resolve_conj().resolve_neg()")
    if given.requires_grad and torch.is_grad_enabled():
        raise UsageError(
            f"{name} requires a gradient, and a saved program gives none",
            why="a program file holds what is computed, not how to differentiate it",
            fix="call it under torch.no_grad(), or give x.detach()",
        )


def _fits(declared: TensorType, found: TensorType) -> bool:
    """Whether types agree, in strides only where there is a next element to step to."""
    if (declared.dtype, declared.shape, declared.device) != (found.dtype, found.shape, found.device):
        return False
    steps = zip(declared.shape, declared.strides, found.strides, strict=True)
    return declared.size == 0 or all(extent == 1 or one == other for extent, one, other in steps)


def _with_strides(shown: TensorType, other: TensorType) -> str:
    """The type; with strides, also the usual ones, where they are all that differs."""
    same = (shown.dtype, shown.shape, shown.device) == (other.dtype, other.shape, other.device)
    return f"{shown} with strides {list(shown.strides)}" if same else str(shown)


@contextmanager
def _modes(grad_mode: bool) -> Iterator[None]:
    """The modes under which the program was made: its gradient mode, and no autocast (casts are in the graph)."""
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(grad_mode))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


# What gives the run of a graph as it is bound now, where that is one region, given which inputs are arguments.
Bind = Callable[[Sequence[int]], tuple[BoundProgram, tuple[OutputType, ...]] | None]


class Shortcut:
    """Makes the entry from time to time, as it is costly to make."""

    def __init__(self, parts: ProgramParts, bind: Bind) -> None:
        self._bind = bind
        self._count = _plain_arguments(parts)
        self._tensors = [entry.tensor for entry in parts.state]
        self._words = self._watched()
        self._attempts = BackOff()

    def state_is_as_before(self) -> bool:
        """Whether the program's own tensors surely have the sizes and types that they had when last looked at."""
        return self._words is not None and self._words.hold()

    def look_again(self) -> None:
        """Take the program's own tensors as they are now for right."""
        self._words = self._watched()

    def after(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Entry | None:
        """Give the entry of calls like the one that was just made; None where nothing new does."""
        if self._count != len(arguments) or keywords or self._words is None or not self._attempts.is_due():
            return None
        found = self._bind(range(self._count))
        likeness = likeness_of(CallItems(arguments, {}))
        if found is None or likeness is None or not likeness.is_all_words or not self._words.are_all:
            return None
        program, types = found
        if any(position < 0 for position, _ in program.code.changing):
            return None  # a tensor of its own that does not last, where calls are told of none
        told = self._words.told(())
        run = bound_run((program, NewResults(types)), told)
        ways = Ways([told], refuse_all, refuse_all)
        return None if run is None else make_entry(likeness, TakenLeaves(range(self._count)), ways, [run.state])

    def _watched(self) -> Words | None:
        return Words([], self._tensors) if can_watch(self._tensors) else None


def _plain_arguments(parts: ProgramParts) -> int | None:
    """How many tensors go in, by position, where nothing else does and one new tensor comes out."""
    nodes: Sequence[Any] = [node for _, node in parts.arguments.positional]
    results = parts.graph.results
    plain = (
        not parts.arguments.keywords
        and nodes == [LeafPort(index) for index in range(len(nodes))]
        and parts.results == LeafPort(0)
        and len(results) == 1
        and results[0].path == ()
        and results[0].value not in parts.graph.inputs
        and not parts.graph.writes
        and parts.memory is None
    )
    return len(nodes) if plain else None
