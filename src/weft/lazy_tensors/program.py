"""Compile segments as programs, found again by the numbers and shared memory that they depend on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any

import torch

from weft.errors import UnsupportedError, WeftError
from weft.programs.program import Program
from weft.runtime.differentiable import Replay
from weft.trace.python_state.reachable import find_state
from weft.trace.python_state.trees import TensorLeaf
from weft.trace.request import Request
from weft.trace.several_traces import trace_program
from weft.trace.signature import Key, memory_key
from weft.trace.traced import Traced

MOST_PROGRAMS = 2


@dataclass(frozen=True, slots=True, eq=False)
class _SegmentProgram:
    """A program, and what must be as it was when it was traced."""

    program: Program
    arguments: tuple[int, ...]
    numbers: tuple[int, ...]
    fixed: tuple[tuple[int, Any], ...]  # numbers that the program was made for
    written: frozenset[int] | None  # None: it depends on where tensors start in memory
    memory: Key | None  # None: it does not matter which tensors share memory

    def fits(self, tensors: list[torch.Tensor], numbers: Sequence[Any]) -> bool:
        """Whether it computes what the function would."""
        for position, value in self.fixed:
            if numbers[position] != value:
                return False
        return self.memory is None or memory_key(tensors, self.written) == self.memory


class SegmentPrograms:
    """Runs a function as programs. Its callers see to it that the tensors' metadata never differs, nor modes."""

    def __init__(self, function: Callable[[list[torch.Tensor], list[Any]], list[Any]]) -> None:
        self._function = function
        self._programs: list[_SegmentProgram] = []
        # On the other side: another thread that runs the same segment and traces it; it waits for nobody here.
        self._lock = RLock()

    def run(self, tensors: list[torch.Tensor], numbers: list[Any]) -> Sequence[Any]:
        """Run the program of these arguments; trace one if there is none."""
        for program in self._programs:
            if program.fits(tensors, numbers):
                break
        else:
            program = self._trace(tensors, numbers)
        inputs = [*(tensors[index] for index in program.arguments), *(numbers[index] for index in program.numbers)]
        return program.program.run(inputs)  # type: ignore[no-any-return]

    def _trace(self, tensors: list[torch.Tensor], numbers: list[Any]) -> _SegmentProgram:
        with self._lock:
            if len(self._programs) >= MOST_PROGRAMS:
                raise UnsupportedError("a lazy segment's numbers or memory change in ways that need many programs")
            count = len(tensors)
            request = Request(
                self._function,
                (tensors, numbers),
                {},
                "lazy_segment",
                find_state(),
                tuple(
                    f"{name}{index}" for name, items in (("t", tensors), ("n", numbers)) for index in range(len(items))
                ),
                frozenset(range(count, count + len(numbers))),
                draws=False,  # random operators are never queued, and other threads draw while this one traces
            )
            try:
                traced = trace_program(request)
            except WeftError:
                raise
            except Exception as error:
                raise UnsupportedError("a lazy segment cannot be traced", why=str(error)) from error
            found = _checked(traced, tensors, numbers, self._lock)
            if len(found.arguments) == count:
                found.program.replay_by(self._replay(traced.leaves, len(traced.graph.results), found, numbers))
            found.program.prepare_backward()  # in the backward itself it is too late to run the segment otherwise
            self._programs.append(found)
            return found

    def _replay(self, leaves: Sequence[Any], count: int, program: _SegmentProgram, numbers: list[Any]) -> Replay:
        """What calls the function again on a program's inputs, and gives the results of its graph."""
        places = {leaf.index: place for place, leaf in enumerate(leaves) if isinstance(leaf, TensorLeaf)}

        def replay(inputs: Sequence[Any]) -> Sequence[Any]:
            tensors = dict(zip(program.arguments, inputs, strict=False))
            free = dict(zip(program.numbers, inputs[len(tensors) :], strict=True))
            results = self._function(
                [tensors[place] for place in range(len(tensors))],
                [free.get(place, number) for place, number in enumerate(numbers)],
            )
            return [results[places[index]] if index in places else None for index in range(count)]

        return replay


def _checked(traced: Traced, tensors: list[torch.Tensor], numbers: list[Any], lock: RLock) -> _SegmentProgram:
    count = len(tensors)
    arguments = tuple(entry.argument for entry in traced.inputs if entry.argument is not None)
    if len(arguments) != len(traced.inputs) or any(index >= count for index in arguments):
        raise UnsupportedError("a lazy segment reaches a tensor that it was not given")
    free = tuple(entry.argument - count for entry in traced.numbers if entry.argument is not None)
    written = {write.input for write in traced.graph.writes}
    places = frozenset(
        entry.argument for entry in traced.inputs if entry.value in written and entry.argument is not None
    )
    compared = None if traced.depends_on_offsets else places
    # Parameters change rarely, if nobody trains: what is made of their elements is kept.
    as_weights = replace(
        traced,
        inputs=tuple(
            replace(entry, argument=None) if isinstance(entry.tensor, torch.nn.Parameter) else entry
            for entry in traced.inputs
        ),
    )
    return _SegmentProgram(
        Program(as_weights, lock),
        arguments,
        free,
        tuple((index, number) for index, number in enumerate(numbers) if index not in free),
        compared,
        memory_key(tensors, compared) if written or traced.depends_on_offsets else None,
    )
