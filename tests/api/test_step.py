"""weft.step: models of all kinds, what may stand around a step, and what happens when one fails."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.api.step_agreement import (
    as_double,
    assert_same_state,
    assert_trains_alike,
    close,
    eager_step,
    farthest,
    stepped,
    trained,
)
from torch import nn, optim
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import weft
from weft.devices import cores

SGD = partial(optim.SGD, lr=0.05, momentum=0.9)
ADAM = partial(optim.Adam, lr=0.01)


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 1, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)])
        self.short = nn.Conv2d(2, 4, 1, 2)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two convolutions and a short cut."""
        y = self.norms[1](self.second(functional.relu(self.norms[0](self.first(x)))))
        return self.head(functional.relu(y + self.short(x)).mean((2, 3)))


class Recurrent(nn.Module):
    """An LSTM and a layer on its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 6, 2), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last step's scores."""
        return self.head(self.lstm(x)[0][-1])


class Embedded(nn.Module):
    """Embeddings of a few fields, and a layer that shares its weight with them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(7, 4, padding_idx=0), nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of all entries."""
        return self.out(torch.tanh(self.inner(self.table(x).sum(1))))


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 5, padding=2),
        nn.Sigmoid(),
        nn.AvgPool2d(2),
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def labels(count: int = 4, classes: int = 3) -> torch.Tensor:
    return torch.randint(0, classes, (count,))


def data(count: int = 3) -> list[tuple[torch.Tensor, ...]]:
    torch.manual_seed(2)
    return [(torch.randn(4, 6), labels()) for _ in range(count)]


ENTROPY = functional.cross_entropy
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any], Any, Callable[[], tuple[torch.Tensor, ...]]]] = {
    "mlp": (mlp, ENTROPY, SGD, lambda: (torch.randn(4, 6), labels())),
    "lenet": (lenet, ENTROPY, SGD, lambda: (torch.randn(4, 1, 12, 12), labels())),
    "residual block": (Block, ENTROPY, SGD, lambda: (torch.randn(4, 2, 8, 8), labels())),
    "encoder": (encoder, functional.mse_loss, ADAM, lambda: (torch.randn(2, 5, 8), torch.randn(2, 5, 8))),
    "lstm": (Recurrent, ENTROPY, ADAM, lambda: (torch.randn(5, 4, 4), labels())),
    "embeddings, tied": (Embedded, ENTROPY, ADAM, lambda: (torch.randint(0, 7, (4, 3)), labels(4, 7))),
}


def made(name: str) -> tuple[nn.Module, Callable[..., Any], Any, list[tuple[torch.Tensor, ...]]]:
    """A model with its loss, its optimizer, and three batches."""
    make, loss, optimizer, batch = MODELS[name]
    torch.manual_seed(3)
    return make(), loss, optimizer, [batch() for _ in range(3)]


@pytest.mark.parametrize("steps", [1, 10])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_eager_does(name: str, steps: int) -> None:
    net, loss, optimizer, batches = made(name)
    assert_trains_alike(net, loss, optimizer, batches, steps)


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"bias": False}], ids=str)
def test_gates_of_an_lstm_are_computed_once_in_a_step(options: dict[str, Any]) -> None:
    steps, batch, size = 4, 8, 16
    net, x = nn.LSTM(24, size, **options), torch.randn(steps, batch, 24)
    directions = 2 if options.get("bidirectional") else 1
    target = torch.randn(steps, batch, directions * size)
    step = weft.step(net, lambda found, wanted: functional.mse_loss(found[0], wanted), SGD(net.parameters()))
    step(x, target)
    text = str(weft.program(step, x, target).plan)
    products = sum(f"gemm {batch}x{4 * size}x{inner} " in line for line in text.splitlines() for inner in (24, size))
    assert products == 2 * steps * directions
    assert f"gemm {steps * batch}x{4 * size}x" not in text


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_hundred_steps_end_where_eager_ends(name: str) -> None:
    net, loss, optimizer, batches = made(name)
    assert_trains_alike(net, loss, optimizer, batches, 100)


@pytest.mark.parametrize("name", MODELS)
def test_in_float32_the_error_is_about_eagers(name: str) -> None:
    net, loss, optimizer, batches = made(name)
    exact = trained(copy.deepcopy(net).double(), loss, optimizer, [as_double(batch) for batch in batches], 10)[0]
    eager = trained(net, loss, optimizer, batches, 10)[0]
    ours = stepped(net, loss, optimizer, batches, 10)[0]
    assert farthest(ours, exact) <= 2 * farthest(eager, exact) + 2e-5


