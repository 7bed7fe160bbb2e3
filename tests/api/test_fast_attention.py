"""Attention and encoder layers in evaluation, whose kernels give other numbers than their modules' code."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.ways import Work, assert_every_way
from torch import nn

import weft
from weft.config import overrides

WAYS = ("hybridize", "lazy")  # roundings are not those of eager's kernel
LENGTHS = (4, 5, 7)
HEADS = 2


@pytest.fixture(autouse=True)
def by_operators() -> Iterator[None]:
    """Programs of PyTorch's operators: what they compute is told here, and machine code takes longer to make."""
    with overrides(codegen="library"):
        yield


def attention(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    return nn.MultiheadAttention(4, HEADS, batch_first=True, **options).eval()


def layer(**options: Any) -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(4, HEADS, 8, batch_first=True, **options).eval()


def images(length: int) -> torch.Tensor:
    return torch.randn(2, length, 4, generator=torch.Generator().manual_seed(length))


def padding(length: int, *, whole: bool = True) -> torch.Tensor:
    """A sample of which one element counts, and one of which none does."""
    mask = torch.zeros(2, length, dtype=torch.bool)
    mask[0, 1:] = True
    mask[1] = whole
    return mask


def pairs(length: int) -> torch.Tensor:
    """A query that hears one key, one that hears none, and others that hear all."""
    mask = torch.zeros(length, length, dtype=torch.bool)
    mask[1] = True
    mask[0, 1:] = True
    return mask


def of_heads(length: int) -> torch.Tensor:
    mask = pairs(length).repeat(2 * HEADS, 1, 1)
    mask[1, 1] = False
    return mask


def without(_length: int) -> None:
    return None


def numbers(*shape: int) -> torch.Tensor:
    found = torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape)
    return found.masked_fill(found.abs() < 0.4, 0.0)


def work(function: Callable[..., Any], *masks: Callable[[int], Any]) -> Work:
    def call(*arguments: Any) -> Any:
        with torch.no_grad():
            return function(*arguments)

    return Work(call, [((images(length), *(mask(length) for mask in masks)), {}) for length in LENGTHS])


@pytest.mark.parametrize("of_pairs", [without, pairs, of_heads])
@pytest.mark.parametrize("of_keys", [without, padding, lambda length: padding(length, whole=False)])
def test_attention(of_pairs: Callable[..., Any], of_keys: Callable[..., Any]) -> None:
    def make() -> Work:
        net = attention()

        def function(x: torch.Tensor, mask: torch.Tensor | None, padded: torch.Tensor | None) -> Any:
            masks = {"key_padding_mask": padded, "attn_mask": mask}
            every = net(x, x, x, average_attn_weights=False, **masks)
            return net(x, x, x, **masks), every, net(x, x, x, need_weights=False, **masks)

        return work(function, of_pairs, of_keys)

    assert_every_way(make, *WAYS)


MASKS: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {
    "none": (without, without),
    "padding": (without, padding),
    "pairs": (pairs, without),
    "both": (pairs, lambda length: padding(length, whole=False)),
    "of heads": (of_heads, padding),
    "infinite numbers": (nn.Transformer.generate_square_subsequent_mask, without),
    "finite numbers": (lambda length: numbers(length, length), without),
    "numbers of heads": (lambda length: numbers(2 * HEADS, length, length), without),
    "numbers of keys": (without, lambda length: numbers(2, length)),
    "numbers of both": (lambda length: numbers(length, length), lambda length: numbers(2, length)),
    "numbers and truth": (lambda length: numbers(length, length), padding),
}


@pytest.mark.parametrize("name", ["padding", "finite numbers"])
def test_a_layer_in_machine_code(name: str) -> None:
    with overrides(codegen="native"):
        assert_every_way(lambda: work(layer(), *MASKS[name]), "hybridize")


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}])
def test_layer(name: str, options: dict[str, Any]) -> None:
    assert_every_way(lambda: work(layer(**options), *MASKS[name]), *WAYS)


@pytest.mark.parametrize("name", ["padding", "pairs", "infinite numbers", "finite numbers"])
def test_encoder(name: str) -> None:
    def make() -> Work:
        net = nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False)
        return work(net, *MASKS[name])

    assert_every_way(make, *WAYS)


def trained(net: nn.Module) -> nn.Module:
    return net.train()


def odd(net: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(4, 1, 8, dropout=0.0, batch_first=True).eval()


def hooked(net: Any) -> nn.Module:
    net.linear1.register_forward_hook(lambda _module, _given, found: found * 2)
    return net


class Own(nn.TransformerEncoderLayer):
    """A layer with another feed-forward part, which eager's kernel does not call."""

    def _ff_block(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


def other_part(net: Any) -> nn.Module:
    net.__class__ = Own
    return net


def other_norm(net: Any) -> nn.Module:
    net.norm1.eps = 0.1
    return net


def identity(net: Any) -> nn.Module:
    return net


@pytest.mark.parametrize("change", [trained, odd, hooked, other_part, other_norm, identity])
@pytest.mark.parametrize("grad", [False, True])
def test_layers_with_and_without_a_short_cut(change: Callable[[Any], nn.Module], grad: bool) -> None:
    def make() -> Work:
        net = change(layer(dropout=0.0))

        def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            with torch.set_grad_enabled(grad):
                return net(x, mask)

        return Work(function, [((images(length), numbers(length, length)), {}) for length in LENGTHS])

    assert_every_way(make, *WAYS)


def test_what_needs_gradients_takes_no_short_cut() -> None:
    net = layer().requires_grad_(False)
    eager = copy.deepcopy(net)
    hybrid = weft.hybridize(net)
    x, mask = images(4), numbers(4, 4)

    def same(x: torch.Tensor) -> None:
        torch.testing.assert_close(hybrid(x, mask), eager(x, mask), equal_nan=True)

    same(x)
    same(x.clone().requires_grad_())
    for one in (net, eager):
        one.norm2.weight.requires_grad_()
    same(x)


@pytest.fixture
def no_short_cuts() -> Iterator[None]:
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.usefixtures("no_short_cuts")
def test_short_cuts_that_are_switched_off() -> None:
    assert_every_way(lambda: work(layer(), *MASKS["finite numbers"]), *WAYS)
