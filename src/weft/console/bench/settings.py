"""How a comparison is made: which rivals, on how many threads, how often."""

from __future__ import annotations

from dataclasses import dataclass

EAGER, HYBRID, STEP = "eager", "hybrid", "step"
STEPS = 20  # of training, whose losses are kept
LEAST_SECONDS = 0.004  # of one turn: a clock is read twice a turn, and a call may take some microseconds


@dataclass(frozen=True, slots=True)
class Settings:
    """Rivals by name (none: all that are installed), threads for each (0: all cores), calls before, rounds."""

    against: tuple[str, ...] = ()
    threads: int = 0
    warmup: int = 10
    runs: int = 20


@dataclass(frozen=True, slots=True)
class Task:
    """What one rival's process is started for; `shared` is a file of weights and inputs, `answers` where results go."""

    rival: str
    target: str
    sizes: tuple[str, ...]
    threads: int
    warmup: int
    shared: str
    answers: str
