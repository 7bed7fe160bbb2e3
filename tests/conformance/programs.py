"""Random programs -> the section over programs."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from tests.conformance.cases import Contestant, Outcome, Player, Record, Rule, Section, Start, Status, Trial
from tests.conformance.fresh import moved_by_a_bit
from tests.conformance.judge import judge
from tests.conformance.play import Call, play
from tests.random_programs.dimensions import program_of_dimensions
from tests.random_programs.generator import PYTHON_ARGUMENTS, RandomProgram, random_program
from tests.random_programs.shrink import reproduction, shrink

PROGRAMS = 1000
PROGRAMS_PER_ENTRY = 25
SHORT_FLOATS = ("bfloat16", "half", "float16")
BOTH = ("library", "native")
Move = Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]
# Its gradient at NaN is NaN in eager's vectors, and the gradient that came in where a tensor ends in single numbers.
DISPUTED = "hardswish"
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


def gradient_trials(entry: str) -> list[Trial]:
    """Make the trials of a group of seeds with a backward pass."""
    first = int(entry.removeprefix("seeds ").partition("-")[0])
    return [gradient_trial(random_program(seed)) for seed in range(first, first + PROGRAMS_PER_ENTRY)]


def dimension_trials(entry: str) -> list[Trial]:
    """Make the trials of programs of named dimensions: of each seed once without, and once with a backward pass.

    Programs that are given repeated numbers have no backward pass: where their differences come to nothing but
    roundings, the largest of these decides where a gradient goes.
    """
    first = int(entry.removeprefix("seeds ").partition("-")[0])
    programs = list(map(program_of_dimensions, range(first, first + PROGRAMS_PER_ENTRY)))
    different = [program for program in programs if not any("expand" in text for _, text in program.inputs)]
    return [*map(program_trial, programs), *map(gradient_trial, different)]


def unmoved(arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Leave a program's arguments as they are."""
    return arguments


def program_trial(program: RandomProgram, *, explained: bool = True) -> Trial:
    """Make the trial of one program; a failure is explained by the smallest program that fails the same way."""

    def start(contestant: Contestant, move: Move = unmoved) -> Player:
        function = contestant(program.function())

        def player(number: int) -> Outcome:
            return play(Call(function, move(program.arguments()), dict(PYTHON_ARGUMENTS[CALLS[number]])))

        return player

    minimal = functools.partial(smallest, program, program_trial) if explained else None
    return Trial(start, calls=len(CALLS), minimal=minimal, precision=precision(program), neighbour=neighbours_of(start))


def gradient_trial(program: RandomProgram, *, explained: bool = True) -> Trial:
    """Make the trial of one program on copies of leaves, so that it may write to them, with a backward pass."""

    def start(contestant: Contestant, move: Move = unmoved) -> Player:
        inner = program.function()

        def on_copies(*leaves: torch.Tensor, **values: Any) -> Any:
            return inner(*(leaf.clone() for leaf in leaves), **values)

        function = contestant(on_copies)

        def player(number: int) -> Outcome:
            leaves = tuple(leaf.detach().requires_grad_(leaf.is_floating_point()) for leaf in move(program.arguments()))
            return play(Call(function, leaves, dict(PYTHON_ARGUMENTS[CALLS[number]]), backward=True))

        return player

    minimal = functools.partial(smallest, program, gradient_trial) if explained else None
    return Trial(
        start,
        Rule.CLOSE,
        calls=len(CALLS),
        minimal=minimal,
        disputed=DISPUTED in program.source,
        precision=precision(program),
        neighbour=neighbours_of(start),
    )


def neighbours_of(start: Callable[..., Player]) -> Callable[[int], tuple[Start, None]]:
    """Give the trial's eager runs on arguments moved by a last bit; programs have no answer in float64."""

    def neighbour(seed: int) -> tuple[Start, None]:
        return functools.partial(start, move=functools.partial(moved_by_a_bit, seed=seed)), None

    return neighbour


def precision(program: RandomProgram) -> torch.dtype:
    """Give the shortest floats that a program may compute with."""
    text = program.source + "".join(text for _, text in program.inputs)
    return torch.bfloat16 if any(name in text for name in SHORT_FLOATS) else torch.float32


def smallest(program: RandomProgram, trial: Callable[..., Trial], contestant: Contestant) -> str:
    """Give the script of the smallest program that still ends in the same status."""

    def status(candidate: RandomProgram) -> Status:
        return record_of(candidate, trial, contestant).status

    wanted = status(program)
    least = shrink(program, lambda candidate: status(candidate) is wanted)
    return f"{record_of(least, trial, contestant).detail}\n{reproduction(least)}"


def record_of(program: RandomProgram, trial: Callable[..., Trial], contestant: Contestant) -> Record:
    """Judge one program without explaining it."""
    return judge(trial(program, explained=False), contestant, ("programs", "", program.seed))


def sections() -> tuple[Section, ...]:
    """List the sections over programs."""
    return (
        Section("programs", f"{PROGRAMS:,} random programs", entries, trials, codegens=BOTH),
        Section("program-gradients", "the same, forward and backward", entries, gradient_trials, codegens=BOTH),
        Section(
            "dimensions",
            f"{PROGRAMS:,} of named dimensions, most of them twice",
            entries,
            dimension_trials,
            codegens=("native",),
        ),
    )
