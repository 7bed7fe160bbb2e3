"""`module.to(...)` inside of traced code -> nothing, where all that the module has is there already.

Models move a part of themselves to the type of their input at each call. PyTorch then converts every parameter, puts
the result in its place, and does the same with its gradient: of parameters that stay, neither is a change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from weft.trace.forbidden import puts_data
from weft.trace.interception.capture import is_stand_in, outside_tracing
from weft.trace.interception.places import MACHINERY, user_place
from weft.trace.interception.refusals import refuse

CONVERSIONS = frozenset({Tensor.to, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.cpu})
GRADIENT = Tensor.grad.__get__  # type: ignore[union-attr]
ASKED = CONVERSIONS | {GRADIENT}


def stays(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What to call in the place of a step of a module's conversion that changes nothing; None if it is no such."""
    is_placed = puts_data(function)
    if not (is_placed or function in ASKED) or is_stand_in(arguments[0]) or not _converts_a_module():
        return None
    tensor = arguments[0]
    if function == GRADIENT:
        return lambda *_: None  # where the parameter was converted, it has been refused before
    if is_placed:
        return (lambda *_: None) if arguments[1] is tensor else None
    with outside_tracing():
        found = function(*arguments, **keywords)
    if found is not tensor and isinstance(tensor, Parameter):
        refuse("memory replaced", user_place())
    return (lambda *_, **__: tensor) if found is tensor else None


def _converts_a_module() -> bool:
    """Whether a module converts its parameters and buffers now."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename in MACHINERY:
            return frame.f_code.co_name in ("_apply", "convert", "<lambda>")
        frame = frame.f_back
    return False
