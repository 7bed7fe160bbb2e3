"""Laws of products with matrices that repeat, as a decoder's few heads of keys and values repeat for groups of queries.

A repetition is a matter of strides until a reshape merges it with another dimension: then each matrix would be copied
as often as it repeats.
"""

from __future__ import annotations

from weft.ir.graph import Value
from weft.ir.ops import build
from weft.passes.law import Law, rebuilt, tensor_type
from weft.passes.laws_of_movement import split_of

# With more rows a copy is small beside the product, and gradients of attention look for the product as it was written.
MOST_ROWS = 8


def product_of_repeated(value: Value) -> Value | None:
    """A product in more dimensions, where its right operand is repeated and reshaped, for few rows."""
    left, right = value.operands
    *batch, rows, columns = tensor_type(value).shape
    turned = right.op == "permute"
    if turned:
        *leading, last, behind = right.attributes["order"]
        if [*leading, behind, last] != list(range(len(batch) + 2)):
            return None
        right = right.operands[0]
    repeated = right.operands[0] if right.op == "reshape" else right
    if rows > MOST_ROWS or right is repeated or repeated.op != "expand":
        return None
    shape = tensor_type(repeated).shape
    parts = split_of(tensor_type(right).shape, shape)
    if parts is None or len(shape) <= len(batch) + 2 or any(len(part) != 1 for part in parts[-2:]):
        return None
    split = shape[:-2]
    order = (*range(len(split)), len(split) + 1, len(split))
    many = build("permute", repeated, place=right.place, order=order) if turned else repeated
    product = build("matmul", _reshaped(left, (*split, rows, tensor_type(left).shape[-1])), many, place=value.place)
    return rebuilt(value, "reshape", product, shape=(*batch, rows, columns))


def _reshaped(value: Value, shape: tuple[int, ...]) -> Value:
    """A value in another shape, without a reshape that another one follows."""
    while value.op == "reshape" and tensor_type(value).shape != shape:
        value = value.operands[0]
    return value if tensor_type(value).shape == shape else build("reshape", value, place=value.place, shape=shape)


LAWS = (
    Law(
        "product of repeated",
        ("matmul",),
        product_of_repeated,
        "each matrix of the product is the same, wherever it stands among the others",
    ),
)
