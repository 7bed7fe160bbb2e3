"""Run a program for a range of sizes at calls that a native entry leads to it, for sizes that have come before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from weft.guards.entry import MISSED
from weft.guards.guarded import Guarded
from weft.programs.program import Program
from weft.runtime.compiled_graph import RefusedError

MOST_SIZES = 4096  # that are remembered
CALLS_TO_A_TIMED_ONE = 32
MOST_SECONDS = 0.1  # of calls of the same sizes, until it is looked again whether another program had better run them

Look = tuple[Any, ...]  # the shapes and strides of what varies


class Account:
    """The seconds that calls of the same sizes took since somebody asked."""

    __slots__ = ("calls", "seconds", "steady")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0  # since one was timed
        self.steady: Callable[[Sequence[Any]], Any] | None = None


class SizedCalls:
    """The sizes for which calls run a program, and what they took; any thread may run and note calls."""

    def __init__(self, guarded: Guarded[Program], varying: Mapping[int, frozenset[int]]) -> None:
        self.varying = varying
        self._program = guarded.program
        self._places = tuple(guarded.arguments.index(leaf) for leaf in varying if leaf in guarded.arguments)
        self.is_complete = len(self._places) == len(varying)  # a leaf that the program does not read is not seen
        self._only = self._places[0] if len(self._places) == 1 else None
        self._leaves = tuple(guarded.arguments[place] for place in self._places)
        self._accounts: dict[Look, Account] = {}
        self.count = 0  # of calls that it has run

    def run(self, inputs: Sequence[Any], containers: Sequence[Any] = ()) -> Any:
        """Run the program on its inputs; MISSED where their sizes are not known, or come so often that it counts."""
        if self._only is not None:
            tensor = inputs[self._only]
            look: Look = (tensor.shape, tensor.stride())
        else:
            look = tuple([(inputs[place].shape, inputs[place].stride()) for place in self._places])
        account = self._accounts.get(look)
        if account is None or account.seconds > MOST_SECONDS:
            return MISSED
        account.calls += 1
        if account.steady is not None and account.calls < CALLS_TO_A_TIMED_ONE:
            result = account.steady(inputs)
            if result is not None:
                self.count += 1
                return result
        begin = perf_counter()
        try:
            result = self._program.run(inputs, containers)
        except RefusedError:
            return MISSED
        self.count += 1
        account.seconds += account.calls * (perf_counter() - begin)
        account.calls = 0
        if account.steady is None:
            account.steady = self._program.steady(inputs)
        return result

    def note(self, leaves: Sequence[Any]) -> float:
        """Let calls of such sizes run the program; gives the seconds that such calls took since this was last asked."""
        if len(self._accounts) >= MOST_SIZES:
            self._accounts.clear()
        looks = [(leaves[leaf].shape, leaves[leaf].stride()) for leaf in self._leaves]
        look: Look = tuple(looks) if self._only is None else looks[0]
        before = self._accounts.get(look)
        self._accounts[look] = Account()
        return 0.0 if before is None else before.seconds


def calls_of_sizes(guarded: Guarded[Program], varying: Mapping[int, frozenset[int]]) -> SizedCalls | None:
    """The calls of a path that reads these sizes; None where it does not take all tensors that have them."""
    found = SizedCalls(guarded, varying)
    return found if found.is_complete else None
