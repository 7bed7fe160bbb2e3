"""Keep the programs that run for a range of sizes: when one is made, for which sizes, and which calls it takes.

The first signature is traced with its numbers. When a call differs from an earlier one in nothing but sizes, those that
differ become extents, and a program is made for all sizes up to a power of two beyond them. Its kernels end where a
call does; where they do not, smaller sizes get a program of their own once that has cost as much as making it. Where
there is no such program (values decide, tensors are kept, sizes decide between ways) paths read the sizes. What has
none of both (operators without a rule, sizes of 0 and 1, sizes that Python makes numbers of) goes on by exact programs.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import log2, prod
from time import perf_counter
from typing import Any

import torch

from weft.api.declared_sizes import NONE_DECLARED, CallSizes
from weft.api.pace import Pace
from weft.api.size_range import SMALLEST, Shapes, SizeRange, Sizes, Ties, order_in
from weft.api.sized_calls import SizedCalls
from weft.api.tops import (
    close_top,
    far_top,
    largest_sizes,
    lowered,
    multiples,
    next_top,
    sizes_at,
    top_of,
)
from weft.errors import InternalError, UnsupportedError, WeftError, source_line
from weft.guards.guarded import Guarded
from weft.ir.graph import Place
from weft.ir.types import order_of
from weft.programs.program import Program
from weft.trace.interception.refusals import FirstCallError
from weft.trace.interception.user_lines import user_stack_level
from weft.trace.python_state.counters import Condition
from weft.trace.several_traces import FixedSizesError
from weft.trace.signature import Key, number_of, without_sizes
from weft.trace.size_symbols import AskedSizes
from weft.trace.size_ties import Group, SizeSpot, SizeTie, shape_of, tied
from weft.trace.traced import Traced

logger = logging.getLogger("weft")

MOST_AHEAD = 2  # times the next power of two: the largest size of what grows by one at each call
LEAST_AHEAD = 256
LEAST_SHARE = 0.4  # of what a program computes for a call; one that needs less is not run by it
ENOUGH_SHARE = 0.75  # a call that needs so much wastes nothing that a program of smaller sizes would save
MOST_HALVINGS = 4  # of what a program computes, of calls whose pace is one of their own
MOST_LEFT = 8  # calls that a program did not end, from which on they may be too many
MOST_PROGRAMS = 16  # of one kind of call
MOST_REFUSED = 3  # times that there was none for some sizes, from which on none is tried
MOST_SEEN = 8  # calls that are looked at for which sizes are the same
MOST_SIZES = 4096  # of which it is remembered whether a program takes them
Small = frozenset[tuple[int, int, int]]  # sizes of a call that vary, and are 0 or 1: argument, dimension, size
Leaves = Sequence[Any] | Mapping[int, Any]  # all of a call, or those that vary
Make = Callable[[Shapes, AskedSizes], tuple[Traced, Guarded[Program] | None]]


@dataclass(frozen=True, slots=True, eq=False)
class SizeRequest:
    """A call that wants a program for a range of sizes: what makes one, and what users say of its sizes.

    With `is_close` there is one, and the new one is to waste less. Where values may decide, `decides`, and no program
    takes all sizes, paths read them. `fixed` are numbers that a program takes as sizes if at all.
    """

    make: Make
    complete: Callable[[Program], None]  # with its backward, which only those have that are kept
    arguments: Sequence[str]  # what the leaves are called
    declared: CallSizes = NONE_DECLARED
    is_close: bool = False
    decides: bool = False
    fixed: frozenset[int] = frozenset()


class RaisesAtTheLargestError(UnsupportedError):
    """The code raises at the largest sizes that a program was to have; `is_long`: it loops too often there."""

    is_long = False


@dataclass(slots=True, eq=False)
class VaryingProgram:
    """A program for a range of sizes, with what a call must be like to run it."""

    guarded: Guarded[Program]
    range: SizeRange
    places: tuple[SizeSpot, ...]  # argument and dimension of each size
    conditions: tuple[Condition, ...]
    names: Mapping[SizeSpot, str]  # of sizes that users have named
    kind: _Kind  # of calls
    cost: float = 0.0  # seconds that it took to be made
    wasted: dict[tuple[int, ...], float] = field(default_factory=dict)  # seconds, by the sizes that would have sufficed
    left: int = 0  # calls that it did not end, as values decided otherwise
    _known: dict[tuple[int, ...], bool] = field(default_factory=dict)
    _shares: dict[tuple[int, ...], float] = field(default_factory=dict)
    _paces: dict[int, Pace] = field(default_factory=dict)
    calls: SizedCalls = field(init=False)

    def __post_init__(self) -> None:
        self.calls = SizedCalls(self.guarded, self.range.varying, self)

    @property
    def volume(self) -> int:
        """How large its sizes are, compared with other programs of the kind."""
        return prod(self.range.tops[argument][dimension] for argument, dimension in self.places)

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Whether a call of this kind has sizes that the program takes."""
        return self.range.takes(leaves) and self._holds_of(self._sizes(leaves))

    def takes_sizes(self, leaves: Mapping[int, Any]) -> bool:
        """Whether calls of sizes that have not come before run this program, and none of smaller ones."""
        first = next((one for one in self.kind.programs if one._may_take(leaves)), None)
        return first is self and not self.is_too_large(leaves)

    def _may_take(self, leaves: Mapping[int, Any]) -> bool:
        """Whether it takes such sizes, as far as these leaves tell."""
        if not leaves.keys() >= self.range.varying.keys():
            return True
        return self.range.takes_sizes(leaves) and self._holds_of(self._sizes(leaves))

    def bucket_of(self, leaves: Mapping[int, Any]) -> tuple[int, ...]:
        """The largest sizes of a program of their own."""
        return self._enough(leaves)

    def _holds_of(self, sizes: tuple[int, ...]) -> bool:
        found = self._known.get(sizes)
        if found is None:
            if len(self._known) >= MOST_SIZES:
                self._known.clear()
            found = self._known[sizes] = all(condition.holds(sizes) for condition in self.conditions)
        return found

    def describe(self, arguments: Sequence[str]) -> str:
        """Say which sizes it takes; `arguments` are the names of the leaves."""
        return self.range.describe(arguments, self.names)

    def is_worth_less(self, leaves: Leaves) -> bool:
        """Whether what calls of such sizes wasted would have paid for a program of smaller ones."""
        return self.wasted.get(self._enough(leaves), 0.0) > self.cost

    def is_too_large(self, leaves: Leaves) -> bool:
        """Whether a call needs so little of what the program computes for it that Python had better run it."""
        return self._share(self._enough(leaves)) < LEAST_SHARE

    def ends_with_calls(self, shapes: Shapes) -> bool:
        """Whether it takes calls of such sizes, as far as it does, hardly longer than one for less would."""
        if self.guarded.program.is_spread:
            return False
        tops = self.range.tops
        sizes = tuple(min(shapes[place][at], tops[place][at]) for place, at in self.places)
        return self._share(tuple(map(close_top, sizes))) >= ENOUGH_SHARE

    @contextmanager
    def running(self, leaves: Sequence[Any], seconds: float = 0.0) -> Iterator[None]:
        """Note what a call, and others before it, take beyond what its sizes need: all of it where Python runs it."""
        begin = perf_counter() - seconds
        yield
        self.calls.count += 1
        enough = self._enough(leaves)
        share = 0.0 if self.is_too_large(leaves) else self._share(enough)
        if share < ENOUGH_SHARE:
            self.wasted[enough] = self.wasted.get(enough, 0.0) + (1 - share) * (perf_counter() - begin)

    def work(self, leaves: Sequence[Any]) -> float:
        """How much a call has to compute, compared with others."""
        return float(self.guarded.program.work_for(self._sizes(leaves)))

    def pace_of(self, leaves: Sequence[Any]) -> Pace:
        """The pace of calls that need about as much of what the program computes as this one does."""
        work = self.guarded.program.work_for
        part = work(self._sizes(leaves)) / work(sizes_at(self.places, self.range.tops))
        halvings = min(round(-log2(part)), MOST_HALVINGS)
        pace = self._paces.get(halvings)
        if pace is None:
            pace = self._paces.setdefault(halvings, Pace(with_gradients=False, warm=2))
        return pace

    def _share(self, sizes: tuple[int, ...]) -> float:
        """How much of what the program computes for these sizes they need."""
        found = self._shares.get(sizes)
        if found is None:
            tops = sizes_at(self.places, self.range.tops)
            found = self._shares[sizes] = self.guarded.program.share_for(sizes, tops)
        return found

    def _enough(self, leaves: Leaves) -> tuple[int, ...]:
        return tuple(map(close_top, self._sizes(leaves)))

    def _sizes(self, leaves: Leaves) -> tuple[int, ...]:
        return tuple([shape_of(leaves[argument])[dimension] for argument, dimension in self.places])


