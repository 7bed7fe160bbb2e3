"""Every op of the table in machine code beside eager PyTorch: numbers, special numbers, dtypes, layouts, broadcasts.

All is generated from the rows: a new op is tested by having one. An elementwise op is computed on all pairs of special
numbers, in every dtype that its type rule takes, from operands that lie alike, that lie column by column, that repeat a
row, a column or a number. Any other op that kernels compute is run on its example, in every dtype that fits.
"""

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.conformance.compare import same_bits, same_rounding, same_specials, within_native_bound
from tests.ir.examples import BODIES
from tests.plan.compiled_regions import compiled, interpreted

from weft.codegen.kernels.elementwise import EMIT
from weft.config import overrides
from weft.errors import UsageError
from weft.ir.graph import Graph, Result, Value
from weft.ir.op_types import BOOLEAN, INTEGERS
from weft.ir.ops import OPS, Op, build
from weft.ir.parser import ParseError, parse_graph
from weft.ir.types import DTYPE_NAMES, TensorType, contiguous
from weft.ir.verifier import problems_of
from weft.plan.regions.region import find_regions

COMPUTED = (torch.float32, torch.float64, *sorted(INTEGERS, key=str), torch.bool)  # others are cast before and after
SHORT = (torch.float16, torch.bfloat16)
# What no kernel computes, and why.
BY_OTHERS = {
    "number": "Python computes it",
    "scalar": "an argument of a call",
    "library": "PyTorch computes it",
    "update": "PyTorch computes it",
    "item": "it picks, and has no elements of its own",
    "constant": "it is known",
    "random_state": "PyTorch's generator has it",
    "set_random_state": "PyTorch's generator gets it",
}
# What PyTorch computes in some dtypes, and why.
BY_PYTORCH = {
    "matmul": (INTEGERS, "products of whole numbers are rare"),
    "convolution": (INTEGERS, "those of whole numbers come of calibration, in 8 bits"),
    "scatter_add": (BOOLEAN, "kernels do not join truth values"),
    "scatter_mul": (BOOLEAN, "kernels do not join truth values"),
    "scatter_min": (BOOLEAN, "kernels do not join truth values"),
    "scatter_max": (BOOLEAN, "kernels do not join truth values"),
    "recurrent": (frozenset(DTYPE_NAMES) - {torch.float32}, "states are float32"),
}
# What is run on finite numbers alone: whether NaN and infinities meet the zeros of the padding is a library's choice.
OF_FINITE = {"convolution", "convolution_input_gradient", "convolution_weight_gradient"}
# Attributes of elementwise ops that have some, as (dtype of the operand) -> the attributes to run with.
ATTRIBUTES: dict[str, Callable[[torch.dtype], list[dict[str, object]]]] = {
    "cast": lambda _: [{"dtype": dtype} for dtype in (*COMPUTED, *SHORT)]
}
INFINITE_OR_NAN = (math.nan, math.inf, -math.inf)
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 3.0, 2.5, 1.5, 7.0, -20.0, 100.0, 1e-30, -1e-5, 3e30, -1e10)
WHOLE = (0, 1, -1, 2, 3, -3, 7, 8, -20, 100, 127, 11)


