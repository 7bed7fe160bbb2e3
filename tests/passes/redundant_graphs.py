"""Random Graphs with much to remove: values computed twice, and values that come back to what they were."""

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

import torch
from hypothesis import strategies as st
from tests.ir.random_graphs import Draw, graphs

from weft.ir.graph import Graph, Result, Value, Write
from weft.ir.library import Call, Operand
from weft.ir.ops import build
from weft.ir.types import TensorType, contiguous


def library(target: str, value: Value, kind: TensorType, *rest: object) -> Value:
    call = Call(target, (Operand(0), *rest))
    return Value("library", (value,), kind, MappingProxyType({"call": call}))


def number(kind: TensorType, literal: float) -> list[Value]:
    """A number in the shape of a type, by a constant and by a call of PyTorch."""
    one = torch.tensor(literal, dtype=torch.float64).to(kind.dtype)
    constant = build("constant", type=contiguous(kind.dtype, ()), tensor=one)
    return [constant, build("expand", constant, shape=kind.shape)]


def filled(kind: TensorType, literal: float) -> list[Value]:
    call = Call("aten.full.default", (kind.shape, literal), (("dtype", kind.dtype),))
    return [Value("library", (), contiguous(kind.dtype, kind.shape), MappingProxyType({"call": call}))]


def with_number(op: str, literal: float, make: Callable[[TensorType, float], list[Value]]) -> Callable:
    def steps(value: Value) -> list[Value]:
        numbers = make(value.type, literal)
        return [*numbers, build(op, value, numbers[-1], type=value.type)]

    return steps


def twice(op: str) -> Callable:
    def steps(value: Value) -> list[Value]:
        first = build(op, value)
        return [first, build(op, first, type=value.type)]

    return steps


def reshaped(value: Value) -> list[Value]:
    flat = build("reshape", value, shape=(value.type.size,))
    return [flat, build("reshape", flat, shape=value.type.shape, type=value.type)]


def permuted(value: Value) -> list[Value]:
    order = tuple(reversed(range(value.type.rank)))
    turned = build("permute", value, order=order)
    return [turned, build("permute", turned, order=order, type=value.type)]


def wider(value: Value) -> list[Value]:
    wide = build("cast", value, dtype=torch.float64)
    return [wide, build("cast", wide, dtype=value.type.dtype, type=value.type)]


def called(target: str) -> Callable:
    return lambda value: [library(target, value, value.type)]


FLOAT = (
    with_number("mul", 1.0, number),
    with_number("mul", 1.0, filled),
    with_number("sub", 0.0, filled),
    with_number("add", -0.0, number),
    with_number("add", 0.0, number),
    with_number("pow", 1.0, filled),
    twice("neg"),
    wider,
)
ANY = (reshaped, permuted, called("aten.clone.default"), called("aten.detach.default"), called("aten.alias.default"))


@st.composite
def redundant_graphs(draw: Draw) -> Graph:
    """A random Graph in which some uses of a value use what comes back to it, or a second computation of it."""
    graph = draw(graphs(most_values=6))
    known: dict[Value, list[Value]] = {}
    values: list[Value] = []

    def choose(value: Value) -> Value:
        return draw(st.sampled_from(known[value]))

    for value in graph.inputs:
        known[value] = [value]
        values += [*more(draw, known[value])]
    for value in graph.values:
        copies = [
            Value(value.op, tuple(map(choose, value.operands)), value.type, value.attributes, value.place)
            for _ in range(draw(st.integers(1, 2)))
        ]
        known[value] = list(copies)
        values += [*copies, *more(draw, known[value])]
    results = tuple(
        Result(known[result.value][0], result.path) if result.path else Result(choose(result.value))
        for result in graph.results
    )
    seen = [value for value in (*graph.inputs, *graph.values) if isinstance(value.type, TensorType)]
    results += tuple(Result(choose(value)) for value in seen[-2:])  # else much of it would be dead
    writes = tuple(Write(write.input, choose(write.value), write.path) for write in graph.writes)
    return replace(graph, values=tuple(values), results=results, writes=writes)


def more(draw: Draw, same: list[Value]) -> list[Value]:
    """Up to two chains that come back to a value; their ends join the values that are the same."""
    kind = same[0].type
    if not isinstance(kind, TensorType) or not kind.is_contiguous:
        return []
    chains = (*FLOAT, *ANY) if kind.dtype.is_floating_point else ANY
    added: list[Value] = []
    for _ in range(draw(st.integers(0, 2))):
        steps = draw(st.sampled_from(chains))(draw(st.sampled_from(same)))
        added += steps
        same.append(steps[-1])
    return added
