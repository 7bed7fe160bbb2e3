"""The words of a command line -> the command and its values, by the table of commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from weft.cli.commands import COMMANDS, EVERYWHERE, Argument, Command
from weft.cli.suggestion import did_you_mean
from weft.errors import UsageError


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        name = self.prog.rpartition(" ")[2]
        raise UsageError(f"{self.prog}: {message}", fix=f"weft {name} --help shows examples")


def find_command(name: str) -> Command:
    """Find a command by its name."""
    for command in COMMANDS:
        if command.name == name:
            return command
    names = [command.name for command in COMMANDS]
    raise UsageError(
        f"there is no command {name!r}",
        why="the commands are " + ", ".join(names),
        fix=did_you_mean(name, names) or "weft --help says what each is for",
    )


def parse(command: Command, words: Sequence[str]) -> argparse.Namespace:
    """Read the words behind a command's name."""
    parser = _Parser(prog=f"weft {command.name}", add_help=False, allow_abbrev=False)
    known: list[str] = []
    for argument in (*command.arguments, *EVERYWHERE):
        parser.add_argument(argument.name, **_options(argument))
        known.append(argument.name)
    options = [name for name in known if name.startswith("-")]
    # Help is given also where the rest is not right yet.
    if "--help" in words:
        return argparse.Namespace(help=True, json=False, ascii="--ascii" in words, show_code=False)
    given, rest = parser.parse_known_args(list(words))
    if rest:
        word = rest[0].partition("=")[0]
        raise UsageError(
            f"weft {command.name} does not take {rest[0]!r}",
            why="its options are " + ", ".join(options) if word.startswith("-") else "it was given enough values",
            fix=(did_you_mean(word, options) if word.startswith("-") else None)
            or f"weft {command.name} --help shows examples",
        )
    return given


def _options(argument: Argument) -> dict[str, Any]:
    """Say an argument in the terms of argparse."""
    by_place = not argument.name.startswith("-")
    if not by_place and argument.shows is None:
        return {"action": "store_true"}
    options: dict[str, Any] = {"type": _reader(argument), "default": argument.default}
    if by_place:
        return options | ({"nargs": "+"} if argument.many else {"nargs": "?"} if argument.optional else {})
    if argument.many:
        options |= {"action": "append", "default": []}
    return options | {"metavar": argument.shows}


def _reader(argument: Argument) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if argument.choices and text not in argument.choices:
            listed = ", ".join(argument.choices)
            guess = did_you_mean(text, argument.choices)
            raise argparse.ArgumentTypeError(f"{text!r} is none of {listed}" + (f"; {guess}" if guess else ""))
        try:
            return argument.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is no {argument.shows}, at least 1") from error

    return read
