"""Store tensors in one safetensors block, with a JSON row a tensor that says how it lies in memory.

A tensor that has its memory for itself, without gaps, is stored row by row under its own name, so that other tools read
it. Any other one is a view of memory that is stored as a list of elements: tensors that share memory share it again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from weft.errors import UnsupportedError, UsageError
from weft.ir.types import DTYPE_NAMES, TensorType, row_major, type_of

# Types that safetensors does not have -> the one whose elements it stores, several in the place of one.
STORED_AS = {torch.complex128: torch.float64, torch.complex32: torch.float16}
MEMORY = "#memory."  # begins the names of entries that several tensors share; no attribute in Python has such a name
DEVICES = ("cpu", "cuda")
LARGEST_COUNT = 2**56
MOST_DIMENSIONS = 64  # PyTorch's own limit


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A row: the entry of the block that holds the elements; for a view of an entry, where in it the view starts."""

    entry: str
    offset: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Give the row as JSON data."""
        return {"entry": self.entry} if self.offset is None else {"entry": self.entry, "offset": self.offset}


def store_tensors(tensors: Mapping[str, torch.Tensor], *, exact: bool) -> tuple[list[StoredTensor], bytes]:
    """Store named tensors; gives a row for each in order, and the block.

    With `exact`, offsets into memory and memory around what is visible are kept: a program that writes may reach it.
    """
    block: dict[str, torch.Tensor] = {}
    rows: list[StoredTensor] = []
    groups: dict[int, list[torch.Tensor]] = {}
    for name, tensor in tensors.items():
        _check_storable(name, tensor)
        groups.setdefault(_memory(tensor), []).append(tensor)
    memories: dict[tuple[int, torch.dtype], StoredTensor] = {}
    for name, tensor in tensors.items():
        group = groups[_memory(tensor)]
        if len(group) == 1 and is_dense(type_of(tensor)) and not (exact and tensor.storage_offset()):
            block[name] = _plain(tensor)
            rows.append(StoredTensor(name))
            continue
        key = (_memory(tensor), tensor.dtype)
        if key not in memories:
            if len({member.dtype for member in group}) > 1:
                raise UnsupportedError(
                    f"{name} shares memory with a tensor of another element type",
                    why="a program file keeps memory as elements of one type",
                    fix="give one of them memory of its own: tensor.clone()",
                )
            start, end = (0, tensor.untyped_storage().nbytes() // tensor.element_size()) if exact else _reach(group)
            memories[key] = StoredTensor(f"{MEMORY}{len(memories)}", start)
            block[memories[key].entry] = _elements(tensor, start, end)
        memory = memories[key]
        rows.append(StoredTensor(memory.entry, int(tensor.storage_offset()) - (memory.offset or 0)))
    return rows, save_safetensors({name: _as_stored(tensor) for name, tensor in block.items()})


def _check_storable(name: str, tensor: torch.Tensor) -> None:
    problem = None
    if name.startswith(MEMORY):
        problem = "its name is one that the file itself gives"
    elif tensor.device.type not in DEVICES:
        problem = f"it is on the device {tensor.device}"
    elif tensor.layout is not torch.strided or tensor.dtype not in DTYPE_NAMES:
        problem = f"it is a {tensor.layout} tensor of {tensor.dtype}"
    elif tensor.is_conj() or tensor.is_neg():
        problem = "it is a lazy conjugate or negative of another tensor"
    if problem:
        raise UnsupportedError(f"the tensor {name} cannot be stored in a program file", why=problem)


def _memory(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address or id(tensor)  # tensors without elements have no memory to share


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous()


def _elements(tensor: torch.Tensor, start: int, end: int) -> torch.Tensor:
    return tensor.detach().as_strided((end - start,), (1,), start).cpu().contiguous()


def _reach(group: Sequence[torch.Tensor]) -> tuple[int, int]:
    """The first element in memory that any of these tensors sees, and the one after the last."""
    starts = [int(tensor.storage_offset()) for tensor in group]
    return min(starts), max(start + reach(type_of(tensor)) for start, tensor in zip(starts, group, strict=True))


def reach(kind: TensorType) -> int:
    """How many elements lie from the first to the last that a tensor sees, both included."""
    if 0 in kind.shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(kind.shape, kind.strides, strict=True))


def is_dense(kind: TensorType) -> bool:
    """Whether every place that a tensor reaches holds exactly one of its elements."""
    expected = 1
    for stride, extent in sorted(zip(kind.strides, kind.shape, strict=True)):
        if extent != 1:
            if stride != expected:
                return 0 in kind.shape
            expected *= extent
    return True


def _as_stored(tensor: torch.Tensor) -> torch.Tensor:
    stored = STORED_AS.get(tensor.dtype)
    return tensor if stored is None else tensor.reshape(-1).view(stored)


class TensorBlock:
    """The tensors of a file: sizes are compared before anything is made of them."""

    def __init__(self, content: bytes) -> None:
        try:
            # A copy: what comes out refers to the block's own bytes, never to a file that may change.
            self._entries = load_safetensors(content)
        except (SafetensorError, KeyError, ValueError, RuntimeError, TypeError, AssertionError, OverflowError) as error:
            raise UsageError("its tensors are damaged", why=str(error)) from error
        self._memories: dict[str, torch.Tensor] = {}
        self._taken: set[str] = set()

    def tensor(self, row: StoredTensor, kind: TensorType) -> torch.Tensor:
        """Make the tensor of a row, which must be of this type."""
        if row.entry not in self._entries and row.entry not in self._memories:
            raise UsageError(f"there is no tensor {row.entry} in it")
        needed = kind.size if row.offset is None else row.offset + reach(kind)
        # PyTorch counts elements and bytes in 64 bits, also those of tensors in which one size is 0.
        counted = math.prod(max(extent, 1) for extent in kind.shape)
        if needed < 0 or max((counted, *kind.strides)) >= LARGEST_COUNT or kind.rank > MOST_DIMENSIONS:
            raise UsageError(f"its tensor {row.entry} would have impossible sizes: {kind}")
        memory = self._memory(row.entry, kind)
        if row.offset is not None:
            if needed > memory.numel():
                raise UsageError(f"its tensor {row.entry} has {memory.numel()} elements; {needed} are needed")
            return memory.as_strided(kind.shape, kind.strides, row.offset)
        if memory.numel() != needed or not is_dense(kind) or row.entry in self._taken:
            raise UsageError(f"its tensor {row.entry} has {memory.numel()} elements, which do not make a {kind}")
        self._taken.add(row.entry)
        if kind.strides == row_major(kind.shape):
            # Not a view: memory with one owner changes only where PyTorch counts it, so weights need not be compared.
            alone = torch.empty(0, dtype=kind.dtype, device=kind.device)
            return alone.set_(memory.untyped_storage(), 0, kind.shape, kind.strides)
        return torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype, device=kind.device).copy_(
            memory.reshape(kind.shape)
        )

    def _memory(self, entry: str, kind: TensorType) -> torch.Tensor:
        """The elements of an entry as a list, on the device asked for."""
        if entry not in self._memories:
            found = self._entries.pop(entry).reshape(-1)  # its bytes go as soon as they are copied
            stored = STORED_AS.get(kind.dtype, kind.dtype)
            if found.dtype is not stored or found.numel() * found.element_size() % kind.dtype.itemsize:
                raise UsageError(f"its tensor {entry} is {found.dtype}; {kind} is needed")
            if kind.dtype is torch.bool and bool((found.view(torch.uint8) > 1).any()):
                raise UsageError(f"its tensor {entry} has elements that are neither true nor false")
            self._memories[entry] = _on_device(found.view(kind.dtype), kind.device)
        memory = self._memories[entry]
        if (memory.dtype, memory.device) != (kind.dtype, kind.device):
            raise UsageError(f"its tensor {entry} is {memory.dtype} on {memory.device}; {kind} is needed")
        return memory


def _on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device.type not in DEVICES:
        raise UsageError(f"a tensor in it is on the device {device}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"it was made for {device}, which this machine does not have",
            why=f"PyTorch sees {torch.cuda.device_count()} CUDA devices",
            fix="load it where such a device is, or save the program from a module on the CPU",
        )
    # A copy even on the CPU: PyTorch's own memory is aligned for vectors, bytes of a file are not.
    return tensor.to(device, copy=True)
