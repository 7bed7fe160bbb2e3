"""Pages are whole in themselves, and what they show cannot become markup."""

from __future__ import annotations

import re

from weft.document.blocks import Code, Document, Heading, Paragraph, StyledText, Table
from weft.document.html import page

DOCUMENT = Document(
    (
        Heading("1. <script>"),
        Paragraph("a & b\nsecond line", "faint"),
        Code("x = '<b>'"),
        Table(("name", "time"), (("eager", StyledText("1 < 2", "good")),), frozenset({1})),
        Table((), (("a", "b"),)),
    )
)


def test_everything_shown_is_escaped() -> None:
    text = page("<title>", DOCUMENT)
    assert "<script" not in text
    assert "<b>" not in text
    assert text.count("<title>") == 1
    assert "1 &lt; 2" in text


def test_a_page_loads_nothing() -> None:
    text = page("A tour", DOCUMENT)
    assert "default-src 'none'" in text
    assert re.findall(r"""(?:src|href)=["'](?!data:)""", text) == []


def test_a_page_is_for_light_and_dark_and_for_small_screens() -> None:
    text = page("A tour", DOCUMENT, "zh")
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text
    assert '<html lang="zh">' in text


def test_lines_of_a_paragraph_and_empty_tables_are_kept() -> None:
    text = page("A tour", DOCUMENT)
    assert "a &amp; b<br>second line" in text
    assert '<th>name</th><th class="right">time</th>' in text
    assert text.count("<th") == 2
