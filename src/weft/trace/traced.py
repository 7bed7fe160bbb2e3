"""Trace a function to a program: its Graph, what goes in and where it comes from, what comes out."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any

import torch

from weft.errors import InternalError, UnsupportedError
from weft.ir.at_sizes import bind_numbers
from weft.ir.graph import Graph, Place, Result, Value
from weft.ir.library import Call, Operand
from weft.ir.same_graph import same_graph
from weft.trace.backward import Backward, Derivatives, Differentiator, Tangents, Wanted
from weft.trace.counted_index import Spot
from weft.trace.decisions import Decision
from weft.trace.gradient_flags import GradientFlags, changed_flags, made_leaves, refuse_results_of
from weft.trace.interception.capture import TreeSpec, has_symbols
from weft.trace.interception.modes import Autocast
from weft.trace.interception.printed import Printed
from weft.trace.interception.refusals import refuse
from weft.trace.linked_results import Carrying, Link, find_groups, find_links, find_views
from weft.trace.outcome import TracedResult, outcome, written_inputs
from weft.trace.python_state.backward_code import OfCalls
from weft.trace.python_state.caches import Memory
from weft.trace.python_state.containers import MISSING, Touched, identity, look
from weft.trace.python_state.counters import Condition, NumberLeaf, counted_places
from weft.trace.python_state.draws import Draw
from weft.trace.python_state.effects import Change, Former, Kept, Left, OwnNumber, Rebound
from weft.trace.python_state.facts import SIMPLE, content
from weft.trace.python_state.locations import Slot
from weft.trace.python_state.reachable import PythonState, find_state
from weft.trace.python_state.remembered_now import Done, RemembersNowError, drawn, found_out
from weft.trace.python_state.retracing import (
    Noting,
    NotingQueue,
    may_only_grow,
    only_grown,
)
from weft.trace.python_state.tensor_facts import Asked
from weft.trace.python_state.trees import GivenLeaf, TakenApart, TensorLeaf
from weft.trace.request import Around, Request
from weft.trace.size_symbols import TracedSize
from weft.trace.tracer import Trace, TracedInput, TracedNumber, Tracer


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """One traced program. `graph.results` are the returned tensors; `leaves` says where each stands.

    `gradient` is there when a returned tensor carries a gradient. Behind the returned tensors, results that are not
    among `leaves` are kept.
    """

    graph: Graph
    inputs: tuple[TracedInput, ...]
    numbers: tuple[TracedNumber, ...]
    leaves: tuple[Any, ...]
    structure: TreeSpec
    gradient: Gradient | None
    depends_on_offsets: bool
    fixed: frozenset[int]
    kept: tuple[Rebound, ...] = ()  # places that each run gives new tensors; their leaves are as `leaves` are
    touched: Touched = field(default_factory=Touched)  # what Python code changed as it was traced
    moving: frozenset[Value] = frozenset()  # inputs from places that each run gives new tensors
    fixed_places: frozenset[int] = frozenset()  # as `fixed`, of the places that were requested
    conditions: tuple[Condition, ...] = ()  # what must hold of numbers in places
    held: tuple[Slot, ...] = ()  # what HeldLeaf refers to
    made: tuple[tuple[tuple[Any, ...], TreeSpec], ...] = ()  # what MadeLeaf refers to
    asked: tuple[Asked, ...] = ()  # facts of tensors that Python asked for
    around: Around = field(default_factory=Around)
    sizes: tuple[TracedSize, ...] = ()  # that vary
    # That were asked to vary and do not, (argument, dimension), and where the code decides so.
    fixed_sizes: Mapping[tuple[int, int], Place | None] = field(default_factory=dict)
    size_conditions: tuple[Condition, ...] = ()  # what must hold of the sizes
    inference: frozenset[int] = frozenset()  # numbers of results that are inference tensors
    counted_index: frozenset[Spot] = frozenset()  # where code has indexed by counted numbers
    flags: GradientFlags = field(default_factory=GradientFlags)  # what is made to require a gradient, or not to
    data: tuple[tuple[int, TensorLeaf], ...] = ()  # inputs that are given other memory: that of a result
    decisions: tuple[Decision, ...] = ()  # by values: it is one path of several
    printed: Printed = field(default_factory=Printed)
    fixes_fractions: bool = False  # it holds for one value of a fraction that it read
    fixes_sizes: bool = False  # it holds for one value of a whole number that it read
    fixed_strides: frozenset[Value] = frozenset()  # what results are taken of, if its strides are the same at any size
    spent: frozenset[int] = frozenset()  # numbers of results that eager would keep with a graph that a step has used up
    handles: bool = False  # code raises something else where an operator raises
    precision: str = "float32"  # of products, see weft.compile.precision

    @property
    def needs_containers(self) -> bool:
        """Whether a run changes containers among its arguments, or hands some on."""
        leaves = (*self.leaves, *(leaf for entry in self.kept for leaf in entry.leaves))
        inside = (leaf for made, _ in self.made for leaf in made)
        return any(entry.slot.given is not None for entry in self.kept) or any(
            isinstance(leaf, GivenLeaf) for leaf in (*leaves, *inside)
        )

    @property
    def size_places(self) -> dict[Value, tuple[int, int | None]]:
        """Where a run has each size that varies: an input and a dimension of it, or an input that is the size."""
        tensors = {entry.argument: place for place, entry in enumerate(self.inputs)}
        numbers = {entry.argument: place for place, entry in enumerate(self.numbers, len(self.inputs))}
        return {
            entry.value: (tensors[entry.argument], entry.dimension)
            if entry.argument in tensors
            else (numbers[entry.argument], None)
            for entry in self.sizes
        }

    @property
    def replaced(self) -> frozenset[Value]:
        """The inputs that each run gives other memory."""
        return frozenset(self.inputs[number].value for number, _ in self.data)

    def gives(self, slot: Slot) -> bool:
        """Whether each run puts something in this place, whatever was there."""
        return any(
            identity(entry.slot.container) == identity(slot.container) and slot.key in entry.keys
            for entry in self.kept
            if not entry.appends
        )


class Gradient:
    """The differentiable side of a traced program: what the forward saves, and a backward a pattern of tangents.

    `graph` is the forward with new results behind the old ones: the saved values. `roots` are the values that carry
    gradients, in the order of the tangents; `wanted` are the positions of the inputs that ask for gradients, and
    `unreached` of those among them that get none, whatever the tangents: what was detached first, say. `links` are
    roots that are computed from other results.
    """

    def __init__(
        self,
        graph: Graph,
        roots: Sequence[Value],
        wanted: Sequence[int],
        derivatives: Derivatives,
        links: tuple[Link, ...] = (),
    ) -> None:
        self.derivatives = derivatives
        self.links = links
        self.views: Mapping[int, int] = {}  # of which other result a result is a view
        self.groups: tuple[int, ...] = ()  # a number for each root: backwards of different ones may run one by one
        self.roots = tuple(roots)
        self.wanted = tuple(wanted)
        self.saved: tuple[Value, ...] = ()
        self.unreached: tuple[int, ...] = ()
        first = derivatives.first
        if first is None:
            self.graph = _without_unread(graph)
            return
        if any(gradient is not None for gradient in first.gradients):
            pairs = zip(self.wanted, first.gradients, strict=True)
            self.unreached = tuple(position for position, gradient in pairs if gradient is None)
        self.saved, self.graph = _with_saved(graph, first.saved)

    def full_pattern(self) -> Tangents:
        """Every result gets a gradient of its own layout."""
        return self.derivatives.full_pattern()

    @property
    def failure(self) -> Exception | None:
        """What eager raises when the backward runs."""
        return self.derivatives.failure

    @property
    def kept(self) -> tuple[Rebound, ...]:
        """What the backward of all results leaves in Python."""
        return () if self.derivatives.first is None else self.derivatives.first.kept

    def backward(self, tangents: Tangents, link: int | None = None, autocast: Autocast = None) -> Backward:
        """The backward for a pattern of tangents, or that of a link; traced when it is seen first.

        Callers hold the program's lock.
        """
        return self.derivatives_of(link).backward(tangents, autocast)

    @property
    def own(self) -> tuple[int, ...]:
        """Where among the saved values those roots are that are not linked, where some are."""
        linked = {link.root for link in self.links}
        own = {root for place, root in enumerate(self.roots) if place not in linked} if linked else frozenset()
        return tuple(place for place, value in enumerate(self.saved) if value in own)

    def link_graph(self, link: Link) -> Graph:
        """What gives the root of a link, and its sources."""
        values = (self.graph.results[link.result].value, *map(self.laid, link.values))
        return replace(self.graph, results=tuple(map(Result, values)))

    def laid(self, value: Value) -> Value:
        """A value that was traced, as it is in the graph."""
        return value

    def derivatives_of(self, link: int | None) -> Derivatives:
        """All backwards, or those of a link."""
        return self.derivatives if link is None else self.links[link].derivatives

    def saved_positions(self, backward: Backward) -> tuple[int, ...]:
        """Where the values that a backward reads stand among the saved ones."""
        return self.derivatives.positions(backward)


def _with_saved(graph: Graph, saved: tuple[Value, ...]) -> tuple[tuple[Value, ...], Graph]:
    """Add the saved values as results; an input that is written is saved as it was before."""
    written = {write.input for write in graph.writes}
    values = list(graph.values)
    kept: list[Value] = []
    for value in saved:
        if value in written:
            copy = copied(value)
            values.insert(0, copy)
            kept.append(copy)
        else:
            kept.append(value)
    extended = replace(graph, values=tuple(values), results=(*graph.results, *(Result(value) for value in kept)))
    return tuple(kept), _without_unread(extended)


def copied(value: Value) -> Value:
    """A copy of a value in memory of its own."""
    call = Call("aten.clone.default", (Operand(0),))
    return Value("library", (value,), value.type, MappingProxyType({"call": call}))


def traced_with_numbers(request: Request) -> Traced:
    """Trace a program whose numbers may change, but for those that decide something."""
    fixed = trace_settled(replace(request, numbers=frozenset()))
    if request.state.asks_kinds:
        return _all_fixed(fixed, request)
    free, places = request.numbers, tuple(counted_places(fixed.kept))
    written = list[Slot]()  # places whose numbers have decided something
    while free or places:
        try:
            traced = trace_settled(
                replace(request, numbers=free, places=places, state=request.walk(*request.state.roots))
            )
        except (InternalError, MemoryError):
            raise
        except Exception:  # noqa: BLE001 - code that wants a real number; the trace with numbers written in stands
            if not free or not places:
                break
            places = ()
            continue
        more = [slot for slot in counted_places(traced.kept) if not any(map(slot.is_at, (*places, *written)))]
        if more and not traced.fixed_places:
            places += tuple(more)  # what was put there happened to be what had been there
            continue
        if not traced.fixed and not traced.fixed_places:
            if is_same(traced, indexed_alike(traced, fixed, request)):
                return replace(traced, fixed=request.numbers - free)
            if not free or not places:
                break
            places = ()
            continue
        free = free - traced.fixed
        written += [places[number] for number in traced.fixed_places]
        places = tuple(slot for number, slot in enumerate(places) if number not in traced.fixed_places)
    return _all_fixed(fixed, request)


def indexed_alike(traced: Traced, fixed: Traced, request: Request) -> Traced:
    """The program with numbers written in that indexes by counted numbers where another one has found such."""
    if not traced.counted_index:
        return fixed
    state, known = request.walk(*request.state.roots), traced.counted_index
    return trace_settled(replace(request, numbers=frozenset(), state=state, counted_index=known))


def _all_fixed(traced: Traced, request: Request) -> Traced:
    return replace(traced, fixed=request.numbers)


def is_same(free: Traced, fixed: Traced, *, drawn: bool = False) -> bool:
    """Whether a program with free numbers becomes, with today's numbers written in, the one traced with them.

    With `drawn` numbers that were drawn are written in too.
    """
    numbers = numbers_of_both(free, fixed, drawn=drawn)
    pairs = [(free.graph, fixed.graph)]
    if free.gradient is not None and fixed.gradient is not None:
        pairs.append((free.gradient.graph, fixed.gradient.graph))
    return (
        (free.gradient is None) == (fixed.gradient is None)
        and all(same_graph(bind_numbers(left, numbers), bind_numbers(right, numbers)) for left, right in pairs)
        and leave_the_same(free, fixed)
    )


def numbers_of_both(free: Traced, fixed: Traced, *, drawn: bool) -> dict[Value, float]:
    """Today's numbers of two programs: what is free in both has to be written into both."""
    entries = (*free.numbers, *fixed.numbers)
    return {entry.value: entry.number for entry in entries if drawn or not isinstance(entry.later, Draw)}


