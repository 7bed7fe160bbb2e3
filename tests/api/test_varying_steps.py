"""Steps train by one program on batches of many sizes, as the usual loop does."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import pytest
import torch
from tests.api.test_varying_sizes import poisoned
from torch import nn
from torch.nn import functional

import weft
from weft.api.pace import FEWEST_SAMPLES, SAMPLES, WARM, Pace
from weft.devices import cores
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.attention_gradient import AttentionGradientKernel
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.scatter import ScatterKernel

__all__ = ["poisoned"]
BATCHES = ((32,), (32,), (7,), (13,), (32,), (9,), (50,), (3,))
LEAST_CYCLES = 4_000  # of a kernel: those of texts, not of classes, take longer
TEXTS = ((8, 20), (8, 20), (8, 17), (5, 31), (8, 9), (3, 12), (16, 40), (2, 5))


class Encoder(nn.Module):
    """Texts with padding, classified by the mean of what is no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(64, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of four classes."""
        hidden = self.words(words) + self.places(torch.arange(words.shape[1]))
        hidden = self.layer(hidden, src_key_padding_mask=words == 0)
        there = (words != 0).unsqueeze(-1).float()
        return self.head((hidden * there).sum(1) / there.sum(1).clamp(min=1))


class Texts(nn.Module):
    """Texts classified by the mean of their words, with words or texts outermost."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, 64), nn.Linear(64, 4)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=batch_first)
        self.along = 1 if batch_first else 0

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of four classes."""
        hidden = self.words(words if self.along else words.t())
        return self.head(self.layer(hidden).mean(self.along))


class Decoder(nn.Module):
    """Causal attention written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inside, self.head = nn.Embedding(50, 32), nn.Linear(32, 96), nn.Linear(32, 50)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of the next word at each place, the classes in front."""
        batch, length = words.shape
        queries, keys, values = self.inside(self.words(words)).view(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        scores = queries @ keys.transpose(-1, -2) / 8**0.5
        later = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        seen = scores.masked_fill(later, float("-inf")).softmax(-1) @ values
        return self.head(seen.transpose(1, 2).reshape(batch, length, 32)).transpose(1, 2)


class Tables(nn.Module):
    """Embeddings summed, squared and multiplied, as factorization machines do."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(200, 8), nn.Linear(40, 1)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """One score for each row."""
        found = self.table(places)
        pairs = 0.5 * (found.sum(1) ** 2 - (found**2).sum(1)).sum(1)
        return self.head(found.flatten(1)).squeeze(1) + pairs


class Graph(nn.Module):
    """A layer that adds up what neighbours are."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Scores of each node."""
        total = torch.zeros_like(nodes).index_add(0, edges[1], nodes[edges[0]])
        return self.own(nodes) + self.others(total)


class Layers(nn.Module):
    """Layers of each word, a norm, and the mean of a text: sums over texts and words, merged and not."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of each text."""
        return self.head(self.norm(x + self.down(torch.relu(self.up(x)))).mean(1))


@dataclass(frozen=True)
class Case:
    """A module, its loss, batches of given sizes."""

    make: Callable[[], nn.Module]
    loss: Callable[..., torch.Tensor]
    batch: Callable[..., tuple[torch.Tensor, ...]]
    sizes: tuple[tuple[int, ...], ...] = BATCHES


def texts(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    """Words of which some are padding, and a class for each text."""
    words = torch.randint(1, 50, (batch, length))
    words[0, length // 2 + 1 :] = 0
    return words, torch.randint(4, (batch,))


def images(batch: int) -> tuple[torch.Tensor, ...]:
    """An image, and itself as the target."""
    image = torch.randn(batch, 3, 16, 16)
    return image, image


CASES = {
    "perceptron": Case(
        lambda: nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 4)),
        nn.CrossEntropyLoss(),
        lambda size: (torch.randn(size, 20), torch.randint(4, (size,))),
    ),
    "regression": Case(
        lambda: nn.Sequential(nn.Linear(20, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 1)),
        nn.MSELoss(),
        lambda size: (torch.randn(size, 20), torch.randn(size, 1)),
    ),
    "encoder": Case(Encoder, nn.CrossEntropyLoss(), texts, TEXTS),
    "decoder": Case(
        Decoder,
        lambda scores, target: functional.cross_entropy(scores, target, ignore_index=0),
        lambda *size: (torch.randint(1, 50, size), torch.randint(50, size)),
        TEXTS,
    ),
    "layers": Case(
        Layers,
        nn.CrossEntropyLoss(),
        lambda length: (torch.randn(6, length, 32), torch.randint(4, (6,))),
        ((64,), (64,), (61,), (17,), (33,), (90,), (2,), (48,)),
    ),
    "tables": Case(
        Tables,
        nn.BCEWithLogitsLoss(),
        lambda size: (torch.randint(200, (size, 5)), torch.randint(2, (size,)).float()),
    ),
    "graph": Case(
        Graph,
        nn.CrossEntropyLoss(),
        lambda nodes, edges: (
            torch.randn(nodes, 16),
            torch.randint(nodes, (2, edges)),
            torch.randint(4, (nodes,)),
        ),
        ((50, 120), (50, 120), (33, 99), (64, 240), (20, 31), (90, 300)),
    ),
    "images": Case(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.GroupNorm(2, 8),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        ),
        nn.CrossEntropyLoss(),
        lambda batch, height, width: (torch.randn(batch, 3, height, width), torch.randint(4, (batch,))),
        ((4, 20, 20), (4, 24, 21), (3, 17, 30), (4, 31, 17)),
    ),
    "autoencoder": Case(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, stride=2, padding=1)
        ),
        nn.MSELoss(),
        images,
    ),
}


