"""Signatures that come rarely run imperatively once very many programs were made."""

import logging
import math
from copy import deepcopy

import pytest
import torch
from torch import nn

import weft
from weft.api.rare_calls import MOST_REMEMBERED, RareCalls
from weft.config import overrides
from weft.trace.signature import Key, leaf_key, tensor_key

pytestmark = pytest.mark.usefixtures("exact_sizes")


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("weft.api.rare_calls.perf_counter", found)
    return found


@pytest.fixture
def at_once():
    with overrides(programs_at_once=2):
        yield


def key(*sizes: int, dtype: torch.dtype = torch.float32):
    """The signature of a call with one tensor of these sizes."""
    return ("x", (tensor_key(torch.empty(sizes, dtype=dtype)),), ())


def stream(rare: RareCalls, clock: Clock, keys, *, call: float = 0.01, made: float = 0.2) -> int:
    """Let signatures come that take so long imperatively or to be made; gives how many programs were made."""
    programs = set()
    for one in keys:
        if one in programs:
            continue
        if rare.deserves(one):
            programs.add(one)
            with rare.making(one):
                clock.now += made
        else:
            with rare.running(one):
                clock.now += call
    return len(programs)


def test_the_first_sizes_get_programs_at_once_and_later_ones_when_they_have_cost_half_as_much(at_once, clock):
    rare = RareCalls()
    assert stream(rare, clock, [key(1), key(2), key(3)]) == 2
    assert stream(rare, clock, [key(3)] * 8) == 0  # 0.01 s each, of the 0.1 s that half a program takes
    assert rare.calls == 9
    assert stream(rare, clock, [key(3)] * 3) == 1


def test_sizes_of_another_dtype_or_rank_have_programs_at_once_of_their_own(at_once, clock):
    rare = RareCalls()
    assert stream(rare, clock, [key(1), key(2), key(3)]) == 2
    assert stream(rare, clock, [key(size, dtype=torch.float64) for size in range(3)]) == 2
    assert stream(rare, clock, [key(1, size) for size in range(3)]) == 2


def test_a_stream_of_sizes_takes_little_longer_than_without_programs(at_once, clock):
    rare = RareCalls()
    stream(rare, clock, [key(size) for _ in range(5) for size in range(100)])
    assert clock.now < 500 * 0.01 + 2 * 0.2 + 1e-6


def test_the_fastest_program_tells_what_one_costs(at_once, clock):
    rare = RareCalls()
    stream(rare, clock, [key(1)], made=4.0)  # everything is loaded, and somebody else keeps the machine busy
    stream(rare, clock, [key(2)], made=0.04)
    assert stream(rare, clock, [key(3)] * 4) == 1


def test_programs_that_go_on_being_made_must_be_worth_ever_more(at_once, clock):
    rare = RareCalls()
    first = stream(rare, clock, [key(size) for size in range(64) for _ in range(12)])
    again = stream(rare, clock, [key(size) for size in range(64, 500) for _ in range(12)])
    assert first == 64
    assert again == 8


def test_a_program_that_fails_to_be_made_counts_for_nothing(at_once, clock):
    rare = RareCalls()
    for _ in range(3):
        with pytest.raises(ValueError, match="no"), rare.making(key(1)):
            raise ValueError("no")
    assert stream(rare, clock, [key(1), key(2)]) == 2


def test_a_bounded_number_of_signatures_is_remembered(at_once, clock):
    rare = RareCalls()
    stream(rare, clock, [key(1), key(2)])
    for size in range(3, 3 + 2 * MOST_REMEMBERED):
        with rare.running(key(size)):
            clock.now += 1
    assert not rare.deserves(key(3))  # it came long ago
    assert rare.deserves(key(2 + 2 * MOST_REMEMBERED))


MADE = 3


@pytest.fixture
def worn(monkeypatch, by_library):
    """A function that has its programs, so that a new signature runs imperatively, and the second time by one."""
    monkeypatch.setattr("weft.api.rare_calls.WORTH", 1e-9)

    @weft.hybridize
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2

    with overrides(programs_at_once=MADE):
        for size in range(MADE):
            function(torch.ones(size + 1))
    with overrides(programs_at_once=0):
        yield function


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
def test_rare_steps_train_as_others_do(monkeypatch, at_once, name):
    monkeypatch.setattr("weft.api.rare_calls.WORTH", 1e-9)
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


@pytest.fixture
def never_at_once():
    with overrides(programs_at_once=0):
        yield


def test_a_rare_step_that_fails_changes_nothing(never_at_once):
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    step = weft.step(net, nn.functional.cross_entropy, torch.optim.Adam(net.parameters()))
    step(torch.randn(4, 3), torch.randint(2, (4,)))
    before = deepcopy(net.state_dict())
    with pytest.raises(IndexError):
        step(torch.randn(5, 3), torch.full((5,), 9))
    for ours, theirs in zip(net.state_dict().values(), before.values(), strict=True):
        assert torch.equal(ours, theirs)


def test_deterministic_steps_are_programs_however_rare(never_at_once):
    net = nn.Linear(3, 2)
    step = weft.step(net, nn.functional.cross_entropy, torch.optim.SGD(net.parameters(), 0.1), deterministic=True)
    step(torch.randn(4, 3), torch.randint(2, (4,)))
    assert step.traces == 1


def number_key(number: float) -> Key:
    """The signature of a call with a tensor and a number that is written into programs."""
    return ("x", (tensor_key(torch.empty(3)), leaf_key(number)), ())


@pytest.mark.parametrize("kind", [int, float])
def test_ever_other_numbers_are_as_rare_as_ever_other_sizes(at_once, clock, kind):
    assert stream(RareCalls(), clock, [number_key(kind(number)) for number in range(50)]) == 2
    again = [number_key(kind(number)) for number in [*range(2, 6)] * 40]
    assert stream(RareCalls(), clock, again) == 4  # those that come often enough get theirs


def test_numbers_that_come_once_are_pythons(at_once):
    def faded(x: torch.Tensor, moment: float) -> torch.Tensor:
        return x * math.sin(moment)

    with overrides(whole="off"):
        found = weft.hybridize(faded)
        for number in range(20):
            x = torch.randn(3)
            torch.testing.assert_close(found(x, number / 7), faded(x, number / 7))
    assert found.traces <= 3
