"""Gradients of attention: one kernel without arrays of scores in memory, as exact as eager's, else apart."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.plan.attentions import by_pytorch, causal, with_mask
from torch import nn
from torch.nn.functional import softmax

import weft
from weft.compile import pipeline
from weft.config import overrides
from weft.errors import UsageError
from weft.plan.check import check_plan
from weft.plan.fuse.fuse import fuse
from weft.plan.fuse.fusion import tensor_type
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.attention_gradient import AttentionGradientKernel
from weft.plan.memory.arena import place
from weft.plan.planned import PlannedGraph, PlannedRegion
from weft.plan.regions import attention
from weft.plan.schedule.cost import default_model
from weft.plan.schedule.lanes import schedule
from weft.runtime.executable import NativeExecutable
from weft.target import LEVELS, architecture, host_target

Function = Callable[..., torch.Tensor]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, no_kept_plans: None) -> list[PlannedRegion]:
    """The regions that are planned meanwhile."""
    found: list[PlannedRegion] = []
    plan = pipeline.plan_graph

    def noted(*given: Any) -> PlannedGraph:
        graph = plan(*given)
        found.extend(graph.regions)
        return graph

    monkeypatch.setattr(pipeline, "plan_graph", noted)
    monkeypatch.setattr(attention, "LEAST_BYTES", 0)
    return found


def kernels(regions: list[PlannedRegion], kind: type = AttentionGradientKernel) -> list[Any]:
    return [call.kernel for region in regions for call in region.plan.calls if isinstance(call.kernel, kind)]


def by_hand(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return softmax(query @ key.transpose(-2, -1) * 0.25, -1) @ value


def tensors(rows: int, keys: int, size: int = 24, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(rows + keys)
    return [torch.randn(2, length, 2, size, dtype=dtype).transpose(1, 2) for length in (rows, keys, keys)]


def gradients(function: Function, inputs: list[torch.Tensor], pull: torch.Tensor, *others: torch.Tensor) -> list:
    own = [each.detach().clone().requires_grad_() for each in inputs]
    function(*own, *others).backward(pull)
    return [each.grad for each in own]


def assert_exact(function: Function, inputs: list[torch.Tensor], *masks: torch.Tensor) -> None:
    """Check the measure of Weft's numerics on the three gradients."""
    pull = torch.randn(*inputs[0].shape[:-1], inputs[2].shape[-1], dtype=inputs[0].dtype)
    found = gradients(weft.hybridize(function), inputs, pull, *masks)
    eager = gradients(function, inputs, pull, *masks)
    wide = [each.double() if each.is_floating_point() else each for each in masks]
    exact = gradients(function, [each.double() for each in inputs], pull.double(), *wide)
    for mine, its, best in zip(found, eager, exact, strict=True):
        assert torch.equal(mine.isnan(), its.isnan())
        scale = best.square().mean().sqrt()
        ours, theirs = ((each.double() - best).square().mean().sqrt() / scale for each in (mine, its))
        assert ours <= 2 * theirs + 1e-7


@pytest.mark.parametrize("function", [by_pytorch, causal])
@pytest.mark.parametrize("sizes", [(64, 64), (65, 127), (130, 130), (200, 97)], ids=str)
def test_gradients_are_one_kernel_as_exact_as_eager(
    function: Function, sizes: tuple[int, int], planned: list[PlannedRegion]
) -> None:
    assert_exact(function, tensors(*sizes))
    assert len(kernels(planned)) == 1


@pytest.mark.parametrize("shape", [(80, 90), (2, 1, 1, 90), (2, 2, 80, 90)], ids=str)
@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_masks_count(shape: tuple[int, ...], kind: torch.dtype, planned: list[PlannedRegion]) -> None:
    torch.manual_seed(0)
    mask = torch.rand(shape) < 0.7 if kind is torch.bool else torch.randn(shape)
    if shape[-2] == 80 and kind is torch.bool:
        mask[..., 7, :] = False
    assert_exact(with_mask, tensors(80, 90), mask)
    assert len(kernels(planned)) == 1


