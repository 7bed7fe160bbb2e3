"""Layers that `quantize_dynamic` made are programs, and give what PyTorch's own operators give."""

import copy
import warnings

import pytest
import torch
from torch import nn

import weft

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.ao.quantization import (
        default_dynamic_qconfig,
        float16_dynamic_qconfig,
        per_channel_dynamic_qconfig,
        quantize_dynamic,
    )

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
QUANTISED = {"by tensor": default_dynamic_qconfig, "by output": per_channel_dynamic_qconfig}


def quantised(net: nn.Module, kind: str = "by tensor") -> nn.Module:
    return quantize_dynamic(net.eval(), {nn.Linear: QUANTISED[kind]})


def small() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(65, 48), nn.ReLU(), nn.Linear(48, 9, bias=False))


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("shape", [(1, 65), (7, 65), (2, 3, 65)], ids=str)
@torch.no_grad()
def test_answers_are_eagers(kind: str, shape: tuple[int, ...]) -> None:
    net = quantised(small(), kind)
    for x in (
        torch.randn(shape),
        torch.rand(shape) + 1,
        -torch.rand(shape),
        torch.zeros(shape),
        torch.randn(shape) / 1e7,
    ):
        expected = net(x)
        compiled = weft.hybridize(copy.deepcopy(net), whole=True)
        torch.testing.assert_close(compiled(x), expected, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_all_of_it_is_machine_code_with_products_of_integers() -> None:
    program = weft.program(quantised(small()), torch.randn(5, 65))
    assert "0 calls of PyTorch's operators" in program.summary()
    summaries = [call.kernel.summary for call in program.plan.regions[0].calls]
    assert sum("u8 and i8" in summary for summary in summaries) == 2


@torch.no_grad()
def test_weights_that_are_packed_anew_are_seen() -> None:
    net, other = weft.hybridize(quantised(small()), whole=True), quantised(nn.Sequential(*small()).apply(negate))
    x = torch.randn(4, 65)
    before = net(x)
    net.load_state_dict(other.state_dict())
    torch.testing.assert_close(net(x), other(x))
    assert not torch.equal(net(x), before)


@torch.no_grad()
def negate(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.weight.neg_()


@torch.no_grad()
def test_many_sizes_run_one_program() -> None:
    net = quantised(small())
    compiled = weft.hybridize(copy.deepcopy(net), whole=True)
    for rows in (3, 5, 11, 2, 30, 17):
        x = torch.randn(rows, 65)
        torch.testing.assert_close(compiled(x), net(x))


@torch.no_grad()
def test_a_layer_of_float16_is_left_to_pytorch() -> None:
    net = quantize_dynamic(small().eval(), {nn.Linear: float16_dynamic_qconfig}, dtype=torch.float16)
    x = torch.randn(3, 65)
    torch.testing.assert_close(weft.hybridize(copy.deepcopy(net), whole=False)(x), net(x))


@torch.no_grad()
def test_no_rows_give_no_rows() -> None:
    net = quantised(small())
    assert weft.hybridize(net)(torch.zeros(2, 65)).shape == (2, 9)


@pytest.mark.parametrize("sizes", [(32, 64, 24), (1, 16, 8), (17, 63, 33), (2, 1, 1), (5, 128, 1), (0, 8, 8)], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_bytes_with_signs_are_exact(sizes: tuple[int, int, int], transposed: bool) -> None:
    rows, inner, columns = sizes
    torch.manual_seed(rows)
    shape = (columns, inner) if transposed else (inner, columns)
    weight = torch.randint(-128, 128, shape, dtype=torch.int8)
    right = weight.t() if transposed else weight
    by_weight = weft.hybridize(lambda x: torch._int_mm(x, right))
    by_given = weft.hybridize(torch._int_mm)
    for x in (torch.randint(-128, 128, (rows, inner), dtype=torch.int8), torch.full((rows, inner), -128).char()):
        expected = (x.long() @ right.long()).int()
        assert torch.equal(by_weight(x), expected)
        assert torch.equal(by_given(x, right), expected)


def test_bytes_of_weights_that_operators_read_are_handed_out() -> None:
    weight = torch.randint(-128, 128, (6, 4), dtype=torch.int8)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ weight.t().float(), torch.histc((weight.t() + 1).float(), 4), (weight.t() + 1)

    hybrid, x = weft.hybridize(function, whole=True), torch.randn(3, 4)
    for found, expected in zip(hybrid(x), function(x), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@torch.no_grad()
def test_weights_of_bytes_are_read_as_such(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(rows)
    weight, scale, x = torch.randint(0, 127, (37, 66), dtype=dtype), torch.rand(37), torch.randn(rows, 66)
    hybrid = weft.hybridize(lambda x: (x @ weight.to(x.dtype).t()) * scale)
    for _ in range(2):
        exact = (x.double() @ weight.double().t()) * scale.double()
        torch.testing.assert_close(hybrid(x).double(), exact, rtol=1e-5, atol=1e-2)
        weight.add_(1)
