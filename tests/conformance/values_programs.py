"""Random programs that look at values -> the sections that run each beside eager, with and without gradients."""

import functools
from collections.abc import Sequence

from tests.conformance.cases import Contestant, Outcome, Player, Section, Trial
from tests.random_programs.values import ValuesProgram, shrunk, values_program
from tests.random_programs.values_runs import THREADS, difference

PROGRAMS = 5000
PROGRAMS_PER_ENTRY = 25


class OtherDecisionError(AssertionError):
    """A program does something else than eager PyTorch."""


def entries() -> list[str]:
    """Name the seeds in groups."""
    return [
        f"seeds {start:04d}-{start + PROGRAMS_PER_ENTRY - 1:04d}" for start in range(0, PROGRAMS, PROGRAMS_PER_ENTRY)
    ]


def trials(entry: str, threads: int) -> list[Trial]:
    """Make the trials of a group of seeds."""
    first = int(entry.removeprefix("seeds ").partition("-")[0])
    return [trial(values_program(seed), threads) for seed in range(first, first + PROGRAMS_PER_ENTRY)]


def failure(program: ValuesProgram, threads: int) -> str | None:
    """Say what a program does otherwise; from several threads every other one has gradients."""
    ways: Sequence[bool] = (False, True) if threads == 1 else (program.seed % 2 == 1,)
    return next((text for grad in ways if (text := difference(program, grad=grad, threads=threads))), None)


def trial(program: ValuesProgram, threads: int) -> Trial:
    """Make the trial of one program, whose player compares all that its calls leave behind by itself."""

    def start(contestant: Contestant) -> Player:
        def nothing() -> None:
            return None

        is_eager = contestant(nothing) is nothing

        def player(_number: int) -> Outcome:
            text = None if is_eager else failure(program, threads)
            return Outcome() if text is None else Outcome(error=OtherDecisionError(text))

        return player

    return Trial(start, calls=1, minimal=lambda _: smallest(program, threads))


def smallest(program: ValuesProgram, threads: int) -> str:
    """Give the text of the smallest program that still fails."""
    least = shrunk(program, lambda other: failure(other, threads) is not None)
    return f"{failure(least, threads)}\n{least.source}"


def sections() -> tuple[Section, ...]:
    """List the sections over values."""
    one, several = (functools.partial(trials, threads=threads) for threads in (1, THREADS))
    title = f"{PROGRAMS:,} random programs that look at values"
    return (
        Section("values-programs", title, entries, one, codegens=("library", "native")),
        Section("values-threads", f"the same from {THREADS} threads", entries, several, codegens=("library", "native")),
    )
