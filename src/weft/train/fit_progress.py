"""Batches that are done -> one line that is rewritten on a terminal; elsewhere a line every tenth of an epoch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

QUIET = 2.0  # seconds that an epoch may take without a word
OFTEN = 0.2  # seconds between two rewritings
ERASE = "\r\033[K"


class FitProgress:
    """Tells how far an epoch is; `total` batches, if that is known, `done` of them earlier."""

    def __init__(self, epoch: int, total: int | None, say: Callable[[str], None] | None, done: int = 0) -> None:
        self._epoch, self._total, self._say = epoch, total, say
        self._before = done  # batches of the epoch that were trained on before, in a run that was stopped
        self._start = self._told = time.monotonic()
        self._tenth = done * 10 // total if total else 0
        self._live = say is print and sys.stdout.isatty()
        self._shown = False

    def after_batch(self, done: int, loss: Any) -> None:
        """Tell after a batch, if it is time to; only then is the loss looked at."""
        now = time.monotonic()
        if self._say is None or now - self._start < QUIET:
            return
        if self._live:
            if now - self._told >= OFTEN:
                self._told, self._shown = now, True
                sys.stdout.write(ERASE + self._line(done, loss, now))
                sys.stdout.flush()
            return
        tenth = done * 10 // self._total if self._total else 0
        if tenth > self._tenth and done < (self._total or 0):
            self._tenth = tenth
            self._say(self._line(done, loss, now))

    def end(self) -> None:
        """Take the line away."""
        if self._shown:
            sys.stdout.write(ERASE)
            sys.stdout.flush()

    def _line(self, done: int, loss: Any, now: float) -> str:
        of = f"/{self._total} ({100 * done // self._total} %)" if self._total else ""
        rate = (done - self._before) / (now - self._start)
        return f"epoch {self._epoch}: batch {done}{of}, loss {float(loss):.4g}, {rate:.3g} batches/s"
