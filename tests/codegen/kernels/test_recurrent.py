"""Recurrent layers of steps and batches that vary, by one kernel: eager's states, of every cell and size."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
from bench.general import general_alone
from tests.ir.random_graphs import random_inputs
from tests.plan.compiled_regions import compiled, interpreted
from torch import nn

import weft
from weft.ir.parser import parse_graph
from weft.ir.recurrent import GATES
from weft.plan.regions.region import find_regions

SIZES = ((3, 7), (5, 12), (1, 5), (2, 3), (7, 31), (4, 12), (6, 2), (8, 40), (9, 33))
FEATURES = 12


def flat(found: object) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, tuple):
        for part in found:
            yield from flat(part)


def agrees(layer: nn.Module, *, kernels: bool = True, with_state: bool = False) -> None:
    layer.eval()
    with torch.no_grad(), general_alone():
        compiled = weft.hybridize(layer.forward)
        for batch, steps in SIZES:
            x = torch.randn(*((batch, steps) if layer.batch_first else (steps, batch)), FEATURES)
            state = ()
            if with_state:
                directions = layer.num_layers * (2 if layer.bidirectional else 1)
                first = torch.randn(directions, batch, layer.hidden_size)
                state = ((first, torch.randn_like(first)) if isinstance(layer, nn.LSTM) else first,)
            for found, right in zip(flat(compiled(x, *state)), flat(layer.forward(x, *state)), strict=True):
                assert found.stride() == right.stride()
                torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
        plans = [str(program.guarded.program.plan) for program in compiled.varying]
    assert plans
    assert all(bool(re.search(r" recurrent \w+ of ", plan)) == kernels for plan in plans)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("size", [4, 20, 48])
def test_every_size_of_state_is_eagers(kind: type[nn.RNNBase], size: int) -> None:
    torch.manual_seed(0)
    agrees(kind(FEATURES, size, batch_first=True))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("first", [True, False])
def test_layers_and_directions_are_eagers(kind: type[nn.RNNBase], first: bool) -> None:
    torch.manual_seed(1)
    agrees(kind(FEATURES, 8, 2, bidirectional=True, batch_first=first), with_state=True)


@pytest.mark.parametrize("layer", [nn.GRU(FEATURES, 8, bias=False), nn.RNN(FEATURES, 8, nonlinearity="relu")])
def test_without_biases_and_with_another_bend(layer: nn.RNNBase) -> None:
    agrees(layer)


def test_a_state_that_is_no_whole_number_of_vectors_is_pytorchs() -> None:
    agrees(nn.GRU(FEATURES, 7, batch_first=True), kernels=False)


def test_what_is_no_number_stays_in_its_row() -> None:
    layer = nn.LSTM(FEATURES, 16, batch_first=True).eval()
    with torch.no_grad(), general_alone():
        compiled = weft.hybridize(layer.forward)
        for batch, steps in ((3, 7), (5, 9), (4, 8)):
            x = torch.randn(batch, steps, FEATURES)
            x[1, 2], x[2, 4] = torch.nan, torch.inf
            found, right = compiled(x)[0], layer(x)[0]
            torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_relu"])
@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 4, 6])
def test_a_number_of_steps_says_where_the_last_state_is(cell: str, reverse: bool, steps: int) -> None:
    other = {"lstm": ("%c: f32[3,8], ", "%c, "), "gru": ("%c: f32[8], ", "%c, ")}.get(cell, ("", ""))
    rows = 8 * GATES[cell]
    graph = parse_graph(
        f"graph g(%x: f32[6,3,{rows}], %w: f32[{rows},8], %h: f32[3,8], {other[0]}%n: i32[]) {{"
        f' %0: (f32[6,3,8], f32[3,8]) = recurrent %x, %w, %h, {other[1]}%n, cell="{cell}", reverse={reverse}'
        " %1: f32[6,3,8] = item %0, index=0 %2: f32[3,8] = item %0, index=1 return %1, %2 }"
    )
    given = [*random_inputs(graph, steps)[:-1], torch.tensor(steps, dtype=torch.int32)]
    known = interpreted(graph, given)
    assert known is not None
    (region,) = find_regions(graph, frozenset())
    states, last = compiled(region, known)
    right_states, right_last = (known[value] for value in region.outputs)
    torch.testing.assert_close(states[:steps], right_states[:steps], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last, right_last, rtol=1e-5, atol=1e-5)
