"""Compile code in stages, in this order for every way into Weft: trace, passes, lift, plan, machine code.

`hybridize`, `step` and text come with a `Request` to trace; so do lazy segments. What was traced becomes a `Compiled`:
one graph, or a forward with the graphs of its backwards. A loaded file comes with a graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import RLock
from typing import Any

import torch

from weft.compile.ahead import KernelsAhead
from weft.compile.calibration import calibrated_inputs
from weft.compile.clock import compared, may_be_slower, operators_are_faster
from weft.compile.paths import CompiledSegments, compile_path
from weft.compile.plan_cache import Machine, Question, kept_plan
from weft.compile.precision import FULL, INTEGERS, Reasons, kept_in_full, lowered
from weft.compile.type_cache import keep_types, known_types
from weft.compile.varying import VaryingCompiler, drawing_again, reads_what_it_writes, replay
from weft.config import config
from weft.devices import cpu_count
from weft.guards.words import still_holds
from weft.ir.graph import Graph, Value
from weft.ir.ops import effect_of
from weft.passes.pipeline import run_pipeline
from weft.passes.within import UnboundedError
from weft.plan.draft import FRUGAL, Planner
from weft.plan.extents.parts import VaryingSizes
from weft.plan.library_plan import plan_library
from weft.plan.planned import PlannedGraph
from weft.plan.regions.attention import with_attentions
from weft.plan.regions.recompute import recompute
from weft.runtime.compiled_graph import CompiledGraph, NativeRegion, unsure_inputs
from weft.runtime.differentiable import DifferentiableExecutable, Forward
from weft.runtime.differentiable_backward import AgainOf, BackwardAgain, BackwardGraph, BackwardOf, Keep, Tangents
from weft.runtime.linked_results import LinkBackward, ResultLinks
from weft.runtime.machine import machine_model
from weft.runtime.path_graph import PathGraph
from weft.runtime.process_memory import keep_freed_memory
from weft.runtime.saved_strides import PYTORCHS, SavedStrides, loose_in
from weft.runtime.varying_gradients import OneBackward, VaryingDifferentiable
from weft.runtime.varying_sizes import SizePlace, VaryingExecutable
from weft.target import host_target
from weft.trace.backward import Derivatives
from weft.trace.decisions import NumberRead
from weft.trace.interception.modes import Autocast
from weft.trace.lift.lift import lift
from weft.trace.python_state.trees import TensorLeaf
from weft.trace.request import Request
from weft.trace.several_traces import trace_program
from weft.trace.traced import Gradient, Traced
from weft.trace.varying import VaryingGradient
from weft.underway import underway

MOST_LIFTED = 6  # values that an operator becomes, on average, where what it hands on says what memory it needs


def trace(request: Request, name: str) -> Traced:
    """Trace code, with what an earlier trace of this name asked PyTorch about operators' results."""
    types = known_types(name)
    traced = trace_program(replace(request, result_types=types))
    keep_types(name, types)
    return traced


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A traced program in machine code: its simplified graph, and what runs it on the graph's inputs.

    `full` says which of its products with weights keep float32 although integers were asked for, and why.
    """

    graph: Graph
    run: CompiledGraph | PathGraph | DifferentiableExecutable | VaryingExecutable
    full: Reasons = ()
    links: ResultLinks | None = None


Keeper = Callable[[Sequence[Any]], Keep]


def compile_traced(
    traced: Traced, lock: RLock, keeper: Keeper, forward_results: int = 0, kept: CompiledSegments | None = None
) -> Compiled:
    """Compile a forward, and its backwards when they are asked for.

    `forward_results`: that many returned tensors end the forward of a step that shall take little memory. `keeper`
    gives what puts tensors of a backward where Python code keeps them. `kept` are the segments of other paths.
    """
    if traced.sizes:
        return _compile_varying(traced, lock, forward_results)
    # A path is cut where its values were recorded, and its segments are simplified.
    simplified = run_pipeline if not traced.decisions else lambda graph: graph
    graph = simplified(traced.graph)
    compile_forward = _compile_forward(traced, kept)
    if traced.gradient is None:
        full: Reasons = ()
        if traced.precision != FULL and not traced.decisions:
            small, weights, known = lift(graph), rarely_changing(traced), calibrated_inputs(traced.inputs)
            full = kept_in_full(small, weights, host_target(), known) if traced.precision == INTEGERS else ()
            graph = run_pipeline(lowered(small, weights, traced.precision, host_target(), known))
        forward = _first_values(graph, traced, forward_results)
        asked = {} if traced.decisions else {"by_clock": config().clock == "on" and traced.precision == FULL}
        return Compiled(graph, compile_forward(graph, rarely_changing(traced), forward=forward, **asked), full)
    gradient = traced.gradient
    if isinstance(gradient, VaryingGradient):
        return _compile_found(traced, gradient, lock, compile_forward)

    whole = _forward(traced, gradient, simplified(gradient.graph))
    backward_of, again_of = _backwards(lambda: gradient.derivatives, lock, keeper)
    run = DifferentiableExecutable(whole, backward_of, compile_forward, again_of)
    links = []
    for number, link in enumerate(gradient.links):
        both = _backwards(partial(gradient.derivatives_of, number), lock, keeper)
        links.append(LinkBackward(link, run.backwards(*both)))
    return Compiled(graph, run, links=ResultLinks(run, links) if links else None)


def _compile_found(traced: Traced, gradient: VaryingGradient, lock: RLock, compile_: Callable[..., Any]) -> Compiled:
    """Compile a path with gradients that finds out sizes: its backward takes them as numbers."""
    if gradient.kept:
        raise UnboundedError("the backward leaves tensors in Python")

    def backward_of(tangents: Tangents, autocast: Autocast = None, link: int | None = None) -> BackwardGraph:
        with lock:  # as in `_backwards`
            found = gradient.backward(tangents, link, autocast)
        return found.graph, gradient.saved_positions(found), found.gradients, None, still_holds(found.read)

    run = OneBackward(_forward(traced, gradient, gradient.graph), backward_of, compile_)
    run.draws = any(effect_of(value) == "random" for value in gradient.graph.values)
    sizes = found_numbers(traced)
    run.replay = _replay_of(gradient, sizes, draws=run.draws)
    return Compiled(traced.graph, run, links=_links_of_sizes(run, gradient, sizes, backward_of))


def _links_of_sizes(
    run: OneBackward, gradient: Gradient, sizes: Collection[Value], backward_of: Callable[..., BackwardGraph]
) -> ResultLinks | None:
    """Give what ties results to those that they are computed from, where sizes vary."""
    found = []
    for number, link in enumerate(gradient.links):
        graph = gradient.link_graph(link)
        again = replay(graph, sizes, map(gradient.laid, gradient.derivatives.constants), len(link.sources))
        known = {*graph.inputs, *graph.values}.issuperset(result.value for result in graph.results)
        known = known and gradient.derivatives.is_of_operators
        runs = run.backwards_of(link.root, partial(backward_of, link=number))
        found.append(LinkBackward(link, runs, (drawing_again(again) if run.draws else again) if known else None))
    return ResultLinks(run, found) if found else None


def _replay_of(
    gradient: Gradient, sizes: Collection[Value], *, draws: bool
) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
    """What computes a forward by operators that autograd sees; behind its inputs is where the generator was.

    Of operators autograd would know no hook and no backward of the user's.
    """
    if not gradient.derivatives.is_of_operators:
        return None
    graph = gradient.graph
    whole = replace(graph, results=graph.results[: len(graph.results) - len(gradient.saved)])
    if reads_what_it_writes(whole):
        return None
    again = replay(whole, sizes, map(gradient.laid, gradient.derivatives.constants))
    return drawing_again(again) if draws else again


def _backwards(derivatives: Callable[[], Derivatives], lock: RLock, keeper: Keeper) -> tuple[BackwardOf, AgainOf]:
    """Give what finds the backwards of a forward, or of a backward that is differentiated, when they are asked for.

    The other side of the lock is a thread that traces this program's forward or another backward; tracing never waits
    for a thread that waits for this lock.
    """

    def backward_of(tangents: Tangents, autocast: Autocast = None) -> BackwardGraph:
        with lock:
            found = derivatives().backward(tangents, autocast)
            places = derivatives().positions(found)
        kept = keeper(found.kept) if found.kept else None
        return run_pipeline(found.graph), places, found.gradients, kept, still_holds(found.read)

    def again_of(tangents: Tangents, asking: frozenset[int]) -> BackwardAgain:
        with lock:
            return _again(derivatives(), tangents, asking, lock, keeper)

    return backward_of, again_of


def _again(
    derivatives: Derivatives, tangents: Tangents, asking: frozenset[int], lock: RLock, keeper: Keeper
) -> BackwardAgain:
    """Give the backward that is differentiated again; callers hold the lock."""
    found = derivatives.again(tangents, asking)
    backward = found.backward
    backward_of, again_of = _backwards(lambda: found.derivatives, lock, keeper)
    return BackwardAgain(
        run_pipeline(backward.graph),
        derivatives.positions(backward),
        backward.gradients,
        backward.handed_on,
        found.carries,
        keeper(backward.kept) if backward.kept else None,
        still_holds(backward.read),
        backward_of,
        again_of,
    )


def _compile_forward(traced: Traced, kept: CompiledSegments | None) -> Callable[..., Any]:
    """Give what compiles the graphs of a program: of a path, the forward in segments."""
    if not traced.decisions:
        return compile_graph
    segments = CompiledSegments() if kept is None else kept
    precision = traced.precision if traced.gradient is None else FULL

    sizes = found_numbers(traced)
    tensors = {entry.value: id(entry.tensor) for entry in traced.inputs}

    def compile_segment(graph: Graph, weights: frozenset[Value], *, trusted: bool) -> CompiledGraph | VaryingExecutable:
        if any(size in sizes for size in graph.inputs):
            places = {size: SizePlace(size, 0, None) for size in sizes}
            return VaryingCompiler(places, compile_graph, precision)(graph, weights, trusted=trusted)
        if precision != FULL:
            graph = run_pipeline(lowered(lift(graph), weights, precision, host_target()))
        return compile_graph(graph, weights, trusted=trusted)

    def compile_(graph: Graph, weights: frozenset[Value], *, trusted: bool = True, **rest: Any) -> Any:
        if not trusted:  # a backward
            if any(size in sizes for size in graph.inputs):
                return compile_segment(graph, weights, trusted=False)
            return compile_graph(graph, weights, trusted=False, **rest)
        lasting = {value: tensors[value] for value in weights}
        return compile_path(graph, traced.decisions, lasting, segments.of(precision), compile_segment)

    return compile_


def _compile_varying(traced: Traced, lock: RLock, forward_results: int) -> Compiled:
    """Compile a program whose sizes vary."""
    compiler = VaryingCompiler.of(traced, compile_graph)
    gradient = traced.gradient
    if gradient is None:
        forward = _first_values(traced.graph, traced, forward_results)
        return Compiled(traced.graph, compiler(traced.graph, rarely_changing(traced), forward=forward))
    if gradient.kept:
        raise UnboundedError("the backward leaves tensors in Python")
    saved = [result.value for result in gradient.graph.results[len(gradient.graph.results) - len(gradient.saved) :]]

    def backward_of(tangents: Tangents, autocast: Autocast = None, link: int | None = None) -> BackwardGraph:
        with lock:  # as in `_backwards`
            found = gradient.backward(tangents, link, autocast)
        positions = gradient.saved_positions(found)
        of = gradient.roots if link is None else [gradient.roots[gradient.links[link].root]]
        roots = [root for root, tangent in zip(of, tangents, strict=True) if tangent is not None]
        compiler.note_backward(found.graph, [saved[place] for place in positions], roots)
        return found.graph, positions, found.gradients, None, still_holds(found.read)

    run = VaryingDifferentiable(_forward(traced, gradient, gradient.graph), backward_of, compiler, compiler.sizes)
    run.draws = any(effect_of(value) == "random" for value in gradient.graph.values)
    sizes = [place.value for place in compiler.sizes]
    run.replay = _replay_of(gradient, sizes, draws=run.draws)
    return Compiled(traced.graph, run, links=_links_of_sizes(run, gradient, sizes, backward_of))


def _forward(traced: Traced, gradient: Gradient, graph: Graph) -> Forward:
    """Give the forward of a program with gradients; `graph` is that of `gradient`."""
    carrying = dict(zip(gradient.roots, gradient.groups or (0,) * len(gradient.roots), strict=True))
    visible = [*(result.value for result in traced.graph.results), *(write.value for write in traced.graph.writes)]
    return Forward(
        graph,
        len(gradient.saved),
        [value in carrying for value in visible],
        gradient.wanted,
        gradient.unreached,
        rarely_changing(traced),
        gradient.own,
        [carrying.get(value, 0) for value in visible],
    )


def compile_graph(  # noqa: PLR0913 - what is known of a graph, by keyword
    graph: Graph,
    weights: frozenset[Value],
    *,
    trusted: bool = True,
    forward: Collection[Value] = (),
    strides: SavedStrides = PYTORCHS,
    varying: VaryingSizes | None = None,
    by_clock: bool = False,
) -> CompiledGraph:
    """Compile a simplified graph: lift and plan it, or find its plan on disk, and generate its machine code.

    With `forward`, the values that end the forward of a step, the backward computes anew what saves memory. With
    `strides`, some tensors have other strides than the graph says. Strides of inputs are checked unless `trusted`.
    `by_clock`: where it is small and PyTorch's operators are faster, these run.
    """
    if config().codegen != "native":
        return CompiledGraph(graph, weights, PlannedGraph(graph, plan_library(graph), ()), (), strides)
    keep_freed_memory()
    underway(f"planning {graph.name}")
    target = host_target()
    machine = Machine(target, cpu_count(), machine_model(target))
    threads = torch.get_num_threads() if by_clock and not forward else 0
    question = Question(strides.with_given(graph), weights, tuple(forward), strides.loose, machine, varying, threads)
    with KernelsAhead(target) as ahead:
        made: list[CompiledGraph] = []

        def compiled(planned: PlannedGraph) -> CompiledGraph:
            underway(f"compiling {graph.name}")
            regions = tuple(
                NativeRegion(
                    region,
                    unsure_inputs(region.region, planned.compiled, trusted=trusted),
                    ahead.take(region.plan),
                )
                for region in planned.regions
            )
            return CompiledGraph(graph, weights, planned, regions, strides)

        def plan(is_new: bool) -> PlannedGraph:
            planned = plan_graph(question, ahead if is_new else None)
            made.append(compiled(planned))
            if threads:
                made.append(_faster(made[0], question, planned))
            return made[-1].planned

        planned = kept_plan(question, plan)
        return made[-1] if made else compiled(planned)


def _faster(kernels: CompiledGraph, question: Question, planned: PlannedGraph) -> CompiledGraph:
    """Give what runs a graph sooner by the clock: its kernels, or PyTorch's operators where it has a few of them."""
    graph, alone = question.graph, kernels.is_one_region
    if not may_be_slower(graph, planned, alone=alone):
        return kernels
    library = PlannedGraph(graph, plan_library(graph), ())
    operators = CompiledGraph(graph, question.weights, library, ())
    seconds = compared(graph, kernels, operators, alone=alone)
    if not operators_are_faster(seconds):
        return kernels
    return CompiledGraph(graph, question.weights, replace(library, clocked=seconds), ())


