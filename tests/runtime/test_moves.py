"""Tensors go to the beginning of larger memory and come out of it by the words that native code reads."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
import torch

import weft
from weft.api.varying import VaryingProgram
from weft.codegen.calls.moves import LINE, MOVE_WORDS, MOVED_DIMENSIONS, MoveWord
from weft.runtime.moves import LargePlace, Step, joined, places_behind, table_of_moves
from weft.runtime.varying_sizes import VaryingExecutable


def bytes_of(steps: list[Step], item: int) -> set[tuple[int, int]]:
    """The pairs of bytes, in larger memory and in a tensor, that dimensions lead to."""
    places = [
        tuple(sum(at * step[side] for at, step in zip(place, steps, strict=True)) for side in (1, 2))
        for place in product(*(range(count) for count, _, _ in steps))
    ]
    return {(large + byte, own + byte) for large, own in places for byte in range(item)}


@pytest.mark.parametrize("seed", range(30))
def test_dimensions_that_are_joined_lead_to_the_same_bytes(seed: int) -> None:
    chance = random.Random(seed)
    item = chance.choice((1, 4, 8))
    shape = [chance.randint(0 if seed % 7 == 0 else 1, 4) for _ in range(chance.randint(0, 4))]
    largest = [size + chance.choice((0, 0, 1, 3)) for size in shape]
    order = chance.sample(range(len(shape)), len(shape))
    steps: list[Step] = [(0, 0, 0)] * len(shape)
    large = own = item
    for place in order:
        steps[place] = (shape[place], large, own)
        large, own = large * largest[place], own * shape[place]
    whole, kept = joined(steps, item)
    wanted = bytes_of(steps, item)
    assert bytes_of(kept, whole) == wanted
    assert len(kept) <= len(shape) + (not wanted)


def test_a_row_of_words_says_all_of_a_move() -> None:
    row = LargePlace(3, 640, 96).move([(5, 64, 24), (6, 4, 4)], 4)
    assert row is not None
    assert len(row) == MOVE_WORDS
    assert row[MoveWord.SLOT] == 3
    assert row[MoveWord.BYTES] == 24
    assert row[MoveWord.COUNTS : MoveWord.COUNTS + MOVED_DIMENSIONS] == (1, 1, 1, 5)
    assert list(table_of_moves([row], [], 5)) == [1, 0, 5, *row]


def test_what_code_takes_as_it_lies_is_where_it_is_at_all_sizes() -> None:
    steps = [(5, 64, 24), (6, 4, 4)]
    assert not LargePlace(3, 640, tight=True).is_there(steps)
    assert LargePlace(3, 640, tight=True).is_there([(1, 64, 24), (6, 4, 4)])
    assert LargePlace(3, 640, tight=True, dense=True).is_there(steps)


def test_dimensions_that_all_lie_apart_are_not_moved_natively() -> None:
    assert LargePlace(0, 0).move([(2, 10**place * 4, 3**place * 4) for place in range(MOVED_DIMENSIONS + 2)], 4) is None


def test_places_lie_behind_the_frame_and_one_another() -> None:
    found, end = places_behind(100, [10, 0, 200])
    assert all(place % LINE == 0 and place >= 100 + LINE for place in found)
    assert found[1] >= found[0] + 10 + LINE
    assert end == found[2] + 200


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x * 2, (4,)),
        (lambda x: x.transpose(0, 1) * 2, (4, 3)),
        (lambda x: (x.relu(), x.sum(-1), x.mean()), (3, 4)),
        (lambda x: x.flatten(0, 1) + 1, (3, 4)),
        (lambda x: x.long() + 1, (4,)),
        (lambda x: x > 0, (4,)),
        (lambda x: x.double() * 2, (4,)),
        (lambda x: x.bfloat16() * 2, (4,)),
    ],
)
@torch.no_grad()
def test_calls_of_machine_code_move_tensors_natively(
    function: Any, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a closer program would be worth it.
    monkeypatch.setattr(VaryingProgram, "is_worth_less", lambda *_: False)
    hybrid = weft.hybridize(function)
    for rows in (9, 12, 15, 9, 12, 15):
        hybrid(torch.randn(rows, *shape))
    by_python: list[object] = []
    monkeypatch.setattr(VaryingExecutable, "_run_by_python", lambda *given: by_python.append(given))
    for rows in (9, 12, 15, 10, 16, 2):
        x = torch.randn(rows, *shape)
        found, expected = hybrid(x), function(x)
        for one, other in zip(*(y if isinstance(y, tuple) else (y,) for y in (found, expected)), strict=True):
            assert one.stride() == other.stride()
            torch.testing.assert_close(one, other)
    assert by_python == []
    assert hybrid.traces == 2
