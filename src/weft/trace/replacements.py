"""Replace functions and operators of PyTorch by ones of Weft that compute the same and can be recorded whole.

The CTC loss with lengths in tensors: PyTorch's operator also gives the sums over all ways to begin a target, for its
backward, and makes room for the longest target of the batch. Here there is room for what a row of targets can hold, so
that sizes are known while tracing. Targets that lie one after the other say nothing of the longest; there the backward
computes the sums again.

Interpolation of images whose sizes vary: PyTorch's functions compute the sizes of the result from numbers alone.

A call of `torch.gru`, `torch.rnn_tanh` or `torch.rnn_relu`: an operator for each layer and direction. Only where that
changes nothing but what is recorded: on plain stand-ins of the CPU, outside autocast, and where nobody looks at what is
saved or carries tangents.

Largest values of sequences, without gradients: eager's kernel gives another layout than the one that stand-ins get.

A batch norm that averages over all batches, whose share of the average is a tensor: the kernel takes a number, so that
it gives the statistics of the batch alone, and tensors add them to the average.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.ir.library import resolve
from weft.ir.recurrent import GATES
from weft.trace.counted_data import made_of_tensors
from weft.trace.interception.capture import Operator, has_symbols, is_usual_stand_in
from weft.trace.interception.modes import open_blocks
from weft.trace.lift import recurrent
from weft.trace.quantized import dynamic_linear

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

DATA: tuple[Callable[..., Any], ...] = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)
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


RANKS = (1, 2, 3)  # of images
RESAMPLINGS: Mapping[tuple[str, int, bool], Operator] = MappingProxyType(
    {
        **{("nearest", rank, False): resolve(f"aten.upsample_nearest{rank}d.default") for rank in RANKS},
        **{("nearest-exact", rank, False): resolve(f"aten._upsample_nearest_exact{rank}d.default") for rank in RANKS},
        ("linear", 1, False): resolve("aten.upsample_linear1d.default"),
        ("bilinear", 2, False): resolve("aten.upsample_bilinear2d.default"),
        ("trilinear", 3, False): resolve("aten.upsample_trilinear3d.default"),
        ("bicubic", 2, False): resolve("aten.upsample_bicubic2d.default"),
        ("bilinear", 2, True): resolve("aten._upsample_bilinear2d_aa.default"),
        ("bicubic", 2, True): resolve("aten._upsample_bicubic2d_aa.default"),
    }
)
"""What interpolates, by the mode, the dimensions of an image, and whether it smooths first."""
SIGNATURE = signature(torch.nn.functional.interpolate)
MOST_EXACT = 64  # of the divisor of a factor; larger ones are of numbers that are no such fraction, such as 1.2


def _has_symbols(image: Any) -> bool:
    return isinstance(image, Tensor) and any(isinstance(size, torch.SymInt) for size in image.shape)


def interpolated(*arguments: Any, **keywords: Any) -> Any:
    """Interpolate images whose sizes are symbols: PyTorch's own function asks for numbers to multiply."""
    call = SIGNATURE.bind(*arguments, **keywords)
    call.apply_defaults()
    image, size, factor, mode, corners, again, smooth = call.arguments.values()
    rank = image.dim() - 2
    resampling = RESAMPLINGS.get((mode, rank, smooth))
    are_symbols = _has_symbols(image) or (size is not None and has_symbols(_for_each(size, rank)))
    if not are_symbols or resampling is None or again or (size is None) == (factor is None):
        return torch.nn.functional.interpolate(*arguments, **keywords)
    aligned = () if mode.startswith("nearest") else (bool(corners),)
    if size is not None:
        return resampling(image, _for_each(size, rank), *aligned)
    factors = _for_each(factor, rank)
    sizes = [_scaled(size, factor) for size, factor in zip(image.shape[2:], factors, strict=True)]
    return resampling(image, sizes, *aligned, *factors)


def _for_each(given: Any, rank: int) -> list[Any]:
    """What is given for each dimension, or for all of them."""
    return [*given] if isinstance(given, (tuple, list)) else [given] * rank


def _scaled(size: Any, factor: float) -> Any:
    """A size times a factor, without the fraction."""
    number, divisor = float(factor).as_integer_ratio()
    if isinstance(size, torch.SymInt) and divisor <= MOST_EXACT:
        return size * number // divisor
    return torch.sym_int(size * factor)


POOLS_OF_SEQUENCES = (torch.max_pool1d, torch.nn.functional.max_pool1d)


