"""Random programs -> the section over programs."""

from typing import Any

from tests.conformance.cases import Contestant, Outcome, Player, Record, Section, Status, Trial
from tests.conformance.judge import judge
from tests.conformance.play import Call, play
from tests.programs.generator import PYTHON_ARGUMENTS, RandomProgram, random_program
from tests.programs.shrink import reproduction, shrink

PROGRAMS = 1000
PROGRAMS_PER_ENTRY = 25
CALLS = (0, 0, 1, 0)  # which Python values each call gets: a trace, a program, another branch, the first again


def entries() -> list[str]:
    """Name the seeds in groups."""
    return [
        f"seeds {start:04d}-{start + PROGRAMS_PER_ENTRY - 1:04d}" for start in range(0, PROGRAMS, PROGRAMS_PER_ENTRY)
    ]


def trials(entry: str) -> list[Trial]:
    """Make the trials of a group of seeds."""
    first = int(entry.removeprefix("seeds ").partition("-")[0])
    return [program_trial(random_program(seed)) for seed in range(first, first + PROGRAMS_PER_ENTRY)]


def program_trial(program: RandomProgram, *, explained: bool = True) -> Trial:
    """Make the trial of one program; a failure is explained by the smallest program that fails the same way."""

    def start(contestant: Contestant) -> Player:
        function = contestant(program.function())

        def player(number: int) -> Outcome:
            arguments: tuple[Any, ...] = program.arguments()
            return play(Call(function, arguments, dict(PYTHON_ARGUMENTS[CALLS[number]])))

        return player

    minimal = (lambda contestant: smallest(program, contestant)) if explained else None
    return Trial(start, calls=len(CALLS), minimal=minimal)


def smallest(program: RandomProgram, contestant: Contestant) -> str:
    """Give the script of the smallest program that still ends in the same status."""

    def status(candidate: RandomProgram) -> Status:
        return record_of(candidate, contestant).status

    wanted = status(program)
    least = shrink(program, lambda candidate: status(candidate) is wanted)
    return f"{record_of(least, contestant).detail}\n{reproduction(least)}"


def record_of(program: RandomProgram, contestant: Contestant) -> Record:
    """Judge one program without explaining it."""
    return judge(program_trial(program, explained=False), contestant, ("programs", "", program.seed))


def sections() -> tuple[Section, ...]:
    """List the sections over programs."""
    return (Section("programs", f"{PROGRAMS:,} random programs", entries, trials),)
