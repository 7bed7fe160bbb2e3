"""Remember the signatures that no program can be made of, and let most of their calls pass without a look at them.

Such a call is run by Python. To see that it is one of these takes longer than many an operator: where all calls are,
ever more of them go by unseen between two that are looked at, which see whether others have come.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from weft.errors import WeftError
from weft.trace.signature import Key, without_sizes

MOST_UNSEEN = 256  # calls between two that are looked at
MOST_REFUSED = 64  # signatures


class RefusedCalls:
    """The signatures of one object that run by Python, each with the error that says why; any thread may ask."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._errors: OrderedDict[Key, WeftError] = OrderedDict()
        self.unseen = 0  # calls that are still to go by
        self._next_unseen = 1
        self._training: Any = None

    def __bool__(self) -> bool:
        return bool(self._errors)

    def errors(self) -> list[WeftError]:
        """Why there is no program, each reason once."""
        return list({str(error): error for error in self._errors.values()}.values())

    def is_next(self) -> bool:
        """Whether the next call goes by unseen."""
        if self.unseen <= 0:
            return False
        self.unseen -= 1
        return getattr(self._root, "training", None) is self._training

    def came_again(self, *, alone: bool) -> None:
        """Note a call of such a signature; where there are no others, `alone`, those that follow go by unseen."""
        if not alone:
            return
        self._training = getattr(self._root, "training", None)
        self.unseen, self._next_unseen = self._next_unseen, min(2 * self._next_unseen, MOST_UNSEEN)

    def add(self, key: Key, error: WeftError) -> None:
        """Note that there is no program for calls of this signature, whatever their sizes."""
        error.__cause__ = error.__context__ = None  # frames hold tensors
        self._errors[self._place(key)] = error.with_traceback(None)
        self._next_unseen = 1
        if len(self._errors) > MOST_REFUSED:
            self._errors.popitem(last=False)

    def error(self, key: Key) -> WeftError | None:
        """Why there is no program for a signature; None where there may be one."""
        return self._errors.get(self._place(key)) if self._errors else None

    def _place(self, key: Key) -> Key:
        return (getattr(self._root, "training", None), without_sizes(key))
