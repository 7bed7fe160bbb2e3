"""Run cheap operators at their call, where nobody could tell that they were not queued.

To queue an operator, and to have a thread take it up, takes some twenty microseconds; many operators take less. One
that is known to be cheap runs at its call while the engine's turn is held: what other threads push comes after it.
What it reads must be written, and nothing may have failed. If it raises, it is queued after all: it fails again there,
and whoever waits for it is told, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.engine import Engine
from weft.lazy_tensors.tasks import engine
from weft.mx.arrays.handle import Chunk, Handle
from weft.mx.arrays.queue import WATCH
from weft.mx.arrays.tape import modes
from weft.mx.operators.table import OperatorRule, Shape
from weft.trace.interception.modes import operators_are_plain

MOST_SECONDS = 50e-6  # of processor time: what takes longer is better done beside Python than in its place
MOST_RUNS = 32  # whose times are taken; the first ones may have come with work that is done once
MOST_KINDS = 16384
ARRAY: list[Any] = [Handle]  # the class of results; `ndarray` puts its own here, `mx.np` adds one
Types = tuple[tuple[Shape, torch.dtype], ...]


class CallKind:
    """What is known of an operator with some parameters, called with arrays of some sizes and types."""

    __slots__ = ("cheap", "runs", "types")

    def __init__(self, types: Types) -> None:
        self.types = types  # the sizes and types of its results
        self.runs = 0
        self.cheap = False

    @property
    def is_timed(self) -> bool:
        """Whether it is worth knowing how long the next run takes."""
        return not self.cheap and self.runs < MOST_RUNS

    def note(self, seconds: float) -> None:
        """Note how long a run took."""
        self.runs += 1
        self.cheap = seconds <= MOST_SECONDS


_kinds: dict[Any, CallKind] = {}


def kind_key(rule: OperatorRule, p: Any, inputs: Sequence[Handle]) -> Any:
    """What calls of one kind have in common: the values of mere numbers may differ."""
    if rule.numbers:
        p = p._replace(**dict.fromkeys(rule.numbers))
    return (rule, p, *[(array._shape, array._dtype) for array in inputs])


def kind_of(key: Any) -> CallKind | None:
    """The kind of a call, if there was one like it."""
    return _kinds.get(key)


def keep_kind(key: Any, types: Types) -> CallKind:
    """Remember the sizes and types of the results of calls of a kind."""
    if len(_kinds) > MOST_KINDS:
        _kinds.clear()
    made = _kinds[key] = CallKind(types)
    return made


def take_turn(inputs: Sequence[Handle]) -> Engine | None:
    """Hold the engine's turn, if the inputs are written and nothing has failed; `give_turn_back` follows."""
    runner = engine()
    if runner.__class__ is not Engine or WATCH[0] is not None or not operators_are_plain():
        return None
    assert isinstance(runner, Engine)
    if not runner.take_turn():
        return None
    if runner.is_quiet():
        return runner
    for array in inputs:
        variable = array._chunk.known_variable
        if variable is not None and (writer := variable.latest) is not None and not writer.done:
            break
    else:
        # Looked at last: a task that fails tells so before it is done.
        if runner.skips_none:
            return runner
    runner.give_turn_back()
    return None


class PreparedCall:
    """A call of an operator that changes nothing, with its parameters read: to be run at once with arrays."""

    __slots__ = ("_kinds", "p", "rule")

    def __init__(self, rule: OperatorRule, p: Any, kinds: dict[Any, CallKind] | None = None) -> None:
        self.rule = rule
        self.p = p
        self._kinds: dict[Any, CallKind] = {} if kinds is None else kinds  # those that are cheap, by sizes and types

    def run(self, arrays: Sequence[Handle]) -> list[Any] | None:
        """The results, or None: it is not cheap, or must wait, or is recorded, and is to be queued."""
        if modes.recording or (self.rule.modal and modes.training != self.p.train):
            return None
        key = tuple([(array._shape, array._dtype) for array in arrays])
        kind = self._kinds.get(key)
        if kind is None:
            kind = _kinds.get(kind_key(self.rule, self.p, arrays))
            if kind is None or not kind.cheap:
                return None
            self._kinds[key] = kind
        runner = take_turn(arrays)
        if runner is None:
            return None
        try:
            tensors = [
                array._chunk.tensor if array._begin < 0 and array._chunk.tensor is not None else array.raw()
                for array in arrays
            ]
            return as_arrays(self.rule.compute(self.p, *tensors), tensors, arrays, kind.types)
        except Exception:  # noqa: BLE001  # it is queued, fails there, and is told to whoever waits
            return None
        finally:
            runner.give_turn_back()


def array_class(inputs: Sequence[Handle]) -> Any:
    """The class of what is computed of arrays: that of `mx.np`, if one of them is of that."""
    for each in inputs:
        if each.is_numpy:
            return ARRAY[1]
    return ARRAY[0]


def as_arrays(results: Any, tensors: Sequence[Tensor], inputs: Sequence[Handle], types: Types) -> list[Any]:
    """Arrays of what an operator has given; the turn is held, as some may be seen through its inputs."""
    context = inputs[0]._chunk.context
    make = array_class(inputs)
    arrays = []
    for tensor, (shape, dtype) in zip((results,) if isinstance(results, Tensor) else results, types, strict=False):
        chunk = Chunk(context, tensor if tensor.dtype is dtype else tensor.to(dtype))
        shares = tensor._base is not None
        for given in tensors:
            shares |= tensor is given
        if shares:
            chunk.aliased = True
            for source in inputs:
                source._chunk.aliased = True
        arrays.append(make(chunk, shape, dtype))
    return arrays
