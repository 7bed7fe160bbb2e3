"""Calls that are compared with what came next the last time."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft.errors import ExecutionError
from weft.lazy_tensors import segment_plan as lazy_plan
from weft.lazy_tensors import tensor as lazy_tensor
from weft.lazy_tensors import trie as lazy_trie
from weft.lazy_tensors.session import SESSION
from weft.lazy_tensors.tensor import TensorMetadata
from weft.lazy_tensors.trie import root

Work = Callable[[torch.Tensor, torch.Tensor], Any]


def without_grad(work: Work) -> Work:
    return torch.no_grad()(work)


# What comes at first, and then something else in its place.
PAIRS: dict[str, tuple[Work, Work]] = {
    "another function": (lambda a, b: a * b + 1, lambda a, b: a / b + 1),
    "the arguments the other way round": (lambda a, b: a - b, lambda a, b: b - a),
    "the same tensor twice": (lambda a, b: a * b, lambda a, b: a * a),
    "two tensors in the place of one": (lambda a, b: torch.mul(a, a), lambda a, b: torch.mul(b, a)),
    "a whole number": (lambda a, b: a.long() * 2.0, lambda a, b: a.long() * 2),
    "a bool": (lambda a, b: a.long() + 1, lambda a, b: a.long() + True),
    "another number": (lambda a, b: a * 3, lambda a, b: a * 4),
    "another dimension": (lambda a, b: a.sum(0), lambda a, b: a.sum(1)),
    "another shape": (lambda a, b: a.view((2, 18)), lambda a, b: a.view((3, 12))),
    "a list": (lambda a, b: a.view([2, 18]), lambda a, b: a.view([3, 12])),
    "a keyword": (lambda a, b: torch.add(a, b, alpha=2), lambda a, b: torch.add(a, b, alpha=3)),
    "no keyword": (lambda a, b: torch.add(a, b, alpha=2), torch.add),
    "another keyword": (lambda a, b: torch.sum(a, dim=0), lambda a, b: torch.sum(a, dtype=torch.float64)),
    "a type": (lambda a, b: a.to(torch.float64), lambda a, b: a.to(torch.int32)),
    "minus zero": (lambda a, b: torch.clamp(a, 0.0).copysign(-0.0), lambda a, b: torch.clamp(a, 0.0).copysign(0.0)),
    "other strides": (lambda a, b: a.exp() + b, lambda a, b: a.t().exp() + b),
    "other grad mode": (lambda a, b: a * b, without_grad(lambda a, b: a * b)),
    "in place": (lambda a, b: (a * 2).add(b), lambda a, b: (a * 2).add_(b)),
    "a view": (lambda a, b: (a * 2)[0], lambda a, b: (a * 2)[1]),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_another_call_than_the_one_expected_gives_its_own_result(name, grad):
    a, b = torch.randn(6, 6, requires_grad=grad), torch.randn(6, 6)
    for _ in range(2):
        for work in PAIRS[name]:
            expected = work(a, b)
            for _ in range(3):
                with weft.lazy():
                    result = work(a, b)
                found = weft.wait(result)
                assert (found.dtype, found.requires_grad) == (expected.dtype, expected.requires_grad)
                torch.testing.assert_close(found, expected)
                assert torch.equal(torch.signbit(found), torch.signbit(expected))


def test_a_new_tensor_of_another_look_is_not_taken_for_the_one_expected():
    for shape in ((20, 20), (20, 20), (20, 20), (20, 3), (1, 20)):
        x = torch.randn(shape)
        with weft.lazy():
            y = x * 2 + 1
        torch.testing.assert_close(weft.wait(y), x * 2 + 1)


def test_one_tensor_brought_along_twice_is_not_taken_for_two():
    for _ in range(3):
        a, b = torch.randn(20, 20), torch.randn(20, 20)
        for one, other in ((a, b), (a, a), (b, a)):
            with weft.lazy():
                y = torch.sub(one, other)
            assert torch.equal(weft.wait(y), one - other)


@pytest.mark.parametrize("work", [torch.mm, lambda x, w: torch.add(x, w, alpha=2), lambda x, w: x + 3])
def test_a_call_that_comes_again_is_not_looked_up(monkeypatch, work):
    x, w = torch.randn(20, 20), torch.randn(20, 20)
    expected = work(x, w)
    with weft.lazy():
        for _ in range(3):
            weft.wait(work(x, w))
        monkeypatch.setattr(type(SESSION), "call", lambda *given: pytest.fail("the long way was taken"))
        y = work(x, w)
        monkeypatch.undo()
    torch.testing.assert_close(weft.wait(y), expected)


def test_a_failure_names_the_line_of_its_own_call(monkeypatch):
    monkeypatch.setattr(lazy_plan, "COMPILED_FROM", 1000)
    x = torch.randn(20, 20)
    bad = torch.full((20,), 30)

    def one(index: torch.Tensor) -> torch.Tensor:
        return torch.index_select(x, 0, index)  # the first

    def other(index: torch.Tensor) -> torch.Tensor:
        return torch.index_select(x, 0, index)  # the second

    with weft.lazy():
        for _ in range(3):
            weft.wait(one(torch.zeros(20, dtype=torch.long)))
        for function, comment in ((one, "# the first"), (other, "# the second"), (one, "# the first")):
            with pytest.raises(Exception, match=comment):
                weft.wait(function(bad))


@pytest.mark.parametrize("compiled_from", [1, 1000])
def test_after_a_failure_whose_value_is_gone_waiting_for_all_is_possible_again(monkeypatch, compiled_from):
    monkeypatch.setattr(lazy_plan, "COMPILED_FROM", compiled_from)
    x, good, bad = torch.randn(20, 20), torch.zeros(20, dtype=torch.long), torch.full((20,), 30)
    with weft.lazy():
        for index in (good, good, good, good):
            weft.wait(torch.index_select(x, 0, index) * 2)
        with pytest.raises(ExecutionError, match="index out of range"):
            weft.wait(torch.index_select(x, 0, bad) * 2)
        gc.collect()
        weft.waitall()


def test_small_counters_are_brought_up_to_date_at_once_though_they_were_queued_before():
    step, other = torch.zeros(()), torch.zeros(20, 20)
    with weft.lazy():
        for _ in range(3):
            other.add_(1)
            step.add_(1)
            assert type(step + 1) is torch.Tensor
    assert step.item() == 3


def test_without_native_functions_lazy_tensors_are_made_by_pytorch(monkeypatch):
    monkeypatch.setattr(lazy_tensor, "placeholder_maker", lambda *given: None)
    metadata = TensorMetadata(torch.zeros(3, 2))
    value = lazy_tensor.LazyValue(metadata, None, None, 0)
    made = lazy_tensor.lazy_tensor(value)
    assert type(made) is lazy_tensor.LazyTensor
    assert made.value is value


def test_programs_that_never_repeat_themselves_leave_a_bounded_tree(monkeypatch):
    monkeypatch.setattr(lazy_trie, "MOST_NODES_KEPT", 20)
    before = root()
    x = torch.randn(20, 20)
    with weft.lazy():
        for count in range(1, 12):
            y = x
            for index in range(count):
                y = y.roll(index + count, 0)
            weft.wait(y)
    assert root() is not before
    assert torch.equal(weft.wait(y), x.roll(sum(index + 11 for index in range(11)), 0))
