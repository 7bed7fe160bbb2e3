"""Trace code as often as it takes to know what of it may vary: numbers, what is drawn, read from tensors, found out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any

from weft.errors import InternalError, UnsupportedError, first_line_of
from weft.ir.at_sizes import found_sizes
from weft.ir.graph import Place
from weft.trace.decisions import ComputedNumber, FoundSize, NumberRead, decides_exactly
from weft.trace.found_layout import with_found_sizes
from weft.trace.interception.refusals import refuse
from weft.trace.python_state.draws import Draw
from weft.trace.python_state.impurity import without_draws, without_impure_calls
from weft.trace.python_state.retracing import Effects, refuse_restless
from weft.trace.request import Request
from weft.trace.size_ties import SizeSpot
from weft.trace.traced import Traced, indexed_alike, is_same, trace_settled, traced_once, traced_with_numbers
from weft.trace.varying import OtherOperatorsError

logger = logging.getLogger("weft.trace")
MOST_ROOMS = 6  # that are tried


class FixedSizesError(UnsupportedError):
    """The code makes numbers of sizes that a path was to read."""

    def __init__(self, name: str, spots: Mapping[SizeSpot, Place | None]) -> None:
        super().__init__(f"the sizes of {name} do not vary", why="the code makes numbers of them")
        self.spots = spots


def trace_program(request: Request) -> Traced:
    """Run a function once on stand-ins and describe it as a program.

    Numbers that may change are traced as such only if the program is the same for today's values as when they are
    written into it; those that decided something are written in (`Traced.fixed` names them).
    """
    run = _drawing_nothing if request.draws else _with_reads
    traced = copy_context().run(run, request)  # a context variable that held nothing cannot be emptied again
    traced.printed.show()
    return traced


def _drawing_nothing(request: Request) -> Traced:
    """Refuse programs that no other call could run: what they ask for, or count, is another thing each time."""
    state = request.state
    traced = without_impure_calls(state, partial(without_draws, state.sources, partial(_with_draws, request)))
    if traced.kept:
        numbers = [entry.number for entry in traced.numbers]
        effects = Effects(traced.kept, numbers)
        refuse_restless(effects, traced.touched, request.state, partial(_next, request), partial(_next, request))
    return traced


def _next(request: Request) -> Effects:
    """What a call would leave in Python now, where everything is as it would be then."""
    found = traced_once(replace(request, numbers=frozenset(), places=(), state=request.walk(*request.state.roots)))
    return Effects(found.kept, [entry.number for entry in found.numbers])


def _with_draws(request: Request) -> Traced:
    """Refuse a program that is another one when what Python draws is written into it: code looks at what it is."""
    traced = _with_reads(request)
    drawn = [(entry.later, entry.number) for entry in traced.numbers if isinstance(entry.later, Draw)]
    if drawn:
        numbers = tuple(number for _, number in drawn)
        state, indexed = request.walk(*request.state.roots), traced.counted_index
        written = replace(request, numbers=frozenset(), draws_written=numbers, state=state, counted_index=indexed)
        if request.state.asks_kinds or not _is_same_program(traced, trace_settled(written)):
            refuse("python draw", drawn[0][0].place)
    return traced


def _with_reads(request: Request) -> Traced:
    """Trace a program; numbers that it reads from tensors flow on, where that makes no other program of it.

    So do sizes that operators find out.
    """
    fixed = traced_with_numbers(request)
    if fixed.decisions and fixed.flags.inputs:
        refuse("gradient flag", None)  # a path that is left for another one must have changed nothing
    flows = any(map(decides_exactly, fixed.decisions)) and not request.state.asks_kinds
    if request.sizes_read is not None:
        try:
            found = _of_all_sizes(request, fixed)
        except UnsupportedError:
            if request.sized.learns():  # it was compared with a trace that runs other functions
                return _with_reads(replace(request, state=request.walk(*request.state.roots)))
            raise
    else:
        found = _flowing(request, fixed) if flows else fixed
    if found.fixes_fractions:
        refuse("number", next((decision.place for decision in fixed.decisions if decides_exactly(decision)), None))
    # What the trace was told are tensors of this call, which go.
    return replace(found, decisions=tuple(replace(decision, real=()) for decision in found.decisions))


def _of_all_sizes(request: Request, fixed: Traced) -> Traced:
    """The path that reads sizes of arguments; FixedSizesError where it holds for one number of some."""
    again = replace(request, reads=True, decided=fixed.decisions)
    try:
        free = _with_room(again)
        if free.fixed_sizes:
            raise FixedSizesError(request.name, free.fixed_sizes)
        return with_found_sizes(free, _beside(free, fixed, again))
    except (InternalError, UnsupportedError, MemoryError):
        raise
    except Exception as error:
        why = f"with sizes that vary the code raises {first_line_of(error)}"
        raise UnsupportedError(f"the sizes of {request.name} do not vary", why=why) from error


def _flowing(request: Request, fixed: Traced) -> Traced:
    """The program in which most of what is read, or found out, is not written in."""
    again = replace(request, reads=True, decided=fixed.decisions)
    finds = any(isinstance(decision.ask, FoundSize) for decision in fixed.decisions)
    best = None
    if not (finds and request.finds_sizes):
        best = _read_freely(replace(again, finds_sizes=False), fixed)
        if not request.finds_sizes or (best is not None and not best.fixes_sizes):
            return best or fixed
    try:
        free = _with_room(again)
        found = with_found_sizes(free, _beside(free, fixed, again))
        return best if best is not None and found.fixes_sizes else found
    except (InternalError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - sizes that do not vary, or code that wants a real number
        logger.info("weft: sizes that %s finds out stay numbers: %s", request.name, error)
        return best or _read_freely(replace(again, finds_sizes=False), fixed) or fixed


def _read_freely(request: Request, fixed: Traced) -> Traced | None:
    """The program in which numbers flow on, if it is the same as with them written in."""
    try:
        free = traced_with_numbers(replace(request, state=request.walk(*request.state.roots)))
    except (InternalError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - code that wants a real number; the trace with numbers written in stands
        logger.info("weft: what %s reads stays as it is read: %s", request.name, error)
        return None
    return free if is_same(free, _beside(free, fixed, request)) else None


def _beside(free: Traced, fixed: Traced, request: Request) -> Traced:
    """The program of this call's numbers that indexes as the one in which numbers flow on."""
    return indexed_alike(free, fixed, replace(request, reads=False, finds_sizes=False))


