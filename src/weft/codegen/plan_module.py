"""Write the LLVM module that runs a plan: its kernels once each, and the functions that call them.

`void serial(frame*)` runs all calls in order; `void lane_<i>(frame*)` runs one lane; `void check(frame*)` marks a call
whose indices are out of range, which must not run; `void pack_<i>(table*)` runs one packing chain. layout.py says what
a frame holds.

Lanes hand over to one another by counters in the frame. A lane's counter is the call's number and how many of its runs
are done; as numbers of calls only grow, counters need no reset. A lane publishes where another one waits for it. That
all lanes have ended is not seen here: the code of a lane may go as soon as its caller returns, so who waits for its end
must wait until it has returned.

A clocked module notes when each item has ended, for timelines: seconds and nanoseconds, as `clock_gettime` gives them.
(The processor's own counter is quicker, but in virtual machines that of one core may be a tenth of a millisecond behind
that of another.)

Groups of functions that only call one another stay together. What calls them, and all that is in no group, comes last:
long functions in parts of their own, the others together. They call other parts through pointers. So a part can be
compiled while the next one is written.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from math import prod
from typing import Any

from weft.codegen.kernels.attention import emit_attention
from weft.codegen.kernels.attention_gradient import emit_attention_gradient
from weft.codegen.kernels.check import emit_check
from weft.codegen.kernels.conv import emit_conv
from weft.codegen.kernels.conv_weight import emit_depthwise_weight, emit_weight_gradient
from weft.codegen.kernels.gemm import emit_gemm
from weft.codegen.kernels.loop import emit_loop
from weft.codegen.kernels.pack import emit_pack
from weft.codegen.kernels.pool import emit_pool, emit_pool_gradient
from weft.codegen.kernels.recurrent import emit_recurrent
from weft.codegen.kernels.reduce import emit_reduce
from weft.codegen.kernels.scatter import emit_scatter
from weft.codegen.kernels.top import emit_top
from weft.codegen.kernels.winograd import emit_winograd, emit_winograd_stage, emit_winograd_weights
from weft.codegen.llvm.module import FunctionWriter, Module, Register, constant
from weft.codegen.packing import PackingChain, packing_chains
from weft.codegen.threads.flags import PUBLISH, WAIT, emit_publish, emit_wait
from weft.codegen.threads.layout import CLOCK_OFFSET, EPOCH_OFFSET, LINE_BYTES, MARK_OFFSET, MOST_LANES, Frame, frame_of
from weft.errors import InternalError
from weft.plan.extents.axes import tiles_of_first
from weft.plan.form.plan import KernelCall, Lane, Location, LoopEnd, NeededTiles, Pitch, Plan, Wait
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.attention_gradient import AttentionGradientKernel
from weft.plan.kernels.check import CheckKernel
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.conv_weight import DepthwiseWeightKernel, WeightGradientKernel
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.kernel import Kernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.pool import PoolGradientKernel, PoolKernel
from weft.plan.kernels.recurrent import RecurrentKernel
from weft.plan.kernels.reduce import RowKernel
from weft.plan.kernels.scatter import ScatterKernel
from weft.plan.kernels.top import TopKernel
from weft.plan.kernels.winograd import WinogradKernel, WinogradStage, WinogradWeightKernel
from weft.plan.schedule.shares import TileAxis, tile_axes
from weft.target import Target

# Each row's emitter takes kernels of its own kind.
EMIT: dict[type[Kernel], Callable[[Module, Any], None]] = {
    LoopKernel: emit_loop,
    RowKernel: emit_reduce,
    GemmKernel: emit_gemm,
    PackKernel: emit_pack,
    ConvKernel: emit_conv,
    WeightGradientKernel: emit_weight_gradient,
    DepthwiseWeightKernel: emit_depthwise_weight,
    PoolKernel: emit_pool,
    PoolGradientKernel: emit_pool_gradient,
    ScatterKernel: emit_scatter,
    TopKernel: emit_top,
    RecurrentKernel: emit_recurrent,
    CheckKernel: emit_check,
    AttentionKernel: emit_attention,
    AttentionGradientKernel: emit_attention_gradient,
    WinogradKernel: emit_winograd,
    WinogradStage: emit_winograd_stage,
    WinogradWeightKernel: emit_winograd_weights,
}


class KernelFunctions:
    """The functions of kernels in one module, each emitted when it is first asked for."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.groups: list[list[FunctionWriter]] = []
        """The functions of each kernel: they call one another, and nothing else of the module."""
        self._names: dict[str, str] = {}
        self._known: dict[int, tuple[Kernel, str]] = {}  # by identity; each keeps its kernel, so that no other gets its
        self._firsts: dict[int, tuple[KernelCall, int | None]] = {}  # the same of calls

    def name(self, kernel: Kernel) -> str:
        """Give the name of a kernel's function."""
        if id(kernel) not in self._known:
            self._known[id(kernel)] = kernel, self._find(kernel)
        return self._known[id(kernel)][1]

    def tiles_of_first(self, call: KernelCall) -> int | None:
        """Give how many tiles compute each position of a kernel's first dimension, one position after the other."""
        if id(call) not in self._firsts:
            self._firsts[id(call)] = call, tiles_of_first(call)
        return self._firsts[id(call)][1]

    def _find(self, kernel: Kernel) -> str:
        key = text_of(kernel)
        if key not in self._names:
            emit = EMIT.get(type(kernel))
            if emit is None:
                raise InternalError(f"no code is generated for kernels of the class {type(kernel).__name__}")
            name = f"{kernel.name}.{len(self._names)}"
            before = len(self.module.functions)
            emit(self.module, kernel.renamed(name))
            self.groups.append(self.module.functions[before:])
            self._names[key] = name
        return self._names[key]


