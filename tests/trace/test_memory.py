"""Writes become values: whoever looks at written memory afterwards sees the new elements."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.trace.traces import lines, traced

from weft.errors import UnsupportedError
from weft.ir.interpreter import interpret


def agrees(function: Any, *arguments: torch.Tensor) -> Any:
    """The interpreter runs what was traced; it must do to its inputs what the function does."""
    found = traced(function, *arguments)
    ours, theirs = [x.clone() for x in arguments], [x.clone() for x in arguments]
    expected, results = function(*theirs), interpret(found.graph, ours)
    for mine, wanted in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert torch.equal(mine, wanted)
    for mine, wanted in zip(ours, theirs, strict=True):
        assert torch.equal(mine, wanted)
    return found


def view_then_write(x: torch.Tensor) -> Any:
    row = x[0]
    x.mul_(3)
    return row + 1


def write_then_view(x: torch.Tensor) -> Any:
    column = x[:, 1]
    column += 5
    return x * 2, column


def write_through_two_views(x: torch.Tensor) -> Any:
    y = x.clone()
    first, second = y[0], y.view(-1)[1:3]
    first.fill_(7)
    second.add_(first[0])
    return y, first, second


def write_a_copy(x: torch.Tensor) -> Any:
    y = x.contiguous().clone()
    y[0] = 0
    return x + y


def swap(x: torch.Tensor, y: torch.Tensor) -> Any:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return x - y


@pytest.mark.parametrize("function", [view_then_write, write_then_view, write_through_two_views, write_a_copy])
def test_views_and_writes_in_any_order_give_what_eager_gives(function: Any) -> None:
    agrees(function, torch.arange(6.0).reshape(2, 3))


def test_arguments_may_exchange_their_elements() -> None:
    found = agrees(swap, torch.ones(2), torch.zeros(2))
    assert len(found.graph.writes) == 2


def test_results_that_look_into_an_argument_are_paths_from_it() -> None:
    found = traced(lambda x: (x[1:], x.t(), x), torch.ones(2, 3))
    first, second, third = lines(found.graph)[-1].removeprefix("return ").split(", %x")
    assert first.startswith("%x via aten.slice.Tensor(_, 0, 1, ")
    assert (second, third) == (" via aten.t.default(_)", "")


def test_results_that_share_new_memory_are_paths_from_one_value() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        return y, y[0]

    assert lines(traced(function, torch.ones(2, 3)).graph)[-1] == "return %0, %0 via aten.select.int(_, 0, 0)"


def test_arguments_that_share_memory_are_written_as_one() -> None:
    base = torch.arange(6.0)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(10)
        return y * 1

    found = traced(function, base[:4], base[2:])
    assert found.depends_on_offsets
    assert torch.equal(interpret(found.graph, [base[:4], base[2:]])[0], torch.tensor([12.0, 13.0, 4.0, 5.0]))


def test_writing_into_memory_of_two_element_types_is_refused() -> None:
    base = torch.zeros(4)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.add_(1) + y

    with pytest.raises(UnsupportedError, match="two element types"):
        traced(function, base, base.view(torch.int32))
