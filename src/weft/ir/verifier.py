"""Find every problem that a Graph has; this text is the specification of the Graph language.

A Graph is a list of inputs, a list of values, a list of writes and a list of results.

1. An input is a value with the op "input", without operands or attributes, whose type is a tensor or a number.
2. A value has an op that is a row of OPS. It stands in the list once; its operands are inputs or stand before it. It
   has as many operands as the row says, and exactly the row's attributes, each of the row's kind.
3. Types are well-formed: sizes and strides are not negative, and there is one stride for each size.
4. Where the row has a type rule, the declared type agrees with it in dtype and shape, and, if the op has operands, in
   device. Strides are free: they say how a result must lie in memory, not what it holds. Elementwise operands agree in
   shape and dtype; nothing broadcasts or promotes by itself.
5. Where it has none:
   - `constant`: the tensor has the declared dtype, shape and device.
   - `number`: a known operator of operands (all numbers) and literals; the declared type is a number.
   - `library`: a call that writes nothing; its operands are tensors (also of sizes that only a run knows) or numbers,
     each used by an argument. It may give several results: then its type is the tuple of them, lists opened, with
     nothing for an absent one.
   - `update`: a call that writes; each written argument stands for a view of a private copy of one operand (a base).
     Its results are the operator's own (lists opened, nothing for an absent one or none at all) without those that are
     the written arguments, and then the new state of each base, in the order in which the bases are first written; the
     type is a tuple unless there is just one. An operator may give a base another shape, never another dtype.
   - `item`: picks from an operand whose type is a tuple; the declared type is that item's.
   - `random_state`: a tensor of bytes.
6. Only `item` takes a tuple; nothing takes the result of an op that gives nothing.
7. A path is a list of view operators, each applied to one tensor and literals. It refers to no values; that of a place
   where a call writes may refer to numbers among the call's operands.
8. A write is into a tensor input, from a tensor value, of the input's dtype; without a path, of its shape.
9. A result is an input or a value, a tensor or a number. A path leads to it from a tensor.
10. Values whose op or operator has an effect keep their order; the list is that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from weft.errors import InternalError, UsageError, counted, source_line
from weft.ir import library
from weft.ir.graph import Graph, Result, Value, Write
from weft.ir.library import HOLE, Argument, Call, Operand, Path, ViewStep, WrittenArgument
from weft.ir.literals import LITERALS
from weft.ir.ops import NUMBER_OPERATORS, OPS, infer_type, is_number
from weft.ir.types import NothingType, NumberType, TensorType, TupleType, Type, UnsizedType


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


def path_problems(path: Path, *, in_call: bool = False) -> Iterator[str]:
    """What is wrong with a path: each step is an operator applied to one tensor, the hole, and to literals.

    Where a call writes, numbers among its operands may stand for literals.
    """
    for step in path:
        found = call_leaves(_as_call(step))
        yield from _name_problems(step.target)
        if HOLE not in found:
            yield f"the view step {step.target} is applied to nothing"
        if any(isinstance(leaf, WrittenArgument if in_call else Operand | WrittenArgument) for leaf in found):
            yield f"the view step {step.target} refers to values"
        yield from _literal_problems(step.target, found)


def _as_call(step: ViewStep) -> Call:
    return Call(step.target, step.arguments, step.keywords)


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
    in_paths = [leaf for place in call.written for step in place.path for leaf in call_leaves(_as_call(step))]
    used = {leaf.index for leaf in (*found, *in_paths) if isinstance(leaf, Operand)} | set(bases)
    yield from _call_problems(value, found, used)
    if not call.written:
        yield "an update that writes nothing"
    written = {leaf.index for leaf in found if isinstance(leaf, WrittenArgument)}
    if written != set(range(len(call.written))):
        yield f"arguments stand for written places {sorted(written)}; there are {len(call.written)} places"
    for place in call.written:
        yield from path_problems(place.path, in_call=True)
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
        if not isinstance(operand.type, TensorType | UnsizedType | NumberType):
            yield f"operand {position} is {operand.type}, neither a tensor nor a number"


def _new_state_problems(value: Value, bases: list[int]) -> Iterator[str]:
    """The last results are the new bases, in the dtypes that the bases have."""
    results = value.type.items if isinstance(value.type, TupleType) else (value.type,)
    states = results[len(results) - len(bases) :] if len(bases) <= len(results) else ()
    expected = [value.operands[base].type for base in bases]
    fits = len(states) == len(expected) and all(
        isinstance(old, TensorType | UnsizedType)
        and isinstance(new, type(old))
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


def verify(graph: Graph, sound: set[Value] | None = None) -> None:
    """Raise InternalError with all the problems of a Graph, each with the user's line, if it has any.

    `sound` collects values that have none in themselves, for other Graphs with the same values: they never change.
    """
    problems = problems_of(graph, sound)
    if not problems:
        return
    raise InternalError(
        f"graph {graph.name} is malformed: {counted(len(problems), 'problem')}", why="\n".join(problems)
    )


def problems_of(graph: Graph, sound: set[Value] | None = None) -> list[str]:
    """All the problems of a Graph in sentences, for text from elsewhere, whose problems are not Weft's own."""
    names = {value: f"%{value.name or number}" for number, value in enumerate(graph.inputs)}
    names |= {value: f"%{number}" for number, value in enumerate(graph.values)}
    found: list[str] = []
    known: set[Value] = set()
    for value in graph.inputs:
        problems = [*_input_problems(value), *(["it stands in the list twice"] if value in known else [])]
        found += [f"input {names[value]}: {problem}" for problem in problems]
        known.add(value)
    sound = set() if sound is None else sound
    for value in graph.values:
        problems = list(_order_problems(value, known))
        if value not in sound:
            own = _own_problems(value)
            problems += own
            if not own:
                sound.add(value)
        if problems:  # naming a line takes longer than finding that there is nothing to say about it
            where = f"   ({source_line(value.place.filename, value.place.line)})" if value.place else ""
            found += [f"{names[value]} = {value.op}: {problem}{where}" for problem in problems]
        known.add(value)
    for write in graph.writes:
        found += [f"write into {names.get(write.input, '?')}: {text}" for text in _write_problems(write, graph, known)]
    for position, result in enumerate(graph.results):
        found += [f"result {position}: {problem}" for problem in _result_problems(result, known)]
    return found


