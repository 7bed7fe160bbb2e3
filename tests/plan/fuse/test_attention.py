"""Attention inside of programs: found however it is written, left alone where others need the scores, and exact."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tests.plan.attentions import by_pytorch, causal, with_mask
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, softmax

import weft
from weft.ir.types import TensorType
from weft.plan.form.plan import KernelCall
from weft.plan.fuse.fuse import fuse
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.gemm import Matrix
from weft.plan.kernels.pack import PackKernel
from weft.plan.memory.arena import place
from weft.plan.regions.attention import with_attentions
from weft.plan.regions.region import find_regions
from weft.plan.schedule.cost import default_model
from weft.plan.schedule.lanes import schedule
from weft.runtime.executable import NativeExecutable
from weft.target import host_target
from weft.trace.lift.lift import lift

Function = Callable[..., torch.Tensor]


def by_hand(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return softmax(query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]), -1) @ value


def by_hand_with_mask(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = (query @ key.transpose(-2, -1)) * 0.25
    return softmax(scores.masked_fill(mask == 0, -math.inf), dim=-1) @ value


def by_hand_with_triangle(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = query @ key.transpose(-2, -1)
    behind = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return softmax(scores.masked_fill(behind, -math.inf), -1) @ value


def by_hand_with_shown(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = query @ key.transpose(-2, -1)
    shown = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return softmax(torch.where(shown, scores, -math.inf), -1) @ value


def by_hand_with_places(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = query @ key.transpose(-2, -1)
    rows, keys = torch.arange(scores.shape[-2])[:, None], torch.arange(scores.shape[-1])
    return softmax(scores.masked_fill(~(rows >= keys), -math.inf), -1) @ value


def without_the_row_itself(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = query @ key.transpose(-2, -1)
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(2)
    return softmax(scores.masked_fill(hidden, -math.inf), -1) @ value


def with_weights(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights = softmax(query @ key.transpose(-2, -1), -1)
    return weights @ value, weights


def with_scores(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = query @ key.transpose(-2, -1)
    return softmax(scores, -1) @ value, scores


def along_rows(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return softmax(query @ key.transpose(-2, -1), -2) @ value


def by_experts(x: torch.Tensor, gate: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    return (softmax(x @ gate, -1).unsqueeze(1) @ (x @ experts).transpose(0, 1)).squeeze(1)


def tensors(rows: int, keys: int, size: int = 32, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(rows)
    return [torch.randn(2, length, 3, size, dtype=dtype).transpose(1, 2) for length in (rows, keys, keys)]


def calls(function: Function | nn.Module, *inputs: torch.Tensor) -> list[KernelCall]:
    return [call for plan in weft.program(function, *inputs).plan.regions for call in plan.calls]


def attentions(function: Function | nn.Module, *inputs: torch.Tensor) -> list[AttentionKernel]:
    return [call.kernel for call in calls(function, *inputs) if isinstance(call.kernel, AttentionKernel)]


def assert_exact(function: Function, *inputs: torch.Tensor) -> None:
    """Check the measure of Weft's numerics, and that what is no number is none at the same places."""
    found, eager = weft.hybridize(function)(*inputs), function(*inputs)
    exact = function(*(each.double() if each.is_floating_point() else each for each in inputs))
    assert torch.equal(found.isnan(), eager.isnan())
    found, eager, exact = (each.double().nan_to_num() for each in (found, eager, exact))
    allowed = 2 * (eager - exact).square().mean().sqrt() + 4e-7 * exact.abs().max()
    assert (found - exact).square().mean().sqrt() <= allowed


@pytest.mark.parametrize("function", [by_pytorch, causal, by_hand])
@pytest.mark.parametrize("rows", [15, 16, 17, 63, 64, 65])
def test_attention_is_one_kernel_as_exact_as_eager(function: Function, rows: int) -> None:
    inputs = tensors(rows, rows)
    assert len(attentions(function, *inputs)) == 1
    assert_exact(function, *inputs)


@pytest.mark.parametrize("function", [by_pytorch, causal, by_hand])
@pytest.mark.parametrize("sizes", [(40, 300), (300, 129)], ids=str)
def test_queries_and_keys_may_be_of_different_numbers(function: Function, sizes: tuple[int, int]) -> None:
    inputs = tensors(*sizes)
    assert len(attentions(function, *inputs)) == 1
    assert_exact(function, *inputs)


def test_doubles_are_attended_too() -> None:
    inputs = tensors(33, 33, dtype=torch.float64)
    assert len(attentions(causal, *inputs)) == 1
    torch.testing.assert_close(weft.hybridize(causal)(*inputs), causal(*inputs))


@pytest.mark.parametrize("shape", [(40, 50), (2, 1, 1, 50), (1, 3, 40, 50), (2, 3, 40, 50)], ids=str)
@pytest.mark.parametrize("function", [with_mask, by_hand_with_mask])
def test_masks_of_all_shapes_count(function: Function, shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape) < 0.7
    mask[..., 0] = True
    inputs = (*tensors(40, 50), mask)
    assert len(attentions(function, *inputs)) == 1
    assert_exact(function, *inputs)


