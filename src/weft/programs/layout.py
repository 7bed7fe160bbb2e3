"""Place boxes in layers from top to bottom, with few crossings, long arrows led around boxes.

Four steps, each deterministic: give every box a layer; let an arrow that passes a layer take a place of its own in it;
order each layer by the mean place of what its boxes are connected to; then move boxes as near as possible to what they
are connected to (least squares under the order, solved exactly a layer at a time).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

GAP_ACROSS = 18.0
GAP_DOWN = 34.0
GAP_BETWEEN = 40.0
NARROWEST_ROW = 800.0
PASSAGE = 6.0  # the width that an arrow takes in a layer it passes
ORDERING_ROUNDS = 24
MOVING_ROUNDS = 60
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class DrawnBox:
    """A box to place. A `light` one that no arrow leads to (a parameter) goes next to what reads it, not to the top."""

    width: float
    height: float
    light: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The middle of every box, the points that every arrow goes through, and the size of everything."""

    centres: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]
    width: float
    height: float


@dataclass(slots=True)
class _Node:
    """A box, or a place where an arrow passes a layer."""

    rank: int
    width: float
    height: float
    above: list[tuple[int, float]] = field(default_factory=list)
    below: list[tuple[int, float]] = field(default_factory=list)
    x: float = 0.0


def lay_out(boxes: Sequence[DrawnBox], arrows: Sequence[tuple[int, int]]) -> Layout:
    """Place boxes; an arrow goes from a box to one later in the list.

    What is connected is placed together: the largest such part first, the others in rows below it.
    """
    parts = sorted(_connected(len(boxes), arrows), key=len, reverse=True)
    placed = [_lay_out_part(boxes, arrows, part) for part in parts]
    widest = max((layout.width for layout in placed), default=0.0)
    centres: dict[int, Point] = {}
    routes: dict[tuple[int, int], tuple[Point, ...]] = {}
    across = down = row = 0.0
    for part, layout in zip(parts, placed, strict=True):
        if across and across + layout.width > max(widest, NARROWEST_ROW):
            across, down, row = 0.0, down + row + GAP_DOWN, 0.0
        centres |= {index: _moved(point, across, down) for index, point in zip(part, layout.centres, strict=True)}
        own = [arrow for arrow in arrows if arrow[0] in centres and arrow not in routes]
        for arrow, route in zip(own, layout.routes, strict=True):
            routes[arrow] = tuple(_moved(point, across, down) for point in route)
        across, row = across + layout.width + GAP_BETWEEN, max(row, layout.height)
    right = max((centres[index][0] + box.width / 2 for index, box in enumerate(boxes)), default=0.0)
    right = max(right, *(point[0] for route in routes.values() for point in route), 0.0) if routes else right
    return Layout(
        tuple(centres[index] for index in range(len(boxes))),
        tuple(routes[arrow] for arrow in arrows),
        right,
        down + row,
    )


def _moved(point: Point, across: float, down: float) -> Point:
    return point[0] + across, point[1] + down


