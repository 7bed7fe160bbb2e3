"""The table of commands -> what `weft`, `weft --help` and `weft COMMAND --help` say: examples first."""

from __future__ import annotations

import weft
from weft.console.commands import COMMANDS, EVERYWHERE, Argument, Command
from weft.document.blocks import Document, Heading, Paragraph, Table, facts

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
