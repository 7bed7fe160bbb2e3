"""Choose the attentions that are kernels of their own: write out the others, and find those that are written by hand.

An attention is worth a kernel where its scores are many enough; the others are products and softmax like any other.
Found is softmax(query key' * number, masked) value, where nobody else reads what lies between. A mask is a tensor that
is added to scores, or a number that is chosen in their place. In programs for many sizes, keys beyond a call's own are
left out of the highest score and of the sum, and shares in them are zero: that is a mask as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import torch

from weft.ir.graph import Graph, Value
from weft.ir.types import CPU, DTYPE_NAMES
from weft.passes.pipeline import run_pipeline
from weft.passes.redundancy import remove_dead_code
from weft.passes.rewrite import tensor_type, uniform
from weft.plan.kernels.attention import AttentionSizes, block_rows
from weft.plan.kernels.attention_gradient import gradient_block_rows
from weft.target import Target
from weft.trace.lift.expression import Expression, constant, positions, several

FLOATS = frozenset({torch.float32, torch.float64})
FEWEST_ROWS, FEWEST_KEYS = 8, 8  # below, a block of rows is too small to be worth a kernel of its own
FEW_KEYS = 512  # not worth more than one core with few rows
# Of scores in a gradient: fewer stay in the caches, and computing them once more costs more than reading them.
LEAST_BYTES, LEAST_SIDE = 1 << 19, 64
LONGEST_CHAIN = 16  # values from a product to softmax


def with_attentions(lifted: Graph, target: Target) -> Graph:
    """Simplify a lifted Graph, in which attentions are ops where they are worth a kernel, and only there."""
    return _found(run_pipeline(_written_out(lifted, target)), target)


def attention_sizes(value: Value) -> AttentionSizes:
    """Give the sizes of an attention, or of one whose gradients a value is."""
    query, key, values = (tensor_type(operand) for operand in value.operands[value.op == "attention_gradient" :][:3])
    *batch, rows, inner = query.shape
    return AttentionSizes(DTYPE_NAMES[query.dtype], tuple(batch), rows, key.shape[-2], inner, values.shape[-1])


def is_worth_a_kernel(value: Value, target: Target) -> bool:
    """Tell whether an attention, or its gradients, are computed without an array of scores: it can be, and it pays."""
    kind = tensor_type(value.operands[0])
    sizes = attention_sizes(value)
    matrices, rows, keys = prod(sizes.batch), sizes.rows, sizes.keys
    if kind.dtype not in FLOATS or kind.device != CPU or not (matrices * rows * keys * sizes.inner * sizes.columns):
        return False
    if value.op == "attention_gradient":
        large = matrices * rows * keys * kind.dtype.itemsize >= LEAST_BYTES and min(rows, keys) >= LEAST_SIDE
        return large and gradient_block_rows(sizes, target, causal=False) > 0
    # With few rows a matrix is one tile, and each core needs one.
    many = keys >= FEWEST_KEYS and (rows >= FEWEST_ROWS or matrices >= target.cores or keys <= FEW_KEYS)
    return many and block_rows(sizes, target, causal=False) > 0


class Rewriting:
    """A Graph while some of its values are replaced by others, with all that these are made of."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.kept: dict[Value, None] = dict.fromkeys(graph.inputs)
        self.now: dict[Value, Value] = {}

    def current(self, value: Value) -> Value:
        """Give the value that stands for one now."""
        operands = tuple(self.now.get(operand, operand) for operand in value.operands)
        return self.now.get(value) or (value if operands == value.operands else replace(value, operands=operands))

    def keep(self, value: Value, found: Value) -> None:
        """Let a value stand for another, and for itself; what it is made of comes before it."""
        if found is not value:
            self.now[value] = found
        waiting = [found]
        while waiting:
            missing = [operand for operand in waiting[-1].operands if operand not in self.kept]
            waiting += missing
            if not missing:
                self.kept[waiting.pop()] = None

    def graph_now(self) -> Graph:
        """Give the Graph; the very same where nothing was replaced."""
        if not self.now:
            return self.graph
        graph, now = self.graph, self.now
        return replace(
            graph,
            values=tuple(self.kept)[len(graph.inputs) :],
            results=tuple(replace(result, value=now.get(result.value, result.value)) for result in graph.results),
            writes=tuple(replace(write, value=now.get(write.value, write.value)) for write in graph.writes),
        )


# Attentions written out.


