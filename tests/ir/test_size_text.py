"""Texts in which sizes vary say what they are made of, and read back; what has no meaning is told."""

from __future__ import annotations

import pytest

from weft.ir.extents import Extent
from weft.ir.lexer import ParseError
from weft.ir.parser import parse_graph
from weft.ir.printer import print_graph
from weft.ir.size_text import largest_sizes, with_inputs
from weft.ir.types import TensorType
from weft.ir.verifier import problems_of

TEXT = """graph tail(%x: f32[batch,length], %y: f32[batch*length,3], %batch: size(16), %length: size(24)) {
  %0: f32[batch,length-1]{length,1} = library aten.slice.Tensor(%x, 1, 1, length)
  %1: f32[(length+1)//2-1,batch] = library aten.zeros.default([(length+1)//2-1, batch])
  %2: f32[batch*length*2+7] = library aten.zeros.default([batch*length*2+7])
  %3: f32[((batch+1)//2)*((length+1)//2)+2] = library aten.zeros.default([((batch+1)//2)*((length+1)//2)+2])
  return %0, %1, %2, %3, %x via aten.slice.Tensor(_, 1, 0, length-1)
}
"""


def test_a_text_with_sizes_reads_back() -> None:
    graph = parse_graph(TEXT)
    assert print_graph(graph) == TEXT
    assert not problems_of(graph)
    assert {value.name: largest for value, largest in largest_sizes(graph.inputs).items()} == {
        "batch": 16,
        "length": 24,
    }


def test_types_know_what_they_are_for_the_largest_sizes() -> None:
    graph = parse_graph(TEXT)
    shapes = [value.type.shape for value in graph.values if isinstance(value.type, TensorType)]
    assert shapes == [(16, 23), (11, 16), (775,), (98,)]
    size = shapes[1][0]
    assert isinstance(size, Extent)
    batch, length = graph.inputs[2:]
    assert size.expression.value({batch: 2, length: 9}.__getitem__) == 4


def test_sizes_are_made_of_the_inputs_also_where_these_are_replaced() -> None:
    graph = parse_graph(TEXT)
    again = with_inputs(graph, {value: parse_graph(TEXT).inputs[place] for place, value in enumerate(graph.inputs)})
    assert print_graph(again) == TEXT
    assert {*largest_sizes(again.inputs)} == {*again.inputs[2:]}


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (TEXT.replace("%length: size(24)", "%other: size(24)"), "length does not fit"),
        (TEXT.replace("size(24)", "size(-4)"), "-4 does not fit"),
        (TEXT.replace("size(24)", "size(2)").replace("length-1", "length-3"), "does not fit"),
        (TEXT.replace("//2", "//0"), "0 does not fit"),
        (TEXT.replace("//2", "//length"), "length does not fit"),
        (TEXT.replace("batch*length*2+7", "*".join(["batch"] * 200)), "does not fit"),
        (TEXT.replace("batch*length*2+7", "(" * 100 + "batch" + ")" * 100), "does not fit"),
        (TEXT.replace("batch*length*2+7", "99999999999999999999*batch"), "does not fit"),
        (TEXT.replace("batch,length-1", "batch.x,length-1"), "does not fit"),
        (TEXT.replace("length)\n", "width)\n"), "width does not fit"),
    ],
)
def test_what_has_no_meaning_is_told_with_its_place(text: str, fact: str) -> None:
    with pytest.raises(ParseError, match=fact) as caught:
        parse_graph(text)
    assert "line" in str(caught.value)