def floats(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of a dtype: NaN of both signs, infinities, zeros, the smallest and the largest of each kind."""
    limits = torch.finfo(dtype)
    smallest = limits.smallest_normal * limits.eps
    ends = (
        limits.max,
        -limits.max,
        limits.smallest_normal,
        -limits.smallest_normal,
        smallest,
        -smallest,
        0.3 * limits.tiny,
    )
    found = torch.tensor([*INFINITE_OR_NAN, *NUMBERS, *ends], dtype=dtype)
    return torch.cat((found, torch.copysign(torch.tensor([math.nan], dtype=dtype), torch.tensor(-1.0, dtype=dtype))))


def special(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of a dtype at which a kernel may go wrong, as many as do not fill whole vectors."""
    if dtype is torch.bool:
        return torch.tensor([False, True, True])
    if dtype.is_floating_point:
        return floats(dtype)
    limits = torch.iinfo(dtype)
    return torch.tensor([*(number for number in WHOLE if number >= limits.min), limits.min, limits.max], dtype=dtype)


def is_zero(_: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (y == 0) | (y == -1 if y.is_signed() else y == 0)


def is_outside(_: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (y < 0) | (y >= torch.iinfo(y.dtype).bits - 1)


# Whole numbers for which C++ has no answer, or PyTorch raises: by zero, the smallest by -1, shifts beyond the width.
UNDEFINED = {
    **dict.fromkeys(("floor_div", "remainder", "fmod"), is_zero),
    **dict.fromkeys(("shift_left", "shift_right"), is_outside),
}


def defined(op: str, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """Replace the numbers of a second operand for which an op has no answer by 1."""
    if op in UNDEFINED and not operands[0].is_floating_point():
        operands[1] = torch.where(UNDEFINED[op](*operands), torch.ones_like(operands[1]), operands[1])
    return operands


def dtypes_of(row: Op) -> Iterator[tuple[torch.dtype, ...]]:
    """The dtypes of operands that a row takes: all alike, or truth values first."""
    for dtype in COMPUTED:
        for kinds in ((dtype,) * row.arity, (torch.bool, *(dtype,) * (row.arity - 1))):
            operands = [Value("input", (), contiguous(kind, (2,))) for kind in kinds]
            given = ATTRIBUTES[row.name](dtype)[0] if row.name in ATTRIBUTES else {}
            try:
                build(row.name, *operands, **given)
            except UsageError:
                continue
            yield kinds
            break


def elementwise_cases() -> list[tuple[str, tuple[torch.dtype, ...]]]:
    return [(row.name, kinds) for row in OPS.values() if row.elementwise for kinds in dtypes_of(row)]


def layouts(operands: list[torch.Tensor]) -> Iterator[tuple[list[torch.Tensor], tuple[int, ...]]]:
    """The same operands laid out in ways that loops treat differently, with the shape that all are expanded to."""
    first, *others = operands
    rows, columns = first.shape
    yield operands, (rows, columns)  # row by row
    yield [operand.t().contiguous().t() for operand in operands], (rows, columns)  # column by column
    yield [first, *(operand.t().contiguous().t() for operand in others)], (rows, columns)  # not alike
    yield [first[:, :1].contiguous(), *others], (rows, columns)  # a column, repeated
    yield [first, *(operand[0].contiguous() for operand in others)], (rows, columns)  # a row, repeated
    yield [operand[1, 2].clone() if place else operand for place, operand in enumerate(operands)], (rows, columns)
    yield [operand[:1, :1].contiguous() for operand in operands], (1, 1)  # alone
    yield [operand[:, ::2] for operand in operands], (rows, -(-columns // 2))  # with gaps


def operands_of(row: Op, kinds: tuple[torch.dtype, ...]) -> list[torch.Tensor]:
    """All combinations of special numbers: of two operands each with each, a third one takes turns."""
    numbers = [special(kind) for kind in kinds]
    if row.arity == 1:
        one = torch.cat((numbers[0], numbers[0].flip(0)))
        return [torch.stack((one, one.roll(1), one.roll(2)))]
    pairs = list(itertools.product(range(len(numbers[-2])), range(len(numbers[-1]))))
    places = [torch.tensor([pair[side] for pair in pairs]) for side in (0, 1)]
    found = [numbers[-2][places[0]], numbers[-1][places[1]]]
    if row.arity == 3:
        found.insert(0, numbers[0][torch.arange(len(pairs)) % len(numbers[0])])
    shape = len(numbers[-2]), len(numbers[-1])
    return [operand.reshape(shape) for operand in defined(row.name, found)]


def graph_of(row: Op, operands: list[torch.Tensor], given: dict[str, object], shape: tuple[int, ...]) -> Graph:
    """A Graph of one op on operands that are expanded first, where they are smaller."""
    inputs = [
        Value("input", (), TensorType(x.dtype, tuple(x.shape), x.stride(), x.device), name=name)
        for x, name in zip(operands, "xyz", strict=False)
    ]
    whole = [value if value.type.shape == shape else build("expand", value, shape=shape) for value in inputs]
    result = build(row.name, *whole, **given)
    values = [*(value for value in whole if value.op == "expand"), result]
    return Graph(row.name, tuple(inputs), tuple(values), (Result(result),))


def in_machine_code(graph: Graph, inputs: list[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each result of a Graph as eager PyTorch gives it and as kernels do."""
    known = interpreted(graph, inputs)
    assert known is not None, f"eager PyTorch refuses operands of {graph.name}, or ir/interpreter.py has no rule"
    regions = find_regions(graph, frozenset())
    wanted = {result.value for result in graph.results}
    outputs = {value for region in regions for value in region.outputs}
    assert wanted <= outputs, f"no kernel computes {graph.name}: see plan/regions/region.py, or say why in {__file__}"
    for region in regions:
        for value, actual in zip(region.outputs, compiled(region, known), strict=True):
            yield known[value], actual


def in_float64(row: Op, operands: list[torch.Tensor], given: dict[str, object], shape: tuple[int, ...]) -> torch.Tensor:
    wide = [operand.double() if operand.is_floating_point() else operand for operand in operands]
    known = interpreted(graph_of(row, wide, given, shape), wide)
    return list(known.values())[-1]


@pytest.mark.parametrize(("name", "kinds"), elementwise_cases(), ids=lambda case: str(case).replace("torch.", ""))
def test_an_elementwise_op_computes_what_eager_does(name: str, kinds: tuple[torch.dtype, ...]) -> None:
    row = OPS[name]
    for given in ATTRIBUTES[name](kinds[0]) if row.attributes else [{}]:
        for operands, shape in layouts(operands_of(row, kinds)):
            operands = in_range(operands, given)
            graph = graph_of(row, operands, given, shape)
            [(expected, actual)] = in_machine_code(graph, operands)
            if same_bits(expected, actual):
                continue
            exact = in_float64(row, operands, given, shape)
            flat = [operand.expand(shape).reshape(-1, 1) for operand in (*operands, expected, actual, exact)]
            wrong = [
                f"{name}({', '.join(str(x.item()) for x in given_numbers)}) is {one.item()} in eager PyTorch"
                f" and {other.item()} in machine code"
                for *given_numbers, one, other, right in zip(*flat, strict=True)
                if not close(row, one, other, right)
                and not any(same_bits(x, other) for x in answers(row, given_numbers, given))
            ]
            assert not wrong, "\n".join(("see the emit rule in codegen/kernels/elementwise.py", *wrong[:5]))


def answers(row: Op, operands: list[torch.Tensor], given: dict[str, object]) -> Iterator[torch.Tensor]:
    """What eager gives for one number alone and among others alike: of two zeros its loops choose differently."""
    for count in (1, 64):
        many = [operand.repeat(count) for operand in operands]
        known = interpreted(graph_of(row, many, given, (count,)), many)
        yield list(known.values())[-1][:1]


def in_range(operands: list[torch.Tensor], given: dict[str, object]) -> list[torch.Tensor]:
    """Numbers that a cast to whole numbers takes: of others C++ has no answer."""
    dtype = given.get("dtype")
    if not isinstance(dtype, torch.dtype) or dtype.is_floating_point or dtype is torch.bool:
        return operands
    limits, [x] = torch.iinfo(dtype), operands
    if not x.is_floating_point():
        return operands
    inside = (x > limits.min) & (x < limits.max) & (x.abs() < 2.0 ** (limits.bits - 2))
    return [torch.where(inside & ~((x < 0) & torch.tensor(limits.min == 0)), x, torch.ones_like(x))]


def close(row: Op, expected: torch.Tensor, actual: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether one number is right: to the bit where every loop has the same, with the sign of a zero elsewhere."""
    if same_bits(expected, actual):
        return True
    if row.alike or not expected.is_floating_point() or not same_specials(expected, actual):
        return False
    if expected == 0 and actual == 0:
        return False
    return within_native_bound(actual, expected, exact)


def texts(name: str) -> Iterator[tuple[str, str]]:
    """An example of an op, in every dtype that fits where it has f32."""
    for dtype in COMPUTED:
        yield DTYPE_NAMES[dtype], f"graph {name}{BODIES[name].replace('f32', DTYPE_NAMES[dtype])}"


def inputs_for(graph: Graph, start: int) -> list[torch.Tensor]:
    """Numbers of each input's dtype, beginning with another one for each; indices that exist."""
    found = [numbers_for(value.type, start + place) for place, value in enumerate(graph.inputs)]
    if graph.name in OF_FINITE:
        found = [x.nan_to_num(0.25, 4.0, -4.0).clamp(-9, 9) for x in found]
    if graph.name == "max_pool_gradient":  # it is told where the largest are
        found[2] = torch.nn.functional.max_pool2d_with_indices(found[1], 2)[1]
    return found


def numbers_for(kind: TensorType, start: int) -> torch.Tensor:
    if kind.dtype is torch.int64:
        return (torch.arange(kind.size) + start).remainder(2).reshape(kind.shape)
    numbers = special(kind.dtype)
    order = torch.arange(kind.size) * 5 + start * 3
    return numbers[order.remainder(len(numbers))].reshape(kind.shape)


def example_cases() -> list[tuple[str, str]]:
    """The examples that are Graphs in a dtype, and that eager PyTorch computes."""
    others = [name for name, row in OPS.items() if not row.elementwise and name not in BY_OTHERS]
    found = []
    for name in others:
        dtypes, _ = BY_PYTORCH.get(name, ((), ""))
        for dtype, text in texts(name):
            try:
                graph = parse_graph(text)
            except (ParseError, UsageError):
                continue
            if dtype in {DTYPE_NAMES[left] for left in dtypes} or problems_of(graph):
                continue
            if interpreted(graph, inputs_for(graph, 0)) is not None:
                found.append((name, dtype))
    return found


@pytest.mark.parametrize(("name", "dtype"), example_cases())
def test_an_op_computes_what_eager_does_on_its_example(name: str, dtype: str) -> None:
    graph = parse_graph(dict(texts(name))[dtype])
    for start in range(3):
        inputs = inputs_for(graph, start)
        for expected, actual in in_machine_code(graph, inputs):
            right = same_bits(expected, actual) or same_rounding(expected, actual)
            assert right, f"{name} of {inputs} is {expected} in eager PyTorch and {actual} in machine code"


def test_every_op_is_run_in_machine_code_or_has_a_reason_why_not() -> None:
    run = {name for name, _ in elementwise_cases()} | {name for name, _ in example_cases()}
    assert set(OPS) - run == set(BY_OTHERS), (
        "an op in no case has no dtype that fits: see its type rule, or its example"
    )


def test_every_elementwise_op_with_attributes_has_some_to_run_with() -> None:
    assert {row.name for row in OPS.values() if row.elementwise and row.attributes} == set(ATTRIBUTES)


def test_a_rule_with_its_operands_exchanged_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = EMIT["sub"]
    monkeypatch.setitem(EMIT, "sub", lambda site, x, y: rule(site, y, x))
    with overrides(cache_dir=None), pytest.raises(AssertionError, match="see the emit rule in codegen/kernels/elem"):
        test_an_elementwise_op_computes_what_eager_does("sub", (torch.float64, torch.float64))
