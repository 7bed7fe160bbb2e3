"""Lifting keeps types, layouts, effects, writes and which results share memory; what it does not know it leaves."""

from typing import Any

import pytest
import torch
from tests.trace.lift_checks import check, fresh, inputs_of, remaining, traced_call

from weft.ir import library
from weft.ir.graph import Graph
from weft.ir.interpreter import interpret
from weft.ir.verifier import verify
from weft.trace.lift.lift import lift
from weft.trace.python_state.reachable import find_state
from weft.trace.request import Request
from weft.trace.several_traces import trace_program


def lifted(function: Any, *arguments: Any) -> Graph:
    """Lift the trace of a call, after checking that it means the same."""
    traced = traced_call(function, *arguments)
    found = check(traced.graph, inputs_of(traced))
    assert found.problems == ()
    return found.graph


def ops(graph: Graph) -> list[str]:
    return [value.op for value in graph]


def test_a_formula_becomes_small_ops() -> None:
    graph = lifted(lambda x, y: torch.relu(x * 2 + y), torch.randn(3), torch.randn(3))
    assert ops(graph) == ["constant", "expand", "mul", "add", "relu"]


def test_an_operator_without_a_rule_stays() -> None:
    graph = lifted(lambda x: torch.cumsum(x + 1, 0), torch.randn(3))
    assert remaining(graph) == ("aten.cumsum.default",)


def test_complex_numbers_stay_with_the_library() -> None:
    graph = lifted(lambda x: x + 1, torch.randn(3, dtype=torch.complex64))
    assert remaining(graph) == ("aten.add.Tensor",)


def test_every_new_value_has_the_line_of_the_operator() -> None:
    traced = traced_call(lambda x: torch.softmax(x, 0), torch.randn(3))
    places = {value.place for value in traced.graph}
    assert {value.place for value in lift(traced.graph)} == places


def test_half_precision_rounds_once_an_operator() -> None:
    graph = lifted(lambda x, y: x + y * 0.3, *torch.randn(2, 50, dtype=torch.bfloat16))
    casts = [value.attributes["dtype"] for value in graph if value.op == "cast"]
    assert casts.count(torch.bfloat16) == 2


def test_declared_strides_stay() -> None:
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    graph = lifted(lambda x: (x + 1, torch.nn.functional.max_pool2d(x, 2)), x)
    assert all(result.value.type.strides[1] == 1 for result in graph.results)


def test_a_copy_of_an_input_stays_a_copy() -> None:
    x = torch.randn(3)
    traced = traced_call(lambda x: x.clone(), x)
    [result] = lift(traced.graph).results
    assert result.value.op == "concat"


def test_a_view_of_a_copy_does_not_become_a_view_of_the_input() -> None:
    x = torch.randn(4)
    traced = traced_call(lambda x: x.clone().view(2, 2), x)
    graph = lift(traced.graph)
    assert "concat" in ops(graph)


def test_a_copy_that_nobody_sees_costs_nothing() -> None:
    graph = lifted(lambda x: x.clone() * x, torch.randn(4))
    assert ops(graph) == ["mul"]


def test_new_memory_is_no_constant() -> None:
    traced = traced_call(lambda: torch.zeros(3))
    assert "concat" in ops(lift(traced.graph))


def test_memory_that_as_strided_looks_into_keeps_its_views() -> None:
    graph = lifted(lambda x: (x * 2)[1:].as_strided((2,), (1,), 0), torch.randn(4))
    assert "aten.slice.Tensor" in remaining(graph)


@pytest.mark.parametrize(
    "look",
    [
        lambda y: y.as_strided((12,), (1,)),
        lambda y: y.as_strided((3, 1, 4), (4, 77, 1)),
        lambda y: y.as_strided((2, 6), (6, 1), 0),
        lambda y: y.sum(1, keepdim=True).as_strided((3, 1, 1), (1, 3, 3)),
    ],
)
def test_as_strided_that_reads_a_tensor_row_by_row_is_a_reshape(look: Any) -> None:
    graph = lifted(lambda x: look(x * 2) + 1, torch.randn(3, 4))
    assert remaining(graph) == ()
    alone = lifted(lambda x: look(x * 2), torch.randn(3, 4))
    [result] = alone.results
    assert result.value.type.strides == look(torch.zeros(3, 4)).stride()


@pytest.mark.parametrize(
    "look",
    [
        lambda y: y.as_strided((4, 3), (1, 4)),
        lambda y: y.as_strided((4, 2, 2), (2, 1, 1)),
        lambda y: y.as_strided((6,), (1,)),
        lambda y: y.as_strided((6,), (2,)),
        lambda y: y.t().as_strided((12,), (1,)),
        lambda y: y[1:].as_strided((8,), (1,), 0),
        lambda y: y[1:].as_strided((2, 2), (4, 1), 1),
    ],
)
def test_as_strided_that_reads_other_places_stays_with_the_library(look: Any) -> None:
    graph = lifted(lambda x: look(x * 2) + 1, torch.randn(3, 4))
    assert "aten.as_strided.default" in remaining(graph)


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.as_strided((2, 6), (6, 1)).mul_(3),
        lambda y: y.as_strided((3, 4), (4, 1), 0)[1].fill_(7),
        lambda y: y.view(-1).as_strided((3, 1, 4), (4, 9, 1))[:, 0, 1:].zero_(),
        lambda y: y.t().as_strided((12,), (1,))[2:5].zero_(),
        lambda y: y[1:].as_strided((4,), (1,), 0).zero_(),
    ],
)
def test_writes_through_as_strided_mean_what_they_say(write: Any) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        view = y.view(-1)
        write(y)
        return y + 1, view * 3

    lifted(function, torch.randn(3, 4))


