"""Compile a Plan to machine code, and run it on tensors; with a clock, note what each lane does."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from struct import Struct, pack_into
from types import MappingProxyType
from typing import Any

import torch

from weft.codegen.objects.compiler import Compilation
from weft.codegen.objects.native import NativeLibrary, compile_described
from weft.codegen.packing import PackingChain, packing_chains
from weft.codegen.plan_module import (
    CHECK,
    SERIAL,
    TICK_WORDS,
    KernelParts,
    description_of,
    first_ticks,
    plan_texts,
    serial_tick,
)
from weft.codegen.threads.layout import CLOCK_OFFSET, MARK_OFFSET, PROGRAM_OFFSET, TABLE_OFFSET, frame_of
from weft.codegen.threads.trial import running_as_before
from weft.codegen.threads.workers import BACKOFF_SLOT, TRIAL_SLOT
from weft.devices import cpu_count
from weft.errors import InternalError
from weft.plan.form.dependencies import lanes_of
from weft.plan.form.plan import Lane, Plan, Run, Wait
from weft.plan.plan_text import describe, share_text
from weft.runtime.arena import ArenaBlock, BlockPool, block_pool
from weft.runtime.binding import Binding, BoundProgram, NativeCode, PackingOf
from weft.runtime.built_in import table_of
from weft.runtime.lane_choice import LaneChoice, LaneTrialWords
from weft.runtime.lanes import crew_address, crew_row, dispatch_address, ensure_crew, run_lanes
from weft.runtime.weights import PackedWeight, Packing, address_of, begin_packing
from weft.target import Target

RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # a CFUNCTYPE releases the interpreter's lock
MARK = Struct("@Q")  # what a check leaves in a frame
DISPATCH = Struct("@2Q")  # where the program and the crew are described, in a frame
NANOSECOND = 1e-9


@dataclass(frozen=True, slots=True)
class Begun:
    """The kernels of one plan: those in complete modules are being compiled."""

    parts: KernelParts
    compilation: Compilation

    def rest(self, plan: Plan, lasting: Collection[int]) -> Iterator[str]:
        """Write what is not being compiled yet."""
        return self.parts.rest(plan, lasting)


Words = ctypes.Array[Any]


class _Amount(threading.local):
    """How much the call of a program for a range of sizes computes that a thread runs; 0 outside of such."""

    now = 0


_amount = _Amount()


@contextmanager
def computing(work: int) -> Iterator[None]:
    """Let programs choose between lanes and one lane among calls that compute about so much, in this thread."""
    before, _amount.now = _amount.now, max(work, 1).bit_length()
    try:
        yield
    finally:
        _amount.now = before


NONE_FIXED: Mapping[int, int] = MappingProxyType({})
MovedRunner = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], bool]


class NativeExecutable:
    """A plan in machine code; any number of threads may call it at once.

    `constants` are the tensors of the plan's buffers of that kind, in order, dense as the plan's kernels read them.
    `lasting` are the inputs that are nearly always the same tensors, such as parameters: their addresses are kept, and
    compared. Inputs that the plan packs are lasting too; they are packed again when they have changed. The kernels of
    the plan may be `begun` to be compiled.
    """

    _clocked = False  # whether what it does is noted with times

    def __init__(
        self,
        plan: Plan,
        target: Target,
        constants: Sequence[torch.Tensor] = (),
        lasting: Collection[int] = (),
        begun: Begun | None = None,
    ) -> None:
        self.plan = plan
        self.constants = tuple(constants)
        counts = {kind: sum(1 for _ in plan.of_kind(kind)) for kind in ("input", "output", "packed", "constant")}
        if len(self.constants) != counts["constant"]:
            raise InternalError(f"a plan has {counts['constant']} constants, {len(self.constants)} were given")
        packed = {plan.buffers[place.buffer] for call in plan.packing for place in call.reads}
        self.lasting = sorted({*lasting, *(buffer.index for buffer in packed if buffer.kind == "input")})
        description = description_of(plan, self.lasting, clocked=self._clocked)
        self._library = compile_described(
            description,
            lambda: (
                plan_texts(plan, target, self.lasting, clocked=self._clocked, parted=cpu_count() > 1)
                if begun is None
                else begun.rest(plan, self.lasting)
            ),
            target,
            None if begun is None else begun.compilation,
        )
        self.frame_bytes = frame_of(plan, self.lasting).bytes
        self._pool = block_pool(self.frame_bytes)
        chains = packing_chains(plan)
        self._chains = [_Chain(plan, chain, self._library, number) for number, chain in enumerate(chains)]
        written = [plan.buffers[buffer].index for chain in chains for buffer in chain.packed]
        self._packed_order = [written.index(index) for index in range(counts["packed"])]
        self._changing = [index for index in range(counts["input"]) if index not in self.lasting]
        self._program: ctypes.Array[ctypes.c_uint64] | None = None
        self._trial: LaneTrialWords | None = None
        self._described: dict[int, tuple[ctypes.Array[ctypes.c_uint64], LaneTrialWords]] = {}  # by how much is computed
        self._no_moves: dict[int, ctypes.Array[ctypes.c_uint64]] = {}  # the same
        if len(plan.lanes) > 1:
            plain = description_of(plan, self.lasting) if self._clocked else description
            self._trial = LaneTrialWords(plain, len(plan.lanes), alone=plan.alone)
            if self._clocked:
                self._trial.first = running_as_before(self._trial.first)
            self._program = _program(plan, self._library, self._trial)
        self._words = Struct(f"@{sum(counts.values())}Q")
        # SAFETY: the function takes the address of a frame of this plan, and the library that holds it lives as long
        # as this object.
        self._run = RUN(self._library.address(SERIAL)) if self._program is None else run_lanes
        self._check = RUN(self._library.address(CHECK)) if plan.checks else None
        self._binding: Binding | None = None
        self._packed_ahead: list[PackedWeight] = []  # until a binding has them

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
        """Compute outputs from inputs; strides, sizes and alignment are as the plan was made for.

        Tells whether it did: a call with an index out of range does nothing.
        """
        # Held until the end: what other threads do to weights must not end the packed buffers that this call reads.
        self._start_workers()
        binding = self._binding
        if binding is None:
            self._binding = self._bind(inputs, outputs)  # before a block is taken: its memory is written first
        block, amount = self._pool.take(), _amount.now
        if binding is None:
            done = False
        elif amount and self._program is not None:
            moves = self._no_moves.get(amount) or self._without_moves(amount)
            done = binding.call(inputs, outputs, block.address, ctypes.addressof(moves)) is None
        else:
            done = binding.call(inputs, outputs, block.address) is None
        done = done or self._run_slowly(block, inputs, outputs)
        self._pool.give_back(block)
        return done

    @property
    def lane_choice(self) -> LaneChoice | None:
        """What the clock has decided of lanes and one lane."""
        return None if self._trial is None else self._trial.choice

    def description_for(self, magnitude: int) -> int:
        """Describe lanes for calls that compute about so much, which try lanes for themselves; 0 without lanes."""
        if self._program is None:
            return 0
        if magnitude not in self._described:
            plan = self.plan
            text = f"{description_of(plan, self.lasting)} {magnitude}"
            trial = LaneTrialWords(text, len(plan.lanes), alone=plan.alone)
            # Two threads may make it at once: one is kept, and nobody has seen the other.
            self._described.setdefault(magnitude, (_program(plan, self._library, trial), trial))
        return ctypes.addressof(self._described[magnitude][0])

    def _without_moves(self, magnitude: int) -> Words:
        """What a call is given that moves nothing and is one of those that compute about so much."""
        return self._no_moves.setdefault(magnitude, table_of([(0, 0, self.description_for(magnitude))]))

    def run_moved(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], pool: BlockPool, moves: Words
    ) -> bool:
        """Run a program made for larger tensors, which moves put into memory behind the frame, and take out of it.

        Tells whether it did. It does not where lasting inputs are not as they were: who runs it otherwise binds them.
        """
        return self.moved_runner(pool, moves)(inputs, outputs)

    def moved_runner(self, pool: BlockPool, moves: Words) -> MovedRunner:
        """Give what does the same for calls of some sizes, with as little Python around it as there can be."""
        start = None if self._program is None else ensure_crew

        def run(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
            if start is not None:
                start()
            binding = self._binding
            if binding is None:
                return False
            block = pool.take()
            # SAFETY: this function holds the words of the moves; whoever learnt them for some sizes may forget them.
            done = binding.call(inputs, outputs, block.address, ctypes.addressof(moves)) is None
            pool.give_back(block)
            return done

        return run

    def input_slot(self, index: int) -> int | None:
        """Give the place of an input in the frame's table; None of one that lasts."""
        return None if index in self.lasting else self._changing.index(index)

    def output_slot(self, index: int) -> int:
        """Give the place of an output there."""
        return len(self._changing) + index

    def pack_ahead(self, known: Mapping[int, torch.Tensor]) -> None:
        """Let another core begin to pack weights for a call that comes soon, as far as its inputs are known."""
        chains = [chain for chain in self._chains if known.keys() >= {*chain.inputs}]
        self._packed_ahead = begin_packing([chain.of(known, self.constants) for chain in chains])

    def _start_workers(self) -> None:
        if self._program is not None:
            ensure_crew()

    def bound(self, positions: Sequence[int], fixed: Mapping[int, int] = NONE_FIXED) -> BoundProgram | None:
        """Give what runs the program as it is bound now; `positions` are where a call has its inputs.

        They are below 0 for what it does not take as an argument, which alone may last. Inputs that are `fixed` are
        where these addresses say at all calls.
        """
        binding = self._binding
        if binding is None or binding.code is None or any(positions[index] >= 0 for index in self.lasting):
            return None
        if not fixed.keys().isdisjoint(self.lasting):
            return None
        changing = tuple(
            (fixed[index], 0) if index in fixed else (positions[index], size) for index, size in binding.code.changing
        )
        rows = binding.rows if self._program is None else [*binding.rows, crew_row()]
        return BoundProgram(
            replace(binding.code, changing=changing), rows, binding.words, self._pool, kept=(self, binding)
        )

    def is_bound_to(self, tensors: Sequence[torch.Tensor | None]) -> bool:
        """Whether these are the inputs that last, unchanged, of which it has packed some."""
        lasting = [tensors[index] for index in self.lasting]
        known = [tensor for tensor in lasting if tensor is not None]
        binding = self._binding
        return binding is not None and len(known) == len(lasting) and binding.is_current(known)

    def _run_slowly(self, block: ArenaBlock, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
        lasting = [inputs[index] for index in self.lasting]
        binding = self._binding
        if binding is None or not binding.is_current(lasting):
            binding = self._binding = self._bind(inputs, outputs)
        # SAFETY: the tensors are the caller's for the whole call, and as large as the plan's buffers: the guards that
        # chose this program have seen to that.
        changing = [inputs[index].data_ptr() for index in self._changing]
        words = (*changing, *map(address_of, outputs), *binding.words)
        self._words.pack_into(block.memory, TABLE_OFFSET, *words)
        if self._program is not None:
            described = self.description_for(_amount.now) if _amount.now else ctypes.addressof(self._program)
            DISPATCH.pack_into(block.memory, PROGRAM_OFFSET, described, crew_address())
        if self._check is not None:
            self._check(block.address)
            if MARK.unpack_from(block.memory, MARK_OFFSET)[0]:
                return False
        self._prepare(block)
        self._run(block.address)
        return True

    def _prepare(self, block: ArenaBlock) -> None:
        """Do what else a frame needs: nothing, but in clocked programs."""

    def _bind(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Binding:
        lasting = [inputs[index] for index in self.lasting]
        written = {self.lasting.index(index) for chain in self._chains for index in chain.inputs}
        packings = [chain.of(inputs, self.constants) for chain in self._chains]
        binding = Binding(lasting, written, packings, max(1, len(self.plan.lanes)))
        self._packed_ahead = []
        packed = [binding.packed_addresses[place] for place in self._packed_order]
        binding.words = (*map(address_of, lasting), *packed, *map(address_of, self.constants))
        code = NativeCode(
            check=self._library.address(CHECK) if self.plan.checks else 0,
            run=self._library.address(SERIAL) if self._program is None else dispatch_address(),
            description=0 if self._program is None else ctypes.addressof(self._program),
            crew=crew_address(),
            input_count=len(inputs),
            changing=tuple((index, inputs[index].element_size()) for index in self._changing),
            outputs=tuple((index, output.element_size()) for index, output in enumerate(outputs)),
            content=binding.content,
        )
        binding.make_call(code, list(zip(self.lasting, lasting, strict=True)))
        return binding


def _program(plan: Plan, library: NativeLibrary, trial: LaneTrialWords) -> ctypes.Array[ctypes.c_uint64]:
    """Describe a program with several lanes as `dispatch` reads it; see worker_module.py."""
    lanes = [library.address(f"lane_{number}") for number in range(len(plan.lanes))]
    pace = [0] * (TRIAL_SLOT - BACKOFF_SLOT)
    words = (library.address(SERIAL), len(lanes), *pace, *trial.first, *lanes)
    found = (ctypes.c_uint64 * len(words))(*words)
    trial.lie_at(ctypes.addressof(found) + TRIAL_SLOT * ctypes.sizeof(ctypes.c_uint64), found)
    return found


class _Chain:
    """One packing of a plan, and which tensors it packs."""

    def __init__(self, plan: Plan, chain: PackingChain, library: NativeLibrary, number: int) -> None:
        buffers = [plan.buffers[buffer] for buffer in chain.sources]
        self.sources = [(buffer.kind == "constant", buffer.index) for buffer in buffers]
        self.inputs = [index for is_constant, index in self.sources if not is_constant]
        code = RUN(library.address(f"pack_{number}"))
        kind = ctypes.c_uint64 * len(chain.table)

        def pack(addresses: Sequence[int], library: NativeLibrary = library) -> None:
            # SAFETY: the table is as long as the chain's, and lives while the code reads it. The library that has the
            # code is held by this function, which programs with the same packing share: one may outlive the other.
            table = kind(*addresses)
            code(ctypes.addressof(table))
            del table, library

        sizes = [plan.buffers[buffer].bytes for buffer in chain.packed]
        scratch = [plan.buffers[buffer].bytes for buffer in chain.scratch]
        self.packing = Packing(chain.text, tuple(sizes), tuple(scratch), pack)

    def of(
        self, inputs: Sequence[torch.Tensor] | Mapping[int, torch.Tensor], constants: Sequence[torch.Tensor]
    ) -> PackingOf:
        """Give the packing with the tensors of one call."""
        return self.packing, [(constants if constant else inputs)[index] for constant, index in self.sources]


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """What a lane did, from when to when, in seconds of `perf_counter`."""

    lane: int
    name: str
    is_wait: bool
    start: float
    end: float


class ClockedExecutable(NativeExecutable):
    """A plan in machine code that notes times; for one thread at a time."""

    _clocked = True

    def __init__(
        self, plan: Plan, target: Target, constants: Sequence[torch.Tensor] = (), lasting: Collection[int] = ()
    ) -> None:
        super().__init__(plan, target, constants, lasting)
        self._serial = lanes_of(replace(plan, lanes=()))
        self._lanes = plan.lanes if len(plan.lanes) > 1 else ()
        count = serial_tick(self._lanes) + first_ticks(self._serial)[-1]
        self._ticks = (ctypes.c_int64 * (TICK_WORDS * count))()

    def _prepare(self, block: ArenaBlock) -> None:
        # SAFETY: the memory has room for all ticks of the plan, and is held by this object, whose call this is.
        pack_into("@Q", block.memory, CLOCK_OFFSET, ctypes.addressof(self._ticks))

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
        """Run without the shortcut that does not know where to note times."""
        ctypes.memset(self._ticks, 0, ctypes.sizeof(self._ticks))
        block = self._pool.take()
        self._start_workers()
        done = self._run_slowly(block, inputs, outputs)
        self._pool.give_back(block)
        return done

    def spans(self) -> list[LaneSpan]:
        """Give what each lane did in the last call; lane 0 has done all where no worker was free."""
        words = iter(self._ticks)
        ticks = [seconds + nanoseconds * NANOSECOND for seconds, nanoseconds in zip(words, words, strict=True)]
        return self._spans(self._lanes, ticks) or self._spans(self._serial, ticks[serial_tick(self._lanes) :])

    def _spans(self, lanes: tuple[Lane, ...], ticks: list[float]) -> list[LaneSpan]:
        places, spans = first_ticks(lanes), []
        for lane, items in enumerate(lanes):
            times = ticks[places[lane] : places[lane + 1]]
            for item, start, end in zip(items, times, times[1:], strict=False):
                if start and end:
                    spans.append(LaneSpan(lane, self._name(item), isinstance(item, Wait), start, end))
        return spans

    def _name(self, item: Run | Wait) -> str:
        if isinstance(item, Wait):
            return f"wait for {item.count} of lane {item.lane}"
        tiles = f"{item.begin} to {item.end}" if item.share is None else share_text(item.share)
        return f"{describe(self.plan.calls[item.call].kernel)}: {tiles}"
