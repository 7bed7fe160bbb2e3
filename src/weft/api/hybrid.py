"""Run a module or a function by programs: one for each signature, or for a range of sizes."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache, partial
from threading import RLock
from types import CodeType
from typing import Any, NoReturn, TypeVar

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from weft.api.checks.check import Check, Work, call_and_undo
from weft.api.declared_sizes import NONE_DECLARED, CallSizes, DeclaredSizes, marked, positional_names, refuse_unknown
from weft.api.hybrid_options import DEFAULTS, HybridOptions, first_line, many_programs, too_many_paths
from weft.api.kept_programs import KeptPrograms
from weft.api.next_paths import MOST_PATHS, NextPaths
from weft.api.numbers import FreeNumbers
from weft.api.python_runs import PythonRuns
from weft.api.rare_calls import MOST_PROGRAMS, RareCalls, RefusedCalls
from weft.api.size_range import Shapes
from weft.api.varying import (
    RaisesAtTheLargestError,
    SizeRequest,
    VaryingProgram,
    VaryingPrograms,
    zeros_of,
)
from weft.compile.ahead import begin_process
from weft.compile.paths import CompiledSegments
from weft.compile.pipeline import trace
from weft.compile.type_cache import trace_name
from weft.errors import InternalError, UnsupportedError, WeftError, first_line_of, memory_told
from weft.guards.entry import MISSED, Entry, refuse_all
from weft.guards.guarded import Guarded
from weft.guards.known_calls import KnownCalls
from weft.ir.extents import FixedSizeError
from weft.ir.graph import Graph
from weft.programs.description import Example, Ranges
from weft.programs.program import Program
from weft.runtime.compiled_graph import RefusedError
from weft.runtime.path_graph import OtherOutcome
from weft.runtime.process_memory import without_collection
from weft.trace.encoder import as_eager_computes, traced_form
from weft.trace.interception.capture import TreeSpec, traced_elsewhere, tree_unflatten
from weft.trace.interception.modes import is_differentiated_forward
from weft.trace.interception.refusals import (
    FirstCallError,
    UnmaterialisedError,
    is_refusal,
    refuse,
    refuse_unmaterialised,
    trace_failure,
    unmaterialised,
)
from weft.trace.interception.user_lines import user_place, user_stack_level
from weft.trace.python_state.containers import Touched
from weft.trace.python_state.facts import OF_INFERENCE
from weft.trace.python_state.given_objects import FlatArguments, FlatCall, aliases_of
from weft.trace.python_state.reachable import PythonState, find_state
from weft.trace.request import Around, Request, waits_for_sizes
from weft.trace.signature import (
    Key,
    key_change,
    leaf_key,
    modes_key,
    names_of_leaves,
    same_tensors,
)
from weft.trace.size_symbols import AskedSizes
from weft.trace.size_ties import shape_of
from weft.trace.traced import Traced
from weft.trace.varying import trace_varying
from weft.tracebacks import show_less
from weft.underway import underway

Compiled = TypeVar("Compiled")
logger = logging.getLogger("weft")
LEAST_OPERATORS, TIMES_OPERATORS = 4096, 16  # of a trace at the largest sizes, and times those at a call's sizes
PLAIN_LEAVES = (torch.Tensor, bool, int, float, complex, str, bytes, type(None))


class _ReachedError(Exception):
    """Objects among the arguments are reached by the function itself, too: the call is to be flattened again."""


class Hybrid:
    """Stands in the place of a function, or of a module's forward, and runs its programs."""

    sizes_vary = True  # a program may run for a range of sizes
    decides = True  # values may decide between paths
    expects = True  # where values decide, programs for a range of sizes may rely on one outcome, and check it
    keeps_gradients = True  # tensors that the function leaves in attributes of modules carry them
    trains = False  # it records gradients, whatever it is called in
    draws = True  # it may draw from generators that other threads draw from; not where it is traced beside such threads

    def __init__(self, function: Callable[..., Any], root: Any, name: str, options: HybridOptions = DEFAULTS) -> None:
        self.options = options
        self.check: Check | None = Check(options.check) if options.check else None
        self.function = function
        self.root = root
        self.name = name
        self.refused = RefusedCalls(root)
        self.programs = KeptPrograms()
        self.misses: list[str] = []
        self.traces = 0
        self.imperative: str | None = None
        # Held while a program or backward (see weft.compile.pipeline) is made: who traces waits for nobody who waits.
        self.lock = RLock()
        self.rare = RareCalls()
        self.python_runs = PythonRuns(self.lock)
        self._touched = Touched()
        self._numbers = FreeNumbers()
        self._names = cache(partial(positional_names, function))  # of the first so many arguments
        self.apart: dict[int, Any] = {}  # objects that stay whole among arguments: the function has them itself
        self._declared = DeclaredSizes(options.sizes)
        self._longest = 0  # trace of one call's sizes that no value has cut short: its number of operators
        self._called: set[Key] = set()  # signatures whose first call was to materialise lazy modules
        self.varying = VaryingPrograms()
        self.segments = CompiledSegments()  # of paths
        self._next_paths = NextPaths()
        self._known_calls = KnownCalls()
        self._unseen_calls = self.python_runs.entry(function, self.refused)
        self.entry: Entry = refuse_all  # of the latest kind of calls: never traces or waits

    def __repr__(self) -> str:
        return f"<weft.hybridize({self.name}): programs traced: {self.traces}>"

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the program of this signature; trace one if there is none."""
        if is_dynamo_compiling():
            return self.function(*arguments, **keywords)  # torch.compile and torch.export see what it is made of
        try:
            result = self.entry(*arguments, **keywords) if keywords else self.entry(*arguments)
            if result is not MISSED:
                return result
            result = self._known_calls.run(arguments, keywords)
            if result is MISSED:
                result = self._call(arguments, keywords)
            goes_unseen = self.refused.unseen and not self._declared.rows  # there are no programs, and no entry
            self.entry = self._unseen_calls if goes_unseen else self._known_calls.entry
            return result
        except OtherOutcome as met:
            other = met
        except Exception as error:
            show_less(error, self.function)
            raise
        result = self._next_paths.go_on(self, other, arguments, keywords)
        self.entry = self._known_calls.entry
        return result

    def _call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """The long way of a call, which lazy code intercepts: entries are for plain tensors alone."""
        if self.imperative is not None:
            self._check_sizes(arguments, keywords)
            return self.function(*arguments, **keywords)
        call = self.flat_call(arguments, keywords)
        if traced_elsewhere(call.leaves):
            return self.function(*arguments, **keywords)
        if is_differentiated_forward(call.leaves, self.root):
            if self.options.refuses():
                refuse("forward mode", user_place())
            return self.function(*arguments, **keywords)
        # A call that gives parameters their sizes is Python's own, and cannot be put back.
        if self.check is not None and self.check.left and not waits_for_sizes(self._state(self.root)):
            return self.check.run(self._work(call))
        return self._by_program(call)

    def flat_call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> FlatCall:
        """Flatten the arguments of a call."""
        flat = FlatArguments(arguments, keywords, self.apart)
        return FlatCall(arguments, keywords, flat.leaves, flat.structure, flat.containers, flat.objects)

    def _by_program(self, call: FlatCall) -> Any:
        arguments, keywords, leaves = call.arguments, call.keywords, call.leaves
        try:
            key = self._key_of(call)
        except UnsupportedError as error:
            if self.options.refuses():
                raise
            if self.options.fallback is not None:
                self._go_imperative(error)  # an argument that no program takes
            return self.function(*arguments, **keywords)
        declared = self._sizes_of(call)
        is_left = len(self.programs) > 1 and self._next_paths.is_left_to_python(key)  # of one, calls go by unseen
        found = None if is_left else self._find(key, leaves)
        if found is not None:
            paths = self._next_paths if self._next_paths.is_timed(found) else None
            return paths.run(self, found, call, key) if paths else self._run(found, arguments, keywords, leaves)
        if is_left or self.refused.error(key) is not None:
            self.refused.came_again(alone=not self.programs and (self.check is None or not self.check.left))
            return self._by_python(arguments, keywords)
        varying = None if self.rare.is_often(key) else self._find_varying(key, call, declared)
        if varying is not None:
            return self._run_varying(varying, call, key)
        try:
            found = None if self._is_watched(key, call) else self._trace(call, always=False)
        except UnmaterialisedError:
            return self._materialise(call)
        if found is not None:
            return self._run(found, arguments, keywords, leaves)
        if self.imperative is not None or self.refused.error(key) is not None:
            return self._by_python(arguments, keywords)
        with self.rare.running(key):
            return self._by_python(arguments, keywords)

    def _by_python(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run a call as Python says."""
        self.python_runs.begin()
        try:
            return self.function(*arguments, **keywords)
        finally:
            self.python_runs.end()

    def _is_watched(self, key: Key, call: FlatCall) -> bool:
        """Whether Python runs a call, as the next one shows whether tensors in an object grow: a cache does.

        A program for sizes that come once is made in vain. So is one for an object that has room, once it is filled: a
        text begins once. Where a program is all that may run, it is made at once.
        """
        if not call.may_grow or not self.sizes_vary or torch.is_grad_enabled() or self.options.refuses():
            return False
        return self.rare.is_first_of_kind(key)

    def _run(
        self, found: Guarded[Program], arguments: tuple[Any, ...], keywords: dict[str, Any], leaves: list[Any]
    ) -> Any:
        """Run a program, which an entry leads the next call to."""
        is_led_to = (self.check is None or not self.check.left) and self._next_paths.is_steady(found)
        is_early = not found.outcomes or found.program.walked() is None
        if is_led_to and is_early:
            if found.sized is not None:
                found.sized.note(leaves)
            self._known_calls.add(found, arguments, keywords, found.sized)
        # Another thread may trace another path, and have stand-ins in places that this one reads.
        with self.lock if found.outcomes else contextlib.nullcontext():
            inputs = found.inputs(leaves)
        result = found.run(inputs, arguments, keywords)
        if is_led_to and not is_early:  # now that all of its segments have run
            self._known_calls.add(found, arguments, keywords)
        return result

    def _materialise(self, call: FlatCall) -> Any:
        """Run a call as Python says, as it makes parameters of lazy modules; of several threads the first one does."""
        with self.lock:
            key = self._key_of(call)
            if key in self._called and not waits_for_sizes(self._state(self.root)):
                with contextlib.suppress(UnmaterialisedError):  # a layer that only the call itself finds
                    found = self._trace(call, always=True)
                    if found is not None:
                        return self._run(found, call.arguments, call.keywords, call.leaves)
            self._called.add(key)
            return self.function(*call.arguments, **call.keywords)

    def _work(self, call: FlatCall) -> Work:
        """A call as one that is made in both ways."""
        arguments, keywords = call.arguments, call.keywords

        def ours() -> Any:
            try:
                return self._by_program(call)
            except OtherOutcome as met:
                other = met
            return self._next_paths.go_on(self, other, arguments, keywords)

        def program() -> tuple[Graph, list[Any]] | None:
            found = None if self.imperative is not None else self._find(self._key_of(call, own=True), call.leaves)
            return None if found is None else (found.program.graph, found.inputs(call.leaves))

        names: list[Any] = self._positional_names(len(arguments))
        names += range(len(names), len(arguments))
        given = {f"argument {name}": thing for name, thing in (*zip(names, arguments, strict=True), *keywords.items())}
        off = "until it is mended, weft.hybridize(thing, False) or the function itself runs by eager PyTorch"
        eager, roots = partial(self.function, *arguments, **keywords), {**given, self.name: self.root}
        return Work(self.name, eager, ours, roots, program, off, first_line(self.function))

    def check_next(self, calls: int) -> None:
        """Make the next calls by eager PyTorch too: no short way that earlier calls found leads past that."""
        self.check = Check(calls)
        self._known_calls, self.entry = KnownCalls(), refuse_all

    def __reduce__(self) -> str | tuple[Any, ...]:
        """A method is found at its object; programs are made anew."""
        return getattr, (self.function.__self__, self.function.__name__)  # type: ignore[attr-defined]

    @property
    def __code__(self) -> CodeType:
        """The code that is traced: exporters read it."""
        found: CodeType = self.function.__code__
        return found

    def program(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Program:
        """The program that a call with these arguments would run."""
        found, numbers = None, frozenset[int]()
        ranges: Ranges = {}
        if self.imperative is None:
            call = self.flat_call(arguments, keywords)
            declared, key = marked(call.leaves, self._sizes_of(call)), self._key_of(call)
            varying = self._find_varying(key, call, declared) if declared.free else None
            if varying is not None and not varying.guarded.program.expects:
                found, ranges = varying.guarded, {spot: (size.least, size.most) for spot, size in declared.free.items()}
                numbers = frozenset(place for place in varying.range.varying if type(call.leaves[place]) is int)
            else:
                try:
                    found = self._trace(call, always=True, whole=True)
                except FirstCallError:
                    self._undone(call)  # all but what functions remember
                    found = self._trace(call, always=True, whole=True)
        if found is None:
            raise UnsupportedError(f"{self.name} runs imperatively and has no program", why=self.imperative)
        places = found.slots, self.apart
        return found.program.made_for(Example(self.function, arguments, keywords, *places, ranges, numbers))

    def _key_of(self, call: FlatCall, *, own: bool = False) -> Key:
        """The signature of a call: its own where that is asked for or has programs, else one that is of many sizes."""
        keys = self._numbers.apply(call.structure, tuple(map(leaf_key, call.leaves)))
        key = (call.structure, keys, modes_key(), aliases_of(call.containers), same_tensors(call.leaves))
        return key if own or key in self.programs else self.varying.shared_key(key, call.leaves)

    def _sizes_of(self, call: FlatCall) -> CallSizes:
        """What users say of the sizes of a call, or UsageError where it breaks what they promised."""
        if not self._declared.rows:
            return NONE_DECLARED
        flat = FlatArguments(call.arguments, call.keywords, self.apart)
        return self._declared.of(call.structure, flat.with_nodes, call.leaves, self._names_of_arguments(call.structure))

    def declare(self, sizes: Mapping[Any, Any]) -> None:
        """Take from now on what `sizes=` says, instead of what was said before."""
        self.options = replace(self.options, sizes=sizes)
        refuse_unknown(self.options.sizes, self.function)
        self._declared = DeclaredSizes(self.options.sizes)

    def _check_sizes(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Raise UsageError where a call that Python runs breaks what users promised of its sizes."""
        if self._declared.rows:
            self._sizes_of(self.flat_call(arguments, keywords))

    def _find(self, key: Key, leaves: list[Any]) -> Guarded[Program] | None:
        with self.lock:  # a thread that traces has stand-ins in places that are compared
            return self.programs.find(key, leaves)

    def _trace(
        self, call: FlatCall, *, always: bool, is_new: bool = False, whole: bool = False
    ) -> Guarded[Program] | None:
        """The program of a call, made if need be; None where it runs imperatively.

        `is_new` makes another path; with `whole` only a whole program counts, and where there can be none is an error.
        """
        # Other threads that need a program wait here; the one that traces runs user code and waits for none of them.
        with self.lock:
            key = self._key_of(call, own=whole)
            found = None if is_new else self._find(key, call.leaves)
            if found is not None and not (whole and found.outcomes):
                return found
            if is_new and len(self.programs.get(key, ())) >= MOST_PATHS:
                if not self._next_paths.stray(key):
                    return None
                self._refuse(key, too_many_paths(self.name))
                self.programs.pop(key, None)
            if not (whole or (self.refused.error(key) is None and (always or self._is_worth_it(key, is_new)))):
                return None
            self._note_miss(key, call.leaves, is_path=is_new)
            read = self.varying.range_of(self._key_of(call, own=whole))  # now that numbers may have been let vary
            try:
                with without_collection(), memory_told(self.name), self.rare.making(key, is_path=is_new):
                    found = self._traced(call, runs=not always, whole=whole)
            except _ReachedError:
                again = self.flat_call(call.arguments, call.keywords)
                return self._trace(again, always=always, is_new=is_new, whole=whole)
            except (UnsupportedError, InternalError, FirstCallError) as error:
                if whole:
                    raise
                if not isinstance(error, FirstCallError) and self.varying.drop_range(key, error, self.name):
                    return self._trace(call, always=always)
                if not isinstance(error, FirstCallError) or self.rare.is_always_first(key):
                    self._refuse(key, error.refused() if isinstance(error, FirstCallError) else error)
                return None
            own = self._key_of(call, own=True)  # in which those that the code makes something of are written again
            key = own if read is None else read.key_of(own)
            self.programs.setdefault(key, []).append(found)
            if found.outcomes:
                self._next_paths.note(self, key, found)
            if self.programs.drop_oldest():
                warnings.warn(many_programs(self.name, MOST_PROGRAMS, self.misses), stacklevel=user_stack_level())
            return found

    def _is_worth_it(self, key: Key, is_new: bool) -> bool:
        """Whether a program is to be made now: beside a call that Python runs in another thread, none can be."""
        if self.rare.is_closed or self.python_runs.others():
            return False
        if is_new:
            return self.rare.deserves_path(key, len(self.programs.get(key, ())))
        is_of_many = self.varying.range_of(key) is not None and key not in self.programs
        return self.rare.deserves(key, is_of_many=is_of_many)

    def _find_varying(self, key: Key, call: FlatCall, declared: CallSizes) -> VaryingProgram | None:
        """The program of a call and of others that differ in sizes, made if need be, where there can be one."""
        if not self.sizes_vary:
            return None
        found, is_read = self.varying.find(key, call.leaves), self.varying.range_of(key) is not None
        is_last = is_read or self.rare.is_closed or self.varying.is_given_up(key)
        if is_last or (found is not None and not self._is_wasteful(found, call.leaves)):
            return found
        request = SizeRequest(
            partial(self._make_varying, call),
            lambda program: self._compile(program.prepare_backward),
            self.leaf_names(call.structure),
            marked(call.leaves, declared),
            is_close=found is not None,
            decides=self.decides and self.options.decides(),
            fixed=self._numbers.fixed(call.structure),
        )
        with self.lock:
            try:
                return self.varying.learn(key, call.leaves, request) or found
            except InternalError as error:
                if self.options.refuses():
                    raise
                warnings.warn(f"weft: {self.name} has no program for its sizes: {error}", stacklevel=user_stack_level())
                self.varying.give_up(key)
                return found
            except FirstCallError:
                if self.rare.has_no_range(key):
                    self.varying.give_up(key)
                return found

    def _is_wasteful(self, found: VaryingProgram, leaves: list[Any]) -> bool:
        """Whether calls of such sizes get a program of smaller ones, as they have cost, or will cost, too much."""
        return found.is_worth_less(leaves) or (self.rare.is_preparing and found.is_too_large(leaves))

    def varying_program(self, call: FlatCall) -> VaryingProgram | None:
        """The smallest program for a range of sizes that takes a call, if there is one by now."""
        return self.varying.find(self._key_of(call), call.leaves)

    def _run_varying(self, found: VaryingProgram, call: FlatCall, key: Key) -> Any:
        """Run a program for a range of sizes, which an entry leads the next call of the same sizes to."""
        guarded, by_python = found.guarded, found.is_too_large(call.leaves)
        before, like = (0.0, 0.0) if by_python else found.calls.note(call.leaves)
        try:
            with self.rare.running(key, imperatively=False, before=before), found.running(call.leaves, like):
                if by_python:
                    return self.function(*call.arguments, **call.keywords)
                result = guarded.run(guarded.inputs(call.leaves), call.arguments, call.keywords, call.containers)
        except RefusedError:
            self.varying.note_left(key, found)
            return self.function(*call.arguments, **call.keywords)  # data that kernels refuse: eager says why
        if found.calls.is_complete and (self.check is None or not self.check.left):
            self._known_calls.add(guarded, call.arguments, call.keywords, found.calls)
        return result

    def _make_varying(self, call: FlatCall, tops: Shapes, asked: AskedSizes) -> tuple[Traced, Guarded[Program] | None]:
        """Trace and compile a program for all sizes up to the largest; no program where a size is always one number."""
        underway(f"tracing {self.name}")
        # One tensor that is several arguments stays one: code may ask.
        tensors = [place for place in asked.dimensions if isinstance(call.leaves[place], torch.Tensor)]
        large = {id(call.leaves[place]): zeros_of(call.leaves[place], tops[place]) for place in tensors}
        leaves = [
            large.get(id(leaf), leaf) if place not in asked.dimensions or place in tensors else tops[place][0]
            for place, leaf in enumerate(call.leaves)
        ]
        arguments, keywords = tree_unflatten(leaves, call.structure)
        roots = self._roots(call)
        state = self._state(*roots)
        if self._keep_whole(call, state):
            raise UnsupportedError(f"the sizes of {self.name} do not vary", why="it has an argument itself, too")
        request = replace(self._request(self.flat_call(arguments, keywords), state), alone=self.options.refuses())
        if self._longest:  # a loop over sizes has many more rounds at the largest ones
            most = min(request.most_operators, max(LEAST_OPERATORS, TIMES_OPERATORS * self._longest))
            request = replace(request, most_operators=most)
        now = self._request(call, state) if self.expects and self.options.decides() else None
        told = (as_eager_computes(request.state.modules), without_collection(), memory_told(self.name))
        with torch.inference_mode(False), torch.set_grad_enabled(request.around.grad), told[0], told[1], told[2]:
            try:
                traced = trace_varying(request, asked, now)
            except UnsupportedError as error:
                if not is_refusal(error, "many operators"):
                    raise
                found = RaisesAtTheLargestError(f"the sizes of {self.name} do not vary", why=error.fact)
                found.is_long = True
                raise found from error
            except (WeftError, MemoryError):
                raise
            except Exception as error:
                why = f"at larger sizes the code raises {first_line_of(error)}"
                raise RaisesAtTheLargestError(f"the sizes of {self.name} do not vary", why=why) from error
            if traced.fixed:
                self._numbers.fix(call.structure, traced.fixed)
                raise UnsupportedError(f"the sizes of {self.name} do not vary", why="numbers decide something")
            sizes = [shape_of(call.leaves[entry.argument])[entry.dimension] for entry in traced.sizes]
            if traced.fixed_sizes or not all(condition.holds(sizes) for condition in traced.size_conditions):
                return traced, None
            self.traces += 1
            program = self._compile(partial(self._compiled, traced, backward_later=True))
            return traced, self._guarded(traced, program, self._state(*roots))

    def _guarded(self, traced: Traced, program: Program, state: PythonState) -> Guarded[Program]:
        found = Guarded(traced, program, state, self._touched)
        found.apart = self.apart
        return found

    def _roots(self, call: FlatCall) -> tuple[Any, ...]:
        """What the function may reach: all but plain values, and of objects that are taken apart the classes."""
        classes = dict.fromkeys(map(type, call.objects))
        return (self.root, *(leaf for leaf in call.leaves if not isinstance(leaf, PLAIN_LEAVES)), *classes)

    def _keep_whole(self, call: FlatCall, state: PythonState) -> bool:
        """Note the objects among arguments that the function reaches by itself: there, it finds them whole."""
        found = {id(thing): thing for thing in call.objects if state.reaches(thing)}
        self.apart.update(found)
        return bool(found)

    def _request(self, call: FlatCall, state: PythonState) -> Request:
        inference = torch.is_inference_mode_enabled() and not self.trains
        grad = self.trains or (torch.is_grad_enabled() and not inference)
        around = Around(grad, inference, not OF_INFERENCE.isdisjoint(state.mentioned))
        return Request(
            traced_form(self.function),
            call.arguments,
            call.keywords,
            self.name,
            state,
            tuple(self.leaf_names(call.structure)),
            self._numbers.of_call(call.structure, call.leaves),
            apart=self.apart,
            around=around,
            draws=self.draws,
            keeps_gradients=self.keeps_gradients,
            walk=self._state,
        )

    def _traced(self, call: FlatCall, *, runs: bool, whole: bool = False) -> Guarded[Program]:
        try:
            return self._traced_with(call, runs=runs, whole=whole, sizes=True)
        except FixedSizeError as error:  # sizes that are found out are in the way of a program for all of them
            if not whole and self.varying.range_of(self._key_of(call)) is not None:
                raise UnsupportedError(error.fact, why=error.why) from error
            return self._traced_with(call, runs=runs, whole=whole, sizes=False)

    def _traced_with(self, call: FlatCall, *, runs: bool, whole: bool, sizes: bool) -> Guarded[Program]:
        underway(f"tracing {self.name}")
        roots = self._roots(call)
        state = self._state(*roots)
        if self._keep_whole(call, state):
            raise _ReachedError
        if waits_for_sizes(state) and self._key_of(call) not in self._called:
            raise refuse_unmaterialised(self.name)
        reached = (tensor for slot in state.slots.values() if not unmaterialised(tensor := slot.get()))
        name = trace_name(self.name, call.leaves, reached)
        decides = self.decides and self.options.decides() and not whole
        read = None if whole else self.varying.range_of(self._key_of(call))
        request = replace(
            self._request(call, state) if read is None else read.asked(self._request(call, state)),
            decides=decides,
            finds_sizes=decides and sizes,
            alone=whole or self.options.refuses(),
            prints_each_time=self.options.python == "run",
        )
        around = request.around
        failure: Exception | None = None
        try:
            exact = around.inference and not OF_INFERENCE.isdisjoint(state.mentioned)
            with torch.inference_mode(exact), torch.set_grad_enabled(around.grad), as_eager_computes(state.modules):
                traced = trace(request, name)
        except WeftError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised again, by eager or below
            failure = error
        if failure is not None:
            self._raise_as_eager(failure, call)  # outside of the handler: eager's own exception has no other behind it
        failure = None if self.options.refuses() or traced.gradient is None else traced.gradient.failure
        if isinstance(failure, UnsupportedError):  # eager has a backward, whether or not somebody asks for it
            raise failure
        self.traces += 1
        if not traced.decisions:
            self._longest = max(self._longest, len(traced.graph.values))
        self._numbers.fix(call.structure, traced.fixed)
        self._touched.merge(traced.touched)
        program = self._compile(partial(self._compiled, traced))
        if runs:
            program.pack_ahead(traced)
        found = self._guarded(traced, program, self._state(*roots))
        found.sized = None if read is None else self.varying.sized_calls(read, found)
        return found

    def _compile(self, work: Callable[[], Compiled]) -> Compiled:
        """Compile what was traced, or a part of it; what goes wrong in that is no fault of the function's."""
        try:
            return work()
        except (WeftError, MemoryError, OSError):
            raise
        except Exception as error:
            raise InternalError(
                f"compiling {self.name} failed with {type(error).__name__}: {error}",
                why="this is a mistake in Weft, not in your program, which runs imperatively",
                fix="please report it",
            ) from error

    def _compiled(self, traced: Traced, *, backward_later: bool = False) -> Program:
        traced = replace(traced, precision=self.options.precision)
        return Program(traced, self.lock, kept=self.segments, backward_later=backward_later)

    def _state(self, *roots: Any) -> PythonState:
        """Where the tensors live that the function may reach."""
        begin_process()
        return find_state(*roots)

    def _raise_as_eager(self, error: Exception, call: FlatCall) -> NoReturn:
        """A mistake in the user's program gets the very exception that it gets imperatively."""
        self._undone(call)
        raise trace_failure(self.name, error) from error

    def _undone(self, call: FlatCall) -> None:
        """Run a call as Python says, and put back what it has changed."""
        roots = dict(enumerate((self.root, *call.arguments, *call.keywords.values())))
        call_and_undo(partial(self.function, *call.arguments, **call.keywords), roots)

    def _note_miss(self, key: Key, leaves: list[Any], *, is_path: bool = False) -> None:
        if not self.programs:
            return
        if is_path:
            self.misses.append("values decided otherwise than in the calls before")
            return
        if rivals := self.programs.get(key):
            sentence = rivals[-1].miss(leaves) or "nothing that a guard holds"
            rivals[-1].note_moved(self._touched)
        else:
            nearest = self.programs.nearest(key)
            sentence = key_change(nearest, key, self.leaf_names(key[0]))
            self._numbers.compare(nearest, key)
        self.misses.append(sentence)
        logger.info("weft: compiling %s again (program %d): %s", self.name, self.traces + 1, sentence)

    def leaf_names(self, structure: TreeSpec) -> list[str]:
        """What the arguments of a call are called, nested ones by their place."""
        return names_of_leaves(structure, self._names_of_arguments(structure))

    def _names_of_arguments(self, structure: TreeSpec) -> list[str]:
        return self._positional_names(structure.children()[0].num_children)

    def _positional_names(self, count: int) -> list[str]:
        """What the first `count` arguments of a call are called, as far as that is known."""
        return self._names(count)

    def _refuse(self, key: Key, error: UnsupportedError | InternalError) -> None:
        """Note that calls of this signature run by Python, or raise the error where whole programs are asked for."""
        if self.options.refuses():
            raise error
        if isinstance(error, InternalError):
            warnings.warn(f"weft: {self.name} runs by Python: {error}", stacklevel=user_stack_level())
        elif self.options.fallback is not None:
            self._go_imperative(error)
            return
        logger.info("weft: %s runs by Python at each call: %s", self.name, error)
        self.refused.add(key, error)

    def _go_imperative(self, error: UnsupportedError) -> None:
        self.imperative = str(error)
        warnings.warn(f"weft: {self.name} runs imperatively from now on: {error}", stacklevel=user_stack_level())


class ModuleForward(Hybrid):
    """Stands in a module's `forward`; a copy of the module gets one of its own."""

    function = property(lambda self: type(self.root).forward.__get__(self.root), lambda *_: None)  # as it is now

    def __init__(self, module: nn.Module, options: HybridOptions = DEFAULTS) -> None:
        super().__init__(type(module).forward.__get__(module), module, type(module).__name__, options)
        self.__wrapped__ = self.function  # whoever asks for the signature of forward gets the module's own

    @property
    def __globals__(self) -> NoReturn:
        # TorchScript asks a method of a module for them; others ask whether there are any.
        error = UnsupportedError(
            f"torch.jit.script cannot compile a hybridized {self.name}",
            why="it reads the source of a module's own forward, and something else is in its place",
            fix="take the programs off before: torch.jit.script(weft.hybridize(net, False)); torch.jit.trace and "
            "torch.export take a module as it is",
        )
        raise AttributeError(str(error))

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleForward:
        return ModuleForward(memo.get(id(self.root), self.root), self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        options = {field.name: getattr(self.options, field.name) for field in fields(HybridOptions)}
        return ModuleForward.__new__, (ModuleForward,), {"root": self.root, **options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        given = {field.name: state[field.name] for field in fields(HybridOptions) if field.name in state}
        ModuleForward.__init__(self, state["root"], HybridOptions(**given))
