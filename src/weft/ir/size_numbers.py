"""Write a size that varies as a number of a Graph: sums, products and quotients of the sizes that a call has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.errors import InternalError
from weft.ir.extents import Polynomial
from weft.ir.graph import Place, Value
from weft.ir.library import Operand
from weft.ir.ops import build
from weft.ir.types import NumberType


class NumberTerm:
    """Arithmetic on numbers of a Graph, written as on Python's; each new value is handed to `emit`."""

    def __init__(self, value: Value, emit: Callable[[Value], Value], place: Place | None) -> None:
        self.value = value
        self._emit = emit
        self._place = place

    def _with(self, operator: str, other: NumberTerm | int) -> NumberTerm:
        operands = (self.value, other.value) if isinstance(other, NumberTerm) else (self.value,)
        second = Operand(1) if isinstance(other, NumberTerm) else other
        given: dict[str, Any] = {"operator": operator, "arguments": (Operand(0), second)}
        new = build("number", *operands, place=self._place, type=NumberType("int"), **given)
        return NumberTerm(self._emit(new), self._emit, self._place)

    def __add__(self, other: NumberTerm | int) -> NumberTerm:
        return self._with("add", other)

    def __mul__(self, other: NumberTerm | int) -> NumberTerm:
        return self._with("mul", other)

    def __floordiv__(self, other: int) -> NumberTerm:
        return self._with("floordiv", other)


def unchanged(value: Value) -> Value:
    """Take a new value as it is."""
    return value


def number_of(
    size: Polynomial,
    atom: Callable[[Value], Value] = unchanged,
    emit: Callable[[Value], Value] = unchanged,
    place: Place | None = None,
) -> Value:
    """A size as a number of a Graph, in which `atom` gives the number that a size of a call is."""
    found = size.value(lambda one: NumberTerm(atom(one), emit, place))
    if not isinstance(found, NumberTerm):
        raise InternalError(f"{size} does not vary")
    return found.value


def size_of_number(number: Value, known: Mapping[Value, Polynomial]) -> Polynomial | None:
    """The size that a number of a Graph is, where some are known; None of what is made of others."""
    if number in known or number.op != "number":
        return known.get(number)
    terms = [_term_of(number, argument, known) for argument in number.attributes["arguments"]]
    known_terms = [term for term in terms if term is not None]
    if len(terms) != 2 or len(known_terms) != 2:
        return None
    first, second = known_terms
    match number.attributes["operator"]:
        case "add":
            return first.plus(second)
        case "mul":
            return first.times(second)
        case "floordiv" if second.number:
            return first.over(second.number)
    return None


def _term_of(number: Value, argument: object, known: Mapping[Value, Polynomial]) -> Polynomial | None:
    if isinstance(argument, Operand):
        return size_of_number(number.operands[argument.index], known)
    return Polynomial.constant(argument) if isinstance(argument, int) else None
