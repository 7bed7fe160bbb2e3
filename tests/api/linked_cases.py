"""Functions that give results computed from one another, and what people ask about these results' gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Function = Callable[[torch.Tensor], Any]


class Net(nn.Module):
    """Layers for all functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.shared = nn.Parameter(torch.randn(4, 4))
        self.kept: list[torch.Tensor] = []


def chain(net: Net, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x))
    return net.third(h).exp().sum(), h


def first_given(net: Net, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x))
    return {"h": h, "rest": [net.third(h).exp().sum()]}


def three(net: Net, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x))
    g = torch.sigmoid(net.second(h)) + h
    return net.third(g).exp().sum(), g, h


def skip(net: Net, x: torch.Tensor) -> Any:
    a = net.first(x)
    h = torch.tanh(a)
    return (net.second(h) * a).exp().mean() + (x * h).sum(), h


def shared_weight(net: Net, x: torch.Tensor) -> Any:
    h = torch.tanh(x @ net.shared)
    return (h @ net.shared.t()).exp().sum(), h


def heads(net: Net, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x))
    return net.third(h).exp().sum() + 0, h, net.second(h).sin().sum()


def viewed(net: Net, x: torch.Tensor) -> Any:
    h = net.first(x).view(-1, 2, 2).transpose(1, 2)
    return h.exp().sum() + net.third(h.reshape(-1, 4)).sin().sum(), h


def row(net: Net, x: torch.Tensor) -> Any:
    whole = torch.tanh(net.first(x))
    h = whole[:, :2]
    return (h.exp().sum() + whole.sin().sum()), h, whole


def base_of_view(net: Net, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x))
    v = h.view(-1)
    return v.exp().sum(), h, v


def twice(net: Net, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x))
    return net.third(h).exp().sum(), h, h


def written(net: Net, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x)) * 2
    h += net.second(x)
    return net.third(h).exp().sum(), h


def split(net: Net, x: torch.Tensor) -> Any:
    h, g = net.first(x).exp().split(2, 1)
    return (h.sin() * g.cos()).exp().sum(), h, g


def cell(net: Net, x: torch.Tensor) -> Any:
    values, h = net.first(x).sort(dim=1)
    return values.exp().sum(), values * net.third(values), h


def detached(net: Net, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x))
    return net.second(h.detach()).exp().sum(), h


def of_input(net: Net, x: torch.Tensor) -> Any:
    h = x[:, 1:]
    return net.third(torch.cat([h.exp(), h[:, :1]], 1)).sin().sum(), h


def deep(net: Net, x: torch.Tensor) -> Any:
    states = [torch.tanh(net.first(x))]
    for _ in range(4):
        states.append(states[-1] + torch.tanh(net.second(states[-1])))
    return net.third(states[-1]).exp().sum(), states[2], tuple(states)


def kept(net: Net, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x))
    net.kept.append(h)
    return net.third(h).exp().sum(), net.kept.pop()


FUNCTIONS = {
    function.__name__: function
    for function in (
        chain, first_given, three, skip, shared_weight, heads, viewed, row, base_of_view, twice, written, split, cell,
        detached, of_input, deep, kept,
    )
}  # fmt: skip


