"""A stop of the tour: code that is shown and run, and the claims it is checked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.document import Picture

Names = Mapping[str, Any]


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