def test_dropout_draws_the_same_numbers_as_eager() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    assert_trains_alike(net, ENTROPY, SGD, data())


def test_frozen_and_unused_parameters_stay_and_get_no_state() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.used, self.unused = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(2, 2)
            self.frozen.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(self.frozen(x))

    assert_trains_alike(Partly(), ENTROPY, ADAM, data())


def test_a_parameter_that_comes_into_use_late_starts_its_own_count() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.grown = nn.Linear(6, 3), nn.Linear(6, 3), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x) + self.second(x) if self.grown else self.first(x)

    def train(net: nn.Module, *, by_step: bool) -> optim.Optimizer:
        optimizer = ADAM(net.parameters())
        step = weft.step(net, ENTROPY, optimizer)
        for turn in range(8):
            net.grown = turn in (3, 5, 6)
            x, y = data()[turn % 3]
            if by_step:
                step(x.double(), y)
            else:
                eager_step(net, ENTROPY, optimizer, (x.double(), y))
        return optimizer

    torch.manual_seed(4)
    eager = Growing().double()
    ours = copy.deepcopy(eager)
    assert_same_state(train(ours, by_step=True), train(eager, by_step=False))
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        close(mine, theirs)


def test_thawing_a_parameter_makes_one_more_program() -> None:
    net = mlp()
    net[0].requires_grad_(False)
    step = weft.step(net, ENTROPY, optim.SGD(net.parameters(), 0.1))
    batch = data()[0]
    step(*batch)
    before = net[0].weight.clone()
    net[0].requires_grad_(True)
    step(*batch)
    assert step.traces == 2
    assert not torch.equal(before, net[0].weight)


@pytest.mark.parametrize("kind", [tuple, dict])
def test_of_several_losses_the_sum_is_differentiated(kind: type) -> None:
    def losses(output: torch.Tensor, target: torch.Tensor) -> Any:
        found = (functional.cross_entropy(output, target), output.square().mean())
        return found if kind is tuple else dict(zip(("entropy", "size"), found, strict=True))

    def summed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, target) + output.square().mean()

    net, other = mlp(), mlp()
    batch = data()[0]
    found = weft.step(net, losses, SGD(net.parameters()))(*batch)
    expected = weft.step(other, summed, SGD(other.parameters()))(*batch)
    assert isinstance(found, kind)
    assert not any(part.requires_grad for part in (found if kind is tuple else found.values()))
    torch.testing.assert_close(sum(found if kind is tuple else found.values()), expected)
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_without_a_loss_function_the_module_gives_its_loss() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: torch.Tensor, *, target: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(self.net(x), target)

    net, eager = Own(), mlp()
    x, y = data()[0]
    loss = weft.step(net, None, SGD(net.parameters()))(x, target=y)
    torch.testing.assert_close(loss, functional.cross_entropy(eager(x), y).detach())


class Answer(dict[str, torch.Tensor]):
    """Results that are also attributes, as models of transformers give them."""

    def __getattr__(self, name: str) -> torch.Tensor:
        return self[name]


