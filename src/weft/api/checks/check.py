"""Make the first calls of a program twice, by eager PyTorch and by the program, and compare what both leave.

The random streams, the arguments, and all that the code can reach are put back in between. What the caller gets, and
what is left behind, is the program's doing.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from weft.api.checks.differences import (
    Bound,
    Comparison,
    Difference,
    Gradients,
    gradient_difference,
    movement,
    movements,
)
from weft.api.checks.first_value import FirstValue, first_lost_value, first_wrong_value
from weft.api.checks.snapshot import Snapshot, TensorContent
from weft.errors import InternalError, MismatchError, UnsupportedError, UsageError
from weft.ir.generator import generator_state
from weft.ir.graph import Graph
from weft.trace.interception.user_lines import user_stack_level

RESULT = "the result"
NEIGHBOURS = 4  # copies of what a call is given, moved by last bits: how far eager's own answer moves
COTANGENT_SEED = 99


@dataclass(frozen=True, slots=True)
class Work:
    """One call: what makes it in both ways, what it can reach, and the program that it runs.

    `program` gives the graph and what gives its inputs; None where nothing is known of it.
    """

    name: str
    eager: Callable[[], Any]
    ours: Callable[[], Any]
    roots: Mapping[str, Any]
    program: Callable[[], tuple[Graph, list[Any]] | None]
    off: str  # how the user goes on without
    defined: str | None = None  # the line where the code begins


class Streams:
    """Where the random streams are that belong to the whole process."""

    def __init__(self) -> None:
        self._torch = generator_state()
        self._devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._python = random.getstate()
        numpy: Any = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None

    def put_back(self) -> None:
        """Let the streams go on from there."""
        torch.set_rng_state(self._torch)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)

    def difference(self, ours: Streams) -> Difference | None:
        """Say which stream is elsewhere."""
        same = {
            "torch": torch.equal(self._torch, ours._torch),
            "torch.cuda": all(map(torch.equal, self._devices, ours._devices)),
            "random": self._python == ours._python,
            "numpy.random": str(self._numpy) == str(ours._numpy),
        }
        moved = next((name for name, is_same in same.items() if not is_same), None)
        stream = f"the random stream of {moved}"
        return None if moved is None else Difference(stream, "is elsewhere than eager PyTorch's")


@dataclass(slots=True, eq=False)
class Remainder:
    """What a call left behind."""

    result: Any
    error: Exception | None
    snapshot: Snapshot
    streams: Streams
    gradients: Gradients = field(default_factory=dict)


class Check:
    """Counts the calls of a function or module that are still to be checked, and checks them one at a time."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self._lock = RLock()
        self._is_checking = False

    def run(self, work: Work) -> Any:
        """Make a call in both ways; gives what the program gave, or raises MismatchError."""
        # Whoever waits here holds no other lock of ours; the thread that checks runs user code, which may come back.
        with self._lock:
            if self._is_checking or not self.left:
                return work.ours()
            self._is_checking = True
            try:
                left = _compared(work)
            finally:
                self._is_checking = False
            self.left -= 1
        if left.error is not None:
            raise left.error
        return left.result


def call_and_undo(call: Callable[[], object], roots: Mapping[Any, Any]) -> None:
    """Make a call; if it raises, so does this, and else all that it changed is put back, random streams too."""
    before, streams = Snapshot({str(key): root for key, root in roots.items()}), Streams()
    call()
    before.put_back()
    streams.put_back()


def _compared(work: Work) -> Remainder:
    streams, before = Streams(), Snapshot(work.roots)
    leaves = _differentiable(before)
    eager = _made(work.eager, before)
    eager.gradients = _gradients(eager, leaves, is_last=True)
    lost = [*before.put_back()]
    streams.put_back()
    if lost:
        eager.snapshot.put_back()
        eager.streams.put_back()
        warnings.warn(
            f"weft: a call of {work.name} ran by eager PyTorch, and was not checked: what it changed cannot be put "
            f"back ({lost[0]})",
            stacklevel=user_stack_level(),
        )
        return eager
    ours = _made(work.ours, before)
    if isinstance(ours.error, (UnsupportedError, UsageError)) and type(ours.error) is not type(eager.error):
        return ours
    ours.gradients = _gradients(ours, leaves, is_last=False)
    found = _difference(before, eager, ours, Bound(_precision(before)))
    if found is not None and found.is_of_numbers:
        found = _difference(before, eager, ours, _moved_bound(work, before, streams, eager, leaves))
    if found is None:
        ours.snapshot.put_back()
        ours.streams.put_back()
        return ours
    before.put_back()
    streams.put_back()
    raise _mismatch(work, found, before, streams)


def _made(call: Callable[[], Any], before: Snapshot) -> Remainder:
    result, error = None, None
    try:
        result = call()
    except InternalError:
        raise
    except Exception as raised:  # noqa: BLE001 - what eager raises is what the program must raise
        error = raised
    return Remainder(result, error, Snapshot({RESULT: result, **before.roots}, before), Streams())


def _differentiable(before: Snapshot) -> dict[str, Any]:
    """What gradients are asked for: edges of autograd's graph as they are before the call, which may write in place."""
    if not torch.is_grad_enabled():
        return {}
    return {
        entry.path: get_gradient_edge(entry.thing)
        for entry in before.entries.values()
        if isinstance(entry.thing, torch.Tensor) and entry.thing.requires_grad
    }


