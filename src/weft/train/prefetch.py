"""Make batches ahead by the engine, while the one before is trained on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sized
from itertools import islice
from typing import Any

from weft.engine import Var, make_engine
from weft.errors import ExecutionError, UsageError
from weft.train.data import Batches
from weft.train.processes.rank_watch import HELPERS

USUAL = 2  # batches ahead
ANEW = "give what can be gone through in every epoch: a list, a DataLoader, an object whose __iter__ begins anew"


class Prefetched:
    """Goes through batches like the thing itself; what stands for the position is that of the batch last given.

    Made ahead by default are `weft.data` batches only: making others may draw random numbers, whose order would change.
    """

    def __init__(self, data: Iterable[Any], ahead: int | None) -> None:
        self.data = data
        self.ahead = ahead if ahead is not None else USUAL if isinstance(data, Batches) else 0
        self._state: dict[str, Any] | None = None

    def __iter__(self) -> Generator[Any, None, None]:
        if not self.ahead:
            for batch in self.data:
                self._state = None  # the thing itself stands where training stands
                yield batch
            return
        iterator, reader = iter(self.data), threading.get_ident()
        position = Var("position in the data")
        coming: deque[tuple[Var, list[Any]]] = deque()

        def push() -> None:
            ready, slot = Var("a batch"), list[Any]()

            def make() -> None:
                HELPERS[reader] = threading.get_ident()
                slot.extend((batch, self._position()) for batch in islice(iterator, 1))
                HELPERS.pop(reader, None)

            engine.push(make, writes=(position, ready), device="data", name="make a batch")
            coming.append((ready, slot))

        try:
            with make_engine({"data": 1}) as engine:
                while True:
                    while len(coming) <= self.ahead:
                        push()
                    ready, slot = coming.popleft()
                    try:
                        engine.wait(ready)
                    except ExecutionError as error:
                        raise (error.__cause__ or error) from None
                    if not slot:
                        self._state = None
                        return
                    batch, self._state = slot[0]
                    yield batch
        finally:
            self._go_back()

    @property
    def total(self) -> int | None:
        """How many batches an epoch has, where that is known."""
        try:
            return len(self.data) if isinstance(self.data, Sized) else None
        except TypeError:  # a DataLoader of an IterableDataset has a length that it cannot tell
            return None

    def state_dict(self) -> dict[str, Any]:
        """Say where training stands in the data."""
        return self._state if self._state is not None else self.data.state_dict()  # type: ignore[attr-defined]

    def without_batches(self, epoch: int) -> UsageError:
        """Say that an epoch had nothing to train on: its loss would be no number, and nobody would know why."""
        fact, kind = f"there was no batch in epoch {epoch}", type(self.data).__name__
        if not isinstance(self.data, Iterator):
            return UsageError(fact, why="the data is empty")
        return UsageError(fact, why=f"the data is a {kind}, which gives its batches only once", fix=ANEW)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on elsewhere."""
        self._state = None
        self.data.load_state_dict(state)  # type: ignore[attr-defined]

    def _go_back(self) -> None:
        """Have the data itself stand where training stands: batches that were made ahead in vain are made again."""
        if self._state is not None and hasattr(self.data, "load_state_dict"):
            self.data.load_state_dict(self._state)
        self._state = None

    def _position(self) -> dict[str, Any] | None:
        return dict(self.data.state_dict()) if hasattr(self.data, "state_dict") else None
