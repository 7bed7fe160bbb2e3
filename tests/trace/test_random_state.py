"""Seeding while Python is traced becomes values of the program; other generators are only watched."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import weft
from weft.config import overrides
from weft.errors import UnsupportedError
from weft.trace.python_state.draws import DrawnSources
from weft.trace.random_state import OwnGenerators, RandomLedger


class Emitted(list[Any]):
    """Stands in a recorder's place."""

    def emit(self, op: str, operands: Any, kind: Any, **attributes: Any) -> Any:
        value = (op, operands, len(self))
        self.append(value)
        return value

    def ops(self) -> list[str]:
        return [value[0] for value in self]


@pytest.fixture
def values() -> Emitted:
    return Emitted()


def draw(ledger: RandomLedger) -> None:
    ledger.before_random_operator()
    ledger.after_random_operator()


def test_plain_draws_save_the_first_moment_and_set_nothing(values: Emitted) -> None:
    ledger = RandomLedger(values.emit)
    draw(ledger)
    draw(ledger)
    ledger.finish()
    assert "set_random_state" not in values.ops()


def test_a_seed_is_a_constant_that_is_set(values: Emitted) -> None:
    ledger = RandomLedger(values.emit)
    torch.manual_seed(99)
    draw(ledger)
    assert values.ops()[-3:] == ["constant", "set_random_state", "random_state"] or "constant" in values.ops()
    assert values.ops().count("set_random_state") == 1


def test_what_other_threads_draw_meanwhile_is_no_business_of_the_program(values: Emitted) -> None:
    ledger = RandomLedger(values.emit)
    for seed in (None, 99):
        if seed is not None:
            torch.manual_seed(seed)
            draw(ledger)
        before = values.ops().count("set_random_state")
        thread = threading.Thread(target=torch.rand, args=(3,))
        thread.start()
        thread.join()
        draw(ledger)
        ledger.finish()
        assert values.ops().count("set_random_state") == before


def test_traces_that_overlap_leave_the_generator_as_they_found_it(values: Emitted) -> None:
    torch.manual_seed(3)
    torch.rand(2)
    found = torch.get_rng_state()
    one = RandomLedger(values.emit)
    draw(one)
    other = RandomLedger(values.emit)
    draw(other)
    one.restore()
    assert torch.equal(torch.get_rng_state(), found)
    draw(other)
    other.finish()
    other.restore()
    assert torch.equal(torch.get_rng_state(), found)
    assert "set_random_state" not in values.ops()


def test_traces_that_overlap_at_the_start_of_a_seed_are_seeded_by_nobody(values: Emitted) -> None:
    torch.manual_seed(3)
    one = RandomLedger(values.emit)
    draw(one)
    other = RandomLedger(values.emit)
    draw(other)
    one.restore()
    draw(other)
    other.finish()
    other.restore()
    assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(3).get_state())
    assert "set_random_state" not in values.ops()


@pytest.mark.parametrize("drawn_before", [0, 2])
def test_nobody_draws_the_same_twice_beside_traces_that_overlap(values: Emitted, drawn_before: int) -> None:
    torch.manual_seed(3)
    torch.rand(drawn_before)
    drawn: list[tuple[float, ...]] = []

    def draws_beside() -> None:
        thread = threading.Thread(target=lambda: drawn.append(tuple(torch.rand(3).tolist())))
        thread.start()
        thread.join()

    one = RandomLedger(values.emit)
    draws_beside()
    draw(one)
    draws_beside()
    other = RandomLedger(values.emit)
    draws_beside()
    for ledger in (other, one, one, other):
        draw(ledger)
        draws_beside()
    one.restore()
    draws_beside()
    draw(other)
    draws_beside()
    other.restore()
    draws_beside()
    assert len(set(drawn)) == len(drawn)
    assert "set_random_state" not in values.ops()


def test_an_interrupt_at_the_end_of_a_trace_leaves_the_generator_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: DrawnSources) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(DrawnSources, "restore", interrupted)
    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        weft.hybridize(nn.Dropout(0.5))(torch.ones(4))
    assert torch.equal(torch.get_rng_state(), before)


def test_first_calls_in_several_threads_draw_for_themselves() -> None:
    nets = [weft.hybridize(nn.Dropout(0.5)) for _ in range(4)]
    start, masks = threading.Barrier(len(nets), timeout=60), []

    def call(net: nn.Module) -> None:
        start.wait()
        masks.extend(tuple(net(torch.ones(64)).tolist()) for _ in range(3))

    torch.manual_seed(3)
    threads = [threading.Thread(target=call, args=(net,)) for net in nets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(masks)) == len(masks) == 12


def test_going_back_to_a_moment_sets_the_state_saved_there(values: Emitted) -> None:
    ledger = RandomLedger(values.emit)
    moment = torch.get_rng_state()
    draw(ledger)
    torch.set_rng_state(moment)
    draw(ledger)
    assert "constant" not in values.ops()
    saved = next(value for value in values if value[0] == "random_state")
    assert next(value for value in values if value[0] == "set_random_state")[1] == (saved,)


def test_a_seed_that_nothing_draws_from_is_set_at_the_end(values: Emitted) -> None:
    ledger = RandomLedger(values.emit)
    torch.manual_seed(5)
    ledger.finish()
    assert values.ops()[-1] == "set_random_state"


