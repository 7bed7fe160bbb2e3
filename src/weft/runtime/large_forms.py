"""Say how tensors of a call's sizes lie in memory for the largest ones, and by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.ir.at_sizes import dense_order, has_extents
from weft.ir.extents import Extent, Polynomial, today
from weft.ir.graph import Value
from weft.ir.size_arithmetic import SizeArithmetic, row_of
from weft.ir.types import TensorType, row_major
from weft.passes.within import Within, expression_of
from weft.runtime.moves import Step, extent_bytes
from weft.runtime.new_tensors import OutputType

ONE = Polynomial.constant(1)
MOST_BUFFERS = 4  # that wait for the next call; as many calls at once take no new memory
Taker = tuple[tuple[int, ...], tuple[int, ...], Any]  # the shape, the strides, and what takes a part


@dataclass(frozen=True, slots=True)
class SizeStep:
    """A dimension: how often, bytes from one to the next in larger memory, and in the tensor."""

    count: Polynomial
    large: int
    own: Polynomial

    def at(self, numbers: dict[Value, int]) -> Step:
        """The same for a call's sizes."""
        return value_of(self.count, numbers), self.large, value_of(self.own, numbers)


def lie_there(steps: Sequence[SizeStep]) -> bool:
    """Whether a tensor of any size lies as it would in larger memory."""
    return all(step.count == ONE or step.own.number == step.large for step in steps)


