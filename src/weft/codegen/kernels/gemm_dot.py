"""Rows and columns whose numbers lie side by side -> the sums of a register block, by vectors that run along the sum.

A column has one vector of sums, and a block as many columns as a vector has lanes: at the end their lanes are added up
into the one vector that the block's row stores. So a right operand that lies column by column is read where it is.
"""

from weft.codegen.kernels.lane_sums import all_lanes
from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.kernels.register_block import BlockShape
from weft.codegen.llvm.register import Register
from weft.errors import InternalError
from weft.plan.kernels.gemm import GemmKernel, Matrix


class DotSums:
    """Emits the sums of one block; both pointers are at its first row and column, and at a part's first number."""

    def __init__(
        self, vectors: Vectors, kernel: GemmKernel, shape: BlockShape, pointers: tuple[Register, Register]
    ) -> None:
        right = kernel.right
        if not isinstance(right, Matrix) or right.row != 1 or kernel.left.column != 1 or shape.vectors != 1:
            fact = f"the kernel {kernel.name} has vectors along its sum, and operands that lie otherwise"
            raise InternalError(fact, why="a vector's numbers must be side by side, and a block one vector wide")
        self.vectors = vectors
        self.left, self.right = pointers
        self.left_row, self.column = kernel.left.row, right.column
        self.rows, self.columns = shape.rows, shape.tail
        self.rest = kernel.inner % vectors.lanes

    def add(self, sums: list[Register], turns: Register, rest: int, first: Register | None = None) -> list[Register]:
        """Add the products of so many whole vectors, from one on, and then those of so many more numbers."""
        vectors = self.vectors
        start = vectors.writer.multiply(first, vectors.lanes) if first else vectors.writer.integer(0)
        return [self._add_row(row, total, (turns, rest, start)) for row, total in enumerate(sums)]

    def _add_row(self, row: int, total: Register, part: tuple[Register, int, Register]) -> Register:
        vectors, writer = self.vectors, self.vectors.writer
        turns, rest, start = part
        left = vectors.moved(vectors.address(self.left, row * self.left_row), (start, 1))
        right = vectors.moved(self.right, (start, 1))
        begins = [vectors.zero] * self.columns
        # Places are carried along: LLVM does not find that by itself (compiler.py).
        with writer.loop(0, turns, carried=[*begins, left, right]) as loop:
            *sums, left, right = loop.carried
            added = self._step(list(sums), left, right)
            loop.carry(*added, vectors.address(left, vectors.lanes), vectors.address(right, vectors.lanes))
        *sums, left, right = loop.carried
        if rest:
            sums = self._step(sums, left, right, rest)
        return writer.binary("fadd", total, all_lanes(writer, sums, vectors.lanes))

    def _step(self, sums: list[Register], left: Register, right: Register, count: int | None = None) -> list[Register]:
        vectors = self.vectors
        numbers = vectors.load(left, count)
        columns = (vectors.address(right, place * self.column) for place in range(self.columns))
        return [
            vectors.writer.fma(numbers, vectors.load(column, count), total)
            for column, total in zip(columns, sums, strict=True)
        ]
