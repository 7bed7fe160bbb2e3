"""Text that is not a Graph is refused with its place; text of any origin never crashes the parser."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.ir.examples import BODIES

from weft.errors import UsageError
from weft.ir.graph import Place
from weft.ir.library import HOLE, Call, Operand, ViewStep, WrittenArgument, WrittenPlace
from weft.ir.parser import ParseError, TextLimits, parse_graph
from weft.ir.verifier import problems_of


def parse_value(text: str, inputs: str = "%x: f32[2], %y: f32[2], %n: int"):
    return parse_graph(f"graph g({inputs}) {{ %0: {text} return }}").values[0]


REFUSED = {
    "": (1, 1, "a graph: graph NAME"),
    "graph g(": (1, 9, "a value's name"),
    "graph g(%x f32[2]) { return }": (1, 12, ":"),
    "graph g(%x: f33[2]) { return }": (1, 13, "a type such as f32[2,3]"),
    "graph g(%x: f32[-2]) { return }": (1, 17, "a size"),
    "graph g(%x: f32[1.5]) { return }": (1, 17, "a size"),
    "graph g(%x: f32[9223372036854775808]) { return }": (1, 17, "a size"),
    "graph g(%x: f32[2]{1,1}) { return }": (1, 19, "1 strides"),
    "graph g(%x: f32[2]@moon) { return }": (1, 19, "a device that PyTorch knows"),
    "graph g(%x: f32[2], %x: f32[2]) { return }": (1, 21, "a name not yet taken"),
    "graph g() { %0: f32[2] = relu %x return }": (1, 31, "an input, or a value computed above"),
    "graph g(%x: f32[2]) {\n  %0: f32[2] = frobnicate %x\n return }": (2, 16, "an op of weft/ir/ops.py"),
    "graph g(%x: f32[2]) { %0: f32[2] = relu %x, dim=0 return }": (1, 45, "an attribute of relu: it has none"),
    "graph g(%x: f32[2]) { %0: f32[] = sum %x, keep=%x return }": (1, 48, "a literal"),
    "graph g(%x: f32[2]) { %0: f32[] = sum %x, keep=foo return }": (1, 48, "a literal, or the name of a value"),
    "graph g(%x: f32[2]) { %0: f32[] = sum %x, keep=torch.nn return }": (1, 48, "a literal, or the name of a value"),
    "graph g(%x: f32[2]) { %0: f32[] = sum %x, keep=) return }": (1, 48, "an argument"),
    "graph g(%x: f32[2]) { %0: f32[] = sum %x, keep=complex(1) return }": (1, 48, "complex(real part, imaginary"),
    'graph g(%x: f32[2]) { %0: f32[] = sum %x, keep="\\q" return }': (1, 48, "a string as in JSON"),
    "graph g() { %0: f32[2] = constant [1.0] return }": (1, 35, "a list of 2 elements"),
    "graph g() { %0: f32[2] = constant [1.0, None] return }": (1, 35, "elements of f32[2]"),
    "graph g() { %0: i8[1] = constant [1000000000000000000000] return }": (1, 34, "elements of i8[1]"),
    "graph g() { %0: int = constant [1.0] return }": (1, 32, "a constant of a tensor type"),
    "graph g() { %0: f32[2] = constant #0 return }": (1, 35, "one of the 0 constants"),
    "graph g(%x: f32[2]) { %0: f32[2] = library aten.relu.default(a=%x, a=%x) return }": (1, 68, "a keyword not yet"),
    "graph g(%x: f32[2]) { %0: f32[2] = library aten.relu.default(a=1, %x) return }": (1, 67, "a keyword: positional"),
    "graph g(%x: f32[2]) { %0: f32[2] = update aten.relu_.default(!0) return }": (1, 66, "on !0 = %base"),
    "graph g(%x: f32[2]) { %0: f32[2] = update a.b.c(!0) on !1 = %x return }": (1, 56, "!0"),
    "graph g(%x: f32[2]) { %0: f32[2] = update a.b.c(!0) on !0 = !0 return }": (1, 61, "an earlier written argument"),
    "graph g(%x: f32[2]) { return %x via aten.t.default(%x) }": (1, 52, "a literal, or _ for the tensor"),
    "graph g(%x: f32[2]) { write %x <- return }": (1, 35, "a value"),
    "graph g(%x: f32[2]) { relu }": (1, 23, "%name: TYPE = ..., or write, or return"),
    "graph g(%x: f32[2]) { return %x %x }": (1, 33, "a comma or }"),
    "graph g(%x: f32[2]) { return %x } more": (1, 35, "the end of the text"),
    "graph g(%x: f32[2]) { %0: f32[] = sum %x, keep=generator return }": (1, 48, "a literal"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_malformed_text_is_refused_with_its_place_and_what_was_expected(text):
    line, column, expected = REFUSED[text]
    with pytest.raises(ParseError) as caught:
        parse_graph(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert caught.value.expected.startswith(expected)
    assert isinstance(caught.value, UsageError)


def test_a_parse_error_reads_like_every_error():
    with pytest.raises(ParseError) as caught:
        parse_graph("graph g(%x: f33[2]) { return }")
    assert str(caught.value) == (
        "f33 does not fit\n"
        "  where line 1, column 13 of the graph's text\n"
        "  fix   expected here: a type such as f32[2,3], int or nothing"
    )


def test_a_sign_outside_of_the_language_is_refused():
    with pytest.raises(ParseError, match="'§' is no sign of the Graph language"):
        parse_graph("graph g§() { return }")


def test_deep_brackets_are_refused_instead_of_exhausting_the_stack():
    with pytest.raises(ParseError) as caught:
        parse_value("f32[] = sum %x, keep=" + "[" * 100_000)
    assert caught.value.expected == "brackets at most 30 deep"


def test_deep_types_are_refused():
    with pytest.raises(ParseError, match="does not fit"):
        parse_graph(f"graph g(%x: {'(' * 100_000}) {{ return }}")


def test_long_numbers_are_refused():
    with pytest.raises(ParseError, match="a number of 5000 digits"):
        parse_value("int = number add(%n, " + "9" * 5000 + ")")


def test_long_texts_are_refused():
    with pytest.raises(ParseError, match="12 characters; the limit is 10"):
        parse_graph("graph g() {}", limits=TextLimits(characters=10))


def test_written_places_in_one_copy_have_one_base():
    value = parse_value("f32[2] = update a.b.c(!0, !1, !2, %y) on !0 = %x via a.view.d(_, 1)[3], !1 = !0, !2 = %x")
    call = value.attributes["call"]
    assert call.written == (
        WrittenPlace(0, (ViewStep("a.view.d", (HOLE, 1), (), 3),)),
        WrittenPlace(0),
        WrittenPlace(1),
    )
    assert call.arguments == (WrittenArgument(0), WrittenArgument(1), WrittenArgument(2), Operand(2))
    assert [operand.name for operand in value.operands] == ["x", "x", "y"]


def test_operands_of_a_call_are_numbered_as_they_appear():
    value = parse_value("f32[2] = library a.b.c(%y, [%x, %y], other=%x, dtype=f32)")
    assert [operand.name for operand in value.operands] == ["y", "x"]
    expected = (("other", Operand(1)), ("dtype", torch.float32))
    assert value.attributes["call"] == Call("a.b.c", (Operand(0), (Operand(1), Operand(0))), expected)


@pytest.mark.parametrize(
    "comment, place",
    [
        ("net.py:12", Place("net.py", 12)),
        ("/a/net.py:12 in forward", Place("/a/net.py", 12, "forward")),
        ('"C:\\\\a b.py":3 in "f g"', Place("C:\\a b.py", 3, "f g")),
        ("a remark", None),
        ("", None),
    ],
)
def test_comments_that_name_a_line_are_places(comment, place):
    graph = parse_graph(f"graph g(%x: f32[2]) {{\n # other.py:1\n %0: f32[2] = relu %x # {comment}\n return }}")
    assert graph.values[0].place == place


@given(st.text(alphabet='grapheturn %xf32[],(){}:=<-!#@"\\\n_.09e', max_size=60))
def test_random_text_is_refused_in_words(text):
    with pytest.raises(ParseError):
        parse_graph(text)


@given(st.sampled_from(sorted(BODIES)), st.data())
def test_damaged_text_is_refused_or_means_something(op, data):
    text = f"graph {op}{BODIES[op]}"
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 6)))
    damaged = text[:start] + data.draw(st.sampled_from(["", "0", "-1", "%x", "[", ")", "None", "9" * 30])) + text[stop:]
    try:
        graph = parse_graph(damaged)
    except ParseError:
        return
    assert all(isinstance(problem, str) for problem in problems_of(graph))