def _both(results: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(results, dict):
        return results["rest"][0], results["h"]
    return results[0], results[1]


def plain(run: Function, x: torch.Tensor) -> Any:
    loss, _ = _both(run(x))
    loss.backward()
    return loss


def retained(run: Function, x: torch.Tensor) -> Any:
    loss, h = _both(run(x))
    h.retain_grad()
    loss.backward()
    return h.grad


def asked(run: Function, x: torch.Tensor) -> Any:
    loss, h = _both(run(x))
    return torch.autograd.grad(loss, h, allow_unused=True)


def asked_with_input(run: Function, x: torch.Tensor) -> Any:
    loss, h = _both(run(x))
    return torch.autograd.grad(loss, [h, x], allow_unused=True)


def into(run: Function, x: torch.Tensor) -> Any:
    loss, h = _both(run(x))
    loss.backward(inputs=[h])
    return h.grad


def into_both(run: Function, x: torch.Tensor) -> Any:
    loss, h = _both(run(x))
    loss.backward(inputs=[x, h])
    return h.grad


def seen(run: Function, x: torch.Tensor) -> Any:
    loss, h = _both(run(x))
    found: list[torch.Tensor] = []
    h.register_hook(found.append)
    loss.backward()
    return found


def seen_and_dropped(run: Function, x: torch.Tensor) -> Any:
    loss, h = _both(run(x))
    found: list[torch.Tensor] = []
    h.register_hook(found.append)
    del h
    loss.backward()
    return found


def doubled(run: Function, x: torch.Tensor) -> Any:
    loss, h = _both(run(x))
    h.register_hook(lambda gradient: gradient * 2)
    loss.backward()


def replaced(run: Function, x: torch.Tensor) -> Any:
    loss, h = _both(run(x))
    h.register_hook(lambda gradient: (gradient / 0).nan_to_num(1.0, 2.0, 3.0))
    loss.backward()


def used_outside(run: Function, x: torch.Tensor) -> Any:
    loss, h = _both(run(x))
    (loss + h.pow(3).sum()).backward()


def used_outside_and_seen(run: Function, x: torch.Tensor) -> Any:
    loss, h = _both(run(x))
    h.retain_grad()
    h.register_hook(lambda gradient: gradient.clamp(-1, 1))
    (loss * 3 + h.pow(3).sum()).backward()
    return h.grad


def only_outside(run: Function, x: torch.Tensor) -> Any:
    _, h = _both(run(x))
    h.register_hook(lambda gradient: gradient + 1)
    h.pow(3).sum().backward()


def two_times(run: Function, x: torch.Tensor) -> Any:
    loss, h = _both(run(x))
    h.retain_grad()
    loss.backward(retain_graph=True)
    handle = h.register_hook(lambda gradient: gradient * 3)
    loss.backward(retain_graph=True)
    handle.remove()
    h.sin().sum().backward(retain_graph=True)
    loss.backward()
    return h.grad


def penalty(run: Function, x: torch.Tensor) -> Any:
    loss, h = _both(run(x))
    gradients = torch.autograd.grad(loss, [h, x], create_graph=True, allow_unused=True)
    total = sum(gradient.pow(2).sum() for gradient in gradients if gradient is not None)
    (total + loss).backward()
    return gradients


def second(run: Function, x: torch.Tensor) -> Any:
    loss, h = _both(run(x))
    (gradient,) = torch.autograd.grad(loss, h, create_graph=True, allow_unused=True)
    if gradient is None or not gradient.requires_grad:
        return gradient
    again = torch.autograd.grad(gradient.pow(2).sum(), [h, x], allow_unused=True, create_graph=True)
    if again[0] is None:
        return again
    (third,) = torch.autograd.grad(again[0].pow(2).sum(), x, allow_unused=True)
    return (*again, third)


def penalty_seen(run: Function, x: torch.Tensor) -> Any:
    loss, h = _both(run(x))
    h.register_hook(lambda gradient: gradient * 2)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    gradient.pow(2).sum().backward()
    return gradient


QUESTIONS = {
    question.__name__: question
    for question in (
        plain, retained, asked, asked_with_input, into, into_both, seen, seen_and_dropped, doubled, replaced,
        used_outside, used_outside_and_seen, only_outside, two_times, penalty, second, penalty_seen,
    )
}  # fmt: skip


def answer(net: Net, run: Function, question: Callable[[Function, torch.Tensor], Any], rows: int = 3) -> list[Any]:
    """What a question finds, and which gradients it leaves, or the error that it raises."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 4, generator=generator, requires_grad=True)
    net.zero_grad()
    try:
        found = question(run, x)
    except RuntimeError as error:
        if type(error) is not RuntimeError:
            raise
        return [type(error).__name__]
    left = [None if leaf.grad is None else leaf.grad.clone() for leaf in (x, *net.parameters())]
    tensors = [found] if isinstance(found, torch.Tensor) else list(found or [None])
    return [entry if entry is None else entry.detach() for entry in (*tensors, *left)]


def agree(one: list[Any], other: list[Any]) -> bool:
    """Whether two answers are the same."""
    return len(one) == len(other) and all(map(_are_same, one, other))


def _are_same(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return bool(one == other)
    most = 1e-5 * (1 + float(one.abs().max()))
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=most, equal_nan=True)