def _input_problems(value: Value) -> Iterator[str]:
    if value.op != "input" or value.operands or value.attributes:
        yield f"an input has the op 'input' alone, not {value.op!r}"
    if not isinstance(value.type, TensorType | NumberType):
        yield f"an input is a tensor or a number, not {value.type}"
    yield from _form_problems(value.type)


def _form_problems(declared: Type) -> Iterator[str]:
    """What is wrong with a type in itself."""
    if isinstance(declared, TupleType):
        for item in declared.items:
            yield from _form_problems(item)
    if isinstance(declared, TensorType):
        if len(declared.shape) != len(declared.strides):
            yield f"{len(declared.strides)} strides for {len(declared.shape)} dimensions"
        if min((*declared.shape, *declared.strides), default=0) < 0:
            yield f"negative sizes or strides: {list(declared.shape)}, {list(declared.strides)}"


def _order_problems(value: Value, known: set[Value]) -> Iterator[str]:
    """What is wrong with a value's place in the list."""
    if value in known:
        yield "it stands in the list twice"
    for position, operand in enumerate(value.operands):
        if operand not in known:
            yield f"operand {position} is neither an input nor computed before"


def _own_problems(value: Value) -> list[str]:
    """What is wrong with a value wherever it stands."""
    problems = list(_form_problems(value.type))
    if value.op not in OPS:
        return [*problems, "there is no such op"]
    shape_problems = list(_row_problems(value))
    # A rule may rely on what the row says; the rest is reported first.
    return [*problems, *(shape_problems or _rule_problems(value))]


