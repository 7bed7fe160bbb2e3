"""Define what a kernel computes for one element, and what it costs: instructions in SSA order over named dtypes.

Values are numbered: first the kernel's inputs, then the instructions in order. Instructions have the names and the
meaning of the elementwise rows of `ir.ops`, with three additions:

- `constant` has its number as attribute;
- `iota` has a stride per dimension of the kernel's space and a start, and is the sum of coordinates times strides;
- `take` has the number of a table, strides and a start, and is the table's element at its operand (i64) plus what an
  `iota` with these strides is. Nothing checks that the table has such an element: the planner must.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.ir.ops import OPS, SIMPLE

DTYPE_BYTES: Mapping[str, int] = {
    "bool": 1, "i8": 1, "u8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8,
}  # fmt: skip
SHORT_FLOATS = ("f16", "bf16")
# These move or make numbers of 16 bits without computing with them.
EXACT_ON_SHORT_FLOATS = ("cast", "constant", "select", "iota", "take")
# Attributes before the strides of the instructions that depend on where the element is.
LEADING_ATTRIBUTES = {"iota": 0, "take": 1}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One operation on one element: its name, the numbers of its operands, the dtype of its result."""

    op: str
    operands: tuple[int, ...]
    dtype: str
    attributes: tuple[int | float | bool, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """How a kernel sees a buffer: dtype, elements to step for each dimension of its space, elements to skip."""

    dtype: str
    strides: tuple[int, ...]
    offset: int = 0


def strides_of(line: Instruction) -> tuple[int, ...] | None:
    """Give the strides of an instruction that depends on where the element is, None for others."""
    if line.op not in LEADING_ATTRIBUTES:
        return None
    return tuple(int(value) for value in line.attributes[LEADING_ATTRIBUTES[line.op] : -1])


def with_strides(line: Instruction, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Instruction:
    """Change the strides of an instruction that has some."""
    strides = strides_of(line)
    if strides is None:
        return line
    leading = line.attributes[: LEADING_ATTRIBUTES[line.op]]
    return replace(line, attributes=(*leading, *change(strides), line.attributes[-1]))


def value_dtypes(inputs: Sequence[str], body: Sequence[Instruction]) -> tuple[str, ...]:
    """Give the dtype of every value: the inputs, then the instructions."""
    return (*inputs, *(instruction.dtype for instruction in body))


def explicit_rounding(
    inputs: Sequence[str], body: Sequence[Instruction], results: Sequence[int]
) -> tuple[tuple[Instruction, ...], tuple[int, ...]]:
    """Rewrite operations on f16 and bf16 as PyTorch does them: widened to f32, computed, rounded after each.

    Gives the new body and the new numbers of the results.
    """
    dtypes = value_dtypes(inputs, body)
    made: list[Instruction] = []
    number = list(range(len(inputs)))
    widened: dict[int, int] = {}

    def append(instruction: Instruction) -> int:
        made.append(instruction)
        return len(inputs) + len(made) - 1

    def wide(operand: int) -> int:
        if dtypes[operand] not in SHORT_FLOATS:
            return number[operand]
        if operand not in widened:
            widened[operand] = append(Instruction("cast", (number[operand],), "f32"))
        return widened[operand]

    for instruction in body:
        touched = (instruction.dtype, *(dtypes[operand] for operand in instruction.operands))
        if instruction.op in EXACT_ON_SHORT_FLOATS or not any(dtype in SHORT_FLOATS for dtype in touched):
            number.append(append(replace(instruction, operands=tuple(number[i] for i in instruction.operands))))
            continue
        short = instruction.dtype in SHORT_FLOATS
        operands = tuple(wide(operand) for operand in instruction.operands)
        result = append(replace(instruction, operands=operands, dtype="f32" if short else instruction.dtype))
        number.append(append(Instruction("cast", (result,), instruction.dtype)) if short else result)
    return tuple(made), tuple(number[result] for result in results)


# Estimate the cycles that instructions and memory take of one core, for the costs of kernels.


# Cycles of an instruction on one vector: those of the graph's ops are in their rows.
CYCLES_OF_OP = {
    **{name: op.cycles for name, op in OPS.items() if op.elementwise},
    "constant": 0.0,
    "iota": SIMPLE,
    "take": 8.0,
}
# Instructions that cost less to do twice than to store and load, and those that are so short that their code may be
# repeated: casts of short floats are several instructions where a processor has none for them.
CHEAP_OPS = frozenset(name for name, op in OPS.items() if op.elementwise and op.cycles <= SIMPLE)
SHORT_OPS = CHEAP_OPS - {"cast"} | {"constant"}
MEMORY_CYCLES = 1.0  # per vector loaded or stored
ROW_CYCLES = 6.0  # per row of a loop or reduction, to begin and end it
STRIDED = 4.0  # times as long for vectors of elements that do not lie side by side
BLOCK_CYCLES = 40.0  # per register block, to begin and end it
DOT_CYCLES, LANE_SUM_CYCLES = 0.6, 2.5  # per vector of a column multiplied, and per column to add up its lanes
STEP_SHARE = 1.03  # of its multiply-adds or loads, whichever take longer, is what a step of a sum takes


def body_cycles(body: Sequence[Instruction]) -> float:
    """Estimate the cycles of a body on one vector."""
    return sum(CYCLES_OF_OP[line.op] for line in body)


def vectors_of(length: int, lanes: int, *, masked: bool) -> int:
    """Count the vectors of a row, of which the rest is one with a mask or done number by number."""
    whole, rest = divmod(length, lanes)
    return whole + (bool(rest) if masked else rest)


def block_step_cycles(height: int, width: int) -> float:
    """Estimate the cycles of one step of a register block in a whole product.

    All else that the choice of a block weighs goes on beside the multiply-adds: blocks of 9 x 3 vectors take 1.01 of
    what these do, blocks of 10 x 1 take 1.02, on a Zen 4 core, which does one multiply-add of 512 bits at a time.
    """
    return STEP_SHARE * max(height * width, height + width) / 2


def dot_cycles(inner: int, lanes: int) -> float:
    """Estimate the cycles of one row and as many columns as a vector has lanes, with vectors along the sum."""
    return -(-inner // lanes) * lanes * DOT_CYCLES + lanes * LANE_SUM_CYCLES
