"""Describe a stop of the tour: its code, its claims, and its texts in each language."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.document.blocks import Picture

Names = Mapping[str, Any]
FOLDER = Path(__file__).parent / "languages"


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim: its name in the texts, the chapter's own figure, what was found here, and whether it holds.

    `times` are seconds before and after, where that is what was found.
    """

    name: str
    chapter: str
    here: str
    holds: bool
    times: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop; `needs` are public names of Weft without which it is not listed.

    `code` is run as a program of its own. `check` is given the names it has bound and what it printed, `draw` names.
    """

    name: str
    code: str
    check: Callable[[Names, str], tuple[Claim, ...]]
    needs: tuple[str, ...] = ()
    draw: Callable[[Names], Picture] | None = None


@dataclass(frozen=True, slots=True)
class Texts:
    """`words` of the tour itself, of each stop a title and a text, and the sentence of each claim."""

    language: str
    words: dict[str, str]
    stops: dict[str, dict[str, str]]
    claims: dict[str, str]

    def counted(self, name: str, count: int) -> str:
        """Give a number of things in words; a language that has a form for one thing writes it first, before a bar."""
        forms = self.words[name].split("|")
        return forms[0 if count == 1 else -1].format(count=count)


def read_texts(language: str) -> Texts:
    """Read the file of a language."""
    found = json.loads((FOLDER / f"{language}.json").read_text(encoding="utf-8"))
    return Texts(language, found["words"], found["stops"], found["claims"])
