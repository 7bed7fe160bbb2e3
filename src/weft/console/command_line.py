"""Answer a command line with its result, and with an exit status that says whose fault a failure is."""

from __future__ import annotations

import importlib
import json
import math
import signal
import sys
import threading
import traceback
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import weft
from weft.console import CTRL_C
from weft.console.arguments import did_you_mean, find_command, greeting, help_of, overview, parse, version_line
from weft.console.commands import COMMANDS, EVERYWHERE, Command
from weft.console.terminal import (
    OutputError,
    Progress,
    forget_output,
    fresh_line,
    open_streams,
    say,
    show,
    style_of,
    text_of,
)
from weft.document.blocks import Document, Style
from weft.errors import ExecutionError, InternalError, UnsupportedError, UsageError, WeftError, source_line
from weft.files import check_writable, given_path
from weft.interrupts import interrupts_after
from weft.owners import Owner, owner_of

SCHEMA = 1
OK, CLAIM_FAILED, USAGE, UNSUPPORTED, EXECUTION, INTERNAL = 0, 1, 2, 3, 4, 70
INTERRUPTED, BROKEN_PIPE, TERMINATED = CTRL_C, 141, 143  # as a shell counts signals

# The first class that fits decides; a command that reads a file turns its faults into an ExecutionError.
STATUSES: tuple[tuple[type[WeftError], int], ...] = (
    (UsageError, USAGE),
    (UnsupportedError, UNSUPPORTED),
    (ExecutionError, EXECUTION),
    (InternalError, INTERNAL),
)
# A closed terminal sends the first; Windows does not have it.
ASKING = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGTERM") if hasattr(signal, name))


