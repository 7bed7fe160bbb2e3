"""Random Python programs are what their seeds say, run in eager PyTorch, and shrink to what fails."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests import ways
from tests.random_programs.python_pieces import pieces
from tests.random_programs.python_programs import of_piece, python_program, shrink
from tests.ways import Way, played

RAISING = {"raised_at_some_call", "raised_by_torch"}


@pytest.mark.parametrize("name", sorted(pieces()))
@pytest.mark.filterwarnings("ignore")
def test_every_piece_alone_runs_in_eager_pytorch(name):
    work = of_piece(name).make()()
    errors = [played(work, work.thing, number).error for number in range(len(work.calls))]
    assert errors == [None] * len(work.calls)


def test_a_seed_always_makes_the_same_program():
    assert python_program(7).source == python_program(7).source
    assert python_program(7).source != python_program(8).source


def test_most_programs_run_to_their_end_in_eager_pytorch():
    ended = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(60):
            work = python_program(seed).make()()
            ended += all(played(work, work.thing, number).error is None for number in range(len(work.calls)))
    assert ended >= 45


def test_a_failing_program_shrinks_to_the_piece_that_fails():
    def has(program):
        return any(one.piece.name == "list_append" for top in program.chosen for one in top.all())

    program = next(made for made in map(python_program, range(5000)) if len(made.chosen) == 4 and has(made))
    least = shrink(program, has)
    assert [one.piece.name for one in least.chosen] == ["list_append"]
    assert (least.calls, least.backward, least.is_module) == (1, False, False)


def test_a_fault_in_a_way_is_found_by_random_programs(monkeypatch):
    def one_too_many(thing):
        def call(*arguments, **keywords):
            result = thing(*arguments, **keywords)
            torch.rand(1)
            return result

        return call

    monkeypatch.setitem(ways.WAYS, "faulty", Way(one_too_many))
    assert "random streams" in str(ways.difference(python_program(3).make(), "faulty"))
