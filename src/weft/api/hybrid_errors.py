"""Refuse what `weft.hybridize` cannot be told, and say what is wrong with what it was given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from types import CodeType
from typing import Any, NoReturn

from weft.errors import UnsupportedError, UsageError, source_line


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
                fix=f"did you mean {close[0]}?" if close else None,
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
        raise UsageError(f"{thing!r} cannot be hybridized", why="it is neither a module nor a function")


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
