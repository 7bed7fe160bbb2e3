"""Draw work on lanes: when each lane did what, and what follows what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from weft.document.charts import WAIT, colour, legend, number, picture

WIDE, HIGH = 1000, 20
MOST_KINDS = 8  # that a legend still helps with
OTHERS = "others"
WIDTH, HEIGHT, ACROSS, DOWN, TOP = 172, 36, 28, 16, 24
LETTERS = 23  # that fit into a box


@dataclass(frozen=True, slots=True)
class LaneBlock:
    """Something a lane did: its name, the kind that it is coloured by, and seconds; waiting is of no kind."""

    lane: str
    name: str
    kind: str | None
    start: float
    end: float


def lanes(blocks: Sequence[LaneBlock], seconds: float, caption: str = "") -> str:
    """Draw a row a lane; hovering over a block names it."""
    kinds = _kinds(blocks)
    keys = [(kind, colour(place)) for place, kind in enumerate(kinds)]
    keys += [("waits", WAIT)] if any(block.kind is None for block in blocks) else []
    colours = dict(keys)
    rows = []
    for lane in sorted({block.lane for block in blocks}):
        shapes = (
            f'<rect x="{number(block.start / seconds * WIDE)}" y="{0 if block.kind else HIGH * 0.4}"'
            f' width="{number(max((block.end - block.start) / seconds * WIDE, 0.8))}"'
            f' height="{HIGH if block.kind else HIGH * 0.2}"'
            f' fill="{WAIT if block.kind is None else colours.get(block.kind, colours.get(OTHERS, WAIT))}">'
            f"<title>{escape(block.name)}, {(block.end - block.start) * 1e6:.1f} µs</title></rect>"
            for block in blocks
            if block.lane == lane
        )
        rows.append(
            f'<span>{escape(lane)}</span><svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img"'
            f' aria-label="{escape(lane)}">{"".join(shapes)}</svg>'
        )
    return picture(legend(keys) + f'<div class="wp-lanes">{"".join(rows)}</div>', caption)


def lanes_text(blocks: Sequence[LaneBlock], seconds: float, width: int) -> str:
    """Write a line a lane: a full block where it works, a light one where it waits."""
    names = sorted({block.lane for block in blocks})
    longest = max(map(len, names), default=0)
    lines = []
    for lane in names:
        cells = [" "] * width
        # What works is written last: a wait that shares a cell with work does not hide it.
        for block in sorted((each for each in blocks if each.lane == lane), key=lambda each: each.kind is not None):
            begin = min(width - 1, int(block.start / seconds * width))
            end = min(width, max(begin + 1, round(block.end / seconds * width)))
            cells[begin:end] = ["░" if block.kind is None else "█"] * (end - begin)
        lines.append(f"{lane:<{longest}} |{''.join(cells)}|")
    return "\n".join(lines)


def _kinds(blocks: Sequence[LaneBlock]) -> list[str]:
    """The kinds that take most of the time; what is left is called others."""
    times: dict[str, float] = {}
    for block in blocks:
        if block.kind is not None:
            times[block.kind] = times.get(block.kind, 0.0) + block.end - block.start
    ordered = sorted(times, key=lambda kind: -times[kind])
    return ordered if len(ordered) <= MOST_KINDS else [*ordered[: MOST_KINDS - 1], OTHERS]


@dataclass(frozen=True, slots=True)
class Piece:
    """A box: its lane, two lines, the kind that it is coloured by, and the earlier pieces, by place, that it needs."""

    lane: int
    title: str
    detail: str
    kind: str
    after: tuple[int, ...] = ()


def flow(pieces: Sequence[Piece], caption: str = "") -> str:
    """Draw pieces, given in an order in which they may run; in a lane none stands above one before it."""
    rows = _rows(pieces)
    lanes = sorted({piece.lane for piece in pieces})
    column = {lane: place for place, lane in enumerate(lanes)}
    kinds = list(dict.fromkeys(piece.kind for piece in pieces))
    width = len(lanes) * (WIDTH + ACROSS) + ACROSS
    height = TOP + (max(rows, default=0) + 1) * (HEIGHT + DOWN)
    centres = [
        (ACROSS + column[piece.lane] * (WIDTH + ACROSS) + WIDTH / 2, TOP + row * (HEIGHT + DOWN) + HEIGHT / 2)
        for piece, row in zip(pieces, rows, strict=True)
    ]
    arrows = (
        _arrow(centres[earlier], centres[place])
        for place, piece in enumerate(pieces)
        for earlier in _direct(pieces, place)
    )
    shapes = (_box(piece, centre, kinds) for piece, centre in zip(pieces, centres, strict=True))
    titles = (
        f'<text class="small" x="{ACROSS + column[lane] * (WIDTH + ACROSS)}" y="14">lane {lane}</text>'
        for lane in lanes
    )
    svg = (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-label="work by lanes">'
        f"{''.join(titles)}{''.join(arrows)}{''.join(shapes)}</svg>"
    )
    return picture(f'<div class="wp-wide" tabindex="0">{svg}</div>', caption)


def _rows(pieces: Sequence[Piece]) -> list[int]:
    """The row of each: below all that it needs, and below the one before it in its lane."""
    rows: list[int] = []
    last: dict[int, int] = {}
    for piece in pieces:
        row = max([rows[earlier] + 1 for earlier in piece.after] + [last.get(piece.lane, -1) + 1])
        rows.append(row)
        last[piece.lane] = row
    return rows


def _direct(pieces: Sequence[Piece], place: int) -> list[int]:
    """What a piece needs, without what it needs through something else that it needs."""
    needed = pieces[place].after
    behind = {deeper for earlier in needed for deeper in pieces[earlier].after}
    return [earlier for earlier in needed if earlier not in behind]


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """A line from box to box: down to the next row, else beside the boxes, in the room between the lanes."""
    (x0, y0), (x1, y1) = start, end
    if x0 == x1 and y1 - y0 <= HEIGHT + DOWN:
        path = f"M{number(x0)} {number(y0 + HEIGHT / 2)} V{number(y1 - HEIGHT / 2)}"
    else:
        side = 1 if x1 > x0 else -1
        begin = (x0 + side * WIDTH / 2, y0 + HEIGHT / 4)
        finish = (x1 - side * WIDTH / 2 if x0 != x1 else begin[0], y1 - HEIGHT / 4)
        bend = ACROSS * (0.8 if x0 == x1 else 1.0) * side
        second = finish[0] + (bend if x0 == x1 else -bend)
        path = f"M{_pair(begin)} C{_pair((begin[0] + bend, begin[1]))} {_pair((second, finish[1]))} {_pair(finish)}"
    return f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity=".4"/>'


def _pair(point: tuple[float, float]) -> str:
    return f"{number(point[0])} {number(point[1])}"


def _box(piece: Piece, centre: tuple[float, float], kinds: list[str]) -> str:
    x, y = centre[0] - WIDTH / 2, centre[1] - HEIGHT / 2
    shade = colour(kinds.index(piece.kind))
    return (
        f"<g><title>{escape(piece.title)} {escape(piece.detail)}</title>"
        f'<rect x="{number(x)}" y="{number(y)}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="{shade}"'
        f' fill-opacity=".18" stroke="{shade}"/>'
        f'<text x="{number(x + 8)}" y="{number(y + 15)}">{escape(_cut(piece.title, LETTERS - 2))}</text>'
        f'<text class="small" x="{number(x + 8)}" y="{number(y + 29)}">{escape(_cut(piece.detail, LETTERS + 3))}</text>'
        "</g>"
    )


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"
