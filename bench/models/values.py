"""Programs that look at values: loops until something converges, branches, masks, ragged batches, experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Inputs = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Deciding:
    """A program: `make` gives a module or a function, `inputs` those of a random call."""

    name: str
    make: Callable[[], Callable[..., Any]]
    inputs: Inputs


def normal(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Give normally distributed tensors."""
    return tuple(torch.randn(shape) for shape in shapes)


def newton(y: Tensor) -> Tensor:
    """Square roots, until no element changes any more."""
    y = y.abs() + 1
    x = y
    for _ in range(30):
        step = (x * x - y) / (2 * x)
        x = x - step
        if step.abs().max() < 1e-4:
            break
    return x


def newton_by_item(y: Tensor) -> tuple[Tensor, int]:
    """The same with the number of rounds, and a Python float that decides."""
    y = y.abs() + 1
    x, rounds = y, 0
    while True:
        step = (x * x - y) / (2 * x)
        x, rounds = x - step, rounds + 1
        if step.abs().max().item() < 1e-4 or rounds == 30:
            return x, rounds


def power_iteration(x: Tensor) -> Tensor:
    """The largest eigenvalue of a symmetric matrix."""
    matrix, vector = x @ x.t(), torch.ones(x.shape[0])
    for _ in range(20):
        new = matrix @ vector
        new = new / new.norm()
        if (new - vector).abs().max() < 1e-2:
            break
        vector = new
    return vector @ (matrix @ vector)


def bisection(x: Tensor) -> Tensor:
    """A root between two numbers."""
    low, high = torch.full_like(x, -4.0), torch.full_like(x, 4.0)
    for _ in range(40):
        middle = (low + high) / 2
        above = middle**3 + middle > x
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        if (high - low).max() < 1e-2:
            break
    return (low + high) / 2


def conjugate_gradients(x: Tensor, b: Tensor) -> Tensor:
    """A linear system, until the residual is small."""
    matrix = x @ x.t() / x.shape[1] + torch.eye(x.shape[0])
    solution, residual = torch.zeros_like(b), b
    direction, before = residual, residual @ residual
    for _ in range(20):
        moved = matrix @ direction
        length = before / (direction @ moved)
        solution, residual = solution + length * direction, residual - length * moved
        now = residual @ residual
        if now < 1e-3:
            break
        direction, before = residual + now / before * direction, now
    return solution


def line_search(x: Tensor, y: Tensor) -> Tensor:
    """Halve a step until a loss falls."""
    loss, rate = (x - y).square().mean(), 3.0
    gradient = 2 * (x - y) / x.numel()
    for _ in range(8):
        new = x - rate * gradient * x.numel()
        if (new - y).square().mean() < loss:
            return new
        rate /= 2
    return x


