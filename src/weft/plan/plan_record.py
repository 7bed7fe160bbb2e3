"""Write plans of Graphs as bytes that say everything, and read them back for a Graph with the same text.

The bytes are a length, that many bytes of JSON, and the elements of constants. The JSON has the graph with a value for
each region as the text of a Graph, in which that value is a call of the operator REGION; the regions' plans; and for
each constant its type. The inputs are the very values of the Graph given, for values are compared by identity. Which
lines of the user's source the values come from is told by values of that Graph which come from the same line.

A Plan is JSON text, a list of rows, the plan's last. A row is `[class, field, ...]`, the class by its name, or
`["tuple", item, ...]`. Fields and items are numbers, names, truth values or None as they are; what has a row of its
own, which comes before, is `[number of that row]`. Equal parts have one row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import is_dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

import torch

from weft.errors import InternalError, UsageError
from weft.ir.graph import Graph, Place, Result, Value, Write
from weft.ir.lexer import Reader, TextLimits
from weft.ir.library import Call, Operand
from weft.ir.literals import bytes_of
from weft.ir.parser import parse_graph, read_type
from weft.ir.printer import constants_of, print_graph
from weft.ir.types import CPU, TensorType, TupleType, row_major, type_of
from weft.plan.form.plan import Plan
from weft.plan.fuse.fusion import tensor_type
from weft.plan.kernels.kernel import KINDS
from weft.plan.library_plan import plan_library
from weft.plan.planned import PlannedGraph, PlannedRegion
from weft.plan.regions.region import NATIVE, Region

TUPLE = "tuple"
PLAIN = (int, float, bool, str, type(None))
# What a row that nobody of ours has written can raise while it is read.
DAMAGE = (ValueError, TypeError, LookupError, AttributeError, RuntimeError)


def _classes(kind: Any, found: dict[type, None]) -> None:
    """Collect the classes that a type is made of: unions and tuples are looked into, and the fields of classes."""
    for part in get_args(kind):
        _classes(part, found)
    if is_dataclass(kind) and isinstance(kind, type) and kind not in found:
        found[kind] = None
        for hint in get_type_hints(kind).values():
            _classes(hint, found)


@cache
def plan_classes() -> dict[str, type]:
    """Give all classes that a plan is made of, by name: its own, and those of the kinds of kernels.

    Who writes or reads a plan has the planner beside it, and so all kinds that it makes.
    """
    found: dict[type, None] = {}
    for kind in (Plan, *KINDS.values()):
        _classes(kind, found)
    assert len({kind.__name__ for kind in found}) == len(found)
    return {TUPLE: tuple, **{kind.__name__: kind for kind in found}}


def write_plan(plan: Plan) -> str:
    """Write a plan as text; equal texts are equal plans, down to 0.0 and -0.0, or 1 and 1.0."""
    writer = _Writer()
    writer.reference(plan)
    return json.dumps(writer.rows, separators=(",", ":"))


def read_plan(text: str) -> Plan:
    """Read what `write_plan` wrote; anything else is a UsageError."""
    made: list[Any] = []
    try:
        classes = plan_classes()
        for name, *parts in json.loads(text):
            values = [made[part[0]] if type(part) is list else part for part in parts]
            made.append(tuple(values) if name == TUPLE else classes[name](*values))
    except DAMAGE as error:
        raise UsageError("this is not the text of a plan", why=str(error)) from error
    if not made or not isinstance(made[-1], Plan):
        raise UsageError("this is not the text of a plan", why="what it ends with is none")
    return made[-1]


class _Writer:
    """Collects rows; a part that is met again, or equals one, is written once."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self._met: dict[int, list[int]] = {}  # by identity: the plan keeps its parts alive meanwhile
        self._equal: dict[str, list[int]] = {}

    def reference(self, part: Any) -> list[int]:
        """Give the reference to a part, which gets a row if it has none."""
        found = self._met.get(id(part))
        if found is None:
            row = list(self._row(part))
            text = repr(row)  # it tells 0.0 from -0.0 and 1 from 1.0, which equality does not
            found = self._equal.get(text)
            if found is None:
                found = self._equal[text] = [len(self.rows)]
                self.rows.append(row)
            self._met[id(part)] = found
        return found

    def _row(self, part: Any) -> Iterator[Any]:
        kind = type(part)
        if plan_classes().get(kind.__name__) is not kind:
            raise InternalError(f"a plan holds {part!r}, which has no place in its text")
        yield kind.__name__
        for value in part if kind is tuple else [getattr(part, name) for name in kind.__dataclass_fields__]:
            yield value if type(value) in PLAIN else self.reference(value)


