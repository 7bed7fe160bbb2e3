"""Equal values are computed once, and what nobody needs goes; what draws at random, checks or writes stays."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from tests.passes.runs import assert_same

import weft
from weft.config import overrides
from weft.ir.parser import parse_graph
from weft.passes.redundancy import content_of, remove_dead_code, share_common_subexpressions
from weft.passes.rewrite import has_effect, is_reproducible


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


def test_random_numbers_drawn_for_nothing_still_advance_the_generator() -> None:
    graph = parse_graph(
        """graph g(%x: f32[4]) {
             %0: f32[4] = library aten.rand_like.default(%x)
             %1: f32[4] = update aten.normal_.default(!0) on !0 = %x
             %2: (f32[4], bool[4]) = library aten.native_dropout.default(%x, 0.5, True)
             %3: f32[4] = exp %x
             %4: f32[4] = library aten.rand_like.default(%x)
             return %4
           }"""
    )
    after = remove_dead_code(graph)
    assert len(after.values) == 4
    assert_same(graph, after, [torch.ones(4)])


def test_what_refuses_an_index_stays_unless_it_is_refused_anyway() -> None:
    graph = parse_graph(
        """graph g(%x: f32[5,3], %i: i64[4,3], %j: i64[4,3]) {
             %0: f32[4,3] = library aten.gather.default(%x, 0, %i)
             %1: f32[5,3] = library aten.scatter.value(%x, 0, %i, 0)
             %2: f32[5,3] = library aten.scatter.value(%x, 0, %j, 0)
             %3: f32[5,3] = library aten.scatter.value(%x, 1, %i, 0)
             %4: f32[4,3] = library aten.gather.default(%x, 0, %i)
             %5: f32[4,3] = library aten.gather.default(%x, 0, %j)
             return %4
           }"""
    )
    kept = remove_dead_code(graph).values
    assert [graph.values.index(value) for value in kept] == [2, 3, 4]


ONES = torch.ones(3)
PLACES = torch.tensor([1, 1]), torch.tensor([0, 7])
REFUSING: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor, torch.Tensor]] = {
    "index_add_": (lambda i: torch.zeros(2).index_add_(0, i, ONES[:2]), *PLACES),
    "scatter_": (lambda i: torch.zeros(2).scatter_(0, i, 1.0), *PLACES),
    "setitem": (lambda i: torch.zeros(2).__setitem__(i, 1.0), *PLACES),
    "put": (lambda i: ONES.put(i, ONES[:2]), *PLACES),
    "floor_divide_": (lambda i: torch.zeros(2, dtype=torch.int64).floor_divide_(i), *PLACES),
    "embedding_bag": (lambda i: F.embedding_bag(i, torch.ones(3, 2), torch.tensor([0])), *PLACES),
    "multi_margin_loss": (lambda i: F.multi_margin_loss(torch.ones(2, 3), i), *PLACES),
    "one_hot": (F.one_hot, torch.tensor([1, 1]), torch.tensor([-1, 1])),
    "masked_scatter": (lambda i: ONES[:2].masked_scatter(i == 1, ONES[:1]), torch.tensor([0, 1]), torch.tensor([1, 1])),
    "eigh": (torch.linalg.eigh, torch.eye(3), torch.full((3, 3), float("nan"))),
}


@pytest.mark.parametrize("name", REFUSING)
@pytest.mark.parametrize("whole", [True, False])
def test_what_nobody_reads_refuses_its_data_as_in_eager(name: str, whole: bool) -> None:
    refusing, right, wrong = REFUSING[name]

    def function(x: torch.Tensor, data: torch.Tensor) -> Any:
        found = refusing(data)
        return (x + 1, found) if whole else x + 1

    hybrid, x = weft.hybridize(function, whole=False), torch.ones(3)
    for _ in range(2):
        torch.testing.assert_close(hybrid(x, right), function(x, right))
        with pytest.raises((IndexError, RuntimeError)) as eagers:
            function(x, wrong)
        with pytest.raises(type(eagers.value)):
            hybrid(x, wrong)


def test_an_index_that_one_operator_refuses_and_another_wraps_around_is_refused() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.index_select(0, i)
        return x.index_fill(0, i, 2.0) + 1

    hybrid, x = weft.hybridize(function), torch.ones(3, 2)
    assert torch.equal(hybrid(x, torch.tensor([1])), function(x, torch.tensor([1])))
    for _ in range(2):
        with pytest.raises(IndexError):
            hybrid(x, torch.tensor([-1]))


def test_a_setting_of_the_random_state_stays_with_what_it_sets() -> None:
    graph = parse_graph("graph g() { %0: u8[5056] = random_state %1: nothing = set_random_state %0 return }")
    assert remove_dead_code(graph) is graph


def test_a_result_of_several_keeps_the_operator_but_not_the_other_items() -> None:
    graph = parse_graph(
        """graph g(%x: f32[4]) {
             %0: (f32[4], i64[4]) = library aten.sort.default(%x)
             %1: f32[4] = item %0, index=0
             %2: i64[4] = item %0, index=1
             return %2
           }"""
    )
    assert [value.attributes.get("index") for value in remove_dead_code(graph)] == [None, 1]


def test_effects_and_memory_nobody_wrote_are_told_apart() -> None:
    graph = parse_graph(
        """graph g(%x: f32[4]) {
             %0: f32[4] = library aten.rand_like.default(%x)
             %1: f32[4] = library aten.empty_like.default(%x)
             %2: f32[4] = library aten.exp.default(%x)
             %3: f32[4] = exp %x
             return
           }"""
    )
    assert [has_effect(value) for value in graph] == [True, False, False, False]
    assert [is_reproducible(value) for value in graph] == [False, False, True, True]


SEVERAL = {
    "sort": lambda x: x.sort(-1).values,
    "argsort": lambda x: x.argsort(),
    "max": lambda x: x.max(-1).values,
    "topk": lambda x: x.topk(2).indices,
    "qr": lambda x: torch.linalg.qr(x)[0],
    "var_mean": lambda x: torch.var_mean(x, 0)[1],
    "a view of one": lambda x: x.sort(-1).values.t(),
}


@pytest.mark.parametrize("codegen", ["native", "library"])
@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("grad", [False, True])
def test_results_of_equal_operators_are_memory_of_their_own(name: str, codegen: str, grad: bool) -> None:
    one = SEVERAL[name]
    x = torch.tensor([[3.0, 1.0, 2.0], [5.0, 7.0, 6.0], [8.0, 9.0, 0.0]], requires_grad=grad)
    with overrides(codegen=codegen):
        first, again, third, hidden = weft.hybridize(lambda x: (one(x), one(x), one(x), one(x) + one(x)), whole=True)(x)
    assert len({tensor.data_ptr() for tensor in (first, again, third)}) == 3
    with torch.no_grad():
        first.zero_()
    assert torch.equal(again, one(x))
    assert torch.equal(third, one(x))
    assert torch.equal(hidden, one(x) + one(x))


def test_an_operator_with_several_results_is_one_where_nobody_sees_two_of_the_same() -> None:
    def count(*parts: Callable[[Any], torch.Tensor]) -> int:
        program = weft.program(lambda x: [part(x.sort(-1)) for part in parts], torch.randn(2, 3))
        calls = [value.attributes["call"].target for value in program.graph.values if value.op == "library"]
        return calls.count("aten.sort.default")

    assert count(lambda found: found.values, lambda found: found.indices) == 1
    assert count(lambda found: found.values, lambda found: found.values + 1) == 1
    assert count(lambda found: found.values, lambda found: found.values, lambda found: found.indices) == 2
