"""Find what code that runs in a backward can read of Python: that may change between a forward and its backward.

A hook of a gradient, the backward of an `autograd.Function`, what unpacks a saved tensor and what a checkpoint computes
again read names and attributes when the backward runs, as they are then. What a profiler sees run while a backward is
traced is walked as a root of its own; what it can reach is compared before that backward runs again.
"""

from __future__ import annotations

import dis
import gc
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from weft.owners import Owner, owner_of
from weft.trace.interception.capture import is_of_function
from weft.trace.interception.hearing import noted_by
from weft.trace.interception.refusals import refuse
from weft.trace.python_state.containers import Touched, class_dictionary, look
from weft.trace.python_state.facts import SIMPLE, ModuleFacts, NameFact, name_fact
from weft.trace.python_state.locations import Slot
from weft.trace.python_state.names import LIBRARIES, kept
from weft.trace.python_state.reachable import Fact, PythonState, find_state

# Names by which code lets other code run in a backward, where no node of autograd's graph shows that.
HOOKING = frozenset({"register_hook", "register_prehook", "register_multi_grad_hook"})
OF_NODES = frozenset({"grad_fn", "next_functions", "get_gradient_edge"})  # which do not say what hooks they have
BACKWARDS = frozenset({"backward", "vjp"})
ARITHMETIC = frozenset({"sympy", "mpmath"})  # of PyTorch's symbols, where sizes vary: no code that anybody calls
IMPORTING = "<frozen importlib"
OF_USERS = (Owner.USER, Owner.INSTALLED)
READING = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_CONST")


@dataclass(frozen=True, slots=True, eq=False)
class ReadByBackward:
    """What code of one backward may have read: facts, and the places of tensors with what was there."""

    facts: tuple[Fact, ...]
    places: tuple[tuple[Slot, torch.Tensor], ...]

    def holds(self) -> bool:
        """Whether all of it is as it was."""
        return all(fact.change() is None for fact in self.facts) and all(
            slot.get() is tensor for slot, tensor in self.places
        )


@dataclass(frozen=True, slots=True, eq=False)
class OfCalls:
    """What each call of a program has others of: what it changes in Python, and objects that it is given, or gives."""

    touched: Touched = field(default_factory=Touched)
    things: tuple[Any, ...] = ()


def may_run_code(state: PythonState, roots: Iterable[torch.Tensor]) -> bool:
    """Whether Python code that is not PyTorch's may run in the backward of some tensors."""
    return not HOOKING.isdisjoint(state.mentioned) or has_functions(roots)


def may_hook_nodes(state: PythonState) -> bool:
    """Whether code may put hooks on nodes of autograd, beside those on tensors."""
    return not (HOOKING.isdisjoint(state.mentioned) or OF_NODES.isdisjoint(state.mentioned))


def has_functions(roots: Iterable[torch.Tensor]) -> bool:
    """Whether backwards of an `autograd.Function` run in the backward of some tensors."""
    waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if is_of_function(type(node)):
            return True
        sources = {source for source, _ in node.next_functions if source is not None} - seen
        seen |= sources
        waiting += sources
    return False