def text_of(kernel: Kernel) -> str:
    """Describe all of a kernel but its name: kernels with equal texts have the same function."""
    # The text tells 0.0 from -0.0 and 1 from 1.0, which equality does not.
    return repr(kernel.renamed(""))


Group = Sequence[FunctionWriter]
LEAST_PART = 80_000  # letters: below it a part takes about as long as starting a thread, and loading it, saves


class ModuleParts:
    """Cuts a module into parts, each of which is complete as soon as its functions are long enough together."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._texts: list[str] = []  # of the part that is being written
        self._names: set[str] = set()  # of its functions
        self._grouped: set[int] = set()
        self._far: set[str] = set()  # the names of the functions in complete parts

    def add(self, group: Group) -> Iterator[str]:
        """Take functions that only call one another; gives the text of a part that they complete."""
        self._texts += map(str, group)
        self._names.update(function.name for function in group)
        self._grouped.update(map(id, group))
        if sum(map(len, self._texts)) >= LEAST_PART:
            yield self._module.text(_declared(self._module, self._texts), self._texts)
            self._far |= self._names
            self._texts, self._names = [], set()

    def rest(self) -> Iterator[str]:
        """Give the parts with all other functions of the module; no function is written after them."""
        callers = [function for function in self._module.functions if id(function) not in self._grouped]
        long = [caller for caller in callers if len(str(caller)) >= LEAST_PART]
        for caller in long:
            yield self._calling([caller], {name for _, name, _ in caller.calls}, [])
        others = [caller for caller in callers if caller not in long]
        if others or self._texts:
            yield self._calling(others, self._far, self._texts)

    def _calling(self, callers: Group, far: Collection[str], texts: Sequence[str]) -> str:
        functions = [*(_with_far_calls(caller, far) for caller in callers), *texts]
        called = dict(entry for caller in callers for entry in _far_declarations(caller, far))
        return self._module.text([*_declared(self._module, functions), *called.values()], functions)


def _with_far_calls(caller: FunctionWriter, far: Collection[str]) -> str:
    """Give the text of a function that calls those of other modules, which lie anywhere in memory, through pointers."""
    changed = {}
    for line, name, operands in caller.calls:
        if name in far:
            listed = ", ".join(map(str, operands))
            changed[line] = f"  %far{line} = load ptr, ptr @import.{name}\n  call void %far{line}({listed})"
    return caller.text(changed)


def _far_declarations(caller: FunctionWriter, far: Collection[str]) -> Iterator[tuple[str, str]]:
    # A function is called many times: what it takes is the same each time.
    called = {name: operands for _, name, operands in caller.calls if name in far}
    for name, operands in called.items():
        kinds = ", ".join([operand.kind for operand in operands])
        place = f"@import.{name} = internal externally_initialized global ptr @{name}"
        yield name, f"declare void @{name}({kinds})\n{place}"


def _declared(module: Module, functions: Sequence[str]) -> list[str]:
    """The declarations of what functions name: tables that nothing reads would be in the machine code all the same."""
    needed = {name for name in module.declarations if any(f"@{name}" in text for text in functions)}
    needed |= {name.removeprefix("import.") for name in needed}
    return [line for name, line in module.declarations.items() if name in needed]


SERIAL, CHECK = "serial", "check"
COUNT_BITS = 24  # of a counter, for the runs that are done; the call's number is above
TICK_WORDS = 2  # seconds, nanoseconds
MONOTONIC = 1  # the clock that Python's perf_counter reads too


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
    serial = _CallWriter(functions.module.function(SERIAL, ["ptr"]), functions, frame)
    clock = _Clock(serial.writer, serial_tick(plan.lanes)) if clocked else None
    if clock is not None:
        clock.tick()
    serial.writer.leave_as_written()
    for call in plan.calls:
        serial.run(call, 0, call.kernel.tile_count)
        if clock is not None:
            clock.tick()
    _emit_lanes(functions, frame, plan, clocked=clocked)
    if plan.checks:
        _emit_checks(functions, frame, plan)
    for number, chain in enumerate(chains):
        _emit_chain(functions, f"pack_{number}", chain)


def _emit_checks(functions: KernelFunctions, frame: Frame, plan: Plan) -> None:
    calls = _CallWriter(functions.module.function(CHECK, ["ptr"]), functions, frame)
    writer = calls.writer
    mark = writer.offset(writer.parameters[0], "i8", MARK_OFFSET)
    writer.store(writer.integer(0), mark)
    for call in plan.checks:
        places = [mark, *map(calls.address, call.reads)]
        _write_call(writer, functions.name(call.kernel), places, (0, call.kernel.tile_count))


def _emit_chain(functions: KernelFunctions, name: str, chain: PackingChain) -> None:
    writer = functions.module.function(name, ["ptr"])
    # SAFETY: whoever packs gives a table in the chain's own order, of tensors as large as the plan's buffers.
    (table,) = writer.parameters
    slots = {buffer: slot for slot, buffer in enumerate(chain.table)}
    for call in chain.calls:
        bases = [writer.load("ptr", writer.offset(table, "ptr", slots[place.buffer])) for place in call.arguments]
        places = [writer.offset(base, "i8", place.offset) for base, place in zip(bases, call.arguments, strict=True)]
        _write_call(writer, functions.name(call.kernel), places, (0, call.kernel.tile_count))


# The addresses of a kernel's arguments, and numbers of this call: where loops end, then strides and counts.
Given = tuple[Sequence[Register], Sequence[Register]]
ShareOf = tuple[int, int]  # the number of a share, and of how many


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of tiles: a table of where they start, how many, and by which sizes they are needed, with a table each."""

    starts: Register
    count: int
    least: tuple[tuple[Register, Register], ...]


