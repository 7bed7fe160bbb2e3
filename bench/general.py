"""Time programs for a range of sizes beside exact ones: `python -m bench.general [name ...]`.

Both run the same call in turn, in one process; the least time of each counts. Answers are compared with eager's first.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import exp, log
from time import perf_counter
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import weft
from weft.api.rare_calls import RareCalls
from weft.api.varying import VaryingProgram

ROUNDS = 15
LEAST_SECONDS = 0.002  # of a round of one contestant


@dataclass(frozen=True)
class Subject:
    """A module or function, what makes its arguments, the sizes that make its program, and those that are measured."""

    make: Callable[[], Callable[..., Any]]
    arguments: Callable[..., tuple[Any, ...]]
    first: tuple[tuple[int, ...], ...]
    sizes: tuple[tuple[int, ...], ...]


class Block(nn.Module):
    """A transformer's layer with rows of texts side by side, causal or not."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inside, self.outside = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then transform each position."""
        batch, length, width = x.shape
        parts = self.inside(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.outside(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Texts(nn.Module):
    """Words, positions, layers, and the mean of what comes out."""

    def __init__(self, width: int, layers: int, *, causal: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(1000, width), nn.Embedding(512, width)
        self.layers = nn.Sequential(*(Block(width, width // 64, causal=causal) for _ in range(layers)))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Encode texts."""
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        return self.layers(x)


class Around(nn.Module):
    """Layers before and behind a running sum, which no kernel computes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.behind = Block(width, 4), Block(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add up along each text between two layers."""
        return self.behind(torch.cumsum(self.before(x), 1))


class Biased(nn.Module):
    """Attention that is written out, with a bias for how far apart two words are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.apart = nn.Embedding(1000, width), nn.Embedding(32, 4)
        self.layers = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(4))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Encode texts."""
        x, places = self.words(words), torch.arange(words.shape[1], device=words.device)
        apart = (places[None] - places[:, None]).clamp(-15, 15) + 16
        bias = self.apart(apart).permute(2, 0, 1)
        for layer in self.layers:
            batch, length, width = x.shape
            query, key, value = layer(x).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
            shares = torch.softmax(query @ key.mT / 8 + bias, -1)
            x = x + (shares @ value).transpose(1, 2).reshape(batch, length, width)
        return x


def images() -> nn.Module:
    """A small network of convolutions."""

    def layer(given: int, out: int, step: int) -> list[nn.Module]:
        return [nn.Conv2d(given, out, 3, step, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]

    return nn.Sequential(
        *layer(3, 32, 2), *layer(32, 64, 1), *layer(64, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )


class Residual(nn.Module):
    """Two convolutions with norms beside what goes in."""

    def __init__(self, given: int, out: int, step: int = 1) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(given, out, 3, step, 1, bias=False),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(out), nn.BatchNorm2d(out)])
        self.beside = nn.Sequential() if step == 1 else nn.Conv2d(given, out, 1, step, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what two convolutions find."""
        y = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        return torch.relu(y + self.beside(x))


def residual() -> nn.Module:
    """A small residual network."""
    stem = (nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    blocks = (Residual(32, 32), Residual(32, 64, 2), Residual(64, 128, 2))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def separable() -> nn.Module:
    """Depthwise convolutions, each with one of single pixels behind it."""

    def layer(given: int, out: int, step: int) -> list[nn.Module]:
        depthwise = nn.Conv2d(given, given, 3, step, 1, groups=given, bias=False)
        return [depthwise, nn.BatchNorm2d(given), nn.ReLU6(), nn.Conv2d(given, out, 1, bias=False), nn.BatchNorm2d(out)]

    head = (nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU())
    return nn.Sequential(*head, *layer(16, 32, 1), *layer(32, 64, 2), *layer(64, 64, 1), nn.AdaptiveAvgPool2d(1))


class Hourglass(nn.Module):
    """Images made smaller, larger again, and put beside what they were."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inside = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.last = nn.Conv2d(48, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give an image of four channels."""
        x = torch.relu(self.first(x))
        y = F.interpolate(torch.relu(self.inside(F.max_pool2d(x, 2))), size=x.shape[2:], mode="nearest")
        return self.last(torch.cat([x, y], 1))


class Windows(nn.Module):
    """Attention inside of windows, with a bias for each two places of each head."""

    def __init__(self) -> None:
        super().__init__()
        self.biases = nn.Parameter(torch.randn(4, 49, 49))

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attend."""
        return F.scaled_dot_product_attention(query, key, value, attn_mask=self.biases)


def mlp(*widths: int) -> nn.Module:
    """Linear layers with activations between them."""
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*(part for one, other in pairs for part in (nn.Linear(one, other), nn.ReLU())))


def rows(width: int) -> Callable[[int], tuple[Any, ...]]:
    """Arguments of so many rows."""
    return lambda count: (torch.randn(count, width),)


def words(batch: int, length: int) -> tuple[Any, ...]:
    """Texts of words."""
    return (torch.randint(0, 1000, (batch, length)),)


def texts(width: int) -> Callable[[int, int], tuple[Any, ...]]:
    """Texts of vectors."""
    return lambda batch, length: (torch.randn(batch, length, width),)


def image(count: int = 1, channels: int = 3) -> Callable[[int, int], tuple[Any, ...]]:
    """Images of rows and columns."""
    return lambda height, width: (torch.randn(count, channels, height, width),)


def pictures(side: int) -> Callable[[int], tuple[Any, ...]]:
    """A batch of images."""
    return lambda count: (torch.randn(count, 3, side, side),)


ROWS = tuple((count,) for count in (2, 7, 13, 16, 31, 33, 61, 64, 65, 97, 113, 127, 128))
LENGTHS = tuple((1, length) for length in (2, 7, 13, 16, 17, 31, 61, 64, 65, 97, 113, 127, 128))
BATCHES = tuple((batch, length) for batch in (2, 5, 8) for length in (7, 16, 33, 61, 64))
COUNTS = tuple((count,) for count in (2, 3, 5, 7, 8, 11, 13, 16))
SIDES = ((33, 61), (64, 64), (65, 96), (97, 113), (120, 75), (128, 128))
FIRST_SIDES = ((100, 90), (128, 128))
FIRST_ROWS, FIRST_LENGTHS = ((100,), (128,)), ((1, 100), (1, 128))
FIRST_BATCHES, FIRST_COUNTS = ((5, 60), (8, 64)), ((13,), (16,))

SUBJECTS: dict[str, Subject] = {
    "tiny mlp": Subject(lambda: mlp(16, 32, 8), rows(16), ((15,), (16,)), COUNTS),
    "mlp of rows": Subject(lambda: mlp(256, 512, 256), rows(256), FIRST_ROWS, ROWS),
    "wide mlp": Subject(lambda: mlp(512, 2048, 512), rows(512), FIRST_ROWS, ROWS),
    "mlp of 84 MB": Subject(lambda: mlp(512, 4096, 4096, 512), rows(512), FIRST_ROWS, ROWS),
    "layer norm": Subject(lambda: nn.LayerNorm(256), rows(256), FIRST_ROWS, ROWS),
    "softmax of rows": Subject(lambda: lambda x: (x * 2).softmax(-1), rows(512), FIRST_ROWS, ROWS),
    "softmax of columns": Subject(lambda: lambda x: (x * 2).softmax(0), rows(512), FIRST_ROWS, ROWS),
    "mean of rows": Subject(lambda: lambda x: torch.tanh(x).mean(0), rows(512), FIRST_ROWS, ROWS),
    "elementwise": Subject(lambda: lambda x: torch.tanh(x) * x.sigmoid(), rows(512), FIRST_ROWS, ROWS),
    "products of rows": Subject(lambda: lambda x: x @ x.T, rows(256), FIRST_ROWS, ROWS),
    "products of columns": Subject(lambda: lambda x: x.T @ x, rows(256), FIRST_ROWS, ROWS),
    "layer of one text": Subject(lambda: Block(256, 4), texts(256), FIRST_LENGTHS, LENGTHS),
    "causal layer of one text": Subject(lambda: Block(256, 4, causal=True), texts(256), FIRST_LENGTHS, LENGTHS),
    "encoder of one text": Subject(lambda: Texts(256, 2), words, FIRST_LENGTHS, LENGTHS),
    "layer of texts": Subject(lambda: Block(128, 2), texts(128), FIRST_BATCHES, BATCHES),
    "encoder of texts": Subject(lambda: Texts(128, 2), words, FIRST_BATCHES, BATCHES),
    "an operator between layers": Subject(lambda: Around(128), texts(128), FIRST_BATCHES, BATCHES),
    "biases by distance": Subject(lambda: Biased(256), words, FIRST_LENGTHS, LENGTHS),
    "torch's encoder layer": Subject(
        lambda: nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.0),
        texts(128),
        FIRST_BATCHES,
        BATCHES,
    ),
    "embedding": Subject(lambda: nn.EmbeddingBag(1000, 64), words, FIRST_BATCHES, BATCHES),
    "images": Subject(images, pictures(64), FIRST_COUNTS, COUNTS),
    "images of any size": Subject(images, image(), FIRST_SIDES, SIDES),
    "residual network": Subject(residual, image(), FIRST_SIDES, SIDES),
    "depthwise convolutions": Subject(separable, image(), FIRST_SIDES, SIDES),
    "hourglass": Subject(Hourglass, image(), FIRST_SIDES, SIDES),
    "dilated convolution": Subject(
        lambda: nn.Sequential(nn.Conv2d(16, 32, 3, padding=2, dilation=2), nn.ReLU()), image(2, 16), FIRST_SIDES, SIDES
    ),
    "grouped convolution": Subject(
        lambda: nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, groups=4), nn.ReLU()), image(2, 32), FIRST_SIDES, SIDES
    ),
    "convolution of pixels": Subject(lambda: nn.Conv2d(32, 64, 1), image(2, 32), FIRST_SIDES, SIDES),
    "maximum of windows": Subject(lambda: nn.MaxPool2d(3, 2, 1), image(2, 16), FIRST_SIDES, SIDES),
    "mean of windows": Subject(lambda: nn.AvgPool2d(2), image(2, 16), FIRST_SIDES, SIDES),
    "shares of images": Subject(lambda: nn.AdaptiveAvgPool2d((4, 4)), image(2, 16), FIRST_SIDES, SIDES),
    "convolution of rows": Subject(
        lambda: nn.Sequential(nn.Conv1d(64, 64, 5, padding=2), nn.ReLU()),
        lambda length: (torch.randn(2, 64, length),),
        FIRST_ROWS,
        ROWS,
    ),
    "small images, many channels": Subject(
        lambda: nn.Conv2d(256, 256, 3, padding=1),
        lambda count: (torch.randn(count, 256, 4, 4),),
        FIRST_COUNTS,
        COUNTS,
    ),
    "windows with biases": Subject(
        Windows, lambda count: tuple(torch.randn(4 * count, 4, 49, 32) for _ in range(3)), FIRST_COUNTS, COUNTS
    ),
    "pooling": Subject(lambda: nn.MaxPool2d(2), pictures(64), FIRST_COUNTS, COUNTS),
}


def never(*_: object) -> bool:
    """Say no."""
    return False


@contextmanager
def general_alone() -> Iterator[None]:
    """Let programs for a range of sizes run all calls."""
    with (
        mock.patch.object(RareCalls, "is_often", never),
        mock.patch.object(VaryingProgram, "is_worth_less", never),
        mock.patch.object(VaryingProgram, "is_too_large", never),
    ):
        yield


def measure(subject: Subject) -> list[tuple[tuple[int, ...], float, float]]:
    """For each sizes the least seconds of a general program and of an exact one."""
    torch.manual_seed(0)
    eager = subject.make()
    if isinstance(eager, nn.Module):
        eager.eval()
    run = eager.forward if isinstance(eager, nn.Module) else eager
    general: Any = weft.hybridize(run)
    found = []
    for sizes in subject.first:
        general(*subject.arguments(*sizes))
    for sizes in subject.sizes:
        arguments = subject.arguments(*sizes)
        exact = weft.hybridize(run)
        for one in (general, exact):
            for _ in range(3):
                torch.testing.assert_close(one(*arguments), run(*arguments), rtol=1e-3, atol=1e-4)
        found.append((sizes, *least(partial(general, *arguments), partial(exact, *arguments))))
    if general.traces != len(subject.first):
        print(f"  {general.traces} programs: {general.varying.refusals}")
    return found


def least(*contestants: Callable[[], Any]) -> tuple[float, ...]:
    """The least seconds of a call of each, in turn."""
    begin = perf_counter()
    contestants[-1]()
    count = max(1, int(LEAST_SECONDS / (perf_counter() - begin)))
    best = [float("inf")] * len(contestants)
    for _ in range(ROUNDS):
        for place, contestant in enumerate(contestants):
            begin = perf_counter()
            for _ in range(count):
                contestant()
            best[place] = min(best[place], (perf_counter() - begin) / count)
    return tuple(best)


def main(names: list[str]) -> None:
    """Print a row for each subject."""
    total: list[float] = []
    with torch.no_grad(), general_alone():
        for name in names or SUBJECTS:
            rows_found = measure(SUBJECTS[name])
            ratios = [exact / general for _, general, exact in rows_found]
            total += ratios
            print(f"{name:<26} {mean(ratios):.2f} of exact, least {min(ratios):.2f}", flush=True)
            print(
                "   "
                + ", ".join(f"{by(sizes)}: {1e6 * ours:.1f}/{1e6 * exact:.1f}" for sizes, ours, exact in rows_found)
            )
    print(f"all: {mean(total):.3f}, least {min(total):.2f}")


def by(sizes: tuple[int, ...]) -> str:
    """Spell sizes."""
    return "x".join(map(str, sizes))


def mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, ratios)) / len(ratios))


if __name__ == "__main__":
    main(sys.argv[1:])
