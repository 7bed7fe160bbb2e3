"""A Plan -> the LLVM module that runs it.

Functions of the module: `void serial(frame*)` runs all calls in order; `void lane_<i>(frame*)` runs one lane;
`void check(frame*)` marks a call whose indices are out of range, which must not run; `void pack_<i>(table*)` runs one
packing chain. See frame.py for what a frame holds.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from weft.codegen.call_writer import CallWriter, write_call
from weft.codegen.lane_function import emit_lanes
from weft.codegen.llvm.module import Module
from weft.codegen.objects.module_parts import ModuleParts
from weft.codegen.packing import PackingChain, packing_chains
from weft.codegen.plan_kernels import KernelFunctions, text_of
from weft.codegen.threads.clock import Clock, serial_tick
from weft.codegen.threads.frame import MARK_OFFSET, Frame, frame_of
from weft.plan.form.plan import Plan
from weft.target import Target

SERIAL, CHECK = "serial", "check"


@dataclass(frozen=True, slots=True)
class PlanModule:
    """The module that runs a plan, and where what it needs is found."""

    module: Module
    frame: Frame
    chains: tuple[PackingChain, ...]

    @property
    def text(self) -> str:
        """Give the whole module's text."""
        return str(self.module)


def description_of(plan: Plan, lasting: Collection[int] = (), *, clocked: bool = False) -> str:
    """Describe all that the module of a plan is made of: where two texts are equal, so are the modules."""
    # The text tells 0.0 from -0.0 and 1 from 1.0, which equality does not.
    return repr((plan, sorted(lasting), clocked))


def emit_plan(plan: Plan, target: Target, lasting: Collection[int] = (), *, clocked: bool = False) -> PlanModule:
    """Write the module of a plan; `lasting` inputs are nearly always the same tensors.

    A clocked one notes when each item of a lane has ended, or each call of a plan with one lane.
    """
    functions = KernelFunctions(Module(target))
    frame, chains = frame_of(plan, lasting), packing_chains(plan)
    _emit_callers(functions, plan, frame, chains, clocked=clocked)
    return PlanModule(functions.module, frame, chains)


def plan_texts(
    plan: Plan, target: Target, lasting: Collection[int] = (), *, clocked: bool = False, parted: bool = True
) -> Iterator[str]:
    """Write the same as modules that call one another, the text of each as soon as it is written; or as one."""
    if not parted:
        yield emit_plan(plan, target, lasting, clocked=clocked).text
        return
    parts = KernelParts(plan, target)
    yield from parts.texts()
    yield from parts.rest(plan, lasting, clocked=clocked)


class KernelParts:
    """The kernels of a plan as modules of their own, the same whatever the order of its calls, and then the rest.

    So the kernels can be written, and compiled, before it is known how their calls are ordered and given to lanes.
    """

    def __init__(self, plan: Plan, target: Target) -> None:
        self._kernels = _kernels(plan)
        self._functions = KernelFunctions(Module(target))
        self._parts = ModuleParts(self._functions.module)

    def are_of(self, plan: Plan) -> bool:
        """Tell whether a plan has these very kernels."""
        return _kernels(plan).keys() == self._kernels.keys()

    def texts(self) -> Iterator[str]:
        """Write the kernels; gives the text of each complete module."""
        ordered = sorted((text_of(kernel), kernel.name, number) for number, kernel in self._kernels.items())
        for _, _, number in ordered:
            before = len(self._functions.groups)
            self._functions.name(self._kernels[number])
            for group in self._functions.groups[before:]:
                yield from self._parts.add(group)

    def rest(self, plan: Plan, lasting: Collection[int] = (), *, clocked: bool = False) -> Iterator[str]:
        """Write what calls the kernels, for a plan that has these; gives the texts of the last modules."""
        _emit_callers(self._functions, plan, frame_of(plan, lasting), packing_chains(plan), clocked=clocked)
        return self._parts.rest()


def _kernels(plan: Plan) -> dict[int, Any]:
    """The kernels of a plan by identity."""
    return {id(call.kernel): call.kernel for call in (*plan.calls, *plan.checks, *plan.packing)}


def _emit_callers(
    functions: KernelFunctions, plan: Plan, frame: Frame, chains: Collection[PackingChain], *, clocked: bool
) -> None:
    """Write what calls kernels, and those of these that are not written yet."""
    serial = CallWriter(functions.module.function(SERIAL, ["ptr"]), functions, frame)
    clock = Clock(serial.writer, serial_tick(plan.lanes)) if clocked else None
    if clock is not None:
        clock.tick()
    serial.writer.leave_as_written()
    for call in plan.calls:
        serial.run(call, 0, call.kernel.tile_count)
        if clock is not None:
            clock.tick()
    emit_lanes(functions, frame, plan, clocked=clocked)
    if plan.checks:
        _emit_checks(functions, frame, plan)
    for number, chain in enumerate(chains):
        _emit_chain(functions, f"pack_{number}", chain)


def _emit_checks(functions: KernelFunctions, frame: Frame, plan: Plan) -> None:
    calls = CallWriter(functions.module.function(CHECK, ["ptr"]), functions, frame)
    writer = calls.writer
    mark = writer.offset(writer.parameters[0], "i8", MARK_OFFSET)
    writer.store(writer.integer(0), mark)
    for call in plan.checks:
        places = [mark, *map(calls.address, call.reads)]
        write_call(writer, functions.name(call.kernel), places, (0, call.kernel.tile_count))


def _emit_chain(functions: KernelFunctions, name: str, chain: PackingChain) -> None:
    writer = functions.module.function(name, ["ptr"])
    (table,) = writer.parameters
    slots = {buffer: slot for slot, buffer in enumerate(chain.table)}
    for call in chain.calls:
        bases = [writer.load("ptr", writer.offset(table, "ptr", slots[place.buffer])) for place in call.arguments]
        places = [writer.offset(base, "i8", place.offset) for base, place in zip(bases, call.arguments, strict=True)]
        write_call(writer, functions.name(call.kernel), places, (0, call.kernel.tile_count))
