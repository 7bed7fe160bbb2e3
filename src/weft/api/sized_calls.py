"""Run a program for a range of sizes at calls that a native entry leads to it: of sizes that it is known to take."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from time import perf_counter
from typing import Any, Protocol

import torch

from weft.guards.entry import MISSED, MOST_UNSEEN, BoundRun
from weft.guards.guarded import Guarded
from weft.guards.known_sizes import KnownSizes
from weft.programs.program import Program
from weft.runtime.compiled_graph import RefusedError

MOST_SIZES = 4096  # that are remembered
CALLS_TO_A_TIMED_ONE = MOST_UNSEEN
MOST_SECONDS = 0.1  # of calls of the same sizes, until it is looked again whether another program had better run them

Look = tuple[Any, ...]  # the shapes and strides of what varies


class TakesSizes(Protocol):
    """What tells of sizes that have not come before whether calls of them run the program."""

    def takes_sizes(self, leaves: Mapping[int, Any]) -> bool:
        """Whether tensors that vary have sizes that it takes, and for which there is nothing better."""

    def bucket_of(self, leaves: Mapping[int, Any]) -> Hashable:
        """What is the same for sizes of which a program of their own would be one."""


class Tally:
    """Seconds that calls of like sizes took since somebody asked."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0


class Account:
    """The seconds that calls of the same sizes took since somebody asked, and those of all that are like them."""

    __slots__ = ("bound", "calls", "like", "seconds", "steady")

    def __init__(self, like: Tally) -> None:
        self.seconds = 0.0
        self.like = like
        self.calls = 0  # since one was timed
        self.steady: Callable[[Sequence[Any]], Any] | None = None
        self.bound: BoundRun | None = None  # what native code runs of them


class SizedCalls:
    """The sizes for which calls run a program, and what they took; any thread may run and note calls."""

    def __init__(self, guarded: Guarded[Program], varying: Mapping[int, frozenset[int]], takes: TakesSizes) -> None:
        self.varying = varying
        self._program = guarded.program
        self._takes = takes
        self._places = tuple(guarded.arguments.index(leaf) for leaf in varying if leaf in guarded.arguments)
        first = len(guarded.arguments) + len(guarded.slots)
        numbers = [leaf for leaf in varying if leaf in guarded.numbers]
        self._numbers = tuple(first + guarded.numbers.index(leaf) for leaf in numbers)
        # A leaf that the program does not read is not seen.
        self.is_complete = len(self._places) + len(numbers) == len(varying)
        self._only = self._places[0] if len(self._places) == 1 and not numbers else None
        self._leaves = (*(guarded.arguments[place] for place in self._places), *numbers)
        self._accounts: dict[Look, Account | None] = {}  # None of sizes that are not for this program
        self._tallies: dict[Hashable, Tally] = {}
        self.count = 0  # of calls that it has run

    def run(self, inputs: Sequence[Any], containers: Sequence[Any] = (), known: KnownSizes | None = None) -> Any:
        """Run the program on its inputs; MISSED where their sizes are not known, or come so often that it counts.

        Native code runs sizes that have come often from then on: they are put into `known`.
        """
        if self._only is not None:
            tensor = inputs[self._only]
            look: Look = (tensor.shape, tensor.stride())
        else:
            look = tuple([(inputs[place].shape, inputs[place].stride()) for place in self._places])
            if self._numbers:
                look = (*look, *[inputs[place] for place in self._numbers])
        try:
            account = self._accounts[look]
        except KeyError:
            account = self._new_account(look, inputs)
        if account is None or account.seconds > MOST_SECONDS or account.like.seconds > MOST_SECONDS:
            return MISSED
        unseen = 0 if account.bound is None else account.bound.may_run_on()
        account.calls += 1 + unseen
        self.count += unseen
        if account.steady is not None and account.calls < CALLS_TO_A_TIMED_ONE:
            result = account.steady(inputs)
            if result is not None:
                self.count += 1
                return result
        begin = perf_counter()
        try:
            result = None if account.steady is None else account.steady(inputs)
            if result is None:
                result = self._program.run(inputs, containers)
        except RefusedError:
            return MISSED
        self.count += 1
        seconds = account.calls * (perf_counter() - begin)
        account.seconds += seconds
        account.like.seconds += seconds
        account.calls = 0
        if account.steady is None:
            account.steady = self._program.steady(inputs)
        elif known is not None:
            account.bound = known.bind(inputs)
        return result

    def note(self, leaves: Sequence[Any]) -> tuple[float, float]:
        """Let calls of such sizes run the program.

        Gives the seconds that such calls took since this was last asked, and those of all calls that are like them.
        """
        things = [leaves[leaf] for leaf in self._leaves]
        looks = [(thing.shape, thing.stride()) if isinstance(thing, torch.Tensor) else thing for thing in things]
        look: Look = tuple(looks) if self._only is None else looks[0]
        before = self._accounts.get(look)
        account = self._opened(look, {leaf: leaves[leaf] for leaf in self._leaves})
        seconds, account.like.seconds = account.like.seconds, 0.0
        return 0.0 if before is None else before.seconds, seconds

    def _new_account(self, look: Look, inputs: Sequence[Any]) -> Account | None:
        """Begin to note calls of sizes that have not come before; None where they are not for this program."""
        places = (*self._places, *self._numbers)
        leaves = {leaf: inputs[place] for leaf, place in zip(self._leaves, places, strict=True)}
        if self._takes.takes_sizes(leaves):
            return self._opened(look, leaves)
        self._keep(look, None)
        return None

    def _opened(self, look: Look, leaves: Mapping[int, Any]) -> Account:
        account = Account(self._tallies.setdefault(self._takes.bucket_of(leaves), Tally()))
        self._keep(look, account)
        return account

    def _keep(self, look: Look, account: Account | None) -> None:
        if len(self._accounts) >= MOST_SIZES:
            self._accounts.clear()
        self._accounts[look] = account