@dataclass(frozen=True, slots=True)
class AxisSteps:
    """Of a dimension that tiles follow: the last step that is needed, what that takes, and what all of them do."""

    last: Register
    of_last: Register
    all: Register

    @classmethod
    def of(cls, f: FunctionWriter, axis: TileAxis, ends: Sequence[Register]) -> AxisSteps:
        """Write them, as `TileAxis` says."""
        one, none = f.integer(1), f.integer(0)
        if axis.end is None:
            return cls(f.integer(axis.count - 1), one, f.integer(axis.count))
        places = f.minimum(ends[axis.end], f.integer(axis.count * axis.step))
        needed = f.divide(f.add(places, axis.step - 1), axis.step)[0]
        last = f.maximum(f.add(needed, -1), none)
        if not axis.varies:
            return cls(last, one, needed)
        there = f.binary("sub", places, f.binary("mul", f.add(needed, -1), f.integer(axis.step)))
        *heights, of_last = (f.integer(height + axis.fixed) for height in axis.heights)
        for height, work in zip(reversed(axis.heights[:-1]), reversed(heights), strict=True):
            of_last = f.select(f.compare("icmp sle", there, f.integer(height)), work, of_last)
        whole = f.binary("mul", f.add(needed, -1), f.integer(axis.work))
        return cls(last, of_last, f.binary("add", whole, of_last))


