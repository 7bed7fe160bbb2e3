"""Check kernels mark a call that has an index out of range, whatever its place and however many there are."""

import pytest
import torch
from tests.codegen.kernel_runner import LEVELS, NAMES, call_kernel, compile_kernel, target_of

from weft.codegen.kernels.check import emit_check
from weft.plan.kernels.check import plan_check
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.loop import LoopExpression

EXTENT = 50


def marked(index: torch.Tensor, level: str) -> bool:
    """Tell whether a check of all elements, against places 0 to 49, finds one that is wrong."""
    body = () if index.dtype == torch.int64 else (Instruction("cast", (0,), "i64"),)
    rows = View("i64", torch.empty(index.shape, device="meta").stride())
    view = View(NAMES[index.dtype], index.stride(), index.storage_offset())
    expression = LoopExpression("kernel", tuple(index.shape), (rows,), (view,), body, (len(body),))
    kernel = plan_check(expression, EXTENT, target_of(level))
    mark = torch.zeros((), dtype=torch.int64)
    call_kernel(compile_kernel(emit_check, kernel, target_of(level)), "kernel", [mark, index], [(0, kernel.tile_count)])
    return bool(mark)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("count", [1, 3, 8, 17])
def test_every_place_of_a_wrong_index_is_seen(count: int, dtype: torch.dtype, level: str) -> None:
    index = torch.randint(EXTENT, (count,), dtype=dtype)
    assert not marked(index, level)
    for place in range(count):
        for wrong in (-1, EXTENT, torch.iinfo(dtype).min, torch.iinfo(dtype).max):
            strange = index.clone()
            strange[place] = wrong
            assert marked(strange, level), (place, wrong)


@pytest.mark.parametrize("level", LEVELS)
def test_elements_between_those_of_a_view_do_not_count(level: str) -> None:
    memory = torch.full((7, 6), EXTENT)
    memory[1:, ::2] = 3
    assert not marked(memory[1:, ::2], level)
    memory[6, 4] = -1
    assert marked(memory[1:, ::2], level)


def test_no_index_is_never_wrong() -> None:
    assert not marked(torch.empty(0, 3, dtype=torch.int64), "native")