def leave_the_same(free: Traced, fixed: Traced) -> bool:
    """Whether both leave the same in Python with today's numbers: text that was made of a stand-in is another one.

    Of sizes that vary, today's are the largest.
    """
    numbers = _numbers_of(free), _numbers_of(fixed)
    ours, theirs = ({_place(entry): entry for entry in traced.kept} for traced in (free, fixed))
    if not _are_built_alike(free, fixed) or any(
        ours[place].structure != entry.structure for place, entry in theirs.items() if place in ours
    ):
        return False
    alone = [entry for place, entry in ours.items() if place not in theirs]
    rows = [(free.leaves, fixed.leaves)]
    rows += [(_of_today(ours[place]), _of_today(entry)) for place, entry in theirs.items() if place in ours]
    rows += [(one, other) for (one, _), (other, _) in zip(free.made, fixed.made, strict=True)]
    # A number that happens to be today what has been there is no change without stand-ins.
    rows += [(entry.leaves, (entry.slot.get(),)) for entry in alone if entry.structure.is_leaf()]
    return (
        ours.keys() >= theirs.keys()
        and all(entry.structure.is_leaf() and entry.slot.given is None for entry in alone)
        and all(
            len(left) == len(right) and all(_is_same_leaf(*pair, numbers) for pair in zip(left, right, strict=True))
            for left, right in rows
        )
    )


