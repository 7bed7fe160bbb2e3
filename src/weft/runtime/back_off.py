"""Exponential back-off: due at calls 2, 4, 8, ..."""


class BackOff:
    """The second call, as there may be many alike, and then ever fewer."""

    def __init__(self) -> None:
        self._calls, self._next = 0, 2

    def is_due(self) -> bool:
        """Count a call, and tell whether this is one to try at."""
        self._calls += 1
        if self._calls < self._next:
            return False
        self._next = 2 * self._calls
        return True
