"""Blocks of rows and panels of columns -> code that finds where one starts and picks what suits its shape."""

from collections.abc import Callable
from dataclasses import dataclass

from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register
from weft.plan.kernels.blocks import Blocks


@dataclass(frozen=True)
class PanelKind:
    """Panels of one shape: they end before panel `stop`."""

    stop: int
    vectors: int
    tail: int


def panel_kinds(panels: Blocks, columns: int, lanes: int) -> list[PanelKind]:
    """List the shapes of panels in order; the last panel is one of its own where its last vector is partial."""
    tail = columns - (panels.total - 1) * lanes
    kinds = [PanelKind(panels.large, panels.size, lanes), PanelKind(panels.count, panels.size - 1, lanes)]
    kinds = [kind for kind, count in zip(kinds, (panels.large, panels.small), strict=True) if count]
    if tail == lanes:
        return kinds
    last = kinds.pop()
    if last.stop - 1 > (kinds[-1].stop if kinds else 0):
        kinds.append(PanelKind(last.stop - 1, last.vectors, lanes))
    return [*kinds, PanelKind(last.stop, last.vectors, tail)]


def first_of(writer: FunctionWriter, blocks: Blocks, index: Register) -> Register:
    """Give where a block starts, for an index known when the kernel runs."""
    start = writer.multiply(index, blocks.size)
    if not blocks.small:
        return start
    over = writer.add(index, -blocks.large)
    none = writer.integer(0)
    return writer.binary("sub", start, writer.select(writer.compare("icmp sgt", over, none), over, none))


def tile_range(writer: FunctionWriter, tile: Register, size: int, count: int) -> tuple[Register, Register]:
    """Give the first block of a tile and the one after its last, where a tile has `size` blocks of `count`."""
    if size >= count:
        return writer.integer(0), writer.integer(count)
    start = writer.multiply(tile, size)
    stop = writer.add(start, size)
    return start, writer.minimum(stop, writer.integer(count)) if count % size else stop


def choose(writer: FunctionWriter, index: Register, stops: list[int], emit: Callable[[int], None]) -> None:
    """Emit one alternative per stop and run the one of the first stop that is above the index."""
    after = writer.label("chosen")
    for place, stop in enumerate(stops[:-1]):
        yes, no = writer.label("here"), writer.label("later")
        writer.branch_if(writer.compare("icmp slt", index, writer.integer(stop)), yes, no)
        writer.begin_block(yes)
        emit(place)
        writer.branch(after)
        writer.begin_block(no)
    emit(len(stops) - 1)
    writer.branch(after)
    writer.begin_block(after)


def matrix_pointers(
    vectors: Vectors, index: Register, batch: tuple[int, ...], operands: list[tuple[Register, tuple[int, ...]]]
) -> list[Register]:
    """Move pointers to one matrix of a batch; each comes with its strides along the batch dimensions."""
    pointers = [pointer for pointer, _ in operands]
    for place in reversed(range(len(batch))):
        index, coordinate = vectors.writer.divide(index, batch[place])
        pointers = [
            vectors.moved(pointer, (coordinate, strides[place]))
            for pointer, (_, strides) in zip(pointers, operands, strict=True)
        ]
    return pointers
