"""Calls with equal keys may run one program; of different keys a sentence says the difference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.errors import UnsupportedError
from weft.trace.interception.capture import tree_flatten
from weft.trace.signature import key_change, leaf_key, leaf_text, memory_key, modes_key, number_of, tensor_key


def key(*arguments: Any) -> Any:
    leaves, structure = tree_flatten((arguments, {}))
    return (structure, tuple(map(leaf_key, leaves)), modes_key())


def test_equal_calls_have_equal_keys() -> None:
    assert key(torch.ones(2), 3, "a", [1.5]) == key(torch.zeros(2), 3, "a", [1.5])
    assert hash(leaf_key(1.5)) == hash(leaf_key(1.5))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ("1", 1),
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), torch.ones(2).double()),
        (torch.ones(2, 2), torch.ones(2, 2).t()),
        (torch.ones(2), torch.ones(2, requires_grad=True)),
        (torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64).conj()),
        ([], ()),
        (object(), object()),
    ],
)
def test_calls_that_may_differ_have_different_keys(first: Any, second: Any) -> None:
    assert key(first) != key(second)


def test_not_a_number_equals_itself() -> None:
    assert leaf_key(float("nan")) == leaf_key(float("nan"))


def test_an_unknown_object_is_only_itself() -> None:
    thing = object()
    assert key(thing) == key(thing)
    assert leaf_text(leaf_key(thing)).startswith("<object at 0x")


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        (torch.ones(4, 2), torch.ones(7, 2), "argument x: size of dim 0 was 4, is 7"),
        (1.5, 2.5, "argument x was 1.5, is 2.5"),
        (1, "text", "argument x was 1, is 'text'"),
        (torch.ones(2), None, "argument x was float32[2], is None"),
        ([1, 2], [1], "the arguments are nested in another way"),
    ],
)
def test_the_difference_is_a_sentence(before: Any, now: Any, sentence: str) -> None:
    assert key_change(key(before), key(now), ["x"]) == sentence


def test_which_tensors_share_memory_is_a_key() -> None:
    base = torch.ones(6)
    apart = memory_key([base[:3], torch.ones(3)])
    assert apart == memory_key([torch.ones(3), base[:3]])
    assert apart != memory_key([base[:3], base[3:]])


def test_numbers_are_read_back_from_their_keys() -> None:
    assert number_of(leaf_key(1.5)) == 1.5
    assert number_of(leaf_key(7)) == 7
    assert number_of(leaf_key(True)) is None


def test_tensors_that_are_not_plain_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="not strided"):
        tensor_key(torch.eye(2).to_sparse())
