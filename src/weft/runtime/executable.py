"""A Plan -> a callable that runs it on tensors, in machine code."""

import ctypes
from collections.abc import Sequence
from struct import Struct

import torch

from weft.codegen.crew_module import FIRST_LANE_SLOT
from weft.codegen.frame import PROGRAM_OFFSET, TABLE_OFFSET
from weft.codegen.native import NativeLibrary, compile_native
from weft.codegen.packing import PackingChain
from weft.codegen.plan_module import SERIAL, emit_plan
from weft.errors import InternalError
from weft.plan.plan import Plan
from weft.runtime.arena import block_pool
from weft.runtime.binding import Binding, PackingOf
from weft.runtime.lanes import crew_address, run_lanes
from weft.runtime.weights import Packing, address_of
from weft.target import Target

RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # a CFUNCTYPE releases the interpreter's lock
DISPATCH = Struct("@2Q")  # where the program and the crew are described, in a frame


class NativeExecutable:
    """A plan in machine code; any number of threads may call it at once.

    `constants` are the tensors of the plan's buffers of that kind, in order, dense as the plan's kernels read them.
    Inputs that the plan packs are packed at the first call, and again when they have changed.
    """

    def __init__(self, plan: Plan, target: Target, constants: Sequence[torch.Tensor] = ()) -> None:
        self.plan = plan
        self.constants = tuple(constants)
        module = emit_plan(plan, target)
        self._library = compile_native(module.text, target)
        self._pool = block_pool(module.frame.bytes)
        counts = {kind: sum(1 for _ in plan.of_kind(kind)) for kind in ("input", "output", "packed", "constant")}
        if len(self.constants) != counts["constant"]:
            raise InternalError(f"a plan has {counts['constant']} constants, {len(self.constants)} were given")
        self._tensors = Struct(f"@{counts['input'] + counts['output']}Q")
        self._lasting = Struct(f"@{counts['packed'] + counts['constant']}Q")
        self._lasting_offset = TABLE_OFFSET + self._tensors.size
        self._chains = [_Chain(plan, chain, self._library, number) for number, chain in enumerate(module.chains)]
        self._weights = sorted({index for chain in self._chains for index in chain.inputs})
        written = [plan.buffers[buffer].index for chain in module.chains for buffer in chain.packed]
        self._packed_order = [written.index(index) for index in range(counts["packed"])]
        self._program = _program(plan, self._library) if len(plan.lanes) > 1 else None
        # SAFETY: the function takes the address of a frame of this plan, and the library that holds it lives as long
        # as this object.
        self._run = RUN(self._library.address(SERIAL)) if self._program is None else run_lanes
        self._binding = None if self._chains else Binding((), ())

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Compute outputs from inputs; strides, sizes and alignment are as the plan was made for."""
        # Held until the end: what other threads do to weights must not end the packed buffers that this call reads.
        binding = self._binding
        if binding is None or self._weights:
            weights = [inputs[index] for index in self._weights]
            if binding is None or not binding.is_current(weights):
                binding = self._binding = Binding(weights, [chain.of(inputs, self.constants) for chain in self._chains])
        block = self._pool.take()
        # SAFETY: the tensors are the caller's for the whole call, and as large as the plan's buffers: the guards that
        # chose this program have seen to that.
        self._tensors.pack_into(block.memory, TABLE_OFFSET, *map(address_of, inputs), *map(address_of, outputs))
        if block.owner != binding.number:
            packed = [binding.addresses[place] for place in self._packed_order]
            self._lasting.pack_into(block.memory, self._lasting_offset, *packed, *map(address_of, self.constants))
            if self._program is not None:
                DISPATCH.pack_into(block.memory, PROGRAM_OFFSET, ctypes.addressof(self._program), crew_address())
            block.owner = binding.number
        self._run(block.address)
        self._pool.give_back(block)


def _program(plan: Plan, library: NativeLibrary) -> "ctypes.Array[ctypes.c_uint64]":
    """Describe a program with several lanes as `dispatch` reads it; see crew_module.py."""
    lanes = [library.address(f"lane_{number}") for number in range(len(plan.lanes))]
    return (ctypes.c_uint64 * (FIRST_LANE_SLOT + len(lanes)))(library.address(SERIAL), len(lanes), *lanes)


class _Chain:
    """One packing of a plan, and which tensors it packs."""

    def __init__(self, plan: Plan, chain: PackingChain, library: NativeLibrary, number: int) -> None:
        buffers = [plan.buffers[buffer] for buffer in chain.sources]
        self.sources = [(buffer.kind == "constant", buffer.index) for buffer in buffers]
        self.inputs = [index for is_constant, index in self.sources if not is_constant]
        code = RUN(library.address(f"pack_{number}"))
        kind = ctypes.c_uint64 * len(chain.table)

        def pack(addresses: Sequence[int]) -> None:
            # SAFETY: the table is as long as the chain's, and the library that holds the code is held by it.
            code(ctypes.addressof(kind(*addresses)))

        sizes = [plan.buffers[buffer].bytes for buffer in chain.packed]
        scratch = [plan.buffers[buffer].bytes for buffer in chain.scratch]
        self.packing = Packing(chain.text, tuple(sizes), tuple(scratch), pack)
        self.library = library

    def of(self, inputs: Sequence[torch.Tensor], constants: Sequence[torch.Tensor]) -> PackingOf:
        """Give the packing with the tensors of one call."""
        return self.packing, [(constants if constant else inputs)[index] for constant, index in self.sources]