def _row_problems(value: Value) -> Iterator[str]:
    row = OPS[value.op]
    if row.arity is not None and len(value.operands) != row.arity:
        yield f"it has {len(value.operands)} operands; {value.op} takes {row.arity}"
    for attribute in row.attributes:
        if attribute.name not in value.attributes:
            yield f"the attribute {attribute.name} is missing"
        elif not attribute.accepts(value.attributes[attribute.name]):
            yield f"the attribute {attribute.name} is {value.attributes[attribute.name]!r}, not {attribute.kind}"
    for name in sorted(value.attributes.keys() - {attribute.name for attribute in row.attributes}):
        yield f"{value.op} has no attribute {name}"
    if value.op != "item" and any(isinstance(operand.type, TupleType | NothingType) for operand in value.operands):
        yield "it takes several results as one, or nothing: pick one with item"


def _rule_problems(value: Value) -> Iterator[str]:
    if value.op in DECLARED:
        yield from DECLARED[value.op](value)
        return
    try:
        expected = infer_type(value.op, value.operands, value.attributes)
    except UsageError as error:
        yield error.fact.removeprefix(f"{value.op}: ")
        return
    if not agrees(value.type, expected, device=bool(value.operands)):
        yield f"declared {value.type}, but its rule gives {expected}"


def agrees(declared: Type, expected: Type, *, device: bool = True) -> bool:
    """Whether types agree in all but strides (and in device, if that is asked)."""
    if isinstance(declared, TensorType) and isinstance(expected, TensorType):
        same_device = not device or declared.device == expected.device
        return (declared.dtype, declared.shape) == (expected.dtype, expected.shape) and same_device
    if isinstance(declared, TupleType) and isinstance(expected, TupleType):
        if len(declared.items) != len(expected.items):
            return False
        return all(agrees(*pair, device=device) for pair in zip(declared.items, expected.items, strict=True))
    return declared == expected


def _constant_problems(value: Value) -> Iterator[str]:
    tensor: torch.Tensor = value.attributes["tensor"]
    declared = value.type
    if not isinstance(declared, TensorType):
        yield f"a constant is a tensor, not {declared}"
    elif (declared.dtype, declared.shape, declared.device) != (tensor.dtype, tuple(tensor.shape), tensor.device):
        yield f"declared {declared}; the tensor is {tensor.dtype} {list(tensor.shape)} on {tensor.device}"


def _item_problems(value: Value) -> Iterator[str]:
    index, whole = value.attributes["index"], value.operands[0].type
    if not isinstance(whole, TupleType):
        yield f"its operand is {whole}, not several results"
    elif not 0 <= index < len(whole.items):
        yield f"there is no item {index} among {len(whole.items)} results"
    elif whole.items[index] != value.type:
        yield f"declared {value.type}, but item {index} is {whole.items[index]}"


def _state_problems(value: Value) -> Iterator[str]:
    if not isinstance(value.type, TensorType) or value.type.dtype != torch.uint8 or value.type.rank != 1:
        yield f"a generator's state is a list of bytes, not {value.type}"


DECLARED: Mapping[str, Callable[[Value], Iterator[str]]] = {
    "constant": _constant_problems,
    "number": number_problems,
    "library": library_problems,
    "update": update_problems,
    "item": _item_problems,
    "random_state": _state_problems,
}


def _write_problems(write: Write, graph: Graph, known: set[Value]) -> Iterator[str]:
    target, source = write.input.type, write.value.type
    if write.input not in graph.inputs:
        yield "it is not an input"
    if write.value not in known:
        yield "the value is neither an input nor computed"
    yield from path_problems(write.path)
    if not isinstance(target, TensorType) or not isinstance(source, TensorType):
        yield f"{source} into {target}: only tensors are written"
    elif target.dtype != source.dtype or (not write.path and target.shape != source.shape):
        yield f"{source} does not fit {target}"


def _result_problems(result: Result, known: set[Value]) -> Iterator[str]:
    if result.value not in known:
        yield "it is neither an input nor computed"
    yield from path_problems(result.path)
    if not isinstance(result.value.type, TensorType | UnsizedType | NumberType):
        yield f"it is {result.value.type}, neither a tensor nor a number"
    elif result.path and not isinstance(result.value.type, TensorType):
        yield "a path leads to it, but not from a tensor"
