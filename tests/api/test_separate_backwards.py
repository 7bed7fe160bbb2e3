"""Results that have nothing in common that saves something are differentiated one after the other, as in eager."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import weft


class Net(nn.Module):
    """Gives two results of one layer, one of another layer, and one of no layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared, self.alone = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.shared(x).tanh()
        return hidden[:, 0].sum(), (hidden * 2).sum(), self.alone(x).exp(), x * 3


def seen(net: Net, x: torch.Tensor) -> list[Any]:
    x.grad = None
    net.zero_grad()
    found: list[Any] = []
    first, second, third, last = net(x)
    third.retain_grad()
    for part in (first + second, third.pow(2).sum(), last.sum()):
        part.backward()
        found += [x.grad.clone(), *(None if one.grad is None else one.grad.clone() for one in net.parameters())]  # type: ignore[union-attr]
    found.append(third.grad)
    first, second, third, last = net(x)
    first.backward()
    for part in (second, third.sum(), third.sum()):
        try:
            part.backward()
        except RuntimeError:
            found.append("raised")
        else:
            found.append("answered")
    (again,) = torch.autograd.grad(last.pow(2).sum(), x, create_graph=True)
    found += [again.detach(), *torch.autograd.grad(again.sum(), x)]
    first, second, third, last = net(x)
    sum((first, second, third.sum(), last.pow(2).sum())).backward()  # type: ignore[union-attr]
    return [*found, x.grad]


def assert_the_same(found: list[Any], expected: list[Any]) -> None:
    assert [one for one in found if isinstance(one, str)] == [one for one in expected if isinstance(one, str)]
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(ours, theirs)
        else:
            assert ours == theirs


def test_backwards_one_after_the_other() -> None:
    net, x = Net(), torch.randn(2, 3, requires_grad=True)
    expected = seen(net, x)
    weft.hybridize(net)
    for _ in range(4):
        assert_the_same(seen(net, x), expected)


@pytest.mark.slow
def test_backwards_one_after_the_other_where_sizes_vary() -> None:
    net, hybrid = Net(), weft.hybridize(Net())
    for size in (2, 3, 4, 5, 6):
        x = torch.randn(size, 3, requires_grad=True)
        assert_the_same(seen(hybrid, x), seen(net, x))


def test_two_optimizers_of_two_losses() -> None:
    def losses(net: Net) -> list[float]:
        optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in (net.shared, net.alone)]
        found = []
        for call in range(5):
            first, _, third, _ = net(torch.full((2, 3), 0.1 * call))
            for loss, optimizer in zip((first, third.sum()), optimizers, strict=True):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(float(loss.detach()))
        return found

    assert losses(weft.hybridize(Net())) == pytest.approx(losses(Net()))


def test_results_are_let_go_with_their_nodes() -> None:
    net, x = weft.hybridize(Net()), torch.ones(2, 3, requires_grad=True)
    net(x)
    gc.disable()
    try:
        results = net(x)
        watched = [weakref.ref(one) for one in (*results, results[2].grad_fn)]
        del results
        assert [one() for one in watched] == [None] * len(watched)
    finally:
        gc.enable()