def _of_today(entry: Rebound) -> tuple[Any, ...]:
    """What a run would put in a place today: plain values that stay where they were are what they are."""
    before = entry.slot.container
    found = [look(before, leaf.place) if type(leaf) is Former else MISSING for leaf in entry.leaves]
    pairs = zip(entry.leaves, found, strict=True)
    return tuple(now if entry.refills and type(now) in SIMPLE else leaf for leaf, now in pairs)


def _numbers_of(traced: Traced) -> list[Any]:
    """The numbers that a run of this trace would have, the sizes behind them."""
    return [*(entry.number for entry in traced.numbers), *(entry.largest for entry in traced.sizes)]


def _are_built_alike(one: Traced, other: Traced) -> bool:
    """Whether what both give nests in the same way, under the same keys, and both print the same."""
    structures = [[traced.structure, *(structure for _, structure in traced.made)] for traced in (one, other)]
    return structures[0] == structures[1] and one.printed.texts == other.printed.texts


def _place(entry: Rebound) -> Any:
    slot = entry.slot
    return (slot.given, identity(slot.container), entry.appends, entry.refills, slot.key)


def _is_same_leaf(free: Any, fixed: Any, numbers: tuple[Sequence[Any], Sequence[Any]]) -> bool:
    pairs = zip((free, fixed), numbers, strict=True)
    one, other = (leaf.value(own) if isinstance(leaf, NumberLeaf) else leaf for leaf, own in pairs)
    return content(one) == content(other) or (type(one) is type(other) and one == other)


