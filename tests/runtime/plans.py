"""Small plans made by hand, for tests of what runs them."""

from dataclasses import replace

from weft.plan.form.plan import Buffer, KernelCall, Lane, Location, Plan, Run, Wait
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.gemm import (
    Epilogue,
    EpilogueOperand,
    GemmKernel,
    Matrix,
    PackedMatrix,
    choose_schedule,
    packed_size,
    panels,
)
from weft.plan.kernels.loop import LoopExpression, LoopKernel, plan_loop
from weft.plan.kernels.pack import PackKernel
from weft.target import host_target

TARGET = host_target()
TILE = 1000


def loop(name: str, op: str, size: int) -> LoopKernel:
    """An elementwise operation in tiles of a thousand elements."""
    view = View("f32", (1,))
    expression = LoopExpression(name, (size,), (view,), (view,), (Instruction(op, (0,), "f32"),), (1,))
    kernel = plan_loop(expression, TARGET)
    return replace(kernel, schedule=replace(kernel.schedule, column_tile=TILE))


def chain_plan(size: int, *ops: str, lanes: int = 1, repeat: int = 1) -> Plan:
    """Elementwise operations one after another; with lanes, each waits for all others after every operation."""
    kernels = [loop(f"loop_{number}", op, size) for number, op in enumerate(ops * repeat)]
    between = [Buffer("arena", number, 4 * size) for number in range(len(kernels) - 1)]
    places = [Location(0), *(Location(2 + number) for number in range(len(between))), Location(1)]
    step = -(-4 * size // 64) * 64
    return Plan(
        buffers=(Buffer("input", 0, 4 * size), Buffer("output", 0, 4 * size), *between),
        calls=tuple(KernelCall(k, (places[i + 1],), (places[i],)) for i, k in enumerate(kernels)),
        lanes=tuple(_lane(number, lanes, kernels) for number in range(lanes)) if lanes > 1 else (),
        arena_bytes=step * len(between),
        offsets=tuple(step * number for number in range(len(between))),
    )


def _lane(number: int, lanes: int, kernels: list[LoopKernel]) -> Lane:
    items: list[Run | Wait] = []
    for call, kernel in enumerate(kernels):
        items += [Wait(other, call) for other in range(lanes) if other != number and call]
        cuts = [kernel.tile_count * part // lanes for part in (number, number + 1)]
        items.append(Run(call, *cuts))
    return tuple(items)


def linear_plan(rows: int, inner: int, columns: int, name: str = "product") -> Plan:
    """A product with a packed weight and a bias; inputs are x, weight, bias."""
    schedule = choose_schedule("f32", (rows, columns, inner), TARGET)
    kernel = GemmKernel(
        name=name,
        element="f32",
        batch=(),
        rows=rows,
        columns=columns,
        inner=inner,
        left=Matrix((), inner, 1),
        right=PackedMatrix(()),
        out=Matrix((), columns, 1),
        epilogue=Epilogue(bias=EpilogueOperand((), 0, 1)),
        schedule=schedule,
    )
    source, blocks = Matrix((), 1, inner), panels(columns, schedule)
    pack = PackKernel(f"{name}_pack", "f32", (), inner, columns, source, (), schedule.lanes, blocks)
    sizes = (rows * inner, inner * columns, columns)
    return Plan(
        buffers=(
            *(Buffer("input", number, 4 * size) for number, size in enumerate(sizes)),
            Buffer("output", 0, 4 * rows * columns),
            Buffer("packed", 0, 4 * packed_size(columns, inner, schedule)),
        ),
        calls=(KernelCall(kernel, (Location(3),), (Location(0), Location(4), Location(2))),),
        packing=(KernelCall(pack, (Location(4),), (Location(1),)),),
    )