class WithAnswer(nn.Module):
    """Gives its loss among other results."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Answer:
        """Loss and scores."""
        scores = self.layer(x)
        return Answer(loss=functional.cross_entropy(scores, labels), scores=scores)


def test_a_net_may_give_its_loss_among_other_results() -> None:
    net = WithAnswer()
    other = copy.deepcopy(net)
    batch = {"x": torch.randn(5, 4), "labels": torch.tensor([0, 1, 2, 0, 1])}
    step, optimizer = weft.step(net, None, SGD(net.parameters())), SGD(other.parameters())
    for _ in range(3):
        loss = step(**batch)
        optimizer.zero_grad()
        expected = other(**batch).loss
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(net.state_dict(), other.state_dict())


@pytest.mark.parametrize("limits", [{"clip_norm": 0.1}, {"clip_value": 0.01}, {"clip_norm": 0.1, "clip_value": 0.02}])
def test_gradients_are_clipped_as_by_pytorch(limits: dict[str, float]) -> None:
    net, eager = mlp().double(), mlp().double()
    optimizer, eager_optimizer = SGD(net.parameters()), SGD(eager.parameters())
    step = weft.step(net, ENTROPY, optimizer, **limits)
    for x, y in data():
        eager_optimizer.zero_grad()
        ENTROPY(eager(x.double()), y).backward()
        if "clip_norm" in limits:
            nn.utils.clip_grad_norm_(eager.parameters(), limits["clip_norm"])
        if "clip_value" in limits:
            nn.utils.clip_grad_value_(eager.parameters(), limits["clip_value"])
        eager_optimizer.step()
        step(x.double(), y)
    for mine, theirs in zip(net.parameters(), eager.parameters(), strict=True):
        close(mine, theirs)
        assert mine.grad is not None
        assert theirs.grad is not None
        close(mine.grad, theirs.grad)


@pytest.mark.parametrize("optimizer", [SGD, ADAM, optim.Adafactor])
def test_accumulated_calls_update_once_as_one_large_batch_would(optimizer: Any) -> None:
    net, eager = mlp().double(), mlp().double()
    batches = [(x.double(), y) for x, y in data(6)]
    step = weft.step(net, ENTROPY, optimizer(net.parameters()), accumulate=3)
    eager_optimizer = optimizer(eager.parameters())
    before = net[0].weight.clone()
    for turn, batch in enumerate(batches):
        step(*batch)
        if turn == 1:
            assert torch.equal(net[0].weight, before)
    for group in (batches[:3], batches[3:]):
        eager_optimizer.zero_grad()
        ENTROPY(eager(torch.cat([x for x, _ in group])), torch.cat([y for _, y in group])).backward()
        eager_optimizer.step()
    for mine, theirs in zip(net.parameters(), eager.parameters(), strict=True):
        close(mine, theirs)
        assert mine.grad is not None
        assert theirs.grad is not None
        close(mine.grad, theirs.grad)
    # The first call, one between, and the one that updates; where PyTorch updates, the last two are the same.
    assert step.traces == (2 if optimizer is optim.Adafactor else 3)


def test_batches_that_are_slices_of_one_tensor_share_a_program() -> None:
    torch.manual_seed(2)
    x, y = torch.randn(12, 6), labels(12)
    net = Block()
    x = torch.randn(12, 2, 8, 8)
    step = weft.step(net, ENTROPY, SGD(net.parameters()))
    for start in range(0, 12, 4):
        step(x[start : start + 4], y[start : start + 4])
    assert step.traces == 1, step.misses


def test_an_argument_that_is_a_parameter_too_is_noticed() -> None:
    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight).sum()

    net = Added()
    step = weft.step(net, None, optim.SGD(net.parameters(), 0.5))
    step(torch.full((3, 3), 2.0))
    torch.testing.assert_close(net.weight.detach(), torch.zeros(3, 3))
    step(net.weight.detach())
    torch.testing.assert_close(net.weight.detach(), torch.zeros(3, 3))
    assert step.traces == 2


def test_autocast_around_a_step_casts_its_forward() -> None:
    def train(net: nn.Module, *, by_step: bool) -> torch.Tensor:
        optimizer = optim.SGD(net.parameters(), 0.1)
        step = weft.step(net, ENTROPY, optimizer)
        found = torch.zeros(())
        for x, y in data():
            with torch.autocast("cpu", torch.bfloat16):
                if by_step:
                    found = step(x, y)
                    continue
                loss = ENTROPY(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found = loss.detach()
        return found

    eager, ours = mlp(), mlp()
    torch.testing.assert_close(train(ours, by_step=True), train(eager, by_step=False), rtol=2e-2, atol=2e-2)
    assert all(parameter.dtype == torch.float32 for parameter in ours.parameters())
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


def test_gradients_of_the_last_step_are_kept_by_whoever_holds_them() -> None:
    net = mlp()
    step = weft.step(net, ENTROPY, optim.SGD(net.parameters(), 0.1))
    first, second, _ = data()
    step(*first)
    gradient = net[0].weight.grad
    assert gradient is not None
    before = gradient.clone()
    step(*second)
    assert torch.equal(gradient, before)
    assert net[0].weight.grad is not gradient


def test_a_hybridized_module_is_stepped_as_any_other() -> None:
    net, other = mlp(), weft.hybridize(mlp())
    batch = data()[0]
    weft.step(net, ENTROPY, SGD(net.parameters()))(*batch)
    weft.step(other, ENTROPY, SGD(other.parameters()))(*batch)
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", ["residual block", "encoder", "lstm"])
def test_a_deterministic_step_gives_the_same_bits_on_any_number_of_cores(name: str) -> None:
    net, loss, make, batches = made(name)

    def trained_on(count: int) -> list[torch.Tensor]:
        ours = copy.deepcopy(net)
        step = weft.step(ours, loss, make(ours.parameters()), deterministic=True)
        threads = torch.get_num_threads()
        with cores(count):
            for batch in batches:
                step(*batch)
        assert torch.get_num_threads() == threads
        return [*ours.state_dict().values()]

    one, two, again = trained_on(1), trained_on(2), trained_on(2)
    for first, second, third in zip(one, two, again, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(second, third)


# -- failures ---------------------------------------------------------------------------------------------------


class Branching(nn.Module):
    """A module with statistics and momentum that decides by a value."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One of two results."""
        x = self.linear(self.norm(x))
        if x.sum() > 0:
            return x
        return -x


