"""Move elements: reshape, transpose, slice, join, repeat, pad; and make arrays from nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.mx.base.errors import MXNetError
from weft.mx.operators.reductions import axes_of
from weft.mx.operators.table import Shape, Sizes, computes, type_of


def _signed_product(sizes: Sequence[int]) -> int:
    return math.prod(sizes) if sizes else 1


def reshaped(old: Sequence[int], codes: Sequence[int], *, reverse: bool = False) -> Shape:
    """The sizes that MXNet's codes stand for: 0 copies, -1 is found, -2 copies the rest, -3 merges two, -4 splits."""
    if reverse:
        return tuple(reversed(reshaped(tuple(reversed(old)), tuple(reversed(codes)))))
    new: list[int] = []
    source, place, unknown = 0, 0, -1
    while place < len(codes):
        code = codes[place]
        if code == -2:
            new += old[source:]
            source = len(old)
        elif code == -3:
            new.append(old[source] * old[source + 1])
            source += 2
        elif code == -4:
            parts = list(codes[place + 1 : place + 3])
            if -1 in parts:
                parts[parts.index(-1)] = old[source] // parts[1 - parts.index(-1)]
            new += parts
            source, place = source + 1, place + 2
        elif code == -1:
            unknown = len(new)
            new.append(1)
            source += 1
        else:
            new.append(old[source] if code == 0 else code)
            source += 1
        place += 1
    if unknown >= 0:
        new[unknown] = _signed_product(old) // max(_signed_product(new), 1)
    if _signed_product(new) != _signed_product(old):
        raise MXNetError(f"Target shape size is different to source. Target: {list(new)} Source: {list(old)}")
    return tuple(new)


def _one_unknown_size(p: Any, sizes: Sizes, output: Shape) -> Sequence[Shape | None]:
    """One size of an array that becomes a line follows from the length of the line."""
    (shape,) = sizes
    if shape is None or tuple(p.shape) != (-1,) or sum(size == 0 for size in shape) != 1:
        return sizes
    found = output[0] // math.prod(size for size in shape if size)
    return [tuple(size or found for size in shape)]


@computes("Reshape", backwards=_one_unknown_size)
def reshape(p: Any, x: Tensor) -> Tensor:
    """Give the same elements other sizes."""
    if p.shape or not p.target_shape:
        return x.reshape(reshaped(x.shape, p.shape, reverse=p.reverse))
    sizes = [*p.target_shape]  # as before 0.9: 0 is what is left
    if p.keep_highest:
        sizes[0] = x.shape[0]
    if sizes.count(0) > 1:
        raise MXNetError(f"Reshape: one size of target_shape may be 0, and {p.target_shape} has more")
    return x.reshape([size or -1 for size in sizes])


@computes("reshape_like", mixed=True)
def reshape_like(p: Any, x: Tensor, like: Tensor) -> Tensor:
    """Give the elements the sizes, or some of them, of another array."""
    if p.lhs_begin is None and p.lhs_end is None and p.rhs_begin is None and p.rhs_end is None:
        return x.reshape(like.shape)
    left, right = slice(p.lhs_begin, p.lhs_end), slice(p.rhs_begin, p.rhs_end)
    start, stop, _ = left.indices(x.dim())
    return x.reshape(*x.shape[:start], *like.shape[right], *x.shape[stop:])


@computes("Flatten")
def flatten(_p: Any, x: Tensor) -> Tensor:
    """Keep the first axis, and make one of the others."""
    return x.reshape(x.shape[0], -1)


@computes("transpose")
def transpose(p: Any, x: Tensor) -> Tensor:
    """Reorder the axes; with none named, turn them round."""
    return x.permute(p.axes or tuple(reversed(range(x.dim()))))


@computes("SwapAxis")
def swapaxes(p: Any, x: Tensor) -> Tensor:
    """Exchange two axes."""
    return x.transpose(p.dim1, p.dim2)


@computes("expand_dims")
def expand_dims(p: Any, x: Tensor) -> Tensor:
    """Add an axis of size 1."""
    return x.unsqueeze(p.axis)


