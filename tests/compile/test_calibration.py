"""Convolutions and linear layers with scales that calibration has found: exact sums of integers of 8 bits."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import weft
from weft.api.calibrate import rounded
from weft.compile.calibration import Calibrated, calibrated_of
from weft.compile.precision import kept_in_full, lowered, multiplies_bytes
from weft.errors import UsageError
from weft.ir.interpreter import interpret
from weft.target import host_target
from weft.trace.lift.lift import lift

needs_bytes = pytest.mark.skipif(not multiplies_bytes(host_target()), reason="this processor has no VNNI")


def reference(layer: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    """A convolution by sums of integers, as torch adds them up: in float64, which holds all of them."""
    known = calibrated_of(layer.weight)
    assert known is not None
    zero = 0 if known.is_positive else 128
    whole = ((x * (1.0 / known.scale)).round() + float(zero)).clamp(0, 255) - zero
    largest = layer.weight.abs().amax((1, 2, 3), keepdim=True)
    columns = (layer.weight * torch.where(largest == 0, 0.0, 127.0 / largest)).round()
    sums = functional.conv2d(
        whole.double(), columns.double(), None, layer.stride, layer.padding, layer.dilation, layer.groups
    )
    by_output = largest * torch.tensor(1 / 127)
    found = sums.to(torch.int32).float() * (by_output.reshape(1, -1, 1, 1) * known.scale)
    return found if layer.bias is None else found + layer.bias.reshape(1, -1, 1, 1)


def convolutions() -> Iterator[Any]:
    for name, given, shape in (
        ("3x3", {"kernel_size": 3, "padding": 1}, (2, 32, 9, 11)),
        ("1x1", {"kernel_size": 1}, (1, 32, 7, 7)),
        ("5x5 step 2", {"kernel_size": 5, "padding": 2, "stride": 2}, (3, 32, 12, 9)),
        ("holes", {"kernel_size": 3, "padding": 2, "dilation": 2}, (1, 32, 10, 10)),
        ("groups", {"kernel_size": 3, "padding": 1, "groups": 2}, (2, 32, 6, 6)),
        ("oblong", {"kernel_size": (1, 7), "padding": (0, 3), "stride": (2, 1)}, (1, 32, 8, 17)),
        ("unpadded", {"kernel_size": 3}, (8, 32, 5, 5)),
        ("no bias", {"kernel_size": 3, "padding": 1, "bias": False}, (1, 32, 4, 4)),
    ):
        yield pytest.param(given, shape, id=name)


@needs_bytes
@pytest.mark.parametrize("is_positive", [False, True])
@pytest.mark.parametrize(("given", "shape"), [*convolutions()])
@torch.no_grad()
def test_a_convolution_has_the_bits_of_a_reference_of_integers(
    given: dict[str, Any], shape: tuple[int, ...], *, is_positive: bool
) -> None:
    layer, x = nn.Conv2d(32, 52, **given).eval(), torch.randn(shape) * 2
    x = x.relu() if is_positive else x
    weft.calibrate(layer, [x])
    expected = reference(layer, x)
    eager = layer(x)
    weft.hybridize(layer, precision="int8")
    assert torch.equal(layer(x), expected)
    assert (expected - eager).norm() < 0.03 * eager.norm()
    assert "u8 and i8" in str(weft.program(layer, x).plan)
    assert torch.equal(layer(3 * x), reference(layer, 3 * x))  # beyond what was calibrated
    strided = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(layer(strided), expected)


class Blocks(nn.Module):
    """Convolutions one after another, beside each other, and summed up, with norms and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.second = nn.Conv2d(32, 32, 3, padding=1, bias=False)
        self.third = nn.Conv2d(32, 48, 1)
        self.last = nn.Linear(48, 64)
        self.narrow = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm(self.first(x)))
        y = functional.max_pool2d(y + functional.relu(self.norm(self.second(y))), 2)
        y = functional.relu(self.third(y)).mean((2, 3))
        return self.narrow(torch.tanh(self.last(functional.pad(y, (0, 0)))))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(3)
    found = Blocks().eval()
    found.norm.running_mean.normal_()
    found.norm.running_var.uniform_(0.5, 2)
    return found


@needs_bytes
@torch.no_grad()
def test_a_network_is_near_what_eager_computes(net: nn.Module) -> None:
    batches = [torch.randn(4, 3, 12, 12) for _ in range(3)]
    said = weft.calibrate(net, batches)
    assert said.startswith("5 layers calibrated\n  first.weight: up to ")
    x = batches[0]
    eager = net(x)
    weft.hybridize(net, precision="int8")
    found = net(x)
    assert 0 < (found - eager).norm() < 0.05 * eager.norm()
    plan = str(weft.program(net, x).plan)
    assert plan.count("words of u8 and i8") == 2
    assert "gemm 4x64x48 of u8 and i8" not in plan  # too short a sum


@needs_bytes
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf, 1e30, -0.0])
@torch.no_grad()
def test_odd_numbers_are_as_the_interpreter_has_them(odd: float) -> None:
    layer, x = nn.Conv2d(32, 32, 3, padding=1).eval(), torch.randn(1, 32, 5, 5)
    weft.calibrate(layer, [x])
    x[0, 3, 2, 2] = odd
    graph = lift(weft.program(layer, x).graph)
    weights = frozenset(graph.inputs[1:])
    given = {value: found for value in weights if (found := _of_shape(layer, value)) is not None}
    known = {value: calibrated_of(layer.weight) for value, tensor in given.items() if tensor is layer.weight}
    small = lowered(graph, weights, "int8", host_target(), known)
    expected = interpret(small, [x, *(given[value] for value in graph.inputs[1:])])
    weft.hybridize(layer, precision="int8")
    assert torch.equal(layer(x), expected[0])


