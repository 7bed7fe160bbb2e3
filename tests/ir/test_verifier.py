"""The verifier reports every problem of a Graph, all at once, with the user's line."""

import pytest
import torch
from tests.ir.examples import example

from weft.errors import InternalError
from weft.ir.graph import Graph, Place, Result, Value, Write
from weft.ir.library import HOLE, Call, Hole, Operand, ViewStep, WrittenArgument, WrittenPlace
from weft.ir.ops import OPS, build
from weft.ir.parser import parse_graph
from weft.ir.types import NOTHING, NumberType, TensorType, TupleType, Type, contiguous
from weft.ir.verifier import problems_of, verify

F32 = contiguous(torch.float32, (2,))
X = Value("input", (), F32, name="x")
N = Value("input", (), NumberType("int"), name="n")
INPUTS = "%x: f32[2,3], %y: f32[2,4], %i: i64[2,3], %b: bool[2], %c: c64[2], %n: int"

# What a value says -> what is wrong with it.
TEXT_PROBLEMS = {
    "f32[2,3] = relu": "it has 0 operands; relu takes 1",
    "f32[2,3] = relu %x, %x": "it has 2 operands; relu takes 1",
    "f32[2,4] = relu %x": "declared f32[2,4], but its rule gives f32[2,3]",
    "f64[2,3] = relu %x": "declared f64[2,3], but its rule gives f32[2,3]",
    "f32[2,3]@cuda:0 = relu %x": "declared f32[2,3]@cuda:0, but its rule gives f32[2,3]",
    "f32[2,3] = add %x, %y": "operands differ in shape: f32[2,3], f32[2,4]",
    "f32[2,3] = add %x, %i": "operands differ in dtype: f32[2,3], i64[2,3]",
    "f32[2,3] = add %x, %n": "operand 1 is int, not a tensor",
    "bool[2] = neg %b": "does not take bool, only bf16 f16 f32 f64 i16 i32 i64 i8 u8",
    "c64[2] = neg %c": "does not take c64, only bf16 f16 f32 f64 i16 i32 i64 i8 u8",
    "f32[2] = cast %c, dtype=f32": "cast from c64 to f32 would drop the imaginary part",
    "f32[2,3] = select %x, %x, %x": "does not take f32, only bool",
    "f32[2,3] = select %b, %x, %x": "the condition differs in shape: bool[2], f32[2,3], f32[2,3]",
    "f32[2] = sum %x, keep=False": "the attribute dimensions is missing",
    "f32[2] = sum %x, dimensions=1, keep=False": "the attribute dimensions is 1, not integers",
    "f32[2] = sum %x, dimensions=[1], keep=0": "the attribute keep is 0, not truth",
    "f32[2] = sum %x, dimensions=[2], keep=False": "dimension 2 of a tensor with 2 dimensions",
    "f32[2] = sum %x, dimensions=[-1], keep=False": "dimension -1 of a tensor with 2 dimensions",
    "f32[2] = sum %x, dimensions=[1, 1], keep=False": "a dimension is named twice in [1, 1]",
    "f32[5] = reshape %x, shape=[5]": "f32[2,3] has 6 elements, the new shape 5",
    "f32[6] = reshape %x, shape=[-1]": "a shape with a negative size: [-1]",
    "f32[2] = permute %x, order=[0]": "order has 1 numbers for 2 dimensions",
    "f32[2,4] = expand %x, shape=[2, 4]": "f32[2,3] does not expand to [2, 4]",
    "f32[3] = expand %x, shape=[3]": "f32[2,3] does not expand to [3]",
    "f32[1,3] = slice %x, start=[1, 0], stop=[3, 3], step=[1, 1]": "slice 1:3:1 of a dimension of size 2",
    "f32[1,3] = slice %x, start=[1, 0], stop=[2, 3], step=[0, 1]": "slice 1:2:0 of a dimension of size 2",
    "f32[1,3] = pad %x, low=[-1, 0], high=[0, 0], value=0": "a negative number of elements to pad",
    "f32[2,3] = concat dimension=0": "nothing to concatenate",
    "f32[4,3] = concat %x, %y, dimension=0": "operands differ in more than dimension 0: f32[2,3], f32[2,4]",
    "f32[2,3] = gather %x, %x, dimension=0": "does not take f32, only i64",
    "f32[2,3] = scatter %x, %i, %y, dimension=0": (
        "the source f32[2,4] does not fit the index i64[2,3] and the tensor f32[2,3]"
    ),
    "f32[2,3] = take %x, %i, dimension=0": "the index i64[2,3] is not a list",
    "f32[2,4] = matmul %x, %y": "a product of f32[2,3], f32[2,4]",
    "f32[2,3] = convolution %x, %x, stride=[1], padding=[0], dilation=[1], groups=1": (
        "f32[2,3] is not a batch of channels with 1 to 3 dimensions each"
    ),
    "f32[2] = constant [1.0]": None,
    "f32[2,3] = number add(%n, 1)": "Python arithmetic gives a number, not f32[2,3]",
    "int = number root(%n)": (
        "no number operator 'root'; there are add sub mul truediv floordiv mod pow neg abs int float bool"
    ),
    "int = number add(%n)": "add takes 2 numbers, not 1",
    'int = number add(%n, "1")': "an argument is neither an operand nor a number",
    "int = number add(%n, %x)": "an operand is not a number",
    "f32[] = scalar %x, dtype=f32": "operand 0 is f32[2,3], not a number",
    "f32[2,3] = library relu(%x)": "'relu' does not name an operator overload",
    "f32[2,3] = library aten.relu.default(!0, %x)": "a library value writes nothing; a call that writes is an update",
    "f32[2,3] = library aten.relu_.default(%x)": (
        "aten.relu_.default writes its argument self; a call that writes is an update"
    ),
    "f32[2,3] = library aten.relu.default(%x, _)": "a hole outside of a view step",
    "f32[2,3] = update aten.relu_.default(%x) on !0 = %x": (
        "arguments stand for written places []; there are 1 places"
    ),
    "f32[2,3] = update aten.relu_.default(!0) on !0 = %x via aten.t.default()": (
        "the view step aten.t.default is applied to nothing"
    ),
    "i64[2,3] = update aten.relu_.default(!0) on !0 = %x": (
        "the declared type i64[2,3] does not end in new states of f32[2,3]"
    ),
    "f32[2,3] = update aten.foo.default(!0, !1) on !0 = %x, !1 = %y": (
        "the declared type f32[2,3] does not end in new states of f32[2,3], f32[2,4]"
    ),
    "f32[2,3] = item %x, index=0": "its operand is f32[2,3], not several results",
    "f32[4] = random_state": "a generator's state is a list of bytes, not f32[4]",
    "nothing = set_random_state %x": "does not take f32, only u8",
}
TEXT_PROBLEMS = {text: problem for text, problem in TEXT_PROBLEMS.items() if problem}


