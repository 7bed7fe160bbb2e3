"""Try what is costly at ever fewer calls: at calls 1, 2, 4, 8, ..."""


class BackOff:
    """Exponential back-off; `first` is the call that is tried first."""

    def __init__(self, first: int = 2) -> None:
        self._calls, self._next = 0, first

    def is_due(self) -> bool:
        """Count a call, and tell whether this is one to try at."""
        self._calls += 1
        if self._calls < self._next:
            return False
        self._next = 2 * self._calls
        return True
