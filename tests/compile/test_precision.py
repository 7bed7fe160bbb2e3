"""Products in a lower precision: rounded operands, or exact sums of integers of 8 bits, where that is asked for."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

import weft
from weft.compile.precision import lowered, multiplies_bytes
from weft.target import host_target
from weft.trace.lift.lift import lift

needs_bytes = pytest.mark.skipif(not multiplies_bytes(host_target()), reason="this processor has no VNNI")
INNER, COLUMNS = 131, 70


def layer(inner: int = INNER, columns: int = COLUMNS) -> nn.Linear:
    torch.manual_seed(5)
    return nn.Linear(inner, columns).eval()


def quantised(numbers: torch.Tensor, dimension: int) -> tuple[torch.Tensor, torch.Tensor]:
    largest = numbers.abs().amax(dimension, keepdim=True)
    times = torch.where(largest == 0, 0.0, 127.0 / largest)
    return (numbers * times).round(), largest * torch.tensor(1 / 127)


def reference(net: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """A linear layer by an int32 product, as torch computes it."""
    rows, scale = quantised(x, 1)
    columns, by_column = quantised(net.weight.t(), 0)
    sums = rows.to(torch.int32) @ columns.to(torch.int32)
    return sums.float() * scale * by_column + net.bias


@needs_bytes
@pytest.mark.parametrize("rows", [1, 2, 7, 33, 128])
@torch.no_grad()
def test_int8_has_the_bits_of_an_int32_reference(rows: int) -> None:
    net, x = layer(), torch.randn(rows, INNER) * 3
    expected = reference(net, x)
    got = weft.hybridize(net, precision="int8")(x)
    assert torch.equal(got, expected)


@needs_bytes
@torch.no_grad()
def test_rows_of_zeros_give_the_bias_and_rows_with_nan_give_nan() -> None:
    net, x = layer(), torch.randn(4, INNER)
    x[1] = 0
    x[2, 5] = torch.nan
    x[3, 7] = torch.inf
    got = weft.hybridize(net, precision="int8")(x)
    assert torch.equal(got[1], net.bias)
    assert got[2].isnan().all()
    assert not got[3].isfinite().any()
    assert torch.equal(got[:2], reference(net, x[:2]))


@needs_bytes
@torch.no_grad()
def test_weights_are_made_integers_again_when_one_has_changed() -> None:
    net, x = weft.hybridize(layer(), precision="int8"), torch.randn(5, INNER)
    net(x)
    net.weight.mul_(torch.linspace(-2, 3, COLUMNS)[:, None])
    net.bias.add_(1)
    assert torch.equal(net(x), reference(net, x))


@needs_bytes
@torch.no_grad()
def test_one_program_in_int8_serves_many_sizes() -> None:
    net = weft.hybridize(layer(), precision="int8")
    for rows in (3, 5, 9, 14, 2, 31, 8):
        x = torch.randn(rows, INNER)
        assert torch.equal(net(x), reference(net, x))


@needs_bytes
@torch.no_grad()
def test_layers_that_int8_does_not_make_faster_stay_as_they_are() -> None:
    for inner, columns in ((63, 70), (131, 31)):
        net, x = layer(inner, columns), torch.randn(6, inner)
        eager = net(x)
        torch.testing.assert_close(weft.hybridize(net, precision="int8")(x), eager)


@torch.no_grad()
def test_a_processor_without_vnni_keeps_float32() -> None:
    net, x = layer(), torch.randn(6, INNER)
    graph = lift(weft.program(net, x).graph)
    weights = frozenset(graph.inputs[1:])
    assert lowered(graph, weights, "int8", host_target().masked("generic")) is graph


@needs_bytes
@torch.no_grad()
def test_the_plan_says_which_products_are_of_integers() -> None:
    net = nn.Sequential(layer(), nn.ReLU(), nn.Linear(COLUMNS, 8)).eval()
    weft.hybridize(net, precision="int8")
    summaries = [call.kernel.summary for call in weft.program(net, torch.randn(9, INNER)).plan.regions[0].calls]
    assert [("u8 and i8" in one) for one in summaries if one.startswith("9x")] == [True, False]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@torch.no_grad()
def test_a_short_precision_multiplies_rounded_operands_and_adds_up_in_float32(precision: str) -> None:
    dtype = getattr(torch, precision)
    net, x = layer(), torch.randn(9, INNER)
    rounded = functional.linear(x.to(dtype).float(), net.weight.to(dtype).float(), net.bias)
    got = weft.hybridize(net, precision=precision)(x)
    assert got.dtype is torch.float32
    torch.testing.assert_close(got, rounded)
    image, images = nn.Conv2d(4, 6, 3).eval(), torch.randn(2, 4, 9, 9)
    rounded = functional.conv2d(images.to(dtype).float(), image.weight.to(dtype).float(), image.bias)
    torch.testing.assert_close(weft.hybridize(image, precision=precision)(images), rounded)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_an_encoder_stays_near_what_eager_computes(precision: str) -> None:
    torch.manual_seed(1)
    net, x = nn.TransformerEncoderLayer(96, 4, 192, batch_first=True).eval(), torch.randn(2, 24, 96)
    with torch.no_grad():
        eager = net(x)
        got = weft.hybridize(net, precision=precision)(x)
    assert not torch.equal(got, eager)
    assert (got - eager).abs().max() < 0.05


def test_calls_with_gradients_are_computed_in_full() -> None:
    net, x = layer(), torch.randn(9, INNER)
    eager = net(x)
    eager.sum().backward()
    expected = net.weight.grad.clone()
    net.weight.grad = None
    got = weft.hybridize(net, precision="bfloat16")(x)
    got.sum().backward()
    torch.testing.assert_close(got, eager)
    torch.testing.assert_close(net.weight.grad, expected)


@torch.no_grad()
def test_copies_keep_the_precision() -> None:
    net, x = weft.hybridize(layer(), precision="bfloat16"), torch.randn(9, INNER)
    expected = net(x)
    for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(again(x), expected)
    full = weft.hybridize(net)(x)
    assert not torch.equal(full, expected)


@torch.no_grad()
def test_functions_and_methods_have_a_precision() -> None:
    weight = torch.randn(INNER, COLUMNS)

    class Model:
        @weft.hybridize(precision="bfloat16")
        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x @ weight

    x = torch.randn(9, INNER)
    torch.testing.assert_close(Model().run(x), x.bfloat16().float() @ weight.bfloat16().float())


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(weft.UsageError, match="precision is 'int4'"):
        weft.hybridize(layer(), precision="int4")
