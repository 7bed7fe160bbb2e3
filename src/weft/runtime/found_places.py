"""Find the elements of a mask that are set, without a guess at each element whether it is."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from weft.codegen.calls.found_places import COUNT, PLACES, ROWS, found_places_module
from weft.runtime.shared_code import shared_library

MASKS = (torch.bool, torch.uint8)
WORTH = 2048  # elements: of fewer, PyTorch's has found all before this one is called
Natives = tuple[Any, Any, Any]


def nonzero(mask: torch.Tensor) -> torch.Tensor:
    """As `aten.nonzero`: a row for each element that is set, in columns."""
    rank = mask.dim()
    if (
        mask.numel() < WORTH
        or mask.dtype not in MASKS
        or rank not in (1, 2)
        or not mask.is_contiguous()
        or mask.device.type != "cpu"
    ):
        return torch.ops.aten.nonzero.default(mask)  # type: ignore[no-any-return]
    count_places, write_places, write_rows = _natives()
    # SAFETY: the mask has all elements in rows, and it lives until the end of this call.
    address, found = mask.data_ptr(), ctypes.c_int64()
    count_places(address, mask.numel(), ctypes.addressof(found))
    count = found.value
    result = torch.empty_strided((count, rank), (1, count), dtype=torch.int64)
    # SAFETY: the result has room for as many rows as were counted, and nothing behind these is written, also where
    # another thread has set more elements meanwhile.
    if rank == 1:
        write_places(address, mask.shape[0], count, result.data_ptr())
    else:
        write_rows(address, mask.shape[0], mask.shape[1], count, result.data_ptr())
    return result


@cache
def _natives() -> Natives:
    library = shared_library(found_places_module)
    number = ctypes.c_int64
    pointer = ctypes.c_void_p
    kinds = {COUNT: (pointer, number, pointer), PLACES: (pointer, number, number, pointer)}
    kinds[ROWS] = (pointer, number, number, number, pointer)
    count, places, rows = (ctypes.PYFUNCTYPE(None, *kind)(library.address(name)) for name, kind in kinds.items())
    return count, places, rows
