"""The body of an epilogue -> instructions on one vector of results."""

from weft.codegen.kernels.elementwise import Point, Typed, emit_body
from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.llvm.register import Register
from weft.errors import InternalError
from weft.plan.kernels.epilogue import Epilogue
from weft.plan.kernels.expression import Instruction


class EpilogueEmitter:
    """Applies an epilogue to the sums of one register block; `pointers` are its inputs at the block's first place."""

    def __init__(self, vectors: Vectors, epilogue: Epilogue, pointers: list[Register]) -> None:
        self.vectors = vectors
        self.epilogue = epilogue
        self.pointers = pointers
        self._first_operand = 1 if epilogue.bias else 0
        self._shared: dict[tuple[int, int, int, int | None], Register] = {}

    def at(self, row: Register, column: Register) -> "EpilogueEmitter":
        """Give an emitter whose first place is one known when the kernel runs."""
        moved = [
            self.vectors.moved(pointer, (row, operand.row), (column, operand.column))
            for pointer, operand in zip(self.pointers, self.epilogue.inputs, strict=True)
        ]
        return EpilogueEmitter(self.vectors, self.epilogue, moved)

    def begin_block(self) -> None:
        """Forget what was loaded: in the block that begins now it may not have been."""
        self._shared.clear()

    def bias(self, row: int, column: int, count: int | None) -> Register:
        """Give what the sum starts with, for a vector that starts at a column."""
        return self._read(0, row, column, count) if self.epilogue.bias else self.vectors.zero

    def apply(self, value: Register, row: int, column: int, count: int | None) -> Register:
        """Apply the body to the vector of results at a row and column."""
        if not self.epilogue.body:
            return value
        numbers = range(self._first_operand, len(self.epilogue.inputs))
        operands = [self._read(number, row, column, count) for number in numbers]
        inputs = [Typed(register, self.vectors.dtype) for register in (value, *operands)]
        point = Point(self.vectors.lanes, _no_position)
        return emit_body(self.vectors.writer, self.epilogue.body, inputs, point)[-1].register

    def _read(self, number: int, row: int, column: int, count: int | None) -> Register:
        """Load an input at a place of the block; what several rows or columns share is loaded once."""
        operand = self.epilogue.inputs[number]
        place = (number, row if operand.row else 0, column if operand.column else 0, count)
        if place not in self._shared:
            address = self.vectors.address(self.pointers[number], row * operand.row + column * operand.column)
            self._shared[place] = self.vectors.load_apart(address, operand.column, count)
        return self._shared[place]


def _no_position(instruction: Instruction) -> Register:
    raise InternalError(f"an epilogue cannot compute {instruction.op}", why="it does not know where it is")
