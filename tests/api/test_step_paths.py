"""Steps of code that values decide in: paths with the backward and the update in their last segment."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.api.step_agreement import as_double, assert_same_state, close
from torch import Tensor, nn, optim
from torch.nn import functional

import weft
from weft.config import overrides

ADAM, SGD = partial(optim.Adam, lr=0.01), partial(optim.SGD, lr=0.05, momentum=0.9)


class Net(nn.Module):
    """Two layers, a norm and dropout, for what the classes below do with them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 6)
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.seen = 0


class Branches(Net):
    """Take one layer or both; what is not taken has no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        """Go by the sum."""
        y = self.norm(self.first(x))
        return self.second(y) if x.sum() > 0 else y[:, :6]


class Asserts(Net):
    """Check the values that come in."""

    def forward(self, x: Tensor) -> Tensor:
        """Refuse what is large."""
        if not bool((x.abs() < 100).all()):
            raise ValueError("too large")
        return self.second(self.drop(self.norm(self.first(x))))


class Masks(Net):
    """Work on the rows that a mask selects, of which there are ever other numbers."""

    def forward(self, x: Tensor) -> Tensor:
        """Add to the selected rows what the layers make of them."""
        rows = (x[:, 0] > 0).nonzero()[:, 0]
        return x + torch.zeros_like(x).index_add(0, rows, self.second(self.first(x[rows]).relu()))


class Experts(Net):
    """Each row goes through the layer that it chose."""

    def forward(self, x: Tensor) -> Tensor:
        """Choose by the largest of the first two."""
        chosen, out = x[:, :2].argmax(1), torch.zeros(x.shape[0], 8, dtype=x.dtype)
        for place, layer in enumerate((self.first, nn.Sequential(self.first, self.norm))):
            rows = torch.where(chosen == place)[0]
            if rows.numel() > 1:
                out = out.index_add(0, rows, layer(x[rows]))
        return self.second(out)


class Rounds(Net):
    """Repeat until a value is small, and count."""

    def forward(self, x: Tensor) -> Tensor:
        """Halve at most four times."""
        self.seen += 1
        y, count = self.drop(self.first(x)), 0
        while y.abs().max() > 1.5 and count < 4:
            y, count = y / 2, count + 1
        return self.second(y)


class Numbers(Net):
    """Read a number that flows on."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale by what is read."""
        scale = x.abs().max().item()
        return self.second(self.first(x / scale))


def loss_of(found: Tensor, target: Tensor) -> Tensor:
    return (found - target).square().mean()


def batches(count: int, rows: int = 12) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(3)
    return [as_double((torch.randn(rows, 6) + 0.3 * (-1) ** turn, torch.randn(rows, 6))) for turn in range(count)]


