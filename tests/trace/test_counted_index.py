"""Caches and tables that are indexed by counted numbers: one program for all places, eager's answers and effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.ways import Refused, Work, difference
from torch import nn

import weft

CALLS = 6
COUNTS = "the program counts in a Python object"


class Cache:
    def __init__(self) -> None:
        self.k = torch.zeros(1, 8)
        self.rows = torch.zeros(8, 2, 3)
        self.pos = 0


class Owner(nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("k", torch.zeros(1, 8))
        self.register_buffer("rows", torch.zeros(8, 2, 3))
        self.register_buffer("table", torch.arange(24.0).reshape(8, 3))
        self.pos = 0

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x, self)


def static(x: torch.Tensor, c: Any) -> Any:
    c.k[:, c.pos : c.pos + 1] = x[:1, :1]
    c.pos += 1
    return c.k.sum()


def by_number(x: torch.Tensor, c: Any) -> Any:
    c.k[0, c.pos] = x[0, 0]
    c.pos += 1
    return c.k * 2


def row(x: torch.Tensor, c: Any) -> Any:
    c.rows[c.pos] = x
    c.pos += 1
    return c.rows.sum(0)


def ring(x: torch.Tensor, c: Any) -> Any:
    c.rows[c.pos % 4] = x
    c.pos += 1
    return c.rows.sum(0)


def with_ellipsis(x: torch.Tensor, c: Any) -> Any:
    c.k[..., c.pos : c.pos + 1] = x.sum()
    c.pos += 1
    return c.k + 1


def a_number(x: torch.Tensor, c: Any) -> Any:
    c.k[:, c.pos : c.pos + 2] = 3
    c.pos += 1
    return c.k + x[:1, :1]


def broadcast(x: torch.Tensor, c: Any) -> Any:
    c.rows[c.pos : c.pos + 1, :, 1:] = x[:, :1]
    c.pos += 1
    return c.rows * 2


def after_increment(x: torch.Tensor, c: Any) -> Any:
    c.pos += 1
    c.rows[c.pos - 1 : c.pos] = x
    return c.rows + 1


def read_back(x: torch.Tensor, c: Any) -> Any:
    c.rows[c.pos] = x
    y = c.rows[c.pos] * 2 + c.rows[c.pos : c.pos + 1].sum(0)
    c.pos += 1
    return y


def adds_in_place(x: torch.Tensor, c: Any) -> Any:
    c.rows[c.pos] += x
    c.pos += 1
    return c.rows * 1


def other_dtype(x: torch.Tensor, c: Any) -> Any:
    c.k[:, c.pos] = x[0, :1].double()
    c.pos += 1
    return c.k + 1


def by_length(x: torch.Tensor, c: Any) -> Any:
    c.k[:, c.pos : c.pos + 1] = x[:1, :1]
    c.pos += x.shape[1] // 3
    return c.k + 1


BODIES = [
    static, by_number, row, ring, with_ellipsis, a_number, broadcast, after_increment, read_back, other_dtype,
    by_length,
]  # fmt: skip
SELDOM = [adds_in_place]  # what is read is written, and put back: in eager it is a view


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3) for _ in range(CALLS)]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
@pytest.mark.parametrize("kind", ["argument", "module"])
@pytest.mark.parametrize("way", ["hybridize", "library", "lazy"])
def test_one_program_writes_at_every_place(body: Callable[..., Any], kind: str, way: str) -> None:
    def make() -> Work:
        if kind == "module":
            return Work(Owner(body), [((x,), {}) for x in inputs()])
        cache = Cache()
        return Work(body, [((x, cache), {}) for x in inputs()])

    assert difference(make, way) is None


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_few_programs_are_made(body: Callable[..., Any]) -> None:
    net = weft.hybridize(Owner(body))
    for x in inputs():
        net(x)
    assert net.forward.traces <= 2


def found(make: Callable[[], Work]) -> str | None:
    try:
        return difference(make, "hybridize")
    except Refused as refusal:
        return str(refusal).partition(",")[0]


@pytest.mark.parametrize("body", SELDOM, ids=lambda body: body.__name__)
def test_what_is_written_through_a_view_is_right_or_refused(body: Callable[..., Any]) -> None:
    assert found(lambda: Work(Owner(body), [((x,), {}) for x in inputs()])) in (None, COUNTS)


def test_a_table_is_looked_up_at_counted_places() -> None:
    def body(x: torch.Tensor, self: Any) -> Any:
        self.pos += 1
        return x + self.table[self.pos - 1] + self.table[self.pos : self.pos + 1]

    assert difference(lambda: Work(Owner(body), [((x,), {}) for x in inputs()]), "hybridize") is None


@pytest.mark.parametrize("end", ["slice", "number", "returned", "kept"])
def test_beyond_the_end_and_views_that_leave_are_eagers_or_refused(end: str) -> None:
    def body(x: torch.Tensor, self: Any) -> Any:
        self.pos += 1
        if end == "slice":
            self.k[:, self.pos + 4 : self.pos + 5] = 1
            return self.k + 1
        if end == "number":
            self.k[:, self.pos + 4] = 1
            return self.k + 1
        found = self.table[self.pos]
        if end == "kept":
            self.last = found
            return x + 1
        return found

    assert found(lambda: Work(Owner(body), [((x,), {}) for x in inputs()])) in (None, COUNTS)


def read_before_written(x: torch.Tensor, c: Any) -> Any:
    found = c.rows[c.pos]
    c.rows.add_(1)
    c.pos += 1
    return found * x


def test_what_is_read_after_its_table_was_written_is_eagers_or_refused() -> None:
    ours, theirs = weft.hybridize(Owner(read_before_written), whole=False), Owner(read_before_written)
    for _ in range(CALLS):
        torch.testing.assert_close(ours(torch.ones(2, 3)), theirs(torch.ones(2, 3)))


def test_gradients_go_through_places() -> None:
    def body(x: torch.Tensor, self: Any) -> Any:
        scores = x.new_zeros(8, 2, 3)
        scores[self.pos] = x * 2
        self.pos += 1
        return scores * self.rows.add(1) + self.table[self.pos].sum()

    def make() -> Work:
        return Work(Owner(body), [((x.requires_grad_(),), {}) for x in inputs()], backward=True)

    assert difference(make, "hybridize") is None
