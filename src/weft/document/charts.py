"""Draw bars and curves as HTML without scripts, and as lines of characters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

# The colours of series and lanes, in order; past the last they begin again.
COLOURS = ("#3b7dd8", "#d1632b", "#2f9e5b", "#9a5fd0", "#c09a1e", "#2c9c9c", "#c2527f", "#7f8790")
WAIT = "#9aa1a9"

# Text takes the colour of what it stands in. `.wp` are pictures: shapes are stretched to the width that there is, words
# are HTML beside them, so that both can be read on a phone.
STYLE = """
.wp { margin: .8rem 0; font-size: .9rem; line-height: 1.35; }
.wp svg { display: block; }
.wp .faint { opacity: .72; }
.wp-bars { display: grid; grid-auto-flow: dense; grid-template-columns: max-content 1fr max-content; gap: .35rem .7rem;
  align-items: center; }
.wp-label { grid-column: 1; } .wp-told { grid-column: 3; } .wp-track { grid-column: 2; }
.wp-track { position: relative; height: 1.05rem; background: rgba(127, 135, 144, .16); border-radius: .2rem; }
.wp-fill { position: absolute; inset: 0 auto 0 0; border-radius: .2rem; }
.wp-spread { position: absolute; top: .42rem; height: .2rem; background: currentColor; opacity: .8; }
.wp-one { position: absolute; top: -.18rem; bottom: -.18rem; border-left: 1px dashed currentColor; opacity: .55; }
.wp-told { text-align: right; font-variant-numeric: tabular-nums; }
.wp-plot { display: grid; grid-template-columns: max-content 1fr; gap: 0 .5rem; }
.wp-plot svg { width: 100%; height: 11rem; border-left: 1px solid rgba(127, 135, 144, .6);
  border-bottom: 1px solid rgba(127, 135, 144, .6); overflow: visible; }
.wp-ends { display: flex; justify-content: space-between; font-variant-numeric: tabular-nums; }
.wp-side { flex-direction: column; text-align: right; }
.wp-legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; padding: 0; margin: .3rem 0; list-style: none; }
.wp-key { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem; margin-right: .35rem; }
.wp-lanes { display: grid; grid-template-columns: max-content 1fr; gap: .3rem .6rem; align-items: center; }
.wp-lanes svg { width: 100%; height: 1.7rem; background: rgba(127, 135, 144, .16); }
.wp-wide { overflow-x: auto; }
.wp-wide svg text { font: 12px ui-monospace, monospace; fill: currentColor; }
.wp-wide svg .small { font-size: 10px; opacity: .75; }
@media (max-width: 32rem) {
  .wp-bars { grid-auto-flow: row; grid-template-columns: 1fr max-content; gap: .1rem .7rem; }
  .wp-told { grid-column: 2; } .wp-track { grid-column: 1 / -1; margin-bottom: .45rem; }
}
"""
Points = Sequence[tuple[float, float]]
WIDE, HIGH = 1000, 300
HEIGHTS = "▁▂▃▄▅▆▇█"


def colour(number: int) -> str:
    """Give the colour of the series or lane of this number."""
    return COLOURS[number % len(COLOURS)]


def picture(body: str, caption: str = "") -> str:
    """Put the parts of a picture together; `body` is HTML, `caption` is text."""
    below = f'<figcaption class="faint">{escape(caption)}</figcaption>' if caption else ""
    return f'<figure class="wp">{body}{below}</figure>'


def legend(names: list[tuple[str, str]]) -> str:
    """List names, each with its colour."""
    items = (f'<li><span class="wp-key" style="background:{key}"></span>{escape(name)}</li>' for name, key in names)
    return f'<ul class="wp-legend">{"".join(items)}</ul>'


def number(value: float) -> str:
    """Write a coordinate."""
    return f"{value + 0.0:.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure: its name, itself, between what it lies, how it is said, and whether it is the one to look at."""

    label: str
    value: float
    low: float
    high: float
    told: str
    marked: bool = False


def bars(rows: Sequence[Bar], caption: str = "", mark: float | None = None) -> str:
    """Draw bars from zero; `mark` is where a dashed line stands in all of them."""
    most = max((max(row.high, row.value) for row in rows), default=1.0) or 1.0
    return picture(f'<div class="wp-bars">{"".join(_row(row, most, mark) for row in rows)}</div>', caption)


def _row(row: Bar, most: float, mark: float | None) -> str:
    fill = COLOURS[2] if row.marked else COLOURS[0]
    width, low, high = (100 * max(value, 0.0) / most for value in (row.value, row.low, row.high))
    spread = f'<span class="wp-spread" style="left:{low:.1f}%;width:{max(high - low, 0.3):.1f}%"></span>'
    line = "" if mark is None else f'<span class="wp-one" style="left:{100 * mark / most:.1f}%"></span>'
    return (
        f'<span class="wp-label">{escape(row.label)}</span>'
        f'<span class="wp-told">{escape(row.told)}</span>'
        f'<span class="wp-track"><span class="wp-fill" style="width:{width:.1f}%;background:{fill}"></span>'
        f"{spread}{line}</span>"
    )


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
