"""Equal values are computed once; values that only look equal are not."""

import pytest
import torch

from weft.ir.parser import parse_graph
from weft.passes.cse import content_of, share_common_subexpressions


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (1.0, 1 + 0j),
        (0j, complex(-0.0, 0.0)),
        ((1, 2), (1, 2.0)),
        (torch.float32, "f32"),
    ],
)
def test_attributes_that_python_finds_equal_may_differ(one: object, other: object) -> None:
    assert content_of(one) != content_of(other)
    assert content_of(one) == content_of(one)


def test_nan_equals_itself_as_an_attribute() -> None:
    assert content_of(float("nan")) == content_of(float("nan"))
    assert content_of(torch.tensor([float("nan")])) == content_of(torch.tensor([float("nan")]))


def test_large_constants_are_one_only_if_they_are_the_same_tensor() -> None:
    text = """graph g() {
      %0: f32[20000] = constant #0
      %1: f32[20000] = constant #1
      %2: f32[20000] = add %0, %1
      return %2
    }"""
    large = torch.zeros(20_000)
    graph = parse_graph(text, [large, large.clone()])
    assert share_common_subexpressions(graph) is graph
    assert len(share_common_subexpressions(parse_graph(text, [large, large])).values) == 2


def test_values_of_different_strides_are_different() -> None:
    graph = parse_graph(
        """graph g(%x: f32[2,2]) {
             %0: f32[2,2] = exp %x
             %1: f32[2,2]{1,2} = exp %x
             %2: f32[2,2] = add %0, %1
             return %2
           }"""
    )
    assert share_common_subexpressions(graph) is graph


def test_chains_are_shared_in_one_run() -> None:
    graph = parse_graph(
        """graph g(%x: f32[2]) {
             %0: f32[2] = exp %x
             %1: f32[2] = sin %0
             %2: f32[2] = exp %x
             %3: f32[2] = sin %2
             %4: f32[2] = sub %1, %3
             return %4
           }"""
    )
    after = share_common_subexpressions(graph)
    assert [value.op for value in after] == ["exp", "sin", "sub"]