def test_several_results_are_complex_and_hooks_of_the_unused_see_nothing() -> None:
    def spectrum(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = torch.fft.rfft(x.sin())
        return found * found, found.abs(), found.exp(), torch.fft.irfft(found.sin(), n=x.shape[-1])

    def run(of: Any, size: int) -> list[torch.Tensor]:
        torch.manual_seed(size)
        x = torch.randn(2, size, dtype=torch.float64, requires_grad=True)
        seen: list[torch.Tensor] = []
        whole, sizes, double, back = of(x)
        double.register_hook(seen.append)
        whole.retain_grad()
        (sizes.sum() + back.pow(2).sum()).backward()
        assert not seen
        assert x.grad is not None
        return [whole.detach(), double.detach(), back.detach(), x.grad, *([] if whole.grad is None else [whole.grad])]

    hybrid = weft.hybridize(spectrum)
    for size in (6, 8, 6, 7):
        for ours, theirs in zip(run(hybrid, size), run(spectrum, size), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_results_that_have_nothing_in_common_but_a_computed_argument_are_differentiated_one_by_one() -> None:
    def parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), x.exp()

    hybrid = weft.hybridize(parts)
    for _ in range(3):
        x = torch.randn(3, requires_grad=True)
        found = []
        for function in (parts, hybrid):
            x.grad = None
            for part in function(x + 1):
                part.sum().backward()
            found.append(x.grad)
        torch.testing.assert_close(found[1], found[0])


def _apart(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first = (x * 2).sin()
    second = first.detach() + x.exp()
    return second, (x * 3).cos(), first


def _linked(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = x.tanh()
    first, second = hidden.sin(), hidden.exp()
    return first.sum(), hidden, second, first


@pytest.mark.parametrize("function", [_apart, _linked])
def test_hooks_of_results_are_called_in_the_order_of_eager(function: Any) -> None:
    orders = []
    for one in (function, weft.hybridize(functools.partial(function))):
        called: list[int] = []
        results = one(torch.randn(3, requires_grad=True))
        for number, result in enumerate(results):
            result.register_hook(lambda gradient, number=number, called=called: called.append(number))
        sum(result.sum() for result in results).backward()  # type: ignore[union-attr]
        orders.append(called)
    assert orders[0] == orders[1]


class Linked(nn.Module):
    """A hidden state, two results that are computed from it, one of which its gradient does not reach, and a third."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.policy, self.value, self.judge = (
            nn.Linear(3, 4),
            nn.Linear(4, 2),
            nn.Linear(4, 1),
            nn.Linear(4, 1),
        )

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.body(x).tanh()
        return self.policy(hidden).exp(), self.value(hidden.detach()).pow(2), hidden, self.judge(hidden.detach()).exp()


def backwards_of_linked(net: Any, x: torch.Tensor, way: str) -> list[Any]:
    policy, value, hidden, judged = net(x)
    found: list[Any] = []
    if way == "kept":
        hidden.retain_grad()
    if way == "hooked":
        hidden.register_hook(lambda grad: found.append(grad.clone()) or grad * 2)
    parts = {"policy": policy, "value": value, "hidden": hidden, "judged": judged}
    orders = {
        "last first": ["judged", "value", "policy"],
        "twice": ["value", "value", "policy", "policy"],
        "below": ["value", "policy", "hidden"],
        "hidden first": ["hidden", "judged"],
    }
    for name in orders.get(way, ["policy", "value", "judged"]):
        try:
            parts[name].sum().backward(retain_graph=way == "retained")
        except RuntimeError as error:
            found.append("second time" in str(error))
        found += [None if one.grad is None else one.grad.clone() for one in (x, *net.parameters())]
    if way == "retained":
        policy.sum().backward()
        found.append(x.grad)
    if way == "again":
        policy, value, hidden, judged = net(x)
        value.sum().backward()
        (again,) = torch.autograd.grad(policy.pow(2).sum(), x, create_graph=True)
        found += [again.detach(), *torch.autograd.grad(again.sum(), x)]
    if way == "asked":
        policy, value, hidden, judged = net(x)
        judged.sum().backward()
        found += torch.autograd.grad(policy.sum(), hidden)
    return [*found, hidden.grad if way == "kept" else None]


WAYS = ["first", "last first", "twice", "below", "hidden first", "retained", "kept", "hooked", "again", "asked"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore")
def test_results_behind_detach_beside_what_they_are_computed_from(way: str) -> None:
    hybrid, eager = weft.hybridize(Linked()), Linked()
    for rows in (5, 5, 5, 5):
        x = torch.randn(rows, 3, requires_grad=True)
        ours = x.detach().clone().requires_grad_()
        hybrid.zero_grad()
        eager.zero_grad()
        assert_the_same(backwards_of_linked(hybrid, ours, way), backwards_of_linked(eager, x, way))
    assert not hybrid.forward.rare.calls


@pytest.mark.parametrize("way", ["first", "last first", "twice", "kept", "hooked", "asked"])
@pytest.mark.filterwarnings("ignore")
def test_results_behind_detach_with_sizes_that_vary(way: str) -> None:
    hybrid, eager = weft.hybridize(Linked()), Linked()
    for rows in (5, 9, 7, 12, 6):
        x = torch.randn(rows, 3, requires_grad=True)
        ours = x.detach().clone().requires_grad_()
        hybrid.zero_grad()
        eager.zero_grad()
        assert_the_same(backwards_of_linked(hybrid, ours, way), backwards_of_linked(eager, x, way))
    assert [*hybrid.forward.varying]