@pytest.mark.parametrize("text", TEXT_PROBLEMS)
def test_a_wrong_value_is_reported(text):
    graph = parse_graph(f"graph g({INPUTS}) {{ %0: {text} return }}")
    assert problems_of(graph) == [f"%0 = {graph.values[0].op}: {TEXT_PROBLEMS[text]}"]


def value(op: str, *operands: Value, declared: Type = F32, **attributes: object) -> Value:
    return Value(op, operands, declared, attributes)


def library(*arguments: object, operands: tuple[Value, ...] = (X,), written: tuple[WrittenPlace, ...] = ()) -> Value:
    op = "update" if written else "library"
    return value(op, *operands, call=Call("aten.foo.default", arguments, (), written))


RELU = build("relu", X)
STRAY = build("relu", X)
PAIR = value("library", X, declared=TupleType((F32, F32)), call=Call("a.b.c", (Operand(0),)))
SILENT = value("library", X, declared=NOTHING, call=Call("a.b.c", (Operand(0),)))
VALUE_PROBLEMS = [
    (value("frobnicate", X), "there is no such op"),
    (value("relu", STRAY), "operand 0 is neither an input nor computed before"),
    (value("relu", X, axis=1), "relu has no attribute axis"),
    (value("relu", X, declared=TensorType(torch.float32, (2,), ())), "0 strides for 1 dimensions"),
    (value("relu", X, declared=TensorType(torch.float32, (2,), (-1,))), "negative sizes or strides: [2], [-1]"),
    (value("constant", tensor=torch.zeros(3)), "declared f32[2]; the tensor is torch.float32 [3] on cpu"),
    (value("constant", tensor=torch.zeros(2), declared=NOTHING), "a constant is a tensor, not nothing"),
    (value("relu", PAIR), "it takes several results as one, or nothing: pick one with item"),
    (value("relu", SILENT), "it takes several results as one, or nothing: pick one with item"),
    (value("item", PAIR, index=2), "there is no item 2 among 2 results"),
    (value("item", PAIR, index=0, declared=NOTHING), "declared nothing, but item 0 is f32[2]"),
    (library(Operand(1)), "an argument stands for operand 1; there are 1"),
    (library(1), "operand 0 is not used by the arguments"),
    (library(Operand(0), slice(1)), "which is no literal"),
    (library(WrittenArgument(0), written=(WrittenPlace(1),)), "a written place is in operand 1; there are 1"),
]


@pytest.mark.parametrize("wrong, problem", VALUE_PROBLEMS, ids=[problem for _, problem in VALUE_PROBLEMS])
def test_a_value_that_no_text_can_say_is_reported(wrong, problem):
    found = problems_of(Graph("g", (X,), (PAIR, SILENT, wrong), ()))
    assert any(problem in text for text in found)
    assert all(text.startswith(f"%2 = {wrong.op}: ") for text in found)


