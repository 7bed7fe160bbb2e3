"""Say what to trace: a function, its arguments, the state that it may reach, and what of all that may vary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.trace.counted_index import Spot
from weft.trace.decisions import Decision
from weft.trace.interception.refusals import unmaterialised
from weft.trace.interception.sized_functions import SizedFunctions
from weft.trace.python_state.locations import Slot
from weft.trace.python_state.reachable import PythonState, find_state
from weft.trace.results.result_types import ResultTypes
from weft.trace.size_symbols import AskedSizes, SizesToRead


def waits_for_sizes(state: PythonState) -> bool:
    """Whether a first call would materialise parameters or buffers of lazy modules."""
    return any(unmaterialised(slot.get()) for slot in state.slots.values())


MOST_OPERATORS = 20_000  # of one trace: more are no network but a loop, and would take a minute to be made a program


@dataclass(frozen=True, slots=True)
class Around:
    """The modes around a call: whether gradients are recorded, and whether it is made in inference mode."""

    grad: bool = True
    inference: bool = False
    exact: bool = True  # it is traced in inference mode too, where it is called in it


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What to trace: a function, its arguments, the state that it may reach, which number arguments may change.

    `result_types` is what is known of operators' results, and learns what this trace finds.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    name: str
    state: PythonState
    argument_names: tuple[str, ...] = ()
    numbers: frozenset[int] = frozenset()
    result_types: ResultTypes = field(default_factory=ResultTypes)
    draws: bool = True  # it may draw random numbers; where other threads do so meanwhile, it may not
    draws_written: tuple[float, ...] | None = None  # what another trace has drawn is written in: to compare with that
    around: Around = field(default_factory=Around)
    keeps_gradients: bool = True  # tensors that are left in attributes of modules carry them, as results do
    walk: Callable[..., PythonState] = find_state  # finds `state` again, where it may have changed
    apart: Mapping[int, Any] = field(default_factory=dict)  # objects among the arguments that stay whole
    places: tuple[Slot, ...] = ()  # of numbers that the function reaches by itself, which may change too
    counted_index: frozenset[Spot] = frozenset()  # where another trace has indexed by counted numbers
    sizes: AskedSizes = field(default_factory=AskedSizes)  # of arguments: those that are symbols
    sizes_read: SizesToRead | None = None  # of these: those that a path reads, where it finds sizes
    prints_each_time: bool = False  # so that code that prints is no program
    reads: bool = False  # numbers that are read from tensors flow on, where values decide
    decides: bool = False  # by the values that tensors have in this call; else code that asks for them is refused
    alone: bool = True  # nothing else may run where the program cannot: what depends on values may fail in a run
    finds_sizes: bool = False  # sizes that operators find out are symbols, where numbers that are read flow on
    plain: frozenset[int] = frozenset()  # numbers that are read, by decision, which are no sizes though they flow on
    rooms: Mapping[int, int] = field(default_factory=dict)  # of these, by number: how large they may become
    decided: Sequence[Decision] | None = None  # by another trace of the same call
    ends_after: int | None = None  # decisions: they are all that is asked of the trace
    most_operators: int = MOST_OPERATORS
    sized: SizedFunctions = field(default_factory=SizedFunctions)  # shared by traces that are compared
    expected: Sequence[Decision] | None = None  # by a call of other sizes; what tensors say is checked in each run
