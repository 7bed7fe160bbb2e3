"""Copies and pickles of hybridized things, steps and what holds them work on tensors of their own."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import weft

pytestmark = pytest.mark.usefixtures("by_library")


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def made_step(**options: Any) -> Any:
    torch.manual_seed(1)
    trained = net()
    return weft.step(trained, nn.functional.mse_loss, torch.optim.Adam(trained.parameters(), 0.1), **options)


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


COPIES: list[Callable[[Any], Any]] = [copy.deepcopy, pickled]


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("options", [{}, {"accumulate": 3, "clip_norm": 0.5}], ids=["plain", "accumulating"])
def test_a_copied_step_goes_on_alone_from_where_it_was(copied: Callable[[Any], Any], options: dict[str, Any]) -> None:
    step, expected = made_step(**options), made_step(**options)
    batches = [(torch.randn(5, 3), torch.randn(5, 2)) for _ in range(7)]
    for x, y in batches[:4]:
        step(x, y)
    other = copied(step)
    for x, y in batches[4:]:
        other(x, y)
    for x, y in batches:
        expected(x, y)
    torch.testing.assert_close([*other.task.net.parameters()], [*expected.task.net.parameters()])
    for x, y in batches[4:]:
        step(x, y)
    torch.testing.assert_close([*step.task.net.parameters()], [*expected.task.net.parameters()])
    assert other.task.net[0].weight is not step.task.net[0].weight


@pytest.mark.parametrize("copied", COPIES)
def test_a_step_whose_optimizer_pytorch_cannot_copy_says_what_to_do(copied: Callable[[Any], Any]) -> None:
    trained = net()
    step = weft.step(trained, nn.functional.mse_loss, torch.optim.LBFGS(trained.parameters()))
    with pytest.raises(weft.UnsupportedError, match=r"LBFGS cannot be copied(.|\n)*state_dict"):
        copied(step)


class Learner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = weft.hybridize(net())
        self.step = weft.step(self.net, nn.functional.mse_loss, torch.optim.SGD(self.net.parameters(), 0.1))
        self.scored = weft.hybridize(self.score)

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).sum(-1)

    @weft.hybridize
    def decorated(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


@pytest.mark.parametrize("copied", COPIES)
def test_what_holds_hybrid_things_is_copied_with_them(copied: Callable[[Any], Any]) -> None:
    learner, x = weft.hybridize(Learner()), torch.randn(5, 3)
    learner(x), learner.scored(x), learner.decorated(x)
    other = copied(learner)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not other(x).any()
    assert not other.scored(x).any()
    assert not other.decorated(x).any()
    assert learner.scored(x).any()
    other.step(x, torch.ones(5, 2))
    assert other(x).any()
    method = copied(learner.decorated)
    torch.testing.assert_close(method(x), learner.decorated(x))


def test_averages_of_hybridized_modules_are_those_of_eager_ones() -> None:
    def played(wrap: Callable[[Any], Any]) -> torch.Tensor:
        torch.manual_seed(2)
        trained = wrap(net())
        average = AveragedModel(trained, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        x = torch.randn(4, 3)
        for _ in range(4):
            trained(x).sum().backward()
            with torch.no_grad():
                for parameter in trained.parameters():
                    parameter -= 0.1 * parameter.grad
            average.update_parameters(trained)
        return average(x)

    torch.testing.assert_close(played(weft.hybridize), played(lambda trained: trained))


def test_a_whole_module_can_be_saved() -> None:
    trained, file, x = weft.hybridize(net()), io.BytesIO(), torch.randn(4, 3)
    expected = trained(x)
    torch.save(trained, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), expected)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


again = weft.hybridize(doubled)


def test_functions_are_pickled_with_what_they_stand_for() -> None:
    assert torch.equal(pickled(again)(torch.ones(2)), torch.full((2,), 2.0))
    assert copy.deepcopy(again) is again


@pytest.mark.parametrize("copied", COPIES)
def test_a_program_says_what_to_copy_instead(copied: Callable[[Any], Any]) -> None:
    program = weft.program(net(), torch.ones(5, 3))
    with pytest.raises(weft.UsageError, match=r"cannot be copied(.|\n)*machine code(.|\n)*program\.save"):
        copied(program)


def test_a_shallow_copy_runs_with_what_it_has_itself() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.scale = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.scale

    x, original = torch.ones(2, 3), weft.hybridize(Scaled())
    before = original(x)
    other = copy.copy(original)
    other.scale = 5.0
    torch.testing.assert_close(other(x), before * 5)
    other._modules = {"layer": nn.Linear(3, 3)}
    torch.testing.assert_close(other(x), other.layer(x) * 5)
    torch.testing.assert_close(original(x), before)
    torch.testing.assert_close(copy.copy(other)(x), other(x))
    assert "forward" not in vars(copy.copy(weft.hybridize(original, False)))
