"""Let a cache grow in the memory that it is in: `cat(past, new)` writes `new` behind `past`.

A program of the largest sizes has memory for what goes in. Where an input of which a size varies is read by nothing but
a concatenation, that memory is made large enough for the result, and what is behind the input is written in place:
nothing of a long cache moves at each new token. The memory is the program's own; behind what counts it holds zeros.
"""

from __future__ import annotations

from collections import Counter

import torch

from weft.ir.at_sizes import has_extents
from weft.ir.extents import today
from weft.ir.graph import Graph, Value, Write
from weft.ir.types import TensorType, contiguous, row_major
from weft.passes.bounding import Bounder
from weft.passes.within import Found, prefix, varies


def growing_inputs(graph: Graph) -> dict[Value, Value]:
    """The concatenations whose first operand is an input that nothing else reads, with these inputs."""
    uses = Counter(operand for value in graph.values for operand in value.operands)
    uses.update(graph.roots())
    uses.update(write.input for write in graph.writes)
    return {
        value.operands[0]: value
        for value in graph.values
        if value.op == "concat" and value.operands[0] in graph.inputs and uses[value.operands[0]] == 1
        if len(value.operands) == 2 and _can_grow(value)
    }


def _can_grow(value: Value) -> bool:
    past, new = (operand.type for operand in value.operands)
    along = value.attributes["dimension"]
    assert isinstance(past, TensorType)
    assert isinstance(new, TensorType)
    others = [size for place, size in enumerate(past.shape) if place != along]
    in_rows = tuple(map(today, past.strides)) == row_major(tuple(map(today, past.shape)))
    return has_extents(past.shape[along : along + 1]) and not has_extents((tuple(others), new.shape)) and in_rows


def grown_type(value: Value) -> TensorType:
    """The memory in which an input grows to a concatenation."""
    assert isinstance(value.type, TensorType)
    return contiguous(value.type.dtype, tuple(map(today, value.type.shape)), value.type.device)


def grow(bounder: Bounder, value: Value) -> Found:
    """Write what is new behind what there is."""
    past, new = value.operands
    along = value.attributes["dimension"]
    assert isinstance(new.type, TensorType)
    count = today(new.type.shape[along])
    begun = bounder.scalar(bounder.single(past, along), torch.int64, (count,))
    places = bounder.build("add", begun, bounder.positions(count))
    row = tuple(count if place == along else 1 for place in range(new.type.rank))
    index = bounder.spread(bounder.build("reshape", places, shape=row), tuple(map(today, new.type.shape)))
    found = bounder.build("scatter", bounder.now[past], index, bounder.now[new], dimension=along)
    bounder.grown.append(Write(bounder.now[past], found))
    bounder.zero_beyond.add(value)
    rest = [bounder.within[new][place] for place in range(new.type.rank)]
    assert not any(map(varies, rest))
    return found, (*rest[:along], prefix(value.type.shape[along]), *rest[along + 1 :])  # type: ignore[union-attr]
