"""Answer a command line with its result, and with an exit status that says whose fault a failure is."""

from __future__ import annotations

import importlib
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout

import weft
from weft.console.arguments import did_you_mean, find_command, greeting, help_of, overview, parse, version_line
from weft.console.commands import COMMANDS, EVERYWHERE, Command
from weft.console.outcome import (
    BROKEN_PIPE,
    INTERNAL,
    OK,
    Outcome,
    as_json,
    error_data,
    interruptible,
    status_after,
    status_of,
    told_after,
    users_line,
    users_traceback,
)
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
from weft.errors import ExecutionError, UsageError, WeftError
from weft.files import check_writable, given_path
from weft.interrupts import interrupts_after

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
        about = [word for word in bare[1:] if word not in HELP]
        return _tell(help_of(find_command(about[0])) if about else overview(), style, about, data=data)
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