@dataclass(slots=True, eq=False)
class _Kind:
    """What is known of calls that differ in nothing but sizes."""

    seen: list[Shapes]  # of calls for which there was no program
    largest: dict[int, tuple[int, ...]] = field(default_factory=dict)  # of calls that wait for a program
    varying: Sizes = field(default_factory=dict)
    fixed: dict[Small, set[SizeSpot]] = field(default_factory=dict)  # what holds of no elements need not hold of many
    refused: set[Small] = field(default_factory=set)
    times_refused: int = 0
    programs: tuple[VaryingProgram, ...] = ()  # the smallest first
    ranges: tuple[SizeRange, ...] = ()  # of paths that read sizes, the smallest first
    reads: bool = False  # values decide now so, now otherwise: only paths take calls of many sizes
    is_refused: bool = False
    is_far: bool = True  # programs take sizes well beyond those that have come, which costs little
    grows: bool = True  # sizes that are one more than in the call before will be so again, and it costs little

    def small(self, shapes: Shapes) -> Small:
        """The sizes of a call of which a program has numbers, although they vary."""
        spots = ((place, at, shapes[place][at]) for place, some in self.varying.items() for at in some)
        return frozenset(spot for spot in spots if spot[-1] < SMALLEST)

    def largest_beside(self, shapes: Shapes, varying: Sizes) -> Shapes:
        """The sizes of a call, where they vary the largest ones of all calls that have come: one program is for all."""
        others: list[Shapes] = [self.largest, *(self.seen if not self.programs else ())]

        def size(place: int, at: int) -> int:
            if at not in varying.get(place, ()):
                return shapes[place][at]
            return max((shapes[place][at], *(other[place][at] for other in others if place in other)))

        return {place: tuple(size(place, at) for at in range(len(shape))) for place, shape in shapes.items()}

    def tops_for(
        self, call: _SizedCall, varying: Sizes, related: tuple[Sequence[Group], Ties], ahead: Mapping[Group, int]
    ) -> Shapes:
        """The largest sizes of a new program for a call."""
        declared, shapes = call.request.declared, call.shapes
        most = {group: top for group in related[0] if (top := declared.most(group)) is not None}
        if call.request.is_close:
            return largest_sizes(shapes, related, top_of(close_top, ahead, {}, most))
        pick = top_of(far_top if self.is_far else next_top, ahead, self.tops_beside(shapes, related[0]), most)
        return largest_sizes(self.largest_beside(shapes, varying), related, pick)

    def tops_beside(self, shapes: Shapes, groups: Sequence[Group]) -> dict[Group, int]:
        """The largest sizes of programs that end where calls do: one that takes more takes as much of the others."""
        endings = [one.range.tops for one in self.programs if one.ends_with_calls(shapes)]
        return {group: max((tops[place][at] for tops in endings for place, at in group), default=0) for group in groups}

    def growing(self, groups: Sequence[Group]) -> dict[Group, int]:
        """Sizes that have been one more than in the call before, with a largest size that will do for long."""
        if not self.grows or len(self.seen) < 2:
            return {}
        before, now = self.seen[-2:]
        changes = {group: now[group[0][0]][group[0][1]] - before[group[0][0]][group[0][1]] for group in groups}
        if not {*changes.values()} <= {0, 1}:
            return {}  # one that is larger by one beside others of any size is so by chance
        grown = ((group, now[group[0][0]][group[0][1]]) for group, change in changes.items() if change)
        return {group: max(MOST_AHEAD * next_top(size), LEAST_AHEAD) for group, size in grown}


