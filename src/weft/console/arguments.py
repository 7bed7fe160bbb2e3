"""Parse the words of a command line by the table of commands, and write the help of each from it."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import weft
from weft.console.commands import COMMANDS, EVERYWHERE, Argument, Command
from weft.document.blocks import Document, Heading, Paragraph, Table, facts
from weft.errors import UsageError

PROMISE = "ordinary imperative PyTorch, run as whole compiled programs"
FIRST_STEPS = (
    ("weft doctor net.py:net", "can this model run as a program? what is in the way?"),
    ("weft bench net.py:net", "eager, compiled, hybrid: measured here"),
    ("weft show net.py:net", "the program as text"),
    ("weft run net.weft", "run a saved program"),
    ("weft devices", "what this machine has, and how fast it is"),
    ("weft --help", "all commands"),
)
STATUSES = (
    ("0", "all is well"),
    ("1", "a claim or a check does not hold here"),
    ("2", "the command was not understood"),
    ("3", "this cannot run as a program, or not on this machine"),
    ("4", "running failed, or a file is damaged"),
    ("70", "a mistake in Weft"),
    ("130", "interrupted"),
)


def did_you_mean(word: str, known: Sequence[str]) -> str | None:
    """Guess the word that was meant; nothing where no known word is close."""
    # Dashes would make every option like every other.
    bare = {name.lstrip("-"): name for name in known}
    meant = word.lstrip("-")
    # A beginning is as good as a misspelling: `dev` means devices.
    begun = [name for name in bare if len(meant) > 1 and name.startswith(meant)]
    close = begun or difflib.get_close_matches(meant, bare, n=1)
    return f"did you mean {bare[close[0]]}?" if close else None


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        told = message.removeprefix("argument ").replace(": expected one argument", " needs a value behind it")
        raise UsageError(told, fix=f"{self.prog} --help shows examples")


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
    if "--help" in words or "-h" in words:
        return argparse.Namespace(help=True, json="--json" in words, ascii="--ascii" in words, show_code=False)
    given, rest = parser.parse_known_args(list(words))
    if rest:
        raise _surplus(command, rest[0], options)
    for argument in command.arguments:
        if argument.needed and not getattr(given, argument.name):
            raise UsageError(
                f"weft {command.name} needs {argument.name}",
                why=f"{argument.name} is {argument.sentence}",
                fix=f"{command.examples[0][0]}; weft {command.name} --help shows more",
            )
    return given


def _surplus(command: Command, word: str, options: list[str]) -> UsageError:
    """Say that a word is one too many, or no option at all."""
    places = [argument.name for argument in command.arguments if argument.by_place]
    guess = None
    if word.startswith("-"):
        why = "its options are " + ", ".join(options)
        guess = did_you_mean(word.partition("=")[0], options)
    else:
        why = f"it takes {' and '.join(places)}, and options" if places else "it takes options only"
    fix = guess or f"weft {command.name} --help shows examples"
    return UsageError(f"weft {command.name} does not take {word!r}", why=why, fix=fix)


def _options(argument: Argument) -> dict[str, Any]:
    """Say an argument in the terms of argparse."""
    if not argument.by_place and argument.shows is None:
        return {"action": "store_true"}
    options: dict[str, Any] = {"type": _reader(argument), "default": argument.default}
    if argument.by_place:
        # Whether one is missing is asked last: a misspelt option is the better message.
        return options | {"nargs": "*" if argument.many else "?"}
    if argument.many:
        options |= {"action": "append", "default": []}
    return options | {"metavar": argument.shows}


def _reader(argument: Argument) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if argument.choices and text not in argument.choices:
            listed = ", ".join(argument.choices)
            guess = did_you_mean(text, argument.choices)
            known = f"none of {listed}" if len(argument.choices) > 1 else f"not {listed}"
            raise argparse.ArgumentTypeError(f"{text!r} is {known}" + (f"; {guess}" if guess else ""))
        try:
            return argument.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from error

    return read


def version_line() -> str:
    """Name the version."""
    return f"weft {weft.__version__}"


def greeting() -> Document:
    """Say in ten lines what there is."""
    return Document(
        (
            Heading(f"{version_line()}: {PROMISE}"),
            _indented(FIRST_STEPS),
            Paragraph("try: weft tour"),
        )
    )


def overview() -> Document:
    """Say all commands."""
    examples = [command.examples[0] for command in COMMANDS]
    names = [(command.name, command.sentence) for command in COMMANDS]
    return Document(
        (
            Heading("examples"),
            _indented(examples),
            Heading("commands"),
            _indented([*names, ("--version", "the version")]),
            Heading("with every command"),
            _indented([_described(argument) for argument in EVERYWHERE]),
            Heading("exit status"),
            _indented(STATUSES),
            Paragraph("The result goes to standard output, messages to standard error. NO_COLOR is respected."),
        )
    )


def help_of(command: Command) -> Document:
    """Say one command."""
    by_place = [argument for argument in command.arguments if not argument.name.startswith("-")]
    options = [argument for argument in command.arguments if argument.name.startswith("-")]
    values = "".join(f" [{each.name}]" if each.optional else f" {each.name}" for each in by_place)
    values += "..." if by_place and by_place[-1].many else ""
    return Document(
        (
            Heading(f"weft {command.name}: {command.sentence}"),
            Heading("examples"),
            _indented(command.examples),
            Heading(f"usage: weft {command.name}{values} [options]"),
            _indented([_described(argument) for argument in (*by_place, *options, *EVERYWHERE)]),
        )
    )


def _described(argument: Argument) -> tuple[str, str]:
    name = argument.name if argument.shows is None else f"{argument.name} {argument.shows}"
    default = "" if argument.default is None or argument.many else f" ({argument.default})"
    return name, argument.sentence + default


def _indented(pairs: tuple[tuple[str, str], ...] | list[tuple[str, str]]) -> Table:
    return facts((f"  {name}", sentence) for name, sentence in pairs)