class Layers(nn.Module):
    """A stack of layers."""

    def __init__(self, count: int = 6, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.head = nn.Linear(width, 10)


class EarlyExit(Layers):
    """Stops where it is sure enough."""

    def forward(self, x: Tensor) -> Tensor:
        """Give the scores of the first layer that is."""
        scores = self.head(x)
        for layer in self.layers:
            x = functional.relu(layer(x))
            scores = self.head(x)
            if functional.softmax(scores, -1).max() > 0.16:
                break
        return scores


class AdaptiveDepth(Layers):
    """Adds layers until a halting probability is reached."""

    def forward(self, x: Tensor) -> Tensor:
        """Give the state of the last layer that ran."""
        halted = torch.zeros(())
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
            halted = halted + torch.sigmoid(x.mean()) * 0.4 + 0.1
            if halted >= 1:
                break
        return x


class Gated(Layers):
    """Takes one of two branches."""

    def forward(self, x: Tensor) -> Tensor:
        """Give what the branch gives."""
        if x.mean() > 0:
            return self.head(functional.gelu(self.layers[0](x)))
        return self.head(functional.relu(self.layers[1](self.layers[2](x))))


class Checked(Layers):
    """Asserts that all of it is finite."""

    def forward(self, x: Tensor) -> Tensor:
        """Give the scores."""
        for layer in self.layers[:3]:
            x = functional.relu(layer(x))
            if not torch.isfinite(x).all():
                raise ValueError("not finite")
        return self.head(x)


class Router(Layers):
    """One layer of several, by an index into a list."""

    def forward(self, x: Tensor) -> Tensor:
        """Give what that layer gives."""
        return self.head(self.layers[int(x.sum(0)[:6].argmax())](x))


class Greedy(nn.Module):
    """Decodes tokens until one ends the text."""

    def __init__(self, words: int = 64, width: int = 64) -> None:
        super().__init__()
        self.words, self.cell, self.head = (
            nn.Embedding(words, width),
            nn.Linear(2 * width, width),
            nn.Linear(width, words),
        )

    def forward(self, state: Tensor) -> Tensor:
        """Give the state at the end."""
        token = torch.zeros((), dtype=torch.int64)
        for _ in range(12):
            state = torch.tanh(self.cell(torch.cat([self.words(token), state])))
            token = self.head(state).argmax()
            if token % 8 == 0:
                break
        return state


class Beam(nn.Module):
    """Keeps the best ways, until the first of them is clear."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.head = nn.Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        """Give their scores."""
        scores = torch.zeros(4)
        for _ in range(5):
            steps = functional.log_softmax(self.head(states), -1)
            scores, places = (scores[:, None] + steps).reshape(-1).topk(4)
            states = torch.tanh(states[places // states.shape[1]])
            if scores[0] - scores[1] > 0.2:
                break
        return scores


class Experts(nn.Module):
    """Each token goes to two of several."""

    def __init__(self, width: int = 64, count: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Give the sum of what the chosen ones give."""
        weights, chosen = functional.softmax(self.gate(x), -1).topk(2, -1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            if token.numel():
                result.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return result


def mask_mean(x: Tensor) -> Tensor:
    """The mean of what is positive."""
    return x[x > 0].mean()


def mask_rows(x: Tensor, y: Tensor) -> Tensor:
    """Rows that a mask chooses, normalised and multiplied."""
    rows = x[x.sum(1) > 0]
    return (functional.layer_norm(rows, (x.shape[1],)) @ y.t()).relu().sum(0)


def mask_set(x: Tensor, y: Tensor) -> Tensor:
    """Elements are written where a mask is set."""
    z = x.clone()
    z[x > 0] = y[x > 0] * 2
    return z


def where_add(x: Tensor, y: Tensor) -> Tensor:
    """Rows are gathered, and added where they were."""
    (rows,) = torch.where(x[:, 0] > 0)
    return torch.zeros_like(x).index_add(0, rows, torch.tanh(x[rows]) * y[rows])


def self_loops(x: Tensor, edges: Tensor) -> Tensor:
    """A graph's layer without the edges that lead back."""
    kept = edges[:, edges[0] != edges[1]]
    return torch.zeros_like(x).index_add(0, kept[1], x[kept[0]])


def masked_norm(x: Tensor) -> Tensor:
    """What is far from zero, normalised."""
    found = x[x.abs() > 0.3]
    return (found - found.mean()) / (found.std() + 1e-5)


def any_masked(x: Tensor) -> Tensor:
    """Filled only where there is something to fill."""
    large = x > 3.5
    return x.masked_fill(large, 0.0).softmax(-1) if large.any().item() else x.softmax(-1)


def clipped(x: Tensor) -> Tensor:
    """A norm that is read decides whether to scale."""
    norm = x.norm().item()
    return x * (30.0 / (norm + 1e-6)) if norm > 64.0 else x * 1.5


def counted(x: Tensor) -> Tensor:
    """Divided by a number that is counted."""
    count = int((x > 0).sum())
    return x.square().sum() / max(count, 1)


def logged(x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, float]]:
    """A loss with the number that is written to a log."""
    loss = (x - y).square().mean()
    return loss, {"loss": loss.item()}


def skipped(x: Tensor, y: Tensor) -> Tensor:
    """A loss that is left out where it is no number."""
    loss = (x * y).exp().mean()
    if torch.isnan(loss) or torch.isinf(loss) or loss > 3.0:
        return loss * 0
    return loss


def prefix(x: Tensor, length: Tensor) -> Tensor:
    """As much of a sequence as is there."""
    return torch.tanh(x[: int(length)]).sum(0)


def split(x: Tensor, length: Tensor) -> Tensor:
    """Two parts, by a length that is read."""
    n = length.item()
    return torch.tanh(x[:n]).sum(0) - torch.sigmoid(x[n:]).sum(0)


def ragged(x: Tensor, lengths: Tensor) -> Tensor:
    """The mean of each text, by a list of lengths."""
    return torch.stack([row[:length].mean(0) for row, length in zip(x, lengths.tolist(), strict=True)])


def nucleus(scores: Tensor) -> Tensor:
    """Probabilities that make up nine tenths."""
    probabilities, order = functional.softmax(scores, 0).sort(descending=True)
    kept = probabilities.cumsum(0) < 0.9
    if not kept.any():
        return probabilities[:1]
    kept_only = probabilities * kept
    return torch.zeros_like(scores).scatter(0, order, kept_only / kept_only.sum())


def suppressed(boxes: Tensor) -> Tensor:
    """Boxes that overlap better ones are dropped."""
    corners, sizes = boxes[:, :2], boxes[:, 2:].abs() + 0.5
    kept: list[int] = []
    for one in range(boxes.shape[0]):
        low = torch.maximum(corners[one], corners[kept]) if kept else corners[:0]
        high = torch.minimum(corners[one] + sizes[one], corners[kept] + sizes[kept]) if kept else corners[:0]
        if not ((high - low).clamp(min=0).prod(1) > 0.1).any():
            kept.append(one)
    return boxes[kept].sum(0)


def nested(x: Tensor, y: Tensor) -> Tensor:
    """Branches inside of branches."""
    if x.sum() > 0:
        return torch.tanh(x * 2) if y.sum() > 0 else torch.sigmoid(x * 3)
    return y.exp() if y[0, 0] > 0 else x + y


def chained(x: Tensor, y: Tensor) -> Tensor:
    """A number between two others."""
    return torch.tanh(x) + y if -8 < x.sum() < 8 else torch.sigmoid(y) - x


def largest(x: Tensor, y: Tensor) -> Tensor:
    """Python's own maximum and minimum, of tensors."""
    return max(x.sum(), y.sum()) * min(x.mean(), y.mean()) + (x * y).mean()


def ordered(x: Tensor, y: Tensor) -> Tensor:
    """Tensors that Python sorts."""
    return torch.stack(sorted([x.sum(), y.sum(), (x * y).sum()]))


def filtered(x: Tensor, y: Tensor) -> Tensor:
    """Rows that a condition of Python chooses."""
    rows = [torch.tanh(row) for row in x[:4] if row.sum() > 0]
    return torch.stack(rows).sum(0) * y[0] if rows else y[0]


def damped(x: Tensor, y: Tensor) -> Tensor:
    """A rate that is halved where a loss does not fall."""
    rate, best = 1.0, (x - y).square().sum()
    for _ in range(4):
        loss = (x - rate * y).square().sum()
        if loss < best:
            best = loss
        else:
            rate = rate / 2
    return best * rate


def equal_signs(x: Tensor, y: Tensor) -> Tensor:
    """Two tensors that are compared as a whole."""
    return torch.tanh(x * 2) if torch.equal(x[0, :2] > 0, y[0, :2] > 0) else torch.sigmoid(y) + x


def written(x: Tensor, y: Tensor) -> Tensor:
    """Writes before and behind a decision."""
    z = x * 2
    z[0] = 1
    if z.sum() > 0:
        z[1] += y[0]
        return z.exp()
    z.mul_(2)
    return torch.tanh(z)


def flagged(x: Tensor, y: Tensor) -> Tensor:
    """A list of flags."""
    first, second = (x[0, :2] > 0).tolist()
    found = torch.tanh(x) * (2.0 if first else 3.0)
    return found + y if second else found - y


def _edges(nodes: int, count: int) -> Tensor:
    return torch.randint(0, nodes, (2, count))


def _function(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Deciding:
    return Deciding(function.__name__, lambda: function, partial(normal, *shapes))


def _module(kind: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Deciding:
    return Deciding(kind.__name__.lower(), lambda: kind().eval(), partial(normal, *shapes))  # type: ignore[attr-defined]


def _with(function: Callable[..., Any], inputs: Inputs) -> Deciding:
    return Deciding(function.__name__, lambda: function, inputs)


PAIR = ((16, 64), (16, 64))
PROGRAMS = (
    _function(newton, (256,)),
    _function(newton_by_item, (256,)),
    _function(power_iteration, (32, 32)),
    _function(bisection, (256,)),
    _function(conjugate_gradients, (32, 64), (32,)),
    _function(line_search, *PAIR),
    _module(EarlyExit, (4, 64)),
    _module(AdaptiveDepth, (4, 64)),
    _module(Gated, (8, 64)),
    _module(Checked, (8, 64)),
    _module(Router, (8, 64)),
    _module(Greedy, (64,)),
    _module(Beam, (4, 32)),
    _module(Experts, (64, 64)),
    _function(mask_mean, (64, 256)),
    _function(mask_rows, (128, 64), (32, 64)),
    _function(mask_set, (32, 256), (32, 256)),
    _function(where_add, (256, 64), (256, 64)),
    _with(self_loops, lambda: (torch.randn(64, 32), _edges(64, 256))),
    _function(masked_norm, (64, 256)),
    _function(any_masked, (32, 64)),
    _function(clipped, (64, 64)),
    _function(counted, (64, 64)),
    _function(logged, *PAIR),
    _function(skipped, *PAIR),
    _with(prefix, lambda: (torch.randn(64, 32), torch.randint(8, 64, ()))),
    _with(split, lambda: (torch.randn(64, 32), torch.randint(8, 56, ()))),
    _with(ragged, lambda: (torch.randn(4, 32, 16), torch.randint(4, 32, (4,)))),
    _function(nucleus, (256,)),
    _function(suppressed, (5, 4)),
    _function(nested, *PAIR),
    _function(chained, *PAIR),
    _function(largest, *PAIR),
    _function(ordered, *PAIR),
    _function(filtered, *PAIR),
    _function(damped, *PAIR),
    _function(equal_signs, *PAIR),
    _function(written, *PAIR),
    _function(flagged, *PAIR),
)