@dataclass(frozen=True, slots=True, eq=False)
class RangeOf:
    """A range of sizes that paths read, among others of the same kind of calls."""

    kind: _Kind
    range: SizeRange

    def takes_sizes(self, leaves: Mapping[int, Any]) -> bool:
        """Whether paths of this range run calls of such sizes: no program does, and no range of smaller ones."""
        if any(one._may_take(leaves) for one in self.kind.programs):
            return False
        ranges = (one for one in self.kind.ranges if not leaves.keys() >= one.varying.keys() or one.takes_sizes(leaves))
        return next(ranges, None) is self.range

    def bucket_of(self, leaves: Mapping[int, Any]) -> None:
        """All sizes of a range are like each other: there are no paths for fewer of them."""


@dataclass(frozen=True, slots=True, eq=False)
class _SizedCall:
    """A call with the shapes of its arguments; `numbers` are arguments that vary and are no tensors."""

    leaves: Sequence[Any]
    shapes: Shapes
    numbers: Collection[int]
    request: SizeRequest
    small: Small


class VaryingPrograms:
    """The programs of one object that run for a range of sizes; any thread may find one, one at a time learns."""

    def __init__(self) -> None:
        self._kinds: dict[Key, _Kind] = {}
        self._known: dict[Key, VaryingProgram] = {}  # the smallest program of a signature
        self._ranges: dict[Key, tuple[_Kind, SizeRange, Small]] = {}  # of paths, by the signature that calls share
        self.refusals: list[str] = []
        self.fixed: list[str] = []  # sizes that the code makes a number of, and where

    def with_structures(self) -> Iterator[tuple[Any, VaryingProgram]]:
        """The programs, each with how the arguments of its calls nest."""
        return iter([(key[0], program) for key, kind in [*self._kinds.items()] for program in kind.programs])

    def __iter__(self) -> Iterator[VaryingProgram]:
        return iter([program for kind in [*self._kinds.values()] for program in kind.programs])

    def find(self, key: Key, leaves: Sequence[Any]) -> VaryingProgram | None:
        """The smallest program that takes a call."""
        known = self._known.get(key)
        if known is not None and known.guarded.holds(leaves):
            return known
        kind = self._kinds.get(without_numbers(key)) if self._kinds else None
        for program in kind.programs if kind is not None else ():
            if program.fits(leaves) and program.guarded.holds(leaves):
                if len(self._known) >= MOST_SIZES:
                    self._known.clear()
                self._known[key] = program
                return program
        return None

    def learn(self, key: Key, leaves: Sequence[Any], request: SizeRequest) -> VaryingProgram | None:
        """Note a call for which there is no program; make one that takes it and others, where sizes vary."""
        kind, shapes = self._noted(key, leaves, request.declared)
        small = kind.small(shapes)
        if kind.is_refused or small in kind.refused or len(kind.programs) >= MOST_PROGRAMS:
            return None
        if any(one.takes(leaves) for one in kind.ranges):  # its own programs do not hold now: there is none for many
            return None
        varying = _large(_without(kind.varying, kind.fixed.get(small, set()) | request.declared.fixed), shapes)
        numbers = {place for place in varying if not isinstance(leaves[place], torch.Tensor)}
        is_decided = not numbers.issuperset(varying) or numbers & request.fixed
        if not (varying and is_decided and all(_is_plain(leaves[place]) for place in varying.keys() - numbers)):
            return None
        call = _SizedCall(leaves, shapes, numbers, request, small)
        reason = None
        # Of what is declared, sizes are first taken to be what was said, then to be one where they were equal so far.
        ways = [(apart, True) for apart in ((request.declared.separate, {}) if request.declared.free else ({},))]
        if not kind.reads and _related(kind.seen, varying, numbers, {})[1].keys() - {(place, 0) for place in numbers}:
            ways.append(({}, False))  # one size made of another, as 9 is 7 + 2, may be so by chance
        for apart, is_tied in ways:
            try:
                found = None if kind.reads else self._learn_with(kind, call, varying, apart, is_tied=is_tied)
            except (InternalError, MemoryError, FirstCallError):
                raise  # a mistake of Weft's, a machine that is full, and a first call are no matter of sizes
            except WeftError as error:  # paths read them, or exact programs go on
                reason = error.why or error.fact
                continue
            if found is not None:
                return self._if_it_runs(kind, found, leaves)
            break
        may_read = request.decides and len(kind.seen) > 1
        if not (may_read and self._add_range(key, kind, call, varying)) and reason is not None:
            self._refuse(kind, reason, small)
        return None

    def _add_range(self, key: Key, kind: _Kind, call: _SizedCall, varying: Sizes) -> bool:
        """Let paths read the sizes of calls like this one; whether they do. Numbers they do not read."""
        sized = _without(varying, kind.fixed.get(call.small, set()))
        varying = {place: some for place, some in sized.items() if place not in call.numbers}
        if not varying or len(kind.ranges) >= MOST_PROGRAMS:
            return False
        related = _related(kind.seen, varying, (), {})
        ahead = kind.growing(related[0])
        tops = largest_sizes(kind.largest_beside(call.shapes, varying), related, top_of(next_top, ahead, {}, {}))
        found = _range_of(call, tops, varying, related)
        if not found.takes(call.leaves):
            return False
        kind.ranges = tuple(sorted((*kind.ranges, found), key=lambda one: one.volume))
        self._ranges[found.key_of(key)] = kind, found, call.small
        return True

    def shared_key(self, key: Key, leaves: Sequence[Any]) -> Key:
        """The signature that a call shares with others whose sizes its paths read; else its own."""
        kind = self._kinds.get(without_numbers(key)) if self._ranges else None
        if kind is None or not kind.ranges:
            return key
        if any(program.fits(leaves) for program in kind.programs):
            return key
        found = next((one for one in kind.ranges if one.takes(leaves)), None)
        if found is None:
            return key
        shared = found.key_of(key)
        if shared not in self._ranges:  # calls with another number among their arguments
            shapes = {place: shape_of(leaves[place]) for place in kind.varying}
            self._ranges[shared] = kind, found, kind.small(shapes)
        return shared

    def range_of(self, key: Key) -> SizeRange | None:
        """The sizes that paths of a signature read."""
        found = self._ranges.get(key)
        return None if found is None else found[1]

    def sized_calls(self, read: SizeRange, guarded: Guarded[Program]) -> SizedCalls | None:
        """The calls of a path that reads sizes in a range; None where it does not see all of them."""
        kind = next(kind for kind, found, _ in self._ranges.values() if found is read)
        calls = SizedCalls(guarded, read.varying, RangeOf(kind, read))
        return calls if calls.is_complete else None

    def drop_range(self, key: Key, error: WeftError, name: str) -> bool:
        """Forget a signature that calls of many sizes share, as paths cannot read these; whether it was such."""
        found = self._ranges.pop(key, None)
        if found is None:
            return False
        kind, dropped, small = found
        kind.ranges = tuple(one for one in kind.ranges if one is not dropped)
        if isinstance(error, FixedSizesError):
            groups = [*dropped.alike, *((spot,) for spot in error.spots)]
            fixed = {spot for group in groups if {*group} & {*error.spots} for spot in group}
            kind.fixed.setdefault(small, set()).update(fixed)
        else:
            is_mistake = isinstance(error, InternalError)
            self._refuse(kind, error.fact if is_mistake else error.why or error.fact, small)
            if is_mistake:
                warnings.warn(f"weft: {name} has no paths for its sizes: {error}", stacklevel=user_stack_level())
        return True

    def _learn_with(
        self, kind: _Kind, call: _SizedCall, varying: Sizes, apart: Mapping[SizeSpot, str], *, is_tied: bool
    ) -> VaryingProgram | None:
        """Make a program in which sizes are told apart as is declared, and others as they have been in calls."""
        request, shapes, names = call.request, call.shapes, call.request.declared.names
        lower: Shapes | None = None
        while varying:
            begin, (groups, ties) = perf_counter(), _related(kind.seen, varying, call.numbers, apart, is_tied=is_tied)
            ahead = {} if request.is_close or lower else kind.growing(groups)
            is_far = kind.is_far and not (request.is_close or lower)
            tops = lower or kind.tops_for(call, varying, (groups, ties), ahead)
            named = {spot: names[known] for group in groups for known in group if known in names for spot in group}
            try:
                traced, guarded = request.make(tops, AskedSizes(varying, ties, named))
            except RaisesAtTheLargestError as error:  # windows of 7 are no part of 64
                if is_far:
                    kind.is_far = False
                    continue
                kind.grows &= not (is_long := error.is_long and bool(ahead))
                lower = None if is_long or lower else multiples(kind.seen, tops, groups, ties)
                if not is_long and lower in (None, tops):
                    raise
                continue
            places = tuple((entry.argument, entry.dimension) for entry in traced.sizes)
            if guarded is not None:
                found, conditions = _range_of(call, tops, varying, (groups, ties)), traced.size_conditions
                program = VaryingProgram(guarded, found, places, conditions, named, kind)
                if (ahead and program.is_too_large(call.leaves)) or (is_far and not program.ends_with_calls(shapes)):
                    kind.grows = kind.is_far = False
                    continue
                return self._kept(kind, program, request, begin)
            if not traced.fixed_sizes:
                lower = None if lower else lowered(traced, tops, shapes, (groups, ties))
                if lower is None:
                    raise _decided(traced, sizes_at(places, shapes))
                continue
            fixed = {place for group in groups if {*group} & traced.fixed_sizes.keys() for place in group}
            for spot, place in traced.fixed_sizes.items() if not call.small else ():
                self._note_fixed(spot, place, request)
            if len(kind.seen) > 1:  # else another size, of which nobody has spoken yet, may go with it
                kind.fixed.setdefault(call.small, set()).update(fixed)
            varying = _without(varying, fixed)
        return None

    def _kept(self, kind: _Kind, program: VaryingProgram, request: SizeRequest, begin: float) -> VaryingProgram:
        """Make the rest of a program that one has begun to make, and keep it."""
        request.complete(program.guarded.program)
        program.cost = perf_counter() - begin
        logger.info("weft: one program for %s", program.describe(request.arguments))
        kind.programs = tuple(sorted((*kind.programs, program), key=lambda one: one.volume))
        self._known.clear()
        return program

    def _note_fixed(self, spot: SizeSpot, place: Place | None, request: SizeRequest) -> None:
        """Note for whoever asks which size does not vary, and what made it a number."""
        name = request.declared.names.get(spot)
        where = f"dim {spot[1]} of {request.arguments[spot[0]]}"
        sentence = f"{name} ({where})" if name is not None else where
        sentence += f" does not vary: the code makes it a number{_line(place)}"
        if sentence not in self.fixed:
            self.fixed.append(sentence)
            logger.info("weft: %s", sentence)

    def _if_it_runs(self, kind: _Kind, program: VaryingProgram, leaves: Sequence[Any]) -> VaryingProgram | None:
        """A new program, if it runs for the call that it was made for.

        It was traced with tensors of its own. What code asked of these (where they begin in memory, whether they are
        views, what is put on them) need not hold of the call's.
        """
        changed = program.guarded.miss(leaves) if program.fits(leaves) else None
        if changed is not None:
            self._refuse(kind, changed)
        return program if changed is None and program.fits(leaves) else None

    def note(self, key: Key, leaves: Sequence[Any]) -> None:
        """Note a call that Python runs until a program is worth what it costs: one that takes all such calls."""
        kind, shapes = self._noted(key, leaves)
        for place, shape in shapes.items():
            kind.largest[place] = tuple(map(max, shape, kind.largest.get(place, shape)))

    def _noted(self, key: Key, leaves: Sequence[Any], declared: CallSizes = NONE_DECLARED) -> tuple[_Kind, Shapes]:
        shapes = {place: shape_of(leaf) for place, leaf in enumerate(leaves) if _has_size(leaf, key[1][place])}
        kind = self._kinds.setdefault(without_numbers(key), _Kind([]))
        kind.seen = [*kind.seen[-MOST_SEEN:], shapes]
        kind.varying = _with(_differing(kind, shapes), declared.free)
        return kind, shapes

    def is_given_up(self, key: Key) -> bool:
        """Whether no more programs are made for calls of this kind, whatever their sizes."""
        kind = self._kinds.get(without_numbers(key))
        return kind is not None and kind.is_refused

    def give_up(self, key: Key) -> None:
        """Make no more programs for calls of this kind, whatever their sizes."""
        self._kinds[without_numbers(key)].is_refused = True

    def note_left(self, key: Key, program: VaryingProgram) -> None:
        """Note a call that a program was left at; forget one that most calls leave, as values decide otherwise."""
        program.left += 1
        if program.left < max(MOST_LEFT, program.calls.count) or not program.guarded.program.expects:
            return
        kind = self._kinds[without_numbers(key)]
        kind.programs = tuple(one for one in kind.programs if one is not program)
        self._known.clear()
        kind.reads = True

    def _refuse(self, kind: _Kind, reason: str, small: Small = frozenset()) -> None:
        if len(kind.seen) == 1:
            return  # what was declared is not all that varies: the next call tells more
        kind.times_refused += 1
        # What sizes of one window decide says nothing of many windows.
        is_of_some = bool(small or kind.programs or kind.ranges)
        if small or not is_of_some:
            kind.refused.add(small)
        kind.is_refused = not is_of_some or kind.times_refused >= MOST_REFUSED
        where = f" where one is {min(size for *_, size in small)}" if small else ""
        sentence = f"sizes do not vary{where}: {reason}"
        self.refusals.append(sentence)
        logger.info("weft: %s", sentence)


