"""What regions hand on is computed as far as operators and regions behind them need it, and no farther."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import weft
from weft.config import overrides
from weft.ir.extents import Polynomial, extent_of_size
from weft.ir.graph import Value
from weft.ir.size_numbers import number_of, size_of_number
from weft.ir.types import NumberType
from weft.plan.draft import Draft, Planner
from weft.plan.form.plan import KernelCall
from weft.plan.kernels.conv_weight import DepthwiseWeightKernel, WeightGradientKernel
from weft.plan.kernels.pack import PackKernel

WIDTH = 32
Layer = Callable[[torch.Tensor], torch.Tensor]


class Around(nn.Module):
    """Layers before and behind something that no kernel computes."""

    def __init__(self, between: Layer) -> None:
        super().__init__()
        self.before, self.behind = (
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(2)
        )
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.before(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.between(x)
        x = x + self.behind(x)
        return x + self.attention(x, x, x, need_weights=False)[0]


BETWEEN: dict[str, Layer] = {
    "sorted": lambda x: torch.sort(x, 1).values,
    "of rows that were two dimensions": lambda x: torch.digamma(x.reshape(-1, WIDTH).abs() + 1).view(x.shape),
    "half as long": lambda x: torch.median(x[:, : x.shape[1] // 2], 1, keepdim=True).values + x,
    "twice": lambda x: torch.cummax(x, 1).values + torch.logcumsumexp(x, 1),
}


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch, no_kept_plans: None) -> list[Draft]:
    """The drafts of programs for many sizes, as they are made."""
    found: list[Draft] = []
    draft = Planner.draft

    def noting(self: Planner, *given: object) -> Draft:
        made = draft(self, *given)
        if self.varying is not None:
            found.append(made)
        return made

    monkeypatch.setattr(Planner, "draft", noting)
    return found


def computes_less(call: KernelCall) -> bool:
    return call.needed is not None or bool(call.ends)


@pytest.mark.parametrize("name", BETWEEN)
def test_what_an_operator_reads_at_true_sizes_is_computed_so_far(name: str, drafts: list[Draft]) -> None:
    torch.manual_seed(0)
    net = Around(BETWEEN[name]).eval()
    with torch.no_grad(), overrides(whole="on"):
        hybrid = weft.hybridize(net.forward)
        for batch, length in ((5, 60), (8, 64), (2, 9), (3, 17), (8, 64), (1, 2)):
            x = torch.randn(batch, length, WIDTH)
            torch.testing.assert_close(hybrid(x), net(x), rtol=1e-4, atol=1e-5)
        assert hybrid.traces <= 4, "one size, many, many that are fewer, and one text"
    _, draft, *_ = drafts  # the first one was for sizes farther away
    calls = [call for region in draft.regions for call in region.kernels.calls]
    assert len(draft.regions) >= 2
    assert all(map(computes_less, calls)), [call.kernel.name for call in calls if not computes_less(call)]


def test_masks_and_views_of_weights_are_made_by_every_region_that_reads_them(drafts: list[Draft]) -> None:
    net = Around(BETWEEN["sorted"]).eval()
    with torch.no_grad():
        hybrid = weft.hybridize(net.forward)
        for batch, length in ((5, 60), (8, 64)):
            hybrid(torch.randn(batch, length, WIDTH))
    *_, draft = drafts
    first = draft.regions[0]._region
    (handed_on,) = first.outputs  # nothing but what is sorted
    assert handed_on.type.shape[1:] == (64, WIDTH), "a program for more would put what is sorted farther apart"


def test_a_number_is_read_as_the_size_that_it_was_written_for() -> None:
    batch, length = (Value("input", (), NumberType("int"), name=name) for name in ("batch", "length"))
    known = {value: Polynomial.atom(value) for value in (batch, length)}
    one, other = (extent_of_size(value, 64) for value in (batch, length))
    for size in (one + 1, one * other, (other + 3) // 4, one * 3 + other // 2, 2 * one * other // 7):
        assert size_of_number(number_of(size.expression), known) == size.expression
    assert size_of_number(number_of((one + other).expression), {batch: known[batch]}) is None


def kernels_in_vain(net: nn.Module, calls: list[torch.Tensor], drafts: list[Draft]) -> list[str]:
    """The kernels of backwards that compute everything at any size, but those that pack weights or join sums."""
    hybrid = weft.hybridize(net)
    for x in calls:
        hybrid(x).square().mean().backward()
    _, *backwards = drafts
    calls_of = (call for draft in backwards for region in draft.regions for call in region.kernels.calls)
    return [
        call.kernel.name
        for call in calls_of
        if not computes_less(call) and not call.kernel.name.endswith("joined") and type(call.kernel) is not PackKernel
    ]


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, WIDTH), nn.Embedding(50, WIDTH)
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.bias = nn.Embedding(9, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(words) + self.places(words + 1))
        batch, length, _ = x.shape
        parts = x.view(batch, length, 2, WIDTH // 2).transpose(1, 2)
        places = torch.arange(length)
        bias = self.bias((places[None] - places[:, None]).clamp(-4, 4) + 4).permute(2, 0, 1)
        shares = torch.softmax(parts @ parts.mT + bias, -1)
        x = x + (shares @ parts).transpose(1, 2).reshape(batch, length, WIDTH)
        return x + self.attention(x, x, x, need_weights=False)[0]


def test_backwards_compute_no_more_than_needed_where_several_sizes_vary(drafts: list[Draft]) -> None:
    torch.manual_seed(0)
    calls = [torch.randint(49, sizes) for sizes in ((5, 60), (8, 64), (2, 9))]
    net = Words()
    vain = kernels_in_vain(net, calls, drafts)
    assert all(name.startswith("loop") for name in vain), vain
    assert len(vain) <= 3, vain  # embeddings' gradients before anything is added


@pytest.mark.parametrize("groups", [1, 4, 16])
def test_gradients_of_weights_of_convolutions_end_where_images_do(groups: int, drafts: list[Draft]) -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(16, 16, 3, padding=1, groups=groups)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), convolution, nn.AdaptiveAvgPool2d(1))
    hybrid = weft.hybridize(net)
    for sizes in ((5, 3, 32, 30), (8, 3, 40, 40), (2, 3, 17, 22), (8, 3, 40, 40)):
        x = torch.randn(sizes)
        wanted = torch.autograd.grad(net(x).square().sum(), [*net.parameters()])
        found = torch.autograd.grad(hybrid(x).square().sum(), [*net.parameters()])
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    calls = [call for draft in drafts for region in draft.regions for call in region.kernels.calls]
    sums = [call for call in calls if isinstance(call.kernel, WeightGradientKernel | DepthwiseWeightKernel)]
    assert len(sums) >= 2
    assert all(call.kernel.ends == (0, 1, 2) for call in sums), [(call.kernel.name, call.kernel.ends) for call in sums]