def _written_out(graph: Graph, target: Target) -> Graph:
    """Write out attentions that are not worth a kernel, those of few rows, and those whose gradients are written out.

    Of few rows, products with heads that repeat are taken in more dimensions; then they are found like those by hand.
    Gradients in the same Graph, that of a whole step, read the scores of the forward, if that has them.
    """
    rewriting, users = Rewriting(graph), graph.users()
    out = {value for value in graph.values if value.op in WRITTEN and not is_worth_a_kernel(value, target)}
    made = {_attention_of(value) for value in out if value.op == "attention_gradient"}
    out |= {value for value in made if value.op == "attention"}
    for value in graph.values:
        current = rewriting.current(value)
        if value in out or _has_few_rows(value, users[value]):
            parts = WRITTEN[value.op](current)
            for item in users[value]:
                rewriting.now[item] = parts[item.attributes["index"]].value
        else:
            rewriting.keep(value, current)
    return rewriting.graph_now()


def _attention_of(gradient: Value) -> Value:
    """Give what made the logarithms that gradients read: their attention, or an input of the Graph."""
    found = gradient.operands[4]
    while found.op in ("reshape", "item"):
        found = found.operands[0]
    return found


def _has_few_rows(value: Value, items: Sequence[Value]) -> bool:
    if value.op != "attention" or any(item.attributes["index"] for item in items):
        return False
    return tensor_type(value.operands[0]).shape[-2] <= FEWEST_ROWS


def _scores(value: Value, query: Expression, key: Expression, masks: Sequence[Expression]) -> Expression:
    """Write out scores of a query that is scaled: that loses less than scaling the products, which are larger."""
    scores = query.matmul(key.transpose(-1, -2))
    for mask in masks:
        hides = mask.dtype is torch.bool
        scores = mask.choose(scores, value.attributes["hidden"]) if hides else scores + mask
    if value.attributes["causal"]:
        rows, columns = (positions(scores.shape[-2:], dimension, scores.place) for dimension in (0, 1))
        scores = columns.apply("gt", rows).choose(-math.inf, scores)
    return scores


def _attention(value: Value) -> tuple[Expression, ...]:
    query, key, values, *masks = (Expression(operand, value.place) for operand in value.operands)
    scores = _scores(value, query * value.attributes["scale"], key, masks)
    last = (scores.rank - 1,)
    highest = scores.reduce("max", last, keep=True)
    powers = (scores - highest).apply("exp")
    total = powers.sum(last, keep=True)
    shares = powers / total
    if value.attributes["zeros"]:
        shares = highest.apply("eq", -math.inf).choose(0, shares)
    return shares.matmul(values), (total.apply("log") + highest).reshape(scores.shape[:-1])


def _attention_gradient(value: Value) -> tuple[Expression, ...]:
    given = (Expression(operand, value.place) for operand in value.operands)
    gradient, query, key, values, logarithm, weight, *masks = given
    scaled = query * value.attributes["scale"]
    scores = _scores(value, scaled, key, masks)
    shares = (scores - logarithm.insert(logarithm.rank)).apply("exp")
    if value.attributes["zeros"]:
        shares = scores.apply("eq", -math.inf).choose(0, shares)
    for_value = shares.transpose(-1, -2).matmul(gradient)
    slopes = shares * (gradient.matmul(values.transpose(-1, -2)) - weight.insert(weight.rank))
    return slopes.matmul(key) * value.attributes["scale"], slopes.transpose(-1, -2).matmul(scaled), for_value


WRITTEN = {"attention": _attention, "attention_gradient": _attention_gradient}


# Attentions found.


@dataclass(slots=True)
class _Chain:
    """What leads from the product of query and key to softmax: values, masks in order with what they hide."""

    product: Value
    scale: float
    values: list[Value]
    masks: list[tuple[Value, bool]]  # the second: it is a condition, and scores are hidden where it is true
    hidden: float | None = None

    def scaled(self, factor: float) -> bool:
        """Multiply scores, unless they are masked by now."""
        self.scale *= factor
        return not self.masks

    def masked(self, mask: Value) -> bool:
        """Add a mask."""
        self.masks.append((mask, False))
        return True

    def hides(self, condition: Value, number: object, *, where: bool) -> bool:
        """Put a number, the same for all masks, where a condition is true, or where it is not."""
        if not isinstance(number, float) or math.isnan(number) or self.hidden not in (None, number):
            return False
        self.hidden = number
        self.masks.append((condition, where))
        return True


@dataclass(frozen=True, slots=True)
class _Softmax:
    """Softmax before a product: what goes in, and all values from there to the product; `within`: of which keys."""

    scores: Value
    between: frozenset[Value]
    zeros: bool
    within: Value | None


