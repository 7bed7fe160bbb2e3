"""Write `number_program`, which computes expressions of numbers on a stack, stores some, and requires others.

`number_program(values*, program*, holds*)` reads pairs of words: an operation and its operand. It is Python's own
arithmetic: of floats as they are, of whole numbers as floats while they are small enough to be exact. Where they are
not, or something is divided by zero, nothing holds.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

NUMBER_PROGRAM = "number_program"
MOST_DEPTH = 64  # of the stack
LARGEST = 2.0**52  # of whole numbers


class NumberOp(IntEnum):
    """The operations of an expression, each with an operand: a stack of floats."""

    END = 0
    CONST = 1
    INT = 2  # push the number at a place
    FLOAT = 3
    ADD = 4
    SUB = 5
    MUL = 6
    DIV = 7
    FLOORDIV = 8  # of whole numbers
    MOD = 9
    LT = 10
    LE = 11
    EQ = 12
    NE = 13
    GT = 14
    GE = 15
    AND = 16
    OR = 17
    NOT = 18
    BOUND = 19  # a whole number that is not too large to be exact
    STORE_INT = 20  # at a place
    STORE_FLOAT = 21
    REQUIRE = 22
    NEG = 23


ONE = """  %top.{0} = load i64, ptr %depth
  %last.{0} = sub i64 %top.{0}, 1
  %at.x.{0} = getelementptr double, ptr %stack, i64 %last.{0}
  %x.{0} = load double, ptr %at.x.{0}
"""
"""How an operation with one number on the stack begins; {0} is its name."""
TWO = """  %top.{0} = load i64, ptr %depth
  %last.{0} = sub i64 %top.{0}, 1
  %before.{0} = sub i64 %top.{0}, 2
  %at.y.{0} = getelementptr double, ptr %stack, i64 %last.{0}
  %at.x.{0} = getelementptr double, ptr %stack, i64 %before.{0}
  %y.{0} = load double, ptr %at.y.{0}
  %x.{0} = load double, ptr %at.x.{0}
"""
PUSH = """  %top.{0} = load i64, ptr %depth
  %at.{0} = getelementptr double, ptr %stack, i64 %top.{0}
"""
NUMBER = """  %place.{0} = getelementptr i64, ptr %values, i64 %operand
  %bits.{0} = load i64, ptr %place.{0}
"""
WHOLE = """  %some.{0} = fcmp ogt double %y.{0}, 0.0
  br i1 %some.{0}, label %{0}.on, label %fails
{0}.on:
  %a.{0} = fptosi double %x.{0} to i64
  %b.{0} = fptosi double %y.{0} to i64
  %q.{0} = sdiv i64 %a.{0}, %b.{0}
  %m.{0} = srem i64 %a.{0}, %b.{0}
  %low.{0} = icmp slt i64 %m.{0}, 0
