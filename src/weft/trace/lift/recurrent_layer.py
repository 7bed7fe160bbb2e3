"""Define a layer of a GRU or plain RNN in one direction, and its gradient, as operators, as PyTorch has for an LSTM.

PyTorch takes such a layer apart into fifteen operators a step, whoever records it. These two compute with the operators
that it would call, in its order, so that their results have its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

FORWARD = "weft.recurrent_layer.default"
BACKWARD = "weft.recurrent_layer_backward.default"
OPERANDS = "Tensor input, Tensor first, Tensor weight, Tensor inner, Tensor? bias, Tensor? inner_bias"
LIBRARY = torch.library.Library("weft", "FRAGMENT")
LIBRARY.define(f"recurrent_layer({OPERANDS}, str cell, bool reverse) -> (Tensor, Tensor, Tensor)")
LIBRARY.define(
    f"recurrent_layer_backward(Tensor? gradient, Tensor? last_gradient, {OPERANDS}, Tensor output, Tensor gates, "
    "str cell, bool reverse) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)

Cell = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
"""From what a step's input and the state before it give to the gates, and that state: the next state, and the gates."""


def _gru(given: Tensor, inner: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    from_input, from_state = given.unsafe_chunk(3, 1), inner.unsafe_chunk(3, 1)
    kept = from_state[2].clone()
    # In place, as PyTorch's own: where a number lies in memory decides which of two ways its sigmoid is computed.
    reset = from_state[0].add_(from_input[0]).sigmoid_()
    update = from_state[1].add_(from_input[1]).sigmoid_()
    new = from_input[2].add(from_state[2].mul_(reset)).tanh_()
    return (hidden - new).mul_(update).add_(new), reset, update, new, kept


def _rnn_tanh(given: Tensor, inner: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    del hidden
    return (torch.tanh(inner.add_(given)),)


def _rnn_relu(given: Tensor, inner: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    del hidden
    return (torch.relu(inner.add_(given)),)


CELLS: dict[str, Cell] = {"gru": _gru, "rnn_tanh": _rnn_tanh, "rnn_relu": _rnn_relu}
GATES = {"gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""How many times the size of a state the rows of a cell's weights are."""
KEPT = {"gru": 4, "rnn_tanh": 0, "rnn_relu": 0}
"""The same of what a step keeps for its gradient, beside the state."""


class Operands(NamedTuple):
    """What the operators take, in order."""

    input: Tensor
    first: Tensor
    weight: Tensor
    inner: Tensor
    bias: Tensor | None
    inner_bias: Tensor | None
    cell: str
    reverse: bool

    @property
    def order(self) -> range:
        """The steps as they follow each other."""
        steps = range(len(self.input))
        return steps[::-1] if self.reverse else steps


def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Give the states of all steps, the one that came last, and what the gradient needs beside them."""
    layer = Operands(*arguments)
    given = functional.linear(layer.input, layer.weight, layer.bias).unbind(0)
    hidden, outputs, kept = layer.first, list(given), list(given)
    for step in layer.order:
        inner = functional.linear(hidden, layer.inner, layer.inner_bias)
        hidden, *gates = CELLS[layer.cell](given[step], inner, hidden)
        outputs[step] = hidden
        kept[step] = torch.cat(gates, 1) if gates else hidden.new_empty((hidden.shape[0], 0))
    return torch.stack(outputs), hidden, torch.stack(kept)


def _look(*arguments: Any) -> tuple[Tensor, ...]:
    """Results without elements."""
    layer = Operands(*arguments)
    steps, batch, size = layer.input.shape[0], *layer.first.shape
    shapes = ((steps, batch, size), (batch, size), (steps, batch, KEPT[layer.cell] * size))
    return tuple(map(layer.input.new_empty, shapes))


Gradient = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, list[Tensor]]]
"""From the gradient of a state, the state, the one before, and what was kept: the gradients of what the input and the
state before gave to the gates, and that of the state before, as far as it does not come through the gates."""


def _gru_gradient(gradient: Tensor, after: Tensor, before: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    del after
    aten = torch.ops.aten
    reset, update, new, inner = kept.chunk(4, 1)
    straight = gradient * update
    to_new = aten.tanh_backward(gradient - straight, new)
    to_update = aten.sigmoid_backward(gradient * (before - new), update)
    to_reset = aten.sigmoid_backward(to_new * inner, reset)
    return torch.cat((to_reset, to_update, to_new), 1), torch.cat((to_reset, to_update, to_new * reset), 1), [straight]


def _tanh_gradient(
    gradient: Tensor, after: Tensor, before: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    del before, kept
    found = torch.ops.aten.tanh_backward(gradient, after)
    return found, found, []


def _relu_gradient(
    gradient: Tensor, after: Tensor, before: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    del before, kept
    found = torch.ops.aten.threshold_backward(gradient, after, 0)
    return found, found, []


GRADIENTS: dict[str, Gradient] = {"gru": _gru_gradient, "rnn_tanh": _tanh_gradient, "rnn_relu": _relu_gradient}


def backward(gradient: Tensor | None, last_gradient: Tensor | None, *arguments: Any) -> tuple[Tensor, ...]:
    """Give the gradients of the first six operands; sums of several are added up in autograd's order."""
    *operands, output, gates, cell, reverse = arguments
    layer = Operands._make((*operands, cell, reverse))
    parts = [] if last_gradient is None else [last_gradient]
    given = list(output)
    to_inner: list[Tensor] = []
    to_bias: list[Tensor] = []
    for place, step in reversed([*enumerate(layer.order)]):
        before = output[layer.order[place - 1]] if place else layer.first
        parts = parts if gradient is None else [gradient[step], *parts]
        given[step], inside, straight = GRADIENTS[cell](_sum(parts), output[step], before, gates[step])
        to_inner.append(inside.t().mm(before))
        to_bias.append(inside.sum(0))
        parts = [*straight, inside.mm(layer.inner)]
    flat, rows = torch.stack(given).flatten(0, 1), layer.input.flatten(0, 1)
    to_input = flat.mm(layer.weight).reshape(layer.input.shape)
    return to_input, _sum(parts), flat.t().mm(rows), _sum(to_inner), flat.sum(0), _sum(to_bias)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def _look_backward(_gradient: Tensor | None, _last_gradient: Tensor | None, *arguments: Any) -> tuple[Tensor, ...]:
    """Results without elements."""
    *operands, _output, _gates, cell, reverse = arguments
    layer = Operands._make((*operands, cell, reverse))
    rows = layer.weight.shape[:1]
    shapes = (layer.input.shape, layer.first.shape, layer.weight.shape, layer.inner.shape, rows, rows)
    return tuple(map(layer.input.new_empty, shapes))


LIBRARY.impl("recurrent_layer", forward, "CPU")
LIBRARY.impl("recurrent_layer", _look, "Meta")
LIBRARY.impl("recurrent_layer_backward", backward, "CPU")
LIBRARY.impl("recurrent_layer_backward", _look_backward, "Meta")