def test_the_generator_is_left_as_it_was(values: Emitted) -> None:
    before = torch.get_rng_state()
    ledger = RandomLedger(values.emit)
    draw(ledger)
    torch.manual_seed(1)
    ledger.restore()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_successor_knows_the_moments_but_starts_at_a_new_one(values: Emitted) -> None:
    ledger = RandomLedger(values.emit)
    moment = torch.get_rng_state()
    draw(ledger)
    ledger.restore()
    later = ledger.successor()
    torch.set_rng_state(moment)
    later.before_random_operator()
    assert "constant" not in values.ops()
    assert values.ops()[-1] == "set_random_state"


def test_other_generators_may_be_drawn_from_if_they_were_there_before() -> None:
    known, unknown = torch.Generator(), torch.Generator()
    watched = OwnGenerators([known])
    assert watched.may_draw(known)
    assert watched.may_draw(None)
    assert watched.may_draw(torch.default_generator)
    assert not watched.may_draw(unknown)


def test_seeding_another_generator_is_noticed_and_undone() -> None:
    generator = torch.Generator()
    before = generator.get_state()
    watched = OwnGenerators([generator])
    assert not watched.restore()
    generator.manual_seed(3)
    assert watched.restore()
    assert torch.equal(generator.get_state(), before)


def test_a_moment_that_code_goes_back_to_leads_to_another_one(values: Emitted) -> None:
    ledger = RandomLedger(values.emit)
    before = torch.get_rng_state()
    draw(ledger)
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    draw(ledger)  # perhaps more numbers, or fewer
    torch.set_rng_state(after)
    ledger.finish()
    assert values.ops().count("set_random_state") == 2
    ledger.restore()


def draws_twice_from_one_moment(x: torch.Tensor) -> torch.Tensor:
    before = torch.get_rng_state()
    few = torch.rand(3)
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    more = torch.rand(5)
    torch.set_rng_state(after)
    return x + few.sum() + more.sum()


def test_a_stream_goes_on_where_code_puts_it_back() -> None:
    found = []
    for function in (draws_twice_from_one_moment, weft.hybridize(draws_twice_from_one_moment)):
        torch.manual_seed(1)
        found.append([torch.cat([function(torch.ones(2)), torch.rand(1)]) for _ in range(3)])
    torch.testing.assert_close(found[1], found[0])


def test_a_backward_that_draws_again_leaves_the_stream_as_it_finds_it() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 8))

    def part(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = checkpoint(net, x, use_reentrant=False)
        return found * 2

    x, found = torch.randn(4, 8, requires_grad=True), []
    for function in (part, weft.hybridize(part)):
        torch.manual_seed(1)
        total = function(x).sum()
        torch.rand(2)  # by others, between forward and backward
        found.append([*torch.autograd.grad(total, [x]), torch.rand(1)])
    torch.testing.assert_close(found[1], found[0])


class Kept:
    """Holds a state of the generator."""

    def __init__(self) -> None:
        self.state = torch.Generator().manual_seed(9).get_state()


def seeds(x: torch.Tensor, _: Kept) -> Any:
    torch.manual_seed(5)
    return x + torch.rand(2)


def seeds_aside(x: torch.Tensor, _: Kept) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        first = torch.rand(2)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            second = torch.rand(2)
        third = torch.rand(2)
    return x + first, second, third, torch.rand(2)


def seeds_and_looks(x: torch.Tensor, _: Kept) -> Any:
    torch.manual_seed(5)
    y = torch.rand(2)
    return y if y.sum() > x.sum() else -y


def sets_what_is_kept(x: torch.Tensor, kept: Kept) -> Any:
    torch.set_rng_state(kept.state)
    y = torch.rand(2)
    kept.state = torch.get_rng_state()
    return x + y


def gives_its_state(x: torch.Tensor, _: Kept) -> Any:
    state = torch.get_rng_state()
    return x + torch.rand(2), state


RANDOM = [seeds, seeds_aside, seeds_and_looks, sets_what_is_kept, gives_its_state]


@pytest.mark.parametrize("function", RANDOM)
def test_a_call_that_begins_where_a_seed_leads_draws_as_others_do(function: Any) -> None:
    """As in scripts that seed at their beginning, with the number that the code seeds with."""

    def run(wrap: Any) -> list[Any]:
        torch.manual_seed(5)
        kept, found = Kept(), wrap(function)
        return [*(found(torch.zeros(2), kept) for _ in range(4)), torch.rand(2), kept.state]

    with overrides(whole="off"):
        found, right = run(weft.hybridize), run(lambda function: function)
    torch.testing.assert_close(found, right, rtol=0, atol=0)


def test_states_that_are_kept_in_a_tensor_are_read_at_each_call() -> None:
    kept = Kept()
    with overrides(whole="off"):
        found = weft.hybridize(lambda x: (torch.set_rng_state(kept.state), x + torch.rand(2))[1])
        for seed in range(4):
            kept.state.copy_(right := torch.Generator().manual_seed(seed).get_state())
            drawn = found(torch.zeros(2))
            torch.set_rng_state(right)
            assert torch.equal(drawn, torch.rand(2))


def test_seeds_of_the_system_are_no_program() -> None:
    with pytest.raises(UnsupportedError, match=r"torch\.seed"):
        weft.hybridize(lambda x: x + torch.rand(2) + 0 * torch.seed(), whole=True)(torch.zeros(2))
