"""Points -> curves over one axis, as a picture and as a line of characters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from weft.picture.style import colour, legend, number, picture

Points = Sequence[tuple[float, float]]
WIDE, HIGH = 1000, 300
HEIGHTS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Axes:
    """How the ends of both axes are said, what the axis across is, and whether curves are stairs from zero."""

    across: Callable[[float], str]
    up: Callable[[float], str]
    title: str = ""
    stairs: bool = False


def curves(series: Mapping[str, Points], axes: Axes, caption: str = "") -> str:
    """Draw named curves."""
    points = [point for curve in series.values() for point in curve]
    if not points:
        return ""
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    low = 0.0 if axes.stairs else low
    lines = []
    for place, curve in enumerate(series.values()):
        spots = [(_part(x, left, right) * WIDE, HIGH - _part(y, low, high) * HIGH) for x, y in curve]
        path = " ".join(f"{number(x)},{number(y)}" for x, y in (_stairs(spots) if axes.stairs else spots))
        # A later curve is thinner, so that one below it that is the same can still be seen.
        width = max(1.5, 4.5 - 1.5 * place)
        lines.append(
            f'<polyline points="{path}" fill="none" stroke="{colour(place)}" stroke-width="{width}"'
            ' vector-effect="non-scaling-stroke" stroke-linejoin="round"/>'
        )
    plot = (
        f'<div class="wp-plot"><div class="wp-ends wp-side faint"><span>{escape(axes.up(high))}</span>'
        f"<span>{escape(axes.up(low))}</span></div>"
        f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(", ".join(series))}">{"".join(lines)}</svg>'
        f'<span></span><div class="wp-ends faint"><span>{escape(axes.across(left))}</span>'
        f"<span>{escape(axes.title)}</span><span>{escape(axes.across(right))}</span></div></div>"
    )
    keys = legend([(name, colour(place)) for place, name in enumerate(series)])
    return picture((keys if len(series) > 1 else "") + plot, caption)


def curve_text(values: Sequence[float], width: int, highest: float | None = None) -> str:
    """Write a curve as one line of blocks, from zero to the highest of its values or the one given."""
    most = max([*values, 0.0]) if highest is None else highest
    count = min(width, len(values))
    shown = []
    for place in range(count):
        piece = values[place * len(values) // count : (place + 1) * len(values) // count]
        shown.append(HEIGHTS[min(len(HEIGHTS) - 1, int(max(piece) / most * len(HEIGHTS)))] if most > 0 else HEIGHTS[0])
    return "".join(shown)


def _part(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _stairs(spots: list[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for x, y in spots:
        found += [(x, found[-1][1])] if found else []
        found.append((x, y))
    return found
