"""Choose the largest sizes of a program for a range of sizes: powers of two, so that a handful of programs take all.

Kernels end where a call does: a program for more costs hardly more for few. So the first one takes sizes well beyond
those that have come, and whoever does more comes to the next one late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import gcd

from weft.api.size_range import Shapes, Ties
from weft.trace.size_ties import Group, SizeSpot
from weft.trace.traced import Traced

LEAST_TOP = 16  # the sizes of the smallest program
FAR = 2  # times what has come, at least, a program takes whose kernels end where calls do
LARGEST = 2**62  # where no largest size is promised


def next_top(size: int) -> int:
    """The power of two for sizes up to one."""
    found = LEAST_TOP
    while found < size:
        found *= 2
    return found


def far_top(size: int) -> int:
    """The power of two for sizes well beyond one."""
    return next_top(FAR * size)


def close_top(size: int) -> int:
    """The next of four sizes between one power of two and the next."""
    top = next_top(size)
    return next(found for found in (top * 5 // 8, top * 6 // 8, top * 7 // 8, top) if found >= size)


def tops_between(least: int, most: int) -> list[int]:
    """Give the largest sizes that programs of sizes between two may have, the largest first: 64, 56, 48, 40, 32, ..."""
    found = [most]
    while found[-1] > max(least, LEAST_TOP):
        found.append(next(size for size in range(found[-1] - 1, 0, -1) if close_top(size) == size or size <= least))
    return found


def top_of(
    pick: Callable[[int], int],
    ahead: Mapping[Group, int],
    least: Mapping[Group, int],
    most: Mapping[Group, int],
) -> Callable[[Group, int], int]:
    """What gives the largest size of a program for one of a call: no larger than what is promised."""
    return lambda group, size: min(max(ahead.get(group) or pick(size), least.get(group, 0)), most.get(group, LARGEST))


def largest_sizes(shapes: Shapes, related: tuple[Sequence[Group], Ties], pick: Callable[[Group, int], int]) -> Shapes:
    """The largest sizes of a program: powers of two, so that a handful of programs take all sizes.

    Sizes that vary apart have different ones: equal ones would be taken for one size. Smaller sizes have smaller ones,
    as operators ask for that: places are no more than there are elements, a kernel is no larger than an image.
    """
    tops: dict[SizeSpot, int] = {}
    groups, ties = related
    for group in sorted(groups, key=lambda group: max(shapes[place][at] for place, at in group)):
        top = pick(group, max(shapes[place][at] for place, at in group))
        while top in tops.values():
            top += LEAST_TOP // 2
        tops |= dict.fromkeys(group, top)
    return with_sizes(shapes, tops, ties)


def with_sizes(shapes: Shapes, sizes: Mapping[SizeSpot, int], ties: Ties) -> Shapes:
    """The shapes with other sizes, and those that are made of them."""

    def size_of(spot: SizeSpot) -> int:
        place, at = spot
        if spot in ties:
            return int(ties[spot].size(size_of))
        return sizes.get(spot, shapes[place][at])

    return {place: tuple(size_of((place, at)) for at in range(len(shape))) for place, shape in shapes.items()}


def lowered(traced: Traced, tops: Shapes, shapes: Shapes, related: tuple[Sequence[Group], Ties]) -> Shapes | None:
    """Largest sizes by which the code decides as by those of a call, no two the same: that would be one size."""
    (groups, ties), places = related, [(entry.argument, entry.dimension) for entry in traced.sizes]
    now, tried = sizes_at(places, shapes), [*sizes_at(places, tops)]
    wanted = [condition.holds(now) for condition in traced.size_conditions]

    def as_wanted(number: int, top: int) -> int:
        sizes = (*tried[:number], top, *tried[number + 1 :])
        return sum(entry.holds(sizes) is one for entry, one in zip(traced.size_conditions, wanted, strict=True))

    for number, least in enumerate(now):
        others = {*tried[:number], *tried[number + 1 :]}
        tops_there = [top for top in range(tried[number], least - 1, -1) if top not in others]
        tried[number] = max(tops_there, key=partial(as_wanted, number), default=tried[number])
    if [condition.holds(tried) for condition in traced.size_conditions] != wanted:
        return None
    found = {spot: top for place, top in zip(places, tried, strict=True) for spot in group_of(place, groups)}
    return with_sizes(tops, found, ties)


def multiples(seen: Sequence[Shapes], tops: Shapes, groups: Sequence[Group], ties: Ties) -> Shapes:
    """Largest sizes that are multiples of what sizes have been multiples of in all calls; no two the same."""
    found: dict[SizeSpot, int] = {}
    for group in groups:
        place, at = group[0]
        common = max(gcd(*(shapes[place][at] for shapes in seen for place, at in group)), 1)
        top = tops[place][at] // common * common
        while top in found.values():
            top += common
        found |= dict.fromkeys(group, top)
    return with_sizes(tops, found, ties)


def group_of(place: SizeSpot, groups: Sequence[Group]) -> Group:
    """The sizes that are always the same as one."""
    return next(group for group in groups if place in group)


def sizes_at(places: Sequence[SizeSpot], shapes: Shapes) -> tuple[int, ...]:
    """The sizes in some places."""
    return tuple(shapes[argument][dimension] for argument, dimension in places)
