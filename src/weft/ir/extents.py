"""Write sizes that vary from call to call: whole numbers of today, with what they are made of.

An `Extent` is the number that a size has where a program is traced and planned, so all arithmetic on sizes goes on as
it does with numbers; what it is made of goes along. What would turn it into a number for good raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter
from typing import Any

from typing_extensions import Self

from weft.errors import UsageError
from weft.ir.graph import Value
from weft.ir.types import NumberType

Monomial = tuple["Atom", ...]


@dataclass(frozen=True, slots=True)
class Quotient:
    """A size divided by a number, without the fraction."""

    dividend: Polynomial
    divisor: int


Atom = Value | Quotient


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A sum of products of sizes, each with a factor; equal ones are equal objects for `==`."""

    terms: frozenset[tuple[Monomial, int]]

    @classmethod
    def of(cls, terms: Mapping[Monomial, int]) -> Polynomial:
        """Make one, without what is zero."""
        return cls(frozenset((monomial, factor) for monomial, factor in terms.items() if factor))

    @classmethod
    def constant(cls, number: int) -> Polynomial:
        """Make one that is a number."""
        return cls.of({(): number})

    @classmethod
    def atom(cls, atom: Atom) -> Polynomial:
        """Make one that is a size, or a quotient."""
        return cls.of({(atom,): 1})

    @property
    def number(self) -> int | None:
        """The number that it is, where it does not vary."""
        terms = dict(self.terms)
        return terms.get((), 0) if not terms or set(terms) == {()} else None

    def plus(self, other: Polynomial) -> Polynomial:
        """The sum."""
        terms = dict(self.terms)
        for monomial, factor in other.terms:
            terms[monomial] = terms.get(monomial, 0) + factor
        return Polynomial.of(terms)

    def times(self, other: Polynomial) -> Polynomial:
        """The product."""
        terms: dict[Monomial, int] = {}
        for monomial, factor in self.terms:
            for more, other_factor in other.terms:
                key = tuple(sorted((*monomial, *more), key=_order))
                terms[key] = terms.get(key, 0) + factor * other_factor
        return Polynomial.of(terms)

    def over(self, divisor: int) -> Polynomial:
        """The quotient by a positive number, rounded down; equal quotients are written alike.

        What the divisor divides stands outside, the constant inside is less than it, and a quotient of a quotient is
        one: padded to a multiple of 8, a size is `(size+7)//8*8`, however the code says so.
        """
        rest = {monomial: factor for monomial, factor in self.terms if monomial and factor % divisor}
        whole = {monomial: factor // divisor for monomial, factor in self.terms if monomial not in rest}
        if not rest:
            return Polynomial.of(whole)
        constant = dict(self.terms).get((), 0) % divisor
        sign = -1 if all(factor < 0 for factor in rest.values()) else 1
        if sign < 0:  # what is rounded up
            rest, constant = {monomial: -factor for monomial, factor in rest.items()}, divisor - 1 - constant
        [(monomial, factor), *others] = rest.items()
        if not others and factor == 1 and len(monomial) == 1 and isinstance(inner := monomial[0], Quotient):
            dividend = inner.dividend.plus(Polynomial.constant(constant * inner.divisor))
            found = dividend.over(inner.divisor * divisor)
        else:
            found = Polynomial.atom(Quotient(Polynomial.of({**rest, (): constant}), divisor))
        return Polynomial.of(whole).plus(found.times(Polynomial.constant(sign)))

    def over_size(self, divisor: Polynomial) -> Polynomial | None:
        """The quotient by a size of at least one, rounded down, where that is a polynomial; None where it is not."""
        [(monomial, factor), *others] = divisor.terms or {((), 0): 0}.items()
        if others or factor != 1 or len(monomial) != 1:
            return None
        found: dict[Monomial, int] = {}
        rest = 0
        for term, times in self.terms:
            if monomial[0] in term:
                place = term.index(monomial[0])
                found[(*term[:place], *term[place + 1 :])] = times
            elif term == ():
                rest = times
            else:
                return None
        quotient = Polynomial.of(found)
        return quotient.plus(Polynomial.constant(rest)) if rest in (0, -1) else None

    def undivided(self) -> Polynomial:
        """What it is where nothing is left over: 4 times s//4 is s."""
        found = Polynomial.constant(0)
        for monomial, factor in self.terms:
            whole = next((atom for atom in monomial if isinstance(atom, Quotient) and not factor % atom.divisor), None)
            term = Polynomial.of({monomial: factor})
            if whole is not None:
                place = monomial.index(whole)
                rest = Polynomial.of({(*monomial[:place], *monomial[place + 1 :]): factor // whole.divisor})
                term = rest.times(whole.dividend).undivided()
            found = found.plus(term)
        return found

    def value(self, number_of: Callable[[Value], Any]) -> Any:
        """What it is for given sizes, or for whatever else knows sums, products and quotients."""

        def product(monomial: Monomial, factor: int) -> Any:
            found = [number_of(atom) if isinstance(atom, Value) else _quotient(atom, number_of) for atom in monomial]
            if not found:
                return factor
            whole = reduce(lambda one, other: one * other, found)
            return whole if factor == 1 else whole * factor

        products = [product(*term) for term in sorted(self.terms, key=lambda term: (-len(term[0]), str(term)))]
        return reduce(lambda one, other: one + other, products) if products else 0

    @property
    def shrinks(self) -> bool:
        """Whether it may become smaller where a size becomes larger; t - t//2 does not: t//2 grows no faster than t."""
        total = Polynomial.constant(0)
        for monomial, factor in self.terms:
            quotients = [atom for atom in monomial if isinstance(atom, Quotient)]
            if any(atom.dividend.shrinks for atom in quotients):
                return True
            term = Polynomial.of({tuple(atom for atom in monomial if atom not in quotients): factor})
            fastest = [atom.dividend if factor < 0 else Polynomial.atom(atom) for atom in quotients]
            total = total.plus(reduce(Polynomial.times, fastest, term))
        return any(monomial and factor < 0 for monomial, factor in total.terms)

    def atoms(self) -> set[Value]:
        """The sizes that it is made of."""
        found: set[Value] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                found |= {atom} if isinstance(atom, Value) else atom.dividend.atoms()
        return found

    def written(self, name_of: Callable[[Value], str]) -> str:
        """It as text, with these names of sizes."""
        return str(self.value(lambda size: _Text(name_of(size))))

    def __str__(self) -> str:
        return self.written(attrgetter("name"))


def _quotient(atom: Quotient, number_of: Callable[[Value], Any]) -> Any:
    return atom.dividend.value(number_of) // atom.divisor


def _order(atom: Atom) -> tuple[str, int]:
    return (atom.name, id(atom)) if isinstance(atom, Value) else (str(atom.dividend), atom.divisor)


class _Text:
    """Writes arithmetic down as it is done."""

    def __init__(self, text: str, loose: bool = False) -> None:
        self.text = text
        self.loose = loose

    def _inside(self) -> str:
        return f"({self.text})" if self.loose else self.text

    def __mul__(self, other: Any) -> _Text:
        return _Text(f"{self._inside()}*{other._inside() if isinstance(other, _Text) else other}")

    def __add__(self, other: Any) -> _Text:
        text = f"{self.text}+{other}"
        return _Text(text.replace("+-", "-"), loose=True)

    def __floordiv__(self, other: int) -> _Text:
        return _Text(f"{self._inside()}//{other}", loose=True)

    def __str__(self) -> str:
        return self.text


class FixedSizeError(UsageError):
    """A size that varies was asked for as if it were one number."""


class Extent(int):
    """A size that varies: the number that it is today, and what it is made of."""

    expression: Polynomial

    def __new__(cls, number: int, expression: Polynomial) -> Self:
        """Make one."""
        found = super().__new__(cls, number)
        found.expression = expression
        return found

    @property
    def today(self) -> int:
        """The number that it is where the program is planned."""
        return int.__add__(self, 0)

    def __add__(self, other: Any) -> Any:
        return _made(today(self) + today(other), self.expression.plus(_expression(other)))

    def __sub__(self, other: Any) -> Any:
        return _made(today(self) - today(other), self.expression.plus(_expression(-other)))

    def __rsub__(self, other: Any) -> Any:
        return _made(today(other) - today(self), _expression(other).plus(_expression(-self)))

    def __neg__(self) -> Any:
        return _made(-today(self), self.expression.times(Polynomial.constant(-1)))

    def __mul__(self, other: Any) -> Any:
        return _made(today(self) * today(other), self.expression.times(_expression(other)))

    def __floordiv__(self, other: Any) -> Any:
        if isinstance(other, Extent) or other <= 0:
            if isinstance(other, Extent) and other.expression == self.expression:
                return 1
            raise FixedSizeError(f"{self.expression} is divided by {getattr(other, 'expression', other)}")
        return _made(today(self) // other, self.expression.over(other))

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other

    def __rmod__(self, other: Any) -> Any:
        """A place counted from the start, as `index % size` makes it of one counted from the end."""
        if -self.today <= other < self.today:
            return self + other if other < 0 else other
        return self._fixed()

    __radd__, __rmul__ = __add__, __mul__

    def __bool__(self) -> bool:
        """Whether it is not zero: what is zero today need not be at other sizes."""
        return True if today(self) else bool(self._fixed())

    def __str__(self) -> str:
        return str(self.expression)

    def _fixed(self, *_: object) -> Any:
        raise FixedSizeError(f"{self.expression} is used as if it were always {today(self)}")

    __truediv__ = __rtruediv__ = __float__ = __int__ = __rfloordiv__ = __pow__ = __rpow__ = _fixed


def today(number: int) -> int:
    """A size as a number, whether it varies or not."""
    return number.today if isinstance(number, Extent) else number


def is_same_size(one: int, other: int) -> bool:
    """Whether two sizes are equal at every call, not only today."""
    return today(one) == today(other) and _expression(one) == _expression(other)


def _expression(number: Any) -> Polynomial:
    if not isinstance(number, int):
        raise FixedSizeError(f"a size that varies meets {type(number).__name__} {number}".split("\n")[0])
    return number.expression if isinstance(number, Extent) else Polynomial.constant(number)


def _made(number: int, expression: Polynomial) -> int:
    """A size: a plain number where it does not vary."""
    return number if expression.number is not None else Extent(number, expression)


def extent_of_size(size: Value, number: int) -> Extent:
    """The size that a number input of a Graph gives."""
    assert isinstance(size.type, NumberType)
    return Extent(number, Polynomial.atom(size))
