"""Products and convolutions of short floats read weights packed once, and round what they store in registers."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import weft
from weft import target
from weft.config import overrides
from weft.plan.fuse.fuse import fuse
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.expression import SHORT_FLOATS
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.winograd import WinogradKernel, WinogradStage
from weft.plan.regions.region import find_regions
from weft.target import host_target
from weft.trace.lift.lift import lift

SHORT = [torch.bfloat16, torch.float16]


def close_to_eager(model: nn.Module, x: torch.Tensor, exact: torch.Tensor) -> None:
    with torch.no_grad():
        eager = model(x)
        got = weft.hybridize(model)(x)
    assert got.dtype == eager.dtype
    error, allowed = ((one.double() - exact).abs().max().item() for one in (got, eager))
    assert error <= 2 * allowed + 3 * torch.finfo(eager.dtype).eps * exact.abs().max().item()


def kernels(model: nn.Module, x: torch.Tensor) -> list[object]:
    with torch.no_grad():
        plan = weft.program(model, x).plan
    return [call.kernel for region in plan.regions for call in region.calls]


def layers() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    return {
        "linear": (nn.Sequential(nn.Linear(70, 33), nn.GELU(), nn.Linear(33, 5)), torch.randn(9, 70)),
        "long": (nn.Linear(3000, 40), torch.randn(20, 3000)),
        "convolution": (nn.Sequential(nn.Conv2d(5, 18, 3, stride=2, padding=1), nn.ReLU()), torch.randn(2, 5, 9, 9)),
        "winograd": (nn.Sequential(nn.Conv2d(32, 48, 3, padding=1), nn.SiLU()), torch.randn(2, 32, 24, 24)),
        "depthwise": (nn.Conv2d(24, 24, 3, padding=1, groups=24), torch.randn(1, 24, 12, 12)),
        "transposed": (nn.ConvTranspose2d(6, 10, 3, stride=2), torch.randn(1, 6, 8, 8)),
        "norm": (nn.Sequential(nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.ReLU()), torch.randn(2, 8, 10, 10)),
        "encoder": (nn.TransformerEncoderLayer(64, 4, 96, batch_first=True), torch.randn(2, 20, 64)),
    }


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("name", layers())
def test_answers_are_as_exact_as_eagers(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = layers()[name]
    model.eval()
    model.to(dtype)
    x = x.to(dtype)
    with torch.no_grad():
        exact = model.double()(x.double())
    close_to_eager(model.to(dtype), x, exact)


@pytest.fixture
def pairs_do_not_pay(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let products of pairs be left alone, also on a processor that they pay on; plans of that are not kept."""
    monkeypatch.setattr(target, "FAST_PAIRS", frozenset())
    with overrides(cache_dir=None):
        yield


@pytest.mark.usefixtures("pairs_do_not_pay")
@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_a_linear_layer_is_one_product_that_stores_what_follows(dtype: torch.dtype) -> None:
    model, x = layers()["linear"]
    found = kernels(model.eval().to(dtype), x.to(dtype))
    products = [kernel for kernel in found if isinstance(kernel, GemmKernel)]
    assert len(products) == 2
    # What is left converts the rows that are given: of weights nothing is done in a call.
    assert [type(kernel) for kernel in found if not isinstance(kernel, GemmKernel)] == [LoopKernel]
    name = {torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]
    assert products[-1].epilogue.stored("f32") == name


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_a_convolution_stores_what_follows(dtype: torch.dtype) -> None:
    for name, kind in (("convolution", ConvKernel), ("winograd", (WinogradKernel, WinogradStage))):
        model, x = layers()[name]
        model = nn.Sequential(*model, nn.Conv2d(model[0].out_channels, 4, 1))  # what is handed out is laid out anew
        found = kernels(model.eval().to(dtype), x.to(dtype))
        own = [kernel for kernel in found if isinstance(kernel, kind)]
        last = own[-1].of if isinstance(own[-1], WinogradStage) else own[0]
        assert any(step.dtype in SHORT_FLOATS for step in last.epilogue.body)


def test_weights_under_autocast_are_packed_from_where_they_lie() -> None:
    model, x = layers()["linear"]
    model.eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = kernels(model, x)
    assert [type(kernel) for kernel in found] == [LoopKernel, GemmKernel, GemmKernel]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        eager = model(x)
        torch.testing.assert_close(weft.hybridize(model)(x), eager)


def test_a_changed_weight_is_packed_again() -> None:
    model, x = layers()["linear"]
    model.eval().to(torch.bfloat16)
    compiled = weft.hybridize(copy.deepcopy(model))
    x = x.bfloat16()
    with torch.no_grad():
        before = compiled(x)
        for one in (model, compiled):
            one[0].weight.mul_(2)
            one[2].bias.add_(1)
        after = compiled(x)
        torch.testing.assert_close(after, model(x))
    assert not torch.equal(before, after)