def test_a_value_listed_twice_is_reported():
    assert problems_of(Graph("g", (X,), (RELU, RELU), ())) == ["%1 = relu: it stands in the list twice"]


def test_values_out_of_order_are_reported():
    last = build("neg", RELU)
    expected = "%0 = neg: operand 0 is neither an input nor computed before"
    assert problems_of(Graph("g", (X,), (last, RELU), ())) == [expected]


@pytest.mark.parametrize(
    "wrong, problem",
    [
        (RELU, "an input has the op 'input' alone, not 'relu'"),
        (Value("input", (), NOTHING, name="a"), "an input is a tensor or a number, not nothing"),
        (X, "it stands in the list twice"),
    ],
)
def test_a_wrong_input_is_reported(wrong, problem):
    [found] = problems_of(Graph("g", (X, wrong), (), ()))
    assert found.endswith(problem)


WHOLE = ViewStep("aten.alias.default", (HOLE,))
WRITE_PROBLEMS = [
    (Write(RELU, RELU), "it is not an input"),
    (Write(X, STRAY), "the value is neither an input nor computed"),
    (Write(N, X), "f32[2] into int: only tensors are written"),
    (Write(X, Value("input", (), contiguous(torch.float32, (3,)))), "f32[3] does not fit f32[2]"),
    (Write(X, X, (ViewStep("alias", (HOLE,)),)), "'alias' does not name an operator overload"),
]


@pytest.mark.parametrize("write, problem", WRITE_PROBLEMS, ids=[problem for _, problem in WRITE_PROBLEMS])
def test_a_wrong_write_is_reported(write, problem):
    found = problems_of(Graph("g", (X, N), (RELU,), (), (write,)))
    assert any(text.endswith(problem) for text in found)


RESULT_PROBLEMS = [
    (Result(STRAY), "it is neither an input nor computed"),
    (Result(PAIR), "it is (f32[2], f32[2]), neither a tensor nor a number"),
    (Result(N, (WHOLE,)), "a path leads to it, but not from a tensor"),
    (Result(X, (ViewStep("a.b.c", (HOLE, Operand(0))),)), "the view step a.b.c refers to values"),
    (Result(X, (ViewStep("a.b.c", (1,)),)), "the view step a.b.c is applied to nothing"),
]


@pytest.mark.parametrize("result, problem", RESULT_PROBLEMS, ids=[problem for _, problem in RESULT_PROBLEMS])
def test_a_wrong_result_is_reported(result, problem):
    assert problems_of(Graph("g", (X, N), (PAIR,), (result,))) == [f"result 0: {problem}"]


def test_all_problems_are_reported_at_once_with_the_users_line(tmp_path):
    source = tmp_path / "net.py"
    source.write_text("import torch\ny = x.relu()\n")
    place = Place(str(source), 2)
    wrong = Value("relu", (X,), contiguous(torch.float32, (3,)), place=place)
    with pytest.raises(InternalError) as caught:
        verify(Graph("net", (X,), (wrong, value("nope")), ()))
    assert str(caught.value) == (
        "graph net is malformed: 2 problems\n"
        "  why   %0 = relu: declared f32[3], but its rule gives f32[2]   (net.py:2   y = x.relu())\n"
        "        %1 = nope: there is no such op"
    )


def test_one_problem_is_counted_as_one():
    with pytest.raises(InternalError, match="graph g is malformed: 1 problem\n"):
        verify(Graph("g", (X,), (value("nope"),), ()))


@pytest.mark.parametrize("op", OPS)
def test_no_attribute_may_be_missing_or_of_another_kind(op):
    graph = example(op)
    [subject] = [value for value in graph if value.op == op][:1]
    for attribute in OPS[op].attributes:
        rest = {name: given for name, given in subject.attributes.items() if name != attribute.name}
        for given in (rest, {**rest, attribute.name: Hole()}):
            wrong = Value(op, subject.operands, subject.type, given)
            values = tuple(
                wrong if value is subject else value for value in graph.values[: graph.values.index(subject) + 1]
            )
            [problem] = problems_of(Graph("g", graph.inputs, values, ()))
            assert f"the attribute {attribute.name} is " in problem


@pytest.mark.parametrize("name", ["declared", "strides"])
def test_declared_strides_are_free(name):
    column = TensorType(torch.float32, (2, 3), (1, 2))
    given = {"declared": X.type, "strides": column}[name]
    operand = Value("input", (), given, name="x")
    like = column if given is column else TensorType(torch.float32, (2,), (5,))
    assert problems_of(Graph("g", (operand,), (value("relu", operand, declared=like),), ())) == []
