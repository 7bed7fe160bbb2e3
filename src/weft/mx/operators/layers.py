"""Compute layers: products with weights, convolutions, pooling, norms, activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.mx.base.errors import MXNetError
from weft.mx.operators.recurrent_steps import Weights, run_stepwise
from weft.mx.operators.reductions import axes_of
from weft.mx.operators.table import Shape, Sizes, computes, type_of

GATES = {"lstm": 4, "gru": 3, "rnn_relu": 1, "rnn_tanh": 1}
LAYERS: dict[str, Callable[..., Any]] = {
    "lstm": torch.lstm,
    "gru": torch.gru,
    "rnn_relu": torch.rnn_relu,
    "rnn_tanh": torch.rnn_tanh,
}


def _directions(p: Any) -> int:
    return 2 if p.bidirectional else 1


def _output_width(p: Any) -> int:
    return int(p.projection_size or p.state_size)


def weight_sizes(p: Any, input_size: int) -> list[list[Shape]]:
    """The sizes of the weights of each layer and direction: of inputs, of states, and of a projection, if there is."""
    rows = GATES[p.mode] * p.state_size
    sizes: list[list[Shape]] = []
    for layer in range(p.num_layers):
        width = input_size if layer == 0 else _output_width(p) * _directions(p)
        projection: list[Shape] = [(p.projection_size, p.state_size)] if p.projection_size else []
        sizes += [[(rows, width), (rows, _output_width(p)), *projection]] * _directions(p)
    return sizes


def parameter_count(p: Any, input_size: int) -> int:
    """Count the elements of all weights and biases."""
    sizes = weight_sizes(p, input_size)
    return sum(math.prod(size) for part in sizes for size in part) + sum(2 * part[0][0] for part in sizes)


def _recurrent_sizes(p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    if not sizes[0]:
        return sizes
    _, batch, width = sizes[0]
    count = p.num_layers * _directions(p)
    cell = [(count, batch, p.state_size)] if p.mode == "lstm" else []
    return [sizes[0], (parameter_count(p, width),), (count, batch, _output_width(p)), *cell, (batch,)][: len(sizes)]


def _cut(p: Any, vector: Tensor, input_size: int) -> list[list[Tensor]]:
    """The vector as torch takes weights: of each layer and direction two weights, two biases, and a projection."""
    sizes = weight_sizes(p, input_size)
    flat = [size for part in sizes for size in part]
    lengths = [math.prod(size) for size in flat] + [part[0][0] for part in sizes for _ in range(2)]
    if sum(lengths) != vector.numel():
        raise MXNetError(f"RNN takes {sum(lengths)} parameters, not {vector.numel()}")
    parts = torch.split(vector, lengths)
    weights = iter([part.reshape(size) for part, size in zip(parts, flat, strict=False)])
    biases = iter(parts[len(flat) :])
    found = []
    for part in sizes:
        of_input, of_state, *projection = [next(weights) for _ in part]
        found.append([of_input, of_state, next(biases), next(biases), *projection])
    return found


def _output_count(p: Any) -> int:
    return 1 if not p.state_outputs else 3 if p.mode == "lstm" else 2


@computes(
    "RNN",
    modal=True,
    inputs=lambda p: (4 if p.mode == "lstm" else 3) + bool(p.use_sequence_length),
    left_out=lambda p, names: names if p.mode == "lstm" else tuple(name for name in names if name != "state_cell"),
    outputs=_output_count,
    complete=_recurrent_sizes,
)
def rnn(p: Any, x: Tensor, vector: Tensor, *states: Tensor) -> Any:
    """Run a recurrent layer over a sequence."""
    if p.projection_size and p.mode != "lstm":
        raise MXNetError("RNN with projection_size is for mode='lstm' alone")
    weights = _cut(p, vector, x.shape[2])
    lengths = states[-1] if p.use_sequence_length else None
    is_clipped = p.mode == "lstm" and None not in (p.lstm_state_clip_min, p.lstm_state_clip_max)
    if lengths is not None or is_clipped or p.projection_size:  # torch warns of projections
        states = states[:2] if p.mode == "lstm" else states[:1]
        found = run_stepwise(p, x, states, [Weights(*part) for part in weights], lengths)
    else:
        start: Any = states if p.mode == "lstm" else states[0]
        dropped = p.p if p.train else 0.0
        flat = [piece for part in weights for piece in part]
        found = LAYERS[p.mode](x, start, flat, True, p.num_layers, dropped, p.train, p.bidirectional, False)
    return found if p.state_outputs else found[0]


CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
MAXIMA: dict[int, Callable[..., Tensor]] = {2: functional.max_pool2d, 3: functional.max_pool3d}
MEANS: dict[int, Callable[..., Tensor]] = {2: functional.avg_pool2d, 3: functional.avg_pool3d}


def unless_no_bias(p: Any) -> int:
    """Count an image, weights and, unless it is left out, a bias."""
    return 2 if p.no_bias else 3


def _product_sizes(p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    if not sizes[0]:
        return sizes
    width = math.prod(sizes[0][1:]) if p.flatten else sizes[0][-1]
    return [sizes[0], (p.num_hidden, width), (p.num_hidden,)][: len(sizes)]


def _must_be(name: str, given: Tensor, wanted: Sequence[int]) -> None:
    if tuple(given.shape) != tuple(wanted):
        raise MXNetError(f"Shape inconsistent, Provided = {list(given.shape)}, inferred shape={list(wanted)} of {name}")


def _product_sizes_back(_p: Any, sizes: Sizes, output: Shape) -> Sequence[Shape | None]:
    """A batch of unknown size is as large as that of the output."""
    first = sizes[0]
    return [(output[0], *first[1:]) if first and not first[0] else first, *sizes[1:]]


@computes("FullyConnected", inputs=unless_no_bias, complete=_product_sizes, backwards=_product_sizes_back)
def fully_connected(p: Any, x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
    """Multiply by weights, add a bias."""
    if p.flatten and x.dim() != 2:
        x = x.reshape(x.shape[0], -1)
    _must_be("weight", weight, (p.num_hidden, x.shape[-1]))
    return functional.linear(x, weight, *bias)


def _spread(given: Sequence[int], count: int, otherwise: int) -> tuple[int, ...]:
    return tuple(given) if given else (otherwise,) * count


def _channels_first(layout: str | None, x: Tensor) -> Tensor:
    return x.movedim(-1, 1) if layout is not None and layout.endswith("C") else x


def _channels_back(layout: str | None, x: Tensor) -> Tensor:
    return x.movedim(1, -1) if layout is not None and layout.endswith("C") else x


def _last(layout: str | None) -> bool:
    return layout is not None and layout.endswith("C")


def _convolution_sizes(p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    if not sizes[0]:
        return sizes
    channels = sizes[0][-1] if _last(p.layout) else sizes[0][1]
    per_group = channels // p.num_group
    weight = (p.num_filter, *p.kernel, per_group) if _last(p.layout) else (p.num_filter, per_group, *p.kernel)
    return [sizes[0], weight, (p.num_filter,)][: len(sizes)]


@computes("Convolution", "Convolution_v1", inputs=unless_no_bias, complete=_convolution_sizes)
def convolution(p: Any, x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
    """Convolve images, lines or volumes."""
    count = len(p.kernel)
    if x.dim() != count + 2:
        raise MXNetError(f"Input data should be {count + 2}D in batch-num_filter-spatial, not {list(x.shape)}")
    x, weight = _channels_first(p.layout, x), _channels_first(p.layout, weight)
    _must_be("weight", weight, (p.num_filter, x.shape[1] // p.num_group, *p.kernel))
    stride, pad, dilate = _spread(p.stride, count, 1), _spread(p.pad, count, 0), _spread(p.dilate, count, 1)
    found = CONVOLUTIONS[count](x, weight, *(bias or (None,)), stride, pad, dilate, p.num_group)
    return _channels_back(p.layout, found)


def _transposed_sizes(p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    if not sizes[0]:
        return sizes
    return [sizes[0], (sizes[0][1], p.num_filter // p.num_group, *p.kernel), (p.num_filter,)][: len(sizes)]


@computes("Deconvolution", inputs=unless_no_bias, complete=_transposed_sizes)
def deconvolution(p: Any, x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
    """The transpose of a convolution."""
    count = len(p.kernel)
    stride, pad, dilate = _spread(p.stride, count, 1), _spread(p.pad, count, 0), _spread(p.dilate, count, 1)
    adjust = _spread(p.adj, count, 0)
    if p.target_shape and any(p.target_shape):
        reach = [
            s * (size - 1) + d * (k - 1) + 1 - wanted
            for s, size, d, k, wanted in zip(stride, x.shape[2:], dilate, p.kernel, p.target_shape, strict=True)
        ]
        pad, adjust = tuple((r + 1) // 2 for r in reach), tuple(r % 2 for r in reach)
    return TRANSPOSED[count](x, weight, *(bias or (None,)), stride, pad, adjust, p.num_group, dilate)


@computes("Pooling", "Pooling_v1", hidden=lambda p: int(p.pool_type == "max" and hasattr(p, "layout")))
def pooling(p: Any, x: Tensor) -> Tensor:
    """The largest, the mean or the sum of each window."""
    layout = getattr(p, "layout", None)
    x = _channels_first(layout, x)
    if p.global_pool:
        return _channels_back(layout, _pooled_whole(p, x))
    if p.pooling_convention == "same":
        raise MXNetError("pooling_convention='same' is not in weft.mx")
    count = len(p.kernel)
    kernel, stride, pad = p.kernel, _spread(p.stride, count, 1), _spread(p.pad, count, 0)
    if any(k > size + 2 * edge for k, size, edge in zip(kernel, x.shape[2:], pad, strict=True)):
        raise MXNetError(f"kernel size ({list(kernel)}) exceeds input ({list(x.shape[2:])} padded by {list(pad)})")
    if count == 1:
        found = _pooled(p, x.unsqueeze(2), ((1, *kernel), (1, *stride), (0, *pad))).squeeze(2)
    else:
        found = _pooled(p, x, (kernel, stride, pad))
    return _channels_back(layout, found)


def _pooled(p: Any, x: Tensor, windows: tuple[Sequence[int], ...]) -> Tensor:
    kernel, stride, pad = windows
    if any(2 * edge > size for edge, size in zip(pad, kernel, strict=True)):
        return _pooled_widely(p, x, windows)
    ceil, count = p.pooling_convention == "full", len(kernel)
    if p.pool_type == "max":
        return MAXIMA[count](x, kernel, stride, pad, 1, ceil)
    if p.pool_type == "avg":
        return MEANS[count](x, kernel, stride, pad, ceil, getattr(p, "count_include_pad", None) is not False)
    if p.pool_type == "sum":
        return MEANS[count](x, kernel, stride, pad, ceil, True, 1)
    power = p.p_value or 2
    return MEANS[count](torch.abs(x) ** power, kernel, stride, pad, ceil, True, 1) ** (1 / power)


def _pooled_widely(p: Any, x: Tensor, windows: tuple[Sequence[int], ...]) -> Tensor:
    """Windows that reach beyond the image by more than half, which torch refuses, over an image with a border."""
    kernel, stride, pad = windows
    if any(edge >= size for edge, size in zip(pad, kernel, strict=True)):
        raise MXNetError(f"pad ({list(pad)}) has to be smaller than kernel ({list(kernel)})")
    edges = [edge for each in reversed(pad) for edge in (each, each)]
    inner = kernel, stride, [0] * len(kernel)
    if p.pool_type == "max":
        return _pooled(p, functional.pad(x, edges, value=-math.inf), inner)
    found = _pooled(p, functional.pad(x, edges), inner)
    if p.pool_type == "avg" and getattr(p, "count_include_pad", None) is False:
        found = found / _pooled(p, functional.pad(torch.ones_like(x), edges), inner)
    return found


def _pooled_whole(p: Any, x: Tensor) -> Tensor:
    axes = tuple(range(2, x.dim()))
    if p.pool_type == "max":
        return _largest(x) if x.requires_grad else torch.amax(x, dim=axes, keepdim=True)
    if p.pool_type == "avg":
        return torch.mean(x, dim=axes, keepdim=True)
    power = 1 if p.pool_type == "sum" else p.p_value or 2
    return torch.sum(torch.abs(x) ** power if power > 1 else x, dim=axes, keepdim=True) ** (1 / power)


def _largest(x: Tensor) -> Tensor:
    """The largest of each channel; of several that are as large, the first gets the gradient."""
    lines = x.reshape(*x.shape[:2], -1)
    found = torch.gather(lines, 2, torch.argmax(lines.detach(), dim=2, keepdim=True))
    return found.reshape(*x.shape[:2], *[1] * (x.dim() - 2))


@computes("_contrib_AdaptiveAvgPooling2D")
def adaptive_avg_pooling(p: Any, x: Tensor) -> Tensor:
    """The means of as many windows as are wanted."""
    size = p.output_size or (1,)
    return functional.adaptive_avg_pool2d(x, (size[0], size[-1]))


@computes("_contrib_BilinearResize2D", inputs=lambda p: 2 if p.mode == "like" else 1)
def bilinear_resize(p: Any, x: Tensor, *like: Tensor) -> Tensor:
    """Images of another size, by bilinear interpolation."""
    height, width = p.height, p.width
    if like:
        height, width = like[0].shape[2:]
    elif p.scale_height is not None:
        height, width = int(x.shape[2] * p.scale_height), int(x.shape[3] * p.scale_width)
    return functional.interpolate(x, (height, width), mode="bilinear", align_corners=p.align_corners)


@computes("UpSampling")
def upsampling(p: Any, x: Tensor, *others: Tensor) -> Tensor:
    """Images enlarged by a whole factor."""
    if p.sample_type == "bilinear":
        width = 2 * p.scale - p.scale % 2
        edge = math.ceil((p.scale - 1) / 2)
        return (
            functional.conv_transpose2d(x, others[0], None, p.scale, edge, 0, x.shape[1]).reshape(
                *x.shape[:2], x.shape[2] * p.scale, x.shape[3] * p.scale
            )
            if width
            else x
        )
    height, wide = x.shape[2] * p.scale, x.shape[3] * p.scale
    grown = [functional.interpolate(image, (height, wide), mode="nearest") for image in (x, *others)]
    return torch.cat(grown, 1) if p.multi_input_mode == "concat" else torch.stack(grown).sum(0)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "softrelu": functional.softplus,
    "softsign": functional.softsign,
    "tanh": torch.tanh,
}


@computes("Activation")
def activation(p: Any, x: Tensor) -> Tensor:
    """Bend each element."""
    return ACTIVATIONS[p.act_type](x)


def _slopes(_p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    if len(sizes) < 2 or not sizes[0]:
        return sizes
    return [sizes[0], sizes[1] if sizes[1] and all(sizes[1]) else (sizes[0][1],)]


@computes("LeakyReLU", inputs=lambda p: 2 if p.act_type == "prelu" else 1, modal=True, random=True, complete=_slopes)
def leaky_relu(p: Any, generator: torch.Generator | None, x: Tensor, *gamma: Tensor) -> Tensor:
    """Bend what is negative."""
    if p.act_type == "prelu":
        slope = gamma[0] if gamma[0].dim() != 1 else gamma[0].reshape(-1, *[1] * (x.dim() - 2))
        return torch.where(x > 0, x, slope * x)
    if p.act_type == "elu":
        return torch.where(x > 0, x, p.slope * torch.expm1(torch.clamp(x, max=0)))
    if p.act_type == "selu":
        return functional.selu(x)
    if p.act_type == "gelu":
        return functional.gelu(x)
    if p.act_type == "rrelu":
        if not p.train:
            return functional.leaky_relu(x, (p.lower_bound + p.upper_bound) / 2)
        drawn = torch.empty_like(x).uniform_(p.lower_bound, p.upper_bound, generator=generator)
        return torch.where(x > 0, x, drawn * x)
    return torch.where(x > 0, x, p.slope * x)


def _only_floating(x: Tensor) -> None:
    if not x.is_floating_point():
        raise MXNetError(f"This operation only support floating point types, not {x.dtype}")


@computes("softmax", mixed=True, inputs=lambda p: 2 if p.use_length else 1)
def softmax(p: Any, x: Tensor, *lengths: Tensor) -> Tensor:
    """Exponentials over their sum; beyond a length 0."""
    _only_floating(x)
    scaled = (x if p.temperature is None else x / p.temperature).to(type_of(p.dtype, x.dtype))
    if not lengths:
        return torch.softmax(scaled, dim=p.axis)
    axis = axes_of(x, p.axis)[0]
    steps = torch.arange(x.shape[axis], device=x.device).reshape([-1 if a == axis else 1 for a in range(x.dim())])
    inside = steps < lengths[0].to(torch.int64).unsqueeze(axis)
    return torch.where(inside, torch.softmax(scaled.masked_fill(~inside, -torch.inf), dim=axis), 0.0)


@computes("log_softmax")
def log_softmax(p: Any, x: Tensor) -> Tensor:
    """The logarithm of softmax."""
    _only_floating(x)
    scaled = x if p.temperature is None else x / p.temperature
    return torch.log_softmax(scaled.to(type_of(p.dtype, x.dtype)), dim=p.axis)


@computes("softmin", inputs=lambda _p: 1)
def softmin(p: Any, x: Tensor) -> Tensor:
    """Softmax of what is negated."""
    _only_floating(x)
    return torch.softmax(-x if p.temperature is None else -x / p.temperature, dim=p.axis)


@computes("SoftmaxActivation")
def softmax_activation(p: Any, x: Tensor) -> Tensor:
    """Softmax over channels, or over all of an example."""
    if p.mode == "channel":
        return torch.softmax(x, dim=1)
    return torch.softmax(x.reshape(x.shape[0], -1), dim=1).reshape(x.shape)


@computes("Dropout", modal=True, random=True, hidden=1)
def dropout(p: Any, generator: torch.Generator | None, x: Tensor) -> Any:
    """While training, 0 in the place of a share of the elements."""
    if not (p.train or p.mode == "always") or p.p == 0:
        return x.clone()
    sizes = [1 if axis in p.axes else size for axis, size in enumerate(x.shape)]
    kept = torch.rand(sizes, dtype=x.dtype, device=x.device, generator=generator) >= p.p
    return x * kept.to(x.dtype) / (1 - p.p)


def _channel_sizes(count: int) -> Callable[[Any, Sizes], Sequence[Shape | None]]:
    def sizes_of(p: Any, sizes: Sizes) -> Sequence[Shape | None]:
        return [sizes[0], *[(sizes[0][getattr(p, "axis", 1)],)] * count] if sizes[0] else sizes

    return sizes_of


@computes(
    "BatchNorm",
    "_contrib_SyncBatchNorm",
    "BatchNorm_v1",
    modal=True,
    mixed=True,
    aux=(3, 4),
    hidden=lambda p: 0 if getattr(p, "output_mean_var", False) else 2,
    complete=_channel_sizes(4),
    outputs=lambda p: 3 if getattr(p, "output_mean_var", False) else 1,
)
def batch_norm(p: Any, *arrays: Tensor) -> Any:
    """Bring each channel to mean 0 and variance 1, of the batch while training, else of what was seen then."""
    x, gamma, beta, moving_mean, moving_var = arrays
    if x.dtype == torch.float16 and gamma.dtype == torch.float32:  # what is known of channels is kept more exactly
        found = batch_norm(p, x.float(), *arrays[1:])
        return (found[0].half(), *found[1:]) if isinstance(found, tuple) else found.half()
    for place, other in enumerate(arrays):
        if other.dtype != x.dtype:
            raise MXNetError(f"Incompatible attr in node at {place}-th input: expected {x.dtype}, got {other.dtype}")
    axis = getattr(p, "axis", 1) % x.dim()
    moved = x.movedim(axis, 1) if axis != 1 else x
    gamma = torch.ones_like(gamma) if p.fix_gamma else gamma
    for name, given in (("gamma", gamma), ("beta", beta), ("moving_mean", moving_mean)):
        _must_be(name, given, (moved.shape[1],))
    mean, var = moving_mean, moving_var
    changed: tuple[Tensor, ...] = ()
    if p.train and not p.use_global_stats:
        axes = [place for place in range(moved.dim()) if place != 1]
        var, mean = torch.var_mean(moved, dim=axes, correction=0)
        kept = p.momentum
        changed = (moving_mean * kept + mean.detach() * (1 - kept), moving_var * kept + var.detach() * (1 - kept))
        if moved.numel() > moved.shape[1]:
            out = functional.batch_norm(moved, None, None, gamma, beta, training=True, eps=p.eps)
        else:
            out = _normalized(moved, (mean, var, gamma, beta), p.eps)
    else:
        out = functional.batch_norm(moved, mean.detach(), var.detach(), gamma, beta, training=False, eps=p.eps)
    out = out.movedim(1, axis) if axis != 1 else out
    shown = (out, mean, torch.rsqrt(var + p.eps)) if p.output_mean_var else (out,)
    return (*shown, *changed) if len(shown) + len(changed) > 1 else out


def _normalized(x: Tensor, figures: Sequence[Tensor], eps: float) -> Tensor:
    mean, var, gamma, beta = (figure.reshape(-1, *[1] * (x.dim() - 2)) for figure in figures)
    return (x - mean) * torch.rsqrt(var + eps) * gamma + beta


@computes("_contrib_BatchNormWithReLU", modal=True, aux=(3, 4), hidden=2, complete=_channel_sizes(4))
def batch_norm_relu(p: Any, *arrays: Tensor) -> Any:
    """Batch norm, then relu."""
    found = batch_norm(p, *arrays)
    return (torch.relu(found[0]), *found[1:]) if isinstance(found, tuple) else torch.relu(found)


@computes(
    "LayerNorm",
    complete=_channel_sizes(2),
    hidden=lambda p: 0 if p.output_mean_var else 2,
    outputs=lambda p: 3 if p.output_mean_var else 1,
)
def layer_norm(p: Any, x: Tensor, gamma: Tensor, beta: Tensor) -> Any:
    """Bring each line along an axis to mean 0 and variance 1."""
    axis = axes_of(x, p.axis)[0]
    moved = x.movedim(axis, -1)
    out = functional.layer_norm(moved, gamma.shape, gamma, beta, p.eps).movedim(-1, axis)
    if not p.output_mean_var:
        return out
    var, mean = torch.var_mean(x, dim=axis, correction=0, keepdim=True)
    return out, mean.squeeze(axis), torch.sqrt(var + p.eps).squeeze(axis)


@computes("InstanceNorm", complete=_channel_sizes(2), hidden=2)
def instance_norm(p: Any, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """Bring each channel of each example to mean 0 and variance 1."""
    axes = list(range(2, x.dim()))
    var, mean = torch.var_mean(x, dim=axes, correction=0, keepdim=True)
    shape = (-1, *[1] * (x.dim() - 2))
    return (x - mean) * torch.rsqrt(var + p.eps) * gamma.reshape(shape) + beta.reshape(shape)


@computes("GroupNorm", hidden=2, complete=lambda p, sizes: [sizes[0], *[(p.num_groups,)] * 2])
def group_norm(p: Any, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """Bring each group of channels of each example to mean 0 and variance 1."""
    _must_be("gamma", gamma, (p.num_groups,))
    each = x.shape[1] // p.num_groups
    return functional.group_norm(x, p.num_groups, gamma.repeat_interleave(each), beta.repeat_interleave(each), p.eps)


@computes("L2Normalization", hidden=1)
def l2_normalization(p: Any, x: Tensor) -> Tensor:
    """Divide by the root of a sum of squares."""
    axes = {"instance": tuple(range(1, x.dim())), "channel": (1,), "spatial": tuple(range(2, x.dim()))}[p.mode]
    return x / torch.sqrt(torch.sum(x * x, dim=axes, keepdim=True) + p.eps)


@computes("LRN", hidden=1)
def lrn(p: Any, x: Tensor) -> Tensor:
    """Divide by what neighbouring channels hold."""
    return functional.local_response_norm(x, p.nsize, p.alpha, p.beta, p.knorm)


@computes("im2col")
def im2col(p: Any, x: Tensor) -> Tensor:
    """The windows of images, a column each."""
    count = len(p.kernel)
    return functional.unfold(
        x, p.kernel, _spread(p.dilate, count, 1), _spread(p.pad, count, 0), _spread(p.stride, count, 1)
    )


@computes("col2im")
def col2im(p: Any, x: Tensor) -> Tensor:
    """The sum of windows, laid where they were cut."""
    count = len(p.kernel)
    spread = _spread(p.dilate, count, 1), _spread(p.pad, count, 0), _spread(p.stride, count, 1)
    return functional.fold(x, p.output_size, p.kernel, *spread)


@computes("BilinearSampler", hidden=1)
def bilinear_sampler(_p: Any, x: Tensor, grid: Tensor) -> Tensor:
    """Pixels at the places of a grid."""
    return functional.grid_sample(
        x, grid.permute(0, 2, 3, 1), mode="bilinear", padding_mode="zeros", align_corners=True
    )


@computes("GridGenerator", hidden=1)
def grid_generator(p: Any, x: Tensor) -> Tensor:
    """The places that an affine map, or a flow, leads to."""
    if p.transform_type == "affine":
        height, width = p.target_shape
        grid = functional.affine_grid(x.reshape(-1, 2, 3), [x.shape[0], 1, height, width], align_corners=True)
        return grid.permute(0, 3, 1, 2)
    _, _, height, width = x.shape
    across = torch.arange(width, dtype=x.dtype, device=x.device) + x[:, 0]
    down = torch.arange(height, dtype=x.dtype, device=x.device).reshape(-1, 1) + x[:, 1]
    return torch.stack([across * 2 / (width - 1) - 1, down * 2 / (height - 1) - 1], dim=1)


@computes("SpatialTransformer", hidden=2)
def spatial_transformer(p: Any, x: Tensor, loc: Tensor) -> Tensor:
    """Images seen through an affine map."""
    height, width = p.target_shape if any(p.target_shape) else x.shape[2:]
    grid = functional.affine_grid(loc.reshape(-1, 2, 3), [x.shape[0], 1, height, width], align_corners=True)
    return functional.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=True)