class VaryingInput:
    """An input of which some sizes vary: memory for its largest ones, taken by a call and given back."""

    def __init__(self, index: int, kind: TensorType, within: Within | None = None) -> None:
        """`within` says where its elements belong, where they are no prefix of each dimension."""
        self.index = index
        self.part = None if within is None else ResultPart(kind, within)
        self._kind = TensorType(kind.dtype, tuple(map(today, kind.shape)), tuple(map(today, kind.strides)), kind.device)
        self._free: list[torch.Tensor] = []
        self._sizes = tuple(map(expression_of, kind.shape))
        self._order = _order(kind)
        self.item = kind.dtype.itemsize
        self.is_float = kind.dtype.is_floating_point
        self.bytes = extent_bytes(self.largest)
        self.is_dense = False  # whether code finds it without gaps, at the beginning of the memory
        self.is_cut = False  # whether what reads it takes the tensor itself, and no larger memory is needed
        self.is_native = False  # the same where it lies as is expected

    @property
    def own_strides(self) -> tuple[Polynomial, ...]:
        """How far its elements are apart at any sizes."""
        if self.part is not None:
            return self.part.own_strides
        return tuple(_dense(self._sizes, self._order, 1))

    @property
    def largest(self) -> OutputType:
        """How the memory for the largest sizes looks."""
        return OutputType(self._kind.shape, self._kind.strides, self._kind.dtype)

    def steps(self) -> list[SizeStep]:
        """How a tensor lies in the larger memory, and by itself, the outermost dimension first."""
        if self.part is not None:
            return self.part.steps(self.largest)
        own = _dense(self._sizes, self._order, self.item)
        return [SizeStep(self._sizes[at], self._kind.strides[at] * self.item, own[at]) for at in self._order]

    def needs_none(self, tensor: torch.Tensor, taker: Taker | None) -> bool:
        """Whether what reads it takes a tensor itself."""
        return self.is_cut or (self.is_native and self._lies(tensor, taker))

    def take(self, tensor: torch.Tensor, taker: Taker | None) -> torch.Tensor:
        """Put a tensor at the beginning of memory that nobody else uses; what is behind it is anything finite."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = _zeros(self._kind)
        self.put(memory, tensor, taker)
        return memory

    def _lies(self, tensor: torch.Tensor, taker: Taker | None) -> bool:
        """Whether a tensor lies without gaps in the order that code expects."""
        strides = _dense_strides(tensor.shape, self._order) if taker is None else taker[1]
        return all(
            one == other or size == 1 for one, other, size in zip(tensor.stride(), strides, tensor.shape, strict=True)
        )

    def put(self, memory: torch.Tensor, tensor: torch.Tensor, taker: Taker | None) -> None:
        """Put a tensor where it belongs in its largest form."""
        if self.is_dense:
            strides = _dense_strides(tensor.shape, self._order) if taker is None else taker[1]
            memory.as_strided(tensor.shape, strides).copy_(tensor)
            return
        part = memory if taker is None else _part_of(memory, taker)
        if taker is not None:
            tensor = tensor.reshape(part.shape)
        for dimension, size in enumerate(tensor.shape):
            if size != part.shape[dimension]:
                part = part.narrow(dimension, 0, size)
        part.copy_(tensor)

    def give_back(self, memory: torch.Tensor, tensor: torch.Tensor) -> None:
        """Let another call have the memory that a tensor was put into."""
        del tensor
        if len(self._free) < MOST_BUFFERS:
            self._free.append(memory)


class GrowingInput(VaryingInput):
    """An input that a program writes something behind, in memory with zeros behind what there is."""

    def __init__(self, index: int, kind: TensorType, along: int, grown: TensorType) -> None:
        super().__init__(index, grown)
        self._along = along
        self._more = today(grown.shape[along]) - today(kind.shape[along])
        self._used: list[tuple[torch.Tensor, int]] = []  # and how much of it is not zero

    def needs_none(self, tensor: torch.Tensor, taker: Taker | None) -> bool:
        """Never: there is to be room behind it."""
        del tensor, taker
        return False

    def take(self, tensor: torch.Tensor, taker: Taker | None) -> torch.Tensor:
        """Put a tensor at the beginning of memory that nobody else uses."""
        del taker
        try:
            memory, used = self._used.pop()
        except IndexError:
            memory, used = _zeros(self._kind), 0
        size = tensor.shape[self._along]
        memory.narrow(self._along, 0, size).copy_(tensor)
        if used > size:
            memory.narrow(self._along, size, used - size).zero_()
        return memory

    def give_back(self, memory: torch.Tensor, tensor: torch.Tensor) -> None:
        """Let another call have the memory that a tensor was put into."""
        if len(self._used) < MOST_BUFFERS:
            self._used.append((memory, tensor.shape[self._along] + self._more))


def _zeros(kind: TensorType) -> torch.Tensor:
    with torch.inference_mode(False):  # whoever takes it next may write into it in any mode
        return torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype, device=kind.device).zero_()


class ResultPart:
    """How one result lies in its largest form."""

    def __init__(self, kind: TensorType, within: Within, *, is_fixed: bool = False) -> None:
        """Its strides are the same at any size, where that `is_fixed`."""
        self._sizes = tuple(map(expression_of, kind.shape))
        self._order = tuple(_order(kind))
        has_own = has_extents(kind.strides) or not _is_dense(kind, is_fixed=is_fixed)
        self._strides = tuple(map(expression_of, kind.strides)) if has_own else None
        self._row_major = tuple(map(today, kind.strides)) == row_major(tuple(map(today, kind.shape)))
        self._within = tuple(
            factors if any(factor.size is not None for factor in factors) else _single(size)
            for factors, size in zip(within, kind.shape, strict=True)
        )
        varying = [place for place, size in enumerate(kind.shape) if isinstance(size, Extent)]
        self._is_merged = any(
            len(within[place]) > 1 and any(factor.size is not None for factor in within[place]) for place in varying
        )

    @property
    def own_strides(self) -> tuple[Polynomial, ...]:
        """How far its elements are apart at any sizes."""
        if self._strides is not None:
            return self._strides
        return tuple(_dense(self._sizes, self._own_order, 1))

    @property
    def _own_order(self) -> Sequence[int]:
        return range(len(self._sizes)) if self._row_major else self._order

    def taker(self, written: SizeArithmetic) -> str:
        """The text of a taker: the shape, the strides, and what takes the part from the largest form."""
        shape, strides = self.form(written)
        if not self._is_merged:
            return row_of((row_of(shape), row_of(strides), row_of([written.called(slice, size) for size in shape])))
        factors = [factor for factors in self._within for factor in factors]
        sizes = (str(one.largest) if one.size is None else written.size(one.size) for one in factors)
        parts = row_of([written.called(slice, size) for size in sizes])
        return row_of((row_of(shape), row_of(strides), row_of((row_of([str(one.largest) for one in factors]), parts))))

    def form(self, written: SizeArithmetic) -> tuple[list[str], list[str]]:
        """The texts of the sizes and the strides that it has by itself."""
        shape = [written.size(size) for size in self._sizes]
        if self._strides is not None:
            return shape, [written.size(stride) for stride in self._strides]
        strides, step = ["1"] * len(shape), "1"
        # As PyTorch counts, a dimension of no elements takes as much room as one of one.
        for place in reversed(self._own_order):
            strides[place] = step
            size = f"({shape[place]} or 1)"
            step = written.kept(size if step == "1" else f"{step} * {size}")
        return shape, strides

    def steps(self, kind: OutputType) -> list[SizeStep]:
        """How the part lies in the largest form, and by itself, the outermost factor of a dimension first."""
        item, found, order = kind.dtype.itemsize, [], self._own_order
        if self._strides is None:
            strides = _dense(self._sizes, order, item)
        else:
            strides = [stride.times(Polynomial.constant(item)) for stride in self._strides]
        for place in reversed(order):
            large, own = kind.strides[place] * item, strides[place]
            for factor in reversed(self._within[place]):
                count = Polynomial.constant(factor.largest) if factor.size is None else factor.size
                found.append(SizeStep(count, large, own))
                large, own = large * factor.largest, own.times(count)
            if not self._within[place]:
                found.append(SizeStep(self._sizes[place], large, own))
        return found[::-1]


def has_known_strides(kind: Any, *, is_fixed: bool) -> bool:
    """Whether it is known how a result of any size lies in memory, each element at a place of its own or all at one.

    Its strides are made of sizes, or follow from those of the largest: there are no gaps, in some order of dimensions,
    or gaps alone that do not vary. Or they do not vary themselves, which `is_fixed` says.
    """
    if not varies(kind) or _is_dense(kind, is_fixed=is_fixed):
        return True
    order = _order(kind)
    inside = [size for place, size in enumerate(kind.shape) if place != order[0] and kind.strides[place]]
    is_known = has_extents(kind.strides) or is_fixed or not has_extents(tuple(inside))
    return is_known and not _overlaps(kind, order)


def _is_dense(kind: TensorType, *, is_fixed: bool) -> bool:
    """Whether a tensor of any size has no gaps, in some order of dimensions.

    Where one inside of another varies and no stride does, it is a part of something, though the largest fills that.
    """
    order = dense_order(kind)
    return bool(order) and not (is_fixed and has_extents(tuple(kind.shape[place] for place in order[1:])))


def _overlaps(kind: TensorType, order: Sequence[int]) -> bool:
    """Whether elements at several places are one, where they are not the same along all of a dimension."""
    end = 0
    for place in reversed(order):
        size, step = today(kind.shape[place]), today(kind.strides[place])
        if size > 1 and step:
            if step <= end:
                return True
            end += (size - 1) * step
    return False


def _order(kind: TensorType) -> list[int]:
    """The dimensions, the outermost in memory first."""
    return sorted(range(kind.rank), key=lambda place: (-today(kind.strides[place]), -today(kind.shape[place])))


def _dense(sizes: Sequence[Polynomial], order: Sequence[int], item: int) -> list[Polynomial]:
    """The bytes between elements without gaps, the dimensions given from the outermost in memory on."""
    step = Polynomial.constant(item)
    found = [step] * len(sizes)
    for place in reversed(order):
        found[place], step = step, step.times(sizes[place])
    return found


def _dense_strides(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    """The same in elements, for one size of each dimension."""
    step, found = 1, [1] * len(shape)
    for place in reversed(order):
        found[place], step = step, step * shape[place]
    return found


def _single(size: int) -> tuple[Any, ...]:
    return (_Part(today(size), size.expression if isinstance(size, Extent) else None),)


@dataclass(frozen=True, slots=True)
class _Part:
    largest: int
    size: Polynomial | None


def value_of(size: Polynomial, numbers: dict[Value, int]) -> int:
    """A size for a call's sizes."""
    return int(size.value(numbers.__getitem__))


