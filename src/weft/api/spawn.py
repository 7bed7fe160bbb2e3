"""Run a coarse piece of work as a task of the engine, ordered by the tensors that go in and come out.

Of calls of one kind, what one was seen to write holds for the others. Functions made by one piece of code are one kind
only if what they call is too: a decorator's wrappers share their code. Modules, and other objects that are called, are
kinds of their own.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from weft.api.thread_modes import GpuLane, ThreadModes, same_modes, thread_modes
from weft.codegen.torch_functions import version_of
from weft.engine import Placement, Var
from weft.engine.failures import Damage, PartialFailure
from weft.errors import InternalError, UsageError
from weft.lazy_tensors.session import SESSION
from weft.lazy_tensors.tasks import engine, operator_cores, place_text, user_place
from weft.lazy_tensors.tensor import LazyTensor, tensors_in
from weft.trace.interception.capture import storage_key, tree_flatten, tree_map_only, without_functions
from weft.trace.python_state.containers import look
from weft.trace.python_state.reachable import find_state
from weft.tracebacks import shows_less

BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
DEEPEST = 4  # functions in functions; a function that refers to itself has no end
_numbers = itertools.count()
_tokens = WeakIdKeyDictionary()  # equal objects are not one


def kind_of_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give what calls of one kind have in common."""
    given = [thing for thing in (*args, *kwargs.values()) if isinstance(thing, nn.Module | types.FunctionType)]
    return (_kind(function), len(args), tuple(kwargs), *map(_kind, given))


def _kind(thing: Any, depth: int = 0) -> Any:
    if depth == DEEPEST:
        return type(thing)
    if isinstance(thing, functools.partial):
        return (functools.partial, *(_kind(part, depth + 1) for part in (thing.func, *thing.args) if callable(part)))
    if isinstance(thing, types.MethodType):
        return (_kind(thing.__func__, depth + 1), _kind(thing.__self__, depth + 1))
    if isinstance(thing, types.FunctionType):
        return (thing.__code__, *(_kind(part, depth + 1) for part in _captured(thing)))
    if isinstance(thing, BUILTIN):
        return (type(thing), thing.__qualname__)
    if isinstance(thing, nn.Module):
        return (_token(thing), thing.training)
    return _token(thing)


def _captured(function: types.FunctionType) -> list[Any]:
    """What may be called among what a function has from around it."""
    found = (look(cell, None) for cell in function.__closure__ or ())
    return [thing for thing in found if callable(thing) and not isinstance(thing, type)]


def _token(thing: Any) -> Any:
    """A number of an object's own; of objects that cannot be told apart, their type."""
    try:
        return _tokens.setdefault(thing, next(_numbers))
    except TypeError:
        return type(thing)


_placed: ContextVar[str | None] = ContextVar("weft_spawn_lane", default=None)
AS_GIVEN = frozenset((torch.Tensor, nn.Parameter, int, float, bool, str, type(None)))  # a function gets the very thing
NO_RESULTS = AS_GIVEN | {LazyTensor}
# For each kind of call: which of its tensors it has been seen to write, by place; and whether it was seen at all.
_WRITES: dict[Hashable, set[int]] = {}


@contextmanager
def placed(lane: str) -> Iterator[None]:
    """Send what is spawned in the block to a lane."""
    token = _placed.set(lane)
    try:
        yield
    finally:
        _placed.reset(token)


