"""Estimate the cycles that instructions and memory take of one core, for the costs of kernels."""

from collections.abc import Sequence

from weft.plan.kernels.expression import Instruction

# Cycles of an op on one vector; what is not here takes SIMPLE.
SIMPLE = 0.6
CYCLES_OF_OP = {
    "constant": 0.0,
    "div": 5.0,
    "sqrt": 6.0,
    "rsqrt": 10.0,
    "exp": 9.0,
    "expm1": 14.0,
    "log": 11.0,
    "log1p": 16.0,
    "tanh": 16.0,
    "sigmoid": 14.0,
    "erf": 16.0,
    "sin": 16.0,
    "cos": 16.0,
    "tan": 30.0,
    "pow": 30.0,
    "take": 8.0,
    "remainder": 10.0,
}
MEMORY_CYCLES = 1.0  # per vector loaded or stored
ROW_CYCLES = 6.0  # per row of a loop or reduction, to begin and end it
STRIDED = 4.0  # times as long for vectors of elements that do not lie side by side
BLOCK_CYCLES = 40.0  # per register block, to begin and end it
DOT_CYCLES, LANE_SUM_CYCLES = 0.6, 2.5  # per vector of a column multiplied, and per column to add up its lanes
STEP_SHARE = 1.03  # of its multiply-adds or loads, whichever take longer, is what a step of a sum takes


def body_cycles(body: Sequence[Instruction]) -> float:
    """Estimate the cycles of a body on one vector."""
    return sum(CYCLES_OF_OP.get(line.op, SIMPLE) for line in body)


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
