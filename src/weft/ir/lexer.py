"""Cut the text of a Graph into words, numbers and signs, with the line and column of each; it may be of any origin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from weft.errors import UsageError


@dataclass(frozen=True, slots=True)
class TextLimits:
    """What a text may at most contain; past a limit it is refused before anything is built from it."""

    characters: int = 1 << 26
    depth: int = 30
    digits: int = 320  # of one number: every float64 written out has fewer


class ParseError(UsageError):
    """Text that is not a Graph: where in the text, and what was expected there."""

    def __init__(
        self, fact: str, *, line: int = 0, column: int = 0, expected: str = "", why: str | None = None
    ) -> None:
        super().__init__(
            fact,
            where=f"line {line}, column {column} of the graph's text" if line else None,
            why=why,
            fix=f"expected here: {expected}" if expected else None,
        )
        self.line = line
        self.column = column
        self.expected = expected


@dataclass(frozen=True, slots=True)
class Token:
    """One word of the text; `kind` is a name of PATTERN, or the sign itself."""

    kind: str
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end of the text"
        return self.text if len(self.text) <= 40 else self.text[:37] + "..."


PATTERN = re.compile(
    r"""
      (?P<newline>\n)
    | (?P<space>[ \t\r]+)
    | (?P<table>\#[0-9]+)
    | (?P<comment>\#[^\n]*)
    | (?P<string>"(?:[^"\\\n]|\\[^\n])*")
    | (?P<name>%[A-Za-z0-9_.]+)
    | (?P<written>![0-9]+)
    | (?P<device>@[a-z]+(?::[0-9]+)?)
    | (?P<number>-?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|inf\b|nan\b))
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)
    | (?P<arrow><-)
    | (?P<sign>//|[()\[\]{},:=?*+])
    """,
    re.VERBOSE | re.ASCII,
)
IGNORED = ("newline", "space", "comment")


class SizeReader(Protocol):
    """What reads sizes that are made of named ones."""

    def sees(self, token: Token) -> bool:
        """Whether a size begins with a token that was taken, where a literal may stand."""

    def read(self, token: Token) -> int:
        """Read a size, from a token that was taken."""


class Reader:
    """Reads tokens one after the other, one ahead."""

    sizes: SizeReader | None = None  # of a text in which sizes have names

    def __init__(self, text: str, limits: TextLimits) -> None:
        if len(text) > limits.characters:
            raise ParseError(f"a graph's text of {len(text)} characters; the limit is {limits.characters}")
        self.limits = limits
        self.comments: dict[int, str] = {}
        self._depth = 0
        self._last_line = 1
        self._tokens = self._scan(text)
        self.next = next(self._tokens)

    def take(self) -> Token:
        """Take the next token."""
        token = self.next
        self._last_line = token.line
        if token.kind != "end":
            self.next = next(self._tokens)
        return token

    def expect(self, kind: str, expected: str = "") -> Token:
        """Take the next token, which must be of this kind (for a word or sign: may be that very text)."""
        if not self.sees(kind):
            raise self.error(expected or kind)
        return self.take()

    def sees(self, kind: str) -> bool:
        """Whether the next token is of this kind, or this very word or sign."""
        return self.next.kind == kind or (self.next.kind == "word" and self.next.text == kind)

    def skip(self, kind: str) -> bool:
        """Take the next token if it is of this kind."""
        found = self.sees(kind)
        if found:
            self.take()
        return found

    def error(self, expected: str, token: Token | None = None, why: str | None = None) -> ParseError:
        """Say what was expected at a token (by default the next)."""
        at = token or self.next
        return ParseError(f"{at} does not fit", line=at.line, column=at.column, expected=expected, why=why)

    def comment(self) -> str:
        """The comment on the line of the token taken last."""
        return self.comments.get(self._last_line, "")

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Count one level of brackets; too many are an error instead of an exhausted stack."""
        self._depth += 1
        if self._depth > self.limits.depth:
            raise self.error(f"brackets at most {self.limits.depth} deep")
        yield
        self._depth -= 1

    def _scan(self, text: str) -> Iterator[Token]:
        position, line, line_start = 0, 1, 0
        while position < len(text):
            match = PATTERN.match(text, position)
            kind = match.lastgroup if match else None
            column = position - line_start + 1
            if match is None or kind is None:
                raise ParseError(f"{text[position]!r} is no sign of the Graph language", line=line, column=column)
            position = match.end()
            if kind == "newline":
                line, line_start = line + 1, position
            elif kind == "comment":
                self.comments[line] = match.group()[1:].strip()
            elif kind == "number" and len(match.group()) > self.limits.digits:
                raise ParseError(f"a number of {len(match.group())} digits", line=line, column=column)
            elif kind not in IGNORED:
                yield Token(match.group() if kind in ("sign", "arrow") else kind, match.group(), line, column)
        yield Token("end", "", line, position - line_start + 1)
