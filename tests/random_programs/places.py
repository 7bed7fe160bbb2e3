"""Random programs that take from and write to places, as many as vary, of as many as vary; some are not there."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import Tensor

Pair = tuple[Tensor, Tensor]  # rows, and places among them
Step = Callable[[Tensor, Tensor], Pair]
SHAPES = ((5, 7), (8, 12), (6, 9), (11, 3), (3, 15), (9, 9), (7, 1), (16, 16), (2, 4), (4, 0))


def zeros(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[0], x.shape[1])


def wide(i: Tensor, x: Tensor) -> Tensor:
    return i[:, None].expand(-1, x.shape[1])


def degrees(x: Tensor, i: Tensor) -> Tensor:
    return torch.zeros(x.shape[0]).scatter_add(0, i, torch.ones(i.shape[0]))


def shares(x: Tensor, i: Tensor) -> Pair:
    scores = x[i].sum(1)
    largest = torch.zeros(x.shape[0]).scatter_reduce(0, i, scores, "amax", include_self=False)
    scores = (scores - largest[i]).exp()
    total = torch.zeros(x.shape[0]).index_add(0, i, scores)
    return x + zeros(x).index_add(0, i, x[i] * (scores / (total[i] + 1e-9))[:, None]), i


STEPS: dict[str, Step] = {
    "index_add": lambda x, i: (x + zeros(x).index_add(0, i, x[i] * 0.5), i),
    "index_select": lambda x, i: (x + zeros(x).index_add(0, i, x.index_select(0, i.flip(0))), i),
    "amax": lambda x, i: (x + zeros(x).scatter_reduce(0, wide(i, x), x[i.flip(0)], "amax", include_self=False), i),
    "index_copy": lambda x, i: (x.index_copy(0, torch.arange(x.shape[0]).flip(0), x * 0.7), i),
    "index_fill": lambda x, i: (x.index_fill(0, i[:2], 0.25), i),
    "index_put": lambda x, i: (x.index_put((i,), torch.full((i.shape[0], 1), 0.125).expand(-1, x.shape[1])), i),
    "index_put, added": lambda x, i: (x.index_put((i,), x[i] * 0.25, accumulate=True), i),
    "columns": lambda x, i: (x + zeros(x).t().scatter_add(1, i.expand(x.shape[1], -1), x[i].t()).t() * 0.1, i),
    "mean": lambda x, i: (x + zeros(x).index_add(0, i, x[i]) / degrees(x, i).clamp(min=1)[:, None], i),
    "degrees": lambda x, i: (x * degrees(x, i).add(1).rsqrt()[:, None], i),
    "argmax": lambda x, i: (x + x[x.argmax(0)].mean(0), i),
    "mask": lambda x, i: (torch.where(torch.zeros(x.shape[0]).index_fill(0, i, 1.0)[:, None] > 0, x, x * 0.5), i),
    "embedding": lambda x, i: (x + F.embedding(torch.cat([i, torch.arange(x.shape[0])])[: x.shape[0]], x), i),
    "softmax": shares,
    "loops": lambda x, i: (x, torch.cat([i, torch.arange(x.shape[0])])),
    "sorted": lambda x, i: (x, i.sort()[0]),
    "summed": lambda x, i: (x, i.cumsum(0) % max(x.shape[0], 1)),
    "rolled": lambda x, i: (x, i.roll(1)),
}


def places_program(random: Random) -> tuple[list[str], Callable[[Tensor, Tensor], Tensor]]:
    """Some steps, and what makes them."""
    steps = random.choices(sorted(STEPS), k=random.randint(2, 5))

    def program(x: Tensor, i: Tensor) -> Tensor:
        for step in steps:
            x, i = STEPS[step](x, i)
        return x

    return steps, program


def arguments(random: Random, rows: int, count: int) -> Pair:
    """Rows and places of a call; sometimes one that is not there."""
    made = torch.Generator().manual_seed(random.getrandbits(32))
    x, i = torch.rand(rows, 4, generator=made), torch.randint(rows, (count,), generator=made)
    if count and random.random() < 0.15:
        i[random.randrange(count)] = rows + random.randint(0, 2)
    return x, i


def outcome(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, i: Tensor, *, grad: bool) -> Any:
    """What a call gives, with the gradient; or the type of what it raises."""
    x = x.clone().requires_grad_(grad)
    try:
        found = function(x, i)
        if found.requires_grad:
            found.backward(torch.linspace(0.5, 1.5, found.numel()).view(found.shape))
    except (IndexError, RuntimeError) as error:
        return type(error)
    return found.detach(), x.grad
