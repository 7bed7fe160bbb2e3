"""Behaviour of blocks in which nothing is collected."""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import weft
from weft.compile.pipeline import compile_traced
from weft.programs import program
from weft.runtime.process_memory import without_collection


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # from Python 3.12 on, of threads
@pytest.mark.parametrize("own_block", [False, True])
def test_a_forked_child_does_not_wait_for_blocks_of_other_threads(own_block: bool) -> None:
    entered, leave = threading.Event(), threading.Event()

    def rest() -> None:
        with without_collection():
            entered.set()
            leave.wait(20)

    thread = threading.Thread(target=rest)
    thread.start()
    assert entered.wait(20)
    with without_collection() if own_block else nullcontext():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() is not own_block else 1)
        status = os.waitpid(child, 0)[1]
    leave.set()
    thread.join(20)
    assert status == 0
    assert gc.isenabled()


def test_a_program_is_made_without_collecting_and_runs_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def compiled(*given: Any, **named: Any) -> Any:
        seen.append(gc.isenabled())
        return compile_traced(*given, **named)

    monkeypatch.setattr(program, "compile_traced", compiled)
    assert torch.equal(weft.hybridize(lambda x: x + 1)(torch.zeros(3)), torch.ones(3))
    assert seen == [False]
    assert gc.isenabled()