@pytest.mark.parametrize("function", [with_mask, by_hand_with_mask])
def test_rows_without_a_key_give_what_eager_gives(function: Function) -> None:
    mask = torch.rand(40, 50) < 0.7
    mask[3], mask[39] = False, False
    assert_exact(function, *tensors(40, 50), mask)


def test_numbers_are_added_to_scores() -> None:
    inputs = (*tensors(40, 50), torch.randn(2, 1, 40, 50))
    assert len(attentions(with_mask, *inputs)) == 1
    assert_exact(with_mask, *inputs)


@pytest.mark.parametrize("function", [by_pytorch, by_hand])
def test_what_is_no_number_spreads_as_in_eager(function: Function) -> None:
    query, key, value = tensors(40, 50)
    query[0, 0, 3, 2], query[1, 1, 5, 0], value[1, 2, 7, 4] = torch.nan, torch.inf, torch.nan
    assert_exact(function, query, key, value)


@pytest.mark.parametrize("function", [with_weights, with_scores, along_rows])
def test_scores_that_others_read_stay_in_memory(function: Function) -> None:
    inputs = tensors(40, 40)
    assert not attentions(function, *inputs)
    torch.testing.assert_close(weft.hybridize(function)(*inputs), function(*inputs))


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_rows_with_values_of_their_own_are_no_attention(rows: int) -> None:
    inputs = torch.randn(rows, 32), torch.randn(32, 8), torch.randn(8, 32, 48)
    assert rows == 1 or not attentions(by_experts, *inputs)
    assert_exact(by_experts, *inputs)


@pytest.mark.parametrize("sizes", [(1, 8), (1, 64), (1, 129), (3, 50), (7, 300)], ids=str)
@pytest.mark.parametrize("function", [by_pytorch, by_hand])
def test_few_rows_read_keys_and_values_where_they_are(function: Function, sizes: tuple[int, int]) -> None:
    inputs = tensors(*sizes)
    (kernel,) = attentions(function, *inputs)
    assert isinstance(kernel.key, Matrix)
    assert isinstance(kernel.value, Matrix)
    assert not any(isinstance(call.kernel, PackKernel) for call in calls(function, *inputs))
    assert_exact(function, *inputs)


def test_few_rows_of_one_matrix_with_many_keys_are_left_to_products_that_all_cores_share() -> None:
    inputs = [torch.randn(1, rows, 32) for rows in (1, 600, 600)]
    alone = host_target().cores == 1
    assert bool(attentions(by_hand, *inputs)) == alone
    assert_exact(by_hand, *inputs)


def repeated(heads: torch.Tensor, times: int) -> torch.Tensor:
    batch, count, keys, size = heads.shape
    return heads[:, :, None].expand(batch, count, times, keys, size).reshape(batch, count * times, keys, size)


