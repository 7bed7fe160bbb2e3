"""Every part of a Graph has a text."""

import json
import math

import pytest
import torch
from tests.ir.examples import example

from weft.errors import UsageError
from weft.ir.graph import Graph, Place, Result, Value
from weft.ir.library import Call
from weft.ir.literals import argument_text
from weft.ir.ops import build
from weft.ir.parser import parse_graph
from weft.ir.printer import constants_of, print_graph
from weft.ir.same_graph import equal, same_graph
from weft.ir.types import contiguous, type_of

X = Value("input", (), contiguous(torch.float32, (2,)), name="x")
LITERALS = [
    *(0, -1, 2**70, True, False, None, 1.5, -0.0, 5e-324, 1e308, math.inf, -math.inf, math.nan),
    *(1 + 2j, complex(-0.0, math.inf), complex(math.nan, -0.0)),
    *("", 'quote " and \\', "line\nbreak", "织", "\udc80", "# a.py:1"),
    *(torch.float32, torch.bool, torch.qint8, torch.float8_e8m0fnu, torch.device("cpu"), torch.device("cuda:1")),
    *(torch.strided, torch.sparse_coo, torch.channels_last, torch.preserve_format),
    *((), (1, (2, (3,))), (None, "a", torch.float16)),
]


def call_graph(*arguments: object) -> Graph:
    value = Value("library", (), X.type, {"call": Call("a.b.c", arguments, (("key", arguments[0]),))})
    return Graph("g", (X,), (value,), ())


@pytest.mark.parametrize("literal", LITERALS, ids=repr)
def test_a_literal_reads_back_exactly(literal):
    graph = call_graph(literal)
    [value] = parse_graph(print_graph(graph)).values
    assert equal(value.attributes["call"].arguments, (literal,))
    assert equal(value.attributes["call"].keywords, (("key", literal),))


def test_a_generator_prints_but_does_not_read_back():
    text = print_graph(call_graph(torch.Generator()))
    with pytest.raises(UsageError, match="lives only in the process that made it"):
        parse_graph(text)


def test_what_is_no_literal_does_not_print():
    with pytest.raises(UsageError, match="of type slice is not a literal"):
        argument_text(slice(1))


def test_inputs_without_a_usable_name_go_by_their_position():
    names = ["x", "x", "", "0", "a b", "input5", "fc.weight"]
    inputs = tuple(Value("input", (), contiguous(torch.bool, ()), name=name) for name in names)
    parsed = parse_graph(print_graph(Graph("g", inputs, (), ())))
    assert [value.name for value in parsed.inputs] == [
        *("x", "input1", "input2", "input3", "input4", "input5", "fc.weight")
    ]


def test_a_long_header_has_one_input_a_line():
    inputs = tuple(Value("input", (), X.type, name=f"weight{i}") for i in range(10))
    text = print_graph(Graph("g", inputs, (), ()))
    assert text.startswith("graph g(\n    %weight0: f32[2],\n    %weight1: f32[2],\n")
    assert len(parse_graph(text).inputs) == 10


def test_places_print_on_request_shortened_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    value = build("relu", X, place=Place(str(tmp_path / "net.py"), 12, "forward"))
    graph = Graph("g", (X,), (value,), (Result(value),))
    assert print_graph(graph, short_places=True).splitlines()[1] == "  %0: f32[2] = relu %x  # net.py:12 in forward"
    assert print_graph(graph, places=False).splitlines()[1] == "  %0: f32[2] = relu %x"
    assert parse_graph(print_graph(graph)).values[0].place == value.place


def constant_graph(*tensors: torch.Tensor) -> Graph:
    values = [Value("constant", (), type_of(tensor), {"tensor": tensor}) for tensor in tensors]
    return Graph("g", (), tuple(values), ())


INLINE = [
    torch.tensor([0.1, -0.0, math.inf, math.nan]),
    torch.tensor(3.4028234663852886e38),
    torch.tensor([5e-324], dtype=torch.float64),
    torch.tensor([0.1, -2.0], dtype=torch.bfloat16),
    torch.tensor([0.1], dtype=torch.float16).to(torch.float8_e5m2),
    torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8),
    torch.tensor([2**64 - 1], dtype=torch.uint64),
    torch.tensor([True, False]),
    torch.tensor([1 - 2j], dtype=torch.complex128),
    torch.tensor([1 - 2j], dtype=torch.complex64),
    torch.empty(0, 3),
]
TABLED = [
    torch.arange(9),
    torch.arange(6).reshape(2, 3).t(),
    torch.ones(1).expand(3),
    torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32),
]


@pytest.mark.parametrize("tensor", INLINE, ids=repr)
def test_a_small_constant_is_written_out_bit_by_bit(tensor):
    graph = constant_graph(tensor)
    assert constants_of(graph) == []
    assert same_graph(parse_graph(print_graph(graph)), graph)


@pytest.mark.parametrize("tensor", TABLED, ids=repr)
def test_a_constant_that_text_cannot_hold_goes_to_the_table(tensor):
    graph = constant_graph(tensor, tensor)
    assert print_graph(graph).count("constant #0") == 2
    [kept] = constants_of(graph)
    assert kept is tensor
    assert same_graph(parse_graph(print_graph(graph), [kept]), graph)


def test_a_value_from_elsewhere_does_not_print():
    with pytest.raises(UsageError, match="neither an input nor computed there"):
        print_graph(Graph("g", (), (build("relu", X),), ()))


@pytest.mark.parametrize("other", ["mul", "sub"])
def test_graphs_of_different_ops_differ(other):
    assert not same_graph(example("add"), example(other))


def test_copies_that_are_one_and_copies_that_are_two_differ():
    one = "graph g(%x: f32[2]) { %0: (f32[2], f32[2]) = update a.b.c(!0, !1) on !0 = %x, !1 = %x return }"
    assert not same_graph(parse_graph(one), parse_graph(one.replace("!1 = %x", "!1 = !0")))


@pytest.mark.parametrize("left, right", [(0.0, -0.0), (1, 1.0), (1, True), ("a", "b"), ((1,), (1, 2)), (1j, -1j)])
def test_attributes_that_differ_in_sign_or_type_are_not_equal(left, right):
    assert equal(left, left)
    assert not equal(left, right)


@pytest.mark.parametrize("second", ["%x", "!0", "!0 via a.view.d(_, 1)[2]"])
def test_an_update_of_two_places_reads_back(second):
    line = f"  %0: (f32[2], f32[2]) = update a.b.c(!0, [!1], %x, key=%y) on !0 = %x via a.view.d(_, k=1), !1 = {second}"
    text = f"graph g(%x: f32[2], %y: f32[2]) {{\n{line}\n  write %x via a.view.d(_) <- %y\n  return\n}}\n"
    assert print_graph(parse_graph(text)) == text


@pytest.mark.parametrize(("name", "shown"), [("my net.py", "my net.py"), ("odd\nname.py", '"odd\\nname.py"')])
def test_short_places_are_for_people_and_stay_on_their_line(name: str, shown: str) -> None:
    graph = parse_graph("graph f(%x: f32[2]) {\n  %0: f32[2] = relu %x  # " + json.dumps(name) + ":3\n  return %0\n}")
    text = print_graph(graph, short_places=True)
    assert text.splitlines()[1] == f"  %0: f32[2] = relu %x  # {shown}:3"
    parse_graph(text)
