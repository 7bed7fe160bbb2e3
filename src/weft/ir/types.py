"""Define the types of values: a tensor, a number, or several results together.

Strides and device belong to a tensor's type: a Graph must give back what eager PyTorch gives, layout included. A stage
that chooses its own inner layout is free to, as long as results and library calls see the strides written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from weft.errors import UsageError

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.bool: "bool",
    torch.complex32: "c32",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.float8_e4m3fn: "f8e4m3fn",
    torch.float8_e4m3fnuz: "f8e4m3fnuz",
    torch.float8_e5m2: "f8e5m2",
    torch.float8_e5m2fnuz: "f8e5m2fnuz",
}
DTYPES_BY_NAME: dict[str, torch.dtype] = {name: dtype for dtype, name in DTYPE_NAMES.items()}
NUMBER_KINDS: dict[str, type] = {"int": int, "float": float, "bool": bool, "complex": complex}
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor: element type, sizes, strides in elements, device."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: torch.device = CPU

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        return self.size <= 1 or all(
            extent == 1 or stride == expected
            for extent, stride, expected in zip(self.shape, self.strides, row_major(self.shape), strict=True)
        )

    def __str__(self) -> str:
        text = f"{DTYPE_NAMES[self.dtype]}[{','.join(map(str, self.shape))}]"
        if self.strides != row_major(self.shape):
            text += f"{{{','.join(map(str, self.strides))}}}"
        return text if self.device == CPU else f"{text}@{self.device}"


@dataclass(frozen=True, slots=True)
class UnsizedType:
    """A dense tensor whose sizes only a run knows: it can be handed out, or to PyTorch's operators."""

    dtype: torch.dtype
    device: torch.device = CPU

    def __str__(self) -> str:
        text = f"{DTYPE_NAMES[self.dtype]}[?]"
        return text if self.device == CPU else f"{text}@{self.device}"


@dataclass(frozen=True, slots=True)
class NumberType:
    """A Python number that may change from call to call."""

    kind: str

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class TupleType:
    """Several results of one operator; `item` picks one."""

    items: tuple[Type, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


@dataclass(frozen=True, slots=True)
class NothingType:
    """The result of an operator run for its effect alone, or an absent (None) entry of a tuple."""

    def __str__(self) -> str:
        return "nothing"


Type = TensorType | UnsizedType | NumberType | TupleType | NothingType
NOTHING = NothingType()


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor, as PyTorch counts them (an empty dimension counts as one)."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def strides_in(shape: tuple[int, ...], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor without gaps whose dimensions lie in this order, the outermost first."""
    strides, step = [0] * len(shape), 1
    for place in reversed(order):
        strides[place] = step
        step *= max(shape[place], 1)
    return tuple(strides)


def order_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The order of the dimensions of a tensor without gaps, the outermost first; that of rows, where it lies so."""
    rows = tuple(range(len(shape)))
    if strides == row_major(shape):
        return rows
    found = tuple(sorted(rows, key=lambda place: (-strides[place], -shape[place])))
    return found if strides == strides_in(shape, found) else None


def contiguous(dtype: torch.dtype, shape: tuple[int, ...], device: torch.device = CPU) -> TensorType:
    """The type of a row-major tensor."""
    return TensorType(dtype, shape, row_major(shape), device)


def type_of(tensor: torch.Tensor) -> TensorType:
    """The type of a torch tensor (real or fake)."""
    if tensor.layout is not torch.strided:
        fix = "use strided tensors, or keep this part eager"
        raise UsageError(f"a {tensor.layout} tensor has no Graph type", fix=fix)
    if tensor.dtype not in DTYPE_NAMES:
        fix = "use one of: " + ", ".join(DTYPES_BY_NAME)
        raise UsageError(f"tensors of {tensor.dtype} have no Graph type", fix=fix)
    return TensorType(tensor.dtype, tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())), tensor.device)
