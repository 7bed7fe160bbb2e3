"""Say how a module or function is to be hybridized, and refuse what `weft.hybridize` cannot be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import CodeType
from typing import Any, NoReturn

import torch
from torch import nn

from weft.api.declared_sizes import size_rows
from weft.compile.precision import FULL, refuse_precision
from weft.config import config
from weft.errors import UnsupportedError, UsageError, named, source_line

FORGOTTEN = "does what made it give it back? With return, say"
CHOSEN = "leave it out: Weft finds that out by itself"
# What people know from torch.compile and from MXNet, under its name here.
OF_OTHERS = {
    "fullgraph": "whole=True, under which code that no program can be made of is an error",
    "dynamic": f'{CHOSEN}; sizes={{"x": {{0: "batch"}}}} names sizes that vary',
    **dict.fromkeys(("mode", "backend", "options"), f'{CHOSEN}; torch.compile(net, backend="weft") takes it'),
    **dict.fromkeys(("static_alloc", "static_shape", "inline_limit"), f"{CHOSEN}; weft.mx takes it"),
    **dict.fromkeys(("forward_bulk_size", "backward_bulk_size"), f"{CHOSEN}; weft.mx takes it"),
    "disable": "active=False",
    "dtype": 'precision="bfloat16", or net.to(...)',
}


def refuse_active(active: Any) -> NoReturn:
    """Refuse what stands behind the module or function and is no option."""
    raise UsageError(
        f"hybridize(thing, {type(active).__name__})",
        why="behind the module or function stands whether it is to run as programs: True or False",
        fix="weft.hybridize(net), then call it: net(x); for the program itself weft.program(net, x)",
    )


def refuse_unknown_options(given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse a name that no option has, and tell the one that was meant."""
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, n=1, cutoff=0.5)
            raise UsageError(
                f"hybridize has no option {name!r}",
                why="its options are " + ", ".join(known),
                fix=OF_OTHERS.get(name, f"did you mean {close[0]}?" if close else None),
            )


def refuse_check(check: Any) -> None:
    """Refuse what is no number of calls."""
    if not isinstance(check, int) or isinstance(check, bool) or check < 0:
        raise UsageError(
            f"check is {check!r}",
            why="it says how many of the first calls are made by eager PyTorch too",
            fix="use a whole number of calls, such as check=3; 0 checks none",
        )


def refuse_wrong(thing: Any) -> None:
    """Refuse what is neither a module nor a function."""
    if isinstance(thing, type):
        raise UsageError(
            f"the class {thing.__name__} cannot be hybridized",
            why="programs belong to a module or a function; a class only makes them",
            fix=f"hybridize what it makes: weft.hybridize({thing.__name__}(...))",
        )
    if not callable(thing):
        inside = isinstance(thing, (list, tuple, dict)) and bool(thing)
        raise UsageError(
            f"{named(thing)} cannot be hybridized",
            why="it is neither a module nor a function",
            fix="hybridize each of what is in it" if inside else FORGOTTEN if thing is None else None,
        )


def refuse_compiled(module: nn.Module) -> None:
    """Refuse a module that another compiler has compiled: there is no Python in it that Weft could follow."""
    if isinstance(module, torch.jit.ScriptModule):
        raise UsageError(
            f"{named(module)} cannot be hybridized",
            why="TorchScript has compiled it, and runs it itself",
            fix="hybridize the module that it was made of",
        )
    if isinstance(found := getattr(module, "_orig_mod", None), nn.Module):  # as torch.compile names it
        raise UsageError(
            f"torch.compile has compiled this {type(found).__name__} already",
            why="one of both compiles a module",
            fix='hybridize the module itself, weft.hybridize(net._orig_mod), or torch.compile(net, backend="weft")',
        )


def too_many_paths(name: str) -> UnsupportedError:
    """The error for code that values lead through in ever other ways."""
    return UnsupportedError(
        f"values decide in ever other ways what {name} does",
        why="each way is a program of its own",
        fix="keep such values in tensors, or hybridize the parts around it",
    )


def many_programs(name: str, most: int, misses: Sequence[str]) -> str:
    """Say that an object has so many programs that the oldest go, and why."""
    reasons = Counter(sentence.partition(" was ")[0] for sentence in misses)
    listed = ", ".join(f"{reason} ({times} times)" for reason, times in reasons.most_common(5))
    return (
        f"weft: {name} has more than {most} programs; the oldest go. What changed: {listed}. "
        "Pad to a few sizes, or see weft.explain"
    )


def first_line(function: Callable[..., Any]) -> str | None:
    """Give the line where a function's code begins."""
    code = getattr(function, "__code__", None)
    return source_line(code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else None


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
