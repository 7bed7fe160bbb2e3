"""What is slower than eager is told from what is not, and operators have samples of two sizes."""

from __future__ import annotations

import pytest
import torch
from bench import never_slower
from bench.models.subject import Subject
from bench.never_slower import Timed, in_dtype, time_both
from bench.operators_swept import LEAST_BYTES, MOST_BYTES, calls, entries
from torch import nn


@pytest.mark.parametrize(
    ("eager", "ours", "slower"),
    [(100, 102, False), (100, 104, True), (10, 11.9, False), (10, 12.1, True), (5, 1, False)],
)
def test_a_program_may_take_a_little_longer(eager: float, ours: float, *, slower: bool) -> None:
    assert Timed("one", eager, ours).slower is slower


def test_both_are_timed_in_turn_and_the_shortest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def taking(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(never_slower.time, "perf_counter", lambda: now[0])
    assert time_both(lambda: taking(0.002), lambda: taking(0.004)) == pytest.approx((0.002, 0.004))


@pytest.mark.parametrize("name", ["add", "exp", "matmul", "sum"])
def test_operators_have_small_and_large_samples(name: str) -> None:
    [entry] = [entry for entry in entries() if entry.full_name == name]
    small, large = (calls(entry, "float32", size, 1)[0] for size in ("small", "large"))
    taken = [sum(one.nbytes for one in call.args if isinstance(one, torch.Tensor)) for call in (small, large)]
    assert taken[0] < LEAST_BYTES <= taken[1] <= MOST_BYTES


def test_modules_are_converted_with_what_they_are_given() -> None:
    given = in_dtype(Subject(nn.Embedding(3, 4), (torch.tensor([1]),)), torch.bfloat16)
    assert given.inputs[0].dtype is torch.int64
    assert given.thing(*given.inputs).dtype is torch.bfloat16