def trace_settled(request: Request) -> Traced:
    """Trace a program; where it appends to lists, once more, to see whether it looks at what is in them."""
    traced = traced_once(request)
    everything = (*traced.kept, *(traced.gradient.kept if traced.gradient is not None else ()))
    lists = [entry.slot.container for entry in everything if entry.appends and may_only_grow(entry.slot.container)]
    if lists:
        again = partial(_is_traced_again, request, traced.graph)
        for grown in only_grown(lists, request.state, again):
            traced.touched.grow(grown)
    return traced


def _is_traced_again(request: Request, graph: Graph) -> bool:
    """Whether tracing gives the same program again, and none of the lists that note what is done with them."""
    traced = traced_once(replace(request, state=request.walk(*request.state.roots)))
    return same_graph(traced.graph, graph) and not any(
        isinstance(leaf, (Noting, NotingQueue)) for leaf in traced.leaves
    )


def _run(tracer: Tracer, kept: Kept, earlier: RemembersNowError | None) -> tuple[Trace, list[Change], Left]:
    """Run the function on stand-ins, and put back what it has changed, which is given."""
    request, before, missed = tracer.request, drawn(), list[Memory]()
    is_refused = False
    try:
        trace = tracer.run()
        missed = [] if before != drawn() else found_out(kept.memories)
    except UnsupportedError:
        is_refused = True
        raise
    finally:
        changes = kept.take_back(request.state)
        left = kept.put_back(find_state(*request.state.roots))
        error = None if missed and not kept.registered else kept.of_first_call()
        if is_refused and error is not None:
            raise error from None  # what is refused may be what a function does once
    done = Done.of(len(tracer.recorder.values), tracer.printed.texts, changes)
    if earlier is not None and earlier.done != done:
        error = earlier.forget()
    elif error is None and missed:
        raise RemembersNowError(missed, done)
    if error is not None:
        raise error
    return trace, changes, left