def _is_differentiated(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    given = arguments[0] if arguments else keywords.get("input")
    return isinstance(given, Tensor) and given.requires_grad and torch.is_grad_enabled()


def _pooled(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Pool as eager's kernel does: it gives a dense result of whatever layout it takes, and stand-ins get another."""
    found = function(*arguments, **keywords)
    return found.contiguous() if isinstance(found, Tensor) else found


CELLS: Mapping[Any, str] = MappingProxyType({torch.gru: "gru", torch.rnn_tanh: "rnn_tanh", torch.rnn_relu: "rnn_relu"})
LSTM = "lstm"
LSTM_MODE = 2  # as oneDNN counts kinds of cells
KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ARGUMENTS = 9
# The classes of the arguments behind the tensors: a symbol that stands for a number is none of them.
PLAIN = ((bool,), (int,), (float, int), (bool,), (bool,), (bool,))


class RecurrentCall(NamedTuple):
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
    quantised = dynamic_linear(function, arguments, keywords)
    if quantised is not None:
        return quantised
    if function in DATA and (stacked := made_of_tensors(function, arguments, keywords)) is not None:
        return stacked
    if function is torch.nn.functional.interpolate:
        return interpolated
    if function in POOLS_OF_SEQUENCES:
        return function if _is_differentiated(arguments, keywords) else partial(_pooled, function)
    if function is torch.lstm:
        return _lstm if not keywords and _is_covered("lstm", arguments) and _has_symbols(arguments[0]) else function
    if function is torch.nn.functional.batch_norm and isinstance(_share(*arguments, **keywords), Tensor):
        return _averaging_batch_norm
    cell = CELLS.get(function)
    if cell is None or keywords or not _is_covered(cell, arguments):
        return function
    return partial(_layers, cell)


def _share(*arguments: Any, momentum: Any = 0.1, **_: Any) -> Any:
    """How much of a new average a batch is, of a call of batch norm."""
    return arguments[6] if len(arguments) > 6 else momentum


def _averaging_batch_norm(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, *arguments: Any, **keywords: Any
) -> Tensor:
    """The same, with averages that are told apart from the statistics of the batch."""
    names = ("weight", "bias", "training", "momentum", "eps")
    given = {**dict(zip(names, arguments, strict=False)), **keywords}
    share = given.pop("momentum")
    if running_mean is None or running_var is None or not given.get("training"):
        return torch.nn.functional.batch_norm(x, running_mean, running_var, momentum=0.0, **given)
    mean, variance = torch.zeros_like(running_mean), torch.ones_like(running_var)
    found = torch.nn.functional.batch_norm(x, mean, variance, momentum=1.0, **given)
    with torch.no_grad():
        for average, new in ((running_mean, mean), (running_var, variance)):
            average.copy_((1 - share) * average + share * new)
    return found


def _is_covered(cell: str, arguments: Sequence[Any]) -> bool:
    """Whether a call is the usual one; what PyTorch refuses, it refuses in its own words."""
    if len(arguments) != ARGUMENTS or not isinstance(arguments[2], (list, tuple)):
        return False  # packed sequences
    given, states, parameters, *plain = arguments
    firsts = [*states] if isinstance(states, (list, tuple)) else [states]
    if not all(type(value) in kinds for value, kinds in zip(plain, PLAIN, strict=True)):
        return False
    tensors = (given, *firsts, *parameters)
    if len(firsts) != (2 if cell == LSTM else 1):
        return False
    if not all(isinstance(tensor, Tensor) and is_usual_stand_in(tensor) for tensor in tensors):
        return False
    if given.dtype not in KINDS or any(tensor.dtype is not given.dtype for tensor in tensors):
        return False
    if torch.is_autocast_enabled("cpu") or open_blocks():
        return False
    usual = given.dim() == 3 and given.numel() > 0
    return usual and all(_fits(cell, RecurrentCall(given, first, parameters, *plain)) for first in firsts)


def _fits(cell: str, call: RecurrentCall) -> bool:
    directions, batch = 1 + call.both, call.given.shape[0 if call.batch_first else 1]
    if call.first.dim() != 3 or call.first.shape[:2] != (call.layers * directions, batch) or not call.first.shape[2]:
        return False
    size = call.first.shape[2]
    rows = GATES[cell] * size
    wanted: list[tuple[int, ...]] = []
    for layer in range(call.layers):
        width = size * directions if layer else call.given.shape[2]
        wanted += [(rows, width), (rows, size), *[(rows,)] * (2 * call.has_biases)] * directions
    return [tuple(parameter.shape) for parameter in call.parameters] == wanted


def _layers(cell: str, *arguments: Any) -> tuple[Tensor, Tensor]:
    """All layers, in the order of PyTorch's own function."""
    call = RecurrentCall(*arguments)
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


def _lstm(
    given: Tensor, states: Sequence[Tensor], parameters: Sequence[Tensor], *plain: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """All layers of an LSTM whose sizes are symbols: PyTorch's function asks how many elements there are."""
    call = RecurrentCall(given, states[0], parameters, *plain)
    given = (given.transpose(0, 1) if call.batch_first else given).contiguous()
    first, cells = (state.contiguous() for state in states)
    count, ways, last = 4 if call.has_biases else 2, (False, True)[: 1 + call.both], []
    size = first.shape[2]
    for layer in range(call.layers):
        found = []
        for reverse in ways:
            at = layer * len(ways) + reverse
            weights = list(parameters[at * count : (at + 1) * count])
            weights += [torch.zeros(weights[0].shape, dtype=given.dtype) for _ in range(4 - count)]
            run = torch.ops.aten.mkldnn_rnn_layer.default
            options: tuple[Any, ...] = (
                reverse,
                [],
                LSTM_MODE,
                size,
                call.layers,
                call.has_biases,
                call.both,
                call.batch_first,
            )
            found.append(run(given, *weights, first[at], cells[at], *options, call.train))
        last += [entry[1:3] for entry in found]
        given = torch.cat([entry[0] for entry in found], -1) if call.both else found[0][0]
        if call.dropout and call.train and layer < call.layers - 1:
            given = torch.dropout(given, call.dropout, True)
    hidden, cell = (torch.stack(entries) for entries in zip(*last, strict=True))
    return given.transpose(0, 1) if call.batch_first else given, hidden, cell


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
    results = recurrent.forward(*operands, ctx.cell, ctx.reverse)
    places = [place for place, need in enumerate(ctx.needs_input_grad) if need]
    pairs = [(root, entry) for root, entry in zip(results, gradients, strict=True) if entry is not None]
    wanted = [operands[place] for place in places]
    roots, given = zip(*pairs, strict=True)
    found = torch.autograd.grad(roots, wanted, given, create_graph=True, allow_unused=True)
    entries: list[Tensor | None] = [None] * len(operands)
    for place, entry in zip(places, found, strict=True):
        entries[place] = entry
    return entries
