"""Say what `recurrent` means: the states of a recurrent layer, step after step, from what inputs give to its gates.

Operands are what inputs give [steps, batch, gates * size], the weight of the state [gates * size, size], the first
state [batch, size]; of an LSTM the first cell state [batch, size], of a GRU the bias inside of its reset gate [size];
and perhaps how many of the steps there are, as an i32. Gates stand in PyTorch's order. Results are the states of all
steps, and the last state: of an LSTM that of its cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from weft.errors import UsageError
from weft.ir.types import TensorType, TupleType, Type, contiguous

GATES: Mapping[str, int] = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""How many times the size of a state the rows of a cell's weights are."""
OPERANDS: Mapping[str, int] = {"lstm": 4, "gru": 4, "rnn_tanh": 3, "rnn_relu": 3}
"""How many operands there are before the number of steps."""
LEAST_STATE = 4
"""Kernels compute states that are multiples of so many units: the smallest vectors have as many."""


def recurrent_type(operands: Sequence[Type], given: Mapping[str, Any]) -> Type:
    """Give the states of all steps, and the last one."""
    cell = str(given.get("cell"))
    kinds = [kind for kind in operands if isinstance(kind, TensorType)]
    if cell not in GATES:
        raise UsageError(f"there is no cell {cell!r}", fix=f"use one of {', '.join(GATES)}")
    if len(kinds) != len(operands) or not 0 <= len(kinds) - OPERANDS[cell] <= 1:
        raise UsageError(
            f"a recurrent layer of {cell} cells has {OPERANDS[cell]} tensors, and perhaps a count of steps"
        )
    from_input, weight, first, *others = kinds
    if from_input.rank != len(("steps", "batch", "gates")) or first.rank != len(("batch", "size")):
        raise UsageError(f"{from_input} and {first} are no steps and no state")
    size = first.shape[1]
    state = [(size,) if cell == "gru" else first.shape] * (OPERANDS[cell] - 3)
    shapes = [(GATES[cell] * size, size), *state, *[()] * (len(kinds) - OPERANDS[cell])]
    fits = [kind.shape for kind in (weight, *others)] == shapes
    if not fits or from_input.shape[1:] != (first.shape[0], GATES[cell] * size):
        raise UsageError(f"{', '.join(map(str, kinds))} do not fit a layer of {cell} cells")
    states = contiguous(first.dtype, (from_input.shape[0], *first.shape), first.device)
    return TupleType((states, contiguous(first.dtype, first.shape, first.device)))


def recurrent(cell: str, *operands: torch.Tensor, reverse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the states."""
    from_input, weight, hidden, *others = operands
    steps = len(from_input)
    if len(operands) > OPERANDS[cell]:
        steps = min(max(int(others.pop()), 0), steps)
    states, last = (
        torch.zeros(len(from_input), *hidden.shape, dtype=hidden.dtype),
        others[0] if cell == "lstm" else hidden,
    )
    for step in range(steps)[:: -1 if reverse else 1]:
        hidden, last = _step(cell, from_input[step], hidden @ weight.T, (hidden, *others[:1], last))
        states[step] = hidden
    return states, last


def _step(
    cell: str, given: torch.Tensor, inner: torch.Tensor, state: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    hidden, *others, last = state
    if cell == "lstm":
        first, forget, new, output = (given + inner).chunk(4, 1)
        last = forget.sigmoid() * last + first.sigmoid() * new.tanh()
        return output.sigmoid() * last.tanh(), last
    if cell == "gru":
        from_input, from_state = given.chunk(3, 1), inner.chunk(3, 1)
        reset, update = ((from_input[gate] + from_state[gate]).sigmoid() for gate in (0, 1))
        new = (from_input[2] + reset * (from_state[2] + others[0])).tanh()
        hidden = (hidden - new) * update + new
    else:
        hidden = (given + inner).tanh() if cell == "rnn_tanh" else (given + inner).relu()
    return hidden, hidden
