"""Plans of small loops, and a machine of numpy that runs their lanes in any order that the waits allow.

The machine computes with integers, which wrap around, whatever the kernels say.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from weft.plan.form.dependencies import lanes_of
from weft.plan.form.plan import Buffer, KernelCall, Location, Plan, Run, Wait
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.loop import LoopExpression, LoopKernel, plan_loop
from weft.plan.schedule.cost import default_model
from weft.target import cross_target

TARGET = cross_target("x86_64")
# Tiles that take long and waits that cost nothing: whatever can be shared out is.
EAGER = replace(default_model(TARGET), tile=1e-3, call=1e-3, wait=1e-9, check=1e-9, lane=1e-9, transfer=1e15)
OPS = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


@dataclass(frozen=True)
class Patch:
    """Some rows and columns of a buffer of `width` columns, from a first row and column on."""

    buffer: int
    width: int
    row: int = 0
    column: int = 0

    @property
    def location(self) -> Location:
        return Location(self.buffer, 4 * (self.row * self.width + self.column))


def combine(
    op: str, sizes: tuple[int, int], out: Patch, sources: Sequence[tuple[Patch, bool]], tile: int
) -> KernelCall:
    """Make a call that combines two patches, each turned around or not, in tiles of so many rows or columns."""
    views = tuple(View("f32", (1, patch.width) if turned else (patch.width, 1)) for patch, turned in sources)
    body = (Instruction(op, (0, 1), "f32"),)
    kernel = plan_loop(LoopExpression("combine", sizes, (View("f32", (out.width, 1)),), views, body, (2,)), TARGET)
    schedule = replace(kernel.schedule, row_tile=tile, column_tile=max(tile * kernel.schedule.lanes, 1))
    return KernelCall(replace(kernel, schedule=schedule), (out.location,), tuple(p.location for p, _ in sources))


class Machine:
    """Runs a plan's loops on memory filled with garbage, except inputs."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        inputs = np.random.default_rng(7)
        garbage = np.random.default_rng(seed)
        arena = garbage.integers(-99, 99, plan.arena_bytes // 4 + 1).astype(np.int32)
        self.memory: list[NDArray[np.int32]] = []
        for buffer in plan.buffers:
            source = inputs if buffer.kind == "input" else garbage
            own = source.integers(-3, 4, buffer.bytes // 4).astype(np.int32)
            at = plan.offsets[buffer.index] // 4 if buffer.kind == "arena" else 0
            self.memory.append(arena[at:] if buffer.kind == "arena" else own)

    def outputs(self) -> list[bytes]:
        return [self.memory[number].tobytes() for number, _ in self.plan.of_kind("output")]

    def serially(self) -> list[bytes]:
        for call in self.plan.calls:
            for _ in self.steps(call, 0, call.kernel.tile_count):
                pass
        return self.outputs()

    def in_any_order(self, seed: int) -> list[bytes]:
        """Let lanes go on in a random order: one is fast for a while, tiles and even reads and writes interleave."""
        dice, done = random.Random(seed), [0] * len(lanes_of(self.plan))
        lanes = {number: self._lane(lane, done, number) for number, lane in enumerate(lanes_of(self.plan))}
        while lanes:
            moved = False
            for number in dice.sample(sorted(lanes), len(lanes)):
                for _ in range(dice.choice([1, 1, 3, 100])):
                    state = next(lanes[number], "end")
                    moved |= state != "waiting"
                    if state == "end":
                        del lanes[number]
                    if state != "running":
                        break
            assert moved, "all lanes wait"
        return self.outputs()

    def _lane(self, lane: Sequence[Run | Wait], done: list[int], number: int) -> Iterator[str]:
        for item in lane:
            if isinstance(item, Wait):
                while done[item.lane] < item.count:
                    yield "waiting"
                continue
            for _ in self.steps(self.plan.calls[item.call], item.begin, item.end):
                yield "running"
            done[number] += 1
            yield "running"

    def steps(self, call: KernelCall, begin: int, end: int) -> Iterator[None]:
        """Run tiles one after the other, with a pause between what each reads and what it writes."""
        kernel = call.kernel
        assert isinstance(kernel, LoopKernel)
        for tile in range(begin, end):
            points = tile_points(kernel, tile)
            values = [self._part(view, place)[index_of(view, points)] for view, place in self._inputs(kernel, call)]
            for line in kernel.body:
                values.append(OPS[line.op](*(values[number] for number in line.operands)))
            yield
            for view, place, result in zip(kernel.outputs, call.writes, kernel.results, strict=True):
                self._part(view, place)[index_of(view, points)] = values[result]
            yield

    def _inputs(self, kernel: LoopKernel, call: KernelCall) -> list[tuple[View, Location]]:
        return list(zip(kernel.inputs, call.reads, strict=True))

    def _part(self, view: View, place: Location) -> NDArray[np.int32]:
        return self.memory[place.buffer][place.offset // 4 :]


def tile_points(kernel: LoopKernel, tile: int) -> tuple[NDArray[np.int64], ...]:
    """List the coordinates of the points of a tile."""
    row_tile, column_tile = divmod(tile, kernel.column_tiles)
    line, part = divmod(row_tile, kernel.row_tiles)
    schedule = kernel.schedule
    rows = np.arange(part * schedule.row_tile, min((part + 1) * schedule.row_tile, kernel.line)) + line * kernel.line
    first = column_tile * schedule.column_tile
    columns = np.arange(first, min(first + schedule.column_tile, kernel.columns))
    down, across = (grid.ravel() for grid in np.meshgrid(rows, columns, indexing="ij"))
    return (*np.unravel_index(down, kernel.sizes[:-1]), across) if len(kernel.sizes) > 1 else (across,)


def index_of(view: View, points: tuple[NDArray[np.int64], ...]) -> NDArray[np.int64]:
    """Give the elements of a view at points."""
    index = np.full(points[0].shape, view.offset)
    for step, coordinate in zip(view.strides, points, strict=True):
        index = index + step * coordinate
    return index


def random_plan(seed: int) -> Plan:
    """Make a plan of up to 25 calls over square buffers; some write only a part, some buffers are written again."""
    dice = random.Random(seed)
    side = dice.choice([4, 9, 16])
    buffers = [Buffer("input", 0, 4 * side * side), Buffer("input", 1, 4 * side * side)]
    full, calls = [0, 1], []
    for _ in range(dice.randrange(1, 25)):
        output = dice.random() < 0.2
        index = sum(buffer.kind == ("output" if output else "arena") for buffer in buffers)
        own = [place for place in full if buffers[place].kind == "arena"]
        if own and dice.random() < 0.1:
            target = dice.choice(own)  # written again, after all that has read it
        else:
            target = len(buffers)
            buffers.append(Buffer("output" if output else "arena", index, 4 * side * side))
        readable = [place for place in full[-dice.choice([2, 4, 30]) :] if place != target] or [0]
        for out, sizes, first in parts(dice, Patch(target, side), side):
            sources = [(replace(Patch(dice.choice(readable), side), row=first[0], column=first[1]), False)]
            turned = dice.random() < 0.3
            start = (first[1], first[0]) if turned else first
            sources.append((Patch(dice.choice(readable), side, *start), turned))
            calls.append(combine(dice.choice(sorted(OPS)), sizes, out, sources, dice.choice([1, 2, 5])))
        if target not in full and buffers[target].kind == "arena":
            full.append(target)
    return Plan(tuple(buffers), tuple(calls))


def parts(dice: random.Random, whole: Patch, side: int) -> list[tuple[Patch, tuple[int, int], tuple[int, int]]]:
    """Cut a square into itself, or into two halves below or beside each other: patches, sizes, first row and column."""
    cut = dice.randrange(1, side)
    kind = dice.choice(["whole", "whole", "rows", "columns"])
    if kind == "whole":
        return [(whole, (side, side), (0, 0))]
    if kind == "rows":
        return [
            (whole, (cut, side), (0, 0)),
            (replace(whole, row=cut), (side - cut, side), (cut, 0)),
        ]
    return [(whole, (side, cut), (0, 0)), (replace(whole, column=cut), (side, side - cut), (0, cut))]