def in_groups(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    times = query.shape[1] // key.shape[1]
    return by_pytorch(query, repeated(key, times), repeated(value, times))


def in_groups_with_mask(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    times = query.shape[1] // key.shape[1]
    return with_mask(query, repeated(key, times), repeated(value, times), mask)


def in_groups_by_pytorch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(query, key, value, enable_gqa=True)


@pytest.mark.parametrize("function", [in_groups, in_groups_with_mask, in_groups_by_pytorch])
@pytest.mark.parametrize(("batch", "heads", "rows"), [(1, 2, 1), (2, 2, 3), (2, 1, 1), (1, 1, 5)])
def test_heads_that_repeat_for_groups_of_queries_are_not_copied(
    function: Function, batch: int, heads: int, rows: int
) -> None:
    query, key, value = (torch.randn(batch, *shape, 24) for shape in ((6, rows), (heads, 65), (heads, 65)))
    mask = torch.rand(batch, 1, rows, 65) < 0.7
    mask[..., 0] = True
    inputs = (query, key, value, *([mask] if function is in_groups_with_mask else []))
    (kernel,) = attentions(function, *inputs)
    assert isinstance(kernel.key, Matrix)
    assert isinstance(kernel.value, Matrix)
    assert len(calls(function, *inputs)) == 2  # the other one scales the queries
    assert_exact(function, *inputs)


@pytest.mark.parametrize("rows", [3, 70])
def test_gradients_of_heads_that_repeat_are_those_of_eager(rows: int) -> None:
    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    torch.manual_seed(rows)
    shapes = ((2, 6, rows, 24), (2, 2, rows, 24), (2, 2, rows, 24))
    ours = [torch.randn(shape).requires_grad_() for shape in shapes]
    theirs = [each.detach().clone().requires_grad_() for each in ours]
    assert weft.program(attend, *ours).plan.regions
    weft.hybridize(attend)(*ours).square().sum().backward()
    attend(*theirs).square().sum().backward()
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, its.grad, atol=1e-5, rtol=1e-5)


def test_a_key_that_several_products_read_is_packed_once_for_all() -> None:
    def twice(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        turned = weight.t()
        return x @ turned, y @ turned

    inputs = torch.randn(1, 32), torch.randn(2, 32), torch.randn(40, 32)
    packings = sum(isinstance(call.kernel, PackKernel) for call in calls(twice, *inputs))
    assert packings == (1 if host_target().lanes(32) == 16 else 2)  # shorter vectors want a panel each
    for found, expected in zip(weft.hybridize(twice)(*inputs), twice(*inputs), strict=True):
        torch.testing.assert_close(found, expected)


def test_no_array_of_scores_is_in_memory() -> None:
    inputs = [torch.randn(1, 1, 2048, 16) for _ in range(3)]
    (plan,) = weft.program(causal, *inputs).plan.regions
    assert plan.arena_bytes <= 4 * inputs[0].nbytes < 2048 * 2048 * 4


def test_gradients_are_those_of_eager() -> None:
    ours, theirs = ([each.detach().clone().requires_grad_() for each in tensors(40, 40)] for _ in range(2))
    assert len(attentions(causal, *ours)) == 1
    found, eager = weft.hybridize(causal)(*ours), causal(*theirs)
    found.square().sum().backward()
    eager.square().sum().backward()
    torch.testing.assert_close(found, eager)
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, its.grad, atol=1e-5, rtol=1e-5)


def test_a_layer_of_a_transformer_has_one_attention() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 2, 96, dropout=0.0, batch_first=True)
    x = torch.randn(2, 24, 64)
    with torch.no_grad():
        expected = layer(x)
        assert len(attentions(layer, x)) == 1
        torch.testing.assert_close(weft.hybridize(layer)(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("function", [causal, by_hand_with_triangle, by_hand_with_shown, by_hand_with_places])
@pytest.mark.parametrize("rows", [130, 300])
def test_the_causal_mask_is_known_however_it_is_written(function: Function, rows: int) -> None:
    inputs = tensors(rows, rows)
    (kernel,) = attentions(function, *inputs)
    assert kernel.schedule.key_block
    assert_exact(function, *inputs)


@pytest.mark.parametrize("rows", [130, 300])
def test_another_triangle_is_a_mask_like_any_other(rows: int) -> None:
    inputs = tensors(rows, rows)
    (kernel,) = attentions(without_the_row_itself, *inputs)
    assert not kernel.schedule.key_block
    assert_exact(without_the_row_itself, *inputs)


@pytest.mark.parametrize("rows", [130, 300])
def test_a_value_that_is_no_number_spreads_to_rows_that_do_not_see_it(rows: int) -> None:
    query, key, value = tensors(rows, rows)
    value[1, 2, rows - 1, 0] = torch.inf
    assert_exact(by_hand_with_triangle, query, key, value)


def test_a_causal_block_of_rows_does_not_see_the_keys_behind_it() -> None:
    (kernel,) = attentions(causal, *tensors(512, 512))
    seen = [kernel.seen(block) for block in range(kernel.row_blocks.count)]
    assert seen[0] == kernel.schedule.key_block < seen[-1] == 512
    assert sum(seen) < 0.6 * 512 * len(seen)


@pytest.mark.parametrize(("function", "rows"), [(causal, 200), (by_pytorch, 1), (by_pytorch, 5)])
def test_any_number_of_lanes_gives_the_same_bits(function: Function, rows: int) -> None:
    inputs, target = tensors(rows, 800 if rows < 8 else rows, 64), host_target()
    graph = with_attentions(lift(weft.program(function, *inputs).graph), target)
    (region,) = find_regions(graph, frozenset())
    fused, known = fuse(region, target), dict(zip(graph.inputs, inputs, strict=True))
    kind, results = region.outputs[0].type, []
    assert isinstance(kind, TensorType)
    for lanes in (1, 2, 4):
        plan = place(schedule(fused.plan, lanes, default_model(target)))
        assert len(plan.lanes) == lanes
        out = torch.empty_strided(kind.shape, kind.strides)
        NativeExecutable(plan, target, fused.constants)([known[value] for value in region.inputs], [out])
        results.append(out)
    torch.testing.assert_close(results[0], function(*inputs))
    assert all(torch.equal(result, results[0]) for result in results[1:])


def test_an_empty_batch_gives_an_empty_result() -> None:
    inputs = [torch.empty(0, 2, 20, 8) for _ in range(3)]
    assert weft.hybridize(by_hand)(*inputs).shape == (0, 2, 20, 8)


@pytest.mark.parametrize("hidden", [False, True])
def test_masks_that_pytorch_writes_out_are_attention_too(hidden: bool) -> None:
    """Of three dimensions, one matrix a head, as biases of windows: for these PyTorch has no kernel."""
    query, key, value = tensors(40, 50)
    mask = torch.randn(query.shape[1], 40, 50)
    if hidden:
        mask[:, 3], mask[0, 5:9] = -math.inf, -math.inf
    assert len(attentions(with_mask, query, key, value, mask)) == 1
    assert_exact(with_mask, query, key, value, mask)
