"""Check a finished plan by brute force: an InternalError lists all that is wrong with it.

Brute force, for tests and for looking for mistakes: every pair of runs that touch the same bytes is looked at. What
must hold, however fast or slow the lanes are:

- every tile of every call runs once, and no lanes wait for each other in a circle;
- every intermediate lies inside the arena;
- two runs that touch the same bytes of a buffer, one of them writing, are ordered by the waits as their calls are;
- two intermediates that share bytes of the arena are never in use at the same time, and neither are they if the calls
  run one after another;
- calls have the strides and counts that their kernels ask for, of arguments that are dense; what is dense is touched by
  kernels alone that can ask for them, and no input that is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from weft.errors import InternalError, counted
from weft.plan.form.dependencies import Order, lanes_of, order_of
from weft.plan.form.plan import Plan, Run, Wait
from weft.plan.kernels.kernel import ByteBox
from weft.plan.memory.arena import ALIGNMENT

Place = tuple[int, int]  # a run: its lane, and its position there
MOST_SHOWN = 20


def check_plan(plan: Plan) -> None:
    """Raise an InternalError that lists every problem of a plan with lanes and offsets."""
    problems = [*_tile_problems(plan), *_offset_problems(plan), *_dense_problems(plan)]
    known = range(len(plan.calls))
    lanes = tuple(
        tuple(item for item in lane if isinstance(item, Wait) or item.call in known) for lane in lanes_of(plan)
    )
    try:
        order = order_of(lanes)
    except InternalError as error:
        problems.append(str(error))
    else:
        problems += [*_order_problems(plan, order), *_sharing_problems(plan, order)]
    if problems:
        shown = problems[:MOST_SHOWN]
        rest = [f"and {len(problems) - len(shown)} more"] if len(problems) > len(shown) else []
        raise InternalError(f"a plan has {counted(len(problems), 'problem')}", why="\n".join([*shown, *rest]))


def _tile_problems(plan: Plan) -> Iterator[str]:
    ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
    shares: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for lane in lanes_of(plan):
        for item in lane:
            if isinstance(item, Wait):
                continue
            if item.share is None:
                ranges[item.call].append((item.begin, item.end))
            else:
                shares[item.call, item.begin, item.end].append(item.share)
    for (number, begin, end), those in shares.items():
        ranges[number].append((begin, end))
        _, of = those[0]
        if sorted(those) != [(place, of) for place in range(of)]:
            yield f"call {number} runs the shares {sorted(those)} of tiles [{begin}, {end})"
    for number in sorted(set(ranges) - set(range(len(plan.calls)))):
        yield f"call {number} is run, but there is no such call"
    for number, call in enumerate(plan.calls):
        done, count = 0, call.kernel.tile_count
        for begin, end in sorted(ranges[number]):
            if begin != done or end <= begin:
                yield f"call {number} runs tiles [{begin}, {end}) where tile {done} is next"
            done = max(done, end)
        if done != count:
            yield f"call {number} has {count} tiles, of which {done} are run"


def _offset_problems(plan: Plan) -> Iterator[str]:
    arena = list(plan.of_kind("arena"))
    if len(plan.offsets) != len(arena):
        yield f"there are {len(arena)} intermediates, but {len(plan.offsets)} offsets"
        return
    for number, buffer in arena:
        offset = plan.offsets[buffer.index]
        used = any(place.buffer == number for call in plan.calls for place in call.arguments)
        if offset < 0 or (used and offset + buffer.bytes > plan.arena_bytes):
            yield f"buffer {number} at {offset} with {buffer.bytes} bytes is outside the arena of {plan.arena_bytes}"
        if offset % ALIGNMENT:
            yield f"buffer {number} at {offset} does not begin at a cache line"
    for number, call in enumerate(plan.calls):
        for place, found in zip(call.arguments, _boxes(plan, number, 0, call.kernel.tile_count), strict=True):
            if found is not None and not 0 <= found.low <= found.high <= plan.buffers[place.buffer].bytes:
                yield f"call {number} touches bytes up to {found.high} of buffer {place.buffer}, beyond its end"


def _dense_problems(plan: Plan) -> Iterator[str]:
    for number, call in enumerate(plan.calls):
        pitches, bounds = getattr(call.kernel, "pitches", None), getattr(call.kernel, "bounds", ())
        if (len(pitches or ()), len(bounds)) != (len(call.pitches), len(call.bounds)):
            yield f"call {number} is not given the strides and counts that its kernel asks for"
        dense = [at for at, place in enumerate(call.arguments) if place.buffer in plan.dense]
        if dense and pitches is None:
            yield f"call {number} touches dense buffers, of which its kind of kernel knows nothing"
        if not {argument for argument, _ in (*(pitches or ()), *bounds)} <= {*dense}:
            yield f"call {number} is given strides or counts of what is not dense"
        held = {size for pitch in call.pitches for size in pitch.sizes} | {bound.size for bound in call.bounds}
        if any(plan.buffers[size].kind != "input" for size in held):
            yield f"call {number} is given sizes that no input holds"
        for place in call.writes:
            if place.buffer in plan.dense and plan.buffers[place.buffer].kind == "input":
                yield f"call {number} writes to an input that is dense"
    for call in (*plan.packing, *plan.checks):
        if any(place.buffer in plan.dense for place in call.arguments):
            yield "what runs before all calls touches a buffer that is dense"
    if not {*plan.dense} <= {*plan.tight}:
        yield "a buffer is dense, but not tight"


def _order_problems(plan: Plan, order: Order) -> Iterator[str]:
    written = {place.buffer for call in plan.calls for place in call.writes}
    touches: dict[int, list[tuple[Place, Run, ByteBox | None, bool]]] = defaultdict(list)
    for lane, runs in enumerate(order.runs):
        for position, run in enumerate(runs):
            call = plan.calls[run.call]
            found = _boxes(plan, run.call, run.begin, run.end)
            for argument, (place, one) in enumerate(zip(call.arguments, found, strict=True)):
                if place.buffer in written:
                    touches[place.buffer].append(((lane, position), run, one, argument < len(call.writes)))
    for buffer, those in sorted(touches.items()):
        for (early, first, its_box, writes), (late, second, other_box, also) in combinations(those, 2):
            if first.call == second.call or not (writes or also):
                continue
            ordered = order.before(early, late) if first.call < second.call else order.before(late, early)
            if not ordered and overlap(its_box, other_box):
                calls = " and ".join(map(str, sorted((first.call, second.call))))
                yield f"calls {calls} touch the same bytes of buffer {buffer}, but nothing orders them"


def _sharing_problems(plan: Plan, order: Order) -> Iterator[str]:
    if len(plan.offsets) != len(list(plan.of_kind("arena"))):
        return
    runs_of = order.of_calls(len(plan.calls))
    users: dict[int, list[tuple[int, Place]]] = defaultdict(list)
    for number, call in enumerate(plan.calls):
        for buffer in {place.buffer for place in call.arguments}:
            users[buffer] += [(number, run) for run in runs_of[number]]
    spans = {
        number: (plan.offsets[buffer.index], plan.offsets[buffer.index] + buffer.bytes)
        for number, buffer in plan.of_kind("arena")
        if buffer.bytes and users[number]
    }

    def before(one: int, other: int) -> bool:
        pairs = product(users[one], users[other])
        return all(first < second and order.before(early, late) for (first, early), (second, late) in pairs)

    for (one, first), (other, second) in combinations(spans.items(), 2):
        if first[0] < second[1] and second[0] < first[1] and not before(one, other) and not before(other, one):
            yield f"buffers {one} and {other} share bytes of the arena and may be in use at the same time"


def _boxes(plan: Plan, number: int, begin: int, end: int) -> tuple[ByteBox | None, ...]:
    call = plan.calls[number]
    if not begin < end <= call.kernel.tile_count:
        return (None,) * len(call.arguments)
    found = call.kernel.boxes(begin, end)
    return tuple(one.moved(place.offset) if one else None for one, place in zip(found, call.arguments, strict=True))


def overlap(one: ByteBox | None, other: ByteBox | None) -> bool:
    """Tell whether two boxes share a byte, by looking at every item of both; None is everywhere."""
    if one is None or other is None:
        return True
    if one.high <= other.low or other.high <= one.low:
        return False
    starts, others = _starts(one), _starts(other)
    # The last item of the other box that begins before an item of this one ends must end before this one begins.
    last = np.searchsorted(others, starts + one.item, side="left") - 1
    return bool(((last >= 0) & (others[last] + other.item > starts)).any())


def _starts(found: ByteBox) -> NDArray[np.int64]:
    starts = np.array([found.low], np.int64)
    for stride, count in found.steps:
        starts = (starts[:, None] + stride * np.arange(count)).ravel()
    return np.sort(starts)
