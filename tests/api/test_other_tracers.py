"""Where something else of PyTorch follows a hybridized module (exporters, hooks, ...), it sees what it asks for."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.api.agreement import gradients
from torch import nn
from torch.utils.checkpoint import checkpoint

import weft


@pytest.fixture
def nets() -> tuple[nn.Module, nn.Module]:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    hybrid = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    hybrid.load_state_dict(net.state_dict())
    return net, weft.hybridize(hybrid)


# A way to another form of a module -> what it gives for a tensor.
WAYS: dict[str, Callable[[Any, torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "torch.jit.trace": torch.jit.trace,
    "torch.export": lambda net, x: torch.export.export(net, (x,)).module(),
    "torch.export, strict": lambda net, x: torch.export.export(net, (x,), strict=True).module(),
    "torch.compile": lambda net, x: torch.compile(net, backend="eager", fullgraph=True),
    "torch.fx": lambda net, x: torch.fx.symbolic_trace(net),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what they deprecate of themselves
@pytest.mark.parametrize("called_before", [0, 6])
@pytest.mark.parametrize("way", WAYS)
def test_exporters_see_the_operators(nets: tuple[Any, Any], way: str, called_before: int) -> None:
    net, hybrid = nets
    x, other = torch.randn(2, 3), torch.randn(2, 3)
    with torch.no_grad():
        for _ in range(called_before):
            hybrid(x)
    try:
        found = WAYS[way](hybrid, x)
        torch.testing.assert_close(found(other), net(other))
    finally:
        torch.compiler.reset()
    torch.testing.assert_close(hybrid(other), net(other))


def test_a_program_can_be_checkpointed(nets: tuple[Any, Any]) -> None:
    def run(net: nn.Module) -> list[torch.Tensor]:
        x = torch.ones(2, 3, requires_grad=True)
        return gradients(checkpoint(net, x, use_reentrant=False).sum(), [x, *net.parameters()])

    for _ in range(2):
        torch.testing.assert_close(run(nets[1]), run(nets[0]))


def test_hooks_for_saved_tensors_see_what_a_program_saves_and_not_its_trace(nets: tuple[Any, Any]) -> None:
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor * 1

    x = torch.randn(2, 3)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses = [net(x).square().sum() for net in nets]
    assert all(type(tensor) in (torch.Tensor, nn.Parameter) for tensor in packed)
    expected, found = (gradients(loss, list(net.parameters())) for loss, net in zip(losses, nets, strict=True))
    torch.testing.assert_close(found, expected)


def test_anomalies_are_looked_for_in_the_numbers_of_a_program(nets: tuple[Any, Any]) -> None:
    _, hybrid = nets
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is slow
        with torch.autograd.detect_anomaly():
            hybrid(torch.randn(2, 3)).sum().backward()
            with pytest.raises(RuntimeError, match="nan"):
                hybrid(torch.full((2, 3), torch.nan)).sum().backward()


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
def test_torchscript_compiles_the_function_that_is_hybridized(nets: tuple[Any, Any]) -> None:
    net, hybrid = nets
    x = torch.randn(2, 3)
    found = weft.hybridize(doubled)
    for _ in range(3):
        torch.testing.assert_close(torch.jit.script(found)(x), x * 2)
        found(x)
    with pytest.raises(AttributeError, match=r"torch.jit.script\(weft.hybridize\(net, False\)\)"):
        torch.jit.script(hybrid)
    torch.testing.assert_close(torch.jit.script(weft.hybridize(hybrid, False))(x), net(x))


def test_a_program_that_is_called_says_what_to_call(nets: tuple[Any, Any]) -> None:
    x = torch.randn(2, 3)
    with pytest.raises(weft.UsageError, match="call what it was made of"):
        weft.program(nets[1], x)(x)
