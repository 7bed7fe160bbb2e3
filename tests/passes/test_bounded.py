"""Each rule of bounding gives what the op gives at the sizes of a call, whatever lies beyond them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.passes.bounded_cases import CASES, Case, Draft

from weft.ir.extents import extent_of_size
from weft.ir.graph import Graph, LiftedGraph, Result, Value
from weft.ir.interpreter import interpret
from weft.ir.types import NumberType, TensorType
from weft.ir.verifier import verify
from weft.passes.bounded import RULES, bounded
from weft.passes.bounding import BoundedGraph
from weft.passes.within import Factor, Within, varies

TOPS = (8, 11)
SIZES = ((8, 11), (2, 2), (3, 5), (7, 10), (5, 11), (1, 1), (1, 7), (6, 1))
FLOAT_POISON = float("nan")


def test_every_rule_has_cases() -> None:
    assert set(CASES) == set(RULES)


def written(case: Case, sizes: tuple[int, int], numbers: Sequence[Value] = ()) -> tuple[Draft, Graph]:
    draft = Draft()
    results = case(draft, *sizes)
    graph = Graph("case", (*draft.inputs, *numbers), tuple(draft.values), tuple(map(Result, results)))
    return draft, graph


def largest(case: Case) -> tuple[BoundedGraph, tuple[Value, ...]]:
    numbers = tuple(Value("input", (), NumberType("int"), name=name) for name in ("n", "m"))
    n, m = (extent_of_size(size, top) for size, top in zip(numbers, TOPS, strict=True))
    _, graph = written(case, (n, m), numbers)
    found = bounded(LiftedGraph.of(graph))
    verify(found.graph)
    return found, numbers


def arguments(draft: Draft, seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    found = []
    for value in draft.inputs:
        kind = value.type
        assert isinstance(kind, TensorType)
        if value in draft.most:
            found.append(torch.randint(0, draft.most[value], kind.shape))
        elif kind.dtype is torch.bool:
            found.append(torch.rand(kind.shape) > 0.4)
        else:
            found.append(torch.randn(kind.shape).to(kind.dtype))
    return found


def poisoned(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The tensor at the beginning of larger memory; places behind it are 0, as in memory of inputs."""
    filling: Any = {torch.bool: True, torch.int64: 0}.get(tensor.dtype, FLOAT_POISON)
    memory = torch.full(tuple(shape), filling, dtype=tensor.dtype)
    memory[tuple(map(slice, tensor.shape))] = tensor
    return memory


def part(result: torch.Tensor, within: Within, shape: Sequence[int], sizes: dict[Value, int]) -> torch.Tensor:
    """What counts of a result; of what is the same everywhere, as much as there is to be."""
    whole, counts = [], []
    for dimension, size in zip(within, shape, strict=True):
        some_vary = varies(dimension)
        for factor in dimension if some_vary else (Factor(math.prod(factor.largest for factor in dimension)),):
            whole.append(factor.largest)
            known = factor.largest if some_vary else size
            counts.append(known if factor.size is None else factor.size.value(sizes.__getitem__))
    return result.reshape(whole)[tuple(map(slice, counts))].reshape(tuple(shape))


def random_norms(seed: int) -> Case:
    """Reductions, repetitions, and reshapes that merge and take apart, of up to three dimensions that vary."""

    def case(g: Draft, n: int, m: int) -> Sequence[Value]:
        choose = random.Random(seed)
        sizes = [choose.choice((n, m, 2, 3)) for _ in range(choose.randint(2, 4))]
        wide = g.input(*sizes)
        found = []
        for _ in range(4):
            ones = tuple(size if choose.random() < 0.6 else 1 for size in sizes)
            part = g.build("expand", g.input(*ones), shape=tuple(sizes))
            x = g.build("mul", part, wide) if choose.random() < 0.4 else part
            first = choose.randrange(len(sizes) - 1)
            last = choose.randint(first + 1, len(sizes) - 1)
            whole = math.prod(sizes[first : last + 1])
            rows = g.build("reshape", x, shape=(*sizes[:first], whole, *sizes[last + 1 :]))
            op = choose.choice(("sum", "max", "min"))
            number = g.build(op, rows, dimensions=(first,), keep=True)
            again = g.build("expand", number, shape=(*sizes[:first], whole, *sizes[last + 1 :]))
            apart = g.build("reshape", g.build("sub", rows, again), shape=tuple(sizes))
            over = tuple(place for place in range(len(sizes)) if choose.random() < 0.5)
            found += [number, apart, g.build("reshape", again, shape=tuple(sizes))]
            found += [g.build("sum", one, dimensions=over, keep=False) for one in found[-2:]] if over else []
        return found

    return case


@pytest.mark.parametrize("seed", range(40))
def test_norms_of_any_dimensions_are_those_of_the_sizes_of_a_call(seed: int) -> None:
    check(random_norms(seed))


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, cases in CASES.items() for name in cases])
def test_a_rule_gives_at_any_sizes_what_the_op_gives(rule: str, name: str) -> None:
    check(CASES[rule][name])


def check(case: Case) -> None:
    """Compare a graph of the largest sizes with those of the sizes of calls, NaN behind the inputs."""
    found, numbers = largest(case)
    for seed, given in enumerate(SIZES):
        sizes = dict(zip(numbers, given, strict=True))
        draft, exact = written(case, given)
        tensors = arguments(draft, seed)
        expected = interpret(exact, tensors)
        kinds = [value.type for value in found.graph.inputs]
        memories = [
            poisoned(tensor, kind.shape)
            for tensor, kind in zip(tensors, kinds, strict=False)
            if isinstance(kind, TensorType)
        ]
        results = interpret(found.graph, [*memories, *given])
        for result, within, right in zip(results, found.within, expected, strict=True):
            torch.testing.assert_close(
                part(result, within, right.shape, sizes), right, rtol=1e-5, atol=1e-5, equal_nan=True
            )
