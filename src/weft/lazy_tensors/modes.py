"""The modes of a thread that calls of PyTorch depend on -> one number, cheap to make and to compare."""

from __future__ import annotations

import torch
from torch import get_default_dtype, is_autocast_enabled, is_grad_enabled, is_inference_mode_enabled

from weft.runtime.lazy_calls import ONE_FUNCTION_MODE, STACK_PLACE, Modes, native_modes
from weft.trace.interception.capture import traced_elsewhere
from weft.trace.interception.modes import function_mode_count, functions_are_intercepted

ONE_MODE = ONE_FUNCTION_MODE
"""What one more function mode adds to the number."""
MODE_COUNT = 0xFF * ONE_FUNCTION_MODE
"""The bits that count them."""
_TYPES: dict[torch.dtype, int] = {}


def modes_by_questions() -> int:
    """Ask PyTorch's Python interface; the numbers are others than those of the native function."""
    flags = (
        is_grad_enabled(),
        is_inference_mode_enabled(),
        traced_elsewhere(()),
        is_autocast_enabled("cpu"),
        functions_are_intercepted(),
    )
    kind = get_default_dtype()
    high = function_mode_count() << STACK_PLACE | _TYPES.setdefault(kind, len(_TYPES)) << (STACK_PLACE + 8)
    return sum(flag << place for place, flag in enumerate(flags)) | high


modes: Modes = native_modes() or modes_by_questions
