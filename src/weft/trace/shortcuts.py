"""An operator and its arguments -> stand-ins for its results, where their types are known without PyTorch's rule."""

from __future__ import annotations

from typing import Any

from weft.trace.interception.capture import Interception
from weft.trace.shape_shortcuts import SHAPE_SHORTCUTS
from weft.trace.view_shortcuts import VIEW_SHORTCUTS, window_of


def known_result(interception: Interception, target: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Give stand-ins: a view, one result or a tuple of them; None where PyTorch has to be asked."""
    shortcut = SHAPE_SHORTCUTS.get(target)
    if keywords or (shortcut is None and target not in VIEW_SHORTCUTS):
        return None
    with interception.plainly():
        window = window_of(target, arguments)
        if window is not None:
            return interception.window(arguments[0], *window)
        kinds = None if shortcut is None else shortcut(arguments)
    if isinstance(kinds, tuple):
        return tuple(map(interception.placeholder, kinds))
    return None if kinds is None else interception.placeholder(kinds)
