"""Tell which functions that remember their results did nothing else as a trace made them run.

Such a function (a table of patterns, of strides, of shapes) may run while code is traced: what it remembers is what
eager would have it remember, and the trace is made once more, which finds it there. So no call has to be left to Python
for it, and sizes that no call has had so far, as programs for many sizes are traced with, are no obstacle. Where the
second trace does less than the first one, a function did more than to find out something.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import torch

from weft.trace.interception.refusals import FirstCallError, refuse_forgotten
from weft.trace.python_state.caches import Memory
from weft.trace.python_state.containers import attributes, has_attributes
from weft.trace.python_state.effects import Change
from weft.trace.python_state.facts import SIMPLE

TRACED = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
CONTAINERS = (tuple, list, set, frozenset, torch.Size)
DEEPEST = 6
MOST_RUNS = 3  # times that functions find out something more in a trace that is made again


@dataclass(frozen=True, slots=True)
class Done:
    """What a trace has done: its operators, its texts and its changes, as far as another one's compare."""

    operators: int
    texts: Sequence[Any]
    changes: Sequence[Any]

    @classmethod
    def of(cls, operators: int, texts: Sequence[Any], changes: Sequence[Change]) -> Done:
        """Note it once a trace has ended."""
        found = [(change.slot.path, change.slot.key, _shown(change.after)) for change in changes]
        return cls(operators, list(texts), found)


class RemembersNowError(Exception):
    """Functions remember since a trace what it made them find out: it has to be made once more."""

    def __init__(self, memories: Sequence[Memory], done: Done) -> None:
        super().__init__("functions remember since what a trace made them find out")
        self.memories = memories
        self.done = done
        self.earlier: RemembersNowError | None = None

    def behind(self, earlier: RemembersNowError | None) -> RemembersNowError:
        """The same behind one of an earlier trace."""
        self.earlier = earlier
        return self

    @property
    def is_last(self) -> bool:
        """Whether functions have found out something too often."""
        count, one = 1, self.earlier
        while one is not None:
            count, one = count + 1, one.earlier
        return count >= MOST_RUNS

    def forget(self) -> FirstCallError:
        """Let the functions forget it; gives the error for code that they ran in."""
        for memory in self.memories:
            memory.forget()
        if self.earlier is not None:
            self.earlier.forget()
        return refuse_forgotten([memory.name for memory in self.memories])


def drawn() -> Any:
    """The state of Python's and NumPy's generators."""
    numpy: Any = np.random.get_state()
    return random.getstate(), numpy[1].tobytes(), numpy[2:]


def found_out(memories: Sequence[Memory]) -> list[Memory]:
    """The functions that were asked for something new, if all that they found out is plain."""
    missed = [memory for memory in memories if memory.has_missed()]
    is_plain = all(_is_known(key) and _is_plain(result, 0) for memory in missed for key, result in memory.since())
    return missed if is_plain and all(memory.keeps for memory in missed) else []


def _shown(thing: Any) -> Any:
    """What is compared of a thing that a trace has left."""
    if type(thing) in SIMPLE:
        return thing
    return type(thing), len(thing) if isinstance(thing, (list, dict, set)) else None


def _is_known(key: Any) -> bool:
    """Whether what a function was asked for is of no tensor, size or text that stands for others."""
    if isinstance(key, (tuple, list)):
        return all(map(_is_known, key))
    return not isinstance(key, TRACED) and (not isinstance(key, str) or type(key) is str)


def _is_plain(thing: Any, depth: int) -> bool:
    """Whether a thing is made of plain values, also as attributes of an object that is nothing else."""
    kind: Any = type(thing)
    if kind in SIMPLE or isinstance(thing, type):
        return True
    if depth > DEEPEST or isinstance(thing, (*TRACED, torch.nn.Module, FunctionType)):
        return False
    if kind in CONTAINERS:
        return all(_is_plain(item, depth + 1) for item in thing)
    if kind is dict:
        return all(_is_plain(part, depth + 1) for item in thing.items() for part in item)
    if kind.__new__ is not object.__new__ or callable(thing) or not has_attributes(thing):
        return False
    return all(_is_plain(item, depth + 1) for item in attributes(thing).values())
