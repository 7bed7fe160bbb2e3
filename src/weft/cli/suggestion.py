"""A misspelt word -> the sentence that guesses what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def did_you_mean(word: str, known: Sequence[str]) -> str | None:
    """Guess the word that was meant; nothing where no known word is close."""
    # Dashes would make every option like every other.
    bare = {name.lstrip("-"): name for name in known}
    meant = word.lstrip("-")
    # A beginning is as good as a misspelling: `dev` means devices.
    begun = [name for name in bare if len(meant) > 1 and name.startswith(meant)]
    close = begun or difflib.get_close_matches(meant, bare, n=1)
    return f"did you mean {bare[close[0]]}?" if close else None
