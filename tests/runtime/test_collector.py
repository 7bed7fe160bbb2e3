"""Behaviour of blocks in which nothing is collected."""

import gc
from collections.abc import Iterator

import pytest
import torch

import weft
from weft.runtime.collector import without_collection


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    yield
    gc.enable()


def test_the_collector_rests_in_a_block_and_works_after_it() -> None:
    with without_collection():
        assert not gc.isenabled()
        with without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with without_collection():
        pass
    assert not gc.isenabled()


def test_an_error_in_a_block_lets_the_collector_work_again() -> None:
    with pytest.raises(ValueError, match="inside"), without_collection():
        raise ValueError("inside")
    assert gc.isenabled()


def test_a_program_is_made_without_collecting_and_runs_with_it() -> None:
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(gc.isenabled())
        return x + 1

    assert torch.equal(weft.hybridize(function)(torch.zeros(3)), torch.ones(3))
    assert seen == [False]
    assert gc.isenabled()