def test_an_encoder_has_few_kernels_besides_its_products() -> None:
    model, x = layers()["encoder"]
    found = kernels(model.eval().bfloat16(), x.bfloat16())
    assert sum(isinstance(kernel, GemmKernel) for kernel in found) == 4
    assert sum(isinstance(kernel, AttentionKernel) for kernel in found) <= 1
    assert len(found) <= 18


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_gradients_are_as_exact_as_eagers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = layers()["linear"]
    grads = {}
    for kind in (torch.float64, dtype, "weft"):
        own = dtype if kind == "weft" else kind
        model.to(own).zero_grad()
        if kind == "weft":
            weft.hybridize(model)
        model(x.to(own)).square().sum().backward()
        grads[kind] = [parameter.grad.double() for parameter in model.parameters()]
        model.to(dtype)  # the weights of all are rounded alike
    for exact, eager, got in zip(grads[torch.float64], grads[dtype], grads["weft"], strict=True):
        error, allowed = ((one - exact).abs().max() for one in (got, eager))
        assert error <= 2 * allowed + 4 * torch.finfo(dtype).eps * exact.abs().max()


def panels_of(model: nn.Module, x: torch.Tensor) -> list[str]:
    return [kernel.operands[1] for kernel in kernels(model, x) if isinstance(kernel, GemmKernel)]


@pytest.mark.usefixtures("pairs_do_not_pay")
def test_panels_for_few_rows_and_of_large_models_stay_short(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(96, 64).eval().bfloat16()
    x = torch.randn(40, 96).bfloat16()
    assert panels_of(model, x[:16]) == ["bf16"]
    assert panels_of(model, x) == ["f32"]
    monkeypatch.setattr("weft.plan.fuse.matmul.MOST_CACHED_BYTES", 1000)
    with torch.no_grad():
        graph = lift(weft.program(model, x).graph)
    [region] = find_regions(graph, frozenset(graph.inputs[1:]))
    [product] = [call.kernel for call in fuse(region, host_target()).plan.calls if isinstance(call.kernel, GemmKernel)]
    assert product.operands == ("f32", "bf16")


@pytest.fixture
def pairs_pay(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let products of pairs be chosen as on a processor that they pay on; plans of that are not kept."""
    monkeypatch.setattr(target, "FAST_PAIRS", frozenset({host_target().cpu}))
    with overrides(cache_dir=None):
        yield


@pytest.mark.skipif(not host_target().has("avx512bf16"), reason="this processor has no products of pairs")
@pytest.mark.usefixtures("pairs_pay")
@pytest.mark.parametrize("name", ["linear", "long", "encoder"])
def test_where_pairs_pay_both_operands_are_pairs(name: str) -> None:
    torch.manual_seed(0)
    model, x = layers()[name]
    model.eval().bfloat16()
    x = x.bfloat16()
    exact = copy.deepcopy(model).double()(x.double()).detach()
    products = [kernel for kernel in kernels(model, x) if isinstance(kernel, GemmKernel)]
    assert all(kernel.operands == ("bf16", "bf16") for kernel in products)
    close_to_eager(model, x, exact)


@pytest.mark.skipif(not host_target().has("avx512bf16"), reason="this processor has no products of pairs")
@pytest.mark.usefixtures("pairs_pay")
def test_where_pairs_pay_training_under_autocast_multiplies_pairs() -> None:
    model, x = layers()["linear"]
    found = []
    for run in (model, weft.hybridize(model)):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = run(x)
        out.float().square().sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("wide", [torch.float32, torch.float64, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(
    "types", [(torch.uint8, torch.int8), (torch.int8, torch.uint8), (torch.bfloat16,) * 2], ids=str
)
@pytest.mark.usefixtures("pairs_pay")
def test_products_of_converted_operands_are_of_the_type_that_they_were_converted_to(
    types: tuple[torch.dtype, torch.dtype], wide: torch.dtype
) -> None:
    left, right = torch.randint(-5, 6, (9, 13)).abs().to(types[0]), torch.randint(-5, 6, (13, 21)).to(types[1])

    def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left.to(wide) @ right.to(wide)

    assert torch.equal(weft.hybridize(product)(left, right), product(left, right))


@pytest.mark.parametrize("size", [(1, 2000, 40), (30, 300, 21), (20, 700, 300)], ids=str)
@pytest.mark.parametrize("across", [True, False])
def test_integers_that_are_handed_out_too_are_multiplied_exactly(size: tuple[int, int, int], across: bool) -> None:
    rows, inner, columns = size
    left = torch.randint(256, (rows, inner), dtype=torch.uint8)
    right = torch.randint(-128, 128, (columns, inner) if across else (inner, columns), dtype=torch.int8)

    def product(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide, other = left.int(), right.int()
        other = other.t() if across else other
        return wide, other, wide @ other, (wide @ other).float() * 0.5, left.int() @ other + other.sum(0)

    for got, expected in zip(weft.hybridize(product)(left, right), product(left, right), strict=True):
        assert torch.equal(got, expected)
