"""The words of the conformance run: a section has entries, an entry has trials, a trial ends in a record."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

MOST_UNSUPPORTED = 0.03
"""The share of a section's samples that may be unsupported, unless the section says why it is another."""

Contestant = Callable[[Any], Any]
"""What is examined: turns a function or a module into one that must behave the same."""


@dataclass(frozen=True)
class Outcome:
    """Everything that one call left behind."""

    error: Exception | None = None
    result: Any = None
    arguments: tuple[torch.Tensor, ...] = ()  # every tensor the call was given, as it is after the call
    state: tuple[torch.Tensor, ...] = ()  # parameters and buffers after the call
    gradients: tuple[torch.Tensor | None, ...] = ()
    random_state: torch.Tensor | None = None


Player = Callable[[int], Outcome]
"""One side of a trial: plays the call of that number on fresh arguments from the same seed."""


Start = Callable[[Contestant], Player]
"""One sample, ready to be put in front of a contestant."""


class Rule(enum.Enum):
    """How values are compared; types, shapes, strides and aliases always are."""

    BITS = "bitwise, any NaN equal to any other; native code as under BOUND"
    BOUND = "bitwise, or no further from the float64 answer than the numerics rule allows"
    CLOSE = "bitwise, or some roundings apart"
    SHAPE = "not: the result is uninitialised memory"


@dataclass(frozen=True)
class Trial:
    """One sample: `start` puts a contestant in front of it."""

    start: Start
    rule: Rule = Rule.BITS
    calls: int = 2  # the first call traces, the others run the program
    exact_start: Start | None = None  # the same sample in float64, for bounded comparison
    narrow_start: Start | None = None  # a float64 sample in float32: how rounding errors grow
    neighbour: Callable[[int], tuple[Start, Start | None]] | None = None  # moved by a last bit; that in float64
    whole_model: bool = False  # the error of a tensor is bounded as a whole, not that of each element
    disputed: bool = False  # eager's vectors give NaN where its single numbers do not: NaN is right too
    gradient_strides: bool = False  # gradients lie in memory as eager's do
    precision: torch.dtype | None = None  # the shortest floats inside, where results may be longer
    minimal: Callable[[Contestant], str] | None = None  # a small reproduction of a failure
    any_order: bool = False  # sums of arguments may be summed up in any order
    notes: Callable[[], Sequence[str]] | None = None  # what is worth knowing of how it ran


class Status(enum.Enum):
    """How a trial ended."""

    EQUAL = "equal"
    BOUNDED = "within bound"
    UNSUPPORTED = "unsupported"
    WRONG = "wrong"
    CRASH = "crash"

    @property
    def failed(self) -> bool:
        """Say whether one such record fails the whole run."""
        return self in (Status.WRONG, Status.CRASH)


@dataclass(frozen=True)
class Record:
    """The outcome of one trial, as text: it crosses processes."""

    section: str
    entry: str
    index: int
    status: Status
    detail: str = ""
    trace: str = ""
    notes: tuple[str, ...] = ()
    codegen: str = "library"

    @property
    def name(self) -> str:
        """Name the trial as the command line takes it."""
        return f"{self.section} --{self.codegen} --op '{self.entry}' --sample {self.index}"


@dataclass(frozen=True)
class Section:
    """One table of the report: `trials(entry)` must give the same trials in every process."""

    name: str
    title: str
    entries: Callable[[], Sequence[str]]
    trials: Callable[[str], Sequence[Trial]]
    most_unsupported: float = MOST_UNSUPPORTED
    codegens: tuple[str, ...] = ("library",)  # how a whole run compiles it, one after the other
