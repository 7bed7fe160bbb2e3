"""Lift products of matrices and vectors; half precisions are added up in float32."""

from __future__ import annotations

import torch

from weft.ir.extents import Extent
from weft.trace.lift.arguments import Arguments, Rule, Rules
from weft.trace.lift.expression import Expression


def product(arguments: Arguments, first: str, second: str) -> Expression:
    """The product of two matrices, or of two rows of matrices."""
    left, right = (entry.wide() for entry in arguments.tensors(first, second))
    inner = left.shape[-1]
    if inner == 1 and not isinstance(inner, Extent):
        return left * right  # nothing is added up: a loop writes whole rows, one after the other
    return left.matmul(right)


def plain(first: str, second: str) -> Rule:
    """Make the rule of a product alone."""
    return lambda arguments: product(arguments, first, second)


def added(arguments: Arguments, found: Expression) -> Expression:
    """Compute beta * self + alpha * product; with beta 0 the first term is not looked at."""
    base = arguments.tensor("self").wide()
    alpha, beta = (arguments.number(name, found.dtype) for name in ("alpha", "beta"))
    if isinstance(alpha, Expression) or alpha != 1:
        found = found * alpha
    if isinstance(beta, Expression):
        return base * beta + found
    if beta == 0:
        return found
    return found + (base if beta == 1 else base * beta)


def plus(first: str, second: str) -> Rule:
    """Make the rule of a product that something is added to."""
    return lambda arguments: added(arguments, product(arguments, first, second))


def summed_batch(arguments: Arguments) -> Expression:
    """The sum of a row of products, added to a matrix."""
    return added(arguments, product(arguments, "batch1", "batch2").sum((0,)))


def times_vector(arguments: Arguments) -> Expression:
    """A matrix times a vector."""
    matrix, column = (entry.wide() for entry in arguments.tensors("self", "vec"))
    return matrix.matmul(column.insert(1)).reshape((matrix.shape[0],))


def plus_times_vector(arguments: Arguments) -> Expression:
    """A matrix times a vector, added to a vector."""
    matrix, column = (entry.wide() for entry in arguments.tensors("mat", "vec"))
    return added(arguments, matrix.matmul(column.insert(1)).reshape((matrix.shape[0],)))


def inner(name: str) -> Rule:
    """Make the rule of the inner product of two vectors."""

    def rule(arguments: Arguments) -> Expression:
        row, column = (entry.wide() for entry in arguments.tensors("self", name))
        return row.insert(0).matmul(column.insert(1)).reshape(())

    return rule


def outer(arguments: Arguments) -> Expression:
    """The outer product of two vectors, added to a matrix."""
    column, row = (entry.wide() for entry in arguments.tensors("vec1", "vec2"))
    return added(arguments, column.insert(1) * row.insert(0))


def linear(arguments: Arguments) -> Expression:
    """Rows times the transposed weight, plus a bias."""
    rows, weight = (entry.wide() for entry in arguments.tensors("input", "weight"))
    arguments.require(weight.rank == 2 and rows.rank > 0, "with a weight that is no matrix")
    flat = rows.reshape((rows.count(range(rows.rank - 1)), rows.shape[-1])).matmul(weight.transpose(0, 1))
    found = flat.reshape((*rows.shape[:-1], weight.shape[0]))
    bias = arguments.maybe("bias")
    return found if bias is None else found + bias.wide()


def of_bytes(arguments: Arguments) -> Expression:
    """The product of integers of 8 bits with signs, in 32 bits.

    Processors multiply bytes without a sign by bytes with one: 128 is added to the left ones, and what that adds to a
    column's sums subtracted. Of a weight these are computed once. Sums wrap as integers of 32 bits, so all is exact.
    """
    left, right = arguments.tensors("self", "mat2")
    arguments.require(left.dtype is right.dtype is torch.int8, "of other types than int8")
    moved = (left.cast(torch.int32) + 128).cast(torch.uint8).cast(torch.int32)
    wide = right.cast(torch.int32)
    return moved.matmul(wide) - wide.sum((0,), keep=True) * 128


PRODUCTS: Rules = {
    "aten._int_mm.default": of_bytes,
    "aten.mm.default": plain("self", "mat2"),
    "aten.bmm.default": plain("self", "mat2"),
    "aten.addmm.default": plus("mat1", "mat2"),
    "aten.baddbmm.default": plus("batch1", "batch2"),
    "aten.addbmm.default": summed_batch,
    "aten.mv.default": times_vector,
    "aten.addmv.default": plus_times_vector,
    "aten.dot.default": inner("tensor"),
    "aten.vdot.default": inner("other"),
    "aten.addr.default": outer,
    "aten.linear.default": linear,
}
