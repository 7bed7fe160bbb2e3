"""Reductions of few long rows with loops behind them are divided, and give the same numbers however they are run."""

import pytest
import torch
from tests.codegen.kernel_cases import assert_as_exact_as_eager
from torch.nn import functional

import weft
from weft.config import overrides
from weft.ir.graph import Graph
from weft.passes.pipeline import run_pipeline
from weft.plan.fuse.fuse import fuse
from weft.plan.fuse.split_reductions import plan_stages
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.reduce import Finish, Reduction, RowExpression, RowKernel, RowPass, Stage, Store
from weft.plan.regions.region import find_regions
from weft.target import host_target
from weft.trace.lift.lift import lift

PIXELS, CHANNELS = 9000, 24


def centred(*stages: Stage, inputs: int = 1) -> RowExpression:
    """Stages over channels that lie side by side; the second output has a number a channel."""
    image = View("f32", (1, CHANNELS))
    views = (image, View("f32", (1, 0)))
    return RowExpression("centred", (CHANNELS,), (PIXELS,), views, (image,) * inputs, stages)


SUM = RowPass((), (Reduction("sum", 0),))
MEAN = Finish((Instruction("constant", (), "f32", (float(PIXELS),)), Instruction("div", (3, 4), "f32")), (5,))
CENTRE = RowPass((Instruction("sub", (0, 4), "f32"),), (), (Store(0, 5),))
KEEP = Finish((), (), (Store(1, 3),))


def kinds(expression: RowExpression) -> list[str]:
    return [call.kernel.name.split(".")[-1] for call in plan_stages(expression, host_target()).calls]


@pytest.mark.parametrize("stages", [(SUM, MEAN, CENTRE, KEEP), (SUM, MEAN, KEEP, CENTRE)], ids=["before", "after"])
def test_sums_are_cut_and_what_follows_is_a_loop(stages: tuple[Stage, ...]) -> None:
    plan = plan_stages(centred(*stages), host_target())
    assert [type(call.kernel) for call in plan.calls[-2:]] == [RowKernel, LoopKernel]
    assert plan.calls[-1].buffers == (0, 2, 3)  # what is centred, of the image and the first scratch
    assert plan.calls[-2].buffers[:2] == (1, 3)  # the sum, and the mean that is handed on
    assert plan.calls[-1].kernel.tile_count > 4


def test_a_loop_may_read_what_another_one_stored() -> None:
    twice = RowPass((Instruction("add", (1, 1), "f32"),), (), (Store(0, 5),))
    plan = plan_stages(centred(SUM, MEAN, CENTRE, KEEP, twice), host_target())
    assert plan.calls[-1].buffers == (0, 0)


def test_a_second_reduction_behind_the_first_keeps_all_in_one_kernel() -> None:
    squares = RowPass((Instruction("mul", (0, 4), "f32"),), (Reduction("sum", 5),), (Store(0, 5),))
    assert kinds(centred(SUM, MEAN, squares, KEEP)) == ["centred"]


def test_a_reduction_that_reads_what_was_stored_keeps_all_in_one_kernel() -> None:
    last = Finish((), (1,), (Store(1, 3),))
    assert kinds(centred(SUM, MEAN, CENTRE, last)) == ["centred"]


def normalised(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradients of a batch norm and relu, joined."""
    found = functional.batch_norm(x, None, None, weight, bias, training=True).relu()
    return torch.cat([one.reshape(-1) for one in torch.autograd.grad(found, (x, weight, bias), gradient)])


def arguments(dtype: torch.dtype, layout: torch.memory_format, shape: tuple[int, ...]) -> list[torch.Tensor]:
    x = torch.randn(shape, dtype=dtype).contiguous(memory_format=layout).requires_grad_()
    weight, bias = (torch.randn(shape[1], dtype=dtype, requires_grad=True) for _ in range(2))
    return [x, weight, bias, torch.randn(shape, dtype=dtype).contiguous(memory_format=layout)]


@pytest.mark.parametrize("shape", [(5, 24, 60, 31), (2, 1, 300, 301)], ids=["24 channels", "1 channel"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_the_gradients_of_a_norm_are_as_exact_as_eagers_on_any_number_of_lanes(
    dtype: torch.dtype, layout: torch.memory_format, shape: tuple[int, ...]
) -> None:
    given = arguments(dtype, layout, shape)
    exact = normalised(*(one.detach().double().requires_grad_(one.requires_grad) for one in given))
    found = []
    for threads in (1, 2):
        with overrides(threads=threads):
            found.append(weft.hybridize(normalised)(*given).detach())
    assert torch.equal(*found)
    assert_as_exact_as_eager(found[0], normalised(*given), exact)


def lifted(function: object, given: list[torch.Tensor]) -> Graph:
    return run_pipeline(lift(weft.program(function, *given).graph))


def test_the_sums_of_a_norms_gradient_are_cut_into_chunks() -> None:
    graph = lifted(normalised, arguments(torch.float32, torch.channels_last, (5, 24, 60, 31)))
    [region] = find_regions(graph, frozenset())
    kernels = [call.kernel for call in fuse(region, host_target()).plan.calls]
    chunks = [kernel for kernel in kernels if isinstance(kernel, RowKernel) and kernel.name.endswith(".chunks")]
    assert [len(kernel.expression.outputs) for kernel in chunks] == [2]
    assert chunks[0].tile_count > 1