def everything(net: nn.Module, optimizer: optim.Optimizer) -> Any:
    return copy.deepcopy((net.state_dict(), optimizer.state_dict()))


def assert_unchanged(net: nn.Module, optimizer: optim.Optimizer, before: Any) -> None:
    torch.testing.assert_close(everything(net, optimizer), before, rtol=0, atol=0)


def test_what_cannot_be_traced_says_where_and_why_and_updates_nothing() -> None:
    net = Branching()
    optimizer = ADAM(net.parameters())
    before = everything(net, optimizer)
    with pytest.raises(weft.UnsupportedError, match=r"branches on the value of a tensor") as caught:
        weft.step(net, ENTROPY, optimizer)(*data()[0])
    assert "if x.sum() > 0" in str(caught.value)
    assert_unchanged(net, optimizer, before)


def test_what_cannot_be_traced_names_ways_out_of_a_step() -> None:
    net = Branching()
    with pytest.raises(weft.UnsupportedError) as caught:
        weft.step(net, ENTROPY, ADAM(net.parameters()))(*data()[0])
    assert "hybridize(net, fallback=" in caught.value.fix
    with pytest.warns(UserWarning, match="runs imperatively"):
        loss = ENTROPY(weft.hybridize(net, fallback="eager")(data()[0][0]), data()[0][1])
    loss.backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_step_trains_through_checkpoints(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.outer(checkpoint(self.inner, x, use_reentrant=reentrant))
            return found

    x, y = torch.randn(5, 4, requires_grad=True), torch.randint(0, 3, (5,))
    net = Checkpointed()
    expected = copy.deepcopy(net)
    ENTROPY(expected(x), y).backward()
    weft.step(net, ENTROPY, ADAM(net.parameters()))(x, y)
    for ours, theirs in zip(net.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_mistake_of_the_users_is_the_error_that_eager_raises_and_updates_nothing() -> None:
    net = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(5, 3))
    optimizer = ADAM(net.parameters())
    before = everything(net, optimizer)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        weft.step(net, ENTROPY, optimizer)(*data()[0])
    assert_unchanged(net, optimizer, before)


def test_a_step_that_fails_while_it_runs_updates_nothing() -> None:
    net = nn.Sequential(nn.Embedding(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    optimizer = ADAM(net.parameters())
    step = weft.step(net, ENTROPY, optimizer)
    step(torch.tensor([0, 1, 2, 4]), labels())
    before = everything(net, optimizer)
    with pytest.raises((IndexError, RuntimeError)):
        step(torch.tensor([0, 1, 2, 7]), labels())
    assert_unchanged(net, optimizer, before)


@pytest.mark.parametrize("target", [3, -1])
def test_a_target_that_names_no_class_is_eagers_error_and_updates_nothing(target: int) -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = ADAM(net.parameters())
    step = weft.step(net, ENTROPY, optimizer)
    (x, y), *_ = data()
    step(x, y)
    before = everything(net, optimizer)
    y[1] = target
    with pytest.raises(IndexError, match=f"Target {target} is out of bounds"):
        step(x, y)
    assert_unchanged(net, optimizer, before)
    y[1] = -100  # the index that cross entropy ignores
    step(x, y)


def test_updates_are_written_where_parameters_lie_and_pytorch_knows() -> None:
    net = mlp()
    optimizer = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    step = weft.step(net, ENTROPY, optimizer)
    batch = data()[0]
    step(*batch)
    parameters = [*net.parameters()]
    places, versions = [p.data_ptr() for p in parameters], [p._version for p in parameters]
    step(*batch)
    assert places == [p.data_ptr() for p in parameters]
    assert all(p._version > version for p, version in zip(parameters, versions, strict=True))


def test_evaluation_by_another_program_sees_what_a_step_wrote() -> None:
    net = weft.hybridize(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)))
    plain = copy.deepcopy(net)
    weft.hybridize(plain, False)
    x, y = torch.randn(32, 64), labels(32)
    step = weft.step(net, ENTROPY, optim.SGD(net.parameters(), 0.5))
    for _ in range(3):
        step(x, y)
        plain.load_state_dict(net.state_dict())
        with torch.no_grad():
            torch.testing.assert_close(net(x), plain(x))


def test_an_update_by_pytorch_that_fails_is_undone() -> None:
    class Failing(optim.Adamax):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            raise OSError("the disk is full")

    net = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    optimizer = Failing(net.parameters())
    before = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    with pytest.raises(OSError, match="the disk is full"):
        weft.step(net, ENTROPY, optimizer)(*data()[0])
    torch.testing.assert_close((net.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0)


@pytest.mark.parametrize("post", [True, False])
def test_steps_with_hooks_on_gradients_are_pythons(post: bool) -> None:
    ours, eager = mlp(), mlp()
    for net in (ours, eager):
        if post:
            net[0].weight.register_post_accumulate_grad_hook(lambda one: (one.grad.clamp_(-1e-3, 1e-3), None)[1])
        else:
            net[0].weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    step = weft.step(ours, ENTROPY, SGD(ours.parameters()), whole=False)
    optimizer = SGD(eager.parameters())
    for batch in data()[:3]:
        torch.testing.assert_close(step(*batch), eager_step(eager, ENTROPY, optimizer, batch))
    torch.testing.assert_close(ours.state_dict(), eager.state_dict())
    for whole in (
        lambda: weft.program(step, *data()[0]),
        lambda: weft.step(eager, ENTROPY, optimizer, whole=True)(*data()[0]),
    ):
        with pytest.raises(weft.UnsupportedError, match="parameter 0 of the optimizer has a gradient hook"):
            whole()


def test_a_loss_without_a_gradient_is_eagers_error() -> None:
    net = mlp()
    step = weft.step(net, lambda output, _: output.detach().sum(), SGD(net.parameters()))
    with pytest.raises(RuntimeError, match="does not require grad"):
        step(*data()[0])


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"accumulate": 0}, "accumulate is 0"),
        ({"clip_norm": -1.0}, "clip_norm is -1.0"),
        ({"clip_value": float("nan")}, "clip_value is nan"),
    ],
)
def test_options_without_a_meaning_are_refused(options: dict[str, Any], fact: str) -> None:
    net = mlp()
    with pytest.raises(weft.UsageError, match=fact):
        weft.step(net, ENTROPY, SGD(net.parameters()), **options)