def traced_once(request: Request) -> Traced:
    """Trace a program, with what it leaves in Python put back; again where functions remember something since."""
    earlier: RemembersNowError | None = None
    while True:
        try:
            return _traced_once(request, earlier)
        except RemembersNowError as found:
            earlier = found.behind(earlier)
            if earlier.is_last:
                raise earlier.forget() from None
            request = replace(request, state=request.walk(*request.state.roots))
        except BaseException:
            if earlier is not None:
                earlier.forget()
            raise


def _traced_once(request: Request, earlier: RemembersNowError | None) -> Traced:
    gc.collect(0)  # what is among the youngest objects later, the code has made
    request.sized.begin()
    tracer = Tracer(request)
    kept = Kept(request.state)
    trace, changes, left = _run(tracer, kept, earlier)
    real = _known_things(trace)
    left.check(real, tracer.constant)
    changes += tracer.copies.changes()
    apart = TakenApart([tracer.result, *(change.after for change in changes)], request.state, tracer.copies.numbers)
    tracer.give(apart)
    settled = (change.settled(real, apart) for change in changes)
    rebound = [found for found in settled if found is not None]
    touched = _touched_by(kept, request, rebound)
    put = [leaf for entry in rebound for leaf in entry.leaves]
    everything = [
        *trace.leaves,
        *map(tracer.number_leaf, (*put, *(leaf for leaves, _ in apart.made for leaf in leaves))),
    ]
    replaced = tracer.replaced_memory()
    first_replaced = len(everything)
    everything += [tensor for _, tensor in replaced]
    tracer.check(everything)
    made = made_leaves(trace.inputs, everything)
    described, writes = outcome(tracer.recorder, everything)
    for number, _ in made:
        described[number] = _without_gradient(described[number])
    if not request.keeps_gradients:
        described[len(trace.leaves) :] = map(_without_gradient, described[len(trace.leaves) :])
    results, leaves = _numbered(described, everything)
    graph = Graph(request.name, _inputs(trace), tuple(trace.values), tuple(results), tuple(writes))
    roots = _differentiable(described, tracer)
    flags = _flags(tracer, made, list(roots.values()), leaves)
    gradient = None
    if roots:
        of_forward = Touched()
        of_forward.merge(touched)
        tracer.of_calls = OfCalls(of_forward, (*apart.parts, *tracer.copies.copies))
        found = _carrying(leaves, described, everything)
        gradient, touched_later = _gradient(tracer, graph, roots, found)
        touched.merge(touched_later)
    traced = Traced(
        _without_unread(graph),
        tuple(trace.inputs),
        tuple(trace.numbers),
        tuple(leaves[: len(trace.leaves)]),
        trace.structure,
        gradient,
        trace.depends_on_offsets,
        frozenset(tracer.relied_on()),
        _with_leaves(rebound, leaves[len(trace.leaves) :]),
        touched,
        _moving(trace, request.state, touched),
        frozenset(tracer.places_of_one_value()),
        tracer.conditions(),
        tuple(apart.held),
        _made(apart, leaves[len(trace.leaves) + len(put) :]),
        tracer.facts.asked,
        request.around,
        tuple(trace.sizes),
        tracer.sizes.fixed(),
        tracer.sizes.conditions(request.name),
        _of_inference(leaves, everything),
        tracer.counted_index,
        flags,
        tuple((number, leaf) for (number, _), leaf in zip(replaced, leaves[first_replaced:], strict=True)),
        decisions=() if tracer.reads is None else tracer.reads.decisions(),
        printed=tracer.printed,
        fixes_fractions=tracer.reads is not None and tracer.reads.fixes_fractions(),
        fixes_sizes=tracer.reads is not None and tracer.reads.fixes_sizes(),
        handles=tracer.handles,
        spent=_spent(request, leaves[len(trace.leaves) :], everything[len(trace.leaves) :]),
        fixed_strides=_of_fixed_strides(described) if trace.sizes else frozenset(),
    )
    tracer.let_go(entirely=gradient is None)
    return traced


