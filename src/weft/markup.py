"""A Document -> a piece of HTML: what pages and notebooks show."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from weft.document import Block, Cell, Code, Document, Heading, Paragraph, Picture, Span, Table
from weft.picture.style import STYLE

# What a piece needs where no page around it has rules for tables and tones.
NOTEBOOK = """
.weft td, .weft th { padding: .2rem .9rem .2rem 0; text-align: left; vertical-align: top; }
.weft .right { text-align: right; font-variant-numeric: tabular-nums; }
.weft .faint { opacity: .72; } .weft .good { color: #2f9e5b; } .weft .bad { color: #d14a3f; }
.weft pre { overflow-x: auto; }
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
    if isinstance(cell, Span):
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