"""
PUT = "  store double %r.{0}, ptr %at.x.{0}\n"
GROWS = "  %more.{0} = add i64 %top.{0}, 1\n  store i64 %more.{0}, ptr %depth\n"
SHRINKS = "  store i64 %last.{0}, ptr %depth\n"
ON = "  br label %next\n"
TRUTH = "  %r.{0} = uitofp i1 %c.{0} to double\n" + PUT
PLACE = "  %place.{0} = getelementptr i64, ptr %values, i64 %operand\n"


def _binary(instruction: str) -> str:
    return TWO + f"  %r.{{0}} = {instruction} double %x.{{0}}, %y.{{0}}\n" + PUT + SHRINKS + ON


def _compared(condition: str) -> str:
    return TWO + f"  %c.{{0}} = fcmp {condition} double %x.{{0}}, %y.{{0}}\n" + TRUTH + SHRINKS + ON


def _logical(instruction: str) -> str:
    both = "  %p.{0} = fcmp une double %x.{0}, 0.0\n  %q.{0} = fcmp une double %y.{0}, 0.0\n"
    return TWO + both + f"  %c.{{0}} = {instruction} i1 %p.{{0}}, %q.{{0}}\n" + TRUTH + SHRINKS + ON


def _whole(changed: str, otherwise: str) -> str:
    """Correct C's division of whole numbers, which rounds towards zero, to Python's, which rounds down."""
    chosen = f"  %d.{{0}} = {changed}\n  %w.{{0}} = select i1 %low.{{0}}, i64 %d.{{0}}, i64 {otherwise}\n"
    return TWO + WHOLE + chosen + "  %r.{0} = sitofp i64 %w.{0} to double\n" + PUT + SHRINKS + ON


BLOCKS: Mapping[NumberOp, str] = MappingProxyType(
    {
        NumberOp.CONST: PUSH + "  store i64 %operand, ptr %at.{0}\n" + GROWS + ON,
        NumberOp.FLOAT: PUSH + NUMBER + "  store i64 %bits.{0}, ptr %at.{0}\n" + GROWS + ON,
        NumberOp.INT: PUSH
        + NUMBER
        + "  %real.{0} = sitofp i64 %bits.{0} to double\n  store double %real.{0}, ptr %at.{0}\n"
        + GROWS
        + ON,
        NumberOp.ADD: _binary("fadd"),
        NumberOp.SUB: _binary("fsub"),
        NumberOp.MUL: _binary("fmul"),
        NumberOp.DIV: TWO
        + "  %zero.{0} = fcmp oeq double %y.{0}, 0.0\n  br i1 %zero.{0}, label %fails, label %{0}.on\n{0}.on:\n"
        + "  %r.{0} = fdiv double %x.{0}, %y.{0}\n"
        + PUT
        + SHRINKS
        + ON,
        NumberOp.FLOORDIV: _whole("sub i64 %q.{0}, 1", "%q.{0}"),
        NumberOp.MOD: _whole("add i64 %m.{0}, %b.{0}", "%m.{0}"),
        NumberOp.LT: _compared("olt"),
        NumberOp.LE: _compared("ole"),
        NumberOp.EQ: _compared("oeq"),
        NumberOp.NE: _compared("une"),
        NumberOp.GT: _compared("ogt"),
        NumberOp.GE: _compared("oge"),
        NumberOp.AND: _logical("and"),
        NumberOp.OR: _logical("or"),
        NumberOp.NOT: ONE + "  %c.{0} = fcmp oeq double %x.{0}, 0.0\n" + TRUTH + ON,
        NumberOp.NEG: ONE + "  %r.{0} = fneg double %x.{0}\n" + PUT + ON,
        NumberOp.BOUND: ONE
        + f"  %below.{{0}} = fcmp olt double %x.{{0}}, {LARGEST:.1f}\n"
        + f"  %above.{{0}} = fcmp ogt double %x.{{0}}, -{LARGEST:.1f}\n"
        + "  %fits.{0} = and i1 %below.{0}, %above.{0}\n  br i1 %fits.{0}, label %next, label %fails\n",
        NumberOp.STORE_INT: ONE
        + PLACE
        + "  %n.{0} = fptosi double %x.{0} to i64\n  store i64 %n.{0}, ptr %place.{0}\n"
        + SHRINKS
        + ON,
        NumberOp.STORE_FLOAT: ONE + PLACE + "  store double %x.{0}, ptr %place.{0}\n" + SHRINKS + ON,
        NumberOp.REQUIRE: ONE
        + SHRINKS
        + "  %c.{0} = fcmp une double %x.{0}, 0.0\n  br i1 %c.{0}, label %next, label %fails\n",
    }
)


def number_program_function() -> str:
    """Give the text of the function, to come into a module."""
    cases = " ".join(f"i64 {int(op)}, label %{op.name}" for op in BLOCKS)
    blocks = "".join(f"{op.name}:\n{text.format(op.name)}" for op, text in BLOCKS.items())
    # SAFETY: whoever has the program made sees to it that its depth is at most MOST_DEPTH, and that it ends.
    return f"""
define internal void @{NUMBER_PROGRAM}(ptr %values, ptr %program, ptr %holds) nounwind {{
entry:
  %stack = alloca [{MOST_DEPTH} x double]
  %depth = alloca i64
  %cursor = alloca i64
  store i64 0, ptr %depth
  store i64 0, ptr %cursor
  br label %next
next:
  %number = load i64, ptr %cursor
  %words = mul i64 %number, 2
  %at.op = getelementptr i64, ptr %program, i64 %words
  %op = load i64, ptr %at.op
  %at.operand = getelementptr i64, ptr %at.op, i64 1
  %operand = load i64, ptr %at.operand
  %following = add i64 %number, 1
  store i64 %following, ptr %cursor
  switch i64 %op, label %all [ {cases} ]
{blocks}all:
  store i64 1, ptr %holds
  ret void
fails:
  store i64 0, ptr %holds
  ret void
}}
"""