def _touched_by(kept: Kept, request: Request, rebound: Sequence[Rebound]) -> Touched:
    """What the code changed as it was traced, and where each run puts things."""
    touched = kept.touched()
    for slot in request.places:
        touched.give(slot.container, frozenset({slot.key}))
        touched.take_number(slot.container, slot.key)
    for entry in rebound:
        if entry.slot.given is None:
            touched.give(entry.slot.container, entry.keys)
    return touched


def _carrying(leaves: Sequence[Any], described: Sequence[Any], tensors: Sequence[Any]) -> list[Carrying]:
    """The results that carry gradients and are not given."""
    found = {
        leaf.index: Carrying(leaf.index, tensor, entry.root, entry.result.path)
        for leaf, entry, tensor in zip(leaves, described, tensors, strict=True)
        if isinstance(leaf, TensorLeaf) and entry.requires_grad and tensor.grad_fn is not None
        if entry.root is not None or entry.result.path
    }
    return list(found.values())


def _gradient(
    tracer: Tracer, graph: Graph, roots: Mapping[Value, torch.Tensor], results: Sequence[Carrying]
) -> tuple[Gradient, Touched]:
    """The differentiable side, and what its backwards leave tensors in."""
    inputs = tracer.trace.inputs
    wanted = [index for index, entry in enumerate(inputs) if entry.leaf.requires_grad]
    given = [(inputs[index].leaf, inputs[index].tensor) for index in wanted]
    leaves = [Wanted(leaf, tensor if tensor.requires_grad else None) for leaf, tensor in given]
    differentiator = Differentiator(tracer, list(roots.values()), leaves)
    derivatives = Derivatives(differentiator)
    links = find_links(tracer, results, list(roots.values()), wanted, derivatives)
    if links:
        linked = {link.root for link in links}
        own = {value: root for place, (value, root) in enumerate(roots.items()) if place not in linked}
        differentiator.own = [own[value] for value in derivatives.saved if value in own]
    gradient = Gradient(graph, list(roots), wanted, derivatives, links)
    gradient.views = find_views(results)
    if len(roots) > 1 and not graph.writes:
        gradient.groups = find_groups(list(roots.values()))
    return gradient, differentiator.touched


def _flags(
    tracer: Tracer, made: Sequence[tuple[int, torch.Tensor]], roots: Sequence[torch.Tensor], leaves: Sequence[Any]
) -> GradientFlags:
    """What the code has made to require a gradient, or not to: inputs, and results that are leaves."""
    for _, leaf in made:
        refuse_results_of(leaf, roots, tracer.recorder.value_of(leaf).place)
    found = (leaves[number] for number, _ in made)
    results = tuple(leaf.index for leaf in found if isinstance(leaf, TensorLeaf))
    return GradientFlags(changed_flags(tracer.trace.inputs), results)


def _known_things(trace: Trace) -> dict[int, Any]:
    """By the identity of each stand-in what it stands for: a tensor, or the number in a place."""
    numbers = [entry for entry in trace.numbers if entry.slot is not None]
    return {
        **{id(entry.stand_in): entry.tensor for entry in trace.inputs},
        **{
            id(entry.stand_in): OwnNumber(identity(entry.slot.container), entry.slot.key)
            for entry in numbers
            if entry.slot
        },
    }


