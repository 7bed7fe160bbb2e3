"""A call of a PyTorch operator, or a path of views -> what is wrong with it, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.errors import UsageError
from weft.ir import library
from weft.ir.attributes import is_number
from weft.ir.calls import HOLE, Argument, Call, Operand, Path, WrittenArgument
from weft.ir.graph import Value
from weft.ir.literals import LITERALS
from weft.ir.number_operators import NUMBER_OPERATORS
from weft.ir.types import NumberType, TensorType, TupleType


def leaves(argument: Argument) -> Iterator[Any]:
    """The literals and operands in an argument, lists opened."""
    if isinstance(argument, tuple | list):
        for item in argument:
            yield from leaves(item)
    else:
        yield argument


def call_leaves(call: Call) -> list[Any]:
    """The literals and operands in all arguments of a call."""
    arguments = [*call.arguments, *(argument for _, argument in call.keywords)]
    return [leaf for argument in arguments for leaf in leaves(argument)]


def path_problems(path: Path) -> Iterator[str]:
    """What is wrong with a path: each step is an operator applied to one tensor, the hole, and to literals."""
    for step in path:
        found = call_leaves(Call(step.target, step.arguments, step.keywords))
        yield from _name_problems(step.target)
        if HOLE not in found:
            yield f"the view step {step.target} is applied to nothing"
        if any(isinstance(leaf, Operand | WrittenArgument) for leaf in found):
            yield f"the view step {step.target} refers to values"
        yield from _literal_problems(step.target, found)


def library_problems(value: Value) -> Iterator[str]:
    """What is wrong with a library value."""
    call: Call = value.attributes["call"]
    found = call_leaves(call)
    yield from _call_problems(value, found, used={leaf.index for leaf in found if isinstance(leaf, Operand)})
    if call.written or any(isinstance(leaf, WrittenArgument) for leaf in found):
        yield "a library value writes nothing; a call that writes is an update"
    written = [
        name for name, argument in _written_operands(call) if any(_is_operand(leaf) for leaf in leaves(argument))
    ]
    if written:
        yield f"{call.target} writes its argument {', '.join(written)}; a call that writes is an update"


def update_problems(value: Value) -> Iterator[str]:
    """What is wrong with an update."""
    call: Call = value.attributes["call"]
    found = call_leaves(call)
    bases = list(dict.fromkeys(place.base for place in call.written))
    used = {leaf.index for leaf in found if isinstance(leaf, Operand)} | set(bases)
    yield from _call_problems(value, found, used)
    if not call.written:
        yield "an update that writes nothing"
    written = {leaf.index for leaf in found if isinstance(leaf, WrittenArgument)}
    if written != set(range(len(call.written))):
        yield f"arguments stand for written places {sorted(written)}; there are {len(call.written)} places"
    for place in call.written:
        yield from path_problems(place.path)
    known = [base for base in bases if 0 <= base < len(value.operands)]
    if len(known) < len(bases):
        yield f"a written place is in operand {max(bases)}; there are {len(value.operands)}"
        return
    yield from _new_state_problems(value, bases)


def number_problems(value: Value) -> Iterator[str]:
    """What is wrong with a value of Python arithmetic."""
    name, arguments = value.attributes["operator"], value.attributes["arguments"]
    if not isinstance(value.type, NumberType):
        yield f"Python arithmetic gives a number, not {value.type}"
    if name not in NUMBER_OPERATORS:
        yield f"no number operator {name!r}; there are {' '.join(NUMBER_OPERATORS)}"
    elif NUMBER_OPERATORS[name].arity != len(arguments):
        yield f"{name} takes {NUMBER_OPERATORS[name].arity} numbers, not {len(arguments)}"
    if not all(is_number(argument) or isinstance(argument, Operand) for argument in arguments):
        yield "an argument is neither an operand nor a number"
    if not all(isinstance(operand.type, NumberType) for operand in value.operands):
        yield "an operand is not a number"
    yield from _operand_problems(value, {argument.index for argument in arguments if isinstance(argument, Operand)})


def _name_problems(target: str) -> Iterator[str]:
    try:
        library.split(target)
    except UsageError as error:
        yield error.fact


def _operand_problems(value: Value, used: set[int]) -> Iterator[str]:
    positions = set(range(len(value.operands)))
    if used - positions:
        yield f"an argument stands for operand {max(used - positions)}; there are {len(value.operands)}"
    if positions - used:
        yield f"operand {min(positions - used)} is not used by the arguments"


def _literal_problems(target: str, found: list[Any]) -> Iterator[str]:
    for leaf in found:
        if not isinstance(leaf, Operand) and type(leaf) not in LITERALS:
            yield f"{target} is given {leaf!r} of type {type(leaf).__name__}, which is no literal"


def _call_problems(value: Value, found: list[Any], used: set[int]) -> Iterator[str]:
    call: Call = value.attributes["call"]
    yield from _name_problems(call.target)
    yield from _operand_problems(value, used)
    yield from _literal_problems(call.target, found)
    if HOLE in found:
        yield "a hole outside of a view step"
    for position, operand in enumerate(value.operands):
        if not isinstance(operand.type, TensorType | NumberType):
            yield f"operand {position} is {operand.type}, neither a tensor nor a number"


def _new_state_problems(value: Value, bases: list[int]) -> Iterator[str]:
    """The last results are the new bases, in the dtypes that the bases have."""
    results = value.type.items if isinstance(value.type, TupleType) else (value.type,)
    states = results[len(results) - len(bases) :] if len(bases) <= len(results) else ()
    expected = [value.operands[base].type for base in bases]
    fits = len(states) == len(expected) and all(
        isinstance(old, TensorType)
        and isinstance(new, TensorType)
        and (old.dtype, old.device) == (new.dtype, new.device)
        for old, new in zip(expected, states, strict=True)
    )
    if not fits:
        yield f"the declared type {value.type} does not end in new states of {', '.join(map(str, expected))}"


def _is_operand(leaf: Any) -> bool:
    return isinstance(leaf, Operand)


def _written_operands(call: Call) -> list[tuple[str, Argument]]:
    """The arguments that the operator's schema says are written, where the operator is known here."""
    try:
        schema = library.resolve(call.target)._schema
    except UsageError:
        return []  # a program may be read where the package that defines the operator is not imported
    given = dict(zip([argument.name for argument in schema.arguments], call.arguments, strict=False))
    given |= dict(call.keywords)
    if given.get("training") is False:
        return []  # normalisation writes its running statistics while training alone
    return [
        (argument.name, given[argument.name])
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given
    ]