class _CallWriter:
    """Writes calls of kernels into a function whose one parameter is the frame."""

    def __init__(self, writer: FunctionWriter, functions: KernelFunctions, frame: Frame) -> None:
        self.writer = writer
        self.functions = functions
        self.frame = frame

    @cached_property
    def _counter(self) -> Register:
        return self.writer.stack("i64")

    @cached_property
    def _done(self) -> Register:
        return self.writer.stack("i64")

    def run(self, call: KernelCall, begin: int, end: int, share: ShareOf | None = None) -> None:
        """Write the call of some tiles of a kernel, or of a share of all."""
        if begin < end:
            addresses = [self.address(place) for place in call.arguments]
            ends = [self._count(end) for end in call.ends]
            ends += [*map(self._pitch, call.pitches), *map(self._count, call.bounds)]
            if call.needed is not None:
                self._run_needed(call, call.needed, (addresses, ends), (begin, end), share)
            else:
                self._run_first(call, (addresses, ends), (begin, end), share)

    def _tiles_of(self, call: KernelCall, ends: Sequence[Register], share: ShareOf) -> tuple[Register, Register]:
        """Write where a share of a call's tiles begins and ends, which `first_tile` says."""
        f, axes, tiles, (number, of) = self.writer, tile_axes(call), call.kernel.tile_count, share
        steps = [AxisSteps.of(f, axis, ends) for axis in axes]
        inside = [f.integer(1)]  # what all steps along inner dimensions take
        for one in reversed(steps):
            inside.insert(0, f.binary("mul", inside[0], one.all))

        def first(number: int) -> Register:
            if number in (0, of):
                return f.integer(tiles if number else 0)
            rest, flat = f.divide(f.multiply(inside[0], number), of)[0], f.integer(0)
            for axis, one, each in zip(axes, steps, inside[1:], strict=True):
                whole = f.multiply(f.maximum(each, f.integer(1)), axis.work)
                step = f.minimum(f.binary("udiv", rest, whole), one.last)
                rest = f.binary("sub", rest, f.binary("mul", step, whole))
                if axis.varies:
                    rest = f.binary(
                        "udiv", rest, f.select(f.compare("icmp eq", step, one.last), one.of_last, f.integer(axis.work))
                    )
                flat = f.add(f.multiply(flat, axis.count), step)
            inner = prod(axis.count for axis in axes)
            return flat if inner == tiles else f.divide(f.multiply(flat, tiles), inner)[0]

        return first(number), first(number + 1)

    def _run_first(self, call: KernelCall, given: Given, tiles: tuple[int, int], share: ShareOf | None) -> None:
        """Write the call of some tiles, without those of later positions of the first dimension where that ends."""
        f, (addresses, ends) = self.writer, given
        name, dimensions = self.functions.name(call.kernel), getattr(call.kernel, "ends", ())
        each = self.functions.tiles_of_first(call) if 0 in dimensions else None
        begin, end = map(f.integer, tiles) if share is None else self._tiles_of(call, ends, share)
        if each is not None:
            end = f.minimum(end, f.multiply(ends[dimensions.index(0)], each))
        if each is None and share is None:
            f.call(name, (*addresses, begin, end, *ends))
        else:
            self._run_some(name, given, (begin, end))

    def _run_some(self, name: str, given: Given, tiles: tuple[Register, Register]) -> None:
        """Write the call of tiles that may be none."""
        f, (begin, end), (addresses, ends) = self.writer, tiles, given
        run, skip = f.label("run"), f.label("skip")
        f.branch_if(f.compare("icmp slt", begin, end), run, skip)
        f.begin_block(run)
        f.call(name, (*addresses, begin, end, *ends))
        f.branch(skip)
        f.begin_block(skip)

    def _size(self, buffer: int) -> Register:
        """Write the size of this call that a buffer holds."""
        return self.writer.convert("sext", self.writer.load("i32", self.address(Location(buffer))), "i64")

    def _pitch(self, pitch: Pitch) -> Register:
        """Write how far apart elements of a dense argument are in this call."""
        f = self.writer
        return reduce(partial(f.binary, "mul"), map(self._size, pitch.sizes), f.integer(pitch.number))

    def _count(self, end: LoopEnd) -> Register:
        """Write where a loop ends in this call."""
        f, size = self.writer, self._size(end.size)
        whole = f.add(size, end.more + end.whole - 1)
        if end.whole > 1:
            whole = f.binary("and", whole, f.integer(-end.whole))
        count = f.multiply(whole, end.times)
        return f.minimum(f.maximum(count, f.integer(0)) if end.more < 0 else count, f.integer(end.most))

    def _run_needed(
        self,
        call: KernelCall,
        needed: NeededTiles,
        given: Given,
        tiles: tuple[int, int],
        share: ShareOf | None,
    ) -> None:
        """Write the call of those of some tiles that a call of the program needs, or of a share of them."""
        f, (begin, end), name = self.writer, tiles, self.functions.name(call.kernel)
        first, last = bisect_right(needed.starts, begin) - 1, bisect_left(needed.starts, end)
        starts = f.module.table("i64", [begin, *needed.starts[first + 1 : last], end])
        sizes = [f.load("i32", self.address(Location(buffer))) for buffer in needed.sizes]
        tables = [f.module.table("i32", row[first:last]) for row in needed.least]
        ranges = Ranges(starts, last - first, tuple(zip(sizes, tables, strict=True)))
        if share is None:
            self._each_needed(ranges, lambda start, stop: f.call(name, (*given[0], start, stop, *given[1])))
            return
        done, (number, of) = self._done, share

        def count(start: Register, stop: Register) -> None:
            f.store(f.binary("add", f.load("i64", done), f.binary("sub", stop, start)), done)

        f.store(f.integer(0), done)
        self._each_needed(ranges, count)
        total = f.load("i64", done)
        low, high = (f.divide(f.multiply(total, place), of)[0] for place in (number, number + 1))

        def run(start: Register, stop: Register) -> None:
            moved = f.binary("sub", start, f.load("i64", done))  # the first needed tile would be there
            inside = f.maximum(start, f.binary("add", moved, low)), f.minimum(stop, f.binary("add", moved, high))
            count(start, stop)
            self._run_some(name, given, inside)

        f.store(f.integer(0), done)
        self._each_needed(ranges, run)

    def _each_needed(self, ranges: Ranges, body: Callable[[Register, Register], None]) -> None:
        """Write a loop over the ranges of tiles that are needed; the body is given where each starts and stops."""
        f = self.writer
        again, check, following, done = map(f.label, ("again", "check", "next", "done"))
        # The counter is in memory: `FunctionWriter.loop` would move the lines of calls, which are known by number.
        f.store(f.integer(0), self._counter)
        f.branch(again)
        f.begin_block(again)
        number = f.load("i64", self._counter)
        f.branch_if(f.compare("icmp slt", number, f.integer(ranges.count)), check, done)
        f.begin_block(check)
        for size, table in ranges.least:
            above = f.label("above")
            f.branch_if(f.compare("icmp sgt", size, f.load("i32", f.offset(table, "i32", number))), above, following)
            f.begin_block(above)
        place = f.offset(ranges.starts, "i64", number)
        body(f.load("i64", place), f.load("i64", f.offset(place, "i64", 1)))
        f.branch(following)
        f.begin_block(following)
        f.store(f.add(number, 1), self._counter)
        f.branch(again)
        f.begin_block(done)

    def address(self, place: Location) -> Register:
        """Write where a place of a buffer is in memory."""
        # SAFETY: the executable fills the table with the addresses of tensors as large as the plan's buffers, and the
        # frame is as long as its layout says.
        (frame,) = self.writer.parameters
        if place.buffer in self.frame.slots:
            base = self.writer.load("ptr", self.writer.offset(frame, "i8", self.frame.slot_offset(place.buffer)))
            return self.writer.offset(base, "i8", place.offset)
        return self.writer.offset(frame, "i8", self.frame.places[place.buffer] + place.offset)


