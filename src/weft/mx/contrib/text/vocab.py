"""Number the words of a text, the frequent ones first: `mx.contrib.text.vocab`, and `utils`, which counts them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

__all__ = ["Vocabulary", "count_tokens_from_str"]

UNKNOWN = 0  # the number of what is not in a vocabulary


def count_tokens_from_str(
    source_str: str,
    token_delim: str = " ",
    seq_delim: str = "\n",
    to_lower: bool = False,
    counter_to_update: Counter[str] | None = None,
) -> Counter[str]:
    """Count the words of a text, which are between delimiters (regular expressions)."""
    words = [word for word in re.split(f"{token_delim}|{seq_delim}", source_str) if word]
    counter: Counter[str] = Counter() if counter_to_update is None else counter_to_update
    counter.update(word.lower() for word in words) if to_lower else counter.update(words)
    return counter


class Vocabulary:
    """Words with numbers: 0 is the unknown word, then come reserved ones, then those of a counter by frequency."""

    def __init__(
        self,
        counter: Counter[str] | None = None,
        most_freq_count: int | None = None,
        min_freq: int = 1,
        unknown_token: str = "<unk>",
        reserved_tokens: list[str] | None = None,
    ) -> None:
        reserved = reserved_tokens or []
        if min_freq <= 0:
            raise AssertionError("`min_freq` must be set to a positive value.")
        if unknown_token in reserved:
            raise AssertionError("`reserved_token` cannot contain `unknown_token`.")
        if len(set(reserved)) != len(reserved):
            raise AssertionError("`reserved_tokens` cannot contain duplicate reserved tokens.")
        self._unknown_token = unknown_token
        self._reserved_tokens = None if reserved_tokens is None else list(reserved_tokens)
        self._idx_to_token = [unknown_token, *reserved]
        if counter is not None:
            self._idx_to_token += _frequent(counter, most_freq_count, min_freq, {unknown_token, *reserved})
        self._token_to_idx = {token: place for place, token in enumerate(self._idx_to_token)}

    def __len__(self) -> int:
        return len(self._idx_to_token)

    @property
    def token_to_idx(self) -> dict[str, int]:
        """The number of each word."""
        return self._token_to_idx

    @property
    def idx_to_token(self) -> list[str]:
        """The word of each number."""
        return self._idx_to_token

    @property
    def unknown_token(self) -> str:
        """What stands for words that are not known."""
        return self._unknown_token

    @property
    def reserved_tokens(self) -> list[str] | None:
        """Words that are there whether they are frequent or not."""
        return self._reserved_tokens

    def to_indices(self, tokens: Any) -> Any:
        """The number of a word, or those of a list of words."""
        if isinstance(tokens, list):
            return [self._token_to_idx.get(token, UNKNOWN) for token in tokens]
        return self._token_to_idx.get(tokens, UNKNOWN)

    def to_tokens(self, indices: Any) -> Any:
        """The word of a number, or those of a list of numbers."""
        if isinstance(indices, list):
            return [self.to_tokens(index) for index in indices]
        if not isinstance(indices, int) or indices >= len(self):
            raise ValueError(f"Token index {indices} in the provided `indices` is invalid.")
        return self._idx_to_token[indices]


def _frequent(counter: Counter[str], most: int | None, least: int, known: set[str]) -> list[str]:
    """The words of a counter by frequency, equally frequent ones by the alphabet, without those that are known."""
    if not isinstance(counter, Counter):
        raise AssertionError("`counter` must be an instance of collections.Counter.")  # noqa: TRY004  # MXNet's
    words = sorted(counter, key=lambda word: (-counter[word], word))
    return [word for word in words if counter[word] >= least and word not in known][:most]
