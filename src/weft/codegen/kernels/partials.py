"""Partial results carried through loops -> the same results with few additions in a row, whatever the loops' length."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.codegen.kernels.reducers import Partial, Reducer
from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register

State = tuple[Partial, ...]
Step = Callable[[Register, State], State]


@dataclass(frozen=True, slots=True)
class Slot:
    """What one partial result of a state is of: the reduction, the dtype, the lanes."""

    reducer: Reducer
    dtype: str
    lanes: int

    @property
    def identity(self) -> Partial:
        """Give the partial result of nothing."""
        return self.reducer.identity(self.dtype, self.lanes)


@dataclass(frozen=True, slots=True)
class Carrier:
    """Runs loops that carry a state with these slots; sums start anew after every `group` rounds."""

    f: FunctionWriter
    slots: tuple[Slot, ...]
    group: int

    def start(self) -> State:
        """Give the state of nothing."""
        return tuple(slot.identity for slot in self.slots)

    def repeat(self, count: int, state: State, step: Step) -> State:
        """Run a step for every number below a count."""
        if count <= self.group or not any(slot.reducer.cascades for slot in self.slots):
            return self._loop(self.f.integer(0), self.f.integer(count), state, step)
        groups = -(-count // self.group)

        def one_group(number: Register, before: State) -> State:
            first = self.f.multiply(number, self.group)
            last = self.f.minimum(self.f.add(first, self.group), self.f.integer(count))
            return self._merge(before, self._loop(first, last, self._fresh(before), step))

        return self.repeat(groups, state, one_group)

    def run(self, start: int, end: int, stride: int, state: State, step: Step) -> State:
        """Run a step for a few numbers, without groups."""
        return self._loop(self.f.integer(start), self.f.integer(end), state, step, stride)

    def anew(self, state: State, piece: Callable[[State], State]) -> State:
        """Run code whose sums start from nothing, and add what they come to."""
        return self._merge(state, piece(self._fresh(state)))

    def _loop(self, first: Register, last: Register, state: State, step: Step, stride: int = 1) -> State:
        with self.f.loop(first, last, stride, carried=[x for partial in state for x in partial]) as loop:
            loop.carry(*(x for partial in step(loop.index, self._shaped(loop.carried)) for x in partial))
        return self._shaped(loop.carried)

    def _shaped(self, registers: Sequence[Register]) -> State:
        left = iter(registers)
        return tuple(tuple(next(left) for _ in range(1 + slot.reducer.places)) for slot in self.slots)

    def _fresh(self, state: State) -> State:
        return tuple(
            slot.identity if slot.reducer.cascades else partial for slot, partial in zip(self.slots, state, strict=True)
        )

    def _merge(self, before: State, after: State) -> State:
        return tuple(
            slot.reducer.join(self.f, slot.dtype, x, y) if slot.reducer.cascades else y
            for slot, x, y in zip(self.slots, before, after, strict=True)
        )
