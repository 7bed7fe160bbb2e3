"""PyTorch's tensors <-> blocks of bytes, with the element types that the file format has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from weft.errors import UnsupportedError, UsageError
from weft.train.checkpoints.tensor_file import Block

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U64": torch.uint64,
    "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
CODES = {dtype: code for code, dtype in DTYPES.items()}
# Types that the format lacks -> the one whose elements it stores, two in the place of one.
PAIRS = {torch.complex128: torch.float64, torch.complex32: torch.float16}
PAIR_NAMES = {"complex128": torch.complex128, "complex32": torch.complex32}


def to_block(name: str, tensor: torch.Tensor) -> tuple[Block, str | None]:
    """Give the bytes of a tensor, and the name of its type if it is stored as pairs of another; shares its memory."""
    problem = None
    if is_lazy(tensor):
        problem = "it has no size yet: call the model once before saving it"
    elif tensor.layout is not torch.strided or tensor.is_quantized:
        problem = f"it is a {tensor.layout} tensor of {tensor.dtype}"
    elif tensor.device.type == "meta":
        problem = "it is on the device meta and has no values"
    elif type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        problem = f"it is a {type(tensor).__name__}, whose values live elsewhere"
    elif tensor.dtype not in CODES and tensor.dtype not in PAIRS:
        problem = f"the format has no elements of {tensor.dtype}"
    if problem:
        raise UnsupportedError(f"the tensor {name} cannot be stored in a checkpoint", why=problem)
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    shape, dtype, pair = tuple(plain.shape), plain.dtype, None
    if dtype in PAIRS:
        pair, shape = str(dtype).removeprefix("torch."), (*shape, 2)
        dtype = PAIRS[dtype]
    content: Any = plain.reshape(-1).view(torch.uint8).numpy()
    return Block(CODES[dtype], shape, memoryview(content)), pair


def to_blocks(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, Block], dict[str, str]]:
    """Give the blocks of named tensors, and the types of those that are stored as pairs."""
    stored = {name: to_block(name, tensor) for name, tensor in tensors.items()}
    pairs = {name: pair for name, (_, pair) in stored.items() if pair is not None}
    return {name: block for name, (block, _) in stored.items()}, pairs


def to_tensors(blocks: Mapping[str, Block], pairs: Any) -> dict[str, torch.Tensor]:
    """Make tensors of blocks, which own their memory from now on; an impossible row is a UsageError."""
    if not isinstance(pairs, dict) or not pairs.keys() <= blocks.keys():
        raise UsageError("its table of paired types is of other tensors than it has")
    return {name: _to_tensor(name, block, pairs.get(name)) for name, block in blocks.items()}


def _to_tensor(name: str, block: Block, pair: Any) -> torch.Tensor:
    dtype, shape = DTYPES[block.dtype], block.shape
    if pair is not None:
        wide = PAIR_NAMES.get(pair) if isinstance(pair, str) else None
        if wide is None or PAIRS[wide] is not dtype or shape[-1:] != (2,):
            raise UsageError(f"its tensor {name!r} cannot be of type {pair!r}")
        dtype, shape = wide, shape[:-1]
    if not block.content:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(block.content, dtype=torch.uint8).view(dtype).reshape(shape)
