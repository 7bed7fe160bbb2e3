"""The steps of an epilogue -> instructions on one vector of results."""

from collections.abc import Callable

from weft.codegen.module import FunctionWriter
from weft.codegen.panel_vectors import Vectors
from weft.codegen.register import Register, constant
from weft.errors import InternalError
from weft.plan.epilogue import Argument, Epilogue, Operand


def relu(writer: FunctionWriter, x: Register) -> Register:
    """Give max(x, 0), and x where it is no number."""
    zero = constant(x.kind, 0.0)
    return writer.select(writer.compare("fcmp olt", x, zero), zero, x)


EMIT: dict[str, Callable[..., Register]] = {
    "add": lambda writer, x, y: writer.binary("fadd", x, y),
    "sub": lambda writer, x, y: writer.binary("fsub", x, y),
    "mul": lambda writer, x, y: writer.binary("fmul", x, y),
    "div": lambda writer, x, y: writer.binary("fdiv", x, y),
    "neg": lambda writer, x: writer.fneg(x),
    "relu": relu,
}


class EpilogueEmitter:
    """Applies an epilogue to the sums of one register block; `pointers` are its inputs at the block's first place."""

    def __init__(self, vectors: Vectors, epilogue: Epilogue, pointers: list[Register]) -> None:
        self.vectors = vectors
        self.epilogue = epilogue
        self.pointers = pointers
        self._first_operand = 1 if epilogue.bias else 0
        self._shared: dict[tuple[int, int, int, int | None], Register] = {}

    def begin_block(self) -> None:
        """Forget what was loaded: in the block that begins now it may not have been."""
        self._shared.clear()

    def bias(self, row: int, column: int, count: int | None) -> Register:
        """Give what the sum starts with, for a vector that starts at a column."""
        return self._read(0, row, column, count) if self.epilogue.bias else self.vectors.zero

    def apply(self, value: Register, row: int, column: int, count: int | None) -> Register:
        """Apply all steps to the vector of results at a row and column."""
        results = [value]
        for step in self.epilogue.steps:
            operands = [self._argument(argument, results, (row, column, count)) for argument in step.arguments]
            if step.op not in EMIT:
                raise InternalError(f"no epilogue rule for the op {step.op!r}", why="there are: " + ", ".join(EMIT))
            results.append(EMIT[step.op](self.vectors.writer, *operands))
        return results[-1]

    def _argument(self, argument: Argument, results: list[Register], place: tuple[int, int, int | None]) -> Register:
        index = int(argument.value)
        if argument.kind == "result":
            return results[index]
        if argument.kind == "operand":
            return self._read(index + self._first_operand, *place)
        return constant(self.vectors.kind, argument.value)

    def _read(self, number: int, row: int, column: int, count: int | None) -> Register:
        """Load an input at a place of the block; what several rows or columns share is loaded once."""
        operand: Operand = self.epilogue.inputs[number]
        place = (number, row if operand.row else 0, column if operand.column else 0, count)
        if place not in self._shared:
            address = self.vectors.address(self.pointers[number], row * operand.row + column * operand.column)
            self._shared[place] = self.vectors.load_apart(address, operand.column, count)
        return self._shared[place]
