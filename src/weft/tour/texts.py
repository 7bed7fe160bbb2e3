"""A language -> the words of the tour: titles, explanations and claims."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "languages"


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
