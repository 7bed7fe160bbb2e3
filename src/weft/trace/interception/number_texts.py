"""Let a number that stands for others be the one of this call, where code asks for its text; a copy of it is itself.

What code does with a text nobody sees: it may be a key, a name, or decide something. So a program holds for the very
number whose text was asked for, unless it is only shown. PyTorch's tracing knows such a number by the name of its
symbol.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from weft.owners import Owner, owner_of
from weft.trace.interception.modes import answer_otherwise, number_of_call, shapes_of
from weft.trace.interception.refusals import note_raised
from weft.trace.interception.shown_texts import shown_by
from weft.trace.interception.user_lines import UnplacedShapes, is_of_library

CLASSES: Mapping[type, type] = MappingProxyType({torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool})
ASKER = 2  # frames from here to who asks


def _as_asked(number: Any) -> Any:
    """The number as it is told to who asks; itself for PyTorch's tracing, and for other tracers."""
    if not isinstance(shapes_of(number), UnplacedShapes):
        return number
    frame = sys._getframe(ASKER)
    if owner_of(frame.f_code.co_filename) is Owner.TORCH and not is_of_library(frame):
        return number
    return CLASSES[type(number)](number) if shown_by(frame) is None else number_of_call(number)


def _itself(number: Any, *_: Any) -> Any:
    """A copy of a number, which never changes."""
    return number


def _tell_texts(kind: Any) -> None:
    symbol_of: Callable[[Any], str] = kind.__repr__

    def written(self: Any) -> str:
        told = _as_asked(self)
        return symbol_of(self) if told is self else repr(told)

    def formatted(self: Any, form: str) -> str:
        told = _as_asked(self)
        return format(symbol_of(self) if told is self else told, form)

    def reduced(self: Any, protocol: Any) -> Any:
        if not isinstance(shapes_of(self), UnplacedShapes):
            return object.__reduce_ex__(self, protocol)
        told = CLASSES[kind](self)
        return type(told), (told,)

    answer_otherwise(kind, __repr__=written, __format__=formatted, __reduce_ex__=reduced)
    answer_otherwise(kind, __copy__=_itself, __deepcopy__=_itself)


def _tell_keys(kind: Any) -> None:
    digest: Callable[[Any], int] = kind.__hash__

    def digested(self: Any) -> int:
        try:
            return digest(self)
        except TypeError as error:
            if owner_of(sys._getframe(1).f_code.co_filename) is Owner.USER:
                note_raised(error)  # eager finds the number; libraries know that tracers raise it
            raise

    answer_otherwise(kind, __hash__=digested)


for _kind in CLASSES:
    _tell_texts(_kind)
_tell_keys(torch.SymInt)
