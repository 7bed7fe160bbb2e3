"""Find the line of the user's source that is responsible: on the stack, of an exception, of a guard on numbers."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch.fx.experimental.symbolic_shapes import FloorDiv, ShapeEnv  # type: ignore[attr-defined]

from weft.ir.graph import Place
from weft.owners import TORCH, WEFT, Owner, owner_of
from weft.trace.interception.size_expressions import of_quotients

# Weft's layers that run user code are not the user's; its models and examples are, and so are installed ones.
API = tuple(f"{folder}{layer}/" for folder in WEFT for layer in ("api", "lazy_tensors", "programs"))
LAYERS = ("trace", "compile", "programs", "lazy_tensors", "api", "runtime", "train")
OURS = tuple(f"{folder}{part}" for folder in WEFT for part in (*(f"{layer}/" for layer in LAYERS), "tracebacks.py"))
# PyTorch's own models, losses and distributions, which may branch on values; what calls modules is not meant.
DISTRIBUTIONS = tuple(f"{folder}distributions/" for folder in TORCH)
LIBRARY = (*(f"{folder}{name}/" for folder in TORCH for name in ("nn", "ao")), *DISTRIBUTIONS)
MACHINERY = tuple(f"{folder}nn/modules/module.py" for folder in TORCH)


def user_place() -> Place | None:
    """The innermost line of the user's code on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_of_user(frame):
            return _place(frame, frame.f_lineno)
        frame = frame.f_back
    return None


def user_stack_level() -> int:
    """The stack level at which a function that warns names the user's line: 1 is that function itself."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_back is not None and not is_of_user(frame):
        frame, level = frame.f_back, level + 1
    return level


def library_place() -> Place | None:
    """The innermost line of torch.nn, torch.ao or torch.distributions that the traced code is in, if it is in any."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_of_user(frame) and not frame.f_code.co_filename.startswith(API):
        if is_of_library(frame):
            return _place(frame, frame.f_lineno)
        frame = frame.f_back
    return None


def place_of(error: BaseException) -> Place | None:
    """The innermost line of the user's code that an exception went through."""
    trace, found = error.__traceback__, None
    while trace is not None:
        if is_of_user(trace.tb_frame):
            found = _place(trace.tb_frame, trace.tb_lineno)
        trace = trace.tb_next
    return found


def is_raised_by_weft(error: BaseException) -> bool:
    """Whether the innermost line that an exception went through is Weft's own."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and owner_of(trace.tb_frame.f_code.co_filename) is Owner.WEFT


def is_of_library(frame: FrameType) -> bool:
    """Whether a frame runs code of torch.nn, torch.ao or torch.distributions, and does not only call modules."""
    filename = frame.f_code.co_filename
    return filename.startswith(LIBRARY) and filename not in MACHINERY


def is_of_user(frame: FrameType) -> bool:
    """Whether a frame runs code of the user's."""
    filename = frame.f_code.co_filename
    owner = owner_of(filename)
    return owner in (Owner.USER, Owner.INSTALLED) or (owner is Owner.WEFT and not filename.startswith(OURS))


def _place(frame: FrameType, line: int) -> Place:
    return Place(frame.f_code.co_filename, line, frame.f_code.co_name)


class PlacedGuards(list[Any]):
    """The guards of PyTorch's `ShapeEnv`, with a place each."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Place | None] = []

    def append(self, guard: Any) -> None:
        """Add a guard, made by the code that runs now."""
        self.places.append(user_place())
        super().append(guard)

    def placed(self) -> list[tuple[Any, Place | None]]:
        """What must hold, as expressions, and where it was decided."""
        return [(guard.expr, place) for guard, place in zip(self, self.places, strict=True)]

    def hold_for_none(self) -> bool:
        """Whether one is false, as PyTorch takes an answer of this call's numbers for impossible."""
        return any(not guard.expr.free_symbols and not bool(guard.expr) for guard in self)

    def tie_fraction(self, symbol: Any) -> bool:
        """Whether a fraction must be one number: PyTorch solves what must be equal for whole numbers alone."""
        return not symbol.is_integer and any(
            guard.expr.is_Equality and guard.expr.free_symbols == {symbol} and guard.expr.lhs.is_polynomial(symbol)
            for guard in self
        )


class UnplacedShapes(ShapeEnv):
    """PyTorch's `ShapeEnv` without a search of its own for the line that asks: the search imports its exporter.

    Its sizes are written as quotients. `not_zero` says of what code has divided by that it is not.
    """

    not_zero: list[Any]

    def replace(self, expr: Any) -> Any:  # type: ignore[override] # PyTorch's remembers what it gave
        """An expression with what symbols have turned out to be."""
        return of_quotients(super().replace(expr), FloorDiv)

    def _get_stack_summary(self, is_debug: bool = False, framework_loc: str | None = None) -> tuple[Any, str]:
        return super()._get_stack_summary(is_debug, framework_loc or "a traced program")
