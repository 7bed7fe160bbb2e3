"""The frame that is running -> the line of the user's source that is responsible for it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import torch

from weft.ir.graph import Place

HERE = Path(__file__).resolve().parent
# Frames of PyTorch and of the layers that run user code are not the user's; models and examples of Weft are.
FOREIGN = (
    str(Path(torch.__file__).resolve().parent),
    *(str(HERE.parent / layer) for layer in ("trace", "api", "runtime", "train")),
)


def user_place() -> Place | None:
    """The innermost line of the user's code on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(FOREIGN) and not code.co_filename.startswith("<frozen"):
            return Place(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None
