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
from weft.ir.graph import Place, Value
from weft.ir.interpreter import evaluate
from weft.ir.ops import effect_of
from weft.ir.types import TensorType
from weft.trace.python_state.counters import Condition, NumberLeaf, is_countable

MOST_DECISIONS = 64  # of one path
MOST_ELEMENTS = 256  # of a list


@dataclass(frozen=True, slots=True, eq=False)
class ComputedNumber:
    """A number that Python computes of numbers that were read, and which of the trace's numbers it is."""

    number: int
    leaf: NumberLeaf


@dataclass(slots=True, eq=False)
class NumberRead:
    """A number that code reads from a tensor: which of the trace's numbers it is, what is computed when it is there.

    `conditions` must hold of it and of those that were read before. What is read is there only when a path runs.
    """

    number: int
    kind: type
    symbol: Any = None
    computed: list[ComputedNumber] = field(default_factory=list)
    conditions: tuple[Condition, ...] = ()

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


class RealValues:
    """The values of a trace on the tensors of its call; `inputs` gives those of the graph's inputs."""

    def __init__(self, values: list[Value], inputs: Callable[[], Mapping[Value, Any]]) -> None:
        self._values = values
        self._inputs = inputs
        self._known: dict[Value, Any] = {}
        self._drawn = 0  # values before this one have drawn what they draw
        self._random = torch.get_rng_state()

    def of(self, value: Value) -> Any:
        """What a value is; nothing of PyTorch may be intercepted meanwhile."""
        needed = self._needed([value])
        drawing = [one for one in self._values[self._drawn :] if effect_of(one) == "random"]
        if drawing or any(effect_of(one) == "random" for one in needed):
            needed = self._needed([*drawing, value])
            self._drawn = len(self._values)
        given = self._inputs()
        outside = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            with torch.no_grad():
                for one in self._values:
                    if one in needed:
                        self._known[one] = evaluate(one, [self._operand(operand, given) for operand in one.operands])
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(outside)
        return self._operand(value, given)

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


class Decisions:
    """The decisions of one trace."""

    def __init__(self, values: list[Value], inputs: Callable[[], Mapping[Value, Any]], name: str) -> None:
        self.made: list[Decision] = []
        self._values = values
        self._real = RealValues(values, inputs)
        self._name = name

    def real(self, value: Value) -> Any:
        """The real tensor of a value."""
        return self._real.of(value)

    def reads(self) -> list[NumberRead]:
        """The numbers that were read."""
        return [decision.read for decision in self.made if decision.read is not None]

    def last_of(self, symbols: set[Any]) -> NumberRead | None:
        """The last of the numbers that were read among symbols."""
        return next((read for read in reversed(self.reads()) if read.symbol in symbols), None)

    def read(self, value: Value, gives: Callable[..., Any], add: Callable[[Any, NumberRead], Any], place: Any) -> Any:
        """Read a number, which flows on; `add` gives what stands for it."""
        real = self.real(value)
        found = gives(real)
        if not is_countable(found):
            return gives(*self.note([value], exact_number, place))
        self._check_count()
        read = NumberRead(-1, type(found))
        stand_in = add(found, read)
        self.made.append(Decision((value,), gives, None, len(self._values), place, read))
        return stand_in

    def _check_count(self) -> None:
        if len(self.made) >= MOST_DECISIONS:
            raise UnsupportedError(
                f"{self._name} decides more than {MOST_DECISIONS} times by values in one call",
                why="each decision ends a segment, and so many have nothing to gain from programs",
            )

    def note(self, values: Sequence[Value], ask: Callable[..., Any], place: Place | None) -> list[Any]:
        """Decide by tensors; gives the real ones."""
        self._check_count()
        real = [self.real(value) for value in values]
        self.made.append(Decision(tuple(values), ask, ask(*real), len(self._values), place))
        return real


def settled(decision: Decision) -> Decision:
    """A decision whose outcome, where a number was read, is which conditions must hold of it."""
    if decision.read is None:
        return decision
    return replace(decision, outcome=("read", *(condition.text for condition in decision.read.conditions)))


def is_of_fractions(decision: Decision) -> bool:
    """Whether a decision asks for the very values of fractions."""
    kind = decision.values[0].type
    exact = decision.read is None and decision.ask in (exact_number, elements)
    return exact and isinstance(kind, TensorType) and kind.dtype.is_floating_point
