"""The text of a number that a program takes as an input, or of a tensor, is that of the call, whatever it decides."""

from __future__ import annotations

import functools
import json
import logging
import string
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.ways import Work, assert_every_way
from torch import nn

import weft
from weft.config import overrides
from weft.trace.interception.refusals import REFUSALS

pytestmark = pytest.mark.usefixtures("by_library")
NUMBERS = (3, 5, 4, 12, 3)
TABLE = {str(number): number * 10.0 for number in range(40)}
NAMED = {f"k{number}": number * 10.0 for number in range(40)}


def caught(number: int) -> float:
    try:
        return {4: 2.0, 5: 3.0}[number]
    except TypeError:
        return 100.0
    except KeyError:
        return 50.0


@functools.lru_cache
def doubled(number: int) -> float:
    return number * 2.0


for _number in NUMBERS:  # whatever test comes first, what is remembered is there
    doubled(_number)


def remembered(number: int) -> float:
    try:
        return doubled(number)
    except TypeError:
        return 100.0


TEXTS: dict[str, Callable[[Any], float]] = {
    "a formatted key": lambda n: NAMED[f"k{n}"],
    "a key that may be missing": lambda n: TABLE.get(f"{n}", -1.0),
    "str, of which the length counts": lambda n: len(str(n)),
    "repr that is compared": lambda n: 2.0 if repr(n) == "4" else 3.0,
    "format in a set": lambda n: 2.0 if format(n) in {"4", "5"} else 3.0,
    "a format of width": lambda n: float(f"{n:03d}"),
    "percent d": lambda n: TABLE.get("%d".__mod__(n), -1.0),
    "percent s": lambda n: TABLE.get("%s".__mod__(n), -1.0),
    "joined": lambda n: len("-".join(map(str, (n, n)))),
    "a tuple's text": lambda n: len(str((n, 1))),
    "a name of an attribute": lambda n: getattr(SimpleNamespace(**NAMED), f"k{n}", -1.0),
    "a template": lambda n: TABLE.get(string.Template("$n").substitute(n=n), -1.0),
    "the text of a truth": lambda n: 2.0 if str(n > 4) == "True" else 3.0,
    "the text of what is computed": lambda n: TABLE.get(str(n * 2 + 1), -1.0),
    "json": lambda n: len(json.dumps([n])),
    "a key that is not hashed": caught,
    "what is remembered": remembered,
    "its class": lambda n: 2.0 if n.__class__ is int else 3.0,
    "its attributes": lambda n: 2.0 if hasattr(n, "node") else 3.0,
}


def agree(function: Callable[[Any], torch.Tensor], given: Callable[[int], Any] = torch.ones) -> None:
    ours = weft.hybridize(function)
    for number in NUMBERS:
        assert torch.equal(ours(given(number)), function(given(number)))


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_arguments_are_those_of_the_call(text: str) -> None:
    agree(lambda n: torch.ones(2) * TEXTS[text](n), int)


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_sizes_are_those_of_the_call(text: str) -> None:
    agree(lambda x: x * TEXTS[text](x.shape[0]))


@pytest.mark.parametrize("text", ["a key that may be missing", "repr that is compared", "percent s"])
@pytest.mark.parametrize("number_of", [lambda x: int(x.sum()), lambda x: x.nonzero().shape[0]], ids=["read", "found"])
def test_texts_of_numbers_that_runs_find_are_those_of_the_call(text: str, number_of: Callable[..., Any]) -> None:
    with overrides(whole="off"):
        agree(lambda x: x * TEXTS[text](number_of(x)))


@pytest.mark.parametrize("text", [repr, "{}".format, "%s".__mod__], ids=["repr", "format", "percent s"])
def test_texts_of_shapes_are_those_of_the_call(text: Callable[[Any], str]) -> None:
    agree(lambda x: x * (2 if text((x.shape,)).endswith("[4]),)") else len(text((x.shape,)))))


@pytest.mark.parametrize("text", [repr, str, "{}".format, "%s".__mod__], ids=["repr", "str", "format", "percent s"])
@pytest.mark.parametrize("of", [torch.Tensor.sum, lambda x: [x.sum(), x]], ids=["tensor", "tensors"])
def test_texts_of_tensors_are_those_of_the_call(text: Callable[[Any], str], of: Callable[[torch.Tensor], Any]) -> None:
    def sized(x: torch.Tensor) -> torch.Tensor:
        return x * len(text((of(x),)))

    with pytest.raises(weft.UnsupportedError, match=REFUSALS["text"][0]):
        weft.hybridize(sized)(torch.ones(2))
    with overrides(whole="off"):
        agree(sized)