def _write_call(
    writer: FunctionWriter,
    name: str,
    addresses: Sequence[Register],
    tiles: tuple[int, int],
    ends: Sequence[Register] = (),
) -> None:
    """Write the call of a kernel's function."""
    writer.call(name, (*addresses, *map(writer.integer, tiles), *ends))


def first_ticks(lanes: tuple[Lane, ...]) -> list[int]:
    """Give the place of each lane's first time among all; the last number is how many there are."""
    places = [0]
    for lane in lanes:
        places.append(places[-1] + len(lane) + 1)
    return places


def serial_tick(lanes: tuple[Lane, ...]) -> int:
    """Give the place of the first time of the function that runs all calls in order: behind those of the lanes."""
    return first_ticks(lanes)[-1] if len(lanes) > 1 else 0


class _Clock:
    """Writes the notes of one function, whose parameter is the frame, from a place on."""

    def __init__(self, writer: FunctionWriter, place: int) -> None:
        self._writer = writer
        self._place = place

    def tick(self) -> None:
        """Note the time."""
        f = self._writer
        (frame,) = f.parameters
        # SAFETY: whoever runs a clocked function has put there the address of memory for all ticks of its plan.
        times = f.load("ptr", f.offset(frame, "i8", CLOCK_OFFSET))
        place = f.offset(times, "i64", TICK_WORDS * self._place)
        f.imported("clock_gettime", "i32", constant("i32", MONOTONIC), place)
        self._place += 1