def _found(graph: Graph, target: Target) -> Graph:
    """Make an op of each attention that is written by hand, where it is worth a kernel."""
    if sum(value.op == "matmul" for value in graph.values) < 2 or all(value.op != "exp" for value in graph.values):
        return graph
    rewriting, users, roots = Rewriting(graph), graph.users(), set(graph.roots())
    for value in graph.values:
        current = rewriting.current(value)
        found = _attended(value, rewriting.current) if value.op == "matmul" else None
        if (
            found is not None
            and _is_closed(found[1], value, users, roots)
            and is_worth_a_kernel(found[0].value.operands[0], target)
        ):
            current = _in_type_of(value, found[0])
        rewriting.keep(value, current)
    return remove_dead_code(rewriting.graph_now())


def _in_type_of(value: Value, found: Expression) -> Value:
    result = found.reshape(tensor_type(value).shape)
    return (
        result.value
        if result.kind == value.type
        else result.build("reshape", shape=result.shape, type=value.type).value
    )


def _is_closed(
    between: Collection[Value], end: Value, users: Mapping[Value, Sequence[Value]], roots: Collection[Value]
) -> bool:
    """Tell whether nobody but each other and the `end` reads some values."""
    inside = {*between, end}
    return all(value not in roots and inside.issuperset(users[value]) for value in between)


def _attended(product: Value, current: Callable[[Value], Value]) -> tuple[Expression, set[Value]] | None:
    """Give the attention that ends with a product, as an op, and the values that it stands for; None if it is none."""
    softmax = _softmax_before(product)
    chain = None if softmax is None else _chain_to(softmax.scores)
    if softmax is None or chain is None:
        return None
    scores = tensor_type(softmax.scores).shape
    shapes = (tensor_type(chain.product).shape, scores, tensor_type(product).shape)
    if shapes[0][-2:] != scores[-2:]:
        return None
    batch = max(shapes, key=len)[:-2]  # in most dimensions: there, keys that repeat have steps

    def operand(value: Value) -> Expression:
        found = Expression(current(value), product.place)
        return found.reshape((*batch, *found.shape[-2:]))

    query, key, values = (operand(value) for value in (*chain.product.operands, product.operands[1]))
    masks = [operand(mask).apply("logical_not") if hides else operand(mask) for mask, hides in chain.masks]
    if softmax.within is not None:
        key, masks = _within(operand(softmax.within), key, masks, chain.hidden)
    between = {*softmax.between, *chain.values}
    if between.intersection((*chain.product.operands, product.operands[1], *(mask for mask, _ in chain.masks))):
        return None  # what is attended is made of scores itself
    hidden = -math.inf if chain.hidden is None else chain.hidden
    given = {"scale": chain.scale, "causal": False, "zeros": softmax.zeros, "hidden": hidden}
    found, _ = several("attention", query, key.transpose(-1, -2), values, *masks, **given)
    return found, between


def _within(
    seen: Expression, key: Expression, masks: list[Expression], hidden: float | None
) -> tuple[Expression, list[Expression]]:
    """The keys, across, and masks of an attention that sees some of its keys alone; others may be any numbers."""
    if hidden in (None, -math.inf):
        return key, [*masks, seen]
    row = seen.part(seen.rank - 2, 0, 1)  # is the same for all queries
    key = row.expand(key.shape).choose(key, 0.0)
    masks = [mask if mask.dtype is torch.bool else seen.choose(mask, 0.0) for mask in masks]
    return key, [*masks, seen.choose(constant(0.0, key.dtype, (), seen.place), -math.inf)]


def _softmax_before(product: Value) -> _Softmax | None:
    """Find softmax of the last dimension before a product, perhaps reshaped, perhaps zeros where all was -inf."""
    between: set[Value] = set()
    shares, shown = product.operands[0], None
    while shares.op == "reshape" or (shown is None and _keys_shown(shares, 0.0) is not None):
        between.add(shares)
        if shares.op == "select":
            shown = _keys_shown(shares, 0.0)
            shares = shares.operands[1]
        else:
            shares = shares.operands[0]
    if tensor_type(shares).shape[-2:] != tensor_type(product.operands[0]).shape[-2:]:
        return None  # rows became matrices, each with values of its own, as of experts
    masked = _masked_rows(shares)
    if masked is not None:
        between |= {shares, *masked.between}
        shares = shares.operands[2]
    if shares.op != "div" or shares.operands[0].op != "exp" or shares.operands[0].operands[0].op != "sub":
        return None
    powers, less = shares.operands[0], shares.operands[0].operands[0]
    total, highest = _repeated(shares.operands[1], "sum"), _repeated(less.operands[1], "max")
    scores = less.operands[0]
    if total is None or highest is None:
        return None
    within, summed, compared = None, total.operands[0], highest.operands[0]
    if shown is not None:
        if _keys_shown(summed, 0.0) is not shown or _keys_shown(compared, -math.inf) is not shown:
            return None
        between |= {summed, compared}
        within, summed, compared = compared.operands[0], summed.operands[1], compared.operands[1]
    if summed is not powers or compared is not scores:
        return None
    if masked is not None and masked.of not in (highest, scores):
        return None
    between |= {shares, powers, less, total, highest, shares.operands[1], less.operands[1], scores}
    return _Softmax(scores, frozenset(between), masked is not None, within)


