"""Train a module by whole programs: forward, loss, backward and update as one."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from operator import is_
from time import thread_time
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch
from torch import nn

from weft.api.checks.check import Work, call_and_undo
from weft.api.declared_sizes import marked, refuse_unknown
from weft.api.hybrid import Hybrid, logger
from weft.api.hybrid_options import DEFAULTS, HybridOptions, refuse_check
from weft.api.optimizers.library import OptimizerSnapshot, all_or_nothing, by_library, needs_closure
from weft.api.optimizers.rules import RULES
from weft.api.optimizers.several import parts_of
from weft.api.optimizers.state import GradientPlace, OptimizerState, Prepared, UpdateForm
from weft.api.rare_calls import RareSteps
from weft.api.size_range import Shapes
from weft.api.steady_step import Ran, SteadyStep, steady_step
from weft.api.step_training import (
    Clipping,
    Gradients,
    TrainingTask,
    UsualLoop,
    added_up,
    buffers_of,
    checked_optimizer,
    clipped,
    count_nodes,
    losses_of,
    number_dtype,
    refusal_of_hooks,
    refuse_options,
    total_gradients,
    update,
)
from weft.api.varying import VaryingPrograms
from weft.errors import UnsupportedError, UsageError, counted
from weft.guards.entry import MISSED, Entry
from weft.guards.guarded import Guarded
from weft.guards.known_calls import inputs_entry
from weft.interrupts import interrupts_after
from weft.ir.graph import Graph
from weft.programs.boundary import is_spent
from weft.programs.program import Program
from weft.runtime.compiled_graph import RefusedError
from weft.runtime.path_graph import RaisedInHandling
from weft.trace.interception.capture import traced_elsewhere, tree_map_only
from weft.trace.interception.modes import has_own_step, is_differentiated_forward, note_step, step_hooks
from weft.trace.interception.refusals import (
    KEEP_EAGER,
    PARTS_AROUND,
    refuse,
    refuse_unmaterialised,
    trace_failure,
    unmaterialised,
)
from weft.trace.interception.user_lines import user_place
from weft.trace.python_state.given_objects import FlatCall
from weft.trace.python_state.locations import Slot
from weft.trace.python_state.reachable import PythonState
from weft.trace.signature import Key
from weft.trace.size_symbols import AskedSizes
from weft.trace.traced import Traced
from weft.tracebacks import show_less, shows_less

IN_A_LOOP = (
    'train in an ordinary loop with the parts hybridized that can be, or with hybridize(net, fallback="eager"), '
    "loss.backward() and optimizer.step()"
)
# What a step trains, how it does so, gradients that are still to be used, of how many calls these are.
Parts = tuple[Any, dict[str, Any], list[Any], int]
MOST_FORMS = 8  # of rounds whose inputs an entry gives
UNSEEN = 20.0  # times as long as it took to look at a step, Python makes those behind it unseen
SEEN_FIRST, MOST_TIMES = 3, 16  # steps that Python makes; times as many unseen ones, where there can be no program
FIRST_STEADY = 2  # at the first step the optimizer has only just been given what it keeps


@dataclass(frozen=True, slots=True, eq=False)
class _Round:
    """One call: what it works on, gradients so far, whether it ends in an update, and the key's part of all that.

    `numbers` are the optimizer's, in each precision in which parameters are updated.
    """

    prepared: Prepared
    before: list[torch.Tensor | None]
    updates: bool
    numbers: dict[torch.dtype, torch.Tensor]
    form: str
    spent: list[torch.Tensor] = field(default_factory=list)  # kept by earlier steps, with graphs that they have used up


class Step(Hybrid):
    """Trains a module by whole programs; made by `weft.step`."""

    expects = False  # a program writes parameters while it runs: it cannot be left
    keeps_gradients = False  # the backward is part of the program: after it, no graph leads further
    trains = True

    def __init__(self, task: TrainingTask, optimizer: torch.optim.Optimizer, options: HybridOptions = DEFAULTS) -> None:
        # Where a search decides how often the loss is computed, roundings decide where it ends.
        options = replace(options, check=0) if needs_closure(optimizer) else options
        super().__init__(self._train, task.net, f"a step of {_name(task.net)}", options)
        self.rare: RareSteps = RareSteps()
        self._unseen, self._times = 0.0, 1  # seconds of steps that Python makes without a look at their sizes
        self._passed, self._passed_seconds = 0, 0.0  # of those, so far
        # What ran before must not decide how a deterministic step rounds.
        self.sizes_vary = self.sizes_vary and not task.deterministic
        self.decides = not (task.deterministic or task.low_memory or needs_closure(optimizer))
        self.task = task
        self.optimizer = optimizer
        self._kept = OptimizerState(optimizer, task.rule) if task.rule is not None else None
        self._timed: Callable[..., AbstractContextManager[None]] = _not_timed  # this call, by the program or by Python
        self._entries: dict[str, tuple[Guarded[Program], Entry] | None] = {}  # by the form of a round
        self._calls = 0  # since the last update
        self._round: _Round | None = None
        self._before, self._before_python = OptimizerSnapshot(), OptimizerSnapshot()
        self._steady: SteadyStep | None = None
        self._known = [*self._parameters()]
        self._waits_for_sizes = any(map(unmaterialised, self._known))
        self._long_ways, self._next_steady = 0, FIRST_STEADY
        # For which parameters the last trace found a gradient, and for which each program gives one.
        self._gradients_there: tuple[bool, ...] = ()
        self._updated: WeakKeyDictionary[Guarded[Program], tuple[bool, ...]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        memory = "low memory" if self.task.low_memory else "normal memory"
        return f"{self.name}: {counted(self.traces, 'program')}, {memory}, peak of {self.peak_bytes} bytes"

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (step, *_parts_of(self))

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Train on one batch; gives the loss or losses, without a gradient."""
        try:
            if torch.is_inference_mode_enabled():  # a step records gradients whatever it is made in
                return torch.inference_mode(False)(self._trains)(*arguments, **keywords)
            return self._trains(*arguments, **keywords)
        except Exception as error:
            show_less(error)
            raise

    def _trains(self, *arguments: Any, **keywords: Any) -> Any:
        """The same, which lazy code intercepts: below what shows less of an error."""
        if self.task.deterministic:
            return self._same_bits(arguments, keywords)
        return self._step(arguments, keywords)

    def _same_bits(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        # Kernels add up in one order on however many lanes; PyTorch's operators in one that depends on their threads.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._step(arguments, keywords)
        finally:
            torch.set_num_threads(threads)

    def _step(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if self._steady is not None and not keywords:
            losses = self._steady.run(arguments)
            if losses is not MISSED:
                return losses
        if self._unseen > 0 and self._covered() and not traced_elsewhere(arguments):
            return self._unlooked(arguments, keywords)
        if self.check is not None and self.check.left and not self._waits_for_sizes:
            return self.check.run(self._checked_work(arguments, keywords))
        return self._trained(arguments, keywords)

    def _unlooked(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Let Python make a step whatever its sizes are: to look at them each time would cost small steps a lot."""
        begin = thread_time()
        losses = self._imperatively(arguments, keywords)
        seconds = thread_time() - begin
        self._unseen -= seconds
        self._passed, self._passed_seconds = self._passed + 1, self._passed_seconds + seconds
        return losses

    def _checked_work(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Work:
        """A step as one that is made in both ways."""
        loop = UsualLoop(self.task, self.optimizer, [*self._parameters()], self._calls)

        def program() -> tuple[Graph, list[Any]] | None:
            current = self._next_round(covered=self._covered())
            given = (*arguments, *current.numbers.values(), current.form)
            call = self.flat_call(given, keywords)
            found = self._find(self._key_of(call), call.leaves)
            return None if found is None else (found.program.graph, found.inputs(call.leaves))

        given = {f"argument {index}": thing for index, thing in enumerate(arguments)}
        given |= {f"argument {name}": thing for name, thing in keywords.items()}
        roots = {**given, "net": self.task.net, "loss": self.task.loss, "optimizer": parts_of(self.optimizer)}
        return Work(
            self.name,
            lambda: loop.run(arguments, keywords),
            lambda: self._trained(arguments, keywords),
            roots,
            program,
            "until it is mended, train with PyTorch's loop: loss.backward(); optimizer.step()",
        )

    def _trained(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Train on one batch, the long way."""
        covered = self._covered()
        if self._waits_for_sizes:
            return self._first_step(arguments, keywords, covered=covered)
        current = self._next_round(covered=covered)
        if current.updates and not covered:
            self._before.take((*self._parameters(), *self._buffers()), self.optimizer.state)
            return all_or_nothing(
                lambda: by_library(self.optimizer, lambda: self._differentiate(current, arguments, keywords)),
                self._undo,
                lambda _: None,
            )
        return self._differentiate(current, arguments, keywords)

    def _undo(self) -> None:
        self._before.restore()
        if not self._calls:
            self.optimizer.zero_grad()

    def check_next(self, calls: int) -> None:
        """Make the next steps by PyTorch's loop too."""
        super().check_next(calls)
        self._steady = None

    @property
    def peak_bytes(self) -> int:
        """The most bytes that a step is planned to need at once, beside its inputs; 0 before the first."""
        exact = (guarded for group in self.programs.values() for guarded in group)
        varying = (found.guarded for found in self.varying)
        return max((guarded.program.peak_bytes for guarded in (*exact, *varying)), default=0)

    def program(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Program:
        """The program that a call with these arguments would run."""
        if self._waits_for_sizes and any(map(unmaterialised, self._parameters())):
            raise refuse_unmaterialised(self.name)
        current = self._next_round(covered=self._covered())
        if (hooked := refusal_of_hooks(current.prepared.parameters)) is not None:
            raise hooked
        return super().program((*arguments, *current.numbers.values(), current.form), keywords)

    # -- one call -----------------------------------------------------------------------------------------------

    def _differentiate(self, current: _Round, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run the program of a round and hand out the gradients; a rule's update is part of the program."""
        self._timed, begin = _not_timed, thread_time()
        ready = self._program_of(current, arguments, keywords)
        if ready is None:
            key = self._key_of(self._call_of(current, arguments, keywords))
            looked = thread_time() - begin
            with self.rare.running(key), self._timed(by_python=True):
                losses = self._imperatively(arguments, keywords)
            self._note_python(key, looked, thread_time() - begin - looked)
            return losses
        found, inputs = ready
        if found.outcomes:  # the clock settles who makes such steps, and other paths may go on
            call = self._call_of(current, arguments, keywords)
            return self._next_paths.run(self, found, call, self._key_of(call))
        try:
            losses = self._run_on(found, inputs, arguments, keywords)
        except RaisedInHandling as raised:
            raised.put_back()
            return self._imperatively(arguments, keywords)
        except RefusedError:
            return self._imperatively(arguments, keywords)  # data that kernels refuse: eager says why
        self._steady = None if keywords else self._steady_step(current, found, arguments)
        return losses

    def _run_on(self, found: Guarded[Program], inputs: list[Any], arguments: Any, keywords: Any) -> Any:
        """Run a program, and hand out what it gives."""
        current = self._round
        assert current is not None
        if self._kept is not None and any(self._updated[found][index] for index in current.prepared.idle):
            self._kept.wake()
            return self._differentiate(self._next_round(covered=True), arguments, keywords)
        if not self._calls:
            self.optimizer.zero_grad()  # before the program runs, so that it may use the memory again
        # What is written, handed out and counted changes together.
        with self._timed(by_python=False), interrupts_after():
            losses, gradients = found.run(inputs, arguments, keywords)
            self._hand_out(current, gradients)
        return losses

    def _run(self, found: Guarded[Program], arguments: Any, keywords: Any, leaves: list[Any]) -> Any:
        """Run a path; Hybrid leads later calls to it by an entry, which hands out no gradients."""
        with self.lock:
            inputs = found.inputs(leaves)
        return self._run_on(found, inputs, self._of_user(arguments), keywords)

    def _by_python(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Make a step that no path takes."""
        return self._imperatively(self._of_user(arguments), keywords)

    def _of_user(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a call without what `_call_of` has put behind them."""
        assert self._round is not None
        return arguments[: len(arguments) - 1 - len(self._round.numbers)]

    def _imperatively(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run a round by PyTorch's usual loop: sizes that hardly ever come are not worth a program each."""
        if self._kept is not None:
            self._kept.wake()  # which parameters get a gradient is not known before
        note = None if self.rare.nodes else self._note_graph
        loop = UsualLoop(self.task, self.optimizer, [*self._parameters()], self._calls, note)
        updates = loop.updates and self._covered()  # else whoever calls lets the optimizer make its step
        added_to = (parameter.grad for parameter in loop.parameters) if self._calls else ()
        before = self._before_python
        before.take([*self._buffers(), *(gradient for gradient in added_to if gradient is not None)], {})

        def finish(_: Any) -> None:
            if updates:
                self.optimizer.step()
                if self._kept is not None:
                    self._kept.stepped()
            self._calls = self._calls + 1 if not loop.updates else 0

        self._steady = None
        return all_or_nothing(lambda: loop.differentiate(arguments, keywords), before.restore, finish)

    def _note_graph(self, roots: Sequence[torch.Tensor]) -> None:
        self.rare.nodes = count_nodes(roots)

    def _note_python(self, key: Key, looked: float, seconds: float) -> None:
        """Note a step that Python has made; so many go by unseen after it that looking costs hardly anything."""
        self.rare.note(key, seconds + self._passed_seconds, 1 + self._passed)
        self._passed, self._passed_seconds = 0, 0.0
        self._times = 1 if self.refused.error(key) is None else min(2 * self._times, MOST_TIMES)
        is_patient = self._is_patient() and self.rare.calls > SEEN_FIRST
        self._unseen = UNSEEN * self._times * looked if is_patient else 0.0

    def _is_patient(self) -> bool:
        """Whether Python makes steps until a program is worth what it costs."""
        return not (self.options.refuses() or self.task.deterministic or self.options.sizes)

    def _first_step(self, arguments: tuple[Any, ...], keywords: dict[str, Any], *, covered: bool) -> Any:
        """Run a step as Python says: its forward makes the parameters that wait for the first batch."""
        updates = self._calls + 1 >= self.task.accumulate

        def differentiate() -> Any:
            if not self._calls:
                self.optimizer.zero_grad()
            with torch.inference_mode(False), torch.enable_grad():
                losses = losses_of(self.task, arguments, keywords)
                self._waits_for_sizes = any(map(unmaterialised, self._parameters()))
                if self._waits_for_sizes:
                    raise refuse_unmaterialised(self.name)
                if self._kept is not None:
                    self._kept.wake()
                current = self._next_round(covered=covered)
                gradients = self._learn(losses, current, current.numbers)
            self._hand_out(current, gradients)
            return tree_map_only(torch.Tensor, torch.Tensor.detach, losses)

        return by_library(self.optimizer, differentiate) if updates and not covered else differentiate()

    def _steady_step(self, current: _Round, found: Guarded[Program], arguments: tuple[Any, ...]) -> SteadyStep | None:
        """What runs this step again; tried at some steps, ever fewer, as it is costly to make."""
        if self._kept is None or self.task.accumulate > 1 or not current.prepared.form.buckets:
            return None
        if self.check is not None and self.check.left:
            return None
        self._long_ways += 1
        if self._long_ways < self._next_steady or not all(self._updated[found]):
            return None
        self._next_steady = 2 * self._long_ways
        ran = Ran(self.optimizer, self._kept.rule, current.prepared, tuple(current.numbers), found)
        return steady_step(ran, (*arguments, *current.numbers.values()))

    def _program_of(
        self, current: _Round, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[Guarded[Program], list[Any]] | None:
        """The program of a round, traced if there is none, and its inputs; None where its signature comes too rarely.

        Deterministic steps always get one: what ran before must not decide how a step rounds.
        """
        if is_differentiated_forward((*arguments, *keywords.values()), self.task.net):
            if self.options.refuses():
                refuse("forward mode", user_place())
            return None
        if self._is_hooked(current):
            return None
        given = (*arguments, *current.numbers.values())
        known = self._entries.get(current.form)
        if known is not None and not keywords:
            inputs = known[1](*given)
            if inputs is not MISSED:
                return known[0], inputs
        call = self._call_of(current, arguments, keywords)
        leaves = call.leaves
        if traced_elsewhere(leaves):
            raise UsageError(
                f"{self.name} is called inside another tracer or transform",
                why="a step changes parameters, which must not happen while something else looks at tensors",
                fix="call it outside",
            )
        found = self._find(self._key_of(call), leaves)
        if found is None:
            found = self._made_for(call)
            if found is None:
                return None
        if len(self._entries) >= MOST_FORMS:
            self._entries.clear()
        # The form of a round is a leaf behind its arguments: keywords would come behind that.
        entry = None if keywords else inputs_entry(found, given)
        self._entries[current.form] = None if entry is None else (found, entry)
        return found, found.inputs(leaves)

    def _is_hooked(self, current: _Round) -> bool:
        """Whether hooks want to see gradients, so that Python makes the step; an error where programs are asked for."""
        hooked = refusal_of_hooks(current.prepared.parameters)
        if hooked is None:
            return False
        if self.options.refuses():
            raise hooked
        logger.info("weft: %s runs by Python: %s", self.name, hooked)
        return True

    def _made_for(self, call: FlatCall) -> Guarded[Program] | None:
        """A program for a call that no exact one takes; None where it is worth none."""
        key = self._key_of(call)
        varying, declared = self.varying.find(key, call.leaves), marked(call.leaves, self._sizes_of(call))
        if varying is not None or declared.free or not self._is_patient() or self.rare.many_pay(key):
            varying = self._find_varying(key, call, declared)
        else:
            self.varying.note(key, call.leaves)
        if varying is None:
            return self._trace(call, always=self.task.deterministic)
        pace = varying.pace_of(call.leaves)
        self._timed = partial(pace.timed, work=varying.work(call.leaves))
        return None if pace.is_for_python() else varying.guarded

    def _is_worth_it(self, key: Key, is_new: bool) -> bool:
        if is_new or not self._is_patient():
            return super()._is_worth_it(key, is_new)
        return not self.python_runs.others() and self.rare.one_pays(key, is_made_again=bool(self.programs.get(key)))

    def _call_of(self, current: _Round, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> FlatCall:
        given = (*arguments, *current.numbers.values(), current.form)
        return self.flat_call(given, keywords)

    def _traced(self, call: FlatCall, *, runs: bool, whole: bool = False) -> Guarded[Program]:
        try:
            found = super()._traced(call, runs=runs, whole=whole)
        except UnsupportedError as error:
            raise _with_loop(error) from error
        self._updated[found] = self._gradients_there
        return found

    def _make_varying(self, call: FlatCall, tops: Shapes, asked: AskedSizes) -> tuple[Traced, Guarded[Program] | None]:
        with self.rare.making_many():
            traced, found = super()._make_varying(call, tops, asked)
        if found is not None:
            self._updated[found] = self._gradients_there
        return traced, found

    def _compiled(self, traced: Traced, *, backward_later: bool = False) -> Program:
        losses = traced.structure.children()[0].num_leaves if self.task.low_memory else 0
        return Program(traced, self.lock, losses, backward_later=backward_later)

    def _hand_out(self, current: _Round, gradients: Gradients) -> None:
        prepared = current.prepared
        for parameter, gradient in zip(prepared.parameters, gradients, strict=True):
            parameter.grad = gradient
        if current.updates and self._kept is not None and prepared.form.buckets:
            self._kept.commit(prepared.parameters, [gradient is not None for gradient in gradients])
            note_step(self.optimizer)
        self._calls = 0 if current.updates else self._calls + 1

    def _covered(self) -> bool:
        """Whether the optimizer's rule says all that its step would do."""
        return (
            self._kept is not None
            and not any(step_hooks(self.optimizer))
            and not has_own_step(self.optimizer)
            and not any(group.get("differentiable") or group.get("capturable") for group in self.optimizer.param_groups)
            and all(parameter.is_floating_point() for parameter in self._parameters())
        )

    def _next_round(self, *, covered: bool) -> _Round:
        self._forget_other_parameters()
        updates = self._calls + 1 >= self.task.accumulate
        if updates and covered and self._kept is not None:
            prepared = self._kept.prepare()
        else:
            parameters = [parameter for parameter in self._parameters() if parameter.requires_grad]
            prepared = Prepared(parameters, [{} for _ in parameters], UpdateForm((), ()), [])
        before = [parameter.grad if self._calls else None for parameter in prepared.parameters]
        dtypes = dict.fromkeys(map(number_dtype, prepared.parameters)) if prepared.numbers else {}
        numbers = {dtype: torch.tensor(prepared.numbers, dtype=dtype) for dtype in dtypes}
        form = self._form(prepared, before, clips=updates and self.task.clipping != Clipping())
        self._round = _Round(prepared, before, updates, numbers, form)
        return self._round

    def _forget_other_parameters(self) -> None:
        """Drop all programs when the optimizer has got other parameters: they update those that they were made for."""
        now = [*self._parameters()]
        if len(now) != len(self._known) or not all(map(is_, now, self._known)):
            self.programs.clear()
            self._entries.clear()
            self.varying = VaryingPrograms()
            self._known = now
            self._waits_for_sizes = any(map(unmaterialised, now))

    def _form(self, prepared: Prepared, before: list[torch.Tensor | None], *, clips: bool) -> str:
        added = [index for index, gradient in enumerate(before) if gradient is not None]
        parts = [f"adds to gradients {added}"] if added else []
        parts += ["clips them"] if clips else []
        if prepared.form.buckets:
            parts.append(f"{type(self.optimizer).__name__}: {prepared.form}")
        return ". ".join(parts) or "gradients"

    # -- what is traced -----------------------------------------------------------------------------------------

    def _train(self, *given: Any, **keywords: Any) -> Any:
        """The step itself, as Python runs it once; `given` are the user's arguments, the numbers, the form."""
        current = self._round
        assert current is not None
        count = len(current.numbers)
        arguments = given[: len(given) - 1 - count]
        numbers = dict(zip(current.numbers, given[len(arguments) : -1], strict=True))
        losses = losses_of(self.task, arguments, keywords)
        gradients = self._learn(losses, current, numbers)
        return tree_map_only(torch.Tensor, torch.Tensor.detach, losses), gradients

    def _learn(self, losses: Any, current: _Round, numbers: Mapping[torch.dtype, torch.Tensor]) -> Gradients:
        """Differentiate the losses and, where a rule covers the optimizer, update."""
        with torch.autocast("cpu", enabled=False):
            gradients = total_gradients(self.task, losses, current.prepared.parameters, current.spent)
            with torch.no_grad():
                self._gradients_there = tuple(gradient is not None for gradient in gradients)
                gradients = added_up(gradients, current.before)
                if current.updates:
                    clipped(gradients, self.task.clipping)
                if current.prepared.form.buckets:
                    assert self.task.rule is not None
                    update(self.task.rule, current.prepared, gradients, numbers)
        return gradients

    def _state(self, *roots: Any) -> PythonState:
        """What module and loss reach, and what the optimizer keeps."""
        current = self._round
        state = super()._state(*roots, self.task.loss)
        if current is None:
            return state  # before the first call
        current.spent[:] = [tensor for place in state.slots.values() if is_spent(tensor := place.get())]
        for index, (parameter, gradient) in enumerate(zip(current.prepared.parameters, current.before, strict=True)):
            held = Slot([parameter], 0, f"parameter {index}")
            state.slots.setdefault(id(parameter), held)
            state.places[id(parameter)].append(held)  # another one in the net's place is not the optimizer's
            state.slots[id(parameter)] = replace(state.slots[id(parameter)], registered=True)
            if gradient is not None:
                state.slots[id(gradient)] = Slot(GradientPlace(parameter), "grad", f"gradient {index}", registered=True)
        if self._kept is not None:
            state.slots.update(self._kept.slots(current.prepared))
        return state

    def _raise_as_eager(self, error: Exception, call: FlatCall) -> NoReturn:
        """A mistake in the user's program gets the very exception that it gets imperatively; nothing is updated."""
        current = self._round
        assert current is not None
        arguments = call.arguments[: len(call.arguments) - 1 - len(current.numbers)]
        before = OptimizerSnapshot()
        before.take(self._buffers(), {})

        def gradients() -> object:
            losses = losses_of(self.task, arguments, call.keywords)
            return total_gradients(self.task, losses, current.prepared.parameters)

        roots = dict(enumerate((self.task.net, self.task.loss, *arguments, *call.keywords.values())))
        try:
            call_and_undo(gradients, roots)
        finally:
            before.restore()
        raise trace_failure(self.name, error) from error

    def _positional_names(self, count: int) -> list[str]:
        """The arguments as the module calls them, then the target, then what is the optimizer's."""
        numbers = [f"numbers{index or ''}" for index in range(len(self._round.numbers) if self._round else 0)]
        last = [*(["target"] if self.task.loss is not None else []), *numbers, "form"]
        forward = self.task.net.forward if isinstance(self.task.net, nn.Module) else self.task.net
        own = [*inspect.signature(forward).parameters]
        inputs = (own[index] if index < len(own) else str(index) for index in range(count - len(last)))
        return [*inputs, *last]

    def _parameters(self) -> Iterator[torch.Tensor]:
        return (parameter for group in self.optimizer.param_groups for parameter in group["params"])

    def _buffers(self) -> list[torch.Tensor]:
        return buffers_of(thing for thing in (self.task.net, self.task.loss) if isinstance(thing, nn.Module))


@shows_less
def step(  # noqa: PLR0913 - what a step may be told, by keyword
    net: Callable[..., Any],
    loss: Callable[..., Any] | None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    accumulate: int = 1,
    deterministic: bool = False,
    memory: str = "normal",
    whole: bool | None = None,
    check: int = 0,
    sizes: Mapping[Any, Any] | None = None,
) -> Step:
    """A function that trains: `step(x, y)` runs forward, loss, backward and update as one program.

    The last argument is the target, given to `loss(output, target)`; all others are the module's. A `loss` of None says
    that the module gives its loss itself, and all arguments are the module's. The loss may be several, in a tuple or
    dict: their sum is differentiated, or a dict's `loss`. `clip_norm` and `clip_value` limit gradients; `accumulate=n`
    averages the gradients of n calls and updates at the last of them; `deterministic` steps give the same bits on any
    number of cores; `memory="low"` computes cheap values again in the backward where that lowers `step.peak_bytes`.
    Code that no program can be made of runs by Python at each step; `whole=True` raises UnsupportedError. The first
    `check` steps are made by PyTorch's usual loop too, and compared in losses, parameters, gradients, buffers and the
    optimizer's state; MismatchError tells what differs. `sizes` names sizes that vary, as in `weft.hybridize`; the
    target is called "target". Of several optimizers, in a list, each updates its own parameters.
    """
    updater = checked_optimizer(net, loss, optimizer)
    refuse_check(check)
    if check and needs_closure(updater):
        warnings.warn(
            f"weft: steps of {type(updater).__name__} are not checked: roundings decide how often it asks for a loss",
            stacklevel=2,
        )
    refuse_options(accumulate=accumulate, memory=memory, limits={"norm": clip_norm, "value": clip_value})
    if accumulate > 1 and needs_closure(updater):
        raise UsageError(
            f"{type(updater).__name__} cannot accumulate",
            why="it computes the loss several times a step, of one batch",
            fix="pass the whole batch at once",
        )
    rule = RULES.get(type(updater))
    clipping = Clipping(clip_norm, clip_value)
    task = TrainingTask(net, loss, rule, clipping, accumulate, deterministic, memory == "low")
    options = HybridOptions(whole=whole, check=check, sizes=sizes)
    refuse_unknown(options.sizes, getattr(net, "forward", net), ["target"])
    return Step(task, updater, options)


def _not_timed(*, by_python: bool) -> AbstractContextManager[None]:
    """Run a call whose way is settled."""
    del by_python
    return nullcontext()


def _name(thing: Any) -> str:
    return type(thing).__name__ if isinstance(thing, nn.Module) else getattr(thing, "__name__", "a function")


def _with_loop(error: UnsupportedError) -> UnsupportedError:
    """What hybridize gives as the last way out, as it is done with a training step."""
    fix = error.fix and error.fix.replace(KEEP_EAGER, IN_A_LOOP).replace(PARTS_AROUND, IN_A_LOOP)
    return UnsupportedError(error.fact, where=error.where, why=error.why, fix=fix)


def _parts_of(step: Step) -> Parts:
    """Everything that a step is but its programs, which are made anew."""
    if needs_closure(step.optimizer):
        raise UnsupportedError(
            f"a step with {type(step.optimizer).__name__} cannot be copied or pickled",
            why="a copy that PyTorch makes of this optimizer does not know its parameters",
            fix="copy the module, make an optimizer of its parameters, give it optimizer.state_dict(), and make a step "
            "of the two",
        )
    task = step.task
    options = {
        "clip_norm": task.clipping.norm,
        "clip_value": task.clipping.value,
        "accumulate": task.accumulate,
        "deterministic": task.deterministic,
        "memory": "low" if task.low_memory else "normal",
        "whole": step.options.whole,
        "check": step.options.check,
        "sizes": step.options.sizes,
    }
    # Copies of parameters have no gradients; those that were added up so far belong to the next update.
    gradients = [parameter.grad for parameter in step._parameters()] if step._calls else []
    return (task.net, task.loss, step.optimizer), options, gradients, step._calls


def _made_again(make: Callable[..., Step], trained: Any, options: Any, gradients: list[Any], calls: int) -> Step:
    """Make another step of these parts."""
    made = make(*trained, **options)
    for parameter, gradient in zip(made._parameters(), gradients, strict=False):
        parameter.grad = gradient
    made._calls = calls
    return made
