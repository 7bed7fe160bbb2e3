"""Tensors of sizes that vary whose dimensions lie in any order: channels last, transposed, steps first."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.general import general_alone
from torch import nn
from torch.nn import functional

import weft

SIDES = ((9, 14), (12, 16), (5, 5), (7, 16), (12, 6), (2, 2), (33, 40), (16, 8))
LAST = torch.channels_last


def pixels(height: int, width: int, channels: int = 3) -> torch.Tensor:
    return torch.randn(2, channels, height, width).contiguous(memory_format=LAST)


def network() -> nn.Module:
    torch.manual_seed(3)
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))


Make = Callable[[int, int], tuple[torch.Tensor, ...]]
Case = tuple[Callable[..., Any], Make]
CASES: dict[str, Case] = {
    "one by one": (lambda x: x.relu() + 1, lambda h, w: (pixels(h, w),)),
    "one channel": (lambda x: x.relu() + 1, lambda h, w: (pixels(h, w, 1),)),
    "summed": (lambda x: x.mean((2, 3)), lambda h, w: (pixels(h, w),)),
    "as rows": (lambda x: x.permute(0, 2, 3, 1).reshape(2, -1, 3) * 2, lambda h, w: (pixels(h, w),)),
    "given back": (lambda x: (x, x * 2), lambda h, w: (pixels(h, w),)),
    "resampled": (
        lambda x: functional.interpolate(x * 2, scale_factor=2, mode="bilinear"),
        lambda h, w: (pixels(h, w, 16),),
    ),
    "transposed": (lambda x: (x * 2).softmax(-1), lambda h, w: (torch.randn(w, h).t(),)),
    "multiplied": (lambda x, y: x @ y, lambda h, w: (torch.randn(w, h).t(), torch.randn(w, 5))),
    "beside rows": (lambda x, y: x + y, lambda h, w: (torch.randn(2, 3, h, w), pixels(h, w))),
    "steps first": (lambda x: x.transpose(0, 1).exp(), lambda h, w: (torch.randn(h, w, 8).transpose(0, 1),)),
    "volumes": (
        lambda x: x.tanh().sum(1),
        lambda h, w: (torch.randn(2, 4, 3, h, w).contiguous(memory_format=torch.channels_last_3d),),
    ),
    "any order": (lambda x: x.sin(), lambda h, w: (torch.randn(3, h, 2, w).permute(2, 0, 3, 1),)),
    "a stride": (lambda x: x * x.stride(2), lambda h, w: (pixels(h, w),)),
}


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_one_program_runs_tensors_that_lie_alike(name: str, gradient: bool) -> None:
    run, make = CASES[name]
    torch.manual_seed(0)
    with torch.set_grad_enabled(gradient), general_alone():
        compiled = weft.hybridize(run)
        for sides in SIDES:
            given = make(*sides)
            same = [copy.copy(one).requires_grad_(gradient) for one in given]
            given = tuple(one.detach().requires_grad_(gradient) for one in given)
            found, right = compiled(*same), run(*given)
            for one, other in zip(
                *((each if isinstance(each, tuple) else (each,)) for each in (found, right)), strict=True
            ):
                assert one.stride() == other.stride()
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
            if gradient:
                (found[1] if isinstance(found, tuple) else found).sum().backward()
                (right[1] if isinstance(right, tuple) else right).sum().backward()
                for one, other in zip(same, given, strict=True):
                    torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    assert list(compiled.varying)


def test_networks_of_images_with_channels_last() -> None:
    net = network().eval()
    with torch.no_grad(), general_alone():
        compiled = weft.hybridize(net.forward)
        for sides in SIDES:
            for x in (pixels(*sides), torch.randn(2, 3, *sides)):
                torch.testing.assert_close(compiled(x), net.forward(x), rtol=1e-4, atol=1e-5)
        orders = {tuple(program.range.orders.values()) for program in compiled.varying}
    assert orders == {((0, 1, 2, 3),), ((0, 2, 3, 1),)}


def test_code_that_asks_how_tensors_lie() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.is_contiguous() else x * 3

    with torch.no_grad(), general_alone():
        compiled = weft.hybridize(run)
        for place, sides in enumerate(SIDES * 2):
            x = pixels(*sides) if place % 3 else torch.randn(2, 3, *sides)
            assert torch.equal(compiled(x), run(x))


def test_steps_of_images_with_channels_last() -> None:
    net, loss = network(), nn.CrossEntropyLoss()
    other = copy.deepcopy(net)
    step = weft.step(net, loss, torch.optim.SGD(net.parameters(), 0.1))
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    torch.manual_seed(1)
    for sides in SIDES * 2:
        x, classes = pixels(*sides), torch.randint(4, (2,))
        optimizer.zero_grad()
        right = loss(other(x), classes)
        right.backward()
        optimizer.step()
        torch.testing.assert_close(step(x, classes).detach(), right.detach(), rtol=1e-3, atol=1e-4)


def test_a_saved_program_takes_tensors_that_lie_as_the_example_did(tmp_path: Path) -> None:
    net = network().eval()
    with torch.no_grad():
        compiled = weft.hybridize(net.forward, sizes={"input": {2: ("height", 2, 64), 3: ("width", 2, 64)}})
        weft.program(compiled, pixels(20, 30)).save(tmp_path / "net.weft")
        loaded = weft.load_program(tmp_path / "net.weft")
        for sides in ((20, 30), (33, 17), (64, 64)):
            x = pixels(*sides)
            torch.testing.assert_close(loaded(x), net.forward(x), rtol=1e-4, atol=1e-5)
            with pytest.raises(weft.UsageError, match="strides"):
                loaded(x.contiguous())


def test_images_of_few_channels_are_padded_in_long_rows_that_end() -> None:
    layer = nn.Conv2d(3, 16, 3, 2, 1)
    with torch.no_grad(), general_alone():
        compiled = weft.hybridize(layer.forward)
        for sides in ((60, 71), (80, 92), (17, 90), (81, 9)):
            x = pixels(*sides)
            torch.testing.assert_close(compiled(x), layer.forward(x), rtol=1e-4, atol=1e-5)
        program = list(compiled.varying)[-1].guarded.program
    loops = [
        call for region in program._forward().regions for call in region.plan.calls if hasattr(call.kernel, "sizes")
    ]
    longest = max(loops, key=lambda call: call.kernel.cycles)
    assert longest.kernel.sizes[-1] > len("rgb")
    assert {end.times for end in longest.ends} >= {6}
