"""Intercept calls of PyTorch's functions in lazy blocks, of lazy tensors, and of entries that no mode is shown.

A recording follows a path in the trie of those before it. A call that is what came next the last time is recorded
without being looked up: its function, its modes and its arguments are compared with those predicted. For the arithmetic
of lazy tensors (`y * 0.5`, `a + b`) PyTorch's own dispatch is left out, too, which costs more than to record the call.
Everything else goes the usual way.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from sys import _getframe
from typing import Any, Protocol, cast
from weakref import ref

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from weft.errors import UnsupportedError
from weft.lazy_tensors import backward, copies
from weft.lazy_tensors.backoff import EagerBackoff
from weft.lazy_tensors.operators import EXPORTING, METADATA_QUERIES, QUEUED, READING
from weft.lazy_tensors.recording import Recording
from weft.lazy_tensors.session import SESSION
from weft.lazy_tensors.settings import MODE_COUNT, ONE_MODE, modes
from weft.lazy_tensors.tasks import place_of
from weft.lazy_tensors.tensor import (
    PLAIN,
    LazyTensor,
    LazyValue,
    answer_from_metadata,
    lazy_tensor,
    metadata_of,
    tensors_in,
)
from weft.lazy_tensors.trie import TrieNode, is_expected, root
from weft.trace.encoder import replace_forward
from weft.trace.interception.modes import (
    TRANSFORMS,
    compile_nothing_under,
    function_mode,
    has_function_modes,
    without_modes,
)

for _handlers in (backward.HANDLERS, copies.HANDLERS):
    SESSION.handle(_handlers)

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

    def __init__(self, backoff: EagerBackoff) -> None:
        super().__init__()
        self.backoff = backoff

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs is None:
            kwargs = {}
        backoff = self.backoff
        backoff.calls += 1
        if backoff.eager_calls and func not in EXPORTING and SESSION.runs_eagerly(backoff):
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
            first = root().predicted
            if first is None or first.function is not function:
                return MISSED
            recording = SESSION.recording()
        node = recording.node.predicted
        if node is None or node.function is not function or node.modes != now:
            return MISSED
        if node.names or kwargs:
            if kwargs is None or tuple(kwargs) != node.names:
                return MISSED
            args = (*args, *kwargs.values())
        numbers = _numbers(recording, node, args)
        if numbers is None or node.seconds > recording.most_seconds or node.bytes > recording.most_bytes:
            return MISSED  # it is another call, or ends the recording
        if node.new_inputs and (kwargs is None or not _take_new_inputs(recording, node, args)):
            return MISSED
        frame = _getframe(2)
        code = frame.f_code
        place: Any = node.place
        if code is not node.code or frame.f_lasti != place[1]:
            place = place_of(frame)
            if place[0] is code:
                node.code, node.place = code, place
        metadata = node.metadata
        if metadata is None:
            tensors = [
                item for item, expected_item in zip(args, node.expected, strict=True) if expected_item.__class__ is int
            ]
            return SESSION.note(recording, node, tensors, numbers, place)
        # As `SESSION.note` does, for most calls.
        if numbers:
            recording.numbers += numbers
        recording.node = node
        recording.places.append(place)
        value = LazyValue(metadata, None, recording, node.first)
        recording.values.append(ref(value))
        return (metadata.make or lazy_tensor)(value)


def _numbers(recording: Recording, node: TrieNode, args: Any) -> Sequence[Any] | None:
    """The numbers of a call; None if it is not the predicted one."""
    expected, operand_numbers = node.expected, recording.operand_numbers
    if len(args) != len(expected):
        return None
    numbers: list[Any] | None = None
    for item, expected_item in zip(args, expected):  # noqa: B905  # to name `strict` takes as long as the comparison
        kind = item.__class__
        if kind is LazyTensor:
            value = item.value
            found = value.index if value.recording is recording else operand_numbers.get(id(value))
        elif kind in PLAIN:
            found = operand_numbers.get(id(item))
        elif kind is expected_item:
            numbers = [item] if numbers is None else [*numbers, item]
            continue
        elif is_expected(expected_item, kind, item):
            continue
        else:
            return None
        # One that is not known may be what the call brings along, and is then looked at closely.
        if found != expected_item and (
            found is not None or expected_item.__class__ is not int or ~expected_item < len(recording.inputs)
        ):
            return None
    return numbers or ()


def _take_new_inputs(recording: Recording, node: TrieNode, args: Any) -> bool:
    """Take what a call brings along, if all of it has the expected metadata."""
    schema = node.schema
    assert schema is not None
    for new in node.new_inputs:
        item = args[new.place]
        if (item.value.current_metadata() if item.__class__ is LazyTensor else metadata_of(item)) is not new.metadata:
            return False
    if node.may_be_tiny and SESSION.is_tiny([args[new.place] for new in node.new_inputs]):
        return False
    for new in node.new_inputs:
        if SESSION.take(recording, args[new.place], new.position, schema, new.metadata) != new.index:
            return False
    operand_numbers = recording.operand_numbers
    return all(
        operand_numbers.get(id(item.value if item.__class__ is LazyTensor else item)) == expected_item
        for item, expected_item in zip(args, node.expected, strict=True)
        if expected_item.__class__ is int
        and expected_item < 0
        and (item.__class__ is not LazyTensor or item.value.recording is not recording)
    )


def _operator(function: Callable[..., Any], usual: Callable[..., Any]) -> Callable[..., Any]:
    def operator(self: LazyTensor, other: Any) -> Any:
        now = modes()
        if (
            now & MODE_COUNT == ONE_MODE
            and (mode := function_mode(0)).__class__ is LazyMode
            and not mode.backoff.eager_calls
        ):
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
    if function in METADATA_QUERIES:
        return answer_from_metadata(function, args, kwargs)
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
_REPLACED: list[Any] = []


class HoldsState(Protocol):
    """A program's owner: what it reaches from its root may be lazy tensors."""

    root: Any

    def _state(self, root: Any) -> Any: ...