class Counting(nn.Module):
    def __init__(self, decides: Callable[[Any], float]) -> None:
        super().__init__()
        self.decides = decides
        self.count, self.share, self.seen = 0, 0.5, dict[str, torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = (self.count + 1) % 4
        self.share += 0.25
        self.seen[f"turn {self.count}"] = x * self.share
        return x * self.decides(self) + sum(self.seen.values())


@pytest.mark.parametrize(
    "decides",
    [
        lambda self: TABLE[str(self.count)],
        lambda self: len(self.seen),
        lambda self: 2.0 if f"{self.share:.2f}" == "1.25" else 3.0,
        lambda self: 2.0 if f"{self.share}" in ("1.0", "1.5") else 3.0,
    ],
)
def test_texts_of_counted_numbers_are_those_of_the_call(decides: Callable[[Any], float]) -> None:
    with overrides(whole="off"):
        assert_every_way(lambda: Work.repeated(Counting(decides), torch.ones(2), calls=6), "library")


def test_a_number_that_is_only_shown_stays_free(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("shown")
    caplog.set_level("INFO", "shown")

    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        print("by", by, [by], f"<{by:.2f} {2 * by}>")
        logger.info(f"{by}, {len(x)}")  # noqa: G004 - as users write
        logger.info("%s", by)
        return x * by

    ours = weft.hybridize(scaled, whole=True)
    for by in (0.5, 1.5, 2.5, 3.5):
        assert torch.equal(ours(torch.ones(2), by), torch.ones(2) * by)
    assert ours.traces == 2
    assert capsys.readouterr().out == "by 0.5 [0.5] <0.50 1.0>\nby 1.5 [1.5] <1.50 3.0>\n"
    assert {"0.5, 2", "0.5", "1.5, 2", "1.5"} == set(caplog.messages)


@pytest.mark.parametrize(
    "used",
    [
        lambda n: print(TABLE[f"{n}"]),
        lambda n: print(f"{n}" == "4"),
        lambda n: print(f"{n}" + "4"),
        lambda n: print(len(f"{n}"), [f"{n}"], *f"{n}"),
    ],
)
def test_what_is_shown_of_a_text_that_decides_is_of_the_call(
    used: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    ours = weft.hybridize(lambda x: (used(x.shape[0]), x * 2)[1])
    for size in NUMBERS[:3]:
        ours(torch.ones(size))
        found = capsys.readouterr().out
        used(size)
        assert found in (capsys.readouterr().out, 2 * capsys.readouterr().out)


def info(key: str) -> float:
    """Not one that shows what it is given."""
    return SQUARES[key]


class Journal:
    """Something with methods that are named as those of loggers."""

    def debug(self, key: str) -> float:
        return SQUARES[key]


SQUARES = {f"{n}": n * n for n in (0.5, 1.5, 2.5, 3.5)}
JOURNAL = Journal()


@pytest.mark.parametrize(
    "used", [lambda by: info(f"{by}"), lambda by: JOURNAL.debug(f"{by}"), lambda by: Journal().debug(f"{by}")]
)
def test_a_function_of_any_name_may_decide_by_a_text(used: Callable[[float], float]) -> None:
    ours = weft.hybridize(lambda x, by: x * used(by))
    for by in (0.5, 1.5, 2.5, 3.5):
        assert torch.equal(ours(torch.ones(2), by), torch.ones(2) * by * by)


def test_a_library_may_catch_that_a_size_has_no_hash() -> None:
    """As einops does, which goes on without a cache then."""
    text = "def remembered(n, known):\n    try:\n        return known[n]\n    except TypeError:\n        return n\n"
    space: dict[str, Any] = {"__name__": "library"}
    exec(compile(text, "/usr/lib/python3/site-packages/library.py", "exec"), space)
    ours = weft.hybridize(lambda x: x.view(space["remembered"](x.shape[0], {}) if x.dim() > 9 else x.shape[0], 2))
    for size in (4, 6, 8, 10):
        ours(torch.ones(size, 2))
    assert ours.traces <= 2
