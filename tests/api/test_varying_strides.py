"""Programs for many sizes take tensors as they lie: nothing around these is read or written, whatever their order.

Inputs end where memory does, so a read beyond ends the process; results lie between numbers that must stay.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.api.test_varying_threads import one_general_program
from tests.runtime.test_poison import before_a_hole
from torch import nn

import weft
from weft.runtime.large_forms import VaryingInput
from weft.runtime.moves import MovedCode

GUARD = 64  # elements on both sides of a result
SIZES = ((48, 48), (1, 1), (2, 3), (7, 5), (48, 1), (1, 48), (16, 17), (31, 47), (47, 16), (33, 15), (0, 5), (4, 0))
ORDERS = ((0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2))

Run = Callable[..., Any]
PROGRAMS: dict[str, Callable[[int], Run]] = {
    "elementwise": lambda _: lambda x: torch.tanh(x) * x + 1,
    "two results": lambda _: lambda x: (x * 2, x.flatten(1) - 1),
    "other order": lambda _: lambda x: x.permute(0, 2, 3, 1).contiguous() * 2,
    "crossed": lambda _: lambda x: x.transpose(2, 3).contiguous() + 1,
    "a part": lambda _: lambda x: x[:, :, ::2, 1:] * 2,
    "put together": lambda _: lambda x: torch.cat([x, x * 2], 1),
    "padded": lambda _: lambda x: F.pad(x, (1, 2, 0, 1)) * 2,
    "beside a mean": lambda _: lambda x: x - x.mean((2, 3), keepdim=True),
    "whole numbers": lambda _: lambda x: (x * 10).to(torch.int32) * 3,
    "bytes": lambda _: lambda x: (x > 0) & (x < 1),
    "half as long": lambda _: lambda x: x.to(torch.bfloat16) * 2,
    "maximum of windows": lambda _: nn.MaxPool2d(3, 2, 1),
    "mean of windows": lambda _: nn.AvgPool2d(2, 1, 1, count_include_pad=False),
    "shares": lambda _: nn.AdaptiveAvgPool2d(4),
    "mean of pairs": lambda _: nn.AvgPool2d(2),
    "convolution": lambda channels: nn.Conv2d(channels, 16, 3, padding=1),
    "of pixels": lambda channels: nn.Conv2d(channels, 33, 1),
    "with a stride": lambda channels: nn.Conv2d(channels, 8, 3, 2, padding=1),
    "depthwise": lambda channels: nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
    "larger": lambda _: lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
}
KINDS: Sequence[tuple[str, Callable[[int], nn.Module]]] = (
    ("relu", lambda _: nn.ReLU()),
    ("maximum", lambda _: nn.MaxPool2d(3, 1, 1)),
    ("mean", lambda _: nn.AvgPool2d(2, 1, 1)),
    ("convolution", lambda channels: nn.Conv2d(channels, channels, 3, padding=1)),
    ("pixels", lambda channels: nn.Conv2d(channels, channels, 1)),
    ("norm", nn.BatchNorm2d),
)


@contextmanager
def guarded_results() -> Iterator[list[int]]:
    """Let native code write what it gives between numbers that must stay; gives how often it has."""
    run, times = MovedCode.run, [0]

    def guarded(self: MovedCode, given: Sequence[Any], outputs: Sequence[torch.Tensor], moves: Any) -> bool:
        counts = [one.untyped_storage().nbytes() // one.element_size() for one in outputs]
        memories = [torch.ones(count + 2 * GUARD, dtype=one.dtype) for one, count in zip(outputs, counts, strict=True)]
        pairs = zip(outputs, memories, strict=True)
        inner = [memory.as_strided(one.shape, one.stride(), GUARD) for one, memory in pairs]
        done = run(self, given, inner, moves)
        if done:
            times[0] += 1
            for one, count, memory, found in zip(outputs, counts, memories, inner, strict=True):
                assert bool((memory[:GUARD] == 1).all())
                assert bool((memory[GUARD + count :] == 1).all())
                one.copy_(found)
        return done

    with mock.patch.object(MovedCode, "run", guarded):
        yield times


def image(shape: tuple[int, ...], order: tuple[int, ...]) -> torch.Tensor:
    """A tensor without gaps, its dimensions in an order, that ends where memory does."""
    lying = before_a_hole(torch.randn([shape[place] for place in order]))
    return lying.permute([order.index(place) for place in range(len(order))])


def compare(run: Run, channels: int, order: tuple[int, ...]) -> None:
    """Run a program at all sizes."""
    with torch.no_grad(), one_general_program():
        general = weft.hybridize(run.forward if isinstance(run, nn.Module) else run)
        for height, width in ((40, 36), *SIZES):
            x = image((2, channels, height, width), order)
            try:
                expected = run(x)
            except RuntimeError:
                continue  # images that are smaller than windows
            for _ in range(4):
                torch.testing.assert_close(general(x), expected, rtol=1e-3, atol=1e-4, equal_nan=True)


def run_all() -> None:
    """Run all programs; printed is which comes next."""
    torch.manual_seed(0)
    with guarded_results() as times:
        for number, (name, order) in enumerate(itertools.product(PROGRAMS, ORDERS)):
            channels = (3, 16)[number % 3 % 2]
            print(name, order, channels, flush=True)
            run = PROGRAMS[name](channels)
            compare(run.eval() if isinstance(run, nn.Module) else run, channels, order)
        for seed in range(10):
            chance = random.Random(seed)
            channels, layers = chance.choice((1, 3, 16)), [chance.choice(KINDS) for _ in range(4)]
            print([name for name, _ in layers], channels, flush=True)
            net = nn.Sequential(*(make(channels) for _, make in layers))
            compare(net.eval(), channels, chance.choice(ORDERS))
    assert times[0] > 500
    print("done", flush=True)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 3])
def test_nothing_around_tensors_of_any_sizes_and_order_is_touched(lanes: int) -> None:
    program = "from tests.api.test_varying_strides import run_all; run_all()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "WEFT_THREADS": str(lanes)}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert found.stdout.split("\n")[-2:] == ["done", ""], found.stdout[-200:] + found.stderr[-2000:]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("name", ["elementwise", "mean of pairs", "convolution"])
def test_a_program_takes_and_gives_tensors_as_they_lie(name: str, order: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    with guarded_results() as times:
        run = PROGRAMS[name](3)
        compare(run.eval() if isinstance(run, nn.Module) else run, 3, order)
    assert times[0] > len(SIZES)


@pytest.mark.parametrize("seed", range(4))
def test_gradients_of_images_of_any_size_are_eagers(seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    net = nn.Sequential(*(chance.choice(KINDS[:5])[1](4) for _ in range(3)))
    with one_general_program():
        general: Any = weft.hybridize(net.forward)
        for height, width in ((40, 36), (48, 48), (7, 5), (16, 17), (31, 47)):
            x = torch.randn(2, 4, height, width)
            found = []
            for run in (general, net):
                one = x.clone().requires_grad_()
                parameters = [one, *net.parameters()]
                found.append(torch.autograd.grad(run(one).square().sum(), parameters))
            torch.testing.assert_close(*found, rtol=2e-3, atol=2e-3)


def test_an_input_that_operators_cut_is_theirs_and_stays_as_it_is() -> None:
    taken: list[VaryingInput] = []
    with (
        torch.no_grad(),
        one_general_program(),
        mock.patch.object(VaryingInput, "take", lambda self, *_: taken.append(self)),
    ):
        pool = nn.AdaptiveAvgPool2d(4)
        general = weft.hybridize(pool.forward)
        for height, width in ((40, 36), (48, 48), (7, 5), (16, 17)):
            x = image((2, 3, height, width), ORDERS[0])
            before = x.clone()
            for _ in range(4):
                torch.testing.assert_close(general(x), pool(x))
            assert torch.equal(x, before)
    assert not taken


def test_a_tensor_with_gaps_is_taken_all_the_same() -> None:
    with torch.no_grad(), one_general_program():
        general = weft.hybridize(lambda x: torch.tanh(x) * 2)
        for height, width in ((40, 36), (48, 48), (7, 5), (16, 17)):
            x = torch.randn(2, 3, height + 2, width + 2)[:, :, 1:-1, 1:-1]
            for _ in range(4):
                torch.testing.assert_close(general(x), torch.tanh(x) * 2)
