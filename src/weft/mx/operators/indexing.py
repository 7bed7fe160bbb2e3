"""Compute what is found by places: take, pick, gather, scatter, masks and sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.mx.base.errors import MXNetError
from weft.mx.operators.reductions import axes_of
from weft.mx.operators.table import Shape, Sizes, computes, type_of


def places_of(index: Tensor, size: int, mode: str) -> Tensor:
    """Indices, which may be floating, brought into an axis."""
    whole = index.to(torch.int64)
    if mode == "wrap":
        return torch.remainder(whole, size)
    if mode == "raise" and whole.device.type != "meta" and bool(((whole < 0) | (whole >= size)).any()):
        raise MXNetError("take operator contains indices out of bound")
    return whole.clamp(0, size - 1)


@computes("take", mixed=True)
def take(p: Any, x: Tensor, index: Tensor) -> Tensor:
    """Slices of an axis, by their places."""
    axis = axes_of(x, p.axis)[0]
    places = places_of(index, x.shape[axis], p.mode)
    found = x.index_select(axis, places.reshape(-1))
    return found.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _embedding_sizes(p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    return [sizes[0], (p.input_dim, p.output_dim)]


@computes("Embedding", "_contrib_SparseEmbedding", mixed=True, complete=_embedding_sizes)
def embedding(p: Any, index: Tensor, weight: Tensor) -> Tensor:
    """Rows of a table."""
    is_sparse = p.sparse_grad and weight.requires_grad and weight.is_leaf  # what reads it behind may take no such one
    return functional.embedding(index.to(torch.int64).clamp(0, p.input_dim - 1), weight, sparse=is_sparse)


@computes("pick", mixed=True)
def pick(p: Any, x: Tensor, index: Tensor) -> Tensor:
    """One element of each line along an axis."""
    if p.axis is None:
        return x.reshape(-1)[places_of(index.reshape(-1), x.numel(), p.mode)]
    axis = axes_of(x, p.axis)[0]
    if index.dim() < x.dim():
        index = index.reshape(*x.shape[:axis], 1, *x.shape[axis + 1 :])
    found = x.gather(axis, places_of(index, x.shape[axis], p.mode))
    return found if p.keepdims else found.squeeze(axis) if x.dim() > 1 else found


@computes("batch_take", mixed=True)
def batch_take(_p: Any, x: Tensor, index: Tensor) -> Tensor:
    """One element of each row."""
    return x.gather(1, places_of(index, x.shape[1], "clip").reshape(-1, 1)).reshape(index.shape)


@computes("one_hot", mixed=True)
def one_hot(p: Any, index: Tensor) -> Tensor:
    """A line for each index, with one number where it points and another elsewhere."""
    hit = index.to(torch.int64).unsqueeze(-1) == torch.arange(p.depth, device=index.device)
    wanted = type_of(p.dtype, None)
    return torch.where(hit, p.on_value, p.off_value).to(wanted)


def _at(indices: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    return tuple(places_of(line, size, "wrap") for line, size in zip(indices, sizes, strict=False))


@computes("gather_nd", mixed=True)
def gather_nd(_p: Any, x: Tensor, indices: Tensor) -> Tensor:
    """Elements or slices, by columns of places."""
    return x[_at(indices, x.shape)]


@computes("scatter_nd", mixed=True)
def scatter_nd(p: Any, values: Tensor, indices: Tensor) -> Tensor:
    """0 but for values at columns of places."""
    return values.new_zeros(p.shape).index_put(_at(indices, p.shape), values)


@computes("_scatter_set_nd", mixed=True)
def scatter_set_nd(p: Any, x: Tensor, values: Tensor, indices: Tensor) -> Tensor:
    """The array with values at columns of places."""
    return x.index_put(_at(indices, p.shape), values)


@computes("_contrib_index_copy", mixed=True)
def index_copy(_p: Any, old: Tensor, index: Tensor, new: Tensor) -> Tensor:
    """The array with other rows at some places."""
    return old.index_copy(0, index.to(torch.int64), new)


@computes("_contrib_index_array")
def index_array(p: Any, x: Tensor) -> Tensor:
    """The places of all elements."""
    lines = torch.meshgrid(*[torch.arange(size, device=x.device) for size in x.shape], indexing="ij")
    return torch.stack([lines[axis] for axis in axes_of(x, p.axes)], dim=-1)


@computes("_contrib_boolean_mask", mixed=True, by_value=True)
def boolean_mask(p: Any, x: Tensor, mask: Tensor) -> Tensor:
    """The slices where a mask is not 0."""
    return x.index_select(p.axis, torch.nonzero(mask, as_tuple=True)[0])


@computes("_ravel_multi_index")
def ravel_multi_index(p: Any, x: Tensor) -> Tensor:
    """Columns of places as places in a line."""
    line = torch.zeros_like(x[0])
    x = x.detach()
    for places, size in zip(x, p.shape, strict=True):
        line = line * size + places
    return line


@computes("_unravel_index")
def unravel_index(p: Any, x: Tensor) -> Tensor:
    """Places in a line as columns of places."""
    rest, lines = x.to(torch.int64), []
    for size in reversed(p.shape):
        lines.append(torch.remainder(rest, size))
        rest = torch.div(rest, size, rounding_mode="floor")
    return torch.stack(lines[::-1]).to(x.dtype)


def _steps(x: Tensor, axis: int) -> Tensor:
    return torch.arange(x.shape[axis], device=x.device).reshape([-1, 1] if axis == 0 else [1, -1])


def _lengths(p: Any, lengths: Sequence[Tensor]) -> Tensor | None:
    return lengths[0].to(torch.int64) if p.use_sequence_length else None


def _with_lengths(p: Any) -> int:
    return 2 if p.use_sequence_length else 1


@computes("SequenceMask", mixed=True, inputs=_with_lengths)
def sequence_mask(p: Any, x: Tensor, *lengths: Tensor) -> Tensor:
    """Sequences with one number after their ends."""
    length = _lengths(p, lengths)
    if length is None:
        return x.clone()
    inside = _steps(x, p.axis) < length.unsqueeze(p.axis)
    inside = inside.reshape(*inside.shape, *[1] * (x.dim() - 2))
    return torch.where(inside, x, torch.full_like(x, p.value))


@computes("SequenceLast", mixed=True, inputs=_with_lengths)
def sequence_last(p: Any, x: Tensor, *lengths: Tensor) -> Tensor:
    """The last element of each sequence."""
    length = _lengths(p, lengths)
    if length is None:
        return x.select(p.axis, -1)
    lines = x if p.axis == 0 else x.transpose(0, 1)
    return lines[length - 1, torch.arange(lines.shape[1], device=x.device)]


@computes("SequenceReverse", mixed=True, inputs=_with_lengths)
def sequence_reverse(p: Any, x: Tensor, *lengths: Tensor) -> Tensor:
    """Sequences turned round, each up to its end."""
    length = _lengths(p, lengths)
    if length is None:
        return x.flip(0)
    steps = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    places = torch.where(steps < length, length - 1 - steps, steps)
    return x[places, torch.arange(x.shape[1], device=x.device)]


@computes("fill_element_0index")
def fill_element(_p: Any, x: Tensor, values: Tensor, places: Tensor) -> Tensor:
    """Write one element of each row."""
    return x.scatter(1, places.detach().to(torch.int64).unsqueeze(1), values.unsqueeze(1))


@computes("_onehot_encode")
def onehot_encode(_p: Any, places: Tensor, like: Tensor) -> Tensor:
    """A 1 in each row of an array, at the place that is given for it."""
    return torch.zeros_like(like).scatter(1, places.detach().to(torch.int64).unsqueeze(1), 1.0)


@computes("_histogram", outputs=2, inputs=lambda p: 1 if p.bin_cnt is not None else 2)
def histogram(p: Any, x: Tensor, *bounds: Tensor) -> tuple[Tensor, Tensor]:
    """How many elements lie between bounds, and the bounds."""
    x = x.detach().reshape(-1)
    if p.bin_cnt is None:
        edges = bounds[0].detach()
    else:
        edges = torch.linspace(p.range[0], p.range[1], p.bin_cnt + 1, dtype=x.dtype, device=x.device)
    count = edges.shape[0] - 1
    place = torch.searchsorted(edges, x, right=True) - 1
    place = torch.where(x == edges[-1], count - 1, place)  # the last bound belongs to the last part
    inside = (place >= 0) & (place < count)
    counts = torch.zeros(count, dtype=torch.int64, device=x.device)
    return counts.index_add(0, place.clamp(0, count - 1), inside.to(torch.int64)), edges.clone()


@computes("_contrib_count_sketch")
def count_sketch(p: Any, x: Tensor, places: Tensor, signs: Tensor) -> Tensor:
    """Sums of columns, with signs, into fewer ones."""
    found = x.new_zeros(x.shape[0], p.out_dim)
    return found.index_add(1, places.detach().reshape(-1).to(torch.int64), x * signs.detach().reshape(1, -1))