def _keys_shown(value: Value, filling: float) -> Value | None:
    """For each key whether it is shown, where a value has a number in the place of what belongs to others."""
    if value.op != "select" or uniform(value.operands[2]) != filling:
        return None
    shown, last = value.operands[0], tensor_type(value).shape[-1]
    while shown.op in ("expand", "reshape") and tensor_type(shown).shape[-1] == last:
        shown = shown.operands[0]
    return shown if tensor_type(shown).shape == (last,) else None


def _repeated(value: Value, op: str) -> Value | None:
    """Give the reduction of the last dimension that a value repeats along it."""
    if value.op != "expand" or value.operands[0].op != op:
        return None
    found = value.operands[0]
    rank = tensor_type(found.operands[0]).rank
    return (
        found
        if rank >= 2 and found.attributes["keep"] and tuple(found.attributes["dimensions"]) == (rank - 1,)
        else None
    )


@dataclass(frozen=True, slots=True)
class _MaskedRows:
    """What is -inf in rows that get zeros: the highest scores, or all scores; and what says so."""

    of: Value
    between: tuple[Value, ...]


def _masked_rows(value: Value) -> _MaskedRows | None:
    """Find what is compared with -inf, where a value is zero in rows of which that holds."""
    if value.op != "select" or uniform(value.operands[1]) != 0 or value.operands[0].op != "expand":
        return None
    test = value.operands[0].operands[0]
    every = _repeated(value.operands[0], "all")
    compared = test if every is None else every.operands[0]
    if compared.op != "eq" or uniform(compared.operands[1]) != -math.inf:
        return None
    is_of_rows = tensor_type(compared).shape[-1] == 1
    if is_of_rows is (every is not None):
        return None
    return _MaskedRows(compared.operands[0], (value.operands[0], test, compared))


def _chain_to(scores: Value, left: int = LONGEST_CHAIN) -> _Chain | None:
    """Follow scores back to the one product that they are made of: scaled, then masked."""
    if scores.op == "matmul":
        return _Chain(scores, 1.0, [scores], [])
    steps = CHAINED[scores.op](scores) if scores.op in CHAINED and left else ()
    for inner, step in steps:
        chain = _chain_to(inner, left - 1)
        if chain is not None and step(chain):
            chain.values.append(scores)
            return chain
    return None


# For each op: the operand that may lead to the product, and what the op does to scores; False: no attention does that.
Steps = Iterator[tuple[Value, Callable[[_Chain], bool]]]


def _reshaped(value: Value) -> Steps:
    if tensor_type(value).shape[-2:] == tensor_type(value.operands[0]).shape[-2:]:
        yield value.operands[0], lambda _: True


def _scaled(value: Value) -> Steps:
    first, second = value.operands
    for inner, other in ((first, second), (second, first))[: 2 if value.op == "mul" else 1]:
        number = uniform(other)
        if isinstance(number, float) and math.isfinite(number) and number:
            yield inner, partial(_Chain.scaled, factor=number if value.op == "mul" else 1 / number)


def _added(value: Value) -> Steps:
    first, second = value.operands
    yield first, partial(_Chain.masked, mask=second)
    yield second, partial(_Chain.masked, mask=first)


def _chosen(value: Value) -> Steps:
    condition, yes, no = value.operands
    yield no, partial(_Chain.hides, condition=condition, number=uniform(yes), where=True)
    yield yes, partial(_Chain.hides, condition=condition, number=uniform(no), where=False)


CHAINED: Mapping[str, Callable[[Value], Steps]] = {
    "reshape": _reshaped,
    "mul": _scaled,
    "div": _scaled,
    "add": _added,
    "select": _chosen,
}
