"""Signatures that come rarely run imperatively once very many programs were made."""

import logging
import warnings

import pytest
import torch

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


@pytest.fixture
def worn():
    """A function for which so many programs were made that a new signature runs imperatively."""

    @weft.hybridize
    def function(x: torch.Tensor, keep: bool = True) -> torch.Tensor:
        return torch.tanh(x) * 2 if keep else x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for size in range(PROGRAMS_AT_ONCE):
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
    assert traces == PROGRAMS_AT_ONCE
    for _ in range(3):
        assert torch.allclose(worn(x), expected)
    assert worn.traces == traces + 1
    assert worn.rare.calls == 1


def test_a_program_that_is_asked_for_is_made_at_once(worn):
    assert worn.program((torch.ones(600),), {}).graph
    assert worn.traces == PROGRAMS_AT_ONCE + 1


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
