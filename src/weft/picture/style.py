"""How pictures look: one sheet of rules, in colours of middle brightness that can be read on light and on dark."""

from __future__ import annotations

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
