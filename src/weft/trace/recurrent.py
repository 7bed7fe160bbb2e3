"""A call of `torch.gru`, `torch.rnn_tanh` or `torch.rnn_relu` -> an operator for each layer and direction.

Only where that changes nothing but what is recorded: on plain stand-ins of the CPU, outside autocast, and where nobody
looks at what is saved or carries tangents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.trace.interception.capture import is_plain_stand_in
from weft.trace.interception.modes import open_blocks
from weft.trace.lift import recurrent_layer

CELLS: Mapping[Any, str] = MappingProxyType({torch.gru: "gru", torch.rnn_tanh: "rnn_tanh", torch.rnn_relu: "rnn_relu"})
KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ARGUMENTS = 9
# The classes of the arguments behind the tensors: a symbol that stands for a number is none of them.
PLAIN = ((bool,), (int,), (float, int), (bool,), (bool,), (bool,))


class Call(NamedTuple):
    """The arguments of the functions, in order."""

    given: Tensor
    first: Tensor
    parameters: Sequence[Tensor]
    has_biases: bool
    layers: int
    dropout: float
    train: bool
    both: bool
    batch_first: bool


def taken_whole(function: Callable[..., Any], arguments: Sequence[Any], keywords: Any) -> Callable[..., Any]:
    """What to call in the place of a function of PyTorch: itself, or what does the same with fewer operators."""
    cell = CELLS.get(function)
    if cell is None or keywords or not _is_covered(cell, arguments):
        return function
    return partial(_layers, cell)


def _is_covered(cell: str, arguments: Sequence[Any]) -> bool:
    """Whether a call is the usual one; what PyTorch refuses, it refuses in its own words."""
    if len(arguments) != ARGUMENTS or not isinstance(arguments[2], (list, tuple)):
        return False  # packed sequences
    given, first, parameters, *plain = arguments
    if not all(type(value) in kinds for value, kinds in zip(plain, PLAIN, strict=True)):
        return False
    tensors = (given, first, *parameters)
    if not all(isinstance(tensor, Tensor) and is_plain_stand_in(tensor) for tensor in tensors):
        return False
    if given.dtype not in KINDS or any(tensor.dtype is not given.dtype for tensor in tensors):
        return False
    if torch.is_autocast_enabled("cpu") or open_blocks():
        return False
    return given.dim() == 3 and given.numel() > 0 and _fits(cell, Call(*arguments))


def _fits(cell: str, call: Call) -> bool:
    directions, batch = 1 + call.both, call.given.shape[0 if call.batch_first else 1]
    if call.first.dim() != 3 or call.first.shape[:2] != (call.layers * directions, batch) or not call.first.shape[2]:
        return False
    size = call.first.shape[2]
    rows = recurrent_layer.GATES[cell] * size
    wanted: list[tuple[int, ...]] = []
    for layer in range(call.layers):
        width = size * directions if layer else call.given.shape[2]
        wanted += [(rows, width), (rows, size), *[(rows,)] * (2 * call.has_biases)] * directions
    return [tuple(parameter.shape) for parameter in call.parameters] == wanted


def _layers(cell: str, *arguments: Any) -> tuple[Tensor, Tensor]:
    """All layers, in the order of PyTorch's own function."""
    call = Call(*arguments)
    given = call.given.transpose(0, 1) if call.batch_first else call.given
    states, count = iter(call.first.unbind(0)), 4 if call.has_biases else 2
    weights = iter(call.parameters[start : start + count] for start in range(0, len(call.parameters), count))
    last = []
    for layer in range(call.layers):
        found = [
            _layer((cell, reverse), given, next(states), next(weights)) for reverse in (False, True)[: 1 + call.both]
        ]
        last += [entry[1] for entry in found]
        given = torch.cat([entry[0] for entry in found], -1) if call.both else found[0][0]
        if call.dropout and call.train and layer < call.layers - 1:
            given = torch.dropout(given, call.dropout, True)
    return given.transpose(0, 1) if call.batch_first else given, torch.stack(last)


def _layer(kind: tuple[str, bool], given: Tensor, first: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    operands = (given, first, *weights, *[None] * (4 - len(weights)))
    wanted = any(operand is not None and operand.requires_grad for operand in operands)
    run: Any = _Layer.apply if wanted and torch.is_grad_enabled() else torch.ops.weft.recurrent_layer.default
    output, last, _ = run(*operands, *kind)
    return output, last


class _Layer(torch.autograd.Function):
    """A layer as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        """Keep operands and results."""
        results = torch.ops.weft.recurrent_layer.default(*arguments)
        *operands, ctx.cell, ctx.reverse = arguments
        output, _, gates = results
        ctx.save_for_backward(*operands, output, gates)
        ctx.mark_non_differentiable(gates)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradient as one operator, or where it is to be differentiated again by those that autograd knows."""
        *operands, output, gates = ctx.saved_tensors
        output_gradient, last_gradient, _ = gradients
        if torch.is_grad_enabled():
            found = _again(ctx, operands, gradients)
        else:
            call = torch.ops.weft.recurrent_layer_backward.default
            found = call(output_gradient, last_gradient, *operands, output, gates, ctx.cell, ctx.reverse)
        wanted = ctx.needs_input_grad
        return (*(entry if need else None for entry, need in zip(found, wanted, strict=False)), None, None)


def _again(ctx: Any, operands: Sequence[Any], gradients: Sequence[Any]) -> list[Tensor | None]:
    """Differentiate the layer taken apart."""
    results = recurrent_layer.forward(*operands, ctx.cell, ctx.reverse)
    places = [place for place, need in enumerate(ctx.needs_input_grad) if need]
    pairs = [(root, entry) for root, entry in zip(results, gradients, strict=True) if entry is not None]
    wanted = [operands[place] for place in places]
    roots, given = zip(*pairs, strict=True)
    found = torch.autograd.grad(roots, wanted, given, create_graph=True, allow_unused=True)
    entries: list[Tensor | None] = [None] * len(operands)
    for place, entry in zip(places, found, strict=True):
        entries[place] = entry
    return entries
