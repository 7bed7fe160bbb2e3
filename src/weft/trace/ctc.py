"""PyTorch's CTC loss with lengths in tensors -> operators of Weft's that give results of sizes known while tracing.

PyTorch's operator also gives the sums over all ways to begin a target, for its backward, and makes room for the longest
target of the batch. Here there is room for what a row of targets can hold. Targets that lie one after the other say
nothing of the longest; there the backward computes the sums again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from weft.ir.library import resolve
from weft.trace.interception.capture import Operator

LOSS, BACKWARD = "aten._ctc_loss.Tensor", "aten._ctc_loss_backward.Tensor"
LIBRARY = torch.library.Library("weft", "FRAGMENT")
BATCH = "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths"
LIBRARY.define(f"ctc_loss({BATCH}, int blank=0, bool zero_infinity=False) -> (Tensor, Tensor)")
LIBRARY.define(
    f"ctc_loss_backward(Tensor grad, {BATCH}, Tensor loss, Tensor sums, int blank, bool zero_infinity=False) -> Tensor"
)


def _room(targets: torch.Tensor) -> int:
    """Sums for each time: before, between and behind the labels of a row; none for targets without rows."""
    return 2 * targets.shape[1] + 1 if targets.dim() == 2 else 0


def _loss(log_probs: torch.Tensor, targets: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    loss, sums = resolve(LOSS)(log_probs, targets, *rest)
    room = _room(targets)
    if room == 0:
        return loss, sums.new_empty((*sums.shape[:2], 0))
    if sums.shape[2] == room:
        return loss, sums
    whole = sums.new_zeros((*sums.shape[:2], room))
    whole[:, :, : sums.shape[2]] = sums
    return loss, whole


def _loss_sizes(log_probs: torch.Tensor, targets: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    del rest
    times, batch, _ = log_probs.shape
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, times, _room(targets)))


def _backward(gradient: torch.Tensor, *given: Any) -> torch.Tensor:
    batch, (loss, sums), rest = given[:4], given[4:6], given[6:]
    if sums.shape[2] == 0:
        loss, sums = resolve(LOSS)(*batch, *rest)
    found: torch.Tensor = resolve(BACKWARD)(gradient, *batch, loss, sums, *rest)
    return found


def _backward_sizes(gradient: torch.Tensor, log_probs: torch.Tensor, *rest: Any) -> torch.Tensor:
    del gradient, rest
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


for device in ("CPU", "CUDA"):
    LIBRARY.impl("ctc_loss", _loss, device)
    LIBRARY.impl("ctc_loss_backward", _backward, device)
LIBRARY.impl("ctc_loss", _loss_sizes, "Meta")
LIBRARY.impl("ctc_loss_backward", _backward_sizes, "Meta")

# By PyTorch's operator: what is recorded in its place.
REPLACEMENTS: Mapping[str, Operator] = MappingProxyType(
    {
        LOSS: torch.ops.weft.ctc_loss.default,
        BACKWARD: torch.ops.weft.ctc_loss_backward.default,
    }
)

FUNCTIONS = (torch.ctc_loss, torch.nn.functional.ctc_loss)
LENGTHS = ("input_lengths", "target_lengths")


def with_lengths_in_tensors(
    function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments, the lengths of a CTC loss in tensors: PyTorch's form for numbers makes some that it reads."""
    if function not in FUNCTIONS:
        return arguments, keywords
    places = enumerate(arguments)
    found = tuple(_in_tensor(argument) if place in (2, 3) else argument for place, argument in places)
    return found, {name: _in_tensor(argument) if name in LENGTHS else argument for name, argument in keywords.items()}


def _in_tensor(lengths: Any) -> Any:
    return lengths if isinstance(lengths, torch.Tensor) else torch.tensor(lengths)