def as_json(command: str | None, data: Mapping[str, Any]) -> str:
    """Write what a command found."""
    whole = _finite({"schema": SCHEMA, "command": command, **data})
    return json.dumps(whole, indent=2, ensure_ascii=True, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    """Write null for a number that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return list(map(_finite, value)) if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class Outcome:
    """A document, or a text that is printed as it is; the same as data; and what the process ends with."""

    shown: Document | str
    data: Mapping[str, Any]
    status: int = OK


def status_of(error: WeftError) -> int:
    """Give the exit status of an error: by its class, so by whose fault it is."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), INTERNAL)


def error_data(error: BaseException, fact: str, status: int) -> dict[str, Any]:
    """Give an error as data: its class, its parts and the exit status."""
    known = error.parts() if isinstance(error, WeftError) else ()
    parts = dict.fromkeys(("where", "why", "fix")) | dict(known)
    return {"error": {"class": type(error).__name__, "fact": fact, **parts, "status": status}}


class Terminated(KeyboardInterrupt):
    """Somebody asked the process to end: what cleans up after Ctrl-C cleans up after this."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Have signals that ask the process to end raise `Terminated`; what somebody else answers stays so."""
    here = threading.current_thread() is threading.main_thread()
    taken = [number for number in ASKING if here and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def status_after(error: KeyboardInterrupt) -> int:
    """Give the exit status as a shell counts it: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + error.number if isinstance(error, Terminated) else INTERRUPTED


def told_after(error: KeyboardInterrupt, words: Sequence[str]) -> str:
    """Say that a command was interrupted, and what to do."""
    how = f"ended by {error.number.name}" if isinstance(error, Terminated) else "interrupted"
    told = f"{how}; files are written whole or not at all, so nothing is left half done"
    ways = [command.interrupted for command in COMMANDS if command.name in words[:1]]
    return "\n".join([told, *(f"  fix   {way}" for way in ways)])


def _raise(number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated(number)


def users_line(error: BaseException) -> str | None:
    """Give the user's line that the exception came from; None where Weft, or nobody's file, was the last to act.

    What PyTorch and other libraries raise is the fault of whoever called them.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        owner = owner_of(frame.filename)
        if owner is Owner.WEFT:
            return None
        if owner is Owner.USER and frame.filename.endswith(".py"):
            return source_line(frame.filename, frame.lineno or 1)
    return None


def users_traceback(error: BaseException) -> str:
    """Give the traceback from the user's first line on: how Weft came there is nothing to the user."""
    place = error.__traceback__
    while place is not None and owner_of(place.tb_frame.f_code.co_filename) is Owner.WEFT:
        place = place.tb_next
    return "".join(traceback.format_exception(type(error), error, place or error.__traceback__))


HELP, VERSION = ("--help", "-h", "help"), ("--version", "-V")


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line; `words` are those behind `weft`, by default those of this process."""
    given = list(sys.argv[1:] if words is None else words)
    open_streams()
    try:
        return _status(given)
    except BrokenPipeError:
        forget_output()  # whoever read it has gone, such as `head`
        return BROKEN_PIPE
    except OutputError as error:
        forget_output()
        say(f"weft: {error}")
        return status_of(error)


def _status(given: list[str]) -> int:
    """Answer, or say what went wrong."""
    try:
        with interruptible():
            return _answer(given)
    except KeyboardInterrupt as error:
        fresh_line()
        told = told_after(error, given)
        return _fail(given, error, told, status_after(error))
    except (BrokenPipeError, OutputError):
        raise
    except WeftError as error:
        return _fail(given, error, str(error), status_of(error))
    except Exception as error:  # noqa: BLE001  # the last line of defence: whatever it is, it is said in full
        if line := users_line(error):
            say(users_traceback(error))
            theirs = ExecutionError(f"{type(error).__name__}: {error}", where=line)
            return _fail(given, theirs, str(theirs), status_of(theirs))
        say(traceback.format_exc())
        told = f"{type(error).__name__}: this is a mistake in Weft; please report the lines above with `weft env`"
        return _fail(given, error, told, INTERNAL)


def _answer(words: list[str]) -> int:
    style = style_of(ascii_only="--ascii" in words)
    plain = [word for word in words if word != "--ascii"]
    bare = [word for word in plain if word != "--json"]
    data = len(bare) < len(plain)
    if not bare:
        return _tell(greeting(), style, data=data)
    if bare[0] in VERSION:
        return _tell(version_line(), style, data=data)
    if bare[0] in HELP:
        return _tell(help_of(find_command(bare[1])) if bare[1:] else overview(), style, bare[1:], data=data)
    name, *rest = plain
    if name.startswith("-"):
        known = ("--help", "--version")
        behind = "options stand behind a command: weft env --json"
        fix = behind if name in {each.name for each in EVERYWHERE} else did_you_mean(name, known) or behind
        raise UsageError(
            f"weft does not take {name!r}", why=f"before a command it takes {' and '.join(known)}", fix=fix
        )
    return _run(find_command(name), rest, style)


def _run(command: Command, words: list[str], style: Style) -> int:
    given = parse(command, words)
    given.ascii = style.ascii
    if given.help:
        return _tell(help_of(command), style, [command.name], data=given.json)
    if not given.show_code:
        _check_paths(command, given)
    if given.show_code:
        code = getattr(importlib.import_module(command.home), f"{command.name}_call")(given)
        show(as_json(command.name, {"code": code}) if given.json else code, style)
        return OK
    # What a model prints is a message; who watches wants to see each result at once.
    with nullcontext() if getattr(given, "watch", False) else redirect_stdout(sys.stderr):
        outcome = _outcome(command, given)
    show(as_json(command.name, outcome.data) if given.json else outcome.shown, style)
    return outcome.status


def _outcome(command: Command, given: Namespace) -> Outcome:
    """Do what a command is for, and tell how it goes."""
    with Progress() as progress:
        progress.stage("importing PyTorch")
        # Imported here, by its name in the table: commands need PyTorch, which takes seconds to import. A library may
        # answer an exception inside of an import by going on with a half of what it needs.
        with interrupts_after():
            home = importlib.import_module(command.home)
        progress.stage("")
        outcome: Outcome = getattr(home, f"{command.name}_run")(given, progress)
        return outcome


def _tell(told: Document | str, style: Style, about: Sequence[str] = (), *, data: bool) -> int:
    """Show what is said about Weft itself, or about a command."""
    if data:
        found = {"version": weft.__version__, "help": text_of(told, style)}
        told = as_json(about[0] if about else None, found)
    show(told, style)
    return OK


def _check_paths(command: Command, given: Namespace) -> None:
    """Ask for all that will be written, before anything is imported or measured."""
    for argument in command.arguments:
        name = getattr(given, argument.field)
        if argument.writes and name is not None:
            path = given_path(name, argument.name, f"{argument.name} {argument.shows}")
            check_writable(path, f"{argument.name} {name}")


def _fail(words: list[str], error: BaseException, told: str, status: int) -> int:
    """Say what went wrong, also as data where data was asked for."""
    say(f"weft: {told}")
    if "--json" in words:
        known = words[0] in {command.name for command in COMMANDS}
        fact = error.fact if isinstance(error, WeftError) else told
        show(as_json(words[0] if known else None, error_data(error, fact, status)), style_of(ascii_only=True))
    return status
