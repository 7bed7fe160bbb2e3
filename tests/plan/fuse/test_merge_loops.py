"""Loops over the same elements are one pass over memory, and only where that changes no answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

import weft
from weft.passes.pipeline import run_pipeline
from weft.plan.form.plan import Plan
from weft.plan.fuse.fuse import fuse
from weft.plan.fuse.merge_loops import merge_loops
from weft.plan.memory.arena import place
from weft.plan.regions.region import find_regions
from weft.runtime.executable import NativeExecutable
from weft.target import host_target
from weft.trace.lift.lift import lift

Function = Callable[..., tuple[torch.Tensor, ...]]
SHAPE = (9, 33)


def averages(gradient: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first, second = first * 0.9 + gradient, second * 0.99 + gradient * gradient
    return first, second, first / (second.sqrt() + 1)


def across(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    del z
    found = (x * y).exp()
    return found, found.flip(0) + x


def apart(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.exp(), y.tanh() * z


def over_a_sum(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found = x.exp() * y
    return found, x * z + (found @ found.t()).sum()


def padded(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    del y, z
    return torch.nn.functional.pad(x[:1, :1] * 2, (0, 0), value=1.5), x * 2


FUNCTIONS = (averages, across, apart, over_a_sum, padded)


def planned(function: Function, inputs: Sequence[torch.Tensor]) -> tuple[Plan, Plan, list[torch.Tensor]]:
    graph = run_pipeline(lift(weft.program(weft.hybridize(function), *inputs).graph))
    [region] = find_regions(graph, frozenset())
    fused = fuse(region, host_target())
    merged = merge_loops(fused.plan, host_target())
    order = [graph.inputs.index(value) for value in region.inputs]
    outputs = [torch.empty(value.type.shape) for value in region.outputs]  # type: ignore[union-attr]
    run = NativeExecutable(place(merged), host_target(), fused.constants)
    assert run([inputs[index] for index in order], outputs)
    expected = dict(zip([result.value for result in graph.results], function(*inputs), strict=True))
    for value, output in zip(region.outputs, outputs, strict=True):
        torch.testing.assert_close(output, expected[value])
    return fused.plan, merged, outputs


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_loops_over_shared_elements_are_one_and_give_the_same(function: Function) -> None:
    before, merged, _ = planned(function, [torch.rand(SHAPE) for _ in range(3)])
    if function is averages:
        assert (len(before.calls), len(merged.calls)) == (3, 1)
    elif function in (across, apart):
        assert len(merged.calls) == len(before.calls)


def test_a_whole_adam_update_is_one_loop_for_each_parameter() -> None:
    layer = torch.nn.Linear(40, 30)
    step = weft.step(layer, torch.nn.functional.mse_loss, torch.optim.Adam(layer.parameters()))
    x, y = torch.randn(8, 40), torch.randn(8, 30)
    with weft.config.overrides(codegen="native"):
        step(x, y)
        text = str(weft.program(step, x, y).plan)
    assert text.count("loop 1200,") == 1