def train_both(case: Case, **options: Any) -> Any:
    """Train by steps and by the usual loop on the same batches; every loss and parameter must be the same."""
    torch.manual_seed(0)
    ours = case.make()
    theirs = copy.deepcopy(ours)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9) for net in (ours, theirs)]
    step, norm = weft.step(ours, case.loss, optimizers[0], **options), options.get("clip_norm")
    every = options.get("accumulate", 1)
    for number, size in enumerate((*case.sizes, *case.sizes)):
        *given, target = case.batch(*size)
        found = step(*given, target)
        if number % every == 0:
            optimizers[1].zero_grad()
        loss = case.loss(theirs(*given), target)
        (loss / every).backward()
        if number % every == every - 1:
            if norm is not None:
                nn.utils.clip_grad_norm_(theirs.parameters(), norm)
            optimizers[1].step()
        torch.testing.assert_close(found, loss.detach(), rtol=1e-4, atol=1e-5)
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    return step


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("name", CASES)
def test_a_few_programs_train_on_all_sizes(name: str) -> None:
    step = train_both(CASES[name])
    assert not step.varying.refusals
    assert 1 <= len(list(step.varying)) <= 4
    assert sum(map(len, step.programs.values())) == 1  # of the first size


@pytest.mark.usefixtures("poisoned")
def test_kernels_compute_norms_over_batches_of_all_sizes_and_their_statistics() -> None:
    ours = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.GroupNorm(2, 8), nn.Flatten())
    ours = ours.append(nn.Linear(8 * 36, 4)).append(nn.BatchNorm1d(4, momentum=None))
    theirs = copy.deepcopy(ours)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in (ours, theirs)]
    step = weft.step(ours, nn.CrossEntropyLoss(), optimizers[0])
    for count in (8, 8, 5, 13, 2, 16):
        x, classes = torch.randn(count, 3, 8, 8), torch.randint(4, (count,))
        step(x, classes)
        optimizers[1].zero_grad()
        functional.cross_entropy(theirs(x), classes).backward()
        optimizers[1].step()
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-4, atol=1e-5)
    [program] = step.varying
    steps = program.guarded.program.plan.library.steps
    assert not [one.value for one in steps if one.value.op == "library"]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("options", [{"clip_norm": 0.1}, {"accumulate": 2}, {"memory": "low"}], ids=str)
