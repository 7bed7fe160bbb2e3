"""Documents become lines that fit the terminal."""

from __future__ import annotations

from weft.document.blocks import (
    Code,
    Document,
    Heading,
    Paragraph,
    Style,
    StyledText,
    Table,
    bar,
    columns_of,
    facts,
    plain_text,
)


def test_blocks_stand_apart_by_an_empty_line() -> None:
    document = Document((Heading("Devices"), Paragraph("Two of them."), Code("x = 1\n")))
    assert str(document) == "Devices\n\nTwo of them.\n\n  x = 1"


def test_columns_are_aligned_and_numbers_end_together() -> None:
    table = Table(("name", "time"), (("eager", "1.5"), ("hybrid", StyledText("12.25", "good"))), frozenset({1}))
    assert str(Document((table,))) == "name     time\neager     1.5\nhybrid  12.25"


def test_the_last_column_is_wrapped_below_itself() -> None:
    text = plain_text(Document((facts([("why", "word " * 10)]),)), Style(width=30))
    assert text.splitlines() == ["why  word word word word word", "     word word word word word"]


def test_no_line_is_wider_than_the_style_allows_in_chinese_either() -> None:
    document = Document((Paragraph("命令式编程与符号式编程。" * 8), facts([("说明", "混合编程，" * 20)])))
    lines = plain_text(document, Style(width=40)).splitlines()
    assert len(lines) > 6
    assert max(map(columns_of, lines)) <= 40
    assert not any(line.strip().startswith(("，", "。")) for line in lines)


def test_chinese_cells_are_aligned_by_the_columns_they_take() -> None:
    assert str(Document((facts([("时间", "a"), ("name", "b")]),))) == "时间  a\nname  b"


def test_ascii_has_a_word_for_what_we_use_and_an_escape_for_the_rest() -> None:
    assert plain_text(Document((Paragraph("1.5 ± 0.1 µs, 2 × … é"),)), Style(ascii=True)) == (
        "1.5 +- 0.1 us, 2 x ... \\xe9"
    )


def test_a_bar_is_never_empty_and_never_too_long() -> None:
    assert [bar(part, 4) for part in (0.0, 0.5, 1.0, 3.0)] == ["█", "██", "████", "████"]


def test_an_empty_table_and_an_empty_paragraph_are_nothing() -> None:
    assert str(Document((Table((), ()), Paragraph("")))) == ""