def _emit_lanes(functions: KernelFunctions, frame: Frame, plan: Plan, *, clocked: bool = False) -> None:
    """Write the functions of all lanes; a plan without lanes, or with one, is run by its serial function alone."""
    if len(plan.lanes) < 2:
        return
    if len(plan.lanes) > MOST_LANES:
        raise InternalError(f"a plan has {len(plan.lanes)} lanes", why=f"a frame has room for {MOST_LANES}")
    emit_wait(functions.module)
    emit_publish(functions.module)
    for number in range(len(plan.lanes)):
        writer = functions.module.function(f"lane_{number}", ["ptr"])
        clock = _Clock(writer, first_ticks(plan.lanes)[number]) if clocked else None
        _LaneWriter(_CallWriter(writer, functions, frame), plan, clock).lane(number)


class _LaneWriter:
    """Writes the function of one lane."""

    def __init__(self, calls: _CallWriter, plan: Plan, clock: _Clock | None) -> None:
        self.calls = calls
        self.clock = clock
        self.plan = plan
        self.writer: FunctionWriter = calls.writer
        (self.frame,) = self.writer.parameters
        epoch = self.writer.load("i64", self.writer.offset(self.frame, "i8", EPOCH_OFFSET))
        self.base = self.writer.binary("shl", epoch, self.writer.integer(COUNT_BITS))

    def lane(self, number: int) -> None:
        """Write the items of a lane."""
        lane, done = self.plan.lanes[number], 0
        awaited = {
            item.count for other in self.plan.lanes for item in other if isinstance(item, Wait) and item.lane == number
        }
        self.writer.leave_as_written()
        self._tick()
        for item in lane:
            if isinstance(item, Wait):
                self._wait(item.lane, item.count)
            else:
                self.calls.run(self.plan.calls[item.call], item.begin, item.end, item.share)
                done += 1
                if done in awaited:
                    self._publish(number, done)
            self._tick()

    def _tick(self) -> None:
        if self.clock is not None:
            self.clock.tick()

    def _wait(self, lane: int, count: int) -> None:
        # On the other side: the lane of that number, which publishes this count after its run. It runs, or is posted to
        # a worker that runs nothing else (workers.py), and the plan's waits form no circle: so it comes there.
        if count:
            self.writer.call(WAIT, (self._counter(lane), self.writer.add(self.base, count)))

    def _publish(self, lane: int, count: int) -> None:
        self.writer.call(PUBLISH, (self._counter(lane), self.writer.add(self.base, count)))

    def _counter(self, lane: int) -> Register:
        return self.writer.offset(self.frame, "i8", lane * LINE_BYTES)
