"""GRUs and plain RNNs are recorded an operator a layer and direction, with eager's results, bits and gradients."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from tests.trace.traces import lines, traced
from torch import nn
from torch.utils.checkpoint import checkpoint

import weft
from weft.config import overrides

STEPS, BATCH, FEATURES, SIZE = 4, 3, 5, 6
KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"bidirectional": True},
    {"num_layers": 2, "batch_first": True},
    {"num_layers": 2, "bidirectional": True, "bias": False, "batch_first": True},
    {"num_layers": 3, "dropout": 0.5},
)


def sequence() -> torch.Tensor:
    return torch.randn(STEPS, BATCH, FEATURES)


def recorded(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """The names of the operators that a trace has."""
    words = [word for line in lines(traced(function, *arguments).graph) for word in line.split()]
    return [word.partition("(")[0] for word in words if word.startswith(("aten.", "weft."))]


def layers(names: list[str]) -> int:
    return sum(name.startswith("weft.recurrent_layer") for name in names)


def results(thing: Callable[..., Any], net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Outputs and all gradients; the same random numbers each time."""
    torch.manual_seed(1)
    given = x.clone().requires_grad_()
    output, last = thing(given)
    (output.square().sum() + last.sin().sum()).backward()
    return [output, last, given.grad, *(parameter.grad for parameter in net.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_pytorchs_operators_alone_give_eagers_very_bits(kind: str, options: dict[str, Any]) -> None:
    net, x = KINDS[kind](FEATURES, SIZE, **options), sequence()
    hybrid = weft.hybridize(deepcopy(net))
    expected = results(net, net, x)
    with overrides(codegen="library"):
        found = results(hybrid, hybrid, x)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS[:-1], ids=str)
def test_machine_code_gives_eagers_results_and_gradients(kind: str, options: dict[str, Any]) -> None:
    net = KINDS[kind](FEATURES, SIZE, dtype=torch.float64, **options)
    hybrid = weft.hybridize(deepcopy(net))
    x = sequence().double()
    for one, other in zip(results(hybrid, hybrid, x), results(net, net, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12, check_stride=True)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_computed_in_machine_code(kind: str) -> None:
    net = KINDS[kind](FEATURES, SIZE, dtype=torch.bfloat16)
    hybrid = weft.hybridize(deepcopy(net))
    x = sequence().bfloat16()
    for one, other in zip(results(hybrid, hybrid, x), results(net, net, x), strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05)


def test_a_layer_and_direction_is_one_operator() -> None:
    net = nn.GRU(FEATURES, SIZE, num_layers=2, bidirectional=True)
    names = recorded(net, sequence())
    assert layers(names) == 4
    assert len(names) < 20


def test_a_gradient_that_is_differentiated_again_is_eagers() -> None:
    net = nn.GRU(FEATURES, SIZE)

    def penalty(x: torch.Tensor) -> torch.Tensor:
        inner = x.detach().requires_grad_()
        found = torch.autograd.grad(net(inner)[0].square().sum(), inner, create_graph=True)[0]
        return found.square().sum()

    x = sequence()
    expected = torch.autograd.grad(penalty(x), [*net.parameters()])
    found = torch.autograd.grad(weft.hybridize(penalty)(x), [*net.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_checkpointed_layer_is_taken_apart_as_before() -> None:
    net = nn.GRU(FEATURES, SIZE)
    hybrid = weft.hybridize(lambda x: checkpoint(net, x, use_reentrant=False)[0].sum())
    expected = torch.autograd.grad(net(x := sequence())[0].sum(), [*net.parameters()])
    torch.testing.assert_close(torch.autograd.grad(hybrid(x), [*net.parameters()]), expected, rtol=1e-4, atol=1e-5)


def test_under_autocast_the_layer_is_taken_apart_as_before() -> None:
    net = nn.GRU(FEATURES, SIZE)

    def under_autocast(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return net(x)

    assert layers(recorded(under_autocast, sequence())) == 0


def test_a_layer_inside_a_transform_is_taken_apart_as_before() -> None:
    net = nn.GRU(FEATURES, SIZE)
    function = torch.func.grad(lambda x: net(x)[0].square().sum())
    assert layers(recorded(function, sequence())) == 0


@pytest.mark.parametrize(
    ("given", "first"), [((0, 3, 5), (1, 3, 6)), ((4, 3, 4), (1, 3, 6)), ((4, 3, 5), (1, 2, 6)), ((4, 3, 5), (2, 3, 6))]
)
def test_sizes_that_pytorch_refuses_are_refused_in_its_words(given: tuple[int, ...], first: tuple[int, ...]) -> None:
    net = nn.GRU(FEATURES, SIZE)
    call = lambda x, h: torch.gru(x, h, [*net.parameters()], True, 1, 0.0, False, False, False)  # noqa: E731
    arguments = (torch.randn(given), torch.randn(first))
    with pytest.raises(RuntimeError) as expected:
        call(*arguments)
    with pytest.raises(RuntimeError) as found:
        weft.hybridize(call)(*arguments)
    assert str(expected.value).splitlines()[0] in str(found.value)


def test_a_saved_program_with_a_layer_is_loaded(tmp_path: Any) -> None:
    net = nn.GRU(FEATURES, SIZE).eval()
    x = sequence()
    weft.program(net, x).save(tmp_path / "gru.weft")
    loaded = weft.load_program(tmp_path / "gru.weft")
    torch.testing.assert_close(loaded(x), net(x), rtol=1e-4, atol=1e-5)