def varies(kind: Any) -> bool:
    """Whether a value is a tensor of which some size varies."""
    return isinstance(kind, TensorType) and has_extents(kind)


def taken(output: torch.Tensor, taker: Taker | None, *, is_dense: bool = False) -> torch.Tensor:
    """The part of the largest form that counts, in memory of its own; or all of it, where it does not vary.

    What `is_dense` lies at the beginning of the largest form's memory as it does by itself.
    """
    if taker is None:
        return output
    shape, strides, _ = taker
    output = output.as_strided(shape, strides) if is_dense else _part_of(output, taker).reshape(shape)
    found = part = torch.empty_strided(shape, strides, dtype=output.dtype, device=output.device)
    for place, (size, step) in enumerate(zip(shape, strides, strict=True)):
        if step == 0 and size > 1:  # the same number at all places, which is written once
            part, output = part.narrow(place, 0, 1), output.narrow(place, 0, 1)
    part.copy_(output)
    return found


def _part_of(whole: torch.Tensor, taker: Taker) -> torch.Tensor:
    """The part of the largest form that counts, its dimensions taken apart where they are merged ones."""
    parts = taker[2]
    if parts and not isinstance(parts[0], slice):
        factors, parts = parts
        whole = whole.view(factors)
    return whole[parts]
