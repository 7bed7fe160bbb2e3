"""Checks of PyTorch's distributions become part of programs: good data passes, bad data is eager's error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import distributions, nn
from torch.nn import functional

import weft

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _checking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let distributions check their arguments: the first use of `torch.compile` in a process ends that."""
    monkeypatch.setattr(distributions.Distribution, "_validate_args", True)


def of_classes(scores: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    chosen = distributions.Categorical(logits=scores)
    return -(chosen.log_prob(drawn) + 0.01 * chosen.entropy()).mean()


def of_shares(scores: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    return -distributions.Categorical(probs=scores.exp()).log_prob(drawn).mean()


def of_numbers(scores: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    return -distributions.Normal(scores, functional.softplus(scores) + 0.1).log_prob(drawn[:, None] * 0.3).mean()


def of_vectors(scores: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    factor = torch.diag_embed(functional.softplus(scores) + 0.1)
    return (
        -distributions.MultivariateNormal(scores, scale_tril=factor)
        .log_prob(0 * scores.detach() + drawn[:, None])
        .mean()
    )


def of_squashed(scores: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    base = distributions.Normal(scores, torch.ones_like(scores))
    squashed = distributions.TransformedDistribution(base, [distributions.TanhTransform()])
    return -squashed.log_prob((drawn[:, None] * 0.3).tanh()).mean()


def of_two(scores: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    given = distributions.Normal(scores, (0.5 * scores).exp())
    return (
        distributions.kl_divergence(given, distributions.Normal(0.0, 1.0)).sum() + drawn.sum() * given.rsample().mean()
    )


@pytest.mark.parametrize("loss", [of_classes, of_shares, of_numbers, of_vectors, of_squashed, of_two])
def test_a_step_on_a_distribution_that_checks_its_arguments_trains_as_eager(loss: Loss) -> None:
    torch.manual_seed(3)
    nets = [nn.Linear(6, 3, dtype=torch.float64) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    x, drawn = torch.randn(8, 6, dtype=torch.float64), torch.randint(0, 3, (8,))
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in nets]
    step = weft.step(nets[0], loss, optimizers[0])
    for turn in range(3):
        torch.manual_seed(turn)
        found = step(x, drawn)
        torch.manual_seed(turn)
        optimizers[1].zero_grad()
        expected = loss(nets[1](x), drawn)
        expected.backward()
        optimizers[1].step()
        torch.testing.assert_close(found, expected.detach())
    torch.testing.assert_close(nets[0].weight, nets[1].weight)
    assert step.traces == 1


@pytest.mark.parametrize("loss", [of_classes, of_numbers])
def test_arguments_that_eager_refuses_are_refused_and_nothing_is_updated(loss: Loss) -> None:
    net = nn.Linear(6, 3)
    step = weft.step(net, loss, torch.optim.SGD(net.parameters(), 0.1))
    x, drawn = torch.randn(8, 6), torch.randint(0, 3, (8,))
    step(x, drawn)
    before = net.weight.detach().clone()
    for bad in ((x * torch.nan, drawn), (x, drawn + 5)) if loss is of_classes else ((x * torch.nan, drawn),):
        with pytest.raises(ValueError, match="Expected") as expected:
            loss(net(bad[0]), bad[1])
        with pytest.raises(ValueError, match="Expected") as found:
            step(*bad)
        kind, _, elements = str(expected.value).partition(" but found")
        assert str(found.value).startswith(kind)
        assert elements.partition(", grad_fn")[0].rstrip(")") in str(found.value)
    assert torch.equal(net.weight, before)


def of_rows(x: torch.Tensor) -> torch.Tensor:
    rows = distributions.Independent(distributions.Normal(x.abs(), x.abs() + 1), 1)
    return rows.log_prob(x)


TOLD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "numbers": lambda x: distributions.Normal(0.0, 1.0).log_prob(x),
    "a number of each call": lambda x: distributions.Normal(x[0, 0], 1.5).log_prob(x),
    "sizes": lambda x: distributions.Normal(x.nan_to_num(), 2.0).log_prob(x),
    "a parameter": lambda x: distributions.Exponential(x).mean,
    "of others": of_rows,
}


@pytest.mark.parametrize("varies", [False, True], ids=["one size", "sizes that vary"])
@pytest.mark.parametrize("function", TOLD.values(), ids=TOLD)
def test_what_is_told_of_arguments_is_eagers_word_for_word(
    function: Callable[[torch.Tensor], torch.Tensor], varies: bool
) -> None:
    hybrid = weft.hybridize(function)
    for rows in (5, 7, 9, 6) if varies else (5, 5):
        good = torch.rand(rows, 2) + 0.5
        torch.testing.assert_close(hybrid(good), function(good))
        bad = good.index_fill(0, torch.tensor([1]), torch.nan)
        with pytest.raises(ValueError, match="Expected") as expected:
            function(bad)
        with pytest.raises(ValueError, match="Expected") as found:
            hybrid(bad)
        assert str(found.value) == str(expected.value)
    assert "1 program, " in str(weft.explain(hybrid))


def test_a_check_of_the_users_own_is_not_taken_for_one_of_the_library() -> None:
    class Checked(distributions.constraints.Constraint):
        def check(self, value: torch.Tensor) -> torch.Tensor:
            return value > 0 if value.sum() > 0 else value < 0

    class Own(distributions.Normal):
        arg_constraints = {"loc": Checked(), "scale": distributions.constraints.positive}  # noqa: RUF012

    def drawn(x: torch.Tensor) -> torch.Tensor:
        return Own(x, torch.ones(3)).log_prob(x)

    with pytest.raises(weft.UnsupportedError, match="branches on the value"):
        weft.hybridize(drawn)(torch.ones(3))
