"""Say what went wrong in one message: a fact, a place, a reason and a remedy.

The class of an error says whose fault it is; its text has one format everywhere:

    net.forward branches on the value of a tensor
      where model.py:41   if x.sum() > 0:
      why   hybridize runs Python once; the branch would be frozen to what it was today
      fix   use torch.where(x.sum() > 0, a, b)
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST_CODE = 120
LONGEST_NAME = 60
TERMINAL_CELL = re.compile(r"<ipython-input-(\d+)-\w+>")
NOTEBOOK_CELL = re.compile(r"ipykernel_\d+[/\\]\d+\.py$")


class WeftError(Exception):
    """Base of every error Weft raises on purpose: a fact, and where, why and fix where they are known."""

    def __init__(self, fact: str, *, where: str | None = None, why: str | None = None, fix: str | None = None) -> None:
        # Only the fact goes to args: pickle and copy call cls(*args) and then restore the other attributes by name.
        super().__init__(fact)
        self.fact = fact
        self.where = where
        self.why = why
        self.fix = fix

    def parts(self) -> tuple[tuple[str, str | None], ...]:
        """Give the labelled parts that follow the fact, in the order they are printed."""
        return (("where", self.where), ("why", self.why), ("fix", self.fix))

    def __str__(self) -> str:
        lines = [self.fact]
        for label, text in self.parts():
            if text:
                lines.append(f"  {label:<5} " + text.replace("\n", "\n        "))
        return "\n".join(lines)


class UsageError(WeftError, ValueError):
    """The caller's fault: Weft was asked for something that has no meaning."""


class UnsupportedError(WeftError, NotImplementedError):
    """Nobody's fault: valid PyTorch that cannot run as a whole program, with the way around it."""


class ExecutionError(WeftError, RuntimeError):
    """The machine's fault, or the data's: a correct program failed while it ran."""


class OutOfMemoryError(ExecutionError, MemoryError):
    """The machine, or a limit of this process, has no more memory; what was there before can still be used."""


@contextmanager
def memory_told(name: str) -> Iterator[None]:
    """Raise Python's own error of memory as Weft's, which says what it was for."""
    try:
        yield
    except OutOfMemoryError:
        raise
    except MemoryError as error:
        raise OutOfMemoryError(
            f"there is no memory to make a program of {name}", fix="free memory, or raise the limit (ulimit -v)"
        ) from error


class CheckpointError(ExecutionError):
    """A checkpoint that cannot be written, is damaged, or does not fit; the fact names the file."""


class InternalError(WeftError, RuntimeError):
    """Weft's own fault."""


class MismatchError(InternalError):
    """A checked call that did something else than eager PyTorch: Weft's own fault, found by `check=`."""


def cell_of(filename: str) -> str | None:
    """Name the cell of a notebook whose code has this file's name; None for other files."""
    if found := TERMINAL_CELL.fullmatch(filename):
        return f"cell {found[1]}"
    if not NOTEBOOK_CELL.search(filename):
        return None
    # The one table that says which cell a file is of; IPython's own tracebacks name cells by it.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    number = getattr(getattr(shell, "compile", None), "_filename_map", {}).get(filename)
    return "a cell of the notebook" if number is None else f"cell {number}"


def short_path(filename: str) -> str:
    """Shorten a path to what a reader needs: relative to the working folder or to an import folder, else the name."""
    if cell := cell_of(filename):
        return cell
    path = Path(filename)
    if not path.is_absolute():
        return filename
    roots = [Path.cwd(), *(Path(entry) for entry in sys.path if entry)]
    inside = [path.relative_to(root).as_posix() for root in roots if path.is_relative_to(root)]
    return min(inside, key=len, default=path.name)


def source_line(filename: str, line: int) -> str:
    """Name a place in source code with its text: `model.py:41   if x.sum() > 0:`."""
    code = linecache.getline(filename, line).strip()
    if len(code) > LONGEST_CODE:
        code = code[: LONGEST_CODE - 3] + "..."
    place = f"{short_path(filename)}:{line}"
    return f"{place}   {code}" if code else place


def named(thing: object) -> str:
    """Name what a caller gave: as Python writes it where that is short, else by its class."""
    text = repr(thing)
    if len(text) <= LONGEST_NAME and "\n" not in text:
        return text
    return f"this {type(thing).__name__}"


def counted(count: int, noun: str) -> str:
    """Give a number of things in words."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def first_line_of(error: BaseException) -> str:
    """The class of an exception and the first line of what it says: PyTorch adds frames of C++ to some."""
    line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}"
