"""Each rule of bounding gives in machine code what the op gives at the sizes of a call, with NaN wherever nothing is.

Inputs have NaN behind what counts, and so has the arena: what one kernel leaves out another one must not use.
"""

from __future__ import annotations

import pytest
import torch
from tests.passes.bounded_cases import CASES
from tests.passes.test_bounded import arguments, part, poisoned, written

from weft.codegen.library import LibraryExecutable
from weft.codegen.threads.layout import TABLE_OFFSET
from weft.compile.pipeline import compile_graph
from weft.ir.extents import extent_of_size
from weft.ir.graph import LiftedGraph, Value
from weft.ir.interpreter import interpret
from weft.ir.types import NumberType, TensorType
from weft.passes.bounded import bounded
from weft.passes.by_sizes import split_by_sizes
from weft.plan.extents.parts import VaryingSizes
from weft.plan.library_plan import plan_library
from weft.runtime.arena import ArenaBlock, BlockPool

TOPS = (40, 37)
SIZES = ((40, 37), (2, 2), (3, 5), (17, 16), (39, 33), (1, 1), (1, 37), (40, 1), (16, 31), (33, 7), (8, 36))


@pytest.fixture(autouse=True)
def _poisoned_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = BlockPool.take

    def take(self: BlockPool) -> ArenaBlock:
        block = taken(self)
        block.memory[TABLE_OFFSET:] = b"\xff" * (len(block.memory) - TABLE_OFFSET)
        return block

    monkeypatch.setattr(BlockPool, "take", take)


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, cases in CASES.items() for name in cases])
def test_kernels_of_a_rule_use_nothing_beyond_sizes(rule: str, name: str) -> None:
    case = CASES[rule][name]
    numbers = tuple(Value("input", (), NumberType("int"), name=size) for size in ("n", "m"))
    n, m = (extent_of_size(size, top) for size, top in zip(numbers, TOPS, strict=True))
    _, graph = written(case, (n, m), numbers)
    split = split_by_sizes(bounded(LiftedGraph.of(graph)), numbers)
    within = {result.value: one for result, one in zip(split.graph.results, split.within, strict=True)}
    compiled = compile_graph(split.graph, frozenset(), trusted=False, varying=VaryingSizes(split.sizes, within))
    of_sizes = LibraryExecutable(plan_library(split.of_sizes))
    kinds = [value.type for value in split.graph.inputs]
    order = {value: place for place, value in enumerate(compiled.roots)}
    for seed, given in enumerate(SIZES):
        sizes = dict(zip(numbers, given, strict=True))
        draft, exact = written(case, given)
        tensors = arguments(draft, seed)
        expected = interpret(exact, tensors)
        memories = [
            poisoned(tensor, kind.shape)
            for tensor, kind in zip(tensors, kinds, strict=False)
            if isinstance(kind, TensorType)
        ]
        found = compiled([*memories, *given, *of_sizes(given)])
        for result, right, one in zip(split.graph.results, expected, split.within, strict=True):
            answer = part(found[order[result.value]], one, right.shape, sizes)
            torch.testing.assert_close(answer, right, rtol=1e-4, atol=1e-4, equal_nan=True)