def plan_graph(question: Question, ahead: KernelsAhead | None) -> PlannedGraph:
    """Lift and plan a graph; with what ends its forward, also with values computed twice, for the lower peak.

    The kernels of a graph that is planned in one way are compiled `ahead`: while they are given lanes and memory.
    """
    graph, forward, machine = question.graph, question.forward, question.machine
    lifted = with_attentions(lift(graph), machine.target)
    loose = loose_in(lifted, graph, question.loose)
    varying = question.varying
    if varying is not None:
        roots = dict(zip(graph.roots(), lifted.roots(), strict=True))
        now, times = {value: roots.get(value, value) for value in varying.dense}, Counter(roots.values())
        varying = replace(
            varying,
            within={roots[value]: within for value, within in varying.within.items()},
            dense={now[value]: strides for value, strides in varying.dense.items() if times[now[value]] <= 1},
        )
    planner = Planner(machine.target, machine.lanes, machine.model, question.weights, loose, varying)
    draft = planner.draft(lifted)
    if ahead is not None and not forward:
        for plan in draft.kernels():
            ahead.begin(plan)
    found = draft.planned() if _is_hidden(graph, lifted) else draft.within(_handed_on(graph))
    if not forward:
        return found
    now = dict(zip(graph.roots(), lifted.roots(), strict=True))
    again = recompute(lifted, [now[value] for value in forward])
    # A copy that is made before its turn, because a lane has time, takes the memory that it was to save.
    return min(found, planner.draft(again.graph, again.copies).planned(FRUGAL), key=lambda one: one.peak_bytes)


