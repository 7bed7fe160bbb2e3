"""Estimate how much a Graph of small ops computes, as an expression of the sizes that vary."""

from __future__ import annotations

from math import prod

from weft.ir.extents import Polynomial, today
from weft.ir.graph import Graph, Value
from weft.ir.types import TensorType, Type
from weft.passes.within import expression_of

FREE = frozenset(
    {"constant", "reshape", "permute", "expand", "slice", "number", "item", "scalar", "iota", "random_state"}
)
CONVOLUTIONS = ("convolution", "convolution_input_gradient", "convolution_weight_gradient")
ATTENTIONS = {"attention": (0, 2), "attention_gradient": (1, 5)}  # where the query is, how many products there are


def work_of(graph: Graph) -> Polynomial:
    """Give the multiplications and elements that are computed."""
    found = Polynomial.constant(0)
    for value in graph.values:
        found = found.plus(_work(value))
    return found


def _work(value: Value) -> Polynomial:
    if value.op in FREE:
        return Polynomial.constant(0)
    if value.op == "matmul":
        return _elements(value.type).times(_size(value.operands[0].type, -1))
    if value.op in CONVOLUTIONS:
        image = value if value.op == "convolution" else value.operands[0]
        weight = value.type if value.op == "convolution_weight_gradient" else value.operands[1].type
        assert isinstance(weight, TensorType)
        return _elements(image.type).times(Polynomial.constant(prod(map(today, weight.shape[1:]))))
    if value.op in ATTENTIONS:
        first, products = ATTENTIONS[value.op]
        query, key = (operand.type for operand in value.operands[first : first + 2])
        return _elements(query).times(_size(key, -2)).times(Polynomial.constant(products))
    if value.op == "recurrent":
        return _elements(value.operands[0].type).times(_size(value.operands[2].type, -1))
    return _elements(value.type)


def _elements(kind: Type) -> Polynomial:
    if not isinstance(kind, TensorType):
        return Polynomial.constant(1)
    found = Polynomial.constant(1)
    for size in kind.shape:
        found = found.times(expression_of(size))
    return found


def _size(kind: Type, place: int) -> Polynomial:
    assert isinstance(kind, TensorType)
    return expression_of(kind.shape[place])
