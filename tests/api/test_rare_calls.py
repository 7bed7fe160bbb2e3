"""Signatures that come rarely run imperatively once very many programs were made."""

import logging
from copy import deepcopy

import pytest
import torch
from torch import nn

import weft
from weft.api.rare_calls import FIRST_NEEDED, MOST_REMEMBERED, PROGRAMS_AT_ONCE, PROGRAMS_TO_DOUBLE, RareCalls


def test_the_first_signatures_get_programs_at_once_and_later_ones_when_they_come_again():
    rare = RareCalls()
    assert all(rare.deserves(("size", size)) for size in range(PROGRAMS_AT_ONCE))
    assert [rare.deserves("new") for _ in range(FIRST_NEEDED)] == [False] * (FIRST_NEEDED - 1) + [True]
    assert rare.calls == FIRST_NEEDED - 1


def test_programs_that_go_on_being_dropped_are_made_ever_more_rarely():
    rare = RareCalls()
    programs = [sum(rare.deserves(size) for size in range(100)) for _ in range(64)]
    assert sum(programs) < PROGRAMS_AT_ONCE + 6 * PROGRAMS_TO_DOUBLE
    assert rare.needed > 32


def test_a_bounded_number_of_signatures_is_remembered():
    rare = RareCalls()
    for size in range(PROGRAMS_AT_ONCE + 2 * MOST_REMEMBERED):
        rare.deserves(size)
    assert not rare.deserves(PROGRAMS_AT_ONCE)  # it came long ago
    assert rare.deserves(PROGRAMS_AT_ONCE + 2 * MOST_REMEMBERED - 1)


MADE = 3


@pytest.fixture
def worn(monkeypatch, by_library):
    """A function for which so many programs were made that a new signature runs imperatively."""
    monkeypatch.setattr("weft.api.rare_calls.PROGRAMS_AT_ONCE", MADE)

    @weft.hybridize
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2

    for size in range(MADE):
        function(torch.ones(size + 1))
    return function


def test_a_rare_signature_runs_imperatively_with_gradients_and_the_second_time_by_a_program(worn):
    x = torch.randn(500, requires_grad=True)
    found, expected = worn(x), torch.tanh(x) * 2
    assert worn.rare.calls == 1
    assert torch.equal(found, expected)
    found.sum().backward()
    assert x.grad is not None
    traces = worn.traces
    assert traces == MADE
    for _ in range(3):
        assert torch.allclose(worn(x), expected)
    assert worn.traces == traces + 1
    assert worn.rare.calls == 1


def test_a_program_that_is_asked_for_is_made_at_once(worn):
    assert worn.program((torch.ones(600),), {}).graph
    assert worn.traces == MADE + 1


def test_explain_counts_the_calls_that_ran_imperatively(worn):
    worn(torch.ones(700))
    assert "1 call ran imperatively, their signatures having come too rarely" in weft.explain(worn)


def test_each_program_beyond_is_logged_as_before(worn, caplog):
    with caplog.at_level(logging.INFO, "weft"):
        worn(torch.ones(800))
        assert caplog.messages == []
        worn(torch.ones(800))
    assert len(caplog.messages) == 1
    assert "size of dim 0" in caplog.messages[0]


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 0.01),
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, 0.1),  # runs by PyTorch's own step
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rare_steps_train_as_others_do(monkeypatch, name):
    monkeypatch.setattr("weft.api.rare_calls.PROGRAMS_AT_ONCE", 2)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    other = deepcopy(net)
    optimizer, others = OPTIMIZERS[name](net.parameters()), OPTIMIZERS[name](other.parameters())
    step = weft.step(net, nn.functional.cross_entropy, optimizer, clip_norm=1.0)
    for size in (4, 5, 6, 4, 7, 6, 8, 9):
        x, y = torch.randn(size, 3), torch.randint(2, (size,))
        loss = step(x, y)
        others.zero_grad()
        expected = nn.functional.cross_entropy(other(x), y)
        expected.backward()
        nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        others.step()
        torch.testing.assert_close(loss, expected.detach())
    assert step.rare.calls == 4
    assert step.traces == 3
    for ours, theirs in zip(net.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(optimizer.state_dict()["state"], others.state_dict()["state"])


def test_a_rare_step_that_fails_changes_nothing(monkeypatch):
    monkeypatch.setattr("weft.api.rare_calls.PROGRAMS_AT_ONCE", 0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    step = weft.step(net, nn.functional.cross_entropy, torch.optim.Adam(net.parameters()))
    step(torch.randn(4, 3), torch.randint(2, (4,)))
    before = deepcopy(net.state_dict())
    with pytest.raises(IndexError):
        step(torch.randn(5, 3), torch.full((5,), 9))
    for ours, theirs in zip(net.state_dict().values(), before.values(), strict=True):
        assert torch.equal(ours, theirs)


def test_deterministic_steps_are_programs_however_rare(monkeypatch):
    monkeypatch.setattr("weft.api.rare_calls.PROGRAMS_AT_ONCE", 0)
    net = nn.Linear(3, 2)
    step = weft.step(net, nn.functional.cross_entropy, torch.optim.SGD(net.parameters(), 0.1), deterministic=True)
    step(torch.randn(4, 3), torch.randint(2, (4,)))
    assert step.traces == 1
