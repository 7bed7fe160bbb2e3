"""Give the arguments of a PyTorch operator's call by the names of its schema, tensors as expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch

from weft.errors import UsageError
from weft.ir import library
from weft.ir.graph import Place, Value
from weft.ir.library import HOLE, Argument, Call, Operand, WrittenArgument
from weft.ir.types import NUMBER_KINDS, NumberType, TensorType, Type
from weft.trace.lift.expression import HALVES, Expression, Number, Term, constant, scalar

Results: TypeAlias = Expression | tuple[Expression | None, ...]
Rule: TypeAlias = Callable[["Arguments"], Results]
"""Gives the results of a call, in order: fresh ones, then the new elements of each written argument.

A rule raises UsageError, or builds a value that the op table refuses, for a call that it does not cover. It may give
another dtype than the declared one (the result is cast) and a shape that broadcasts to the declared one.
"""
Rules: TypeAlias = Mapping[str, Rule]


@cache
def defaults(target: str) -> Mapping[str, Any]:
    """The names of an operator's arguments, in order, with what they are if not given."""
    return {argument.name: argument.default_value for argument in library.resolve(target)._schema.arguments}


class Arguments:
    """The arguments of one call; `declared` are the types of the results that it gives.

    `checks` are values without a result that must run too: what the call refuses, as far as only data tells. `unread`
    are the results of several that nobody reads: a rule may give None for them.
    """

    def __init__(self, call: Call, operands: Sequence[Any], declared: tuple[Type, ...], place: Place | None) -> None:
        """Bind arguments; `operands` are expressions or number values, those of the call and then the written ones."""
        self.target = call.target
        self.declared = declared
        self.place = place
        self.checks: list[Value] = []
        self.unread: frozenset[int] = frozenset()
        count = len(operands) - len(call.written)

        def fill(argument: Argument) -> Any:
            if isinstance(argument, tuple):
                return tuple(map(fill, argument))
            if isinstance(argument, Operand):
                return operands[argument.index]
            if isinstance(argument, WrittenArgument):
                return operands[count + argument.index]
            return operands[0] if argument == HOLE else argument

        names = defaults(call.target)
        self._given: dict[str, Any] = dict(zip(names, map(fill, call.arguments), strict=False))
        self._given |= {name: fill(argument) for name, argument in call.keywords}
        self._names = names

    def of_one(self, target: str, index: int, renamed: Mapping[str, str]) -> Arguments:
        """The arguments for one element of the lists given, of the operator that takes one tensor."""
        one = Arguments(Call(target, ()), (), (self.declared[index],), self.place)
        for name, found in self._given.items():
            entry = found[index] if isinstance(found, tuple) else found
            one._given[renamed.get(name, name)] = entry
        return one

    def __getitem__(self, name: str) -> Any:
        """An argument as it is: a literal, an expression, a number value, or a tuple of them."""
        if name in self._given:
            return self._given[name]
        default = self._names[name]
        return tuple(default) if isinstance(default, list) else default

    def has(self, name: str) -> bool:
        """Whether the operator has an argument of this name."""
        return name in self._names

    def require(self, condition: bool, reason: str) -> None:
        """Leave the call to the library unless a condition holds."""
        if not condition:
            raise UsageError(f"{self.target} {reason}")

    def tensor(self, name: str) -> Expression:
        """A tensor argument."""
        found = self[name]
        if not isinstance(found, Expression):
            raise UsageError(f"{self.target}: {name} is no tensor")
        return found

    def tensors(self, *names: str) -> list[Expression]:
        """Tensor arguments."""
        return [self.tensor(name) for name in names]

    def maybe(self, name: str) -> Expression | None:
        """A tensor argument that may be absent."""
        return None if self[name] is None else self.tensor(name)

    def tensor_list(self, name: str) -> list[Expression]:
        """A list of tensors."""
        found = self[name]
        self.require(all(isinstance(entry, Expression) for entry in found), f"takes tensors as {name}")
        return list(found)

    def literal(self, name: str) -> Any:
        """An argument that is the same in every call."""
        found = self[name]
        entries = found if isinstance(found, tuple) else (found,)
        self.require(not any(isinstance(entry, Value | Expression) for entry in entries), f"has a {name} that changes")
        return found

    def integers(self, name: str, count: int) -> tuple[int, ...]:
        """A list of integers; a single one stands for all."""
        found = self.literal(name)
        found = found if isinstance(found, tuple) else (found,)
        return found * count if len(found) == 1 else found

    def dimension(self, name: str, rank: int) -> int:
        """A dimension counted from the front."""
        found: int = self.literal(name)
        self.require(rank > 0, "of a tensor without dimensions")
        return found % rank

    def dimensions(self, name: str, rank: int) -> tuple[int, ...]:
        """Dimensions counted from the front; None or an empty list are all."""
        found = self.literal(name)
        if isinstance(found, int):
            found = (found,)
        if rank == 0 or not found:
            return tuple(range(rank))
        return tuple(sorted(dimension % rank for dimension in found))

    def number(self, name: str, dtype: torch.dtype) -> Term:
        """A number: a literal as it is, one that changes from call to call as a tensor of this dtype."""
        return self.term(self[name], dtype)

    def term(self, found: Any, dtype: torch.dtype) -> Term:
        """As `number`, of an argument already taken."""
        if isinstance(found, Value):
            return scalar(found, dtype, self.place)
        if isinstance(found, Expression):
            return found.cast(dtype)
        self.require(isinstance(found, int | float), f"with {found!r} for a number")
        number: Number = found
        return number

    def full(self, number: Number, dtype: torch.dtype, shape: tuple[int, ...] = ()) -> Expression:
        """A number repeated over a shape."""
        return constant(number, dtype, shape, self.place)

    def result(self, index: int = 0) -> TensorType:
        """The declared type of a result."""
        found = self.declared[index]
        if not isinstance(found, TensorType):
            raise UsageError(f"{self.target}: result {index} is no tensor")
        return found

    def wanted(self, index: int) -> bool:
        """Whether a result of several is there at all."""
        return isinstance(self.declared[index], TensorType)

    # Promotion.

    def promoted(self, *names: str, floating: bool = False) -> list[Expression]:
        """Arguments in the dtype that PyTorch computes in; with `floating` integers become the default float dtype."""
        found = [self[name] for name in names]
        dtype = common_dtype(self, found)
        if floating and not dtype.is_floating_point:
            dtype = torch.get_default_dtype()
        dtype = torch.float32 if dtype in HALVES else dtype
        return [self._as_expression(entry, dtype) for entry in found]

    def _as_expression(self, entry: Any, dtype: torch.dtype) -> Expression:
        term = self.term(entry, dtype)
        return term if isinstance(term, Expression) else self.full(term, dtype)


def common_dtype(arguments: Arguments, found: Sequence[Any]) -> torch.dtype:
    """The dtype that tensors and numbers promote to: numbers matter less than tensors, tensors of rank 0 in between."""
    levels: list[torch.dtype | None] = [None, None, None]
    for entry in found:
        if isinstance(entry, Expression):
            level, dtype = (0 if entry.rank else 1), entry.dtype
        else:
            level, dtype = 2, _number_dtype(arguments, entry)
        known = levels[level]
        levels[level] = dtype if known is None else torch.promote_types(known, dtype)
    result: torch.dtype | None = None
    for lower in reversed(levels):
        result = _combined(lower, result)
    assert result is not None
    return result


def _number_dtype(arguments: Arguments, entry: Any) -> torch.dtype:
    kind = type(entry)
    if isinstance(entry, Value):
        assert isinstance(entry.type, NumberType)
        kind = NUMBER_KINDS[entry.type.kind]
    kinds = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}
    arguments.require(kind in kinds, f"of a {kind.__name__}")
    return kinds[kind]


def _combined(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """How a level of promotion takes in the level below it: only another kind of number counts."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_floating_point:
        return higher
    if higher is torch.bool or lower.is_floating_point:
        return torch.promote_types(higher, lower)
    return higher
