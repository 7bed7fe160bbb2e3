"""What a forward saves is laid out as kernels like it, and nobody but its backward notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.api.agreement import gradients
from torch import nn

import weft
from weft.compile.pipeline import compile_graph
from weft.ir.parser import parse_graph
from weft.ir.types import type_of
from weft.runtime.saved_strides import PYTORCHS, SavedStrides, loose_in

IMAGES = (2, 5, 9, 8)
GATHERED = """graph f(%x: f32[2,5,9,8], %i: i64[1]) {
  %0: f32[10,72] = library aten.view.default(%x, [10, 72])
  %1: f32[1,72] = library aten.index_select.default(%0, 0, %i)
  return %1
}"""


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(5, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 2), nn.Flatten()
    )


def saved_by(run: Callable[[], Any]) -> list[torch.Tensor]:
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return kept


def test_saved_images_keep_their_channels_side_by_side() -> None:
    net, x = weft.hybridize(convolutions()), torch.randn(IMAGES)
    net(x)
    hidden = [one for one in saved_by(lambda: net(x)) if one.dim() == 4 and one.shape[1:3] in ((6, 7), (6, 3))]
    assert hidden
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in hidden)


def test_gradients_are_eagers() -> None:
    net, x = convolutions(), torch.randn(IMAGES, requires_grad=True)
    wanted = [x, *net.parameters()]
    expected = gradients(net(x).square().sum(), wanted)
    for ours, theirs in zip(gradients(weft.hybridize(net)(x).square().sum(), wanted), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        assert ours.stride() == theirs.stride()


def test_hooks_may_give_saved_tensors_back_in_another_layout() -> None:
    net, x = weft.hybridize(convolutions()), torch.randn(IMAGES, requires_grad=True)
    wanted = [x, *net.parameters()]
    expected = gradients(net(x).square().sum(), wanted)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor.detach().numpy().copy(order="C"), torch.from_numpy
    ):
        loss = net(x).square().sum()
    for ours, theirs in zip(gradients(loss, wanted), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_what_is_returned_has_eagers_strides_also_when_it_is_saved() -> None:
    torch.manual_seed(0)
    first, second = nn.Conv2d(5, 6, 3), nn.Conv2d(6, 4, 2)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = first(x).relu()
        return hidden, second(hidden)

    x = torch.randn(IMAGES)
    for ours, theirs in zip(weft.hybridize(both)(x), both(x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        assert ours.stride() == theirs.stride()


def test_an_index_out_of_range_is_pytorchs_error_also_beside_tensors_of_other_strides() -> None:
    graph = parse_graph(GATHERED)
    x = torch.randn(IMAGES)
    turned = x.contiguous(memory_format=torch.channels_last)
    run = compile_graph(
        graph, frozenset(), trusted=False, strides=SavedStrides(given={graph.inputs[0]: type_of(turned)})
    )
    (found,) = run([turned, torch.tensor([7])])
    assert torch.equal(found, x.view(10, 72)[7:8])
    with pytest.raises(IndexError, match="out of range"):
        run([turned, torch.tensor([70])])


def test_without_other_strides_a_graph_stays_as_it_is() -> None:
    graph = parse_graph(GATHERED)
    assert PYTORCHS.with_given(graph) is graph
    assert SavedStrides(given={graph.inputs[0]: graph.inputs[0].type}).with_given(graph) is graph
    assert loose_in(graph, graph, frozenset()) == frozenset()