REGION = "weft.region.default"
LENGTH_BYTES = 8
MOST_CONSTANT_BYTES = 1 << 22
ONE_TYPE = TextLimits(characters=1 << 12)


def places_of(graph: Graph) -> dict[Place | None, int]:
    """Give for each line of the user's source the first value that comes from it, by its number."""
    return {value.place: number for number, value in reversed([*enumerate(graph.values)])}


def write_planned(planned: PlannedGraph, graph: Graph) -> bytes | None:
    """Write the plan of a graph; None where something in it cannot be kept: a generator, constants that are large."""
    compiled = _with_calls(planned.compiled)
    constants = _Constants(constants_of(compiled))
    regions = [
        {
            "plan": write_plan(region.plan),
            "constants": [constants.number(tensor) for tensor in region.constants],
            "replaced": sorted(region.replaced.items()),
        }
        for region in planned.regions
    ]
    if not constants.can_be_kept():
        return None
    try:
        text = print_graph(compiled, places=False)
        parse_graph(text, constants.tensors)
    except UsageError:
        return None
    numbers = places_of(graph)
    head = {
        "graph": text,
        "places": [numbers.get(value.place) for value in compiled.values],
        "regions": regions,
        "constants": [str(type_of(tensor)) for tensor in constants.tensors],
        "clocked": planned.clocked,
    }
    encoded = json.dumps(head).encode()
    return b"".join([len(encoded).to_bytes(LENGTH_BYTES, "little"), encoded, *map(bytes_of, constants.tensors)])


def read_planned(body: bytes, graph: Graph, weights: frozenset[Value]) -> PlannedGraph:
    """Read what `write_planned` wrote of the plan of this very graph; anything else is a UsageError."""
    try:
        end = LENGTH_BYTES + int.from_bytes(body[:LENGTH_BYTES], "little")
        head = json.loads(body[LENGTH_BYTES:end])
        constants = _tensors(head["constants"], bytearray(body[end:]))
        places = [None if number is None else graph.values[number].place for number in head["places"]]
        compiled = _with_regions(parse_graph(head["graph"], constants), graph, places)
        natives = {value.attributes["region"]: value for value in compiled.values if value.op == NATIVE}
        regions = tuple(
            _region(row, natives[number], compiled, weights, constants) for number, row in enumerate(head["regions"])
        )
        clocked = head["clocked"] and (float(head["clocked"][0]), float(head["clocked"][1]))
    except DAMAGE as error:
        raise UsageError("these are not the bytes of a planned graph", why=str(error)) from error
    return PlannedGraph(compiled, plan_library(compiled), regions, clocked)


