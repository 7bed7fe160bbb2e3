"""What a select hides beyond a size need not be computed, but for places that memory is read at."""

from weft.ir.extents import Polynomial
from weft.ir.graph import Value
from weft.ir.types import NumberType
from weft.plan.extents.hidden import Hidden
from weft.plan.form.plan import KernelCall, Location
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.scatter import ScatterExpression, plan_scatter
from weft.target import host_target

COUNT = Polynomial.atom(Value("input", (), NumberType("int"), name="count"))
RAMP, SIZE, PLACE, OTHER, TABLE, OUT = range(6)


def hidden_reads(value: Instruction) -> set[int]:
    """Which reads of a scatter of 96 elements are hidden beyond COUNT, whose values are 0 there and else computed so.

    It reads positions, the size, the places where it adds, and other numbers, of which the value is made.
    """
    inputs = (View("i32", (1,), 0), View("i32", (0,), 0), View("i64", (1,), 0), View("i64", (1,), 0))
    body = (
        Instruction("lt", (RAMP, SIZE), "bool"),
        value,
        Instruction("constant", (), "f32", (0.0,)),
        Instruction("select", (4, 5, 6), "f32"),
    )
    expression = ScatterExpression("scatter", (96,), "f32", 0, inputs, body, PLACE, 7, "add", ("f32",))
    kernel = plan_scatter(expression, host_target())
    call = KernelCall(kernel, (Location(OUT),), tuple(map(Location, (RAMP, SIZE, PLACE, OTHER, TABLE))))
    return set(Hidden(call, {SIZE: COUNT}, {RAMP: (1, 96)}).found())


def test_elements_behind_a_select_are_hidden() -> None:
    assert hidden_reads(Instruction("cast", (OTHER,), "f32")) == {OTHER}


def test_places_of_elements_behind_a_select_are_not_as_memory_is_read_there() -> None:
    assert hidden_reads(Instruction("take", (OTHER,), "f32", (0, 0, 0))) == set()
