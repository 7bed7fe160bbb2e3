"""What native code reads of sizes that have not come before is what it reads of those that have."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.runtime.test_moves import bytes_of

import weft
from weft.codegen.calls.moves import MOVE_WORDS, MOVED_DIMENSIONS, MoveWord
from weft.ir.extents import Polynomial
from weft.ir.graph import Value
from weft.ir.size_arithmetic import SizeArithmetic, row_of
from weft.ir.types import NumberType
from weft.runtime import varying_sizes
from weft.runtime.large_forms import SizeStep
from weft.runtime.moves import LargePlace
from weft.runtime.size_words import Moved
from weft.runtime.varying_sizes import TIMES_TO_LEARN, VaryingExecutable
from weft.runtime.watch import Changes

SIZES = tuple(Value("input", (), NumberType("int"), name=f"size{number}") for number in range(3))
A, B, C = map(Polynomial.atom, SIZES)


def constant(number: int) -> Polynomial:
    return Polynomial.constant(number)


@pytest.mark.parametrize(
    ("size", "at", "number"),
    [
        (constant(7), (2, 3, 5), 7),
        (A, (2, 3, 5), 2),
        (A.plus(B).times(C), (2, 3, 5), 25),
        (A.plus(constant(-1)).over(2), (7, 3, 5), 3),
        (A.times(B).plus(constant(7)).over(8).times(constant(8)), (7, 3, 5), 24),
        (B.times(constant(-1)).plus(A).plus(constant(-4)), (9, 3, 5), 2),
        (A.over(2).plus(B.over(3)).over(2).times(C.over(2)), (9, 7, 5), 6),
        (constant(3).plus(A.times(constant(-1))), (9, 3, 5), -6),
    ],
    ids=str,
)
def test_a_size_is_written_as_it_is_computed(size: Polynomial, at: tuple[int, ...], number: int) -> None:
    written = SizeArithmetic(SIZES)
    once, again = written.size(size), written.size(size)
    assert once == again
    assert written.function(row_of([once, again]))(*at) == (number, number)
    assert size.value(dict(zip(SIZES, at, strict=True)).__getitem__) == number


@pytest.mark.parametrize("seed", range(60))
def test_words_of_a_move_lead_to_the_same_bytes(seed: int) -> None:
    chance = random.Random(seed)
    item, at = chance.choice((1, 4, 8)), (3, 1, 2)
    choices = [(A, 3, chance.choice((3, 5))), (B, 1, 4), (C.over(2), 1, 2), (A.plus(C), 5, 7)]
    choices += [(constant(size), size, size) for size in (1, 2, 3)]
    dimensions = [chance.choice(choices) for _ in range(chance.randint(0, 5))]
    steps, numbers = [], []
    large, own = item, constant(item)
    for size, now, largest in reversed(dimensions):
        steps.insert(0, SizeStep(size, large, own))
        numbers.insert(0, (now, large, own.value(dict(zip(SIZES, at, strict=True)).__getitem__)))
        large, own = large * largest, own.times(size)
    written = SizeArithmetic(SIZES)
    texts = Moved(LargePlace(3, 640, 96), steps, item).words(written)
    if texts is None:
        assert len([size for size, _, _ in dimensions if size != constant(1)]) > MOVED_DIMENSIONS
        return
    words = written.function(row_of(texts))(*at)
    assert len(words) == MOVE_WORDS
    assert words[: MoveWord.BYTES] == (3, 640, 96)
    rows = [
        words[first : first + MOVED_DIMENSIONS] for first in (MoveWord.COUNTS, MoveWord.LARGE_STEPS, MoveWord.OWN_STEPS)
    ]
    assert bytes_of(list(zip(*rows, strict=True)), words[MoveWord.BYTES]) == bytes_of(numbers, item)


def test_what_lies_where_it_would_anyway_is_not_moved() -> None:
    rows = [SizeStep(A, 32, constant(32)), SizeStep(constant(8), 4, constant(4))]
    assert Moved(LargePlace(0, 0, tight=True), rows, 4).words(SizeArithmetic(SIZES)) == []
    assert Moved(LargePlace(0, 0), rows, 4).words(SizeArithmetic(SIZES)) != []


CASES: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "two sizes": (
        lambda x, y: (torch.cat([x, y], 1).relu() * 2, (x.mean(1) + y.mean(1)).exp()),
        lambda n: (torch.randn(3, n), torch.randn(3, 70 - n)),
    ),
    "means": (lambda x: (x.mean(0), x - x.mean(1, keepdim=True)), lambda n: (torch.randn(n, n + 3),)),
    "halves": (lambda x: (x[: x.shape[0] // 2] + 1, x[::2] * x.shape[0]), lambda n: (torch.randn(n, 4),)),
    "merged": (lambda x: (x.reshape(-1, 4).relu(), x.flatten() * 2), lambda n: (torch.randn(n, 3, 8),)),
    "turned": (lambda x: (x.transpose(1, 2).exp(), x.permute(2, 0, 1) + 1), lambda n: (torch.randn(2, n, n + 1),)),
    "whole numbers": (lambda i, t: t[i] * 2, lambda n: (torch.randint(0, 9, (n, 3)), torch.randn(9, 4))),
    "stretched": (lambda x: (x[:, None].expand(-1, 3, -1), x.exp()), lambda n: (torch.randn(n, 5),)),
    "no elements": (lambda x: (x[x.shape[0] - 2 :][: x.shape[0] - 2].exp(), x + 1), lambda n: (torch.randn(n, 3),)),
    "bytes": (lambda x: (x ^ 1, x.sum(0, dtype=torch.int32)), lambda n: (torch.ones(n, 3, dtype=torch.uint8),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_sizes_that_come_once_or_often_give_eagers_tensors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, make = CASES[name]
    hybrid = weft.hybridize(function)
    torch.manual_seed(0)
    # All sizes by one program, however much of it they need.
    monkeypatch.setattr("weft.api.varying.LEAST_SHARE", 0.0)
    with torch.no_grad():
        for size in (40, 50, 60, 33, 33, 33, 33, 33, 33, 2, 63, 64, 3, 2, 2, 2, 2, 17, 64):
            given = make(size)
            wanted, found = function(*given), hybrid(*given)
            wanted, found = (one if isinstance(one, tuple) else (one,) for one in (wanted, found))
            for one, other in zip(wanted, found, strict=True):
                torch.testing.assert_close(other, one)
                assert other.stride() == one.stride() or not one.numel()
    assert hybrid.traces <= 4, weft.explain(hybrid)


def executable_of(hybrid: Any) -> VaryingExecutable:
    [program] = hybrid.varying
    found = program.guarded.program._execute
    assert isinstance(found, VaryingExecutable)
    return found


def test_native_code_runs_sizes_at_once_and_learns_those_that_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hybrid = weft.hybridize(lambda x: (x * 2).sum(1))
    with torch.no_grad():
        for rows in (40, 50, 60):
            hybrid(torch.randn(rows, 5))
        executable = executable_of(hybrid)
        learnt: list[tuple[int, ...]] = []
        usual = VaryingExecutable._learn

        def learn(self: VaryingExecutable, numbers: tuple[int, ...]) -> Any:
            learnt.append(numbers)
            return usual(self, numbers)

        monkeypatch.setattr(VaryingExecutable, "_learn", learn)
        monkeypatch.setattr(VaryingExecutable, "_run_by_python", None)
        for rows in (41, 42, 43, *[44] * (TIMES_TO_LEARN + 3)):
            x = torch.randn(rows, 5)
            torch.testing.assert_close(hybrid(x), (x * 2).sum(1))
    assert learnt == [(44,)]
    assert (44,) in executable._known
    assert (42,) not in executable._known


def test_what_a_steady_call_reads_stays_when_its_sizes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varying_sizes, "MOST_SIZES", 1)
    hybrid = weft.hybridize(lambda x: (x * 2).sum(1))
    x = torch.randn(34, 5)
    with torch.no_grad():
        for rows in (40, 50, 60):
            hybrid(torch.randn(rows, 5))
        executable = executable_of(hybrid)
        for _ in range(TIMES_TO_LEARN):
            executable([x])
        run = executable.steady([x])
        assert run is not None
        words = weakref.ref(executable._known[34,].moves)
        for rows in (41, 42, 43):
            for _ in range(TIMES_TO_LEARN):
                executable([torch.randn(rows, 5)])
        assert executable._known.keys() == {(43,)}
        gc.collect()
        Changes.happened()  # to a weight of others: this program has none
        assert words() is not None
        found = run([x])
        assert found is not None
        torch.testing.assert_close(found[0], (x * 2).sum(1))
