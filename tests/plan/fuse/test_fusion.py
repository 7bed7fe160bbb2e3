"""Outputs whose layout is free lie where kernels have them, without a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn import functional

import weft
from weft.passes.pipeline import run_pipeline
from weft.plan.fuse.fuse import Fused, fuse
from weft.plan.kernels.conv import ConvKernel
from weft.plan.regions.region import Region, find_regions
from weft.target import host_target
from weft.trace.lift.lift import lift

CHANNELS_LAST = (1152, 1, 144, 12)


def region_of(function: Callable[..., object]) -> Region:
    x, weight = torch.randn(2, 5, 8, 12), torch.randn(12, 5, 1, 1)
    graph = run_pipeline(lift(weft.program(function, x, weight).graph))
    [region] = find_regions(graph, frozenset())
    return region


def loosely(function: Callable[..., object]) -> Fused:
    region = region_of(function)
    return fuse(replace(region, loose=frozenset(region.outputs)), host_target())


def both(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = functional.conv2d(x, weight)
    return found, (found - found.mean((0, 2, 3), keepdim=True)).tanh()


def test_images_are_handed_out_with_their_channels_side_by_side() -> None:
    assert loosely(both).strides == (CHANNELS_LAST, CHANNELS_LAST)


def test_other_outputs_have_the_strides_of_their_types() -> None:
    region = region_of(both)
    assert fuse(region, host_target()).strides == ((1152, 96, 12, 1),) * 2


def test_a_convolution_computes_into_the_output() -> None:
    plan = loosely(both).plan
    [call] = [call for call in plan.calls if isinstance(call.kernel, ConvKernel)]
    assert [plan.buffers[place.buffer].kind for place in call.writes] == ["output"]


def test_fewer_kernels_are_needed_than_for_pytorchs_layout() -> None:
    assert len(loosely(both).plan.calls) < len(fuse(region_of(both), host_target()).plan.calls)


def test_one_intermediate_becomes_one_output() -> None:
    def twice(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = functional.conv2d(x, weight)
        return found + found.mean(), found.permute(0, 2, 3, 1).contiguous()

    plan = loosely(twice).plan
    written = {place.buffer for call in plan.calls for place in call.writes}
    assert all(number in written for number, _ in plan.of_kind("output"))


def test_an_operator_reads_other_outputs_of_a_region_that_hands_out_free_ones() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        found = functional.conv2d(x, weight).tanh()
        most, places = torch.sort(found.mean((2, 3)))  # by PyTorch's operator, between two regions
        return (most * places).sum() + found.square().sum()

    x, weight = torch.randn(2, 5, 8, 12), torch.randn(12, 5, 1, 1, requires_grad=True)
    (expected,) = torch.autograd.grad(function(x, weight), weight)
    (given,) = torch.autograd.grad(weft.hybridize(function)(x, weight), weight)
    torch.testing.assert_close(given, expected)
