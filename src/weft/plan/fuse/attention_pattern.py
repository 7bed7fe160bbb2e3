"""The values of a region -> where they compute softmax(scores) times values, however it was written.

Found is: max, sub, exp, sum, div along the last dimension of a product, perhaps a select that gives zeros where a row
is masked from end to end, and a product with the result, perhaps reshaped. What lies between is read by nobody else;
the highest score and the sum may be, after the last product.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from weft.ir.graph import Value
from weft.ir.types import TensorType
from weft.plan.regions.indices import uniform
from weft.plan.regions.lazy import Fixed
from weft.plan.regions.region import Region


@dataclass(frozen=True, slots=True, eq=False)
class Softmax:
    """One attention: what goes into softmax, its numbers, the product that reads it, and all values in between.

    `masked_gives_zeros`: rows of nothing but -inf give zeros. `keeps_numbers`: others read the highest score or sum.
    """

    scores: Value
    highest: Value
    total: Value
    product: Value
    between: frozenset[Value]
    masked_gives_zeros: bool
    keeps_numbers: bool


def find_softmaxes(region: Region, uses: Mapping[Value, int]) -> list[Softmax]:
    """Find all that could be attentions of a region, whoever else reads what lies between."""
    products = [value for value in region.values if value.op == "matmul"]
    if len(products) < 2 or not any(value.op == "exp" for value in region.values):
        return []
    found = (_softmax_before(product, region, uses) for product in products)
    return [one for one in found if one is not None]


def closed(
    found: Collection[Softmax], region: Region, uses: Mapping[Value, int], again: Collection[Value]
) -> list[Softmax]:
    """Those that nobody reads the inside of, but for values that compute the scores `again`."""
    position = {value: number for number, value in enumerate(region.values)}
    return [one for one in found if _is_closed(one, region, position, uses, again)]


def _softmax_before(product: Value, region: Region, uses: Mapping[Value, int]) -> Softmax | None:
    inside = set(region.values)
    between: set[Value] = set()
    share = product.operands[0]
    while share.op == "reshape" and share in inside:
        between.add(share)
        share = share.operands[0]
    if _rows_and_keys(share) != _rows_and_keys(product.operands[0]):
        return None  # rows became matrices, each with values of its own, as of experts
    zeros = _masked_rows(share)
    if zeros is not None:
        masked, condition, share = zeros
        between |= {masked, condition, condition.operands[0]}
    parts = _division(share)
    if parts is None:
        return None
    grown, less, scores, highest, total = parts
    between |= {share, grown, less, share.operands[1], less.operands[1]}
    if zeros is not None and condition_reads(zeros[1]) is not highest:
        return None
    expected = 1 + (zeros is not None)
    keeps = uses[highest] > expected or uses[total] > 1
    if scores not in inside or not {*between, highest, total} <= inside:
        return None
    return Softmax(scores, highest, total, product, frozenset(between), zeros is not None, keeps)


def _rows_and_keys(shares: Value) -> tuple[int, ...]:
    assert isinstance(shares.type, TensorType)
    return shares.type.shape[-2:]


def _division(share: Value) -> tuple[Value, Value, Value, Value, Value] | None:
    """Give exp, sub, scores, max and sum where a value is exp(scores - max) / sum."""
    if share.op != "div":
        return None
    grown, total = share.operands[0], _repeated(share.operands[1], "sum")
    if grown.op != "exp" or total is None or total.operands[0] is not grown:
        return None
    less = grown.operands[0]
    if less.op != "sub":
        return None
    scores, highest = less.operands[0], _repeated(less.operands[1], "max")
    if highest is None or highest.operands[0] is not scores:
        return None
    return grown, less, scores, highest, total


def _repeated(value: Value, op: str) -> Value | None:
    """Give the reduction of the last dimension that a value repeats along it."""
    if value.op != "expand":
        return None
    found = value.operands[0]
    kind = found.operands[0].type if found.op == op else None
    if not isinstance(kind, TensorType) or kind.rank < 2 or not found.attributes["keep"]:
        return None
    return found if tuple(found.attributes["dimensions"]) == (kind.rank - 1,) else None


def _masked_rows(value: Value) -> tuple[Value, Value, Value] | None:
    """Give the select, its repeated condition and the shares, where zeros are chosen in rows of nothing but -inf."""
    if value.op != "select":
        return None
    condition, zero, share = value.operands
    if condition.op != "expand" or not _is_number(zero, 0.0) or condition_reads(condition) is None:
        return None
    return value, condition, share


def condition_reads(condition: Value) -> Value | None:
    """Give what a repeated condition compares with -inf."""
    test = condition.operands[0]
    if test.op != "eq" or not _is_number(test.operands[1], -math.inf):
        return None
    return test.operands[0]


def _is_number(value: Value, number: float) -> bool:
    while value.op == "expand":
        value = value.operands[0]
    known = uniform(value) if value.op == "constant" else None
    return isinstance(known, Fixed) and known.number == number


def _is_closed(
    found: Softmax,
    region: Region,
    position: Mapping[Value, int],
    uses: Mapping[Value, int],
    again: Collection[Value],
) -> bool:
    """Tell whether nobody else reads what lies between, and what reads the numbers comes after the last product."""
    inside = {*found.between, found.highest, found.total, found.product}
    reads = Counter(operand for value in inside.union(again) for operand in value.operands)
    if any(reads[value] != uses[value] for value in (*found.between, found.scores)):
        return False
    outputs = set(region.outputs)
    if found.highest in outputs or found.total in outputs:
        return False
    numbers, end = {found.highest, found.total}, position[found.product]
    return all(
        value in inside or position[value] > end
        for value in region.values
        if any(operand in numbers for operand in value.operands)
    )
