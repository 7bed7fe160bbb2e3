"""Guard a program by the facts that must hold to run it again, each with a sentence on what has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, Generic, Protocol, TypeVar

import torch

from weft.guards.back_off import BackOff
from weft.guards.words import Settled, Told, can_watch
from weft.runtime.binding import BoundProgram
from weft.runtime.new_tensors import OutputType
from weft.trace.decisions import NumberRead
from weft.trace.interception.capture import PLAIN_TYPES
from weft.trace.python_state.containers import MISSING, Touched
from weft.trace.python_state.counters import number_at
from weft.trace.python_state.given_objects import NONE_APART, containers_of
from weft.trace.python_state.locations import Slot
from weft.trace.python_state.reachable import Fact, PythonState
from weft.trace.python_state.tensor_facts import Asked, IsOwn, has_lazy_bit, resolved
from weft.trace.signature import memory_key, tensor_change, tensor_key
from weft.trace.traced import Traced

MOST_ALARMS = 8  # one after the other, until what gives them is compared in Python


@dataclass(frozen=True, slots=True)
class NewResults:
    """What results look like, and in what they are given: a list, a tuple, or nothing where it is one tensor.

    `finish` takes the row and the list of inputs in the end, and gives what the call gives.
    """

    types: tuple[OutputType, ...]
    row: type | None = None
    finish: Callable[[Any, Sequence[Any]], Any] | None = None


@dataclass(frozen=True, slots=True)
class TakenLeaves:
    """What a program takes of a call, as places among its leaves: tensors, numbers, and what may share no memory."""

    arguments: Sequence[int]
    numbers: Sequence[int] = ()
    apart: Sequence[int] = ()


class Runnable(Protocol):
    """What a guard is of: a program that runs on its inputs in order."""

    needs_containers: bool

    @property
    def may_be_bound(self) -> bool:
        """Whether it is native code from end to end that gives new tensors alone."""

    def run(self, inputs: Sequence[Any], containers: Sequence[Any] = ()) -> Any:
        """Run it, with the containers among the arguments of the call where it needs them."""

    def bound(self, arguments: Sequence[int]) -> tuple[BoundProgram, NewResults] | None:
        """Give what runs it as it is bound now; `arguments` are the places of a call that are its first inputs."""

    def bound_at(self, inputs: Sequence[Any], arguments: Sequence[int]) -> tuple[BoundProgram, NewResults] | None:
        """Give what runs calls of the sizes of these inputs, of a program that takes many."""


Runs = TypeVar("Runs", bound=Runnable)


class Guarded(Generic[Runs]):
    """A program, where its inputs come from at each call, and what else it relies on."""

    def __init__(self, traced: Traced, program: Runs, state: PythonState, touched: Touched) -> None:
        captured = [entry.tensor for entry in traced.inputs if entry.argument is None]
        touched = touched.of_program(traced.touched)
        self.program = program
        self.outcomes = tuple(decision.outcome for decision in traced.decisions)  # of a path
        self.apart = NONE_APART  # objects among the arguments that stay whole
        self.arguments = tuple(entry.argument for entry in traced.inputs if entry.argument is not None)
        self.numbers = tuple(entry.argument for entry in traced.numbers if entry.argument is not None)
        self._places = tuple(entry.slot.let_go(touched) for entry in traced.numbers if entry.slot is not None)
        self._later = tuple(entry.later for entry in traced.numbers if entry.later is not None)
        self._conditions = traced.conditions
        self.reads_numbers = bool(self._later) and all(isinstance(one, NumberRead) for one in self._later)
        slots = [state.slot(tensor) for tensor in captured]
        # Places of one tensor are one input, as long as it is one tensor; and what puts into a place what is there
        # already is not seen, and has to be once something else is there.
        read = {id(thing.get()) for slot in slots for thing in slot.chain()}
        shared = [pair for pair in state.shared(slots) if id(pair[0].get()) in read or not all(map(traced.gives, pair))]
        self._same = tuple((one.let_go(touched), other.let_go(touched)) for one, other in shared)
        self._moving = frozenset(index for index, slot in enumerate(slots) if slot.moves(touched))
        self._parting = tuple(
            same for same, pair in zip(self._same, shared, strict=True) if any(slot.moves(touched) for slot in pair)
        )
        self.slots = tuple(slot.let_go(touched) for slot in slots)
        self._slot_keys = tuple(tensor_key(tensor) for tensor in captured)
        self._facts: tuple[Fact, ...] = tuple(state.facts(touched))
        self._note_memory(traced)
        self.asked = traced.asked
        self._own_places = tuple(state.slots.values()) if state.asks_identity else ()
        self._own: frozenset[int] = frozenset()
        self._known = frozenset(entry.argument for entry in traced.asked if isinstance(entry, IsOwn))
        self._flipped = tuple(index for index, entry in enumerate(traced.inputs) if has_lazy_bit(entry.tensor))
        self._own_looks: frozenset[Any] = frozenset()
        self.told: list[Told | None] = [None]
        """What entries read of the facts; None where words cannot tell whether they hold."""
        self.known: Any = None  # the entry of the calls that it was made for last, kept here by who makes it
        self.sized: Any = None  # what runs it for sizes that it reads, where it is for many, kept by who makes that
        self.paths: Any = None  # with which it shares an entry, kept here by who makes that
        self.attempts = BackOff(first=1)  # to make one
        self._alarms = 0
        self._restless = frozenset(number for number, fact in enumerate(self._facts) if fact.moves)
        self._pauses: BackOff | None = None
        self._settled = self._settle()

    def _note_memory(self, traced: Traced) -> None:
        """Note how tensors share memory, as far as the program relies on it."""
        tensors = [entry.tensor for entry in traced.inputs]
        relies_on_memory = bool(traced.graph.writes) or traced.depends_on_offsets
        written = {write.input for write in traced.graph.writes}
        positions = [index for index, entry in enumerate(traced.inputs) if entry.value in written]
        self._writes_arguments = any(index < len(self.arguments) for index in positions)
        self._written = None if traced.depends_on_offsets else frozenset(positions)
        self._memory = memory_key(tensors, self._written) if relies_on_memory else None
        memory = [tensor.untyped_storage().data_ptr() for tensor in tensors] if relies_on_memory else []
        given = memory[: len(self.arguments)]
        self._are_apart = all(memory.count(address) == 1 for address in given)
        self.taken = TakenLeaves(self.arguments, self.numbers, self.arguments if relies_on_memory else ())
        self.offsets_matter = traced.depends_on_offsets  # where in their memory arguments start

    def run(
        self,
        inputs: Sequence[Any],
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        containers: Sequence[Any] | None = None,
    ) -> Any:
        """Run the program for a call with these arguments; `containers` are those among them, where they are known."""
        program = self.program
        if containers is not None:
            return program.run(inputs, containers)
        if program.needs_containers:
            return program.run(inputs, containers_of(arguments, keywords, self.apart))
        return program.run(inputs)

    def bound(self, places: Sequence[int]) -> tuple[BoundProgram, NewResults] | None:
        """What runs the program as it is bound now, if there can be such; arguments are in these places of a call."""
        return None if self._memory is not None or self.numbers else self.program.bound(places)

    def bound_at(self, inputs: Sequence[Any], places: Sequence[int]) -> tuple[BoundProgram, NewResults] | None:
        """The same for calls of the sizes of these inputs, of a program that takes many."""
        return None if self._memory is not None or self.numbers else self.program.bound_at(inputs, places)

    def settled_for_paths(self) -> Settled | None:
        """The facts as words, where these tell all that a path relies on before it reads a value."""
        settled = self._settled
        asks = self.asked or self._flipped or self._places or self.moves or self.numbers
        if settled is None or asks or not settled.is_told() or (self._later and not self.reads_numbers):
            return None
        return settled if self._memory is None or self._are_apart else None

    def with_numbers_to_read(self, inputs: Sequence[Any]) -> list[Any]:
        """What goes in, arguments and captured tensors, with room for what a run reads."""
        return self._with_later(list(inputs))

    @property
    def moves(self) -> bool:
        """Whether runs put other things in places that it looks at."""
        return bool(self._moving or self._parting)

    def inputs(self, leaves: Sequence[Any]) -> list[Any]:
        """The tensors to run on: arguments, then what the function reaches by itself, as it is now."""
        return self._resolved(self._with_later(self._found(leaves)))

    def _with_later(self, inputs: list[Any]) -> list[Any]:
        """The same with what Python computes of numbers among them, and draws, just before a run."""
        if not self._later:
            return inputs
        numbers = inputs[len(self.arguments) + len(self.slots) :]
        for later in self._later:
            numbers.append(later.value(numbers))
        return [*inputs[: len(self.arguments) + len(self.slots)], *numbers]

    def _found(self, leaves: Sequence[Any]) -> list[Any]:
        return [
            *(leaves[index] for index in self.arguments),
            *(slot.get() for slot in self.slots),
            *(leaves[index] for index in self.numbers),
            *map(number_at, self._places),
        ]

    def _numbers_change(self, leaves: Sequence[Any]) -> str | None:
        """A sentence on numbers in places by which other things are decided now."""
        numbers = [*(leaves[index] for index in self.numbers), *map(number_at, self._places)]
        for slot, number in zip(self._places, numbers[len(self.numbers) :], strict=True):
            if number is MISSING:
                return f"{slot.path} is no longer a number"
        broken = (condition for condition in self._conditions if not condition.holds(numbers))
        return next((f"{condition.text} no longer holds of a number that is counted" for condition in broken), None)

    def _resolved(self, inputs: list[Any]) -> list[Any]:
        """The same with tensors in the place of those whose memory holds numbers of the other sign."""
        for index in self._flipped:
            inputs[index] = resolved(inputs[index])
        return inputs

    def ready(self, leaves: Sequence[Any]) -> list[Any] | None:
        """The inputs, if the program may run; the quick form of `miss`."""
        captured = self._unchanged(leaves)
        if captured is not None:
            found = [
                *[leaves[index] for index in self.arguments],
                *captured,
                *[leaves[index] for index in self.numbers],
                *[slot.get() for slot in self._places],
            ]
            return self._resolved(self._with_later(found))
        return self.inputs(leaves) if self.miss(leaves) is None else None

    def holds(self, leaves: Sequence[Any]) -> bool:
        """Whether the program may run; quick where a native comparison tells."""
        return self._unchanged(leaves) is not None or self.miss(leaves) is None

    def _unchanged(self, leaves: Sequence[Any]) -> list[Any] | None:
        """What the function reaches by itself, if a native comparison tells that all holds that did a moment ago."""
        settled = self._settled
        if settled is None or not settled.hold() or _other_answer(self.asked, leaves) is not None:
            return None
        if self._own_places and self._is_given_own(leaves):
            return None
        captured = list(settled.tensors) if not self.moves else self._moved(settled.tensors)
        if self._places and self._numbers_change(leaves) is not None:
            return None
        if captured is None or not self._shares_as_before([*[leaves[index] for index in self.arguments], *captured]):
            return None
        self._alarms = 0
        return captured

    def _shares_as_before(self, tensors: list[torch.Tensor]) -> bool:
        """Whether tensors share memory as far as the program relies on it."""
        return self._memory is None or memory_key(tensors, self._written) == self._memory

    def _moved(self, still: Sequence[Any]) -> list[Any] | None:
        """The same with those that runs put in their places as they are now, if they look like those before them."""
        waiting = iter(still)
        found: list[Any] = []
        for index, (slot, key) in enumerate(zip(self.slots, self._slot_keys, strict=True)):
            tensor = slot.get() if index in self._moving else next(waiting)
            if index in self._moving and (type(tensor) not in PLAIN_TYPES or tensor_key(tensor) != key):
                return None
            found.append(tensor)
        return found if _parted(self._parting) is None else None

    def miss(self, leaves: Sequence[Any]) -> str | None:
        """A sentence on what changed, or nothing if the program may run."""
        for fact in self._facts:
            changed = fact.change()
            if changed:
                return changed
        if self._places and (sentence := self._numbers_change(leaves)):
            return sentence
        inputs = self._found(leaves)
        for slot, tensor, key in zip(self.slots, inputs[len(self.arguments) :], self._slot_keys, strict=False):
            if not isinstance(tensor, torch.Tensor):
                return f"{slot.path} is no longer a tensor"
            if type(tensor) not in PLAIN_TYPES:
                return f"{slot.path} is no longer an ordinary tensor"
            found = tensor_key(tensor)
            if found != key:
                return tensor_change(slot.path, key, found)
        if sentence := _parted(self._same) or _other_answer(self.asked, leaves) or self._given_own(leaves):
            return sentence
        if not self._shares_as_before(inputs[: len(self.arguments) + len(self.slots)]):
            return "the tensors share memory in another way, or start at another place in it"
        # All holds: what the native comparison took for a change was none, so it starts again from here.
        self._settle_again()
        return None

    def may_be_own(self, arguments: Sequence[Any], *, any_size: bool = False) -> bool:
        """Whether a call that looks like this one may be given a tensor of the function, where code would tell."""
        if any_size:
            return bool(self._own_looks)
        return any(_look(argument) in self._own_looks for argument in arguments if isinstance(argument, torch.Tensor))

    def settled_for_step(self, given: Sequence[Any]) -> Settled | None:
        """The facts as words, where calls that look like this one rely on nothing but them and on apart memory."""
        asks = self.moves or self.asked or self._flipped or self.numbers or self._places or self._later
        if self._memory != () or not self._are_apart or self._writes_arguments or asks or self.may_be_own(given):
            return None
        return self._settled

    def _given_own(self, leaves: Sequence[Any]) -> str | None:
        self._own = frozenset(id(slot.get()) for slot in self._own_places)
        return "an argument is a tensor that the function has itself" if self._is_given_own(leaves) else None

    def _is_given_own(self, leaves: Sequence[Any]) -> bool:
        """Whether an argument is a tensor that the function also reaches by itself, where code would tell by `is`."""
        return any(
            id(leaf) in self._own and place not in self._known
            for place, leaf in enumerate(leaves)
            if isinstance(leaf, torch.Tensor)
        )

    def note_moved(self, touched: Touched) -> None:
        """Note the places where somebody has put other tensors: one program is to do for all that look alike."""
        for fact in self._facts:
            for container, keys in fact.moved():
                touched.give(container, keys)

    def _settle_again(self) -> None:
        settled = self._settled
        if settled is not None:
            self._alarms = 1 if settled.words.have_held else self._alarms + 1
            if self._alarms > MOST_ALARMS:
                changed = settled.changed() - self._restless
                self._restless |= changed
                if not changed:  # tensors come and go: comparing natively costs more than it saves
                    self._settled, self._pauses, self.told[0] = None, BackOff(), None
                    return
        elif self._pauses is not None and not self._pauses.is_due():
            return
        self._settled = self._settle()

    def _settle(self) -> Settled | None:
        self._own = frozenset(id(slot.get()) for slot in self._own_places)
        still = [slot for index, slot in enumerate(self.slots) if index not in self._moving]
        watchable = can_watch([slot.get() for slot in still])
        settled = Settled(self._facts, still, self._restless, places=bool(self.taken.apart)) if watchable else None
        looks = frozenset(_look(slot.get()) for slot in self._own_places) - {None}
        if looks != self._own_looks:
            # Entries were made for calls that could not be given one of the function's own tensors.
            self.told[0], self.told = None, [None]
            self._own_looks = looks
        before = self.told[0]
        if settled is not None and before is not None and _are_same(before[1], settled.tensors):
            settled.tensors = before[1]  # what is bound to that very tuple stays so
        self.told[0] = settled.told() if settled is not None and self._may_be_told(settled) else None
        return settled

    def _may_be_told(self, settled: Settled) -> bool:
        """Whether words tell all that the program relies on."""
        asks = self.asked or self._flipped or self._places or self.moves
        draws = self._later and not self.reads_numbers
        return settled.is_told() and not (asks or draws) and (self._memory is None or self._are_apart)


def _are_same(before: Sequence[Any], now: Sequence[Any]) -> bool:
    return len(before) == len(now) and all(map(is_, before, now))


def _parted(pairs: Iterable[tuple[Slot, Slot]]) -> str | None:
    """A sentence on places that held the same thing and no longer do."""
    parted = (other for one, other in pairs if one.get() is not other.get())
    return next((f"{other.path} held the same as another place" for other in parted), None)


def _look(thing: Any) -> tuple[Any, ...] | None:
    return (thing.dtype, thing.shape, thing.stride()) if isinstance(thing, torch.Tensor) else None


def _other_answer(asked: Iterable[Asked], leaves: Sequence[Any]) -> str | None:
    """A sentence on what tensors tell and did not tell when Python asked."""
    return next((sentence for entry in asked if (sentence := entry.change(leaves)) is not None), None)