def test_a_step_without_a_target_is_refused() -> None:
    net = mlp()
    step = weft.step(net, ENTROPY, SGD(net.parameters()))
    with pytest.raises(weft.UsageError, match="a step was given no target"):
        step(input=torch.ones(4, 6), target=labels())


def test_a_step_that_would_train_nothing_is_refused() -> None:
    net = mlp()
    step = weft.step(net, ENTROPY, SGD(net.parameters()))
    net.requires_grad_(False)
    with pytest.raises(weft.UsageError, match=r"nothing to train[\s\S]*requires_grad_\(True\)"):
        step(torch.ones(4, 6), labels())


def test_what_is_no_module_or_no_optimizer_is_refused() -> None:
    net = mlp()
    with pytest.raises(weft.UsageError, match="is neither a module nor a function"):
        weft.step(3, ENTROPY, SGD(net.parameters()))  # type: ignore[arg-type]
    with pytest.raises(weft.UsageError, match="is no optimizer"):
        weft.step(net, ENTROPY, 0.1)  # type: ignore[arg-type]
    with pytest.raises(weft.UsageError, match=r"is no loss[\s\S]*weft\.step\(net, loss, optimizer\)"):
        weft.step(net, SGD(net.parameters()), ENTROPY)  # type: ignore[arg-type]
    with pytest.raises(weft.UsageError, match=r"class MSELoss is no loss[\s\S]*MSELoss\(\)"):
        weft.step(net, nn.MSELoss, SGD(net.parameters()))
    with pytest.raises(weft.UsageError, match=r"class SGD is no optimizer[\s\S]*SGD\(net\.parameters\(\), \.\.\.\)"):
        weft.step(net, ENTROPY, optim.SGD)  # type: ignore[arg-type]
    with pytest.raises(weft.UsageError, match="'mean' is no loss"):
        weft.step(net, "mean", SGD(net.parameters()))  # type: ignore[arg-type]
    with pytest.raises(weft.UsageError, match="LBFGS cannot accumulate"):
        weft.step(net, ENTROPY, optim.LBFGS(net.parameters()), accumulate=2)