def _inputs(trace: Trace) -> tuple[Value, ...]:
    """What goes in: tensors, numbers, and sizes that vary."""
    rows: tuple[Sequence[Any], ...] = (trace.inputs, trace.numbers, trace.sizes)
    return tuple(entry.value for row in rows for entry in row)


def _moving(trace: Trace, state: PythonState, touched: Touched) -> frozenset[Value]:
    own = (entry for entry in trace.inputs if entry.argument is None)
    return frozenset(entry.value for entry in own if state.slot(entry.tensor).moves(touched))


def _of_fixed_strides(described: Sequence[Any]) -> frozenset[Value]:
    """What results are taken of that has sizes which vary, and strides which do not: it is a part of something."""
    found = [(leaf.result.value, leaf.root) for leaf in described if isinstance(leaf, TracedResult)]
    return frozenset(value for value, root in found if root is not None and not has_symbols(tuple(root.stride())))


def _numbered(described: Sequence[Any], tensors: Sequence[Any]) -> tuple[list[Result], list[Any]]:
    """The results, each tensor once, and the leaves, which name results by number."""
    positions: dict[int, int] = {}
    results: list[Result] = []
    leaves: list[Any] = []
    for leaf, tensor in zip(described, tensors, strict=True):
        if not isinstance(leaf, TracedResult):
            leaves.append(leaf)
            continue
        if id(tensor) not in positions:
            positions[id(tensor)] = len(results)
            results.append(leaf.result)
        leaves.append(TensorLeaf(positions[id(tensor)], leaf.requires_grad))
    return results, leaves


def _of_inference(leaves: Sequence[Any], tensors: Sequence[Any]) -> frozenset[int]:
    """The numbers of results that eager would mark as inference tensors."""
    pairs = zip(leaves, tensors, strict=True)
    return frozenset(leaf.index for leaf, tensor in pairs if isinstance(leaf, TensorLeaf) and tensor.is_inference())


def _spent(request: Request, leaves: Sequence[Any], tensors: Sequence[Any]) -> frozenset[int]:
    """The numbers of kept results that carry a gradient to a graph that would be used up in eager."""
    if request.keeps_gradients:
        return frozenset()
    pairs = zip(leaves, tensors, strict=True)
    return frozenset(leaf.index for leaf, tensor in pairs if isinstance(leaf, TensorLeaf) and tensor.requires_grad)


def _without_gradient(leaf: Any) -> Any:
    return replace(leaf, requires_grad=False, root=None) if isinstance(leaf, TracedResult) else leaf


def _with_leaves(rebound: Sequence[Rebound], leaves: Sequence[Any]) -> tuple[Rebound, ...]:
    waiting = iter(leaves)
    return tuple(entry.described(islice(waiting, len(entry.leaves))) for entry in rebound)


def _made(apart: TakenApart, leaves: Sequence[Any]) -> tuple[tuple[tuple[Any, ...], TreeSpec], ...]:
    waiting = iter(leaves)
    return tuple((tuple(islice(waiting, len(inside))), structure) for inside, structure in apart.made)


def _without_unread(graph: Graph) -> Graph:
    """Leave out states of the random generator that nothing goes back to."""
    read = {operand for value in graph.values for operand in value.operands} | set(graph.roots())
    values = tuple(value for value in graph.values if value.op != "random_state" or value in read)
    return replace(graph, values=values)


def _differentiable(described: list[Any], tracer: Tracer) -> dict[Value, torch.Tensor]:
    """The values that carry gradients out of the program, with the stand-ins to differentiate."""
    roots: dict[Value, torch.Tensor] = {}
    for leaf in described:
        if isinstance(leaf, TracedResult) and leaf.root is not None and leaf.root.requires_grad:
            roots[leaf.result.value] = leaf.root
    for state in written_inputs(list(tracer.recorder.memories.values())):
        if state.tensor.requires_grad and state.tensor.grad_fn is not None:
            if state.prefix:
                refuse("aliased write with gradient", None)
            roots[state.memory.base] = state.tensor
    return roots
