"""Refuse, replace or leave out functions of PyTorch's Python interface that a trace cannot simply run.

Some leave the world of tensors. Some look at data only of real tensors: under a tracer `one_hot` leaves out its check
of classes, and gives a row of zeros for one that does not exist. And models move a part of themselves to the type of
their input at each call (`module.to(...)`): PyTorch then converts every parameter, puts the result in its place, and
does the same with its gradient; of parameters that stay, neither is a change.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from weft.owners import Owner, owner_of
from weft.trace.interception.capture import (
    OWN_ATTRIBUTES,
    STAND_IN_ATTRIBUTES,
    ArgumentStandIn,
    ResultStandIn,
    is_listing,
    is_plain_stand_in,
    is_stand_in,
    is_usual_stand_in,
    outside_tracing,
)
from weft.trace.interception.handlers import RAISES, SWALLOWS, handling, may_raise
from weft.trace.interception.printed import Printed
from weft.trace.interception.refusals import refuse
from weft.trace.interception.shown_texts import LOG, shown_by
from weft.trace.interception.user_lines import MACHINERY, is_of_user, user_place

FORBIDDEN: Mapping[Callable[..., Any], str] = MappingProxyType(
    {
        torch.Tensor.__bool__: "branch",
        torch.Tensor.item: "number",
        torch.Tensor.__int__: "number",
        torch.Tensor.__float__: "number",
        torch.Tensor.__complex__: "number",
        torch.Tensor.__index__: "number",
        torch.Tensor.tolist: "list",
        torch.Tensor.__format__: "text",
        torch.Tensor.__repr__: "text",
        torch.Tensor.numpy: "numpy",
        torch.Tensor.__array__: "numpy",
        torch.Tensor.data_ptr: "address",
        torch.Tensor.backward: "backward inside",
        torch.Tensor.grad.__get__: "gradient read",  # type: ignore[union-attr]
        torch.Tensor.grad.__set__: "gradient put",  # type: ignore[union-attr]
        torch.Tensor.grad.__delete__: "gradient put",  # type: ignore[union-attr]
        torch.Tensor.retain_grad: "gradient kept",
        torch.Tensor.set_: "memory replaced",
        torch.Tensor.share_memory_: "address",
        torch.Tensor.__dlpack__: "numpy",
        torch.Tensor.__reduce_ex__: "saved",
    }
)


PRINTS = Printed.note.__code__
MADE_BY = (Owner.WEFT, Owner.TORCH)  # what writes texts of tensors
COPY = copy.copy.__code__  # it takes a tensor apart
MAKE_PARAMETER = Parameter.__new__.__code__  # before anybody puts something else there


def kind_of_refusal(function: Callable[..., Any], arguments: Any = ()) -> str | None:
    """The refusal that a function gets, if any; also when somebody has wrapped it since this file was read."""
    kind = FORBIDDEN.get(getattr(function, "__wrapped__", function))
    if kind == "number" and is_listing():
        return "list"
    if kind == "saved" and _is_called_by(COPY):
        return None
    if function is Tensor.detach and type(arguments[0]) is ArgumentStandIn and _is_called_by(MAKE_PARAMETER):
        return "made subclass"
    if kind is None and may_raise(function, arguments) and handling() == SWALLOWS:
        return "caught"
    if kind == "text" and _is_only_shown():
        return None  # a stand-in shows its type and sizes
    return kind


def raises_otherwise(function: Callable[..., Any], arguments: Any) -> bool:
    """Whether a function of PyTorch that may raise is called where the code raises something else then."""
    return may_raise(function, arguments) and handling() == RAISES


def _as_subclass(tensor: Tensor, kind: type[Tensor]) -> Tensor:
    if kind is not Tensor:
        refuse("made subclass", user_place())
    return Tensor.as_subclass(tensor, kind)


for _stand_in in (ArgumentStandIn, ResultStandIn):  # no mode is asked
    _stand_in.as_subclass = _as_subclass  # type: ignore[assignment,method-assign]


def _is_called_by(code: CodeType) -> bool:
    """Whether it is this code of Python's or PyTorch's, or what it calls, that asks."""
    frame = sys._getframe(2)
    while frame.f_back is not None and not is_of_user(frame) and frame.f_code is not code:
        frame = frame.f_back
    return frame.f_code is code


def _is_only_shown() -> bool:
    """Whether a text is asked for by `print` itself or to be logged, where no code sees it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not PRINTS and owner_of(frame.f_code.co_filename) in MADE_BY:
        frame = frame.f_back
    return frame is not None and shown_by(frame) == LOG


def puts_data(function: Callable[..., Any]) -> bool:
    """Whether a function assigns `.data`, also when somebody has wrapped it since this file was read."""
    name = getattr(function, "__name__", "")
    return name == "__set__" and function == torch.Tensor.data.__set__  # type: ignore[attr-defined]


# What is allowed after all of a tensor whose elements are the same at every run.
FROM_VALUES = frozenset({"branch", "number"})

# Operators that read values; reached when the Python function above them was not seen (inside composite operators).
VALUE_OPERATORS: Mapping[str, str] = MappingProxyType(
    {
        "aten._local_scalar_dense.default": "number",
        "aten.equal.default": "data-dependent value",
        "aten.is_nonzero.default": "branch",
    }
)


NOT_GIVEN = -1  # as many classes as the largest one says, which a program cannot know


def _one_hot(tensor: torch.Tensor, num_classes: int = NOT_GIVEN) -> torch.Tensor:
    if num_classes == NOT_GIVEN and is_usual_stand_in(tensor) and tensor.numel() and tensor.dtype is torch.int64:
        torch.ops.weft.check_one_hot(tensor, torch.iinfo(tensor.dtype).max)
        return functional.one_hot(tensor, int(tensor.max()) + 1)
    if num_classes != NOT_GIVEN and is_usual_stand_in(tensor):
        if num_classes <= 0:
            empty = "Can not infer total number of classes from empty tensor."
            raise RuntimeError("Class values must be smaller than num_classes." if tensor.numel() else empty)
        torch.ops.weft.check_one_hot(tensor, num_classes)
    return functional.one_hot(tensor, num_classes)


def has_own_attributes(stand_in: torch.Tensor) -> bool:
    """Whether Python has put attributes on what a stand-in stands for, or on the stand-in."""
    known = {*STAND_IN_ATTRIBUTES, *OWN_ATTRIBUTES}
    return any(name not in known and not name.startswith("_") for name in vars(stand_in))


def _deepcopied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """Copy as `copy.deepcopy` does: a leaf of its own in memory of its own, with the same strides."""
    is_dense = tensor.is_leaf and is_plain_stand_in(tensor) and torch.empty_like(tensor).stride() == tensor.stride()
    if not is_dense or has_own_attributes(tensor):
        return torch.Tensor.__deepcopy__(tensor, memo)  # type: ignore[no-any-return,no-untyped-call]
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _all_close(one: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Compute what decides as a tensor, as PyTorch's operator does inside."""
    return bool(torch.isclose(one, other, rtol, atol, equal_nan).all())


CHECKED: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        functional.one_hot: _one_hot,
        torch.Tensor.__deepcopy__: _deepcopied,
        torch.allclose: _all_close,
        torch.Tensor.allclose: _all_close,
    }
)


def with_check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give what to call in the place of a function."""
    return CHECKED.get(function, function)


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