def intercept_entries(kind: type, calls: Iterable[tuple[type, str]], traces: Iterable[tuple[type, str]]) -> None:
    """Let what no interceptor sees take lazy tensors; done once, at the first lazy block.

    Backwards, functions of autograd and programs run code that expects ordinary tensors, and may read or write what is
    queued: modes of this kind, which would queue what that code calls, are off meanwhile. What `torch.compile` made
    runs as the lazy code that it was made of: a second compiler would only see stand-ins.

    `calls` and `traces` are the methods, each with its class, that call programs and that trace them.
    """
    if _REPLACED:
        return

    def at_once(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not has_function_modes() and not any(
            tensor.__class__ is LazyTensor for tensor in tensors_in((args, kwargs))
        ):
            return function(*args, **kwargs)
        SESSION.finish_and_tell()  # that code may read or write what is queued
        with without_modes(kind):
            return SESSION.now(function, args, kwargs, changes=True)

    torch.autograd.backward = _around(torch.autograd.backward, at_once)
    apply = _around(behind_class_method(torch.autograd.Function, "apply"), _without_self(at_once))
    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
    for module, name in ((torch.jit, "trace"), (torch.jit, "trace_module")):
        setattr(module, name, _around(getattr(module, name), at_once))
    for program, name in calls:
        call = _around(getattr(program, name), _again_without_lazy_state)
        setattr(program, name, _around(call, _without_self(at_once)))
    for program, name in traces:
        setattr(program, name, _around(getattr(program, name), _without_lazy_state))
    for owner in (nn.Parameter, nn.Buffer):
        setattr(owner, "__new__", staticmethod(_around(owner.__new__, _settled)))  # noqa: B010
    for module, name in TRANSFORMS:
        setattr(module, name, _around(getattr(module, name), _settled))
    compile_nothing_under(kind)
    replace_forward()


def behind_class_method(owner: type, name: str) -> Callable[..., Any]:
    """The function that is called with the class: `Function.apply` is in Python until PyTorch 2.13, and in C since."""
    found = inspect.getattr_static(owner, name)
    return cast("Callable[..., Any]", getattr(found, "__func__", found))  # C's descriptors are called with the class


def _around(function: Callable[..., Any], caller: Callable[[Callable[..., Any], Any, Any], Any]) -> Callable[..., Any]:
    """A function whose calls are made by `caller`."""
    _REPLACED.append(function)

    @functools.wraps(function)
    def around(*args: Any, **kwargs: Any) -> Any:
        return caller(function, args, kwargs)

    return around


def _without_self(caller: Callable[..., Any]) -> Callable[..., Any]:
    """The same for methods: only what follows the first argument is looked at."""
    return lambda function, args, kwargs: caller(functools.partial(function, args[0]), args[1:], kwargs)


def _again_without_lazy_state(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a program; where it refuses a lazy tensor that its module holds, do so again with the ordinary one there."""
    try:
        return function(*args, **kwargs)
    except UnsupportedError:
        if not _settle_state(args[0]):
            raise
    return function(*args, **kwargs)


def _without_lazy_state(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    _settle_state(args[0])
    return function(*args, **kwargs)


def _settle_state(program: HoldsState) -> bool:
    """Put the ordinary tensor in the place of each lazy one that a program would reach; tell whether there was any."""
    found = False
    for slot in list(program._state(program.root).slots.values()):
        tensor = slot.get()
        if tensor.__class__ is not LazyTensor or isinstance(slot.container, tuple):
            continue
        found = True
        slot.put(SESSION.settled(tensor))
    return found


def _settled(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Make a parameter, say, of the ordinary tensor that a lazy one stands for: it shares its memory."""
    if any(tensor.__class__ is LazyTensor for tensor in tensors_in((args, kwargs))):
        args, kwargs = SESSION.settled(list(args)), SESSION.settled(kwargs)
    return function(*args, **kwargs)