def _with_room(request: Request) -> Traced:
    """The program in which sizes are symbols; at the largest ones, code decides as it does in this call."""
    for _ in range(MOST_ROOMS):
        free = traced_with_numbers(replace(request, state=request.walk(*request.state.roots)))
        plain, rooms = _no_sizes(free), smaller_rooms(free)
        if plain:  # rooms are of sizes: what code decides by numbers alone holds for these
            request = replace(request, plain=request.plain | plain)
        elif rooms:
            request = replace(request, rooms={**request.rooms, **rooms})
        else:
            return free
    raise OtherOperatorsError


def _no_sizes(traced: Traced) -> frozenset[int]:
    """The decisions that read what might be a size, and is none of what is computed."""
    sizes = {*found_sizes(traced.graph)}
    return frozenset(
        at
        for at, decision in enumerate(traced.decisions)
        if decision.read is not None
        and decision.read.room
        and not isinstance(decision.ask, FoundSize)
        and traced.numbers[decision.read.number].value not in sizes
    )


def smaller_rooms(traced: Traced) -> dict[int, int]:
    """How large sizes may become, by number, where at the largest the code would decide otherwise.

    All are found at once, as another trace costs much: each makes one smaller until every condition holds.
    """
    reads = [decision.read for decision in traced.decisions if decision.read is not None]
    now = [entry.number for entry in traced.numbers]
    rooms: dict[int, int] = {}
    while (smaller := _smaller_room(reads, now, rooms)) is not None:
        rooms.update([smaller])
    return rooms


def _smaller_room(reads: list[NumberRead], now: list[Any], rooms: Mapping[int, int]) -> tuple[int, int] | None:
    """A size for which a condition does not hold at the largest ones, and the largest for which it does."""
    largest = _largest(reads, now, rooms)
    sized: list[NumberRead | ComputedNumber] = [read for read in reads if read.room]
    sized += [made for read in reads for made in read.computed if made.room]
    for read in reads:
        for condition in read.conditions:
            if condition in read.inside or condition.holds(largest):
                continue
            places = [place for place in condition.test.places if largest[place] != now[place]]
            sizes = [one for one in sized if one.number in places]
            if not sizes:
                raise OtherOperatorsError
            number = sizes[-1].number
            low, high = int(now[number]), int(largest[number])  # it holds at the first
            while high - low > 1:
                middle = (low + high) // 2
                tried = [*largest[:number], middle, *largest[number + 1 :]]
                low, high = (middle, high) if condition.holds(tried) else (low, middle)
            return number, low
    return None


def _largest(reads: list[NumberRead], now: list[Any], rooms: Mapping[int, int]) -> list[Any]:
    """All numbers where sizes are the largest, and no larger than these."""
    largest = list(now)
    for read in reads:
        if read.room:
            largest[read.number] = rooms.get(read.number, read.room)
        for made in read.computed:
            number, found = made.number, made.leaf.value(largest)
            if made.room:
                found = max(min(found, rooms.get(number, made.room)), now[number]) if rooms else made.room
            largest[number] = found
    return largest


def _is_same_program(traced: Traced, written: Traced) -> bool:
    """Whether a program is the one with what was drawn written in."""
    if not any(isinstance(decision.ask, FoundSize) and decision.read for decision in traced.decisions):
        return is_same(traced, written, drawn=True)
    try:
        with_found_sizes(traced, written, drawn=True)
    except OtherOperatorsError:
        return False
    return True
