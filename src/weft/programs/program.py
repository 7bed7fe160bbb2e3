"""Run, print, draw, measure and save a traced function: the Program that a user holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import Any, NoReturn
from weakref import ref

import torch

from weft.compile.paths import CompiledSegments
from weft.compile.pipeline import compile_traced
from weft.document.html import notebook
from weft.errors import UsageError, WeftError, counted
from weft.files import given_file
from weft.guards.guarded import NewResults
from weft.guards.paths_entry import Walked
from weft.ir.generator import generator_put_back, generator_state
from weft.ir.graph import Graph
from weft.ir.ops import effect_of
from weft.ir.types import CPU, TensorType
from weft.programs.boundary import Boundary, Build, Returned, RunModes, builder, flat_kind, keep, places
from weft.programs.description import Example, describe_program, named_graph, state_names
from weft.programs.drawing import draw
from weft.programs.file import save_program
from weft.programs.listing import ProgramPlan, listing
from weft.programs.parts import ProgramParts
from weft.programs.picture import CALL, CallTimeline, measure_timeline, program_card
from weft.runtime.binding import BoundProgram
from weft.runtime.compiled_graph import CompiledGraph, RefusedError
from weft.runtime.differentiable import Connect, DifferentiableExecutable, Replay
from weft.runtime.lane_choice import LaneChoice
from weft.runtime.path_graph import OtherOutcome, PathGraph, RaisedInHandling
from weft.runtime.varying_gradients import OneBackward, VaryingDifferentiable
from weft.runtime.varying_sizes import VaryingExecutable, sizes_in
from weft.trace.expected import expects_answers
from weft.trace.interception.modes import autocast_now
from weft.trace.python_state.trees import TensorLeaf
from weft.trace.traced import Traced
from weft.trace.tracer import TracedInput, TracedNumber
from weft.tracebacks import shows_less


class Program:
    """One program: what to compute (`graph`), how (`plan`), when (`timeline`), and the machinery of a call."""

    def __init__(
        self,
        traced: Traced,
        lock: RLock,
        forward_results: int = 0,
        kept: CompiledSegments | None = None,
        *,
        backward_later: bool = False,
    ) -> None:
        """`forward_results`: that many returned tensors end the forward of a step that shall take little memory.

        `kept` are the segments of paths of the same object. A backward for many sizes is made now, as it may not be
        possible; with `backward_later` whoever asks for the program does that.
        """
        self._traced = replace(traced, inputs=tuple(map(_without_tensor, traced.inputs)))
        self._example: Example | None = None
        compiled = compile_traced(traced, lock, lambda found: partial(keep, places(found)), forward_results, kept)
        self.graph: Graph = compiled.graph
        own = {entry.value: entry.tensor for entry in traced.inputs}
        self.full = [(ref(own[value]), why) for value, why in compiled.full if value in own]
        """Weights that are multiplied in float32 although integers were asked for, and why."""
        self._execute: CompiledGraph | PathGraph | DifferentiableExecutable | VaryingExecutable = compiled.run
        if isinstance(compiled.run, OneBackward) and not backward_later:
            compiled.run.prepare_backward()
        shown = self._execute.graph if isinstance(self._execute, DifferentiableExecutable) else self.graph
        leaves = [*traced.leaves, *(leaf for entry in traced.kept for leaf in entry.leaves)]
        leaves += (leaf for inside, _ in traced.made for leaf in inside)
        leaves += (leaf for _, leaf in traced.data)
        by_index = {leaf.index: leaf.requires_grad for leaf in leaves if isinstance(leaf, TensorLeaf)}
        given = {*shown.inputs}
        self._is_plain = not (traced.kept or traced.made or shown.writes) and not any(
            result.path or result.value in given for result in shown.results
        )
        # A program that gives new tensors and writes nothing needs no edge.
        self._is_new = not traced.kept and not traced.made and _are_new(shown, traced.leaves)
        self._modes = RunModes(traced, shown)
        self._flags = traced.flags if traced.flags.inputs else None
        self._data = [(number, leaf.index) for number, leaf in traced.data]
        self._is_new = self._is_new and not (self._modes or self._flags or self._data)
        self._handles = traced.handles
        self._draws = any(effect_of(value) == "random" for value in self.graph.values)
        self._bare = self._is_new and traced.structure.is_leaf() and not self._handles
        self._row = flat_kind(traced.structure)
        self._build = builder(traced.structure)
        self.needs_containers = traced.needs_containers  # a run has to be given those of its call
        self._returned = Returned(traced)
        self._first_number = len(traced.inputs)
        self._sizes = traced.size_places
        self._reads = any(decision.read is not None for decision in traced.decisions)
        carries = [by_index[index] for index in range(len(shown.results))]
        views = {} if traced.gradient is None else traced.gradient.views
        self._boundary = Boundary(shown, carries, compiled.links, views, self._sizes)
        self._links = compiled.links
        self.is_of_operators = _is_of_operators(traced, self.graph, self._execute)

    def __str__(self) -> str:
        return listing(self._named(), short_places=True)

    def __repr__(self) -> str:
        return f"<weft program {self.graph.name}: {self.summary()}>"

    def _repr_html_(self) -> str:
        """Show it in a notebook: in a line, as a picture, and as text."""
        state = {} if self._example is None else state_names(self._traced, self._example)
        return notebook(program_card(self.summary(), self._named(), state, self.plan.regions))

    def summary(self) -> str:
        """One line: how many values, how they are computed, what is written."""
        forward = self._forward()
        if isinstance(forward, PathGraph):
            return f"{forward.summary()}; {counted(len(self.graph.results), 'result')}"
        steps = forward.executable.plan.steps
        calls = counted(sum(step.value.op in ("library", "update") for step in steps), "call")
        values, results = counted(len(self.graph.values), "value"), counted(len(self.graph.results), "result")
        regions = f"{counted(len(forward.regions), 'region')} in machine code, " if forward.regions else ""
        capture = f" ({forward.capture})" if forward.capture else ""
        text = f"{values}: {regions}{calls} of PyTorch's operators{capture}; {results}"
        return text + (f", {counted(len(self.graph.writes), 'write')}" if self.graph.writes else "")

    @property
    def inputs(self) -> Sequence[Any]:
        """What goes in: arguments by position, and tensors that the function reached by itself."""
        return self._traced.inputs

    @property
    def lane_choices(self) -> tuple[LaneChoice, ...]:
        """What the clock has decided of lanes and one lane, a region of the forward each."""
        found = (region.lane_choice for region in self._forward().regions)
        return tuple(choice for choice in found if choice is not None)

    @property
    def clocked(self) -> tuple[float, float] | None:
        """The seconds that kernels and PyTorch's operators take, where these run by the clock."""
        forward = self._forward()
        return None if isinstance(forward, PathGraph) else forward.planned.clocked

    def made_for(self, example: Example) -> Program:
        """The same program with the call that it was asked for by: that is what a saved file can be called like."""
        found = Program.__new__(Program)
        found.__dict__.update(self.__dict__, _example=example)
        return found

    @shows_less
    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Say what to call: the module or function."""
        raise UsageError(
            "a program is not called itself",
            why="it is what the module or function runs for arguments like those that it was made for, with tensors "
            "as they are then",
            fix="call what it was made of: weft.hybridize(net), then net(x) runs it; a saved one is called where "
            "weft.load_program has read it",
        )

    @shows_less
    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a program cannot be copied or pickled",
            why="it is machine code in this process, and it reads the tensors of the module that it was made of",
            fix="copy or pickle the module, whose copy makes programs of its own; program.save(path) writes a file "
            "that weft.load_program reads",
        )

    @shows_less
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as a file that runs without the model's source (`weft.load_program`), with its tensors as now."""
        save_program(self.parts, path)

    @property
    def parts(self) -> ProgramParts:
        """The program apart from this process: its graph, how it is called, its tensors as they are now."""
        return describe_program(self.graph, self._traced, self._call())

    @shows_less
    def draw(self, path: str | os.PathLike[str]) -> None:
        """Write a picture of the graph as SVG."""
        draw(self._named(), path, state_names(self._traced, self._call()))

    @property
    def plan(self) -> ProgramPlan:
        """How the forward is computed: kernels, tiles, lanes, memory; `print` shows it."""
        forward = self._forward()
        assert not isinstance(forward, PathGraph)  # nobody is given one
        return ProgramPlan(tuple(region.plan for region in forward.regions), forward.executable.plan)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that the forward is planned to need at once, beside its inputs."""
        return self._forward().peak_bytes

    @shows_less
    def timeline(self, path: str | os.PathLike[str] | None = None) -> CallTimeline:
        """Measure the forward on the example's arguments: what each lane did, and when; written as a Chrome trace.

        It really runs, some twenty times: what it writes into (the statistics of a batch norm) is a copy.
        """
        if path is not None:
            given_file(path, "timeline", CALL)  # told before anything is measured
        example = self._call()
        leaves = example.flat().leaves
        arguments = [leaves[entry.argument] for entry in self._traced.inputs if entry.argument is not None]
        numbers = [_number(entry, leaves) for entry in self._traced.numbers]
        inputs = [*arguments, *(slot.get() for slot in example.slots), *numbers]
        written = {write.input for write in self.graph.writes}
        copies = {value: index for index, value in enumerate(self.graph.inputs) if value in written}
        for index in copies.values():
            inputs[index] = inputs[index].detach().clone()
        forward = self._forward()
        assert not isinstance(forward, PathGraph)  # nobody is given one
        if isinstance(self._execute, VaryingExecutable):
            inputs = self._execute.largest(inputs)
        with torch.no_grad(), generator_put_back():
            found = measure_timeline(forward, inputs)
        if path is not None:
            found.save(path)
        return found

    def pack_ahead(self, traced: Traced) -> None:
        """Let another core begin to pack what the program was traced with, for a run that comes soon."""
        if isinstance(self._execute, CompiledGraph):
            own = (entry for entry in traced.inputs if entry.argument is None)
            self._execute.pack_ahead({entry.value: entry.tensor for entry in own})

    def prepare_backward(self) -> None:
        """Make the backward, where there is one, before it is asked for: what is in its way is raised here."""
        if isinstance(self._execute, DifferentiableExecutable):
            self._execute.prepare_backward()

    def replay_by(self, replay: Replay) -> None:
        """Let a backward that the program has none for go through operators: what computes its results from inputs."""
        if isinstance(self._execute, DifferentiableExecutable):
            self._execute.replay = replay

    def work_for(self, sizes: Sequence[int]) -> int:
        """How much a program for a range of sizes computes for these, compared with others."""
        execute = self._execute
        return execute.work_for(sizes) if isinstance(execute, (VaryingExecutable, VaryingDifferentiable)) else 1

    def share_for(self, sizes: Sequence[int], largest: Sequence[int]) -> float:
        """How much of what it computes for these sizes is needed; `largest` are those that it is for."""
        execute = self._execute
        if not isinstance(execute, (VaryingExecutable, VaryingDifferentiable)):
            return 1.0
        return execute.share_for(sizes, largest)

    @property
    def is_spread(self) -> bool:
        """Whether operators put what they give into memory of the largest sizes, where it lies far apart."""
        execute = self._execute
        return isinstance(execute, (VaryingExecutable, VaryingDifferentiable)) and execute.is_spread

    def _forward(self) -> CompiledGraph | PathGraph:
        if isinstance(self._execute, DifferentiableExecutable):
            forward: CompiledGraph | PathGraph = self._execute.forward_graph
            return forward
        return self._execute.compiled if isinstance(self._execute, VaryingExecutable) else self._execute

    @property
    def expects(self) -> bool:
        """Whether it may be left where values decide: who runs it has another way."""
        return expects_answers(self.graph)

    def _named(self) -> Graph:
        """The graph with the names that the user knows, where the call is known."""
        return self.graph if self._example is None else named_graph(self.graph, self._traced, self._example)

    def _call(self) -> Example:
        if self._example is None:
            raise UsageError("this program has no example call", fix="use the one that weft.program(net, x) gives")
        return self._example

    def run(self, inputs: Sequence[Any], containers: Sequence[Any] = ()) -> Any:
        """Run on the graph's inputs in order; gives what the traced function returned.

        `containers` are those among the arguments of the call, where the program needs them.
        """
        if self._bare and autocast_now() is None:
            return self._execute(inputs)[0]
        if self._reads:
            inputs = [*inputs]  # what is read from tensors is put there
        if self._flags is not None:
            self._flags.set_inputs(inputs)
        if self._modes:
            with _without_autocast(), self._modes.entered():
                outputs = self._executed(inputs)
                results = self._modes.marked(self._boundary.apply(inputs, outputs))
            self._replace_data(inputs, results)
            return self._returned.apply(results, containers, self._numbers(inputs))
        with _without_autocast():
            outputs = self._executed(inputs)
            results = self._boundary.apply(inputs, outputs)
        self._replace_data(inputs, results)
        return self._returned.apply(results, containers, self._numbers(inputs))

    def _executed(self, inputs: Sequence[Any]) -> Any:
        """Compute; nothing is written before the end: where the code handles what is raised, Python may run it all."""
        if not self._handles:
            return self._execute(inputs)
        random = generator_state() if self._draws else None
        try:
            return self._execute(inputs)
        except (WeftError, OtherOutcome, RefusedError, MemoryError):
            raise
        except Exception as error:
            raise RaisedInHandling(random) from error

    def steady(self, inputs: Sequence[Any]) -> Callable[[Sequence[Any]], Any] | None:
        """Give what runs calls of the sizes and in the modes of this one; None where only `run` does.

        It gives None where `run` has to.
        """
        execute = self._execute
        if not self._is_steady or not isinstance(execute, VaryingExecutable):
            return None
        run = execute.steady(inputs)
        if run is None:
            return None
        if self._bare:
            return lambda inputs: None if (outputs := run(inputs)) is None else outputs[0]
        build = self._build
        return lambda inputs: None if (outputs := run(inputs)) is None else build(tuple(outputs))

    def bound_at(self, inputs: Sequence[Any], arguments: Sequence[int]) -> tuple[BoundProgram, NewResults] | None:
        """Give what runs calls of the sizes of these inputs as it is bound now, where it may be.

        The first inputs are in these places of a call.
        """
        execute = self._execute
        if not self._is_steady or not isinstance(execute, VaryingExecutable):
            return None
        found = execute.bound_at(inputs, arguments)
        return None if found is None else (found[0], NewResults(found[1], *self._nesting(found[2])))

    @property
    def _is_steady(self) -> bool:
        """Whether calls of the same sizes may share all that is found out about them."""
        return self._is_new and not self.needs_containers and not self._handles and autocast_now() is None

    def _numbers(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The numbers of a run, and behind them the sizes that vary."""
        numbers = inputs[self._first_number :]
        if not self._sizes:
            return numbers
        return [*numbers, *sizes_in(inputs, self._sizes.values())]

    def _replace_data(self, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Give inputs the memory of results, where the code does."""
        for number, index in self._data:
            inputs[number].data = results[index]

    @property
    def may_be_bound(self) -> bool:
        """Whether it is native code from end to end that gives new tensors alone, however they are nested."""
        execute = self._execute
        return self._is_new and not isinstance(execute, VaryingExecutable) and execute.is_one_region

    def bound(self, arguments: Sequence[int]) -> tuple[BoundProgram, NewResults] | None:
        """Give what runs it as it is bound now, where it may be; its first inputs are in these places of a call."""
        execute = self._execute
        if not self.may_be_bound or isinstance(execute, VaryingExecutable):
            return None
        if isinstance(execute, CompiledGraph):
            found = execute.bound(arguments)
            return None if found is None else (found[0], NewResults(found[1], *self._nesting(execute.order)))
        bound = execute.bound(arguments)
        if bound is None:
            return None
        return bound.run, NewResults(bound.types, tuple, _finish(self._linked(bound.connect), self._row, self._build))

    def walked(self) -> Walked | None:
        """Give the path that it is, where native code may walk it, and what makes of its results what a call gives."""
        execute = self._execute
        if self._modes or self._flags is not None or self._data or self.needs_containers:
            return None
        if isinstance(execute, DifferentiableExecutable):
            found = execute.walked()
            if found is None or not isinstance(found[0], PathGraph) or not found[0].is_one_region:
                return None
            finish = _finish(self._linked(found[1]), self._row, self._build)
            if not self._is_new:
                finish = partial(self._finished_with_gradients, execute.sources, found[1])
            return Walked(found[0], tuple, finish, counts=self._reads, row_of_words=(found[2],))
        if not isinstance(execute, PathGraph) or not execute.is_one_region:
            return None
        if self._is_new:
            row, build = self._nesting(None)
            return Walked(execute, row, build)
        of_row = self._returned.of_row(self._boundary) if self._is_plain else None
        if of_row is not None:
            return Walked(execute, tuple, _ignoring_inputs(of_row), counts=self._reads, takes_inputs=False)
        return Walked(execute, tuple, partial(self._finished, execute), counts=self._reads)

    def _linked(self, connect: Connect) -> Connect:
        """What connects the new tensors that a call gives to autograd, and those to each other."""
        links = self._links
        if links is None:
            return connect

        def linked(outputs: tuple[Any, ...], inputs: Sequence[Any]) -> Any:
            made = list(connect(outputs, inputs))
            links.connect(made, inputs, _same, made.__getitem__)
            return tuple(made)

        return linked

    def _finished(self, path: PathGraph, made: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """What a call gives whose path has been walked, of what it has made, and of its inputs."""
        given = [place if place < path.first_number else -1 for place in path.root_places]
        return self._finished_of(given, made, inputs)

    def _finished_with_gradients(
        self, sources: Sequence[int], connect: Connect, made: Sequence[Any], inputs: Sequence[Any]
    ) -> Any:
        """The same where what was made is to be connected to autograd."""
        return self._finished_of(sources, connect(tuple(made), inputs), inputs)

    def _finished_of(self, sources: Sequence[int], made: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """What a call gives: results with a source are that input, others what was made, in order."""
        fresh = iter(made)
        outputs = [inputs[source] if source >= 0 else next(fresh) for source in sources]
        results = self._boundary.apply(inputs, outputs)
        return self._returned.apply(results, (), inputs[self._first_number :])

    def _nesting(self, order: Sequence[int] | None) -> tuple[type | None, Callable[[Any, Sequence[Any]], Any] | None]:
        """In what new tensors are given: a list, a tuple or nothing, and what makes something else of a tuple.

        `order` says where the results are among the new tensors, if in another order.
        """
        build = self._build
        if order is not None:
            return tuple, lambda outputs, _: build(tuple([outputs[index] for index in order]))
        if self._bare or self._row is not None:
            return self._row, None
        return tuple, lambda outputs, _: build(outputs)


def _is_of_operators(traced: Traced, graph: Graph, execute: Any) -> bool:
    """Whether PyTorch's operators compute all of a program, on the CPU: Python would call them to the same bits.

    What prints, prints once in a program.
    """
    if not isinstance(execute, CompiledGraph) or execute.regions or execute.capture:
        return False
    kinds = (value.type for value in (*graph.inputs, *graph.values))
    on_cpu = all(kind.device == CPU for kind in kinds if isinstance(kind, TensorType))
    return on_cpu and not (traced.printed.texts or traced.decisions)


def _are_new(graph: Graph, leaves: Sequence[Any]) -> bool:
    """Whether a graph's function returns what the graph computes, in order: no input, view or constant, no writes."""
    values = [result.value for result in graph.results]
    return (
        not graph.writes
        and not any(result.path for result in graph.results)
        and not {*values} & {*graph.inputs}
        and len({*values}) == len(values)
        and [leaf.index if isinstance(leaf, TensorLeaf) else None for leaf in leaves] == [*range(len(values))]
    )


def _finish(connected: Connect, row: type | None, build: Build) -> Connect:
    """Give what makes of all that a forward computes, and of its inputs, what a call gives."""
    if row is tuple:
        return connected
    return lambda outputs, inputs: build(connected(outputs, inputs))


def _same(number: int) -> int:
    return number


def _ignoring_inputs(build: Build) -> Callable[[Any, Any], Any]:
    return lambda row, _: build(row)


def _without_tensor(entry: TracedInput) -> TracedInput:
    """What is known of an input without the tensor that it was traced with: each call brings its own."""
    return replace(entry, tensor=entry.stand_in)


def _number(entry: TracedNumber, leaves: Sequence[Any]) -> Any:
    """A number that goes in, as it is now."""
    if entry.argument is None:
        return entry.number if entry.slot is None else entry.slot.get()
    return leaves[entry.argument]


def _without_autocast() -> Any:
    """Casts are part of the graph; operators called from a program must not cast again."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return _AutocastOff()
    return nullcontext()


class _AutocastOff:
    """Autocast is off inside. A `torch.autocast` in its place takes several times as long as a small program."""

    def __enter__(self) -> None:
        self._kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        for kind in self._kinds:
            torch.set_autocast_enabled(kind, False)

    def __exit__(self, *error: object) -> None:
        for kind in self._kinds:
            torch.set_autocast_enabled(kind, True)
