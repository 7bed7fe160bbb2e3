"""Answer what code asks of a tensor's elements while it is traced, from the elements of this very call.

A decision (`if x.sum() > 0`, `.item()`, `.tolist()`) ends a segment: its outcome says which program comes next. While a
path is traced, the outcome is that of the call that is made: what was recorded so far is computed on the call's own
tensors, by the interpreter, which writes nothing and puts the random streams back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.ir.at_sizes import value_at_sizes
from weft.ir.generator import generator_state
from weft.ir.graph import Place, Value
from weft.ir.interpreter import evaluate
from weft.ir.ops import effect_of
from weft.ir.types import TensorType
from weft.trace.interception.refusals import note_raised
from weft.trace.python_state.counters import Condition, NumberLeaf, is_countable

MOST_DECISIONS = 64  # of one path
MOST_ELEMENTS = 256  # of a list


@dataclass(frozen=True, slots=True, eq=False)
class ComputedNumber:
    """A number that Python computes of numbers that were read, and which of the trace's numbers it is."""

    number: int
    leaf: NumberLeaf
    room: int = 0  # the largest size, where it is one


@dataclass(slots=True, eq=False)
class NumberRead:
    """A number that code reads from a tensor: which of the trace's numbers it is, what is computed when it is there.

    `conditions` must hold of it and of those that were read before; `inside` are those of them that say that a part
    lies within what it is a part of. What is read is there only when a path runs.
    """

    number: int
    kind: type
    symbol: Any = None
    computed: list[ComputedNumber] = field(default_factory=list)
    conditions: tuple[Condition, ...] = ()
    bounds: tuple[Condition, ...] = ()  # of a size, within which its program runs
    inside: tuple[Condition, ...] = ()  # which the largest sizes of all, together, need not meet
    room: int = 0  # the largest size

    def value(self, numbers: Sequence[Any]) -> Any:
        """What stands in its place before a run."""
        del numbers
        return self.kind(0)


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What code asked of tensors, and the outcome that it went on with; `after` values had been recorded before."""

    values: tuple[Value, ...]
    ask: Callable[..., Any]
    outcome: Any
    after: int
    place: Place | None = None
    read: NumberRead | None = None  # what is asked is a number that flows on, and decides by conditions
    real: tuple[Any, ...] = ()  # what was asked: the tensors of the call that is traced, or a size


def truth(tensor: torch.Tensor) -> Any:
    """Whether a tensor of one element is true."""
    return bool(tensor)


def exact_number(tensor: torch.Tensor) -> Any:
    """The element of a tensor that has one, as a key that is equal to itself."""
    found = tensor.item()
    return type(found), repr(found)


def elements(tensor: torch.Tensor) -> Any:
    """All elements of a tensor, as a key that is equal to itself."""
    return repr(tensor.tolist())


def are_equal(one: torch.Tensor, other: torch.Tensor) -> Any:
    """Whether two tensors are equal."""
    return torch.equal(one, other)


ASKED: Mapping[Callable[..., Any], tuple[Callable[..., Any], Callable[..., Any]]] = MappingProxyType(
    {
        torch.Tensor.__bool__: (truth, bool),
        torch.Tensor.item: (exact_number, torch.Tensor.item),
        torch.Tensor.__int__: (exact_number, int),
        torch.Tensor.__float__: (exact_number, float),
        torch.Tensor.__complex__: (exact_number, complex),
        torch.Tensor.__index__: (exact_number, torch.Tensor.__index__),
        torch.Tensor.tolist: (elements, torch.Tensor.tolist),
    }
)
"""By function of Python's interface: what decides, and what the function gives on the real tensor."""


OPERATOR_ASKS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "aten._local_scalar_dense.default": exact_number,
        "aten.is_nonzero.default": truth,
        "aten.equal.default": are_equal,
    }
)


@dataclass(frozen=True, slots=True)
class FoundResults:
    """How many an operator finds in the call that is traced, and what kinds of elements it gives."""

    count: int
    dtypes: tuple[torch.dtype, ...]


@dataclass(frozen=True, slots=True)
class FoundSize:
    """Asks how many elements an operator has found: a size of what it gives."""

    dimension: int

    def __call__(self, tensor: torch.Tensor) -> int:
        """The size."""
        return tensor.shape[self.dimension]


class RealValues:
    """The values of a trace on the tensors of its call; `inputs` gives those of the graph's inputs."""

    def __init__(self, values: list[Value], inputs: Callable[[], Mapping[Value, Any]]) -> None:
        self._values = values
        self._inputs = inputs
        self._known: dict[Value, Any] = {}
        self._drawn = 0  # values before this one have drawn what they draw
        self._random = generator_state()

    def of(self, value: Value) -> Any:
        """What a value is; nothing of PyTorch may be intercepted meanwhile."""
        needed = self._needed([value])
        drawing = [one for one in self._values[self._drawn :] if effect_of(one) == "random"]
        if drawing or any(effect_of(one) == "random" for one in needed):
            needed = self._needed([*drawing, value])
            self._drawn = len(self._values)
        given = self._inputs()
        outside = generator_state()
        torch.set_rng_state(self._random)
        try:
            with torch.no_grad():
                for one in self._values:
                    if one in needed:
                        operands = [self._operand(operand, given) for operand in one.operands]
                        self._known[one] = evaluate(value_at_sizes(one, given), operands)
        finally:
            self._random = generator_state()
            torch.set_rng_state(outside)
        return self._operand(value, given)

    def let_go(self) -> None:
        """Forget what was computed: views of weights among it would let other code seem to have these.

        What was drawn is kept, as nothing can draw it again.
        """
        if not self._drawn:
            self._known.clear()

    def _operand(self, value: Value, given: Mapping[Value, Any]) -> Any:
        return self._known[value] if value in self._known else given[value]

    def _needed(self, roots: Sequence[Value]) -> set[Value]:
        found: set[Value] = set()
        waiting = list(roots)
        while waiting:
            value = waiting.pop()
            if value.op != "input" and value not in self._known and value not in found:
                found.add(value)
                waiting += value.operands
        return found


