"""A trace finds which of its results are computed from which, and from which inputs by ways around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.trace.lift_checks import traced_call

from weft.trace.linked_results import Link


def links(function: Callable[..., Any], *arguments: torch.Tensor) -> tuple[Link, ...]:
    """The links of a trace."""
    gradient = traced_call(function, *arguments).gradient
    assert gradient is not None
    return gradient.links


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def test_a_chain_is_tied_link_by_link() -> None:
    def chain(x: torch.Tensor, y: torch.Tensor) -> Any:
        h = x.tanh()
        g = h.sin() * y
        return g.exp().sum(), h, g

    found = links(chain, leaf(3), leaf(3))
    assert [(link.result, link.sources, link.upstream, link.inputs) for link in found] == [
        (2, (1,), (), (1,)),
        (0, (2,), (0,), ()),
    ]


def test_ways_around_a_source_end_at_inputs() -> None:
    def skip(x: torch.Tensor, y: torch.Tensor) -> Any:
        a = x * y
        h = a.tanh()
        return (h * a).sum(), h

    (link,) = links(skip, leaf(3), leaf(3))
    assert link.sources == (1,)
    assert link.inputs == (0, 1)
    assert not link.is_passed_twice


def test_results_beside_each_other_are_not_tied() -> None:
    assert not links(lambda x: (x.sin(), x.cos()), leaf(3))
    assert not links(lambda x: x.tanh().split(1), leaf(3))
    assert not links(lambda x: (x.sin().detach().cos() * x, x.sin()), leaf(3))


def test_what_views_are_of_is_watched() -> None:
    def row(x: torch.Tensor) -> Any:
        h = x.tanh()
        v = h[0]
        return v.exp().sum(), h, v

    (link,) = links(row, leaf(3, 2))
    assert link.sources == (2,)
    assert link.watched == (2, 1)


def test_a_view_of_what_is_given_is_a_source() -> None:
    def row(x: torch.Tensor) -> Any:
        h = x[0]
        return (h.exp() * x).sum(), h

    (link,) = links(row, leaf(3, 2))
    assert (link.sources, link.inputs) == ((1,), (0,))


def test_hooks_that_would_see_sums_in_parts_are_told() -> None:
    def hooked(x: torch.Tensor) -> Any:
        a = x * 2
        a.register_hook(lambda gradient: gradient.clamp(0, 1))
        h = a.tanh()
        return (h * a).sum(), h

    (link,) = links(hooked, leaf(3))
    assert link.is_passed_twice


def test_a_long_chain_is_found_in_one_walk() -> None:
    def steps(x: torch.Tensor) -> list[torch.Tensor]:
        found = [x.tanh()]
        for _ in range(300):
            found.append(found[-1].sin())
        return found

    found = links(steps, leaf(2))
    assert len(found) == 300
    assert all(len(link.sources) == 1 and len(link.upstream) <= 1 for link in found)
