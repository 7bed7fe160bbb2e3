"""Seeding while Python is traced becomes values of the program; other generators are only watched."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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
