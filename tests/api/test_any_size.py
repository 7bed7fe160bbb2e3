"""Functions of PyTorch that make numbers of sizes are in programs for all sizes, and give what eager gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from tests.conformance.compare import form_difference
from torch.utils import _pytree as pytree

import weft
from weft.config import overrides

SIZES = (40, 23, 57, 31, 19, 60, 33, 2, 64, 5)
HANN = torch.hann_window(16)


pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def values_decide() -> Iterator[None]:
    """What users have who say nothing."""
    with overrides(whole="off"):
        yield


def of_sizes(*shape: Any) -> Callable[[int], tuple[torch.Tensor]]:
    return lambda n: (torch.randn([one(n) if callable(one) else one for one in shape]),)


def n(size: int) -> int:
    return size


def long(size: int) -> int:
    return 7 * size + 40


rows, line, signal = of_sizes(n, 3), of_sizes(2, n), of_sizes(2, long)
spectrum = lambda size: (torch.randn(2, 9, size + 4, dtype=torch.complex64),)  # noqa: E731
image = of_sizes(1, 2, lambda size: size + 3, lambda size: size + 5)
theta = torch.tensor([[[0.9, 0.1, 0.2], [-0.1, 1.1, 0.0]]])

CASES: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "linspace": (lambda x: x * torch.linspace(0, 1, x.shape[1]), line),
    "linspace down": (lambda x: x * torch.linspace(3.5, -2, steps=x.shape[1] + 1)[1:], line),
    "linspace of doubles": (lambda x: x * torch.linspace(-1, 1, x.shape[1], dtype=torch.float64), line),
    "linspace with gradients": (lambda x: x * torch.linspace(-1, 1, x.shape[1], requires_grad=True).detach(), line),
    "a grid": (lambda x: torch.stack(torch.meshgrid(torch.linspace(-1, 1, x.shape[0]), x[0], indexing="ij")), rows),
    "vander": (lambda x: torch.vander(x[0].detach(), 4), line),
    "vander up": (lambda x: torch.vander((x[0] * 3).long(), 3, increasing=True), line),
    "kron": (lambda x: torch.kron(x, torch.eye(2)), rows),
    "kron of a row": (lambda x: torch.kron(x[:, 0], x), rows),
    "three chunks": (lambda x: [part.relu() for part in x.chunk(3, dim=1)], line),
    "chunks of rows": (lambda x: [part.sum() for part in torch.chunk(x, 4)], of_sizes(lambda size: size + 20, 3)),
    "a size in a tensor": (lambda x: x.sum(0) / torch.tensor(x.shape[0]), rows),
    "sizes in a tensor": (lambda x: x.sum() * torch.tensor([x.shape[0], 3.0]), rows),
    "nested sizes": (lambda x: torch.tensor([[x.shape[0], 1], [2, 2 * x.shape[0]]], dtype=torch.int32), rows),
    "new_tensor": (lambda x: x.sum(0) / x.new_tensor([x.shape[0], x.shape[0] + 1, 2]), rows),
    "as_tensor": (lambda x: torch.as_tensor(x.shape[0] * 0.5) + x, rows),
    "affine_grid": (
        lambda x: F.grid_sample(x, F.affine_grid(theta, x.shape, align_corners=False), align_corners=False),
        image,
    ),
    "affine_grid at corners": (lambda x: F.affine_grid(theta, list(x.shape), align_corners=True), image),
    "stft": (lambda x: torch.stft(x, 16, 4, window=HANN, return_complex=True).abs(), signal),
    "stft of one": (lambda x: torch.stft(x[0], 16, window=HANN, return_complex=True), signal),
    "stft without a window": (lambda x: torch.stft(x, 16, center=False, return_complex=True), signal),
    "stft of a short window": (
        lambda x: x.stft(16, 5, 12, window=HANN[:12], pad_mode="constant", normalized=True, return_complex=False),
        signal,
    ),
    "stft of both sides": (lambda x: torch.stft(x, 16, win_length=11, onesided=False, return_complex=True), signal),
    "istft": (lambda x: torch.istft(x, 16, 4, window=HANN), spectrum),
    "istft of one": (lambda x: torch.istft(x[0], 16, 8, window=torch.ones(16), normalized=True), spectrum),
    "istft from the start": (lambda x: torch.istft(x, 16, 4, window=torch.hamming_window(16), center=False), spectrum),
    "there and back": (
        lambda x: torch.istft(torch.stft(x, 16, 4, window=HANN, return_complex=True), 16, 4, window=HANN),
        signal,
    ),
    "seven tenths": (lambda x: x[: int(x.shape[0] * 0.7)].relu(), rows),
    "all but a tenth": (lambda x: x[int(0.1 * x.shape[0]) :].exp(), rows),
    "a third": (lambda x: x[: int(x.shape[0] / 3) + 1].exp(), rows),
    "smaller images": (lambda x: F.interpolate(x, scale_factor=0.7, mode="bilinear").relu(), image),
    "larger images": (lambda x: F.interpolate(x, scale_factor=(1.3, 2.1)).relu(), image),
    "images as large as others": (lambda x: F.interpolate(x[..., ::2], size=x.shape[-2:], mode="bilinear") + x, image),
    "rolled by half": (lambda x: torch.roll(x, x.shape[1] // 2, 1).exp(), line),
    "reflected": (lambda x: F.pad(x[None], (1, 1), mode="reflect").exp(), line),
    "pooled to a few": (
        lambda x: torch.cat([F.adaptive_avg_pool2d(x, size).flatten(1) for size in (1, 2, 4)], 1),
        image,
    ),
}  # fmt: skip


def leaves(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("name", CASES)
def test_one_program_gives_what_eager_gives(name: str) -> None:
    function, make = CASES[name]
    hybrid = weft.hybridize(function)
    torch.manual_seed(0)
    for size in SIZES:
        given = make(size)
        ours = [tensor.clone() for tensor in given]
        for tensor in (*given, *ours):
            tensor.requires_grad_()
        right, found = leaves(function(*given)), leaves(hybrid(*ours))
        assert len(right) == len(found)
        for wanted, one in zip(right, found, strict=True):
            assert form_difference(wanted, one) is None
            torch.testing.assert_close(one, wanted, rtol=1e-4, atol=2e-5)
        carrying = [(wanted, one) for wanted, one in zip(right, found, strict=True) if wanted.requires_grad]
        if not carrying:
            continue
        sum(wanted.abs().sum() for wanted, _ in carrying).backward()
        sum(one.abs().sum() for _, one in carrying).backward()
        torch.testing.assert_close(ours[0].grad, given[0].grad, rtol=1e-3, atol=1e-4)
    of_many = [*hybrid.varying, *(key for key in hybrid.programs if hybrid.varying.range_of(key))]
    assert of_many, weft.explain(hybrid)
    assert hybrid.traces <= 7, weft.explain(hybrid)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.stft(x[:, :9], 64, return_complex=True) * x.shape[1],
        lambda x: torch.stft(x, 16),
        lambda x: torch.istft(torch.stft(x, 16, return_complex=True), 16, window=torch.zeros(16)),
        lambda x: torch.linspace(0, 1, x.shape[1], dtype=torch.int32).bogus(),
        lambda x: torch.tensor([[x.shape[1]], [1, 2]]) + x,
        lambda x: x.chunk(0),
    ],
    ids=["too short", "no complex", "no envelope", "no attribute", "uneven", "no chunks"],
)
def test_what_pytorch_refuses_raises_its_error(function: Callable[..., Any]) -> None:
    hybrid = weft.hybridize(function)
    for size in (40, 50, 60, 44):
        x = torch.randn(2, size)
        with pytest.raises(Exception) as eagers:  # noqa: PT011 - whatever eager raises
            function(x)
        with pytest.raises(eagers.type):
            hybrid(x)


@pytest.mark.parametrize("factor", [0.1, 0.3, 0.7, 1 / 3, 0.55, 1.7, 2.9, 0.123])
def test_a_size_times_a_fraction_is_rounded_as_floats_are(factor: float) -> None:
    hybrid = weft.hybridize(lambda x: x[: int(x.shape[0] * min(factor, 1))] + int(x.shape[0] * factor))
    for size in (250, *range(255, 100, -1)):
        x = torch.randn(size)
        torch.testing.assert_close(hybrid(x), x[: int(size * min(factor, 1))] + int(size * factor))
    assert hybrid.traces <= 3


@pytest.mark.parametrize("shift", [1, -1, 7, -9])
def test_rows_are_moved_by_more_than_there_are(shift: int) -> None:
    moved = weft.hybridize(lambda x: torch.roll(x, shift, 0) * 2)
    behind_a_value = weft.hybridize(lambda x, q: torch.roll(x, shift, 0) * int(q))
    for size in (11, 6, 12, 5, 3, 9, 2, 14):
        x = torch.randn(size, 2)
        torch.testing.assert_close(moved(x), torch.roll(x, shift, 0) * 2)
        torch.testing.assert_close(behind_a_value(x, torch.tensor(size)), torch.roll(x, shift, 0) * size)
