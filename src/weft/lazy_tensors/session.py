"""Queue calls of PyTorch's functions, push what each thread has recorded, and wait for it."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident
from time import perf_counter, sleep
from typing import Any

import torch
from torch import get_default_dtype, is_autocast_enabled, is_grad_enabled, is_inference_mode_enabled
from torch.nn import functional

from weft.engine import Engine, SerialEngine, Var
from weft.engine.failures import Failure
from weft.errors import ExecutionError
from weft.lazy_tensors.backoff import EagerBackoff
from weft.lazy_tensors.failures import fills_memory
from weft.lazy_tensors.gradients import GradientTable
from weft.lazy_tensors.operators import (
    EXPORTING,
    METADATA_QUERIES,
    NUMBERS_FREE,
    OVERWRITING,
    QUEUED,
    READING,
    without_writes,
)
from weft.lazy_tensors.recording import Recording, Segment
from weft.lazy_tensors.schema import CallKey, CallSchema, NotQueueable, infer_schema
from weft.lazy_tensors.settings import ProcessSettings, flushes_denormals, modes
from weft.lazy_tensors.tasks import (
    Place,
    engine,
    idle,
    in_task,
    is_like_a_worker,
    lane,
    user_place,
    wait_for_users,
    waiting,
)
from weft.lazy_tensors.tensor import (
    CPU,
    LazyStorage,
    LazyTensor,
    LazyValue,
    StorageTable,
    TensorMetadata,
    answer_from_metadata,
    as_given,
    become_ordinary,
    called,
    device_of,
    each_tensor,
    lazy_tensor,
    metadata_of,
    tensors_in,
)
from weft.lazy_tensors.trie import MOST_STEPS, TINY, TrieNode
from weft.trace.interception.capture import storage_key, traced_elsewhere, without_functions
from weft.trace.interception.modes import function_mode_count, others_intercept

FIRST_SECONDS = 5e-3  # of work that is recorded before the first task of a series is pushed; doubled at each
MOST_SECONDS = 1.0
SETTLING = 2e-4  # in which a worker counts as done what it has told to be so


class _Own(threading.local):
    """What each thread has for itself."""

    recording: Recording | None = None
    patience: float = FIRST_SECONDS
    backoff: EagerBackoff | None = None  # of the lazy block that it is in


_REFUSED = object()


class Session:
    """What is recorded, queued and not yet done, for all threads of the process."""

    def __init__(self) -> None:
        self.storages = StorageTable()
        self.own: _Own = _Own()
        # Held while operators are noted and tasks are pushed; whoever holds it waits for nothing.
        self.lock: AbstractContextManager[Any] = threading.RLock()
        self._recordings: dict[Recording, None] = {}
        self.gradients = GradientTable()
        self.schemas: dict[Any, CallSchema] = {}
        self.settings = ProcessSettings()
        self._handlers: dict[Callable[..., Any], Callable[..., Any]] = {}
        self.queued = set(QUEUED)

    def handle(self, handlers: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
        """Let calls of these functions go to handlers of their own."""
        self._handlers.update(handlers)
        self.queued.difference_update(handlers)

    # Calls: queued where they can be.

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function of PyTorch inside a lazy block."""
        if function in self.queued and not self._runs_eagerly():
            return self.queue(function, args, kwargs)
        if function in METADATA_QUERIES:
            return answer_from_metadata(function, args, kwargs)
        if self._runs_eagerly():
            return self.now(function, args, kwargs, changes=True)
        handler = self._handlers.get(function)
        if handler is not None:
            return handler(function, args, kwargs)
        return self.now(function, args, kwargs, changes=function not in READING)

    def _runs_eagerly(self) -> bool:
        """Whether calls do more now than compute results, or have to be shown to others than Weft."""
        return self.settings.eager or others_intercept()

    def queue(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Queue a call of a function that may be."""
        if is_autocast_enabled("cpu") or is_inference_mode_enabled() or traced_elsewhere(()):
            return self.now(function, args, kwargs, changes=True)
        call = CallKey(
            [function, is_grad_enabled(), get_default_dtype(), self.settings.number], function in NUMBERS_FREE
        )
        try:
            for item in args:
                call.scan(item)
            for name, item in kwargs.items():
                call.key.append(name)
                call.scan(item)
        except NotQueueable:
            return self._refused(function, args, kwargs)
        if not call.tensors:
            return function(*args, **kwargs)
        schema = self.schemas.get(tuple(call.key))
        if schema is None:
            return self._infer_or_refuse(call, args, kwargs)
        if schema.eager_only:
            return self.now(function, args, kwargs, changes=schema.changes)
        if self.is_tiny(call.tensors):
            return function(*args, **kwargs)
        with self.lock:
            result = self._record(schema, call, args, kwargs)
        if result is _REFUSED:
            return self.now(function, args, kwargs, changes=schema.changes)
        return result

    def _refused(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a call that cannot be queued, though its function can."""
        given = list(tensors_in((args, kwargs)))
        arrived = [self._real(tensor) if device_of(tensor) != CPU else tensor for tensor in given]
        for tensor in given:
            if tensor.__class__ is LazyTensor:
                self._storage(tensor)  # what reads the copy also orders those who write the tensor that it has become
        if self._runs_elsewhere(function, arrived, kwargs):
            self.gradients.epoch += 1
            return called(function, args, kwargs, given, arrived)
        return self.now(function, args, kwargs, changes=True)

    def _runs_elsewhere(self, function: Callable[..., Any], tensors: Sequence[torch.Tensor], kwargs: Any) -> bool:
        """Whether a call of an operator can run at once beside all that is queued, as none of it is on its device.

        Only copies may be reading what it writes, which are waited for.
        """
        if not tensors or any(tensor.__class__ is LazyTensor or device_of(tensor) == CPU for tensor in tensors):
            return False
        if not without_writes(function, kwargs):
            found = (self.storages.find(tensor) for tensor in tensors)
            wait_for_users([storage for storage in found if storage is not None])
        return True

    def is_tiny(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether a call is on a few numbers that nothing queued names."""
        for tensor in tensors:
            if tensor.__class__ is LazyTensor or tensor.numel() > TINY or self.storages.find(tensor) is not None:
                return False
        return True

    def _infer_or_refuse(self, call: CallKey, args: Any, kwargs: Any) -> Any:
        function, grad = call.key[:2]
        if any(tensor.device != CPU for tensor in call.tensors):
            return self._refused(function, args, kwargs)  # one of them is a copy on its way to a device
        schema = CallSchema(function, *call.template(args, kwargs), grad=grad)
        with nullcontext() if self.own.backoff is None else self.own.backoff.first_call():
            self.finish()
            if function in OVERWRITING:
                self._renew(call.tensors[0])
            reals = [self._real(tensor) for tensor in call.tensors]
            result = infer_schema(schema, reals, call.numbers)
        self.schemas[tuple(call.key)] = schema
        return as_given(result, reals, call.tensors)

    def _renew(self, tensor: torch.Tensor) -> None:
        """Let a tensor whose memory is about to be written anew forget a failure."""
        real = tensor.value.real if tensor.__class__ is LazyTensor else tensor
        if real is not None and fills_memory(real):
            engine().failures.heal([self._storage(tensor).variable()])

    def _record(self, schema: CallSchema, call: CallKey, args: Any, kwargs: Any) -> Any:
        recording = self.recording()
        if schema.grad and recording.written and not recording.last().grad:
            # An optimizer's step ends here: what follows is a program of its own, through which gradients pass.
            self.flush(recording)
            recording = self.recording()
        if recording.gradients and any(output.connected for output in schema.outputs):
            self.flush(recording)  # one backward ends a graph: another one begins in another segment
            recording = self.recording()
        operands: list[int] = []
        for position, tensor in enumerate(call.tensors):
            index = self.take(recording, tensor, position, schema)
            if index is None:
                return _REFUSED
            operands.append(index)
        node = recording.node.after(schema, tuple(operands))
        if not function_mode_count():  # with a default device, calls go the usual way, where it is asked what is active
            node.expect(modes(), args, kwargs, recording.input_metadata)
        result = self.note(recording, node, call.tensors, call.numbers, user_place())
        if node.seconds > recording.most_seconds or node.count >= MOST_STEPS:
            self.own.patience = min(2 * self.own.patience, MOST_SECONDS)
            self.flush(recording)
        elif node.bytes > recording.most_bytes:
            self.flush(recording)
        return result

    def note(
        self, recording: Recording, node: TrieNode, tensors: Sequence[Any], numbers: Sequence[Any], place: Place
    ) -> Any:
        """Note a call whose tensors the recording has taken; gives what the call gives."""
        recording.add(node, numbers, place)
        if node.metadata is not None:  # as most calls are, with one result in memory of its own
            value = LazyValue(node.metadata, None, recording, node.first)
            recording.values.append(weakref.ref(value))
            return lazy_tensor(value)
        schema, operands = node.schema, node.operands
        assert schema is not None
        storages = None
        if schema.written or schema.views:
            storages = [
                recording.storage_of(index, tensor if index < 0 else tensor.value)
                for index, tensor in zip(operands, tensors, strict=True)
            ]
            for position in schema.written:
                storage = storages[position]
                if storage in recording.storages:
                    recording.written[storage] = None
        return None if schema.returns_none else results_of(schema, tensors, recording, storages)

    def take(
        self,
        recording: Recording,
        tensor: torch.Tensor,
        position: int,
        schema: CallSchema,
        metadata: TensorMetadata | None = None,
    ) -> int | None:
        """How a step takes a tensor; None if it cannot be queued. `metadata` is its own, where that is known."""
        if tensor.__class__ is LazyTensor:
            value = tensor.value
            if value.recording is recording:
                return int(value.index)
            if value.recording is not None:
                self.flush(value.recording)
            number = recording.operand_numbers.get(id(value))
            if number is not None:
                return number
            if value.real is not None and self.storages.exported(value.real):
                return self._take_exported(recording, tensor, value.real, schema)
            return recording.add_input(value, self._storage(tensor), value, metadata)
        number = recording.operand_numbers.get(id(tensor))
        if number is not None:
            return number if position not in schema.written or not self.storages.exported(tensor) else None
        storage = self.storages.unless_exported(tensor)
        if storage is None:
            return self._take_exported(recording, tensor, tensor, schema)
        return recording.add_input(tensor, storage, tensor, metadata)

    def _take_exported(
        self, recording: Recording, tensor: torch.Tensor, real: torch.Tensor, schema: CallSchema
    ) -> int | None:
        # Code that PyTorch knows nothing of may write this memory while the call is queued, or read what it writes.
        if schema.written or schema.views or real.requires_grad or not engine().ready(self._storage(tensor).variable()):
            return None
        copy = real.clone()
        return recording.add_input(copy, LazyStorage(), copy) if copy.stride() == real.stride() else None

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
                self.storages.export(real)
        return called(function, args, kwargs, given, reals)

    # Recordings: pushed when they hold enough, or when somebody waits.

    def recording(self) -> Recording:
        """The recording of this thread."""
        found = self.own.recording
        if found is None or found.closed:
            runner = engine()
            # The engine to debug with runs each operator at its call.
            most = -1.0 if isinstance(runner, SerialEngine) else runner.limits.bytes / 4
            found = Recording(lane(), most, self.own.patience, self.gradients.epoch)
            found.flushes = flushes_denormals()
            self.own.recording = found
            self._recordings[found] = None
        return found

    def end_recording(self) -> None:
        """Push what this thread has recorded: what follows belongs to another device."""
        if self.own.recording is not None:
            self.flush(self.own.recording)

    def flush(self, recording: Recording, *, waits: bool = False) -> None:
        """Push what a recording holds; what is short, and waited for next, runs here where nothing else is queued."""
        runner = engine()
        if waits and isinstance(runner, Engine) and runner.is_quiet() and is_like_a_worker():
            # On the other side: a worker that links tasks, or another thread that is here; both for a short time.
            with runner.turn:
                segment = self._close(recording, here=True)
                if segment is not None:
                    with waiting(), without_functions():  # nobody is to be shown its operators
                        segment.run_here(runner)
            runner.advance()
            return
        with self.lock:
            size = 0 if recording.closed else recording.size()
        runner.make_room(size)  # not under the lock, which tasks may need to make room
        self._close(recording)

    def _close(self, recording: Recording, *, here: bool = False) -> Segment | None:
        """Push what a recording holds; gives it instead if it can run on this thread, which has the engine's turn."""
        with self.lock:
            if recording.closed:
                return None
            recording.closed = True
            self._recordings.pop(recording, None)
            if not recording.places:
                return None
            here = here and engine().is_quiet()
            if recording.gradients:
                self.gradients.flush(here=here)
            alive = recording.alive()
            self.gradients.note_leaves(recording, alive)
            count = len(recording.places)
            segment = recording.segment(alive)
            if self.own.backoff is not None and recording is self.own.recording:
                self.own.backoff.pushed(segment.plan, count, segment.seconds)
            if here and segment.is_short():
                return segment
            segment.push(self.gradients.order)
            return None

    def nothing_left(self) -> bool:
        """Tell whether nothing is recorded or queued, and no thread that waits runs anything."""
        runner = engine()
        # In this order: a recording that runs on such a thread is taken from here after the turn is.
        return not self._recordings and runner.is_quiet() and not (isinstance(runner, Engine) and runner.turn.locked())

    def flush_all(self, *, waits: bool = False) -> None:
        """Push everything that was recorded, by any thread."""
        for recording in list(self._recordings):
            self.flush(recording, waits=waits)
        self.gradients.flush()
        self._be_impatient()

    def _be_impatient(self) -> None:
        """Somebody waits: begin anew with small tasks."""
        self.own.patience = FIRST_SECONDS
        if self.own.recording is not None:
            self.own.recording.most_seconds = FIRST_SECONDS
        if self.own.backoff is not None:
            self.own.backoff.waited()

    def finish(self) -> None:
        """Wait until everything queued is done, failed or not."""
        self.flush_all(waits=True)
        if in_task():
            wait_for_users(self.storages.all())  # not everything: that includes this task itself
            return
        with waiting():
            engine().finish_all()
        with self.lock:
            # Another thread may have queued something since: what it names is still to be known.
            if not self._recordings and idle():
                self.storages.forget()
                self.gradients.forget()

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Around what raises failures: once one is told, tensors that it kept from being changed are as before.

        What was queued before that is skipped, if it depends on them, however far the workers have come by now.
        """
        try:
            yield
        except ExecutionError:
            if not in_task():  # a task would wait for itself; whoever waits for the task is told again
                self.finish()
                engine().failures.recover()
                self.storages.forget()
                self.gradients.forget(failed=True)
            raise

    def runs_eagerly(self, backoff: EagerBackoff) -> bool:
        """Tell whether the next operator runs at once, of a block that reads too often: it waits for nothing then.

        Where anything is recorded, queued or poisoned, it is queued as ever, and so ordered with that.
        """
        if backoff.calls <= 1:  # behind a read
            self._close_unused()
        if not self.is_settled():
            return False
        backoff.eager_calls -= 1
        self.gradients.epoch += 1  # what runs at once may change what autograd graphs reach
        return True

    def _close_unused(self) -> None:
        """Push what threads that have ended left, and drop a recording of this one that has nothing in it."""
        for recording in list(self._recordings):
            own = recording is self.own.recording
            if not recording.places if own else recording.thread not in sys._current_frames():
                self._close(recording)
        last = perf_counter() + SETTLING
        while not idle() and perf_counter() < last:  # the worker that has just told us of its task still counts it
            sleep(0)

    def is_settled(self) -> bool:
        """Tell whether operators need not be ordered with anything: nothing is recorded, queued or poisoned."""
        if not self._is_done():
            return False
        if self.storages.any() or self.gradients.any():
            with self.lock:
                if not self._is_done():
                    return False
                self.gradients.flush(here=True)
                self.storages.forget()
                self.gradients.forget()
        return not self.storages.any() and not self.gradients.any()  # what is left has failed

    def _is_done(self) -> bool:
        """Tell whether all is done, failed or not, and nobody records tasks or debugs them."""
        runner = engine()
        if self._recordings or not isinstance(runner, Engine) or runner.timeline is not None:
            return False
        return idle() and not runner.inbox and not runner.turn.locked()  # in this order: see `nothing_left`

    # Waits: for what makes tensors, and for what changes their memory.

    def _storage(self, tensor: torch.Tensor) -> LazyStorage:
        if tensor.__class__ is not LazyTensor:
            return self.storages.of(tensor)
        value: LazyValue = tensor.value
        # Once it is real, an ordinary tensor may share its memory.
        return value.storage if value.real is None else self.storages.bind(value.real, value.storage)

    def variables(self, tensor: torch.Tensor) -> list[Var]:
        """What orders tasks that take this tensor, which other than lazy code will push; what it needs is pushed."""
        storage = self._storage(tensor)
        if storage.recording is not None:
            self.flush(storage.recording)
        producer = tensor.value.producer if tensor.__class__ is LazyTensor else None
        return [storage.variable()] if producer is None else [storage.variable(), producer.variable()]

    def waitall(self) -> None:
        """Wait until everything queued is done; raise the first failure."""
        self.finish()
        with self.telling():
            engine().waitall()

    def finish_and_tell(self) -> None:
        """Wait until everything queued is done; raise what this thread's code outside the queue could not know.

        That is a failure that nobody was told of, if an ordinary tensor misses a change by it, or a gradient.
        """
        self.finish()
        failures = engine().failures
        if not failures.known or in_task():
            return
        seen = [storage.var for storage in self.storages.all() if storage.var is not None]
        untold = [variable for variable in seen if variable.kept or not _is_told(variable)]
        untold += [storage.variable() for storage in self.gradients.storages()]
        found = failures.first_of(variable for variable in untold if _thread_of(variable) == get_ident())
        with self.telling():
            if found is not None:
                failures.raise_for_one(found)

    def ready(self, tensor: torch.Tensor) -> bool:
        """Whether a read of a tensor would not wait; what it needs is pushed."""
        storage = self._storage(tensor) if tensor.__class__ is LazyTensor else self.storages.find(tensor)
        if storage is None:
            return True
        if storage.recording is not None:
            self.flush(storage.recording)
        producer = tensor.value.producer if tensor.__class__ is LazyTensor else None
        return all(place is None or place.var is None or engine().ready(place.var) for place in (storage, producer))

    def wait_for(self, tensor: torch.Tensor) -> None:
        """Wait until a tensor has the elements it must have now; raise what happened to them instead."""
        storage = self._storage(tensor) if tensor.__class__ is LazyTensor else self.storages.find(tensor)
        if storage is None:
            return
        if storage.recording is not None:
            self._flush_for_wait(storage.recording)
        self.gradients.flush()
        variables = [storage.var] if storage.var is not None else []
        if tensor.__class__ is LazyTensor and (producer := tensor.value.producer) is not None:
            variables.append(producer.variable())
        # In this order: a task that fails is known to have failed before it is done.
        if not all(map(engine().ready, variables)) or engine().failures.known:
            self.wait_on(*variables)

    def _flush_for_wait(self, recording: Recording) -> None:
        self.flush(recording, waits=True)
        self._be_impatient()

    def wait_on(self, *variables: Var) -> None:
        """Wait for variables of the engine; raise what poisons one of them."""
        with waiting(), self.telling():
            engine().wait(*variables)

    def _real(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.__class__ is not LazyTensor:
            if self.storages.find(tensor) is not None:
                self.wait_for(tensor)
            return tensor
        self.wait_for(tensor)
        real: torch.Tensor | None = tensor.value.real
        assert real is not None, "a wait that raised nothing leaves a tensor"
        return real

    def _finish_unmade(self, values: Sequence[LazyValue]) -> None:
        """Push all that these values need before the first wait, and wait once for all of them."""
        storages = {value.storage: None for value in values}
        recordings = {storage.recording: None for storage in storages}
        for recording in recordings:
            if recording is not None:
                self._flush_for_wait(recording)
        self.gradients.flush()
        variables = [storage.var for storage in storages if storage.var is not None]
        producers = {value.producer: None for value in values}
        variables += [producer.variable() for producer in producers if producer is not None]
        if variables:
            self.wait_on(*variables)

    def make_ordinary(self, args: Any, kwargs: Any) -> bool:
        """Make ordinary tensors of lazy ones, where nothing is queued; tell whether none is lazy any more."""
        if not self.nothing_left():
            return False
        found = [tensor for tensor in tensors_in((args, kwargs)) if tensor.__class__ is LazyTensor]
        # None, if they are where only PyTorch finds them.
        return bool(found) and all(list(map(become_ordinary, found)))

    def settled(self, thing: Any, own: frozenset[int] = frozenset()) -> Any:
        """Nested values with the ordinary tensor in the place of each lazy one, all of them finished.

        `own` is memory (see `storage_key`) that the caller has to itself, as a task has what it was pushed for.
        """
        self._finish_unmade(
            [value for tensor in tensors_in(thing, noted=True) if (value := _unmade(tensor)) is not None]
        )
        nothing_left = False

        def settle(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal nothing_left
            real = tensor.value.real if tensor.__class__ is LazyTensor else tensor
            if nothing_left and real is not None:
                return real
            if own and real is tensor and (self.storages.find(tensor) is None or storage_key(tensor) in own):
                return tensor
            found = self._real(tensor)
            nothing_left = not own and self.nothing_left()  # a task is in flight itself
            return found

        return each_tensor(settle, thing)


SESSION = Session()


def _unmade(tensor: torch.Tensor) -> LazyValue | None:
    """The value of a lazy tensor, while no ordinary one is there."""
    value: LazyValue | None = tensor.value if tensor.__class__ is LazyTensor else None
    return value if value is not None and value.real is None else None


def _is_told(variable: Var) -> bool:
    return not isinstance(variable.failure, Failure) or variable.failure.reported


def _thread_of(variable: Var) -> int | None:
    return variable.failure.thread if isinstance(variable.failure, Failure) else None


def results_of(
    schema: CallSchema, tensors: Sequence[Any], recording: Recording, storages: list[LazyStorage] | None
) -> Any:
    """What the call gives; `storages` are those of its tensors, where the schema needs them."""
    results: list[Any] = []
    for output in schema.outputs:
        if output.same >= 0:
            results.append(tensors[output.same])
            continue
        storage = storages[output.view_of] if output.view_of >= 0 and storages is not None else LazyStorage()
        storage.recording = recording
        assert output.metadata is not None
        value = LazyValue(output.metadata, storage, recording, len(recording.values))
        recording.hold(value)
        results.append(lazy_tensor(value))
    return results[0] if schema.kind is None else schema.kind(results)


DROPOUT = ("input", "p", "training", "inplace")


def _dropout(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Draw which numbers fall away at once, so that random streams stay in order, and queue the product with that."""
    given = dict(zip(DROPOUT, args, strict=False)) | kwargs
    tensor, p = given["input"], given.get("p", 0.5)
    metadata = tensor.value.current_metadata() if tensor.__class__ is LazyTensor else metadata_of(tensor)
    usual = len(args) <= len(DROPOUT) and given.keys() <= set(DROPOUT)
    plain = usual and not given.get("inplace") and given.get("training", True) is True and 0 < p < 1
    if metadata is None or not plain or not metadata.dtype.is_floating_point or 0 in metadata.shape:
        return SESSION.now(function, args, kwargs, changes=True)
    placeholder = torch.empty_strided(metadata.shape, metadata.strides, dtype=metadata.dtype, device="meta")
    noise = torch.empty_like(placeholder, device="cpu").bernoulli_(1 - p).div_(1 - p)  # as PyTorch's own operator does
    return SESSION.call(torch.mul, (tensor, noise), {})


SESSION.handle({functional.dropout: _dropout})
