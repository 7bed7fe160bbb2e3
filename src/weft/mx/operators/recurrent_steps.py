"""Compute recurrent layers step by step: sequences that end early, and an LSTM's clipped states and projections.

Step `t` of a sequence that has ended leaves its states, and its output is 0. A layer that reads from the end meets the
steps after the end first, so that it begins where each sequence does end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Clip = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Weights:
    """The weights of one layer in one direction, as torch orders them; the last only where outputs are projected."""

    from_input: Tensor
    from_state: Tensor
    input_bias: Tensor
    state_bias: Tensor
    projection: Tensor | None = None


def clip_of(p: Any) -> Clip:
    """What an operator's parameters say of the states of an LSTM: they stay between two numbers."""
    low, high = p.lstm_state_clip_min, p.lstm_state_clip_max
    if low is None or high is None:
        return lambda state: state
    if p.lstm_state_clip_nan:
        return lambda state: torch.nan_to_num(state, nan=high, posinf=high, neginf=low).clamp(low, high)
    return lambda state: state.clamp(low, high)


def _lstm(x: Tensor, states: Sequence[Tensor], weights: Weights, clip: Clip) -> tuple[Tensor, ...]:
    gates = x + functional.linear(states[0], weights.from_state, weights.state_bias)
    enter, forget, new, leave = gates.chunk(4, -1)
    cell = clip(forget.sigmoid() * states[1] + enter.sigmoid() * new.tanh())
    hidden = leave.sigmoid() * cell.tanh()
    return hidden if weights.projection is None else functional.linear(hidden, weights.projection), cell


def _gru(x: Tensor, states: Sequence[Tensor], weights: Weights, _clip: Clip) -> tuple[Tensor, ...]:
    of_input = x.chunk(3, -1)
    of_state = functional.linear(states[0], weights.from_state, weights.state_bias).chunk(3, -1)
    reset, update = ((a + b).sigmoid() for a, b in zip(of_input[:2], of_state[:2], strict=True))
    new = (of_input[2] + reset * of_state[2]).tanh()
    return (new + update * (states[0] - new),)


def _bent(function: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    def step(x: Tensor, states: Sequence[Tensor], weights: Weights, _clip: Clip) -> tuple[Tensor, ...]:
        return (function(x + functional.linear(states[0], weights.from_state, weights.state_bias)),)

    return step


STEPS = {"lstm": _lstm, "gru": _gru, "rnn_relu": _bent(torch.relu), "rnn_tanh": _bent(torch.tanh)}


def run_stepwise(
    p: Any, x: Tensor, states: Sequence[Tensor], weights: Sequence[Weights], lengths: Tensor | None
) -> tuple[Tensor, ...]:
    """Run all layers over `x` (steps, batch, width): give the outputs and the last states."""
    directions = 2 if p.bidirectional else 1
    last: list[list[Tensor]] = [[] for _ in states]
    for layer in range(p.num_layers):
        found = []
        for direction in range(directions):
            place = layer * directions + direction
            first = [state[place] for state in states]
            outputs, ends = _run_layer(p, x, first, weights[place], lengths, backwards=bool(direction))
            found.append(outputs)
            for kept, end in zip(last, ends, strict=True):
                kept.append(end)
        x = torch.cat(found, -1)
        if p.train and p.p and layer < p.num_layers - 1:
            x = functional.dropout(x, p.p)
    return x, *(torch.stack(kept) for kept in last)


def _run_layer(
    p: Any, x: Tensor, states: Sequence[Tensor], weights: Weights, lengths: Tensor | None, *, backwards: bool
) -> tuple[Tensor, Sequence[Tensor]]:
    clip, step = clip_of(p), STEPS[p.mode]
    projected = functional.linear(x, weights.from_input, weights.input_bias)
    outputs: list[Tensor] = []
    order = range(len(x) - 1, -1, -1) if backwards else range(len(x))
    for place in order:
        after = step(projected[place], states, weights, clip)
        if lengths is None:
            states = after
            outputs.append(after[0])
            continue
        goes_on = (place < lengths).unsqueeze(-1)
        outputs.append(torch.where(goes_on, after[0], torch.zeros_like(after[0])))
        states = [torch.where(goes_on, new, old) for new, old in zip(after, states, strict=True)]
    return torch.stack(outputs[::-1] if backwards else outputs), states
