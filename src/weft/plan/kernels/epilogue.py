"""What a product or convolution does to a result while it is still in a register: a small elementwise expression."""

from dataclasses import dataclass

from weft.plan.kernels.expression import DTYPE_BYTES, Instruction

# Ops of an instruction or two; a body of few of these is repeated for every vector of a register block.
SHORT_OPS = frozenset({"constant", "add", "sub", "mul", "neg", "abs", "relu", "minimum", "maximum", "select"}) | {
    "eq", "ne", "lt", "le", "gt", "ge",
}  # fmt: skip
LONGEST_REPEATED_BODY = 6


@dataclass(frozen=True)
class Operand:
    """A tensor that an epilogue reads, by its strides in elements; a stride of 0 repeats what it reads."""

    batch: tuple[int, ...]
    row: int
    column: int


@dataclass(frozen=True)
class Epilogue:
    """A body over the sum (value 0) and the operands (the values from 1 on); its last value is stored.

    `bias` is added to the sum: it is where the sum starts. A kernel takes the bias, if there is one, and then the
    operands. All have the kernel's element type, and so has the body's last value.
    """

    bias: Operand | None = None
    operands: tuple[Operand, ...] = ()
    body: tuple[Instruction, ...] = ()

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """Give the tensors the kernel takes for it, in argument order."""
        return (*((self.bias,) if self.bias else ()), *self.operands)

    def stored_bytes(self, element: str) -> int:
        """Count the bytes of a number that is stored, in a kernel of this element type."""
        return DTYPE_BYTES[self.stored(element)]

    def stored(self, element: str) -> str:
        """Give the dtype of what is stored, in a kernel of this element type."""
        return self.body[-1].dtype if self.body else element

    def operand_stored_alike(self, number: int, element: str) -> Operand | None:
        """Give an input by its number, if there is one and what is stored is of its dtype."""
        return self.inputs[number] if 0 <= number < len(self.inputs) and self.stored(element) == element else None

    @property
    def is_long(self) -> bool:
        """Tell whether the body is so long that its code should not be repeated for every row of a block."""
        computed = sum(step.op != "constant" for step in self.body)
        return computed > LONGEST_REPEATED_BODY or any(step.op not in SHORT_OPS for step in self.body)