def _of_shape(layer: nn.Module, value: Any) -> torch.Tensor | None:
    return next((one for one in layer.parameters() if tuple(one.shape) == tuple(value.type.shape)), None)


@needs_bytes
@torch.no_grad()
def test_calibrated_linear_layers_have_one_scale_for_all_rows() -> None:
    layer, x = nn.Linear(96, 64).eval(), torch.randn(7, 96)
    weft.calibrate(layer, [x])
    known = calibrated_of(layer.weight)
    assert known is not None
    weft.hybridize(layer, precision="int8")
    whole = rounded(x, known) / known.scale
    largest = layer.weight.abs().amax(1, keepdim=True)
    columns = (layer.weight * (127.0 / largest)).round()
    sums = (whole.round().to(torch.int32) @ columns.to(torch.int32).t()).float()
    expected = sums * (largest.t() * torch.tensor(1 / 127) * known.scale) + layer.bias
    assert torch.equal(layer(x), expected)
    assert torch.equal(layer(x[:3]), expected[:3])


@needs_bytes
@torch.no_grad()
def test_layers_keep_float32_for_a_reason_that_explain_tells(net: nn.Module) -> None:
    x = torch.randn(2, 3, 8, 8)
    assert "more than the 0.01 % asked for" in weft.calibrate(net, [x], error=1e-4)
    eager = net(x)
    weft.hybridize(net, precision="int8")
    torch.testing.assert_close(net(x), eager, rtol=1e-4, atol=1e-4)
    text = weft.explain(net)
    assert "float32: second.weight: int8 would change its output by" in text


@needs_bytes
@torch.no_grad()
def test_few_channels_and_layers_that_were_not_seen_keep_float32(net: nn.Module) -> None:
    x = torch.randn(2, 3, 8, 8)
    weft.calibrate(net, [x])
    other = copy.deepcopy(net)  # has weights of its own
    weft.hybridize(net, precision="int8")
    net(x)
    text = weft.explain(net)
    assert "float32: first.weight: groups of 3 channels in and 32 out are not faster in int8" in text
    assert "float32: narrow.weight: with less than 64 numbers in or 32 out int8 is not faster" in text
    weft.hybridize(other, precision="int8")
    torch.testing.assert_close(other(x)[:, :0], net(x)[:, :0])
    assert "float32: second.weight: its inputs were not calibrated" in weft.explain(other)


@torch.no_grad()
def test_a_processor_without_vnni_keeps_float32() -> None:
    layer, x = nn.Conv2d(32, 32, 1).eval(), torch.randn(1, 32, 4, 4)
    graph = lift(weft.program(layer, x).graph)
    weights, known = frozenset(graph.inputs[1:]), {graph.inputs[1]: Calibrated(2.0, is_positive=False)}
    target = host_target().masked("generic")
    assert lowered(graph, weights, "int8", target, known) is graph or not _convolves_integers(
        lowered(graph, weights, "int8", target, known)
    )
    assert [why for _, why in kept_in_full(graph, weights, target, known)] == ["this processor has no VNNI"]


def _convolves_integers(graph: Any) -> bool:
    return any(value.op == "convolution" and value.type.dtype is torch.int32 for value in graph.values)


@needs_bytes
@torch.no_grad()
def test_one_program_serves_batches_of_many_sizes() -> None:
    layer, x = nn.Conv2d(32, 48, 3, padding=1).eval(), torch.randn(9, 32, 6, 6)
    weft.calibrate(layer, [x])
    weft.hybridize(layer, precision="int8")
    for count in (3, 5, 9, 1, 7, 2, 8):
        assert torch.equal(layer(x[:count]), reference(layer, x[:count]))


@needs_bytes
@torch.no_grad()
def test_weights_may_change() -> None:
    layer, x = nn.Conv2d(32, 48, 3, padding=1).eval(), torch.randn(2, 32, 6, 6)
    weft.calibrate(layer, [x])
    weft.hybridize(layer, precision="int8")
    layer(x)
    layer.weight.mul_(torch.linspace(-2, 3, 48)[:, None, None, None])
    layer.weight[5] = 0
    layer.bias.add_(1)
    assert torch.equal(layer(x), reference(layer, x))


@torch.no_grad()
def test_batches_may_be_tuples_dictionaries_and_come_one_by_one() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + self.layer(y)

    net = Two()
    x, y = torch.ones(2, 8), -3 * torch.ones(2, 8)
    assert weft.calibrate(net, iter([(x, y), {"x": x, "y": 2 * y}])).startswith("1 layer calibrated")
    known = calibrated_of(net.layer.weight)
    assert known is not None
    assert not known.is_positive
    assert known.largest <= 6
    assert net.training


def test_encoders_show_their_layers() -> None:
    net = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    said = weft.calibrate(net, [torch.randn(2, 5, 32)])
    assert "linear1.weight" in said
    assert "linear2.weight" in said
    assert torch.backends.mha.get_fastpath_enabled()


def test_layers_that_are_given_zeros_or_nan_keep_float32() -> None:
    for number in (0.0, torch.nan, torch.inf):
        layer = nn.Linear(8, 8)
        assert "were zeros, or not finite" in weft.calibrate(layer, [torch.full((2, 8), number)])


def test_what_cannot_be_calibrated_is_an_error_that_says_why() -> None:
    layer, x = nn.Linear(8, 8), torch.randn(2, 8)
    with pytest.raises(UsageError, match="no module"):
        weft.calibrate(lambda x: x, [x])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there are no batches"):
        weft.calibrate(layer, [])
    with pytest.raises(UsageError, match="error is -1"):
        weft.calibrate(layer, [x], error=-1)
    weft.hybridize(layer)
    with pytest.raises(UsageError, match="hybridized already"):
        weft.calibrate(layer, [x])