class BackwardCode:
    """Notes which code runs in a backward, and on what."""

    def __init__(self) -> None:
        self._ran: dict[types.CodeType, list[Mapping[str, Any]]] = {}
        self._spaces: dict[types.CodeType, dict[str, Any]] = {}

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what runs in this thread in this block."""

        def note(frame: types.FrameType, event: str, _called: Any) -> None:
            if event == "call" and _is_users(frame) and not _is_by_the_way(frame):
                self._ran.setdefault(frame.f_code, []).append({**frame.f_locals})
                self._spaces[frame.f_code] = frame.f_globals

        with noted_by(note):
            yield

    def read(self, calls: OfCalls, changed: Touched, own: Mapping[int, torch.Tensor]) -> ReadByBackward | None:
        """What that code may have read, or nothing; refuse what each call has others of.

        `changed` is what it has changed itself, `own` are the tensors that the program reads by itself.
        """
        if not self._ran:
            return None
        state = find_state(*self._functions(), *self._things())
        _check_made(state, {id(thing) for thing in calls.things if not isinstance(thing, tuple)})
        names = frozenset[str]().union(*map(names_read, self._ran))
        touched = Touched()
        touched.merge(calls.touched)
        touched.merge(changed)
        facts = (*state.facts(touched), *self._backwards())
        for fact in facts:
            _check_moving(fact, calls.touched, names)
        places = ((slot, own[key]) for key, slot in state.slots.items() if key in own)
        return ReadByBackward(facts, tuple(pair for pair in places if pair[0].get() is pair[1]))

    def _functions(self) -> Iterator[types.FunctionType]:
        """The functions that ran: a frame shows what they are closed over, but not in which cells that is.

        Code that is closed over nothing is as good as its function. Functions that traced code makes are among the
        youngest objects; to look through all of them takes as long as a small trace.
        """
        waiting = {code for code in self._ran if code.co_freevars}
        for code in self._ran.keys() - waiting:
            yield types.FunctionType(code, self._spaces[code])
        young = self._which_ran(gc.get_objects(generation=0)) if waiting else []
        yield from young
        found = {code: [one for one in young if one.__code__ is code] for code in waiting}
        waiting = {
            code
            for code, functions in found.items()
            if not all(any(_holds(one, names) for one in functions) for names in self._ran[code])
        }
        yield from self._which_ran(gc.get_referrers(*waiting)) if waiting else ()

    def _which_ran(self, objects: list[Any]) -> list[types.FunctionType]:
        return [one for one in objects if type(one) is types.FunctionType and self._has_run(one)]

    def _has_run(self, function: types.FunctionType) -> bool:
        frames = self._ran.get(function.__code__, ()) if function.__closure__ else ()
        return any(_holds(function, names) for names in frames)

    def _backwards(self) -> Iterator[NameFact]:
        """Where the backwards are that ran: in the classes of functions, where somebody may put others."""
        contexts = (thing for frames in self._ran.values() for names in frames for thing in names.values())
        kinds = {type(one)._forward_cls for one in contexts if isinstance(one, BackwardCFunction)}  # type: ignore[attr-defined]
        for kind in kinds:
            for base in kind.__mro__:
                own = class_dictionary(base)
                for name in BACKWARDS & own.keys():
                    yield name_fact((own, name, f"{base.__name__}.{name}", own[name]), of_class=True)

    def _things(self) -> Iterator[Any]:
        """What they ran on, tensors left out; of the context of a node what code has put there."""
        seen: dict[int, Any] = {}
        for code, frames in self._ran.items():
            count = code.co_argcount + code.co_kwonlyargcount
            count += bool(code.co_flags & 4) + bool(code.co_flags & 8)
            for names in frames:
                for thing in (names[name] for name in code.co_varnames[:count] if name in names):
                    if isinstance(thing, BackwardCFunction):
                        seen.update((id(one), one) for one in vars(thing).values())
                    else:
                        seen[id(thing)] = thing
        yield from (one for one in seen.values() if not isinstance(one, (*SIMPLE, torch.Tensor)))


def _holds(function: types.FunctionType, names: Mapping[str, Any]) -> bool:
    """Whether what a function is closed over is what a frame has under these names."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return all(look(cell, None) is names.get(name) for name, cell in cells)


def _is_users(frame: types.FrameType) -> bool:
    """Whether code is the user's, or a library's that may read what the user changes."""
    if owner_of(frame.f_code.co_filename) not in OF_USERS:
        return False
    package = str(frame.f_globals.get("__name__")).partition(".")[0]  # code that a dataclass writes has no file
    is_made = package.startswith("namedtuple_")
    return not is_made and package not in LIBRARIES | ARITHMETIC and package not in sys.stdlib_module_names


def _is_by_the_way(frame: types.FrameType | None) -> bool:
    """Whether code runs as something is collected, which may be anywhere, or is imported, which is once."""
    told = [getattr(one, "__code__", None) for one in gc.callbacks]
    while frame is not None and _is_users(frame):
        if frame.f_code.co_name == "__del__" or frame.f_code in told:
            return True
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(IMPORTING)


@kept
def names_read(code: types.CodeType) -> frozenset[str]:
    """The names in a piece of code that it reads, and does not only put things under."""
    inner = [names_read(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    own = {step.argval for step in dis.get_instructions(code) if step.opname in READING and type(step.argval) is str}
    return frozenset(own).union(*inner)


def _check_made(state: PythonState, made: Collection[int]) -> None:
    reached = (*state.containers.values(), *state.visited.values(), *state.looked_into.values())
    if any(id(thing) in made for thing in reached):
        refuse("read in backward", None, detail="an object that a call is given, or gives")


def _check_moving(fact: Fact, touched: Touched, names: frozenset[str]) -> None:
    """Refuse a backward whose code reads what each run of the forward puts in Python."""
    if isinstance(fact, NameFact):
        given = touched.given(fact.container)
        if fact.key in given and (not isinstance(fact.key, str) or fact.key in names):
            refuse("read in backward", None, detail=fact.path)
    elif isinstance(fact, ModuleFacts) and fact.rebound & names:
        refuse("read in backward", None, detail=min(fact.rebound & names))
