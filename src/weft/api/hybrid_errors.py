"""Refuse what `weft.hybridize` cannot be told, and show of errors what its user needs."""

from __future__ import annotations

from typing import Any, NoReturn

from weft.config import config
from weft.errors import InternalError, UsageError, WeftError
from weft.owners import show_users_frames


def refuse_active(active: Any) -> NoReturn:
    """Refuse what stands behind the module or function and is no option."""
    raise UsageError(
        f"hybridize(thing, {type(active).__name__})",
        why="behind the module or function stands whether it is to run as programs: True or False",
        fix="weft.hybridize(net), then call it: net(x); for the program itself weft.program(net, x)",
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


def show_less(error: WeftError) -> None:
    """Show of an error what its text says and the user's own frames; all with WEFT_LOG=debug, and of our mistakes."""
    if isinstance(error, InternalError):
        return
    try:
        everything = config().log == "debug"
    except UsageError:  # that is the error
        everything = False
    if not everything:
        show_users_frames(error)
