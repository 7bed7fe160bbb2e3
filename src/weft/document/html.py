"""Write a Document as HTML: a piece for notebooks, or a page of its own."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from weft.document.blocks import Block, Cell, Code, Document, Heading, Paragraph, Picture, StyledText, Table
from weft.document.charts import STYLE

# What a piece needs where no page around it has rules for tables and tones.
NOTEBOOK = """
.weft td, .weft th { padding: .2rem .9rem .2rem 0; text-align: left; vertical-align: top; }
.weft .right { text-align: right; font-variant-numeric: tabular-nums; }
.weft .faint { opacity: .72; } .weft .good { color: #2f9e5b; } .weft .bad { color: #d14a3f; }
.weft pre { overflow-x: auto; }
"""
PAGE = """<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --text: #1d2329; --page: #fbfaf7; --box: #f0eee8; --faint: #656b72;
  --good: #1a6d36; --bad: #b3261e; --line: #dcd8ce; }}
@media (prefers-color-scheme: dark) {{ :root {{ --text: #e4e3df; --page: #17191c; --box: #22262b; --faint: #9aa1a9;
  --good: #6fcf8b; --bad: #ff8a80; --line: #353a41; }} }}
body {{ margin: 0 auto; max-width: 46rem; padding: 1.5rem 1rem 4rem; color: var(--text); background: var(--page);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; }}
h2 {{ font-size: 1.15rem; margin: 2.2rem 0 .4rem; }}
pre {{ background: var(--box); padding: .8rem 1rem; border-radius: .4rem; overflow-x: auto;
  font: .85rem/1.45 ui-monospace, monospace; }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .92rem; }}
td, th {{ padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; border-top: 1px solid var(--line); }}
th {{ color: var(--faint); font-weight: 500; border-top: 0; }}
.right {{ text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }}
:lang(zh) td:not(:last-child) {{ white-space: nowrap; }}
.faint {{ color: var(--faint); }} .good {{ color: var(--good); }} .bad {{ color: var(--bad); }}
.strong {{ font-weight: 600; }}
@media (max-width: 32rem) {{ table {{ font-size: .8rem; }} td, th {{ padding-right: .55rem; }} }}
{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""


def fragment(document: Document) -> str:
    """Give the blocks of a document as HTML; the page around them has the rules."""
    return "\n".join(ELEMENTS[type(block)](block) for block in document.blocks)


def notebook(document: Document) -> str:
    """Give a document as HTML that carries its own rules, for the cell of a notebook."""
    return f'<div class="weft"><style>{STYLE}{NOTEBOOK}</style>\n{fragment(document)}\n</div>'


def _heading(block: Heading) -> str:
    return f"<h2>{escape(block.text)}</h2>"


def _paragraph(block: Paragraph) -> str:
    lines = "<br>".join(map(escape, block.text.splitlines()))
    return f'<p class="{block.tone}">{lines}</p>'


def _code(block: Code) -> str:
    return f'<pre tabindex="0"><code>{escape(block.text.rstrip())}</code></pre>'


def _picture(block: Picture) -> str:
    return block.html


def _table(block: Table) -> str:
    head = "".join(f"<th{_side(place, block)}>{escape(title)}</th>" for place, title in enumerate(block.columns))
    rows = "\n".join(
        "<tr>" + "".join(_cell(cell, place, block) for place, cell in enumerate(row)) + "</tr>" for row in block.rows
    )
    return f'<div class="table"><table>{f"<tr>{head}</tr>" if head else ""}\n{rows}\n</table></div>'


def _cell(cell: Cell, place: int, block: Table) -> str:
    if isinstance(cell, StyledText):
        return f'<td{_side(place, block)}><span class="{cell.tone}">{escape(cell.text)}</span></td>'
    return f"<td{_side(place, block)}>{escape(cell)}</td>"


def _side(place: int, block: Table) -> str:
    return ' class="right"' if place in block.right else ""


ELEMENTS: dict[type[Block], Callable[..., str]] = {
    Heading: _heading,
    Paragraph: _paragraph,
    Code: _code,
    Table: _table,
    Picture: _picture,
}


def page(title: str, document: Document, language: str = "en") -> str:
    """Make a page of a document."""
    return PAGE.format(language=escape(language), title=escape(title), style=STYLE, body=fragment(document))