class EnoughDecidedError(UnsupportedError):
    """A trace has decided as often as was asked of it."""

    def __init__(self, decisions: Sequence[Decision]) -> None:
        super().__init__("a trace ends at a decision")
        self.decisions = tuple(decisions)


class Decisions:
    """The decisions of one trace."""

    def __init__(
        self,
        values: list[Value],
        inputs: Callable[[], Mapping[Value, Any]],
        name: str,
        before: Sequence[Decision] | None = None,
        most: int | None = None,
    ) -> None:
        """With `before`, what these decisions of another trace of the same call were told is known.

        After `most` of them the trace ends with an EnoughDecidedError.
        """
        self.made: list[Decision] = []
        self._most = most
        self._values = values
        self._real = RealValues(values, inputs)
        self._name = name
        self._before = list(before or ())

    def _known(self, place: Any) -> tuple[Any, ...] | None:
        """What another trace was told here; nothing where it knew by itself, as numbers did not flow on."""
        if not self._before or self._before[0].place != place:
            return None
        return self._before.pop(0).real

    def _asked(self, values: Sequence[Value], place: Any) -> tuple[Any, ...]:
        """The real tensors of values."""
        known = self._known(place)
        return tuple([self._real.of(value) for value in values]) if known is None else known

    def let_go(self) -> None:
        """Forget what is only of use while code is traced."""
        self._real.let_go()

    def reads(self) -> list[NumberRead]:
        """The numbers that were read."""
        return [decision.read for decision in self.made if decision.read is not None]

    def last_of(self, symbols: set[Any]) -> NumberRead | None:
        """The last of the numbers that were read among symbols."""
        return next((read for read in reversed(self.reads()) if read.symbol in symbols), None)

    def read(self, value: Value, gives: Callable[..., Any], add: Callable[[Any, NumberRead], Any], place: Any) -> Any:
        """Read a number, which flows on; `add` gives what stands for it."""
        [real] = self._asked([value], place)
        found = gives(real)
        if not is_countable(found):
            return gives(*self.note([value], exact_number, place))
        self._check_count()
        read = NumberRead(-1, type(found))
        stand_in = add(found, read)
        self.made.append(Decision((value,), gives, None, len(self._values), place, read, (real,)))
        return stand_in

    def count(self, values: Sequence[Value], count: Callable[..., FoundResults], place: Place | None) -> FoundResults:
        """How many an operator finds in tensors, of which `found` has to be told next."""
        self._check_count()
        known = self._known(place)
        found: FoundResults = count(*[self._real.of(value) for value in values]) if known is None else known[0]
        return found

    def found(
        self, value: Value, ask: FoundSize, found: FoundResults, place: Place | None, read: NumberRead | None
    ) -> None:
        """Decide by a size that an operator has found out; one that is read may be another one."""
        self.made.append(Decision((value,), ask, found.count, len(self._values), place, read, (found,)))

    def size_of(self, value: Value, ask: FoundSize, read: NumberRead) -> None:
        """Read the size of what goes in."""
        self.made.append(Decision((value,), ask, None, 0, None, read))

    def _check_count(self) -> None:
        if len(self.made) >= MOST_DECISIONS:
            raise UnsupportedError(
                f"{self._name} decides more than {MOST_DECISIONS} times by values in one call",
                why="each decision ends a segment, and so many have nothing to gain from programs",
            )

    def note(self, values: Sequence[Value], ask: Callable[..., Any], place: Place | None) -> list[Any]:
        """Decide by tensors; gives the real ones."""
        self._check_count()
        real = self._asked(values, place)
        self.made.append(Decision(tuple(values), ask, ask(*real), len(self._values), place, None, real))
        if self._most is not None and len(self.made) >= self._most:
            enough = EnoughDecidedError(self.made)
            note_raised(enough)
            raise enough
        return list(real)


def settled(decision: Decision) -> Decision:
    """A decision whose outcome, where a number was read, is which conditions must hold of it."""
    if decision.read is None:
        return decision
    return replace(decision, outcome=("read", *(condition.text for condition in decision.read.conditions)))


def decides_exactly(decision: Decision) -> bool:
    """Whether a decision holds for one number, or for one size."""
    return decision.read is None and (decision.ask is exact_number or isinstance(decision.ask, FoundSize))


def is_of_fractions(decision: Decision) -> bool:
    """Whether a decision asks for the very values of fractions."""
    kind = decision.values[0].type
    exact = decision.read is None and decision.ask in (exact_number, elements)
    return exact and isinstance(kind, TensorType) and kind.dtype.is_floating_point
