"""torch.compile(net, backend="weft"): Dynamo breaks graphs where it must, Weft runs the pieces."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.api.agreement import gradients
from torch import nn

from weft.api.dynamo import backend
from weft.api.hybrid import HybridFunction

pytestmark = [
    pytest.mark.usefixtures("by_library"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Dynamo's own imports warn of what they deprecate
]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_the_backend_is_found_by_name_and_gives_the_answers_of_eager() -> None:
    assert "weft" in torch.compiler.list_backends()
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.BatchNorm1d(3))
    x = torch.randn(5, 4)
    expected = gradients(net(x).sum(), list(net.parameters()))
    compiled = torch.compile(net, backend="weft")
    for _ in range(2):
        assert torch.equal(compiled(x), net(x))
    for ours, theirs in zip(gradients(compiled(x).sum(), list(net.parameters())), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_code_that_weft_alone_refuses_runs_with_a_graph_break() -> None:
    @torch.compile(backend="weft")
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    for x in (torch.ones(3), -torch.ones(3)):
        assert torch.equal(function(x), x * 2 + x.sign())


def test_sizes_that_dynamo_leaves_open_get_a_program_each() -> None:
    function = torch.compile(lambda x: x.sin() + x.shape[0], backend="weft", dynamic=True)
    for size in (3, 5, 9):
        x = torch.randn(size)
        assert torch.equal(function(x), x.sin() + size)


def test_the_backend_makes_a_hybrid_function_that_falls_back() -> None:
    module: Any = torch.fx.symbolic_trace(nn.ReLU())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = backend(module, [torch.ones(2)])
    assert isinstance(made, HybridFunction)
    assert made.options.fallback == "eager"
    assert torch.equal(made(torch.tensor([-1.0, 1.0])), torch.tensor([0.0, 1.0]))


def test_a_gradient_that_needs_other_operators_for_other_sizes_has_exact_programs() -> None:
    net = nn.Sequential(nn.Linear(1, 4), nn.SiLU(), nn.Linear(4, 1))

    def energy(positions: torch.Tensor) -> torch.Tensor:
        steps, apart = positions[:, None] - positions[None], 1 - torch.eye(len(positions))
        distances = (steps.square().sum(-1) + torch.eye(len(positions))).sqrt().unsqueeze(-1)
        return (net(distances).squeeze(-1) * apart).sum()  # type: ignore[no-any-return]

    compiled = torch.compile(energy, backend="weft")
    for atoms in (4, 4, 5, 4, 6):
        positions = torch.randn(atoms, 3, requires_grad=True)
        found = torch.autograd.grad(compiled(positions), positions)
        torch.testing.assert_close(found, torch.autograd.grad(energy(positions), positions))


def test_gradients_inside_of_what_dynamo_compiles_are_those_of_eager() -> None:
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def flow(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return torch.stack([slope[:, 1], -slope[:, 0]], 1)

    compiled = torch.compile(flow, backend="weft")
    for _ in range(3):
        x = torch.randn(5, 2)
        found = gradients(compiled(x).square().sum(), [net[0].weight])
        torch.testing.assert_close(found, gradients(flow(x).square().sum(), [net[0].weight]))
