"""Read the texts in `pieces/` -> the pieces that random Python programs are made of.

A piece is

    # name [seldom] [shared | fresh]
    given c$n = {}
    top
        class Counter$n: ...
    body
        c$n['h'] = $e

`body` reads and writes `h`, a float32 tensor of 4 columns, and may add to the list `out`, which is returned. `top`
stands before the program, `init` where its module is made, `before` where a call begins (`number` says which), `around`
is a context in force around all calls. What is given is a parameter, one object at all calls (shared) or a new one at
each (fresh); else either. `$n` is a number of the piece's own, `$e` a random expression of `h`, `$self` the module, and
`$block` on a line of its own stands for other pieces.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "pieces"
PARTS = ("top", "init", "before", "around", "body")
FLAGS = ("seldom", "shared", "fresh")
COMMON, SELDOM = 6, 1


@dataclass(frozen=True)
class Piece:
    """One piece: its texts with holes, the parameters it needs with their values, how often it comes."""

    name: str
    flags: tuple[str, ...]
    given: tuple[tuple[str, str], ...]
    parts: tuple[tuple[str, str], ...]

    def text(self, part: str) -> str:
        """Give one of its texts, empty where it has none."""
        return dict(self.parts).get(part, "")

    @property
    def weight(self) -> int:
        """Say how often it comes: seldom where Weft is known to refuse it, or to differ in nothing else."""
        return SELDOM if "seldom" in self.flags else COMMON

    @property
    def blocks(self) -> int:
        """Count the places for other pieces."""
        return self.text("body").count("$block")


@functools.cache
def pieces() -> dict[str, Piece]:
    """Read all of them, by name."""
    found: dict[str, Piece] = {}
    for path in sorted(FOLDER.glob("*.txt")):
        _, *texts = path.read_text(encoding="utf-8").split("\n# ")
        for text in texts:
            piece = _parsed(text)
            assert piece.name not in found, f"two pieces {piece.name}"
            found[piece.name] = piece
    return found


def _parsed(text: str) -> Piece:
    head, *lines = text.rstrip().splitlines()
    name, *flags = head.split()
    given: list[tuple[str, str]] = []
    parts: dict[str, list[str]] = {}
    part = ""
    for line in lines:
        if line.startswith("    ") or not line:
            parts[part].append(line[4:])
        elif line.startswith("given "):
            parameter, _, value = line.removeprefix("given ").partition(" = ")
            given.append((parameter, value))
        else:
            part = line
            parts[part] = []
    assert "body" in parts, name
    assert set(parts) <= set(PARTS), (name, [*parts])
    assert set(flags) <= set(FLAGS), (name, flags)
    texts = tuple((part, "\n".join(lines)) for part, lines in parts.items())
    return Piece(name, tuple(flags), tuple(given), texts)
