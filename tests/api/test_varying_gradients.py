"""Hybridized modules give gradients by one program for many sizes, as eager PyTorch gives them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.api.test_varying_sizes import poisoned
from tests.api.test_varying_steps import CASES
from torch import nn

import weft
from weft.api.varying import VaryingProgram
from weft.errors import UnsupportedError
from weft.runtime.varying_gradients import OneBackward
from weft.trace.lift import recurrent

__all__ = ["poisoned"]
OF_WORDS = {"encoder", "decoder", "tables"}  # whose inputs are whole numbers, without gradients
WAYS = [(name, False) for name in CASES] + [(name, True) for name in CASES if name not in OF_WORDS]


def differentiate(net: nn.Module, loss: Any, batch: tuple[torch.Tensor, ...], *, also_inputs: bool) -> list[Any]:
    """Output, loss and all gradients of a batch."""
    net.zero_grad()
    *given, target = batch
    given = [thing.clone().requires_grad_(also_inputs and thing.is_floating_point()) for thing in given]
    output = net(*given)
    found = loss(output, target)
    found.backward()
    return [output.detach(), found.detach(), *(thing.grad for thing in (*given, *net.parameters()))]


def agree(ours: list[Any], theirs: list[Any]) -> None:
    """Compare tensors, with their strides."""
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert one is None or one.stride() == other.stride()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("name", "also_inputs"), WAYS, ids=[f"{'inputs too' if also else 'weights'}-{name}" for name, also in WAYS]
)
def test_gradients_are_eager_s_for_all_sizes(name: str, also_inputs: bool) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    net = case.make()
    other = copy.deepcopy(net)
    hybrid = weft.hybridize(net)
    for size in (*case.sizes, *case.sizes):
        batch = case.batch(*size)
        agree(
            differentiate(net, case.loss, batch, also_inputs=also_inputs),
            differentiate(other, case.loss, batch, also_inputs=also_inputs),
        )
    text = str(weft.explain(hybrid))
    assert "1 program," in text
    assert "do not vary" not in text
    assert 1 <= text.count("for sizes") <= 4


@pytest.mark.parametrize("offset", [1, -2])
def test_a_diagonal_s_length_is_the_smaller_of_two_sizes(offset: int) -> None:
    hybrid = weft.hybridize(lambda x: torch.diag_embed(x, offset) * 2)
    for size in ((5, 4), (8, 6), (7, 5), (6, 9)):
        x = torch.randn(size, requires_grad=True)
        hybrid(x).sum().backward()
        assert torch.equal(x.grad, torch.full(size, 2.0))
    assert "for sizes" in str(weft.explain(hybrid))


@pytest.mark.parametrize("name", ["det", "slogdet", "solve"])
def test_operators_are_told_whether_an_operand_is_contiguous_as_in_eager(name: str) -> None:
    """The factors that they keep for the backward are those of the matrix or of its transpose, by that."""

    def code(x: torch.Tensor) -> torch.Tensor:
        corner = x[:, :3, :3]
        found = torch.linalg.solve(corner, x[:, :3, :2]) if name == "solve" else getattr(torch.linalg, name)(corner)
        return found[1] if name == "slogdet" else found

    hybrid = weft.hybridize(code)
    for size in ((2, 5, 4), (3, 6, 7), (2, 3, 3), (4, 5, 8)):
        x = torch.randn(size)
        x[:, :3, :3] += 4 * torch.eye(3)
        grads = []
        for function in (code, hybrid):
            given = x.clone().requires_grad_()
            function(given).sum().backward()
            grads.append(given.grad)
        agree(grads[1:], grads[:1])
    assert "for sizes" in str(weft.explain(hybrid))


@pytest.mark.usefixtures("poisoned")
def test_results_that_the_loss_does_not_use_get_no_gradient() -> None:
    def code(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(x @ w)
        return hidden.sum(0), hidden * 2

    hybrid = weft.hybridize(code)
    w = torch.randn(4, 3, requires_grad=True)
    for number, size in enumerate((8, 5, 7, 3, 8, 2, 16, 11)):
        x = torch.randn(size, 4)
        grads = []
        for function in (code, hybrid):
            w.grad = None
            function(x, w)[number % 2].sum().backward()
            assert w.grad is not None
            grads.append(w.grad)
        torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)
    assert str(weft.explain(hybrid)).count("for sizes") == 1


@pytest.mark.usefixtures("poisoned")
def test_views_of_inputs_and_of_results_are_views_at_every_size() -> None:
    def code(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        made = x * 2
        return x[1:], made, made.view(-1)

    hybrid = weft.hybridize(code)
    with torch.no_grad():
        for size in (8, 5, 7, 3):
            x = torch.randn(size, 4)
            part, made, row = hybrid(x)
            assert torch.equal(part, x[1:])
            assert part._base is x
            assert torch.equal(row, made.view(-1))
            row[0] = 7
            assert made[0, 0] == 7
    assert list(hybrid.varying)


def test_a_tensor_that_is_changed_before_its_backward_is_told() -> None:
    hybrid = weft.hybridize(lambda x: (x * x).sum(1))
    for size in (8, 5, 7):
        x = torch.randn(size, 4, requires_grad=True)
        given = x * 1
        found = hybrid(given)
        given.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            found.sum().backward()


@pytest.mark.usefixtures("poisoned")
def test_the_last_word_of_each_text_has_a_gradient_where_it_is() -> None:
    """Elements of rows are added to zeros that are one dimension of both sizes."""

    def code(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x[torch.arange(x.shape[0]), lengths - 1]

    hybrid = weft.hybridize(code)
    for batch, length in ((5, 9), (7, 12), (3, 15), (9, 24), (16, 2)):
        x, lengths = torch.randn(batch, length, 4, requires_grad=True), torch.randint(1, length + 1, (batch,))
        ours, theirs = (torch.autograd.grad(one(x, lengths).square().sum(), x)[0] for one in (hybrid, code))
        torch.testing.assert_close(ours, theirs)
    assert list(hybrid.varying)


@pytest.mark.usefixtures("poisoned", "by_library")
def test_slices_that_are_whole_at_the_largest_sizes_are_none_at_others() -> None:
    def code(x: torch.Tensor) -> torch.Tensor:
        return x[:, : x.shape[1] // 4 * 4] * 2

    hybrid, given = weft.hybridize(code), weft.hybridize(lambda x: x[:, : x.shape[1] // 4 * 4] + 0 * x.sum())
    part = weft.hybridize(lambda x: (x * 2).narrow(1, 0, x.shape[1] // 4 * 4))
    for length in (16, 9, 13, 8, 14, 5):
        x = torch.randn(3, length)
        torch.testing.assert_close(hybrid(x), code(x))
        torch.testing.assert_close(given(x), x[:, : length // 4 * 4] + 0 * x.sum())
        found, right = part(x), (x * 2).narrow(1, 0, length // 4 * 4)
        assert torch.equal(found, right)
        assert found.stride() == right.stride()
    assert list(hybrid.varying)


@pytest.mark.usefixtures("poisoned", "by_library")
def test_a_slice_of_one_row_is_told_from_one_of_all_there_is() -> None:
    """The last word of texts of one word, as generation asks for it, of batches of any size."""

    def code(x: torch.Tensor) -> torch.Tensor:
        return (x * 2)[:, slice(-1, None), :] + 1

    hybrid = weft.hybridize(code)
    for batch in (3, 5, 7, 2):
        x = torch.randn(batch, 1, 8)
        torch.testing.assert_close(hybrid(x), code(x))
    assert list(hybrid.varying), hybrid.varying.refusals


def _without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x * 2
    return (x * scale).sin()


def _from_the_largest(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        largest = x.max(1, keepdim=True).values
    return (x - largest).exp() * (x - largest)


def _kept_average(x: torch.Tensor) -> torch.Tensor:
    average = torch.zeros(4)
    with torch.no_grad():
        average.mul_(0.9).add_(x.mean(0) * x[0])
    return (x * average).tanh()


def _of_views(x: torch.Tensor) -> torch.Tensor:
    doubled = x * 2
    with torch.no_grad():
        first = doubled[:, :1] * x
    return (doubled * first).cos()


def _mentioning_a_hook(x: torch.Tensor) -> torch.Tensor:
    found = x.sin()
    if found.shape[1] == 1:
        found.register_hook(lambda gradient: gradient * 2)
    return found * x


WITHOUT_GRADIENTS = (_without_gradients, _from_the_largest, _kept_average, _of_views, _mentioning_a_hook)


@pytest.mark.parametrize("function", WITHOUT_GRADIENTS, ids=lambda function: function.__name__)
def test_what_is_computed_without_gradients_is_a_constant_also_where_a_gradient_is_differentiated_again(
    function: Callable[..., Any],
) -> None:
    net = weft.hybridize(functools.partial(function))
    for rows in (3, 5, 4, 6, 5):
        found = []
        for one in (function, net):
            x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)).requires_grad_()
            (slope,) = torch.autograd.grad(one(x).pow(2).sum(), x, create_graph=True)
            found.append((slope.detach(), *torch.autograd.grad(slope.pow(2).sum(), x)))
            with torch.autocast("cpu"):
                one(x).pow(2).sum().backward()
            found[-1] += (x.grad,)
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    assert "for sizes 2 to" in str(weft.explain(net))


def _written_without_gradients(x: torch.Tensor) -> torch.Tensor:
    found = x * 2
    with torch.no_grad():
        found.mul_(3)
    return found * x


def _written_as_data(x: torch.Tensor) -> torch.Tensor:
    found = x * 2
    found.detach().mul_(3)
    return found * x


@pytest.mark.parametrize("function", [_written_without_gradients, _written_as_data])
def test_what_is_written_behind_autograds_back_has_no_second_gradient_for_many_sizes(
    function: Callable[..., Any],
) -> None:
    net = weft.hybridize(functools.partial(function))
    for rows in (3, 5, 4):
        found = []
        for one in (function, net):
            x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)).requires_grad_()
            result = one(x).pow(2).sum()
            found.append(torch.autograd.grad(result, x, retain_graph=True))
        torch.testing.assert_close(found[1], found[0])
    with pytest.raises(UnsupportedError, match="for many sizes is differentiated again"):
        torch.autograd.grad(result, x, create_graph=True)


def test_arguments_that_no_gradient_reaches_have_none_where_a_gradient_is_differentiated_again() -> None:
    def function(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (x.detach() * x).sin() + other.detach()

    net = weft.hybridize(function)
    for rows in (3, 5, 4):
        found = []
        for one in (function, net):
            x, other = (torch.ones(rows, 4).mul(rows + number).requires_grad_() for number in range(2))
            (slope,) = torch.autograd.grad(one(x, other).pow(2).sum(), x, create_graph=True)
            with torch.autocast("cpu"):
                one(x, other).sum().backward()
            found.append([slope.detach(), x.grad, other.grad])
        torch.testing.assert_close(found[1], found[0])


class Averaged(nn.Module):
    """Multiplies by an average that it keeps, as it was before the call or as it is after it."""

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self.before = before
        self.average = nn.Buffer(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.average.clone()
        with torch.no_grad():
            self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return torch.tanh(x * (scale if self.before else self.average.clone()))


def _penalty(net: nn.Module, rows: int) -> list[Any]:
    net.zero_grad()
    generator = torch.Generator().manual_seed(rows)
    first, x = (torch.randn(rows, 4, generator=generator).requires_grad_() for _ in range(2))
    result = net(x)
    net(first)  # which writes the averages again
    (slope,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    slope.pow(2).sum().backward()
    return [slope.detach(), x.grad, *(one.grad for one in net.parameters()), *(one.clone() for one in net.buffers())]


def test_norms_that_keep_averages_have_second_gradients_for_many_sizes() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    ours = weft.hybridize(copy.deepcopy(net))
    for rows in (4, 6, 5, 3, 6):
        torch.testing.assert_close(_penalty(ours, rows), _penalty(net, rows), rtol=1e-4, atol=1e-4)
    assert "for sizes 2 to" in str(weft.explain(ours))


@pytest.mark.parametrize("before", [True, False])
def test_what_is_computed_from_a_buffer_that_is_written_is_not_computed_from_what_it_holds_later(
    *, before: bool
) -> None:
    net = Averaged(before=before)
    ours = weft.hybridize(copy.deepcopy(net))
    for rows in (4, 6, 5):
        try:
            found = _penalty(ours, rows)
        except UnsupportedError:
            assert rows != 4
            break
        torch.testing.assert_close(found, _penalty(net, rows), rtol=1e-4, atol=1e-4)
    else:
        pytest.fail("a gradient that is differentiated again would read what the buffer holds now")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_gradients_of_steps_that_vary_are_not_written_step_by_step(
    kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = kind(16, 16, batch_first=True)
    hybrid = weft.hybridize(net.forward)
    hybrid(torch.randn(2, 5, 16))[0].sum().backward()
    written: list[Any] = []
    usual = recurrent.hidden_before
    monkeypatch.setattr(recurrent, "hidden_before", lambda *given: written.append(given) or usual(*given))
    net.zero_grad()
    x = torch.randn(2, 9, 16)
    hybrid(x)[0].square().sum().backward()
    assert [*hybrid.varying]
    assert written == []  # by the first call it was, of 5 steps, before this is noted
    found = [parameter.grad.clone() for parameter in net.parameters()]
    net.zero_grad()
    net(x)[0].square().sum().backward()
    for ours, parameter in zip(found, net.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad)


def test_a_program_that_is_not_kept_gets_no_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    usual = OneBackward.prepare_backward
    monkeypatch.setattr(OneBackward, "prepare_backward", lambda one: made.append(one) or usual(one))
    answers = iter((False, True))
    monkeypatch.setattr(VaryingProgram, "ends_with_calls", lambda *_: next(answers))
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
    hybrid = weft.hybridize(net)
    for rows in (3, 5):
        x = torch.randn(rows, 4, requires_grad=True)
        hybrid(x).sum().backward()
    assert len(made) == 1, "that of the first of two programs is made in vain"