def lifted(graph: Graph) -> Graph:
    """Give a simplified graph in small ops, as far as this machine's code computes it."""
    return with_attentions(lift(graph), host_target())


def found_numbers(traced: Traced) -> frozenset[Value]:
    """Give the inputs that are sizes which operators find out, or which are read: those that have a largest one."""
    return frozenset(
        entry.value for entry in traced.numbers if isinstance(entry.later, NumberRead) and entry.later.room
    )


def rarely_changing(traced: Traced) -> frozenset[Value]:
    """Give the inputs that are weights: those that the function reached by itself and does not write."""
    changing = {*(write.input for write in traced.graph.writes), *traced.moving, *traced.replaced}
    return frozenset(entry.value for entry in traced.inputs if entry.argument is None and entry.value not in changing)


def _handed_on(graph: Graph) -> int:
    """Give the bytes that PyTorch's operators hand on at most at once; what they need inside is not known.

    That is 0 of a graph that is lifted already, as those of sizes that vary are.
    """
    return PlannedGraph(graph, plan_library(graph), ()).peak_bytes


def _is_hidden(graph: Graph, lifted: Graph) -> bool:
    """Tell whether a few operators do nearly all inside, as the one that runs all steps of an LSTM."""
    return len(lifted.values) > MOST_LIFTED * len(graph.values)


def _first_values(graph: Graph, traced: Traced, count: int) -> list[Value]:
    return [graph.results[leaf.index].value for leaf in traced.leaves[:count] if isinstance(leaf, TensorLeaf)]
