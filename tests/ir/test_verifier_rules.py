"""Each rule of the verifier on both of its sides: what just breaks it is reported alone, what just keeps it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.errors import InternalError
from weft.ir.graph import Graph, Result, Value, Write
from weft.ir.library import HOLE, Call, Operand, ViewStep, WrittenArgument, WrittenPlace
from weft.ir.types import NOTHING, NumberType, TensorType, TupleType, Type, contiguous
from weft.ir.verifier import agrees, problems_of, verify

F, G, LONG = contiguous(torch.float32, (2,)), contiguous(torch.float32, (3,)), contiguous(torch.int64, (2,))
BYTES = contiguous(torch.uint8, (5,))
INT, FLOAT = NumberType("int"), NumberType("float")
X, Y = Value("input", (), F, name="x"), Value("input", (), G, name="y")
N, B = Value("input", (), INT, name="n"), Value("input", (), BYTES, name="b")
INPUTS = (X, Y, N, B)
ALIAS = ViewStep("aten.alias.default", (HOLE,))
PAIR = Value("library", (X,), TupleType((F, G)), {"call": Call("a.b.c", (Operand(0),))})
NONE = Value("library", (X,), NOTHING, {"call": Call("a.b.c", (Operand(0),))})


def library(
    *arguments: Any, of: tuple[Value, ...] = (X,), gives: Type = F, target: str = "a.b.c", **keywords: Any
) -> Value:
    return Value("library", of, gives, {"call": Call(target, arguments, tuple(keywords.items()))})


def update(
    *arguments: Any, of: tuple[Value, ...], gives: Type, places: tuple[WrittenPlace, ...], target: str = "a.b.c"
) -> Value:
    return Value("update", of, gives, {"call": Call(target, arguments, (), places)})


def number(operator: str, *arguments: Any, of: tuple[Value, ...] = (N,), gives: Type = INT) -> Value:
    return Value("number", of, gives, {"operator": operator, "arguments": arguments})


ZERO, ONE = WrittenArgument(0), WrittenArgument(1)
AT_X, AT_Y = WrittenPlace(0), WrittenPlace(1)
STATES = "the declared type {} does not end in new states of {}"

# A value behind x, y, n, b, a pair and nothing -> all that is said of it.
VALUES: list[tuple[Value, list[str]]] = [
    # Types.
    (Value("relu", (X,), F), []),
    (Value("relu", (X,), TensorType(torch.float32, (2,), (7,))), []),
    (Value("relu", (X,), TensorType(torch.float32, (2,), (0,))), []),
    (Value("relu", (X,), TensorType(torch.float32, (2,), (1, 1))), ["2 strides for 1 dimensions"]),
    (Value("relu", (X,), TensorType(torch.float32, (2,), (-1,))), ["negative sizes or strides: [2], [-1]"]),
    (
        library(Operand(0), gives=TupleType((F, TensorType(torch.float32, (1,), (-2,))))),
        ["negative sizes or strides: [1], [-2]"],
    ),
    (library(Operand(0), gives=TupleType((TupleType((F,)), G))), []),
    (library(Operand(0), gives=TensorType(torch.float32, (0,), (1,))), []),
    # Operands, arguments.
    (library(), ["operand 0 is not used by the arguments"]),
    (library(Operand(0)), []),
    (library(Operand(0), Operand(0)), []),
    (library([Operand(0), (Operand(1),)], of=(X, Y)), []),
    (library(value=Operand(0)), []),
    (library(Operand(1)), ["an argument stands for operand 1; there are 1", "operand 0 is not used by the arguments"]),
    (library(Operand(0), Operand(2), of=(X, Y)), None),
    (library(Operand(0), Operand(0), of=(X, Y)), ["operand 1 is not used by the arguments"]),
    (library(1, of=(), gives=F), []),
    (library(Operand(0), of=(N,)), []),
    (library(Operand(0), 1, 2.5, None, True, "text", torch.float32, torch.strided), []),
    (library(Operand(0), slice(1)), ["a.b.c is given slice(None, 1, None) of type slice, which is no literal"]),
    (library(Operand(0), [slice(1)]), ["a.b.c is given slice(None, 1, None) of type slice, which is no literal"]),
    (library(Operand(0), key=slice(1)), ["a.b.c is given slice(None, 1, None) of type slice, which is no literal"]),
    (library(Operand(0), HOLE), ["a hole outside of a view step"]),
    (library(Operand(0), key=[HOLE]), ["a hole outside of a view step"]),
    (library(Operand(0), target="nothing"), ["'nothing' does not name an operator overload"]),
    (library(Operand(0), of=(PAIR,)), None),
    # Writes of libraries.
    (library(Operand(0), ZERO), ["a library value writes nothing; a call that writes is an update"]),
    (library(Operand(0), target="aten.relu.default"), []),
    (
        library(Operand(0), target="aten.relu_.default"),
        ["aten.relu_.default writes its argument self; a call that writes is an update"],
    ),
    (
        library(Operand(0), out=Operand(1), of=(X, Y), target="aten.neg.out"),
        ["aten.neg.out writes its argument out; a call that writes is an update"],
    ),
    (library(1.5, target="aten.relu_.default", of=()), []),
    # Updates.
    (update(ZERO, of=(X,), gives=F, places=(AT_X,)), []),
    (update(ZERO, of=(X,), gives=TensorType(torch.float32, (9, 9), (9, 1)), places=(AT_X,)), []),
    (update(ZERO, of=(X,), gives=TupleType((LONG, F)), places=(AT_X,)), []),
    (update(ZERO, ONE, of=(X, Y), gives=TupleType((F, G)), places=(AT_X, AT_Y)), []),
    (update(ZERO, ONE, of=(X,), gives=F, places=(AT_X, WrittenPlace(0, (ALIAS,)))), []),
    (update(ZERO, Operand(1), of=(X, Y), gives=F, places=(AT_X,)), []),
    (update(ZERO, of=(X,), gives=LONG, places=(AT_X,)), [STATES.format("i64[2]", "f32[2]")]),
    (update(ZERO, of=(X,), gives=TupleType((F, LONG)), places=(AT_X,)), [STATES.format("(f32[2], i64[2])", "f32[2]")]),
    (update(ZERO, of=(X,), gives=INT, places=(AT_X,)), [STATES.format("int", "f32[2]")]),
    (update(ZERO, of=(N,), gives=INT, places=(AT_X,)), [STATES.format("int", "int")]),
    (
        update(ZERO, of=(X,), gives=contiguous(torch.float32, (2,), torch.device("meta")), places=(AT_X,)),
        [STATES.format("f32[2]@meta", "f32[2]")],
    ),
    (
        update(ZERO, ONE, of=(X, B), gives=TupleType((BYTES, F)), places=(AT_X, AT_Y)),
        [STATES.format("(u8[5], f32[2])", "f32[2], u8[5]")],
    ),
    (update(ZERO, ONE, of=(X, Y), gives=F, places=(AT_X, AT_Y)), [STATES.format("f32[2]", "f32[2], f32[3]")]),
    (update(Operand(0), of=(X,), gives=F, places=()), None),
    (
        update(of=(X,), gives=F, places=(AT_X,)),
        ["arguments stand for written places []; there are 1 places"],
    ),
    (
        update(ZERO, ONE, of=(X,), gives=F, places=(AT_X,)),
        ["arguments stand for written places [0, 1]; there are 1 places"],
    ),
    (
        update(ONE, of=(X,), gives=F, places=(AT_X,)),
        ["arguments stand for written places [1]; there are 1 places"],
    ),
    (update(ZERO, of=(X, Y), gives=F, places=(AT_X,)), ["operand 1 is not used by the arguments"]),
    (
        update(ZERO, of=(X,), gives=F, places=(WrittenPlace(1),)),
        [
            "an argument stands for operand 1; there are 1",
            "operand 0 is not used by the arguments",
            "a written place is in operand 1; there are 1",
        ],
    ),
    (
        update(ZERO, of=(X,), gives=F, places=(WrittenPlace(0, (ViewStep("alias", (HOLE,)),)),)),
        ["'alias' does not name an operator overload"],
    ),
    # Numbers.
    (number("add", Operand(0), 1), []),
    (number("neg", Operand(0)), []),
    (number("add", Operand(0), Operand(1), of=(N, N)), []),
    (number("add", Operand(0), 2.5, gives=FLOAT), []),
    (number("add", Operand(0), True), []),
    (number("add", Operand(0)), ["add takes 2 numbers, not 1"]),
    (number("neg", Operand(0), 1), ["neg takes 1 numbers, not 2"]),
    (number("add", Operand(0), 1, gives=F), ["Python arithmetic gives a number, not f32[2]"]),
    (number("add", Operand(0), "1"), ["an argument is neither an operand nor a number"]),
    (number("add", Operand(0), 1, of=(X,)), ["an operand is not a number"]),
    (number("add", Operand(0), 1, of=(N, N)), ["operand 1 is not used by the arguments"]),
    (number("add", Operand(0), Operand(1)), ["an argument stands for operand 1; there are 1"]),
    # Items.
    (Value("item", (PAIR,), F, {"index": 0}), []),
    (Value("item", (PAIR,), G, {"index": 1}), []),
    (Value("item", (PAIR,), G, {"index": 2}), ["there is no item 2 among 2 results"]),
    (Value("item", (PAIR,), G, {"index": -1}), ["there is no item -1 among 2 results"]),
    (Value("item", (PAIR,), G, {"index": 0}), ["declared f32[3], but item 0 is f32[2]"]),
    (Value("item", (X,), F, {"index": 0}), ["its operand is f32[2], not several results"]),
    (Value("relu", (PAIR,), F), ["it takes several results as one, or nothing: pick one with item"]),
    (Value("relu", (NONE,), F), ["it takes several results as one, or nothing: pick one with item"]),
    # Constants and states.
    (Value("constant", (), F, {"tensor": torch.zeros(2)}), []),
    (Value("constant", (), F, {"tensor": torch.zeros(4)[::2]}), []),
    (Value("constant", (), F, {"tensor": torch.zeros(3)}), ["declared f32[2]; the tensor is torch.float32 [3] on cpu"]),
    (
        Value("constant", (), LONG, {"tensor": torch.zeros(2)}),
        ["declared i64[2]; the tensor is torch.float32 [2] on cpu"],
    ),
    (
        Value("constant", (), F, {"tensor": torch.zeros(2, device="meta")}),
        ["declared f32[2]; the tensor is torch.float32 [2] on meta"],
    ),
    (Value("constant", (), INT, {"tensor": torch.zeros(2)}), ["a constant is a tensor, not int"]),
    (Value("random_state", (), BYTES), []),
    (Value("random_state", (), LONG), ["a generator's state is a list of bytes, not i64[2]"]),
    (
        Value("random_state", (), contiguous(torch.uint8, (2, 2))),
        ["a generator's state is a list of bytes, not u8[2,2]"],
    ),
    (Value("random_state", (), INT), ["a generator's state is a list of bytes, not int"]),
    # Rows.
    (Value("relu", (), F), ["it has 0 operands; relu takes 1"]),
    (Value("relu", (X, X), F), ["it has 2 operands; relu takes 1"]),
    (Value("relu", (X,), F, {"axis": 1, "a": 2}), ["relu has no attribute a", "relu has no attribute axis"]),
    (Value("relu", (X,), G), ["declared f32[3], but its rule gives f32[2]"]),
    (Value("nope", (X,), TensorType(torch.float32, (2,), ())), ["0 strides for 1 dimensions", "there is no such op"]),
]


def said_of(value: Value) -> list[str]:
    found = problems_of(Graph("g", INPUTS, (PAIR, NONE, value), ()))
    begin = f"%2 = {value.op}: "
    assert all(text.startswith(begin) for text in found)
    return [text.removeprefix(begin) for text in found]


RULES = [(value, said) for value, said in VALUES if said is not None]


@pytest.mark.parametrize("number", range(len(RULES)))
def test_all_that_is_wrong_with_a_value_is_said_and_nothing_else(number: int) -> None:
    value, said = RULES[number]
    assert said_of(value) == said


@pytest.mark.parametrize("value", [value for value, said in VALUES if said is None])
def test_several_mistakes_are_said_together(value: Value) -> None:
    assert len(said_of(value)) >= 1


INPUT_RULES = [
    (Value("input", (), F), None),
    (Value("input", (), INT), None),
    (Value("relu", (), F), "an input has the op 'input' alone, not 'relu'"),
    (Value("input", (X,), F), "an input has the op 'input' alone, not 'input'"),
    (Value("input", (), F, {"a": 1}), "an input has the op 'input' alone, not 'input'"),
    (Value("input", (), NOTHING), "an input is a tensor or a number, not nothing"),
    (Value("input", (), TupleType((F, G))), "an input is a tensor or a number, not (f32[2], f32[3])"),
    (Value("input", (), TensorType(torch.float32, (-1,), (1,))), "negative sizes or strides: [-1], [1]"),
]


@pytest.mark.parametrize("value, said", INPUT_RULES)
def test_what_is_wrong_with_an_input_is_said(value: Value, said: str | None) -> None:
    expected = [] if said is None else [f"input %1: {said}"]
    assert problems_of(Graph("g", (X, value), (), ())) == expected


VIEW = WrittenPlace(0, (ALIAS,)).path
WRITES = [
    (Write(X, X), []),
    (Write(X, Value("input", (), TensorType(torch.float32, (2,), (9,)))), []),
    (Write(X, Y), ["f32[3] does not fit f32[2]"]),
    (Write(X, Y, VIEW), []),
    (Write(X, B, VIEW), ["u8[5] does not fit f32[2]"]),
    (Write(N, X), ["f32[2] into int: only tensors are written"]),
    (Write(X, N), ["int into f32[2]: only tensors are written"]),
    (Write(X, X, (ViewStep("alias", (HOLE,)),)), ["'alias' does not name an operator overload"]),
    (Write(X, X, (ViewStep("a.b.c", ()),)), ["the view step a.b.c is applied to nothing"]),
    (Write(X, X, (ViewStep("a.b.c", (HOLE, ZERO)),)), ["the view step a.b.c refers to values"]),
    (
        Write(X, X, (ViewStep("a.b.c", (HOLE, slice(1))),)),
        ["a.b.c is given slice(None, 1, None) of type slice, which is no literal"],
    ),
    (Write(X, X, (ALIAS, ViewStep("a.b.c", (1,)))), ["the view step a.b.c is applied to nothing"]),
]


@pytest.mark.parametrize("number", range(len(WRITES)))
def test_what_is_wrong_with_a_write_is_said_and_nothing_else(number: int) -> None:
    write, said = WRITES[number]
    inputs = tuple(dict.fromkeys((*INPUTS, write.input, write.value)))
    found = problems_of(Graph("g", inputs, (PAIR,), (), (write,)))
    assert [text.split(": ", 1)[1] for text in found] == said


RESULTS = [
    (Result(X), []),
    (Result(N), []),
    (Result(X, (ALIAS,)), []),
    (Result(N, (ALIAS,)), ["a path leads to it, but not from a tensor"]),
    (Result(PAIR), ["it is (f32[2], f32[3]), neither a tensor nor a number"]),
    (Result(NONE), ["it is nothing, neither a tensor nor a number"]),
    (Result(Value("relu", (X,), F)), ["it is neither an input nor computed"]),
    (Result(X, (ViewStep("a.b.c", (1,)),)), ["the view step a.b.c is applied to nothing"]),
]


@pytest.mark.parametrize("number", range(len(RESULTS)))
def test_what_is_wrong_with_a_result_is_said_and_nothing_else(number: int) -> None:
    result, said = RESULTS[number]
    found = problems_of(Graph("g", INPUTS, (PAIR, NONE), (Result(X), result)))
    assert found == [f"result 1: {text}" for text in said]


DEVICE = contiguous(torch.float32, (2,), torch.device("meta"))
AGREEING = [
    (F, F, True, True),
    (F, TensorType(torch.float32, (2,), (5,)), True, True),
    (F, G, True, False),
    (F, LONG, True, False),
    (F, DEVICE, True, False),
    (F, DEVICE, False, True),
    (TupleType((F, G)), TupleType((F, G)), True, True),
    (TupleType((F, G)), TupleType((F,)), True, False),
    (TupleType((F, G)), TupleType((F, F)), True, False),
    (TupleType((G, F)), TupleType((F, F)), True, False),
    (TupleType((F, DEVICE)), TupleType((F, F)), True, False),
    (TupleType((F, DEVICE)), TupleType((F, F)), False, True),
    (F, TupleType((F,)), True, False),
    (F, INT, True, False),
    (INT, INT, True, True),
    (INT, FLOAT, True, False),
    (NOTHING, NOTHING, True, True),
]


@pytest.mark.parametrize("one, other, device, expected", AGREEING)
def test_types_agree_in_all_but_strides(one: Type, other: Type, device: bool, expected: bool) -> None:
    assert agrees(one, other, device=device) is expected
    assert agrees(other, one, device=device) is expected


def test_what_was_sound_is_not_looked_at_again_but_its_place_is() -> None:
    first, wrong = Value("relu", (X,), F), Value("relu", (X,), G)
    sound: set[Value] = set()
    with pytest.raises(InternalError):
        verify(Graph("g", (X,), (first, wrong), ()), sound)
    assert sound == {first}
    verify(Graph("g", (X,), (wrong,), ()), {wrong})
    with pytest.raises(InternalError, match="neither an input nor computed before"):
        verify(Graph("g", (), (first,), ()), {first})


def test_normalisation_writes_its_statistics_only_while_it_trains() -> None:
    statistics = tuple(Value("input", (), F, name=name) for name in "abcd")
    image = Value("input", (), contiguous(torch.float32, (3, 2)), name="i")
    gives = TupleType((contiguous(torch.float32, (3, 2)), F, F))
    for training in (True, False):
        call = library(
            *map(Operand, range(5)),
            training,
            0.1,
            1e-5,
            of=(image, *statistics),
            gives=gives,
            target="aten._native_batch_norm_legit.default",
        )
        found = problems_of(Graph("g", (image, *statistics), (call,), ()))
        assert len(found) == training
        assert all("writes its argument running_mean, running_var" in text for text in found)
