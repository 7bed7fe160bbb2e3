"""Read the mutants that are known to change nothing that a caller can see: `equivalent.txt`, a reason with each."""

from __future__ import annotations

from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("equivalent.txt")


@cache
def known_equivalents() -> dict[tuple[str, str], str]:
    """Give the reason of each mutant, by its file and its difference.

    An entry is the file's path, lines with - and +, then lines with = that say why; entries are blank lines apart.
    """
    found: dict[tuple[str, str], str] = {}
    for entry in FILE.read_text(encoding="utf-8").split("\n\n"):
        lines = [line for line in entry.strip("\n").split("\n") if line and not line.startswith("#")]
        if not lines:
            continue
        path, *rest = lines
        difference = "\n".join(line for line in rest if line[0] in "-+")
        reason = " ".join(line[1:].strip() for line in rest if line[0] == "=")
        assert reason, f"no reason is given for the mutant of {path}: {difference}"
        found[path, difference] = reason
    return found