class Spawned:
    """What a spawned function will give. Hand it to `weft.wait`, to another `spawn`, or to a function of PyTorch."""

    def __init__(self) -> None:
        self._variable = Var("a spawned result")
        self._value: Any = None

    def result(self) -> Any:
        """Wait for the function and give what it returned; raise what it raised."""
        SESSION.wait_on(self._variable)
        return self._value

    def ready(self) -> bool:
        """Tell whether `result` would return at once."""
        return engine().ready(self._variable)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A function of PyTorch is called with it: the tensor that it stands for takes its place."""
        args, kwargs = resolved((args, kwargs or {}))
        return func(*args, **kwargs)


def resolved(item: Any) -> Any:
    """Nested arguments with results in the place of what stands for them."""
    waited = _results_in(item)
    if waited:
        SESSION.wait_on(*[thing._variable for thing in waited])
    return _with_values(item) if waited else item


def _with_values(item: Any) -> Any:
    """Nested arguments with the values of results that are there."""
    if type(item) is Spawned:
        return item._value
    if type(item) in (list, tuple):
        return type(item)([entry if type(entry) in NO_RESULTS else _with_values(entry) for entry in item])
    # Others stay the very objects they are: what PyTorch builds anew may be of another class (a tuple for a Size).
    return tree_map_only(Spawned, lambda thing: thing._value, item) if _results_in(item) else item


@shows_less
def spawn(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Spawned:
    """Call a function in the background, when the tensors that go in are computed; gives what stands for its result.

    Work on tensors that the call takes, that its modules hold or that it captured keeps its order with other spawned
    and lazy work. It runs under the modes of this call, as of `torch.no_grad`. The first call of a
    function has its tensors to itself; later ones share those that it did not write.
    """
    if not callable(function):
        raise UsageError(f"weft.spawn was given a {type(function).__name__}", fix="weft.spawn(function, *arguments)")
    SESSION.settings.watch(SESSION.finish)
    with without_functions():
        return _spawn(function, args, kwargs)


def _spawn(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Spawned:
    made = Spawned()
    tensors = list({id(tensor): tensor for tensor in _reached(function, args, kwargs)}.values())
    variables = [variable for tensor in tensors for variable in SESSION.variables(tensor)]
    key = kind_of_call(function, args, kwargs)
    written = _WRITES.get(key)
    exclusive = range(len(tensors)) if written is None else written
    writes = {
        variable: None for index in exclusive if index < len(tensors) for variable in SESSION.variables(tensors[index])
    }
    changed = tuple(writes)
    writes[made._variable] = None
    waited = _results_in((args, kwargs))
    reads = dict.fromkeys((*variables, *(thing._variable for thing in waited)))
    lane = _placed.get()
    place = place_text(*user_place())
    gpu = GpuLane(lane) if lane is not None and not lane.startswith("cpu") else None
    task = _Task((function, args, kwargs), made, key, tensors, changed, lane is not None, thread_modes(), gpu)
    engine().push(task, list(reads), list(writes), Placement(lane or "cpu", where=place), _name(function))
    return made


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """Calls the function with finished tensors, and looks at which of them it wrote."""

    call: tuple[Any, Any, Any]
    made: Spawned
    key: Hashable
    tensors: Sequence[torch.Tensor]
    changed: tuple[Var, ...]  # the variables of those that it may write
    alone: bool  # placed on one core
    modes: ThreadModes
    gpu: GpuLane | None  # where it is placed on one

    def __call__(self) -> None:
        """Run it."""
        try:
            self._run()
        except Exception as error:
            # What it may have written holds what the function left there, as after a call of eager code.
            raise PartialFailure([Damage(error, (self.made._variable,), self.changed)]) from error

    def _run(self) -> None:
        function, args, kwargs = self.call
        reals = [_real(tensor) for tensor in self.tensors]
        by_id = {id(tensor): real for tensor, real in zip(self.tensors, reals, strict=True)}
        if any(type(thing) not in AS_GIVEN for thing in (*args, *kwargs.values())):
            args, kwargs = tree_map_only(LazyTensor, lambda tensor: by_id[id(tensor)], (args, kwargs))
            args, kwargs = _with_values((args, kwargs))
        versions = [version_of(real) for real in reals]
        gpu = self.gpu
        with (
            same_modes(self.modes),
            operator_cores(1) if self.alone else nullcontext(),
            gpu.entered() if gpu else nullcontext(),
        ):
            self.made._value = SESSION.settled(function(*args, **kwargs), frozenset(map(storage_key, reals)))
        if gpu is not None:
            gpu.hand_over(self.made._value)
        changed = {index for index, real in enumerate(reals) if version_of(real) != versions[index]}
        known = _WRITES.setdefault(self.key, changed)
        if not changed <= known:
            known |= changed
            raise UsageError(
                f"{_name(function)} wrote a tensor that it did not write when it was first spawned",
                why="other work may have read that tensor at the same time",
                fix="give it what it writes as a result instead, or spawn two functions",
            )


def _real(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.__class__ is not LazyTensor:
        return tensor
    real: torch.Tensor | None = tensor.value.real
    if real is None:
        raise InternalError("a spawned function ran before what it takes was computed")
    return real


def _results_in(item: Any) -> list[Spawned]:
    if type(item) in NO_RESULTS:
        return []
    if type(item) is Spawned:
        return [item]
    if type(item) in (list, tuple):
        return [result for entry in item if type(entry) not in NO_RESULTS for result in _results_in(entry)]
    return [leaf for leaf in tree_flatten(item)[0] if isinstance(leaf, Spawned)]


def _reached(function: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """The tensors that a call can see: its arguments, those of modules, and those that its code names."""
    yield from tensors_in((args, kwargs))
    roots = [thing for thing in (*args, *kwargs.values()) if isinstance(thing, (nn.Module, types.FunctionType))]
    for slot in find_state(function, *roots).slots.values():
        found = slot.get()
        if isinstance(found, torch.Tensor):
            yield found


def _name(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
