"""A look at tensors -> a wait for what makes them, and for what changes their memory."""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any

import torch

from weft.engine import Var
from weft.engine.failures import Failure
from weft.lazy_tensors.cores import waiting
from weft.lazy_tensors.questions import each_tensor, in_task, tensors_in
from weft.lazy_tensors.recording import Recording
from weft.lazy_tensors.sending import Recordings
from weft.lazy_tensors.tasks import engine
from weft.lazy_tensors.tensor import LazyTensor, become_ordinary
from weft.lazy_tensors.values import Memory, Value
from weft.trace.interception.capture import storage_key


class Waits(Recordings):
    """How threads wait for tensors, and what orders work that they are given to."""

    def _memory(self, tensor: torch.Tensor) -> Memory:
        if tensor.__class__ is not LazyTensor:
            return self.memories.of(tensor)
        value: Value = tensor.value
        # Once it is real, an ordinary tensor may share its memory.
        return value.memory if value.real is None else self.memories.bind(value.real, value.memory)

    def variables(self, tensor: torch.Tensor) -> list[Var]:
        """What orders tasks that take this tensor, which other than lazy code will push; what it needs is pushed."""
        memory = self._memory(tensor)
        if memory.recording is not None:
            self.flush(memory.recording)
        maker = tensor.value.maker if tensor.__class__ is LazyTensor else None
        return [memory.variable()] if maker is None else [memory.variable(), maker.variable()]

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
        seen = [memory.var for memory in self.memories.all() if memory.var is not None]
        untold = [variable for variable in seen if variable.kept or not _is_told(variable)]
        untold += [memory.variable() for memory in self.gradients.memories()]
        found = failures.first_of(variable for variable in untold if _thread_of(variable) == get_ident())
        with self.telling():
            if found is not None:
                failures.raise_for_one(found)

    def ready(self, tensor: torch.Tensor) -> bool:
        """Whether a look at a tensor would not wait; what it needs is pushed."""
        memory = self._memory(tensor) if tensor.__class__ is LazyTensor else self.memories.find(tensor)
        if memory is None:
            return True
        if memory.recording is not None:
            self.flush(memory.recording)
        maker = tensor.value.maker if tensor.__class__ is LazyTensor else None
        return all(place is None or place.var is None or engine().ready(place.var) for place in (memory, maker))

    def wait_for(self, tensor: torch.Tensor) -> None:
        """Wait until a tensor has the elements it must have now; raise what happened to them instead."""
        memory = self._memory(tensor) if tensor.__class__ is LazyTensor else self.memories.find(tensor)
        if memory is None:
            return
        if memory.recording is not None:
            self._flush_for_wait(memory.recording)
        self.gradients.flush()
        variables = [memory.var] if memory.var is not None else []
        if tensor.__class__ is LazyTensor and (maker := tensor.value.maker) is not None:
            variables.append(maker.variable())
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
            if self.memories.find(tensor) is not None:
                self.wait_for(tensor)
            return tensor
        self.wait_for(tensor)
        real: torch.Tensor | None = tensor.value.real
        assert real is not None, "a wait that raised nothing leaves a tensor"
        return real

    def _finish_unmade(self, values: Sequence[Value]) -> None:
        """Push all that these values need before the first wait, and wait once for all of them."""
        memories = {value.memory: None for value in values}
        recordings = {memory.recording: None for memory in memories}
        for recording in recordings:
            if recording is not None:
                self._flush_for_wait(recording)
        self.gradients.flush()
        variables = [memory.var for memory in memories if memory.var is not None]
        variables += [maker.variable() for maker in {value.maker: None for value in values} if maker is not None]
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
            if own and real is tensor and (self.memories.find(tensor) is None or storage_key(tensor) in own):
                return tensor
            found = self._real(tensor)
            nothing_left = not own and self.nothing_left()  # a task is in flight itself
            return found

        return each_tensor(settle, thing)


def _unmade(tensor: torch.Tensor) -> Value | None:
    """The value of a lazy tensor, while no ordinary one is there."""
    value: Value | None = tensor.value if tensor.__class__ is LazyTensor else None
    return value if value is not None and value.real is None else None


def _is_told(variable: Var) -> bool:
    return not isinstance(variable.failure, Failure) or variable.failure.reported


def _thread_of(variable: Var) -> int | None:
    return variable.failure.thread if isinstance(variable.failure, Failure) else None
