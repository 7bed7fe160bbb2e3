"""Views with the conjugate or the negative bit, taken inside programs, are read and written as eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.ways import Work, assert_every_way

import weft

F = torch.nn.functional


def whole_imag_written(z: torch.Tensor) -> Any:
    c = z.clone().conj()
    c.imag.mul_(2)
    return c, c.imag + 1


def row_written(z: torch.Tensor) -> Any:
    c = z.clone().conj()
    c[0] = 1 + 2j
    return c, c.imag * 2


def added_through(x: torch.Tensor) -> Any:
    y = x.clone()
    view = y._neg_view()
    view.add_(1)
    return y, view + 0


def set_through(x: torch.Tensor) -> Any:
    y = x.clone()
    view = y._neg_view()
    view[0] = 7
    return y, view * 2


def copied_from(x: torch.Tensor) -> Any:
    y = torch.zeros(3, 4)
    y.copy_(x._neg_view())
    return y


def copied_into(x: torch.Tensor) -> Any:
    y = torch.zeros(3, 4)._neg_view()
    y.copy_(x)
    return y + 1, y


OF_COMPLEX: dict[str, Callable[[torch.Tensor], Any]] = {
    "imag": lambda z: z.conj().imag,
    "imag + 1": lambda z: z.conj().imag + 1,
    "real": lambda z: z.conj().real * 2,
    "view_as_real": lambda z: torch.view_as_real(z.conj().resolve_conj()) * 2,
    "transposed": lambda z: z.conj().imag.T + 1,
    "row": lambda z: z.conj().imag[1] + 1,
    "rows": lambda z: z.conj().imag[[0, 1]],
    "cat": lambda z: torch.cat([z.conj().imag, z.imag]),
    "stack": lambda z: torch.stack([z.conj().imag, z.imag]),
    "matmul": lambda z: z.conj().imag @ z.real.T,
    "sum": lambda z: z.conj().imag.sum(),
    "softmax": lambda z: z.conj().imag.softmax(-1),
    "resolved": lambda z: z.conj().imag.resolve_neg(),
    "resolved + 1": lambda z: z.conj().imag.resolve_neg() + 1,
    "clone": lambda z: z.conj().imag.clone(),
    "contiguous": lambda z: z.conj().imag.contiguous() * 2,
    "double": lambda z: z.conj().imag.double() * 2,
    "asked": lambda z: (z.conj().imag.is_neg(), z.conj().is_conj(), z.imag.is_neg()),
    "reshape": lambda z: z.conj().imag.T.reshape(-1) * 2,
    "expand": lambda z: z.conj().imag[0].expand(3, 4) * 2,
    "einsum": lambda z: torch.einsum("ij,kj->ik", z.conj().imag, z.conj().real),
    "adjoint": lambda z: z.adjoint() @ z,
    "made inside": lambda z: torch.view_as_complex(torch.view_as_real(z) * 2).conj().imag * 3,
    "whole imag written": whole_imag_written,
    "row written": row_written,
}
OF_REAL: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda x: (x + 1)._neg_view(),
    "twice": lambda x: (x + 1)._neg_view()._neg_view() * 2,
    "slice": lambda x: (x + 1)._neg_view()[1:],
    "exp of slice": lambda x: (x + 1)._neg_view()[1:].exp(),
    "where": lambda x: torch.where(x > 0, x._neg_view(), x),
    "unbind": lambda x: sum(x._neg_view().unbind(0)),
    "split": lambda x: [part * 2 for part in x._neg_view().split(2, 1)],
    "chunk": lambda x: (x * 2)._neg_view().chunk(2, 1),
    "as_strided": lambda x: x._neg_view().as_strided((2, 2), (1, 2)) + 1,
    "detach": lambda x: x._neg_view().detach() + 1,
    "bits": lambda x: x._neg_view().resolve_neg().view(torch.int32) + 1,
    "neg": lambda x: -(x._neg_view()),
    "linear": lambda x: F.linear(x._neg_view(), x),
    "conv": lambda x: F.conv1d(x._neg_view()[None], x[None]),
    "masked_fill": lambda x: x._neg_view().masked_fill(x > 0, 3.0),
    "new": lambda x: (torch.zeros_like(x._neg_view()) + 1, torch.empty_like(x._neg_view()).is_neg()),
    "sort": lambda x: x._neg_view().sort(),
    "roll": lambda x: x._neg_view().roll(1),
    "tril": lambda x: x._neg_view().tril(),
    "added through": added_through,
    "set through": set_through,
    "copied from": copied_from,
    "copied into": copied_into,
}
FUNCTIONS = [(torch.complex64, name, function) for name, function in OF_COMPLEX.items()]
FUNCTIONS += [(torch.float32, name, function) for name, function in OF_REAL.items()]
CASES = [(*case, bool(number % 2)) for number, case in enumerate(FUNCTIONS)]  # every other one carries a gradient


@pytest.mark.parametrize(("dtype", "name", "function", "gradient"), CASES, ids=[case[1] for case in CASES])
def test_views_with_lazy_bits_hold_what_eager_reads(
    dtype: torch.dtype, name: str, function: Callable[[torch.Tensor], Any], gradient: bool
) -> None:
    def make() -> Work:
        given = torch.randn(3, 4, dtype=dtype).requires_grad_(gradient)
        return Work.repeated(function, given, calls=2)

    del name
    assert_every_way(make)


@pytest.mark.parametrize("again", [False, True])
def test_a_gradient_whose_memory_holds_the_other_sign_comes_in_as_it_is(again: bool) -> None:
    def gradients(function: Any) -> Any:
        x = torch.linspace(0.1, 1, 6).reshape(2, 3).requires_grad_()
        found = torch.autograd.grad(function(x), x, torch.ones(2, 3)._neg_view(), create_graph=again)
        return [*found, *(torch.autograd.grad(found[0].sum(), x) if again else ())]

    hybrid = weft.hybridize(lambda x: x.tanh() * x)
    for _ in range(2):
        torch.testing.assert_close(gradients(hybrid), gradients(lambda x: x.tanh() * x))


GIVING_CONJUGATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "adjoint": lambda x: x.to(torch.complex64).mH,
    "row": lambda x: torch.complex(x, x + 1).conj()[0],
    "doubled": lambda x: torch.complex(x, x) * 2,  # its gradients are given as conjugates below
}


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("function", GIVING_CONJUGATES.values(), ids=GIVING_CONJUGATES)
def test_a_gradient_whose_memory_holds_conjugates_comes_in_as_it_is(
    function: Callable[[torch.Tensor], torch.Tensor], again: bool
) -> None:
    def gradients(function: Any) -> Any:
        x = torch.linspace(0.1, 1, 6).reshape(2, 3).requires_grad_()
        y = function(x)
        given = torch.arange(y.numel()).reshape(y.shape) * (1 + 2j)
        found = torch.autograd.grad(y, x, given.conj(), create_graph=again, retain_graph=True)
        plain = torch.autograd.grad(y, x, given, create_graph=again, retain_graph=True)
        return [found[0], plain[0], torch.autograd.grad((y * y.conj()).real.sum(), x, create_graph=again)[0]]

    hybrid = weft.hybridize(function)
    for _ in range(2):
        torch.testing.assert_close(gradients(hybrid), gradients(function))
