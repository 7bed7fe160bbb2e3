"""Say how a module or function is to be hybridized: what users may pass behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.api.declared_sizes import size_rows
from weft.api.hybrid_errors import refuse_check
from weft.compile.precision import FULL, refuse_precision
from weft.config import config
from weft.errors import UsageError


@dataclass(frozen=True, slots=True)
class HybridOptions:
    """The options of `weft.hybridize`.

    `whole`: code that no program can be made of is an error. `python`: whether what code prints is printed once, when
    its program is made, or at each run. `fallback`: a warning says that code runs imperatively. `check`: how many of
    the first calls are made by eager PyTorch too. `precision`: in what products are computed. `sizes`: which vary.
    """

    whole: bool | None = None
    python: str = "once"
    fallback: str | None = None
    check: int = 0
    precision: str = FULL
    sizes: Any = ()  # as users write them; rows once they have been read

    def __post_init__(self) -> None:
        """Refuse what no option can be."""
        refuse_precision(self.precision)
        if self.check and self.precision != FULL:
            raise UsageError(
                f"check={self.check} beside precision={self.precision!r}",
                why="a check compares with eager PyTorch, which computes in full",
                fix="check the module without a precision, then hybridize it again with one",
            )
        if self.fallback not in (None, "eager"):
            raise UsageError(
                f"fallback is {self.fallback!r}", why="there is one fallback", fix='use fallback="eager" or None'
            )
        if self.whole is not None and not isinstance(self.whole, bool):
            raise UsageError(f"whole is {self.whole!r}", why="it is True or False", fix="use True or leave it out")
        if self.python not in PYTHON:
            raise UsageError(
                f"python is {self.python!r}", why="code prints once or at each run", fix='use "once" or "run"'
            )
        if self.whole and (self.fallback is not None or self.python == "run"):
            raise UsageError(
                "whole=True beside another way to run what is no program",
                why="with whole=True, what no program can be made of is an error",
                fix="leave out one of both",
            )
        refuse_check(self.check)
        object.__setattr__(self, "sizes", size_rows(self.sizes))

    def decides(self) -> bool:
        """Whether values may decide between paths."""
        return self.fallback is None and not self.refuses()

    def refuses(self) -> bool:
        """Whether code that no program can be made of is an error: where nothing else is said, the environment says."""
        if self.whole is not None or self.fallback is not None or self.python == "run":
            return bool(self.whole)
        return config().whole == "on"


PYTHON = ("once", "run")
DEFAULTS = HybridOptions()
