"""Time small programs that look at values all the time, in a lazy block against eager."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

import weft
from bench.rounds import in_turn, ratio_text


def sums() -> float:
    """Look at each sum."""
    x, total = torch.arange(100.0), 0.0
    for _ in range(1000):
        total += (x + 1).sum().item()
    return total


def branches() -> float:
    """Decide by each sum."""
    x = torch.linspace(-1, 1, 50)
    for _ in range(1000):
        x = x - 0.01 * x.abs() if x.sum() > 0 else x + 0.013 * x.abs()
    return x.sum().item()


def prints() -> list[str]:
    """Print each mean."""
    x, lines = torch.linspace(-1, 1, 200), []
    for _ in range(100):
        x = x * 0.9 + 0.1
        lines.append(f"{x.mean()} {x[:2]}")
    return lines


def bubbles() -> list[float]:
    """Sort by comparing and swapping elements."""
    x = torch.tensor([(place * 37) % 53 for place in range(40)]).float()
    for end in range(39, 0, -1):
        for place in range(end):
            if x[place] > x[place + 1]:
                held = x[place].clone()
                x[place] = x[place + 1]
                x[place + 1] = held
    found: list[float] = x.tolist()
    return found


def clusters() -> float:
    """Move three means, until they stay where they are."""
    torch.manual_seed(3)
    x, moved = torch.randn(60, 2), 0.0
    means = x[:3].clone()
    for _ in range(200):
        nearest = ((x[:, None] - means[None]) ** 2).sum(-1).argmin(1)
        new = torch.stack([x[nearest == mean].mean(0) for mean in range(3)])
        moved, means = (new - means).abs().max().item(), new
    return moved


def net() -> nn.Module:
    """Make a small net."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Make its batch."""
    torch.manual_seed(2)
    return torch.randn(32, 20), torch.randint(3, (32,))


def evaluating() -> float:
    """Look at each batch's loss."""
    module, (x, y), total = net(), batch(), 0.0
    with torch.no_grad():
        for _ in range(200):
            given = module(x)
            total += functional.cross_entropy(given, y).item() + (given.argmax(1) == y).sum().item()
    return total


def training() -> float:
    """Look at each step's loss."""
    module, (x, y), total = net(), batch(), 0.0
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(100):
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total


def cells() -> float:
    """Compute as in the cells of a notebook."""
    total = 0.0
    for count in range(100):
        x = torch.arange(24.0).reshape(4, 6) + count
        z = (x - x.mean(0)) / (x.std(0) + 1)
        total += sum((x @ x.T).diagonal().tolist()) + float(z.max()) + z.numpy().sum().item()
    return total


PROGRAMS: tuple[Callable[[], object], ...] = (
    sums, branches, prints, bubbles, clusters, evaluating, training, cells,
)  # fmt: skip


def looks() -> str:
    """What small programs that look all the time take lazily, where there is nothing to gain."""
    found = []
    for program in PROGRAMS:

        def lazily(program: Callable[[], object] = program) -> object:
            with weft.lazy():
                return program()

        times = in_turn({"eager": program, "lazily": lazily}, 9, alike=False)
        found.append(
            f"{program.__name__} {times.median('eager') * 1e3:.1f} ms, {ratio_text(times.ratio('eager', 'lazily'))}"
        )
    return "looks at little work, eager and eager over lazily: " + "; ".join(found)
