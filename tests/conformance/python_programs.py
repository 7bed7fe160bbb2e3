"""Random Python around random operators -> the sections that run each program in every way that Weft offers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from tests.conformance.cases import Contestant, Outcome, Player, Section, Trial
from tests.random_programs.python_programs import PythonProgram, python_program, shrink
from tests.ways import Refused, difference

from weft.config import config
from weft.errors import WeftError

PROGRAMS = 5000
PROGRAMS_PER_ENTRY = 50
MOST_UNSUPPORTED = 0.15
"""Programs count, draw from generators of their own and look at values: what no program can do again is refused."""


class DifferenceError(AssertionError):
    """A program does something else than eager PyTorch."""


def entries(programs: int) -> list[str]:
    """Name the seeds in groups."""
    return [
        f"seeds {start:04d}-{start + PROGRAMS_PER_ENTRY - 1:04d}" for start in range(0, programs, PROGRAMS_PER_ENTRY)
    ]


def trials(entry: str, way: str) -> list[Trial]:
    """Make the trials of a group of seeds, run in one way."""
    first = int(entry.removeprefix("seeds ").partition("-")[0])
    return [program_trial(python_program(seed), way) for seed in range(first, first + PROGRAMS_PER_ENTRY)]


def program_trial(program: PythonProgram, way: str) -> Trial:
    """Make the trial of one program, whose player compares all that its calls leave behind by itself."""

    def start(contestant: Contestant) -> Player:
        def nothing() -> None:
            return None

        is_eager = contestant(nothing) is nothing

        def player(_number: int) -> Outcome:
            return Outcome() if is_eager else Outcome(error=failure(program, way))

        return player

    return Trial(start, calls=1, minimal=lambda _: smallest(program, way))


def failure(program: PythonProgram, way: str) -> Exception | None:
    """Run a program in one way; give the error that refuses it, or one that says what it does otherwise."""
    try:
        found = difference(program.make(), "library" if (way, config().codegen) == ("hybridize", "library") else way)
    except Refused as refusal:
        return refusal.error
    except AssertionError as error:
        return DifferenceError(str(error))
    return None if found is None else DifferenceError(found)


def smallest(program: PythonProgram, way: str) -> str:
    """Give the text of the smallest program that still fails."""
    least = shrink(program, lambda other: failed(failure(other, way)))
    return f"{failure(least, way)}\n{least.source}"


def failed(error: Exception | None) -> bool:
    """Say whether an error is one of ours."""
    return error is not None and not isinstance(error, WeftError)


def section(name: str, title: str, way: str, programs: int, codegens: Sequence[str]) -> Section:
    """Make the section of one way."""
    made: Callable[[str], Sequence[Trial]] = functools.partial(trials, way=way)
    return Section(name, title, functools.partial(entries, programs), made, MOST_UNSUPPORTED, tuple(codegens))


def sections() -> tuple[Section, ...]:
    """List the sections over random Python."""
    title = f"{PROGRAMS:,} random programs of Python around operators"
    return (
        section("python", title, "hybridize", PROGRAMS, ("library", "native")),
        section("python-lazy", "the same, in weft.lazy", "lazy", PROGRAMS, ("native",)),
        section("python-step", "the same, as training steps", "step", PROGRAMS, ("native",)),
        section("python-dynamo", "500 of them through torch.compile", "dynamo", 500, ("native",)),
    )
