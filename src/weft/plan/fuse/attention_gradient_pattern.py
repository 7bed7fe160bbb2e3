"""The values of a region -> where they compute the three gradients of an attention, however it was written.

Found are five products: scores and pull, from which shares and slopes follow element by element, and the three that
these are multiplied in. What lies between is read by nobody else, but by a softmax that reads the same scores: that one
is a kernel which computes them itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

from weft.ir.graph import Value
from weft.ir.ops import OPS
from weft.ir.types import TensorType
from weft.plan.fuse.attention_pattern import Softmax
from weft.plan.regions.region import Region

LEAST_BYTES = 1 << 19  # of scores: fewer stay in the caches, and computing them once more costs more than reading them
FEWEST_ROWS = 64
MOST_VALUES = 48


@dataclass(frozen=True, slots=True, eq=False)
class AttentionGradient:
    """One attention's gradients: its products, the shares and slopes, all that lies between, and the turned ones.

    `ready` is the value with which all is there that the last three products read.
    """

    scores: Value
    pull: Value
    shares: Value
    slopes: Value
    for_query: Value
    for_key: Value
    for_value: Value
    between: frozenset[Value]
    turned: frozenset[Value]
    ready: Value

    @property
    def ends(self) -> tuple[Value, Value, Value]:
        """The products that are handed on."""
        return self.for_query, self.for_key, self.for_value


class _Graph:
    """A region's values by who reads them, and where they are."""

    def __init__(self, region: Region) -> None:
        self.readers: dict[Value, list[Value]] = {}
        for value in region.values:
            for operand in dict.fromkeys(value.operands):
                self.readers.setdefault(operand, []).append(value)
        self.position = {value: number for number, value in enumerate(region.values)}
        self.outputs = frozenset(region.outputs)

    def read(self, value: Value) -> Sequence[Value]:
        return self.readers.get(value, ())


def find_attention_gradients(region: Region, softmaxes: Collection[Softmax]) -> list[AttentionGradient]:
    """Find all gradients of attentions whose scores are worth keeping out of memory."""
    if sum(value.op == "matmul" for value in region.values) < 5:
        return []
    graph = _Graph(region)
    found = (_ending_with(value, graph) for value in region.values if value.op == "matmul")
    return [one for one in found if one is not None and _is_closed(one, graph, softmaxes)]


def _ending_with(for_key: Value, graph: _Graph) -> AttentionGradient | None:
    """The gradients of which a product is the one for the key."""
    turned = for_key.operands[0]
    if not _is_turned(turned) or not _pays(turned.operands[0]):
        return None
    slopes = turned.operands[0]
    for_query = [value for value in graph.read(slopes) if value.op == "matmul" and value.operands[0] is slopes]
    if len(for_query) != 1 or len(graph.read(slopes)) != 2:
        return None
    between: dict[Value, frozenset[Value]] = {}
    products = _products_of(slopes, slopes, between, graph)
    for shares, made_of in between.items():
        ends = [(one, end) for one in graph.read(shares) if _is_turned(one) for end in graph.read(one)]
        if len(made_of) == 1 and len(products) == 2 and len(ends) == 1:
            [(other, for_value)] = ends
            if for_value.op != "matmul" or for_value.operands[0] is not other or for_value is for_key:
                continue
            (scores,), (pull,) = made_of, products - made_of
            read = (shares, slopes, *(end.operands[1] for end in (for_query[0], for_key, for_value)))
            ready = max(read, key=lambda value: graph.position.get(value, -1))
            return AttentionGradient(
                scores, pull, shares, slopes, for_query[0], for_key, for_value,
                frozenset(value for value, leaves in between.items() if leaves), frozenset({turned, other}), ready,
            )  # fmt: skip
    return None


def _products_of(value: Value, like: Value, between: dict[Value, frozenset[Value]], graph: _Graph) -> frozenset[Value]:
    """The products of the shape of `like` that a value is made of, element by element; notes those of all before it."""
    if value in between:
        return between[value]
    if value not in graph.position or shape_of(value) != shape_of(like) or len(between) > MOST_VALUES:
        return frozenset()
    if value.op == "matmul":
        return frozenset({value})
    if not OPS[value.op].elementwise:
        return frozenset()
    between[value] = frozenset()
    operands = (_products_of(operand, like, between, graph) for operand in value.operands)
    between[value] = frozenset[Value]().union(*operands)
    return between[value]


def _is_turned(value: Value) -> bool:
    """Whether a value is the transpose of matrices."""
    if value.op != "permute":
        return False
    order = tuple(value.attributes["order"])
    last = len(order) - 1
    return last >= 1 and order == (*range(last - 1), last, last - 1)


def _pays(scores: Value) -> bool:
    """Whether scores are so many that they are better computed twice than kept."""
    kind = scores.type
    if not isinstance(kind, TensorType) or kind.rank < 2 or not kind.dtype.is_floating_point:
        return False
    *_, rows, keys = kind.shape
    return prod(kind.shape) * kind.dtype.itemsize >= LEAST_BYTES and min(rows, keys) >= FEWEST_ROWS


def shape_of(value: Value) -> tuple[int, ...]:
    """The sizes of a value that is one tensor; of another one, none."""
    return value.type.shape if isinstance(value.type, TensorType) else ()


def _is_closed(found: AttentionGradient, graph: _Graph, softmaxes: Collection[Softmax]) -> bool:
    """Tell whether nobody else reads what lies between, and what reads the gradients comes late enough."""
    inside = {found.scores, found.pull, *found.between}
    allowed = {*inside, *found.turned, *found.ends}
    for softmax in softmaxes:
        if softmax.scores in inside:
            allowed |= {*softmax.between, softmax.highest, softmax.total}
    if inside & graph.outputs or found.turned & graph.outputs:
        return False
    if any(reader not in allowed for value in (*inside, *found.turned) for reader in graph.read(value)):
        return False
    ready = graph.position[found.ready]
    return all(graph.position[reader] > ready for end in found.ends for reader in graph.read(end))