def test_global_pooling_of_images_laid_out_channels_last_has_no_call_of_the_library_in_either_direction() -> None:
    images = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    traced = traced_call(lambda x: torch.nn.functional.adaptive_avg_pool2d(x * 2, 1), images)
    graph = lift(traced.graph)
    assert remaining(graph) == ()
    assert graph.results[0].value.type.strides == torch.nn.functional.adaptive_avg_pool2d(images, 1).stride()


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1),
        lambda x: x[0].mul_(3),
        lambda x: x[:, 1:3].fill_(7),
        lambda x: x[:, ::2].copy_(torch.ones(4, 2)),
        lambda x: x.t()[1].zero_(),
        lambda x: x.view(-1)[3:9].clamp_(0, 1),
        lambda x: x.diagonal().fill_(0),
        lambda x: x.unbind(1)[2].neg_(),
        lambda x: x.split(2)[1].sqrt_(),
        lambda x: x.permute(1, 0)[1:].exp_(),
        lambda x: x.unsqueeze(0).transpose(1, 2)[0, 0].lerp_(torch.ones(4), 0.25),
        lambda x: x.index_put_((torch.tensor([0, 2]),), torch.tensor(5.0)),
        lambda x: x.masked_fill_(x > 0, 9.0),
        lambda x: x[0].copy_(x[1]),
    ],
)
def test_writes_through_views_become_new_values(write: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        write(x)
        return x * 2

    graph = lifted(program, torch.randn(4, 4))
    assert remaining(graph) == ()
    assert len(graph.writes) == 1


def test_a_list_of_tensors_is_written_one_by_one() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> None:
        torch._foreach_mul_([x, y], 2.0)
        torch._foreach_add_([x, y], [torch.ones(3), torch.ones(2)], alpha=0.5)

    graph = lifted(program, torch.randn(3), torch.randn(2))
    assert remaining(graph) == ()
    assert len(graph.writes) == 2


def test_a_list_whose_later_reads_see_earlier_writes_stays_an_update() -> None:
    def program(x: torch.Tensor) -> None:
        torch._foreach_add_([x[0], x[1]], [x[1], x[0]])

    assert remaining(lifted(program, torch.randn(2, 3))) == ("aten._foreach_add_.List",)


def test_a_write_that_no_rule_covers_stays_an_update() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum_(0)

    assert remaining(lifted(program, torch.randn(3))) == ("aten.cumsum_.default",)


def test_an_integer_takes_a_quotient_as_eager_does() -> None:
    x = torch.arange(5)
    assert ops(lifted(lambda x: x / 2, x)).count("cast") == 1


def test_numbers_that_change_from_call_to_call_stay_inputs() -> None:
    def function(x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.add(x * factor, x, alpha=factor).clamp(max=factor)

    request = Request(function, (torch.randn(4), 0.5), {}, "free", find_state(function), numbers=frozenset({1}))
    traced = trace_program(request)
    graph = lift(traced.graph)
    verify(graph)
    assert remaining(graph) == ()
    x = torch.randn(4)
    [result] = interpret(graph, [x, 0.25])
    torch.testing.assert_close(result, function(x, 0.25))


def test_running_statistics_move_as_in_eager() -> None:
    net = torch.nn.BatchNorm2d(3)
    traced = traced_call(net, torch.randn(4, 3, 5, 5))
    graph = lift(traced.graph)
    assert remaining(graph) == ()
    given = fresh(inputs_of(traced))
    interpret(graph, given)
    net(traced.inputs[0].tensor.detach())
    state = {id(tensor): tensor for tensor in net.buffers()}
    for entry, after in zip(traced.inputs, given, strict=True):
        if id(entry.tensor) in state:
            torch.testing.assert_close(after, state[id(entry.tensor)])


def test_dropout_draws_the_same_numbers_in_the_same_order() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.dropout(x * 2, 0.5), torch.rand(3)

    traced = traced_call(program, torch.randn(8))
    graphs = (lift(traced.graph), traced.graph)
    targets, before = ([name for name in remaining(graph) if library.is_random(name)] for graph in graphs)
    assert targets == before
    x = torch.randn(8)
    torch.manual_seed(3)
    expected = interpret(traced.graph, [x])
    torch.manual_seed(3)
    assert all(map(torch.equal, interpret(lift(traced.graph), [x]), expected))
