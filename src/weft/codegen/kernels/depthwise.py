"""One register block of a depthwise convolution -> its function: vectors of channels, each with weights of its own."""

from collections.abc import Callable
from functools import partial

from weft.codegen.kernels.conv_block import BlockParts
from weft.codegen.llvm.register import Register

# Gives the addresses that all pixels see at a row and column of the window.
Seen = Callable[[list[Register], Register, Register], list[Register]]


class DepthwiseBlockEmitter:
    """Emits a block twice where there is padding: with and without asking what the image has."""

    def __init__(self, parts: BlockParts) -> None:
        self.parts = parts

    def emit(self) -> str:
        """Emit the sums and what follows them, and give the function's name."""
        writer, pixels = self.parts.writer, self.parts.pixels
        if not self.parts.kernel.sees_outside or self.parts.kernel.schedule.pixels_of == "rows":
            self.parts.function.emit(partial(self._window, pixels.seen))
            return self.parts.name
        inside, edge, after = (writer.label(stem) for stem in ("inside", "edge", "after"))
        writer.branch_if(pixels.all_inside(), inside, edge)
        for label, seen in ((inside, pixels.inside), (edge, pixels.seen)):
            writer.begin_block(label)
            self.parts.ending.epilogue.begin_block()
            self.parts.function.emit(partial(self._window, seen))
            writer.branch(after)
        writer.begin_block(after)
        return self.parts.name

    def _window(self, seen: Seen, sums: list[Register]) -> list[Register]:
        """Add what all places of the window give."""
        writer, (rows, columns) = self.parts.writer, self.parts.kernel.window.size
        with writer.loop(0, rows, carried=sums) as down:
            with writer.loop(0, columns, carried=down.carried) as across:
                addresses = seen(self.parts.inputs, down.index, across.index)
                place = writer.add(writer.multiply(down.index, columns), across.index)
                across.carry(*self._place(list(across.carried), addresses, place))
            down.carry(*across.carried)
        return list(down.carried)

    def _place(self, sums: list[Register], addresses: list[Register], place: Register) -> list[Register]:
        """Add what one place of the window gives."""
        vectors, shape = self.parts.vectors, self.parts.block.shape
        base = vectors.moved(self.parts.weights, (place, shape.vectors * vectors.lanes))
        columns = [number * vectors.lanes for number in range(shape.vectors)]
        weights = [vectors.load(vectors.address(base, column)) for column in columns]
        counts = [shape.count(number, vectors.lanes) for number in range(shape.vectors)]
        return [
            vectors.writer.fma(
                vectors.load(vectors.address(address, columns[number]), counts[number]),
                weights[number],
                sums[row * shape.vectors + number],
            )
            for row, address in enumerate(addresses)
            for number in range(shape.vectors)
        ]