@computes("squeeze")
def squeeze(p: Any, x: Tensor) -> Tensor:
    """Drop axes of size 1."""
    axes = tuple(range(x.dim())) if p.axis is None else axes_of(x, p.axis)
    if p.axis is not None and any(x.shape[axis] != 1 for axis in axes):
        raise MXNetError(f"cannot select an axis to squeeze out which has size not equal to one: {list(x.shape)}")
    kept = [size for axis, size in enumerate(x.shape) if axis not in axes or size != 1]
    return x.reshape(kept or [1])


@computes("broadcast_to")
def broadcast_to(p: Any, x: Tensor) -> Tensor:
    """Repeat axes of size 1 until the sizes are these; 0 leaves one as it is."""
    return x.expand([old if new == 0 else new for new, old in zip(p.shape, x.shape, strict=True)])


@computes("broadcast_axis")
def broadcast_axis(p: Any, x: Tensor) -> Tensor:
    """Repeat the named axes, which have size 1."""
    sizes = list(x.shape)
    for axis, size in zip(p.axis, p.size, strict=True):
        sizes[axis] = size
    return x.expand(sizes)


@computes("broadcast_like", mixed=True)
def broadcast_like(p: Any, x: Tensor, like: Tensor) -> Tensor:
    """Repeat axes until the sizes, or the named ones, are those of another array."""
    if p.lhs_axes is None or p.rhs_axes is None:
        return x.expand(like.shape)
    sizes = list(x.shape)
    for mine, other in zip(p.lhs_axes, p.rhs_axes, strict=True):
        sizes[mine] = like.shape[other]
    return x.expand(sizes)


def stepped(x: Tensor, axis: int, part: slice) -> Tensor:
    """One axis sliced, also backwards, which torch's own slices cannot."""
    start, stop, step = part.indices(x.shape[axis])
    places = range(start, stop, step)
    if step > 0:
        return x.narrow(axis, min(start, x.shape[axis]), 0) if not places else _forwards(x, axis, start, stop, step)
    return x.index_select(axis, torch.tensor(list(places), dtype=torch.int64, device=x.device))


def _forwards(x: Tensor, axis: int, start: int, stop: int, step: int) -> Tensor:
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def _parts(p: Any, x: Tensor) -> list[slice]:
    steps = p.step or (None,) * len(p.begin)
    parts = [slice(begin, end, step or None) for begin, end, step in zip(p.begin, p.end, steps, strict=True)]
    if len(parts) > x.dim():
        raise MXNetError(f"slice takes at most {x.dim()} axes, not {len(parts)}")
    return parts


@computes("slice")
def slice_(p: Any, x: Tensor) -> Tensor:
    """Take a box of elements."""
    for axis, part in enumerate(_parts(p, x)):
        x = stepped(x, axis, part)
    return x


def _box(p: Any, x: Tensor) -> Tensor:
    places = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    for axis, part in enumerate(_parts(p, x)):
        places = stepped(places, axis, part)
    return places


@computes("_slice_assign")
def slice_assign(p: Any, x: Tensor, value: Tensor) -> Tensor:
    """The array with a box of other elements."""
    places = _box(p, x)
    return x.reshape(-1).index_put((places,), value.expand(places.shape)).reshape(x.shape)


@computes("_slice_assign_scalar")
def slice_assign_scalar(p: Any, x: Tensor) -> Tensor:
    """The array with a box of one number."""
    return x.reshape(-1).index_put((_box(p, x),), x.new_tensor(p.scalar)).reshape(x.shape)


@computes("slice_axis")
def slice_axis(p: Any, x: Tensor) -> Tensor:
    """Take a part of one axis."""
    axis = axes_of(x, p.axis)[0]
    return stepped(x, axis, slice(p.begin, p.end))


@computes("slice_like", mixed=True)
def slice_like(p: Any, x: Tensor, like: Tensor) -> Tensor:
    """Take the beginning of axes, as long as those of another array."""
    for axis in axes_of(x, p.axes):
        x = x.narrow(axis, 0, like.shape[axis])
    return x