def _range_of(call: _SizedCall, tops: Shapes, varying: Sizes, related: tuple[Sequence[Group], Ties]) -> SizeRange:
    groups, ties = related
    alike = tuple(group for group in groups if len(group) > 1)
    orders = {place: order for place in varying if (order := _order(call.leaves[place])) is not None}
    return SizeRange(tops, _strides(call.leaves, varying), varying, alike, ties, orders)


def _order(leaf: Any) -> tuple[int, ...] | None:
    """In which order the dimensions of a tensor without gaps lie in memory."""
    return order_of(tuple(leaf.shape), leaf.stride()) if isinstance(leaf, torch.Tensor) else None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor of other sizes can stand for it: of no class of its own, without gaps."""
    is_usual = type(tensor) is torch.Tensor and not (tensor.is_neg() or tensor.is_conj())
    return is_usual and _order(tensor) is not None


def _differing(kind: _Kind, shapes: Shapes) -> Sizes:
    """The sizes that have varied, now too."""
    found = dict(kind.varying)
    for place, first in kind.seen[0].items():
        differ = {at for at, (one, other) in enumerate(zip(first, shapes[place], strict=True)) if one != other}
        found[place] = found.get(place, frozenset()) | differ
    return found


def _large(varying: Sizes, shapes: Shapes) -> Sizes:
    """Those of the dimensions that are not of size 0 or 1 in a call."""
    found = {place: frozenset(at for at in some if shapes[place][at] >= SMALLEST) for place, some in varying.items()}
    return {place: some for place, some in found.items() if some}


def _with(varying: Sizes, more: Collection[SizeSpot]) -> Sizes:
    found = dict(varying)
    for place, at in more:
        found[place] = found.get(place, frozenset()) | {at}
    return found


def _without(varying: Sizes, fixed: Collection[SizeSpot]) -> Sizes:
    found = {place: frozenset(at for at in some if (place, at) not in fixed) for place, some in varying.items()}
    return {place: some for place, some in found.items() if some}


def _has_size(leaf: Any, key: Key) -> bool:
    """Whether an argument is a tensor, or a whole number that may be a size."""
    return isinstance(leaf, torch.Tensor) or (type(leaf) is int and number_of(key) is not None)


def without_numbers(key: Key) -> Key:
    """A signature without sizes, and without whole numbers, which may be some; with the order of dimensions."""
    structure, leaves, *others = without_sizes(key)
    return (
        structure,
        tuple((int,) if leaf[0] is int and number_of(leaf) is not None else leaf for leaf in leaves),
        tuple(map(order_in, (leaf for leaf in key[1] if leaf[0] is torch.Tensor))),
        *others,
    )


def _strides(leaves: Sequence[Any], varying: Sizes) -> dict[int, tuple[int, ...]]:
    """How the tensors lie in memory of which no size varies."""
    tensors = ((place, leaf) for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    return {place: leaf.stride() for place, leaf in tensors if place not in varying}


def _related(
    seen: Sequence[Shapes],
    varying: Sizes,
    numbers: Collection[int],
    apart: Mapping[SizeSpot, str],
    *,
    is_tied: bool = True,
) -> tuple[list[Group], dict[SizeSpot, SizeTie]]:
    """The sizes by which all others can be expressed, and these others; without ties those that are the same alone."""
    histories = _histories(seen, varying, numbers, apart)
    free = {group for group in histories if not is_tied or len(seen) == 1 or any(spot in apart for spot in group)}
    groups, ties = tied(histories, free)
    ties |= {spot: SizeTie(group[:1], 0) for group in groups for spot in group[1:] if spot[0] in numbers}
    return [tuple(spot for spot in group if spot not in ties) for group in groups], ties


def _histories(
    seen: Sequence[Shapes], varying: Sizes, numbers: Collection[int], apart: Mapping[SizeSpot, str]
) -> dict[Group, Sequence[int]]:
    """The sizes that vary, together where they are declared as one or have been the same in every call, with these.

    Of those that are the same, the size of a tensor comes before a number.
    """
    spots = [(place, at) for place in varying for at in varying[place]]
    found: dict[tuple[str | None, tuple[int, ...]], list[SizeSpot]] = {}
    name_of: dict[tuple[int, ...], str] = {}  # by what a size was
    for spot in sorted(spots, key=lambda spot: (spot not in apart, spot[0] in numbers, spot)):
        place, at = spot
        history = tuple(shapes[place][at] for shapes in seen)
        name = apart[spot] if spot in apart else name_of.get(history) if len(seen) > 1 else None
        if name is not None:
            name_of.setdefault(history, name)
        found.setdefault((name, history), []).append(spot)
    return {tuple(group): history for (_, history), group in found.items()}


def zeros_of(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of another shape that carries gradients as one does."""
    with torch.inference_mode(False), torch.enable_grad():
        order = _order(tensor)
        assert order is not None  # as `_is_plain` has found
        found = torch.empty_permuted(shape, order, dtype=tensor.dtype, device=tensor.device).zero_()
        found.requires_grad_(tensor.requires_grad)
        return found if tensor.is_leaf else found.clone()


def _decided(traced: Traced, sizes: Sequence[int]) -> UnsupportedError:
    """What to say where the code decides otherwise for these sizes."""
    broken = [entry.text + _line(entry.place) for entry in traced.size_conditions if not entry.holds(sizes)]
    why = "the code decides by what they are: " + ", ".join(dict.fromkeys(broken))
    return UnsupportedError("sizes do not vary", why=why)


def _line(place: Place | None) -> str:
    return "" if place is None else f" ({source_line(place.filename, place.line)})"
