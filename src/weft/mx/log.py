"""Make loggers that show level, time and place in front of each line: `mx.log`."""

from __future__ import annotations

import logging
import sys
from logging import CRITICAL, DEBUG, ERROR, INFO, NOTSET, WARNING

__all__ = ["CRITICAL", "DEBUG", "ERROR", "INFO", "NOTSET", "WARNING", "getLogger", "get_logger"]

LABELS = {CRITICAL: "C", ERROR: "E", WARNING: "W", INFO: "I", DEBUG: "D"}
RED, GREEN, BLUE, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[34m", "\x1b[0m"


class _Lines(logging.Formatter):
    """A letter for the level, and when and where the line was logged; coloured for a terminal."""

    def __init__(self, coloured: bool) -> None:
        super().__init__(datefmt="%m%d %H:%M:%S")
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        """Write a line."""
        head = f"{LABELS.get(record.levelno, 'U')}{self.formatTime(record, self.datefmt)} {record.process}"
        head += f" {record.pathname}:{record.funcName}:{record.lineno}"
        if self._coloured:
            colour = RED if record.levelno >= WARNING else GREEN if record.levelno >= INFO else BLUE
            head = f"{colour}{head}{PLAIN}"
        text = f"{head}] {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def get_logger(
    name: str | None = None, filename: str | None = None, filemode: str | None = None, level: int = WARNING
) -> logging.Logger:
    """The logger of a name, which writes to a file or to the standard error stream from its first use on."""
    found = logging.getLogger(name)
    if name is not None and not getattr(found, "_init_done", None):
        found._init_done = True  # type: ignore[attr-defined]  # MXNet's mark, which programs read
        handler = logging.FileHandler(filename, filemode or "a") if filename else logging.StreamHandler()
        handler.setFormatter(_Lines(coloured=not filename and sys.stderr.isatty()))
        found.addHandler(handler)
        found.setLevel(level)
    return found


getLogger = get_logger  # its name before
