"""What programs print and log comes once, with sizes of a call; where values decide, at each call, as in eager."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import weft
from weft.config import overrides

LOGGER = logging.getLogger("a.user")
Say = Callable[[str, int], None]


class Heard(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture(autouse=True)
def heard() -> Iterator[Heard]:
    handler = Heard()
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    with overrides(whole="off"):
        yield handler
    LOGGER.removeHandler(handler)


def log(text: str, size: int) -> None:
    LOGGER.info("%s %d", text, size)


def log_whole(text: str, size: int) -> None:
    LOGGER.info(f"{text} {size}")  # noqa: G004  # the text of a size is asked for here


def show(text: str, size: int) -> None:
    print(text, size)


WAYS: dict[str, Say] = {"log": log, "f-string": log_whole, "print": show}


def told(heard: Heard, capsys: Any) -> list[str]:
    found = heard.texts + capsys.readouterr().out.splitlines()
    heard.texts.clear()
    return found


@pytest.mark.parametrize("way", WAYS)
def test_what_is_told_is_of_sizes_that_calls_have(way: str, heard: Heard, capsys: Any) -> None:
    say = WAYS[way]

    def doubled(x: torch.Tensor) -> torch.Tensor:
        say("size", len(x))
        return x * 2

    found = weft.hybridize(doubled)
    for size in (2, 3, 4, 7, 9, 2):
        x = torch.randn(size)
        assert torch.equal(found(x), x * 2)
    texts = told(heard, capsys)
    assert texts[0] == "size 2"
    assert {*texts} <= {f"size {size}" for size in (2, 3, 4, 7, 9)}
    assert len({*texts}) == len(texts)


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2, 2, 2), (2, 3, 4, 5, 2, 3), (2, 3, 4, 9, 20, 40)])
@pytest.mark.parametrize("signs", [(-1, 1, 1, -1, 1, 1), (1, -1, 1, -1, -1, 1), (-1, -1, -1, 1, -1, 1)])
@pytest.mark.parametrize("way", WAYS)
def test_what_values_decide_to_tell_is_told_at_each_call(
    way: str, signs: tuple[int, ...], sizes: tuple[int, ...], heard: Heard, capsys: Any
) -> None:
    say = WAYS[way]

    def branching(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            say("positive", len(x))
            return x * 3
        return x * 2

    def texts(function: Any) -> list[str]:
        for sign, size in zip(signs, sizes, strict=True):
            x = torch.full((size,), float(sign))
            assert torch.equal(function(x), x * (3 if sign > 0 else 2))
        return told(heard, capsys)

    assert texts(weft.hybridize(branching)) == texts(branching)


def test_what_is_logged_keeps_its_order_and_its_error(heard: Heard) -> None:
    def failing(x: torch.Tensor) -> torch.Tensor:
        LOGGER.info("first")
        try:
            {}["key"]
        except KeyError:
            LOGGER.exception("second %s", x.dtype)
        LOGGER.info("third %(size)s", {"size": x.shape[0]})
        return x + 1

    for _ in range(2):
        found = weft.hybridize(failing)
        found(torch.ones(2))
        assert heard.texts == ["first", "second torch.float32", "third 2"]
        heard.texts.clear()


def test_handlers_are_given_what_was_logged_where_it_stays_what_it_is() -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    LOGGER.addHandler(handler)
    given = [1]

    def function(x: torch.Tensor) -> torch.Tensor:
        LOGGER.info("of %s, %s", tuple(x.shape), "by name")
        LOGGER.info("a list: %s", given)
        LOGGER.info("nothing")
        return x * 2

    hybrid = weft.hybridize(function)
    try:
        for size in (3, 5, 4):
            hybrid(torch.ones(size))
    finally:
        LOGGER.removeHandler(handler)
    assert [record.getMessage() for record in records[:3]] == ["of (3,), by name", "a list: [1]", "nothing"]
    assert [record.args for record in records[:3]] == [((3,), "by name"), (), ()]