# -- what a step shows ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("exact_sizes")
def test_a_step_explains_itself_and_shows_its_program(caplog: pytest.LogCaptureFixture) -> None:
    net = mlp()
    step = weft.step(net, ENTROPY, SGD(net.parameters()))
    x, y = data()[0]
    with caplog.at_level(logging.INFO, "weft"):
        step(x, y)
        step(x[:2], y[:2])
    assert "argument input: size of dim 0 was 4, is 2" in caplog.text
    text = str(weft.explain(step))
    assert text.startswith("a step of Sequential: 2 programs, 2 traced")
    assert "target: int64[4]" in text
    program = weft.program(step, x, y)
    assert step.traces == 2
    assert "write" in program.summary()


def test_a_step_that_is_refused_before_its_first_round_says_why_after_lazy_code_too() -> None:
    with weft.lazy():
        torch.ones(2).sum().item()
    test_steps_with_hooks_on_gradients_are_pythons(post=False)


def test_a_net_laid_out_channels_last_is_one_region_and_trains_as_in_eager() -> None:
    """Global pooling is a look into memory there, by as_strided, and so is its gradient."""

    def make() -> nn.Module:
        torch.manual_seed(1)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 3),
        )
        return net.double().to(memory_format=torch.channels_last)

    x = torch.randn(4, 3, 8, 8, dtype=torch.float64).to(memory_format=torch.channels_last)
    y = labels(4)
    net, eager = make(), make()
    step = weft.step(net, ENTROPY, SGD(net.parameters()))
    optimizer = SGD(eager.parameters())
    for _ in range(3):
        loss = step(x, y)
        optimizer.zero_grad()
        expected = ENTROPY(eager(x), y)
        expected.backward()
        optimizer.step()
        close(loss, expected.detach())
    for mine, theirs in zip(net.parameters(), eager.parameters(), strict=True):
        close(mine, theirs)
        assert mine.grad is not None
        assert theirs.grad is not None
        close(mine.grad, theirs.grad)
    assert "1 region in machine code, 0 calls" in step.program((x, y), {}).summary()


def test_probabilities_are_checked_between_two_regions_and_a_wrong_one_changes_nothing() -> None:
    """What is written is written behind the check, and in place."""
    net = nn.Sequential(nn.Linear(6, 4), nn.Sigmoid()).double()
    eager = copy.deepcopy(net)
    optimizer, eager_optimizer = ADAM(net.parameters()), ADAM(eager.parameters())
    step = weft.step(net, functional.binary_cross_entropy, optimizer)
    x, y = torch.randn(5, 6, dtype=torch.float64), torch.rand(5, 4, dtype=torch.float64)
    for _ in range(3):
        eager_optimizer.zero_grad()
        expected = functional.binary_cross_entropy(eager(x), y)
        expected.backward()
        eager_optimizer.step()
        close(step(x, y), expected.detach())
    close(net[0].weight, eager[0].weight)
    assert "2 regions in machine code, 1 call" in step.program((x, y), {}).summary()
    before = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    places = [parameter.data_ptr() for parameter in net.parameters()]
    x[3, 2] = float("nan")
    with pytest.raises(RuntimeError, match="all elements of input should be between 0 and 1"):
        step(x, y)
    torch.testing.assert_close((net.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0)
    assert [parameter.data_ptr() for parameter in net.parameters()] == places


@pytest.mark.parametrize("wrong", [1.5, -0.1, float("nan"), float("inf")])
def test_probabilities_that_are_none_raise_what_eager_raises(wrong: float) -> None:
    loss = weft.hybridize(lambda x, y: functional.binary_cross_entropy(x, y, reduction="sum"))
    x, y = torch.rand(8), torch.rand(8)
    x[1], x[2] = 0.0, 1.0
    close_to = functional.binary_cross_entropy(x, y, reduction="sum")
    torch.testing.assert_close(loss(x, y), close_to)
    x[5] = wrong
    with pytest.raises(RuntimeError, match="all elements of input should be between 0 and 1"):
        loss(x, y)


def test_an_optimizer_of_another_module_is_refused() -> None:
    net, other = nn.Linear(2, 2), nn.Linear(2, 2)
    with pytest.raises(weft.UsageError, match="the optimizer has none of the module's parameters"):
        weft.step(net, nn.MSELoss(), torch.optim.SGD(other.parameters(), 0.1))
    weft.step(net, nn.MSELoss(), torch.optim.SGD([*other.parameters(), *net.parameters()], 0.1))