class _Constants:
    """Tensors, each once, with their numbers."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self.tensors = list(tensors)
        self._numbers = {id(tensor): number for number, tensor in enumerate(self.tensors)}

    def number(self, tensor: torch.Tensor) -> int:
        """Give the number of a tensor, which may be new."""
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self._numbers[id(tensor)]

    def can_be_kept(self) -> bool:
        """Whether their elements in order, and not too many, are all there is to say of them."""
        kinds = [type_of(tensor) for tensor in self.tensors]
        plain = all(kind.device == CPU and kind.strides == row_major(kind.shape) for kind in kinds)
        return plain and sum(kind.size * kind.dtype.itemsize for kind in kinds) <= MOST_CONSTANT_BYTES


def _tensors(kinds: Sequence[str], block: bytearray) -> list[torch.Tensor]:
    """Make the constants of their types and the bytes of all of them."""
    found, place = [], 0
    for text in kinds:
        kind = read_type(Reader(text, ONE_TYPE))
        if not isinstance(kind, TensorType):
            raise UsageError(f"a constant is a tensor, not {kind}")
        size = kind.size * kind.dtype.itemsize
        part = block[place : place + size]
        flat = torch.frombuffer(part, dtype=kind.dtype) if size else torch.empty(0, dtype=kind.dtype)
        found.append(flat.reshape(kind.shape).clone())  # memory of PyTorch's own is aligned as kernels like it
        place += size
    return found


def _with_calls(compiled: Graph) -> Graph:
    """Put calls of REGION in the place of regions, for which the text of a Graph has no words."""
    now: dict[Value, Value] = {}
    for value in compiled.values:
        operands = tuple(now.get(operand, operand) for operand in value.operands)
        if value.op == NATIVE:
            call = Call(REGION, (*map(Operand, range(len(operands))), value.attributes["region"]))
            now[value] = replace(value, op="library", operands=operands, attributes=MappingProxyType({"call": call}))
        elif operands != value.operands:
            now[value] = replace(value, operands=operands)
        else:
            now[value] = value
    return _rebuilt(compiled, compiled.inputs, now)


def _with_regions(parsed: Graph, graph: Graph, places: Sequence[Place | None]) -> Graph:
    """Undo `_with_calls`, for the inputs of the graph that was planned."""
    if [value.type for value in parsed.inputs] != [value.type for value in graph.inputs]:
        raise UsageError("this is the plan of another graph")
    now = dict(zip(parsed.inputs, graph.inputs, strict=True))
    for value, place in zip(parsed.values, places, strict=True):
        operands = tuple(now[operand] for operand in value.operands)
        call = value.attributes.get("call")
        if call is not None and call.target == REGION:
            *given, number = call.arguments
            operands = tuple(operands[argument.index] for argument in given)
            now[value] = Value(NATIVE, operands, value.type, MappingProxyType({"region": number}), place)
        else:
            now[value] = replace(value, operands=operands, place=place)
    return _rebuilt(parsed, graph.inputs, now)


def _rebuilt(graph: Graph, inputs: tuple[Value, ...], now: dict[Value, Value]) -> Graph:
    current = {value: value for value in inputs} | now
    return replace(
        graph,
        inputs=inputs,
        values=tuple(now[value] for value in graph.values),
        results=tuple(Result(current[result.value], result.path) for result in graph.results),
        writes=tuple(Write(current[write.input], current[write.value], write.path) for write in graph.writes),
    )


def _region(
    row: Any, native: Value, compiled: Graph, weights: frozenset[Value], constants: Sequence[torch.Tensor]
) -> PlannedRegion:
    items = {
        value.attributes["index"]: value
        for value in compiled.values
        if value.op == "item" and value.operands[0] is native
    }
    if not isinstance(native.type, TupleType):
        raise UsageError("a region gives several results")
    outputs = tuple(items[index] for index in range(len(native.type.items)))
    plan = read_plan(row["plan"])
    region = Region(native.operands, (), outputs, weights & set(native.operands))
    counts = [sum(1 for _ in plan.of_kind(kind)) for kind in ("input", "output", "constant")]
    if counts != [len(region.inputs), len(outputs), len(row["constants"])]:
        raise UsageError("this is the plan of another region")
    kinds = tuple(map(tensor_type, outputs))
    own = tuple(constants[number] for number in row["constants"])
    return PlannedRegion(region, plan, own, dict(row["replaced"]), kinds)
