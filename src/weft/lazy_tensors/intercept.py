"""Intercept calls of PyTorch's functions: in lazy blocks, with lazy tensors outside of them, and past Python.

A recording follows a path in the tree of those before it (see `Point`). A call that is what came next the last time is
noted without being looked up: its function, its modes and its arguments are compared with those expected. For the
arithmetic of lazy tensors (`y * 0.5`, `a + b`) PyTorch's own dispatch is left out, too, which costs more than noting
the call. Everything else goes the usual way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import _getframe
from typing import Any
from weakref import ref

import torch
from torch.overrides import TorchFunctionMode

from weft.errors import UnsupportedError
from weft.lazy_tensors.looks import Looks
from weft.lazy_tensors.modes import MODE_COUNT, ONE_MODE, modes
from weft.lazy_tensors.points import Point, as_wanted, root
from weft.lazy_tensors.questions import look_at, place_of, tensors_in
from weft.lazy_tensors.recording import Recording
from weft.lazy_tensors.session import SESSION
from weft.lazy_tensors.table import EXPORTING, LOOKING, QUEUED, READING
from weft.lazy_tensors.tensor import LazyTensor, lazy_tensor
from weft.lazy_tensors.values import PLAIN, Value, look_of
from weft.trace.interception.modes import function_mode

_LOCK, _OWN = SESSION.lock, SESSION.own
MISSED: Any = object()  # the call has to go the usual way
# Python's operator, and the function that PyTorch reports for it.
OPERATORS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("__add__", torch.Tensor.add),
    ("__sub__", torch.Tensor.sub),
    ("__mul__", torch.Tensor.mul),
    ("__truediv__", torch.Tensor.div),
    ("__matmul__", torch.Tensor.matmul),
)


class LazyMode(TorchFunctionMode):
    """Hands every call of a function of PyTorch to the session."""

    def __init__(self, looks: Looks) -> None:
        super().__init__()
        self.looks = looks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs is None:
            kwargs = {}
        looks = self.looks
        looks.calls += 1
        if looks.rest and func not in EXPORTING and SESSION.runs_at_once(looks):
            return func(*args, **kwargs)
        if func in EXPECTED:
            result = queued(func, args, kwargs, modes())
            if result is not MISSED:
                return result
        return SESSION.call(func, args, kwargs)


EXPECTED = SESSION.queued  # of the other functions no recording expects a call


def queued(function: Callable[..., Any], args: Any, kwargs: Any, now: int) -> Any:
    """The result of a call that was queued; `MISSED` if it has to go the usual way. `now` are the modes it comes in.

    Without `kwargs` (None) functions of PyTorch that are called here would be intercepted: of tensors only the class is
    looked at, and what the recording knows of them.
    """
    with _LOCK:
        recording = _OWN.recording
        if recording is None or recording.closed:  # another thread may have pushed it
            first = root().likely
            if first is None or first.function is not function:
                return MISSED
            recording = SESSION.recording()
        point = recording.point.likely
        if point is None or point.function is not function or point.modes != now:
            return MISSED
        if point.names or kwargs:
            if kwargs is None or tuple(kwargs) != point.names:
                return MISSED
            args = (*args, *kwargs.values())
        numbers = _numbers(recording, point, args)
        if numbers is None or point.seconds > recording.most_seconds or point.bytes > recording.most_bytes:
            return MISSED  # it is another call, or ends the recording
        if point.fresh and (kwargs is None or not _take_fresh(recording, point, args)):
            return MISSED
        frame = _getframe(2)
        code = frame.f_code
        place: Any = point.place
        if code is not point.code or frame.f_lasti != place[1]:
            place = place_of(frame)
            if place[0] is code:
                point.code, point.place = code, place
        look = point.look
        if look is None:
            tensors = [item for item, want in zip(args, point.wants, strict=True) if want.__class__ is int]
            return SESSION.note(recording, point, tensors, numbers, place)
        # As `SESSION.note` does, for most calls.
        if numbers:
            recording.numbers += numbers
        recording.point = point
        recording.places.append(place)
        value = Value(look, None, recording, point.first)
        recording.values.append(ref(value))
        return (look.make or lazy_tensor)(value)


def _numbers(recording: Recording, point: Point, args: Any) -> Sequence[Any] | None:
    """The numbers of a call; None if it is not the one expected at a point."""
    wants, known = point.wants, recording.known
    if len(args) != len(wants):
        return None
    numbers: list[Any] | None = None
    for item, want in zip(args, wants):  # noqa: B905  # to name `strict` takes as long as the comparison
        kind = item.__class__
        if kind is LazyTensor:
            value = item.value
            found = value.index if value.recording is recording else known.get(id(value))
        elif kind in PLAIN:
            found = known.get(id(item))
        elif kind is want:
            numbers = [item] if numbers is None else [*numbers, item]
            continue
        elif as_wanted(want, kind, item):
            continue
        else:
            return None
        # One that is not known may be what the call brings along, and is then looked at closely.
        if found != want and (found is not None or want.__class__ is not int or ~want < len(recording.externals)):
            return None
    return numbers or ()


def _take_fresh(recording: Recording, point: Point, args: Any) -> bool:
    """Take what a call brings along, if all of it looks as expected."""
    form = point.form
    assert form is not None
    for new in point.fresh:
        item = args[new.place]
        if (item.value.look_now() if item.__class__ is LazyTensor else look_of(item)) is not new.look:
            return False
    if point.may_be_tiny and SESSION.is_tiny([args[new.place] for new in point.fresh]):
        return False
    for new in point.fresh:
        if SESSION.take(recording, args[new.place], new.position, form, new.look) != new.index:
            return False
    known = recording.known
    return all(
        known.get(id(item.value if item.__class__ is LazyTensor else item)) == want
        for item, want in zip(args, point.wants, strict=True)
        if want.__class__ is int
        and want < 0
        and (item.__class__ is not LazyTensor or item.value.recording is not recording)
    )


def _operator(function: Callable[..., Any], usual: Callable[..., Any]) -> Callable[..., Any]:
    def operator(self: LazyTensor, other: Any) -> Any:
        now = modes()
        if now & MODE_COUNT == ONE_MODE and (mode := function_mode(0)).__class__ is LazyMode and not mode.looks.rest:
            # What intercepts a function is called with one mode less: such numbers are compared.
            result = queued(function, (self, other), None, now - ONE_MODE)
            if result is not MISSED:
                return result
        return usual(self, other)

    operator.__name__ = usual.__name__
    return operator


for _name, _function in OPERATORS:
    setattr(LazyTensor, _name, _operator(_function, getattr(torch.Tensor, _name)))


def _outside(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if function in LOOKING:
        return look_at(function, args, kwargs)
    if SESSION.make_ordinary(args, kwargs):
        return function(*args, **kwargs)
    return SESSION.now(function, args, kwargs, changes=function not in READING and function not in QUEUED)


def _past_python(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    result = SESSION.now(function, args, kwargs, changes=True)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in((args, kwargs))):
        raise UnsupportedError("a lazy tensor that carries a gradient was used past PyTorch's Python interface")
    return result


LazyTensor.on_function = staticmethod(_outside)
LazyTensor.on_operator = staticmethod(_past_python)
