"""Compute recurrent layers: the weights of all layers and directions lie in one vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import Shape, Sizes, computes

GATES = {"lstm": 4, "gru": 3, "rnn_relu": 1, "rnn_tanh": 1}
LAYERS: dict[str, Callable[..., Any]] = {
    "lstm": torch.lstm,
    "gru": torch.gru,
    "rnn_relu": torch.rnn_relu,
    "rnn_tanh": torch.rnn_tanh,
}


def _directions(p: Any) -> int:
    return 2 if p.bidirectional else 1


def weight_sizes(p: Any, input_size: int) -> list[Shape]:
    """The sizes of the weights of each layer and direction, input before state."""
    rows = GATES[p.mode] * p.state_size
    sizes: list[Shape] = []
    for layer in range(p.num_layers):
        width = input_size if layer == 0 else p.state_size * _directions(p)
        sizes += [(rows, width), (rows, p.state_size)] * _directions(p)
    return sizes


def parameter_count(p: Any, input_size: int) -> int:
    """Count the elements of all weights and biases."""
    return sum(rows * width + rows for rows, width in weight_sizes(p, input_size))


def _recurrent_sizes(p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    if not sizes[0]:
        return sizes
    _, batch, width = sizes[0]
    state = (p.num_layers * _directions(p), batch, p.state_size)
    return [sizes[0], (parameter_count(p, width),), state, state][: len(sizes)]


def _cut(p: Any, vector: Tensor, input_size: int) -> list[Tensor]:
    """The vector as torch takes weights: of each layer and direction two weights, then two biases."""
    sizes = weight_sizes(p, input_size)
    lengths = [rows * width for rows, width in sizes] + [rows for rows, _ in sizes]
    if sum(lengths) != vector.numel():
        raise MXNetError(f"RNN takes {sum(lengths)} parameters, not {vector.numel()}")
    parts = torch.split(vector, lengths)
    weights = [part.reshape(size) for part, size in zip(parts, sizes, strict=False)]
    biases = parts[len(sizes) :]
    return [
        piece
        for place in range(0, len(sizes), 2)
        for piece in (*weights[place : place + 2], *biases[place : place + 2])
    ]


def _output_count(p: Any) -> int:
    return 1 if not p.state_outputs else 3 if p.mode == "lstm" else 2


@computes(
    "RNN",
    modal=True,
    inputs=lambda p: 4 if p.mode == "lstm" else 3,
    outputs=_output_count,
    complete=_recurrent_sizes,
)
def rnn(p: Any, x: Tensor, vector: Tensor, *states: Tensor) -> Any:
    """Run a recurrent layer over a sequence."""
    if p.projection_size is not None or p.use_sequence_length or p.lstm_state_clip_min is not None:
        raise MXNetError("RNN with projection_size, use_sequence_length or clipped states is not in weft.mx")
    start: Any = states if p.mode == "lstm" else states[0]
    weights = _cut(p, vector, x.shape[2])
    dropped = p.p if p.train else 0.0
    found = LAYERS[p.mode](x, start, weights, True, p.num_layers, dropped, p.train, p.bidirectional, False)
    return found if p.state_outputs else found[0]
