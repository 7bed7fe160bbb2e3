"""A misspelt word -> the sentence that guesses what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def did_you_mean(word: str, known: Sequence[str]) -> str | None:
    """Guess the word that was meant; nothing where no known word is close."""
    # A beginning is as good as a misspelling: `dev` means devices.
    begun = [name for name in known if len(word) > 1 and name.startswith(word)]
    close = begun or difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else None