@computes("Crop")
def crop(p: Any, x: Tensor, *like: Tensor) -> Tensor:
    """Cut a rectangle out of images."""
    height, width = like[0].shape[2:] if like else p.h_w
    top, left = p.offset
    if p.center_crop:
        top, left = (x.shape[2] - height) // 2, (x.shape[3] - width) // 2
    return x[:, :, top : top + height, left : left + width]


def _joined_sizes(p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    """All axes but the joined one are alike."""
    known = next((shape for shape in sizes if shape and all(shape)), None)
    if known is None:
        return sizes
    axis = p.dim % len(known)
    return [
        tuple(
            own or other if place != axis else own for place, (own, other) in enumerate(zip(shape, known, strict=True))
        )
        if shape and len(shape) == len(known)
        else shape
        for shape in sizes
    ]


@computes("Concat", complete=_joined_sizes)
def concat(p: Any, *arrays: Tensor) -> Tensor:
    """Join arrays along an axis."""
    return torch.cat(arrays, dim=p.dim)


def _equal_shares(p: Any, sizes: Sizes, output: Shape) -> Sequence[Shape | None]:
    """Lines of unknown length share what the others leave: they are the input weights of the directions of a layer."""
    unknown = sum(not shape for shape in sizes)
    if not unknown or p.dim % len(output):
        return sizes
    share = (output[0] - sum(shape[0] for shape in sizes if shape)) // unknown
    return [shape or (share,) for shape in sizes]


@computes("_rnn_param_concat", backwards=_equal_shares)
def rnn_param_concat(p: Any, *arrays: Tensor) -> Tensor:
    """Join the parameters of a recurrent layer."""
    return torch.cat(arrays, dim=p.dim)


@computes("stack")
def stack(p: Any, *arrays: Tensor) -> Tensor:
    """Join arrays along a new axis."""
    return torch.stack(arrays, dim=p.axis)


@computes("SliceChannel", outputs=lambda p: p.num_outputs)
def split(p: Any, x: Tensor) -> Any:
    """Cut an axis into equal parts."""
    if x.shape[p.axis] % p.num_outputs:
        raise MXNetError(
            f"You are trying to split the {p.axis}-th axis of input tensor with shape {list(x.shape)} into "
            f"num_outputs={p.num_outputs} evenly sized chunks, but this is not possible because {p.num_outputs} does "
            f"not evenly divide {x.shape[p.axis]}"
        )
    parts = torch.chunk(x, p.num_outputs, dim=p.axis)
    found = tuple(part.squeeze(p.axis) if p.squeeze_axis else part for part in parts)
    return found if len(found) > 1 else found[0]


@computes("_split_v2", outputs=lambda p: p.sections or len(p.indices))
def split_v2(p: Any, x: Tensor) -> Any:
    """Cut an axis into equal parts, or at these places."""
    size = x.shape[p.axis]
    starts = list(range(0, size, size // p.sections)) if p.sections else list(p.indices)
    parts = [x.narrow(p.axis, a, b - a) for a, b in zip(starts, [*starts[1:], size], strict=True)]
    found = tuple(part.squeeze(p.axis) if p.squeeze_axis else part for part in parts)
    return found if len(found) > 1 else found[0]


@computes("tile")
def tile(p: Any, x: Tensor) -> Tensor:
    """Repeat the whole array."""
    return x.tile(p.reps)


@computes("repeat")
def repeat(p: Any, x: Tensor) -> Tensor:
    """Repeat each element."""
    return torch.repeat_interleave(x, p.repeats, dim=p.axis)


@computes("reverse")
def reverse(p: Any, x: Tensor) -> Tensor:
    """Turn axes round."""
    return x.flip(p.axis)


@computes("Pad")
def pad(p: Any, x: Tensor) -> Tensor:
    """Surround the last axes with a constant, or with what lies near."""
    pairs = [p.pad_width[place : place + 2] for place in range(0, len(p.pad_width), 2)]
    if p.mode == "constant":
        return functional.pad(x, [width for pair in reversed(pairs) for width in pair], value=p.constant_value)
    flat = [width for pair in reversed(pairs[2:]) for width in pair]
    return functional.pad(x, flat, mode="replicate" if p.mode == "edge" else "reflect")


@computes("depth_to_space")
def depth_to_space(p: Any, x: Tensor) -> Tensor:
    """Make blocks of pixels of channels."""
    n, c, h, w = x.shape
    b = p.block_size
    return x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // b**2, h * b, w * b)


@computes("space_to_depth")
def space_to_depth(p: Any, x: Tensor) -> Tensor:
    """Make channels of blocks of pixels."""
    n, c, h, w = x.shape
    b = p.block_size
    return x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4).reshape(n, c * b**2, h // b, w // b)


@computes("diag")
def diag(p: Any, x: Tensor) -> Tensor:
    """The diagonal of a matrix, or the matrix with this diagonal."""
    return torch.diag(x, p.k) if x.dim() == 1 else torch.diagonal(x, p.k, p.axis1, p.axis2)


@computes("shape_array")
def shape_array(_p: Any, x: Tensor) -> Tensor:
    """The sizes, as an array."""
    return torch.tensor(x.shape, dtype=torch.int64, device=x.device)


@computes("size_array")
def size_array(_p: Any, x: Tensor) -> Tensor:
    """The number of elements, as an array."""
    return torch.tensor([x.numel()], dtype=torch.int64, device=x.device)


@computes("_identity_with_attr_like_rhs", mixed=True)
def identity_like(_p: Any, x: Tensor, _like: Tensor) -> Tensor:
    """The first of two arrays."""
    return x


@computes("_zeros", creates=True)
def zeros(p: Any) -> Tensor:
    """All 0."""
    return torch.zeros(p.shape, dtype=type_of(p.dtype, None))


@computes("_zeros_without_dtype", creates=True)
def zeros_without_dtype(p: Any) -> Tensor:
    """All 0, as float32."""
    return torch.zeros(p.shape or (), dtype=torch.float32)


@computes("_ones", creates=True)
def ones(p: Any) -> Tensor:
    """All 1."""
    return torch.ones(p.shape, dtype=type_of(p.dtype, None))


@computes("_full", creates=True)
def full(p: Any) -> Tensor:
    """All one number."""
    wanted = type_of(p.dtype, None)
    return torch.full(p.shape or (), p.value if wanted.is_floating_point else int(p.value), dtype=wanted)


@computes("_eye", creates=True)
def eye(p: Any) -> Any:
    """1 on a diagonal."""
    columns = p.M or p.N
    rows = torch.arange(p.N).reshape(-1, 1)
    return (torch.arange(columns) - rows == p.k).to(type_of(p.dtype, None))


@computes("_arange", creates=True)
def arange(p: Any) -> Tensor:
    """Numbers with a step between them."""
    start, stop = (0.0, p.start) if p.stop is None else (p.start, p.stop)
    count = max(math.ceil((stop - start) / p.step), 0)
    line = start + p.step * torch.arange(count, dtype=torch.float64)
    return torch.repeat_interleave(line, p.repeat).to(type_of(p.dtype, None))


@computes("_linspace", creates=True)
def linspace(p: Any) -> Tensor:
    """Numbers with equal distances."""
    step = (p.stop - p.start) / max(p.num - p.endpoint, 1)
    line: Tensor = p.start + step * torch.arange(p.num, dtype=torch.float64)
    return line.to(type_of(p.dtype, None))


@computes("_contrib_arange_like")
def arange_like(p: Any, x: Tensor) -> Tensor:
    """Numbers with a step between them, as many as an array or one of its axes has."""
    count = x.numel() if p.axis is None else x.shape[p.axis]
    line = p.start + p.step * torch.arange(-(-count // p.repeat), dtype=x.dtype, device=x.device)
    line = torch.repeat_interleave(line, p.repeat)[:count]
    return line.reshape(x.shape) if p.axis is None else line


@computes("_copyto", "_CrossDeviceCopy")
def copyto(_p: Any, x: Tensor) -> Tensor:
    """A copy, into an array that is given."""
    return x.clone()


@computes("cast_storage")
def cast_storage(_p: Any, x: Tensor) -> Tensor:
    """A copy: which elements count as stored, its class knows."""
    return x.clone()
