"""Calls of PyTorch's functions -> queued operators, or calls that run at once when what they need is there."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import get_default_dtype, is_autocast_enabled, is_grad_enabled, is_inference_mode_enabled

from weft.lazy_tensors.call import Call, Refused
from weft.lazy_tensors.copies import Copies
from weft.lazy_tensors.gradients import Gradients
from weft.lazy_tensors.learning import Form, learn
from weft.lazy_tensors.losses import fills_memory
from weft.lazy_tensors.modes import modes
from weft.lazy_tensors.points import MOST_STEPS, TINY, Point
from weft.lazy_tensors.questions import (
    as_given,
    called,
    look_at,
    tensors_in,
    user_place,
)
from weft.lazy_tensors.random import Dropout
from weft.lazy_tensors.recording import Place, Recording
from weft.lazy_tensors.results import results_of
from weft.lazy_tensors.sending import MOST_SECONDS
from weft.lazy_tensors.settings import Settings
from weft.lazy_tensors.table import EXPORTING, LOOKING, NUMBERS_FREE, OVERWRITING, QUEUED, READING
from weft.lazy_tensors.tasks import engine
from weft.lazy_tensors.tensor import LazyTensor, lazy_tensor
from weft.lazy_tensors.values import CPU, Look, Memory, Value, device_of
from weft.lazy_tensors.waits import Waits
from weft.trace.interception.capture import traced_elsewhere
from weft.trace.interception.modes import function_mode_count, others_intercept


class Session(Waits):
    """What is queued and not yet done, for all threads of the process."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: dict[Any, Form] = {}
        self.settings = Settings()
        self.gradients = Gradients(self)
        self._copies = Copies(self)
        self._special: dict[Callable[..., Any], Callable[..., Any]] = {
            **dict(self.gradients.functions()),
            **dict(self._copies.functions()),
            **dict(Dropout(self).functions()),
        }
        self.queued = QUEUED - self._special.keys()

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function of PyTorch inside a lazy block."""
        if function in self.queued and not self._is_at_once():
            return self.queue(function, args, kwargs)
        if function in LOOKING:
            return look_at(function, args, kwargs)
        if self._is_at_once():
            return self.now(function, args, kwargs, changes=True)
        special = self._special.get(function)
        if special is not None:
            return special(function, args, kwargs)
        return self.now(function, args, kwargs, changes=function not in READING)

    def _is_at_once(self) -> bool:
        """Whether calls do more now than compute results, or have to be shown to others than Weft."""
        return self.settings.at_once or others_intercept()

    def queue(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Queue a call of a function that may be."""
        if is_autocast_enabled("cpu") or is_inference_mode_enabled() or traced_elsewhere(()):
            return self.now(function, args, kwargs, changes=True)
        call = Call([function, is_grad_enabled(), get_default_dtype(), self.settings.number], function in NUMBERS_FREE)
        try:
            for item in args:
                call.scan(item)
            for name, item in kwargs.items():
                call.key.append(name)
                call.scan(item)
        except Refused:
            return self._refused(function, args, kwargs)
        if not call.tensors:
            return function(*args, **kwargs)
        form = self.forms.get(tuple(call.key))
        if form is None:
            return self._learn_or_refuse(call, args, kwargs)
        if form.at_once:
            return self.now(function, args, kwargs, changes=form.changes)
        if self.is_tiny(call.tensors):
            return function(*args, **kwargs)
        with self.lock:
            result = self._record(form, call, args, kwargs)
        if result is _REFUSED:
            return self.now(function, args, kwargs, changes=form.changes)
        return result

    def _refused(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a call that cannot be queued, though its function can."""
        given = list(tensors_in((args, kwargs)))
        arrived = [self._real(tensor) if device_of(tensor) != CPU else tensor for tensor in given]
        for tensor in given:
            if tensor.__class__ is LazyTensor:
                self._memory(tensor)  # what reads the copy also orders those who write the tensor that it has become
        if self._copies.elsewhere(function, arrived, kwargs):
            self.gradients.epoch += 1
            return called(function, args, kwargs, given, arrived)
        return self.now(function, args, kwargs, changes=True)

    def is_tiny(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether a call is on a few numbers that nothing queued names."""
        for tensor in tensors:
            if tensor.__class__ is LazyTensor or tensor.numel() > TINY or self.memories.find(tensor) is not None:
                return False
        return True

    def _learn_or_refuse(self, call: Call, args: Any, kwargs: Any) -> Any:
        function, grad = call.key[:2]
        if any(tensor.device != CPU for tensor in call.tensors):
            return self._refused(function, args, kwargs)  # one of them is a copy on its way to a device
        form = Form(function, *call.template(args, kwargs), grad=grad)
        self.finish()
        if function in OVERWRITING:
            self._renew(call.tensors[0])
        reals = [self._real(tensor) for tensor in call.tensors]
        result = learn(form, reals, call.numbers)
        self.forms[tuple(call.key)] = form
        return as_given(result, reals, call.tensors)

    def _renew(self, tensor: torch.Tensor) -> None:
        """Let a tensor whose memory is about to be written anew forget a failure."""
        real = tensor.value.real if tensor.__class__ is LazyTensor else tensor
        if real is not None and fills_memory(real):
            engine().failures.heal([self._memory(tensor).variable()])

    def _record(self, form: Form, call: Call, args: Any, kwargs: Any) -> Any:
        recording = self.recording()
        if form.grad and recording.written and not recording.last().grad:
            # An optimizer's step ends here: what follows is a program of its own, through which gradients pass.
            self.flush(recording)
            recording = self.recording()
        if recording.gradients and any(output.connected for output in form.outputs):
            self.flush(recording)  # one backward ends a graph: another one begins in another segment
            recording = self.recording()
        takes: list[int] = []
        for position, tensor in enumerate(call.tensors):
            index = self.take(recording, tensor, position, form)
            if index is None:
                return _REFUSED
            takes.append(index)
        point = recording.point.after(form, tuple(takes))
        if not function_mode_count():  # with a default device, calls go the usual way, where it is asked what is active
            point.expect(modes(), args, kwargs, recording.external_looks)
        result = self.note(recording, point, call.tensors, call.numbers, user_place())
        if point.seconds > recording.most_seconds or point.count >= MOST_STEPS:
            self.own.patience = min(2 * self.own.patience, MOST_SECONDS)
            self.flush(recording)
        elif point.bytes > recording.most_bytes:
            self.flush(recording)
        return result

    def note(
        self, recording: Recording, point: Point, tensors: Sequence[Any], numbers: Sequence[Any], place: Place
    ) -> Any:
        """Note a call whose tensors the recording has taken; gives what the call gives."""
        recording.add(point, numbers, place)
        if point.look is not None:  # as most calls are, with one result in memory of its own
            value = Value(point.look, None, recording, point.first)
            recording.values.append(weakref.ref(value))
            return lazy_tensor(value)
        form, takes = point.form, point.takes
        assert form is not None
        memories = None
        if form.written or form.views:
            memories = [
                recording.memory_of(index, tensor if index < 0 else tensor.value)
                for index, tensor in zip(takes, tensors, strict=True)
            ]
            for position in form.written:
                memory = memories[position]
                if memory in recording.memories:
                    recording.written[memory] = None
        return None if form.nothing else results_of(form, tensors, recording, memories)

    def record_backward(self, loss: LazyTensor, leaves: Sequence[torch.Tensor], form: Form) -> Sequence[Value] | None:
        """Make a backward a step of the recording, if all that it goes through is recorded there."""
        with self.lock:
            recording = self.recording()
            value = loss.value
            if value.recording is not recording or recording.gradients:
                return None
            numbers = [recording.known.get(id(leaf)) for leaf in leaves]
            takes = [number for number in numbers if number is not None]
            if len(takes) < len(leaves) or not recording.point.reached(value.index) <= set(takes):
                return None  # it goes on into what was computed earlier
            point = recording.point.after(form, (value.index, *takes))
            recording.add(point, (), user_place())
            made = []
            for place, (leaf, output) in enumerate(zip(leaves, form.outputs, strict=True)):
                memory = Memory()
                memory.recording = recording
                assert output.look is not None
                gradient = Value(output.look, memory, recording, point.first + place)
                recording.hold(gradient)
                recording.gradients.append((leaf, weakref.ref(gradient)))
                made.append(gradient)
            return made

    def take(
        self, recording: Recording, tensor: torch.Tensor, position: int, form: Form, look: Look | None = None
    ) -> int | None:
        """How a step takes a tensor; None if it cannot be queued. `look` is how it looks, where that is known."""
        if tensor.__class__ is LazyTensor:
            value = tensor.value
            if value.recording is recording:
                return int(value.index)
            if value.recording is not None:
                self.flush(value.recording)
            known = recording.known.get(id(value))
            if known is not None:
                return known
            if value.real is not None and self.memories.exported(value.real):
                return self._take_exported(recording, tensor, value.real, form)
            return recording.external(value, self._memory(tensor), value, look)
        known = recording.known.get(id(tensor))
        if known is not None:
            return known if position not in form.written or not self.memories.exported(tensor) else None
        memory = self.memories.unless_exported(tensor)
        if memory is None:
            return self._take_exported(recording, tensor, tensor, form)
        return recording.external(tensor, memory, tensor, look)

    def _take_exported(self, recording: Recording, tensor: torch.Tensor, real: torch.Tensor, form: Form) -> int | None:
        # Code that PyTorch knows nothing of may write this memory while the call is queued, or read what it writes.
        if form.written or form.views or real.requires_grad or not engine().ready(self._memory(tensor).variable()):
            return None
        copy = real.clone()
        return recording.external(copy, Memory(), copy) if copy.stride() == real.stride() else None

    def now(self, function: Callable[..., Any], args: Any, kwargs: Any, *, changes: bool) -> Any:
        """Run a call at once: when everything is done if it may change something, else when its tensors are there."""
        given = list(tensors_in((args, kwargs)))
        if not given:
            return function(*args, **kwargs)
        if changes or function in EXPORTING:
            self.finish()
            self.gradients.epoch += 1
        reals = [self._real(tensor) for tensor in given]
        if function in EXPORTING:
            for real in reals:
                self.memories.export(real)
        return called(function, args, kwargs, given, reals)


_REFUSED = object()


SESSION = Session()