def eager_loop(net: nn.Module, optimizer: optim.Optimizer) -> Callable[[Tensor, Tensor], Tensor]:
    def train(x: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        found = loss_of(net(x), target)
        found.backward()
        optimizer.step()
        return found.detach()

    return train


def both(kind: type[Net], make: Any, **options: Any) -> tuple[Any, Any, nn.Module, nn.Module, Any, Any]:
    torch.manual_seed(0)
    eager = kind().double()
    ours = copy.deepcopy(eager)
    optimizers = make(eager.parameters()), make(ours.parameters())
    step = weft.step(ours, loss_of, optimizers[1], **options)
    return eager_loop(eager, optimizers[0]), step, eager, ours, *optimizers


def assert_same(eager: nn.Module, ours: nn.Module) -> None:
    for name, tensor in eager.state_dict().items():
        close(ours.state_dict()[name], tensor)
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if theirs.grad is not None and mine.grad is not None:
            close(mine.grad, theirs.grad)


@pytest.fixture(autouse=True)
def _as_programs() -> Any:
    with overrides(whole="off", clock="off"):
        yield


@pytest.mark.parametrize("make", [ADAM, SGD])
@pytest.mark.parametrize("kind", [Branches, Asserts, Masks, Experts, Rounds, Numbers])
def test_steps_of_code_that_values_decide_in_train_as_eager_does(kind: type[Net], make: Any) -> None:
    train, step, eager, ours, *optimizers = both(kind, make)
    for turn, batch in enumerate(batches(14)):
        torch.manual_seed(turn)
        expected, drawn = train(*batch), torch.rand(2)
        torch.manual_seed(turn)
        close(step(*batch), expected)
        assert torch.equal(torch.rand(2), drawn)
        assert_same(eager, ours)
    assert_same_state(optimizers[1], optimizers[0])
    assert step.traces >= 1, weft.explain(step)
    assert eager.seen == ours.seen


@pytest.mark.parametrize("options", [{"accumulate": 3}, {"clip_norm": 0.1}, {"clip_value": 0.01}])
@pytest.mark.parametrize("kind", [Branches, Masks])
def test_options_of_steps_hold_on_every_path(kind: type[Net], options: dict[str, Any]) -> None:
    train, step, eager, ours, *optimizers = both(kind, ADAM, **options)
    del train
    for turn, (x, target) in enumerate(batches(15)):
        count = options.get("accumulate", 1)
        if turn % count == 0:
            optimizers[0].zero_grad()
        expected = loss_of(eager(x), target)
        (expected / count).backward()
        if (turn + 1) % count == 0:
            if "clip_norm" in options:
                nn.utils.clip_grad_norm_(eager.parameters(), options["clip_norm"])
            if "clip_value" in options:
                nn.utils.clip_grad_value_(eager.parameters(), options["clip_value"])
            optimizers[0].step()
        close(step(x, target), expected.detach())
        assert_same(eager, ours)
    assert step.traces >= 1, weft.explain(step)


def test_what_the_code_raises_on_a_path_is_raised_and_changes_nothing() -> None:
    _, step, _, ours, _, optimizer = both(Asserts, ADAM)
    for batch in batches(5):
        step(*batch)
    assert step.traces
    before, state = copy.deepcopy(ours.state_dict()), copy.deepcopy(optimizer.state_dict())
    x, target = batches(1)[0]
    for _ in range(3):
        with pytest.raises(ValueError, match="too large"):
            step(1000 * x, target)
        for name, tensor in before.items():
            assert torch.equal(ours.state_dict()[name], tensor)
        found = optimizer.state_dict()["state"]
        assert all(torch.equal(found[at]["exp_avg"], entry["exp_avg"]) for at, entry in state["state"].items())
    step(x, target)


def test_an_operator_that_raises_on_a_path_is_eagers_error() -> None:
    table = nn.Embedding(5, 3)

    def net(words: Tensor) -> Tensor:
        return table(words) * 2 if words.sum() > 3 else table(words)

    step = weft.step(net, functional.mse_loss, optim.SGD(table.parameters(), lr=0.1))
    for words in ([1, 2, 3], [0, 1, 1], [4, 4, 4], [0, 0, 1], [1, 2, 3]):
        step(torch.tensor(words), torch.zeros(3, 3))
    before = table.weight.detach().clone()
    for words in ([1, 2, 9], [0, 0, -9]):
        with pytest.raises(IndexError):
            step(torch.tensor(words), torch.zeros(3, 3))
    assert torch.equal(table.weight, before)
    assert step.traces >= 2


def test_an_optimizer_without_a_rule_updates_after_a_path() -> None:
    class Signs(optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad.sign(), alpha=0.01)

    train, step, eager, ours, *_ = both(Masks, partial(Signs, lr=0.1))
    for batch in batches(8):
        close(step(*batch), train(*batch))
        assert_same(eager, ours)
    assert step.traces == 1, weft.explain(step)


def test_a_deterministic_step_has_no_paths_and_a_whole_one_refuses() -> None:
    _, step, *_ = both(Branches, ADAM, deterministic=True)
    for batch in batches(4):
        step(*batch)
    assert step.traces == 0
    _, step, *_ = both(Branches, ADAM, whole=True)
    with pytest.raises(weft.UnsupportedError, match="branches on the value"):
        step(*batches(1)[0])


def test_steps_that_are_checked_agree_on_every_path() -> None:
    _, step, *_ = both(Branches, ADAM, check=12)
    for batch in batches(12):
        step(*batch)
    assert step.traces >= 2


def test_sizes_that_vary_and_values_that_decide_meet_in_one_step() -> None:
    train, step, eager, ours, *_ = both(Masks, ADAM)
    for rows in (4, 9, 4, 13, 9, 20, 4, 9, 13):
        batch = batches(1, rows)[0]
        close(step(*batch), train(*batch))
        assert_same(eager, ours)


class Turns(nn.Module):
    """One layer, and a factor that values may decide: paths of few operators, which native code may walk."""

    def __init__(self, decides: bool) -> None:
        super().__init__()
        self.layer, self.decides = nn.Linear(3, 3), decides

    def forward(self, x: Tensor) -> Tensor:
        """Go by the sum."""
        return self.layer(x).sum() * (2 if not self.decides or x.sum() > 0 else 3)


@pytest.mark.parametrize("around", [contextlib.nullcontext, torch.no_grad])
@pytest.mark.parametrize("decides", [True, False])
def test_steps_of_few_operators_train_in_any_mode(decides: bool, around: Callable[[], Any]) -> None:
    net = Turns(decides).double()
    plain = copy.deepcopy(net)
    with overrides(whole="off", clock="on", programs_at_once=2):
        step = weft.step(net, None, optim.SGD(net.parameters(), 0.1))  # without momentum
    optimizer = optim.SGD(plain.parameters(), 0.1)
    for turn in range(8):
        x = torch.randn(2, 3, dtype=torch.float64).abs() * (1 if turn % 3 else -1)
        with around(), overrides(whole="off", clock="on", programs_at_once=2):
            found = step(x)
        optimizer.zero_grad()
        expected = plain(x)
        expected.backward()
        optimizer.step()
        close(found, expected.detach())
        close(net.layer.weight, plain.layer.weight)


def test_a_step_trains_in_inference_mode() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    plain = copy.deepcopy(net)
    step = weft.step(net, nn.functional.mse_loss, optim.SGD(net.parameters(), 0.1))
    expected = weft.step(plain, nn.functional.mse_loss, optim.SGD(plain.parameters(), 0.1))
    batch = torch.randn(4, 3), torch.randn(4, 2)
    for _ in range(3):
        with torch.inference_mode():
            found = step(*batch)
        close(found, expected(*batch))
        assert not found.is_inference()
