"""Runs one planned kernel on torch tensors, its tiles in one call or shared out over several in any order."""

import ctypes
import random
from collections.abc import Callable, Sequence

import torch

from weft.codegen.llvm.module import Module
from weft.codegen.objects.native import NativeLibrary, compile_native
from weft.target import Target, host_target

LEVELS = ("native", "avx2", "generic")
DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16, "i8": torch.int8,
    "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def target_of(level: str) -> Target:
    return host_target() if level == "native" else host_target().masked(level)


def compile_kernel(emit: Callable[[Module, object], None], kernel: object, target: Target) -> NativeLibrary:
    module = Module(target)
    emit(module, kernel)
    return compile_native(str(module), target, use_cache=False)


def split(tile_count: int, parts: int) -> list[tuple[int, int]]:
    """Cut a range of tiles into parts, in an order that is not the natural one."""
    shuffled = random.Random(parts)
    cuts = sorted(shuffled.randrange(tile_count + 1) for _ in range(parts - 1))
    ranges = list(zip([0, *cuts], [*cuts, tile_count], strict=True))
    shuffled.shuffle(ranges)
    return ranges


def call_kernel(
    library: NativeLibrary, name: str, buffers: Sequence[torch.Tensor], ranges: Sequence[tuple[int, int]]
) -> None:
    """Call a kernel; a buffer is given by its storage's start, so views carry their offsets themselves."""
    kinds = [*[ctypes.c_void_p] * len(buffers), ctypes.c_int64, ctypes.c_int64]
    function = ctypes.CFUNCTYPE(None, *kinds)(library.address(name))
    addresses = [buffer.untyped_storage().data_ptr() for buffer in buffers]
    for begin, end in ranges:
        function(*addresses, begin, end)