def _gradients(left: Remainder, leaves: Mapping[str, Any], *, is_last: bool) -> Gradients:
    """Send a fixed random cotangent back from each tensor of the result; nothing is added to any `.grad`."""
    outputs = [
        entry.thing
        for entry in left.snapshot.entries.values()
        if entry.path.startswith(RESULT) and isinstance(entry.thing, torch.Tensor) and entry.thing.grad_fn is not None
    ]
    if not outputs or not leaves or left.error is not None:
        return {}
    generator = torch.Generator().manual_seed(COTANGENT_SEED)
    cotangents = [
        torch.randn(output.shape, dtype=output.dtype, generator=generator).to(output.device) for output in outputs
    ]
    try:
        found = torch.autograd.grad(
            outputs, [*leaves.values()], cotangents, retain_graph=not is_last, allow_unused=True
        )
    except RuntimeError as error:
        if isinstance(error, InternalError):
            raise
        return {f"what backward raises, {type(error).__name__}": None}
    return dict(zip(leaves, found, strict=True))


def _difference(before: Snapshot, eager: Remainder, ours: Remainder, bound: Bound) -> Difference | None:
    if type(eager.error) is not type(ours.error):
        return Difference("the call", f"raises {_raised(ours.error)}, eager PyTorch {_raised(eager.error)}")
    found = Comparison(before, eager.snapshot, ours.snapshot, bound).first([*eager.snapshot.roots])
    if found is not None and not found.is_of_numbers:
        return found
    if eager.gradients.keys() != ours.gradients.keys():
        return Difference("backward", f"gives {[*ours.gradients]}, eager PyTorch's {[*eager.gradients]}")
    gradients = gradient_difference(eager.gradients, ours.gradients, bound)
    return found or gradients or eager.streams.difference(ours.streams)


def _raised(error: Exception | None) -> str:
    return "nothing" if error is None else f"{type(error).__name__}: {error}"


def _precision(before: Snapshot) -> torch.dtype:
    """The shortest floating-point numbers that may take part."""
    kinds = [entry.held.memory.dtype for entry in before.entries.values() if isinstance(entry.held, TensorContent)]
    if torch.is_autocast_enabled("cpu"):
        kinds.append(torch.get_autocast_dtype("cpu"))
    short = [kind for kind in kinds if kind in (torch.bfloat16, torch.float16)]
    return short[0] if short else torch.float32


def _moved_bound(work: Work, before: Snapshot, streams: Streams, eager: Remainder, leaves: Mapping[str, Any]) -> Bound:
    """How far eager's own answer moves when all numbers that it is given move by their last bits."""
    farthest: dict[str, float] = {}
    for seed in range(NEIGHBOURS):
        before.put_back()
        streams.put_back()
        _nudge(before, seed)
        moved = _made(work.eager, before)
        moved.gradients = _gradients(moved, leaves, is_last=True)
        found = movements(eager.snapshot, moved.snapshot)
        found |= {
            f"the gradient of {path}": movement(gradient, moved.gradients.get(path))
            for path, gradient in eager.gradients.items()
        }
        farthest = {path: max(size, farthest.get(path, 0.0)) for path, size in found.items()}
    before.put_back()
    streams.put_back()
    return Bound(_precision(before), farthest)


def _nudge(before: Snapshot, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for entry in before.entries.values():
        if not isinstance(entry.held, TensorContent) or entry.held.elements is None:
            continue
        memory, elements = entry.held.memory, entry.held.elements
        if elements.dtype not in (torch.float32, torch.float64) or not elements.numel() or elements.is_sparse:
            continue
        if any(step == 0 and size > 1 for size, step in zip(memory.shape, memory.stride(), strict=True)):
            continue
        up = (torch.rand(elements.shape, generator=generator) < 1 / 2).to(elements.device)
        ends = torch.where(up, torch.inf, -torch.inf).to(elements.dtype)
        with torch.inference_mode(memory.is_inference()), torch.no_grad():
            stays = (elements == 0) | ~elements.isfinite()
            memory.data.copy_(torch.where(stays, elements, torch.nextafter(elements, ends)))


def _mismatch(work: Work, found: Difference, before: Snapshot, streams: Streams) -> MismatchError:
    first = _first_value(work, before, streams)
    why = "this is a mistake in Weft, not in your program"
    return MismatchError(
        f"{work.name} does something else as a program than by eager PyTorch: {found.path} {found.text}",
        where=work.defined if first is None else first.where,
        why=why if first is None else f"{first.text}; {why}",
        fix=f"please report it with this message; {work.off}",
    )


def _first_value(work: Work, before: Snapshot, streams: Streams) -> FirstValue | None:
    ready = work.program()
    if ready is None:
        return None
    graph, inputs = ready
    bound = Bound(_precision(before))

    def given() -> list[Any]:
        before.put_back()
        streams.put_back()
        return [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in inputs]

    found = first_wrong_value(graph, given, bound) or first_lost_value(graph, given, work.eager, bound)
    before.put_back()
    streams.put_back()
    return found
