"""What a product or convolution does to a result while it is still in a register: a small elementwise expression."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Operand:
    """A tensor that an epilogue reads, by its strides in elements; a stride of 0 repeats what it reads."""

    batch: tuple[int, ...]
    row: int
    column: int


@dataclass(frozen=True)
class Argument:
    """One argument of a step: an earlier result (0 is the accumulator), an operand by its place, or a number."""

    kind: Literal["result", "operand", "number"]
    value: float


@dataclass(frozen=True)
class Step:
    """One elementwise op: its name and attributes as the graph has them, and its arguments."""

    op: str
    arguments: tuple[Argument, ...]
    attributes: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Epilogue:
    """Steps applied in order to an accumulator; the last result is what is stored, or the accumulator if there is none.

    `bias` is added to the sum: it is where the sum starts. Operands are passed to the kernel after the bias.
    """

    bias: Operand | None = None
    operands: tuple[Operand, ...] = ()
    steps: tuple[Step, ...] = ()

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """Give the tensors the kernel takes for it, in argument order."""
        return (*((self.bias,) if self.bias else ()), *self.operands)


def result(index: int) -> Argument:
    """Refer to an earlier result: 0 is the accumulator, 1 what the first step made."""
    return Argument("result", index)


def operand(index: int) -> Argument:
    """Refer to an operand by its place."""
    return Argument("operand", index)


def number(value: float) -> Argument:
    """Give a constant."""
    return Argument("number", value)