def test_options_hold_for_all_sizes(options: dict[str, Any]) -> None:
    step = train_both(CASES["perceptron"], **options)
    assert not step.varying.refusals
    assert list(step.varying)


def test_deterministic_steps_have_a_program_for_each_size() -> None:
    step = train_both(CASES["perceptron"], deterministic=True)
    assert not list(step.varying)


@pytest.mark.parametrize(("seconds", "is_pythons"), [(0.9, True), (1.1, False)])
def test_the_faster_of_program_and_python_goes_on_for_what_there_is_to_compute(
    seconds: float, is_pythons: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("weft.api.pace._clock", lambda: lambda: clock[0])
    pace = Pace(with_gradients=False)
    for number in range(WARM + 2 * SAMPLES):
        by_python = pace.is_for_python()
        assert by_python == (number >= WARM and (number - WARM) % 2 == 1)
        work = 1.0 if by_python else 3.0
        with pace.timed(by_python=by_python, work=work):
            clock[0] += work * (seconds if by_python else 1.0)
    assert pace.is_for_python() == is_pythons


@pytest.mark.parametrize(("seconds", "is_pythons"), [(0.5, True), (2.0, False)])
def test_a_few_calls_settle_what_is_clear(seconds: float, is_pythons: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("weft.api.pace._clock", lambda: lambda: clock[0])
    pace = Pace(with_gradients=False, warm=0)
    for _ in range(2 * FEWEST_SAMPLES):
        by_python = pace.is_for_python()
        with pace.timed(by_python=by_python):
            clock[0] += seconds if by_python else 1.0
    assert pace.is_settled != is_pythons
    assert [pace.is_for_python() for _ in range(3)] == [is_pythons] * 3


def test_what_other_processes_take_does_not_count_where_one_thread_computes_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weft.api.pace.perf_counter", lambda: next(waits))
    monkeypatch.setattr("weft.api.pace.thread_time", lambda: clock[0])
    waits, clock, threads = itertools.count(step=1000), [0.0], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with cores(1):
            pace = Pace(with_gradients=False, warm=0)
    finally:
        torch.set_num_threads(threads)
    for _ in range(2 * FEWEST_SAMPLES):
        by_python = pace.is_for_python()
        with pace.timed(by_python=by_python):
            clock[0] += 0.5 if by_python else 1.0
    assert pace.is_for_python()


def test_all_work_on_words_ends_where_texts_do() -> None:
    net = Layers()
    step = weft.step(net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.1), whole=True)
    for length in (64, 63):
        step(torch.randn(16, length, 32), torch.randint(4, (16,)))
    (varying,) = step.varying
    calls = [call for plan in varying.guarded.program.plan.regions for call in plan.calls]
    products = [call for call in calls if isinstance(call.kernel, GemmKernel)]
    of_words = [
        call
        for call in products
        if call.kernel.inner >= 16 * 64 or call.kernel.rows * prod(call.kernel.batch) >= 16 * 64
    ]
    assert len(of_words) == 5  # two layers, the gradient of one's input, and of both weights
    assert all(call.ends for call in of_words)


@pytest.mark.parametrize("batch_first", [True, False])
def test_all_of_a_step_on_texts_ends_where_these_do(batch_first: bool) -> None:
    net = Texts(batch_first=batch_first)
    step = weft.step(net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.1), whole=True)
    for length in (64, 63):
        step(torch.randint(50, (16, length)), torch.randint(4, (16,)))
    (varying,) = step.varying
    calls = [call for plan in varying.guarded.program.plan.regions for call in plan.calls]
    kinds = (GemmKernel, AttentionKernel, AttentionGradientKernel, ScatterKernel)
    heavy = [call for call in calls if isinstance(call.kernel, kinds) and call.kernel.cycles > LEAST_CYCLES]
    assert {type(call.kernel) for call in heavy} == {*kinds}
    assert all(call.ends for call in heavy)
