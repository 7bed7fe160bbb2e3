"""What each lane did, from when to when -> a row of blocks a lane, as a picture and as characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from weft.picture.style import WAIT, colour, legend, number, picture

WIDE, HIGH = 1000, 20
MOST_KINDS = 8  # that a legend still helps with
OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Block:
    """Something a lane did: its name, the kind that it is coloured by, and seconds; waiting is of no kind."""

    lane: str
    name: str
    kind: str | None
    start: float
    end: float


def lanes(blocks: Sequence[Block], seconds: float, caption: str = "") -> str:
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


def lanes_text(blocks: Sequence[Block], seconds: float, width: int) -> str:
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


def _kinds(blocks: Sequence[Block]) -> list[str]:
    """The kinds that take most of the time; what is left is called others."""
    times: dict[str, float] = {}
    for block in blocks:
        if block.kind is not None:
            times[block.kind] = times.get(block.kind, 0.0) + block.end - block.start
    ordered = sorted(times, key=lambda kind: -times[kind])
    return ordered if len(ordered) <= MOST_KINDS else [*ordered[: MOST_KINDS - 1], OTHERS]