@pytest.mark.parametrize("level", LEVELS[architecture(host_target().triple)])
def test_processors_with_fewer_instructions_are_as_exact(level: str, planned: list[PlannedRegion]) -> None:
    try:
        host_target().masked(level)
    except UsageError:
        pytest.skip("this processor does not have these instructions")
    with overrides(target=level):
        assert_exact(causal, tensors(130, 130, size=17))
    assert len(kernels(planned)) == 1


def test_doubles_have_gradients_too(planned: list[PlannedRegion]) -> None:
    assert_exact(causal, tensors(100, 100, dtype=torch.float64))
    assert len(kernels(planned)) == 1


def test_no_array_of_scores_is_in_memory(planned: list[PlannedRegion]) -> None:
    inputs = [torch.randn(1, 1, 1024, 16) for _ in range(3)]
    gradients(weft.hybridize(by_pytorch), inputs, torch.randn(1, 1, 1024, 16))
    assert all(region.plan.arena_bytes < 1024 * 1024 for region in planned)


def test_few_rows_keep_the_kernels_of_products(planned: list[PlannedRegion]) -> None:
    assert_exact(by_pytorch, tensors(20, 20))
    assert not kernels(planned)


def test_where_the_kernel_cannot_be_the_products_are_computed_apart(
    planned: list[PlannedRegion], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "gradient_block_rows", lambda *given, **options: 0)
    assert_exact(causal, tensors(100, 100))
    assert not kernels(planned)


def test_a_softmax_by_hand_is_as_exact_as_eager() -> None:
    assert_exact(by_hand, tensors(100, 100))


def test_a_step_of_a_transformer_has_neither_scores_of_its_forward_nor_of_its_backward(
    planned: list[PlannedRegion],
) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 48, dropout=0.0, batch_first=True)
    other, x, target = copy.deepcopy(layer), torch.randn(2, 100, 32), torch.randn(2, 100, 32)
    step = weft.step(layer, nn.functional.mse_loss, torch.optim.SGD(layer.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(2):
        loss = nn.functional.mse_loss(other(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(step(x, target), loss.detach())
    for mine, its in zip(layer.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, its, atol=1e-5, rtol=1e-4)
    assert len(kernels(planned)) == len(kernels(planned, AttentionKernel)) == 1


def gradients_by_hand(more: float, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Give what a causal attention's gradients are where `other` is the key, and nothing `more` is added to slopes."""
    query, key, value, pull, other = tensors
    later = torch.arange(key.shape[-2]) > torch.arange(query.shape[-2])[:, None]
    shares = (query @ key.transpose(-2, -1) * 0.2).masked_fill(later, -math.inf).exp()
    slopes = shares * (pull @ value.transpose(-2, -1)) + more
    return slopes @ other, slopes.transpose(-2, -1) @ query, shares.transpose(-2, -1) @ pull


@pytest.mark.parametrize("more", [0.0, 0.5])
@pytest.mark.parametrize("size", [8, 24, 40])
def test_what_only_looks_like_the_gradients_of_an_attention_is_right(
    size: int, more: float, planned: list[PlannedRegion]
) -> None:
    torch.manual_seed(size)
    inputs = [torch.randn(4, 130, columns) for columns in (24, 24, 24, 24, size)]
    exact = gradients_by_hand(more, *(each.double() for each in inputs))
    for mine, best in zip(weft.hybridize(gradients_by_hand)(more, *inputs), exact, strict=True):
        torch.testing.assert_close(mine.double(), best, atol=1e-4, rtol=1e-4)
    assert not kernels(planned)  # only PyTorch's own gradient is the op


def test_any_number_of_lanes_gives_the_same_bits(planned: list[PlannedRegion]) -> None:
    assert_exact(causal, tensors(130, 130))
    region, target, results = planned[-1].region, host_target(), []
    fused = fuse(region, target)
    given = [torch.randn(kind.size).as_strided(kind.shape, kind.strides) for kind in map(tensor_type, region.inputs)]
    for lanes in (1, 2, 4):
        plan = place(schedule(fused.plan, lanes, default_model(target)))
        check_plan(plan)
        outs = [torch.empty_strided(kind.shape, kind.strides) for kind in map(tensor_type, region.outputs)]
        NativeExecutable(plan, target, fused.constants)(given, outs)
        results.append(outs)
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(result, results[0], strict=True))