def _connected(count: int, arrows: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The boxes in groups, such that arrows stay inside of a group."""
    group = list(range(count))

    def leader(index: int) -> int:
        while group[index] != index:
            group[index] = group[group[index]]
            index = group[index]
        return index

    for source, target in arrows:
        first, second = leader(source), leader(target)
        group[max(first, second)] = min(first, second)
    members: dict[int, list[int]] = {}
    for index in range(count):
        members.setdefault(leader(index), []).append(index)
    return list(members.values())


def _lay_out_part(boxes: Sequence[DrawnBox], arrows: Sequence[tuple[int, int]], part: Sequence[int]) -> Layout:
    """Place boxes that are connected."""
    place = {index: position for position, index in enumerate(part)}
    own = [(place[source], place[target]) for source, target in arrows if source in place]
    return _lay_out_connected([boxes[index] for index in part], own)


def _lay_out_connected(boxes: Sequence[DrawnBox], arrows: Sequence[tuple[int, int]]) -> Layout:
    ranks, floating = _ranks(boxes, arrows)
    nodes = [_Node(rank, box.width, box.height) for rank, box in zip(ranks, boxes, strict=True)]
    chains = _connect(nodes, floating, arrows)
    layers: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for index, node in enumerate(nodes):
        layers[node.rank].append(index)
    layers = _ordered(nodes, layers)
    _move(nodes, layers)
    return _finish(nodes, layers, len(boxes), [(chains[source], source, target) for source, target in arrows])


def _ranks(boxes: Sequence[DrawnBox], arrows: Sequence[tuple[int, int]]) -> tuple[list[int], list[bool]]:
    """The layer of each box, and whether it floats.

    Boxes go as high as what they read lets them; light boxes, and what reads only such, float down to what reads them.
    """
    before: list[list[int]] = [[] for _ in boxes]
    after: list[list[int]] = [[] for _ in boxes]
    for source, target in arrows:
        before[target].append(source)
        after[source].append(target)
    floating: list[bool] = []
    ranks = [0] * len(boxes)
    for index, box in enumerate(boxes):
        floating.append(all(floating[source] for source in before[index]) if before[index] else box.light)
        if not floating[index]:
            ranks[index] = max((ranks[source] + 1 for source in before[index] if not floating[source]), default=0)
    for index in reversed(range(len(boxes))):
        if floating[index]:
            ranks[index] = min((ranks[target] - 1 for target in after[index]), default=0)
    top = min(ranks, default=0)
    return [rank - top for rank in ranks], floating


def _connect(nodes: list[_Node], floating: Sequence[bool], arrows: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    """Connect neighbouring layers; arrows from one box share their passages. Gives each box's passages, downwards."""
    chains: dict[int, list[int]] = {}
    for source, target in arrows:
        chain = chains.setdefault(source, [])
        while nodes[source].rank + len(chain) + 1 < nodes[target].rank:
            upper = chain[-1] if chain else source
            nodes.append(_Node(nodes[upper].rank + 1, PASSAGE, 0.0))
            chain.append(len(nodes) - 1)
            _join(nodes, upper, chain[-1], 8.0 if len(chain) > 1 else 2.0)
        distance = nodes[target].rank - nodes[source].rank
        upper = chain[distance - 2] if distance > 1 else source
        _join(nodes, upper, target, 0.1 if floating[source] else 1.0)
    return chains


def _join(nodes: list[_Node], upper: int, lower: int, weight: float) -> None:
    nodes[upper].below.append((lower, weight))
    nodes[lower].above.append((upper, weight))


def _ordered(nodes: list[_Node], layers: list[list[int]]) -> list[list[int]]:
    """Sweep down and up, sorting each layer by where its neighbours are; the order with fewest crossings wins."""
    best, fewest = layers, _crossings(nodes, layers)
    for sweep in range(ORDERING_ROUNDS):
        if not fewest:
            break
        downwards = sweep % 2 == 0
        layers = [list(layer) for layer in layers]
        order = range(1, len(layers)) if downwards else range(len(layers) - 2, -1, -1)
        for rank in order:
            neighbour = layers[rank - 1 if downwards else rank + 1]
            place = {index: position for position, index in enumerate(neighbour)}
            own = {index: position for position, index in enumerate(layers[rank])}
            scale = len(neighbour) / max(1, len(own))
            layers[rank].sort(key=lambda index: (_mean(nodes[index], place, downwards, own[index] * scale), own[index]))
        count = _crossings(nodes, layers)
        if count < fewest:
            best, fewest = layers, count
    return best


def _mean(node: _Node, place: dict[int, int], downwards: bool, otherwise: float) -> float:
    neighbours = [place[index] for index, _ in (node.above if downwards else node.below)]
    return sum(neighbours) / len(neighbours) if neighbours else otherwise


def _crossings(nodes: list[_Node], layers: list[list[int]]) -> int:
    """How many pairs of arrows cross between neighbouring layers."""
    count = 0
    for upper, lower in pairwise(layers):
        place = {index: position for position, index in enumerate(lower)}
        seen: list[int] = []
        for index in upper:
            ends = sorted(place[target] for target, _ in nodes[index].below)
            count += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return count


def _move(nodes: list[_Node], layers: list[list[int]]) -> None:
    for layer in layers:
        position = 0.0
        for index in layer:
            nodes[index].x = position + nodes[index].width / 2
            position += nodes[index].width + GAP_ACROSS
    for sweep in range(MOVING_ROUNDS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            _settle(nodes, layer)


def _settle(nodes: list[_Node], layer: list[int]) -> None:
    """Put a layer's boxes where the sum of squared distances to their neighbours is least, in their order, apart.

    With the room between boxes taken out, this is regression under an order: neighbours that would overlap are
    merged into groups that stand at their weighted mean.
    """
    groups: list[tuple[float, float, int]] = []  # weighted sum of wishes, weight, count
    offsets: list[float] = []
    for position, index in enumerate(layer):
        node = nodes[index]
        room = (nodes[layer[position - 1]].width + node.width) / 2 + GAP_ACROSS if position else 0.0
        offsets.append((offsets[-1] if offsets else 0.0) + room)
        neighbours = [*node.above, *node.below]
        weight = sum(weight for _, weight in neighbours) or 0.01
        wish = sum(nodes[other].x * pull for other, pull in neighbours) / weight if neighbours else node.x
        groups.append(((wish - offsets[-1]) * weight, weight, 1))
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] >= groups[-1][0] / groups[-1][1]:
            last = groups.pop()
            groups[-1] = (groups[-1][0] + last[0], groups[-1][1] + last[1], groups[-1][2] + last[2])
    position = 0
    for wished, weight, count in groups:
        for index in layer[position : position + count]:
            nodes[index].x = wished / weight + offsets[position]
            position += 1


def _finish(
    nodes: list[_Node], layers: list[list[int]], count: int, arrows: list[tuple[list[int], int, int]]
) -> Layout:
    left = min((node.x - node.width / 2 for node in nodes), default=0.0)
    right = max((node.x + node.width / 2 for node in nodes), default=0.0)
    tops: list[float] = []
    heights = [max(nodes[index].height for index in layer) for layer in layers]
    for height in heights:
        tops.append(tops[-1] + heights[len(tops) - 1] + GAP_DOWN if tops else 0.0)
        del height
    middles = [top + height / 2 for top, height in zip(tops, heights, strict=True)]
    centres = tuple((node.x - left, middles[node.rank]) for node in nodes[:count])
    arrivals = _arrivals(nodes, arrows)
    routes: list[tuple[Point, ...]] = []
    for chain, source, target in arrows:
        points = [(nodes[source].x - left, middles[nodes[source].rank] + nodes[source].height / 2)]
        for index in chain[: nodes[target].rank - nodes[source].rank - 1]:
            rank = nodes[index].rank
            points += [(nodes[index].x - left, tops[rank]), (nodes[index].x - left, tops[rank] + heights[rank])]
        end = arrivals[source, target] - left
        points.append((end, middles[nodes[target].rank] - nodes[target].height / 2))
        routes.append(tuple(points))
    return Layout(centres, tuple(routes), right - left, tops[-1] + heights[-1] if tops else 0.0)


def _arrivals(nodes: list[_Node], arrows: list[tuple[list[int], int, int]]) -> dict[tuple[int, int], float]:
    """Where on a box's upper side each arrow ends: side by side, in the order in which they come."""
    coming: dict[int, list[tuple[float, int]]] = {}
    for chain, source, target in arrows:
        distance = nodes[target].rank - nodes[source].rank
        last = chain[distance - 2] if distance > 1 else source
        coming.setdefault(target, []).append((nodes[last].x, source))
    found: dict[tuple[int, int], float] = {}
    for target, sources in coming.items():
        step = min(16.0, (nodes[target].width - 12.0) / len(sources))
        for position, (_, source) in enumerate(sorted(sources)):
            found[source, target] = nodes[target].x + (position - (len(sources) - 1) / 2) * step
    return found
