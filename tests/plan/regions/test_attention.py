"""Attentions found where they are written by hand, and only there; written out, they are what the op means."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.plan.attentions import by_pytorch, causal, with_mask
from torch import Tensor

import weft
from weft.compile import pipeline
from weft.ir.graph import Graph, Result, Value
from weft.ir.interpreter import interpret
from weft.ir.ops import build
from weft.ir.types import contiguous
from weft.plan.regions import attention
from weft.plan.regions.attention import with_attentions
from weft.target import Target, host_target
from weft.trace.lift.lift import lift

Form = Callable[..., Any]
SHAPES = [(2, 3, 20, 8), (2, 3, 30, 8), (2, 3, 30, 5)]
MASK = (2, 1, 20, 30)


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def use(x: Tensor, function: Callable[[Tensor], Any]) -> Any:
    return function(x)


# softmax(scores) value, as people write it: the last operand is a mask, true or a number.
FORMS: dict[str, Form] = {
    "plain": lambda q, k, v, _: softmax(scores_of(q, k)) @ v,
    "scaled": lambda q, k, v, _: softmax(0.25 * scores_of(q, k)) @ v,
    "divided": lambda q, k, v, _: softmax(scores_of(q, k) / math.sqrt(q.shape[-1])) @ v,
    "scaled before": lambda q, k, v, _: softmax(scores_of(q / 3, k)) @ v,
    "biased": lambda q, k, v, m: softmax(scores_of(q, k) / 2 + m) @ v,
    "biased from the left": lambda q, k, v, m: softmax(m + scores_of(q, k)) @ v,
    "hidden": lambda q, k, v, m: softmax(scores_of(q, k).masked_fill(m > 0, -math.inf)) @ v,
    "shown": lambda q, k, v, m: softmax(torch.where(m > 0, scores_of(q, k), -math.inf)) @ v,
    "hidden by a number": lambda q, k, v, m: softmax((scores_of(q, k) * 0.5).masked_fill(m > 0, -1e9)) @ v,
    "biased and hidden": lambda q, k, v, m: softmax((scores_of(q, k) + m).masked_fill(m > 0, -math.inf)) @ v,
    "hidden and biased": lambda q, k, v, m: softmax(scores_of(q, k).masked_fill(m > 0, -math.inf) + m) @ v,
    "hidden twice": lambda q, k, v, m: (
        softmax(scores_of(q, k).masked_fill(m > 1, -math.inf).masked_fill(m < -1, -math.inf)) @ v
    ),
    "of one dimension less": lambda q, k, v, _: (
        softmax(torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT)) @ v.flatten(0, 1)
    ).view(2, 3, 20, 5),
    "biased in more dimensions": lambda q, k, v, m: (
        softmax(torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).view(2, 3, 20, -1) + m) @ v
    ),
    "with a product as bias": lambda q, k, v, _: softmax(scores_of(q, k) + q @ k.mT.sin()) @ v,
}

# What is no attention for one thing. The values are square here, so that anything can be multiplied by anything.
NEAR_MISSES: dict[str, Form] = {
    "shares times shares": lambda q, k, v, _: softmax(scores_of(q, k)) @ softmax(scores_of(q, k)),
    "scores as values": lambda q, k, v, _: softmax(scores_of(q, k)) @ scores_of(q, k),
    "scores twice": lambda q, k, v, _: use(scores_of(q, k), lambda s: softmax(s + s) @ v),
    "scores as their own mask": lambda q, k, v, _: use(
        scores_of(q, k), lambda s: softmax(s.masked_fill(s > 1, -math.inf)) @ v
    ),
    "hidden by two numbers": lambda q, k, v, m: (
        softmax(scores_of(q, k).masked_fill(m > 1, -1e9).masked_fill(m < -1, -1e8)) @ v
    ),
    "scaled behind the mask": lambda q, k, v, m: softmax((scores_of(q, k) + m) * 0.5) @ v,
    "scaled row by row": lambda q, k, v, m: softmax(scores_of(q, k) * m[..., :1]) @ v,
    "divided the other way": lambda q, k, v, _: softmax(1 / scores_of(q, k)) @ v,
    "shares handed out": lambda q, k, v, _: use(softmax(scores_of(q, k)), lambda s: (s @ v, s)),
    "shares read": lambda q, k, v, _: use(softmax(scores_of(q, k)), lambda s: s @ v + s.mean()),
    "scores read": lambda q, k, v, _: use(scores_of(q, k), lambda s: softmax(s) @ v + s.mean()),
    "masked scores handed out": lambda q, k, v, m: use(scores_of(q, k) + m, lambda s: (softmax(s) @ v, s)),
    "softmax of columns": lambda q, k, v, _: torch.softmax(scores_of(q, k), -2) @ v,
    "values on the left": lambda q, k, v, _: v @ softmax(scores_of(q, k)),
    "another highest": lambda q, k, v, _: use(
        scores_of(q, k),
        lambda s: ((s - s.amax(-2, keepdim=True)).exp() / (s - s.amax(-2, keepdim=True)).exp().sum(-1, True)) @ v,
    ),
    "a total of something else": lambda q, k, v, m: use(
        scores_of(q, k), lambda s: ((s - s.amax(-1, True)).exp() / (m + 9).exp().sum(-1, True)) @ v
    ),
    "bent": lambda q, k, v, _: softmax(torch.tanh(scores_of(q, k))) @ v,
}


def planned(function: Form, *inputs: Tensor) -> Graph:
    return with_attentions(lift(weft.program(function, *inputs).graph), host_target())


def attentions(graph: Graph) -> int:
    return sum(value.op == "attention" for value in graph.values)


def assert_as_eager(graph: Graph, function: Form, inputs: list[Tensor]) -> None:
    found, expected = interpret(graph, inputs), function(*inputs)
    for mine, its in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(mine, its, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", FORMS)
def test_attention_is_found_however_it_is_written(name: str) -> None:
    inputs = [torch.randn(shape) for shape in (*SHAPES, MASK)]
    graph = planned(FORMS[name], *inputs)
    assert attentions(graph) == 1
    assert_as_eager(graph, FORMS[name], inputs)
    inputs[0][0, 1, 2], inputs[1][1, 2, 3, 4], inputs[2][1, 1, 5, 2] = math.inf, math.nan, -math.inf
    inputs[3][0, 0, 7], inputs[3][1, 0, 8] = 3.0, -math.inf  # whole rows are hidden
    assert_as_eager(graph, FORMS[name], inputs)
    torch.testing.assert_close(
        weft.hybridize(FORMS[name])(*inputs), FORMS[name](*inputs), atol=1e-4, rtol=1e-4, equal_nan=True
    )


def given(keys: int) -> list[Tensor]:
    """A query, and as many keys."""
    batch, rows, inner, columns = (2, 3), 20, SHAPES[0][-1], SHAPES[2][-1]
    shapes = ((*batch, rows, inner), (*batch, keys, inner), (*batch, keys, columns), (2, 1, rows, keys))
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize("name", FORMS)
def test_attention_is_found_where_the_number_of_keys_varies(
    name: str, monkeypatch: pytest.MonkeyPatch, no_kept_plans: None
) -> None:
    counts: list[int] = []

    def noting(lifted: Graph, target: Target) -> Graph:
        found = with_attentions(lifted, target)
        counts.append(attentions(found))
        return found

    monkeypatch.setattr(pipeline, "with_attentions", noting)
    hybrid = weft.hybridize(FORMS[name])
    hybrid(*given(30))
    with_nan = given(31)
    for tensor in with_nan:
        tensor.fill_(math.nan)
    hybrid(*with_nan)
    for keys in (32, 9, 17, 2, 31):  # behind these lies NaN
        inputs = given(keys)
        inputs[-1][0, 0, 7] = 3.0  # a whole row is hidden
        torch.testing.assert_close(hybrid(*inputs), FORMS[name](*inputs), atol=1e-4, rtol=1e-4, equal_nan=True)
    assert set(counts) == {1}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_a_near_miss_of_attention_is_not_found(name: str) -> None:
    inputs = [torch.randn(shape) for shape in (*[(2, 3, 12, 12)] * 3, (2, 1, 12, 12))]
    graph = planned(NEAR_MISSES[name], *inputs)
    assert attentions(graph) == 0
    assert_as_eager(graph, NEAR_MISSES[name], inputs)
    found, expected = weft.hybridize(NEAR_MISSES[name])(*inputs), NEAR_MISSES[name](*inputs)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("function", "others"), [(by_pytorch, 0), (causal, 0), (with_mask, 1)])
def test_pytorchs_own_attention_is_the_op_and_so_is_its_gradient(function: Form, others: int) -> None:
    inputs = [torch.randn(2, 3, 80, 8, requires_grad=True) for _ in range(3)]
    masks = [torch.randn(80, 80)] * others
    program = weft.program(function, *inputs, *masks)
    assert [value.op for value in lift(program.graph).values].count("attention") == 1


def values_of(shapes: list[tuple[int, ...]]) -> list[Value]:
    return [Value("input", (), contiguous(torch.float32, shape), name=f"x{i}") for i, shape in enumerate(shapes)]


def graph_of(op: str, operands: list[Value], masks: list[Value], **attributes: Any) -> Graph:
    whole = build(op, *operands, *masks, **attributes)
    items = [
        build("item", whole, type=kind, index=index)
        for index, kind in enumerate(whole.type.items)  # type: ignore[union-attr]
    ]
    return Graph(op, (*operands, *masks), (whole, *items), tuple(map(Result, items)))


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("masks", [0, 1, 2])
@pytest.mark.parametrize("flags", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("op", ["attention", "attention_gradient"])
def test_written_out_an_attention_is_what_the_op_means(
    op: str, flags: tuple[bool, bool], masks: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "is_worth_a_kernel", lambda *_: False)
    query, key, value, rows = (2, 9, 4), (2, 11, 4), (2, 11, 3), (2, 9)
    shapes = [query, key, value] if op == "attention" else [(2, 9, 3), query, key, value, rows, rows]
    more = {"hidden": -math.inf} if op == "attention" else {}
    names = values_of([*shapes, *[(2, 9, 11)] * masks])
    graph = graph_of(
        op, names[: len(shapes)], names[len(shapes) :], scale=scale, causal=flags[0], zeros=flags[1], **more
    )
    written = with_attentions(graph, host_target())
    assert all(one.op != op for one in written.values)
    inputs = [torch.randn(each.type.shape) for each in names]  # type: ignore[union-attr]
    for mask in inputs[len(shapes) :]:
        mask[mask > 1], mask[0, 4] = -math.inf, -math.inf
    for mine, its in zip(interpret(written, inputs), interpret(graph, inputs), strict=True):
        torch.testing.assert_close(mine, its, atol=1e-5, rtol=1e-5, equal_nan=True)
