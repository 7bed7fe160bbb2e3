"""Lay headings, paragraphs, code and tables out as lines of text that fit the width of a terminal.

Every result of a command gives a Document. The command line prints its lines, a report makes a page of it; neither
knows what it is about.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["plain", "strong", "faint", "good", "bad"]
GAP = 2
INDENT = 2
NARROWEST = 12
# What is written without Unicode; anything else that ASCII lacks is written as an escape.
ASCII = {"±": "+-", "×": "x", "…": "...", "µ": "u", "█": "#", "→": "->", "\u2013": "-", "✓": "ok", "✗": "x", "░": "."}
ASCII |= dict(zip("▁▂▃▄▅▆▇", "._-=+*%", strict=True))


@dataclass(frozen=True, slots=True)
class StyledText:
    """A piece of a line, and how it is meant."""

    text: str
    tone: Tone = "plain"


Cell = str | StyledText
Line = tuple[StyledText, ...]


@dataclass(frozen=True, slots=True)
class Style:
    """How wide lines may be, and whether they may have more than ASCII."""

    width: int = 80
    ascii: bool = False


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of what follows."""

    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Sentences, wrapped to the width."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Code:
    """Lines that keep their breaks, indented."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under column titles; `right` are the columns whose cells end at the same place.

    Without titles it is a list of facts. The last column is wrapped where a row would be too wide.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Picture:
    """Something drawn: HTML for pages, made by weft.document.charts; lines of text for a terminal, maybe none."""

    html: str
    text: str = ""


Block = Heading | Paragraph | Code | Table | Picture


@dataclass(frozen=True, slots=True)
class Document:
    """Blocks, one after another with an empty line between them."""

    blocks: tuple[Block, ...]

    def __str__(self) -> str:
        return plain_text(self)


def facts(pairs: Iterable[tuple[str, Cell]]) -> Table:
    """Make a list of names, each with what it is."""
    return Table((), tuple((name, cell) for name, cell in pairs))


def plain_text(document: Document, style: Style | None = None) -> str:
    """Give the text of a document, without colours."""
    lines = lines_of(document, style or Style())
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def lines_of(document: Document, style: Style) -> list[Line]:
    """Lay a document out."""
    lines: list[Line] = []
    for block in document.blocks:
        found = LAYOUTS[type(block)](block, style)
        if lines and found:
            lines.append(())
        lines += found
    return [tuple(StyledText(written(span.text, style), span.tone) for span in line) for line in lines]


def written(text: str, style: Style) -> str:
    """Write a text with the characters that the style allows."""
    if not style.ascii:
        return text
    for character, replacement in ASCII.items():
        text = text.replace(character, replacement)
    return text.encode("ascii", "backslashreplace").decode("ascii")


def columns_of(text: str) -> int:
    """Count the columns a text takes on a terminal, where Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def bar(part: float, width: int) -> str:
    """Draw a part of a whole as a bar of at most so many columns, and at least one."""
    return "█" * max(1, round(min(part, 1.0) * width))


def wrapped(text: str, width: int) -> list[str]:
    """Break a text into lines; between Chinese characters too, which have no spaces."""
    if columns_of(text) == len(text):
        return textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    lines = [""]
    for piece in _pieces(text):
        if columns_of(lines[-1] + piece.rstrip()) > width and lines[-1]:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
        lines[-1] += piece if lines[-1] else piece.lstrip()
    return lines


def _pieces(text: str) -> Iterable[str]:
    """Pieces that a line may end after: words with the space behind them, and single wide characters."""
    piece = ""
    for character in text:
        wide = unicodedata.east_asian_width(character) in "WF"
        # Closing punctuation stays with what it closes.
        if wide and piece and not unicodedata.category(character).startswith(("P", "S")):
            yield piece
            piece = ""
        piece += character
        if character == " ":
            yield piece
            piece = ""
    if piece:
        yield piece


def _heading(block: Heading, style: Style) -> list[Line]:
    return [(StyledText(line, "strong"),) for line in wrapped(block.text, style.width)]


def _paragraph(block: Paragraph, style: Style) -> list[Line]:
    return [(StyledText(line, block.tone),) for text in block.text.splitlines() for line in wrapped(text, style.width)]


def _code(block: Code, style: Style) -> list[Line]:
    del style  # code that is cut or wrapped cannot be copied
    return [(StyledText(" " * INDENT + line),) for line in block.text.rstrip().splitlines()]


def _picture(block: Picture, style: Style) -> list[Line]:
    del style  # as above
    return [(StyledText(" " * INDENT + line),) for line in block.text.splitlines()]


def _table(block: Table, style: Style) -> list[Line]:
    rows = [tuple(_span(cell, style) for cell in row) for row in block.rows]
    titles = [tuple(StyledText(title, "faint") for title in block.columns)] if block.columns else []
    shown = [*titles, *rows]
    if not shown:
        return []
    count = max(map(len, shown))
    widths = [max(columns_of(row[place].text) for row in shown if place < len(row)) for place in range(count)]
    room = style.width - sum(widths[:-1]) - GAP * (count - 1)
    if room < min(NARROWEST, widths[-1]):
        return [line for row in rows for line in _stacked(row, block.columns, style.width)]
    widths[-1] = max(1, min(widths[-1], max(NARROWEST, room)))  # 1 where the last column is empty
    return [line for row in shown for line in _row(row, widths, block.right)]


def _stacked(row: Sequence[StyledText], titles: Sequence[str], width: int) -> list[Line]:
    """One row below each other, for screens that are too narrow for it: the first cell, then the others, indented."""
    lines: list[Line] = [(StyledText(text, row[0].tone),) for text in wrapped(row[0].text, width)]
    indent = len(row[0].text) - len(row[0].text.lstrip()) + 2 * INDENT
    for place, cell in enumerate(row[1:], 1):
        title = f"{titles[place]}: " if place < len(titles) and titles[place] else ""
        if cell.text:
            texts = wrapped(title + cell.text, max(NARROWEST, width - indent))
            lines += [(StyledText(" " * indent), StyledText(text, cell.tone)) for text in texts]
    return lines


def _span(cell: Cell, style: Style) -> StyledText:
    span = cell if isinstance(cell, StyledText) else StyledText(cell)
    return StyledText(written(span.text, style), span.tone)


def _row(row: Sequence[StyledText], widths: Sequence[int], right: frozenset[int]) -> list[Line]:
    """One row as lines: more than one where its last cell is wrapped."""
    spans: list[StyledText] = []
    for place, (span, width) in enumerate(zip(row[:-1], widths, strict=False)):
        space = " " * (width - columns_of(span.text))
        spans += [StyledText(space), span] if place in right else [span, StyledText(space)]
        spans.append(StyledText(" " * GAP))
    last, before = row[-1], sum(columns_of(span.text) for span in spans)
    texts = wrapped(last.text, widths[len(row) - 1])
    if len(row) - 1 in right:
        texts = [" " * (widths[len(row) - 1] - columns_of(text)) + text for text in texts]
    rest = [(StyledText(" " * before), StyledText(text, last.tone)) for text in texts[1:]]
    return [(*spans, StyledText(texts[0], last.tone)), *rest]


LAYOUTS: dict[type, Callable[..., list[Line]]] = {
    Heading: _heading,
    Paragraph: _paragraph,
    Code: _code,
    Table: _table,
    Picture: _picture,
}
