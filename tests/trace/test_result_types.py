"""Behaviour of the types of operators' results that one trace learns for the next."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from weft.errors import UsageError
from weft.ir.extents import extent_of_size
from weft.ir.graph import Value
from weft.ir.library import Call, Operand
from weft.ir.printer import print_graph
from weft.ir.types import NumberType, contiguous
from weft.trace.interception.capture import Interception
from weft.trace.python_state.reachable import find_state
from weft.trace.request import Request
from weft.trace.results.result_types import ResultTypes, question_of, rows_as_data, rows_from_data
from weft.trace.several_traces import trace_program
from weft.trace.traced import Traced

Function = Callable[..., Any]


def traced(function: Function, types: ResultTypes, *arguments: Any) -> Traced:
    names = tuple("xyz"[: len(arguments)])
    return trace_program(Request(function, arguments, {}, "f", find_state(function), names, result_types=types))


def text_of(found: Traced) -> str:
    graphs = [found.graph] if found.gradient is None else [found.graph, found.gradient.graph]
    return "\n".join(map(print_graph, graphs)) + str(found.leaves)


def again(types: ResultTypes) -> ResultTypes:
    """What the next process knows."""
    return ResultTypes(rows_from_data(json.loads(json.dumps(rows_as_data(types.used)))))


def views(x: torch.Tensor) -> Any:
    y = x[1:, ::2].transpose(0, 1)
    first, *rest = y.split(1)
    return y.expand(2, *y.shape), first[0, 1:], rest[0].unbind(1)[1].reshape(-1), y.contiguous(), y.diagonal()


def writes(x: torch.Tensor) -> Any:
    y = x * 2
    y[1] += x[0]
    y[:, 1:].mul_(3)
    x.add_(1)
    return y, y[2:]


def numbers(x: torch.Tensor) -> Any:
    count = x.argsort().flatten()
    return count * 1, count * 1.0, count * True, count + count, count / 2, count // 2, x > 0, x.sum(), x.sum() * count


def layouts(x: torch.Tensor) -> Any:
    y = x.reshape(1, 2, 2, 5).to(memory_format=torch.channels_last)
    return y, y + 1, y.mean(1), y.permute(3, 2, 1, 0).sigmoid(), torch.cat([y, y], 1), y.new_zeros(0, 3) + 1


def made(x: torch.Tensor) -> Any:
    aten, known = torch.ops.aten, {"dtype": torch.float64, "device": torch.device("cpu")}
    whole = aten.arange(5, dtype=torch.int64, device=torch.device("cpu"))
    return x + aten.zeros([5], **known), whole * 2, aten.rand([4, 5], **known) * x, torch.full((4, 1), 2.5) + x


def odd(x: torch.Tensor) -> Any:
    z = torch.complex(x, x)
    return z.imag, z.real + 1, x.as_strided((2, 2), (1, 3), 1) * 2, x[1:].as_strided((2,), (1,), 3), x.int()


def losses(x: torch.Tensor) -> Any:
    y = functional.layer_norm(x.softmax(1), (5,))
    return functional.cross_entropy(y, torch.tensor([0, 1, 2, 3])), functional.log_softmax(y, 0).sort(1)


FUNCTIONS = (
    views,
    writes,
    numbers,
    layouts,
    made,
    odd,
    losses,
    nn.GRU(5, 3),
    nn.TransformerEncoderLayer(5, 1, 4).eval(),
)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: getattr(function, "__name__", "module"))
@pytest.mark.parametrize("gradient", [False, True])
def test_a_trace_that_asks_nobody_gives_the_same_program(function: Function, gradient: bool) -> None:
    x = torch.randn(4, 5)
    if gradient and function not in (writes, odd):
        x.requires_grad_()
    types = ResultTypes()
    with torch.set_grad_enabled(gradient):
        expected = text_of(traced(function, types, x))
        assert types.learned
        later = again(types)
        assert text_of(traced(function, later, x)) == expected
        assert not later.learned
        assert later.used == types.used


def test_what_was_learned_elsewhere_holds_for_other_sizes_of_nothing() -> None:
    types = ResultTypes()
    for size in (3, 4):
        found = traced(torch.tanh, types, torch.randn(size))
        assert found.graph.results[0].value.type.shape == (size,)
    assert types.learned == 2


def test_the_default_dtype_is_part_of_the_question() -> None:
    types, x = ResultTypes(), torch.arange(3)
    assert traced(torch.sin, types, x).graph.results[0].value.type.dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert traced(torch.sin, types, x).graph.results[0].value.type.dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_operators_without_tensors_are_known_where_they_say_what_they_make() -> None:
    def factories(x: torch.Tensor) -> torch.Tensor:
        aten, cpu = torch.ops.aten, torch.device("cpu")
        aten.zeros([3])
        aten.zeros([3], dtype=torch.float32)
        aten.zeros([3], device=cpu)
        return x + aten.zeros([3], dtype=torch.float32, device=cpu)

    types = ResultTypes()
    traced(factories, types, torch.ones(3))
    assert sum("aten.zeros" in question for question in types.used) == 1


def test_an_offset_is_counted_from_where_the_argument_begins() -> None:
    def second(x: torch.Tensor) -> torch.Tensor:
        y = x[3:]
        y[1] = 5.0  # a write tells where in the memory it was
        return y[1:]

    types = ResultTypes()
    base = torch.zeros(30)
    for start in (0, 7):
        window = base[start : start + 10]
        assert text_of(traced(second, types, window)) == text_of(traced(second, ResultTypes(), window))


@pytest.mark.parametrize(
    "data", [[], {"q": []}, {"q": ["one", []]}, {"q": ["two", [None]]}, {"q": ["one", [["f99", [], [], None, 0]]]}, 3]
)
def test_other_data_is_refused(data: object) -> None:
    with pytest.raises(UsageError, match="no rows of types"):
        rows_from_data(data)


def test_nothing_is_known_of_results_whose_sizes_vary() -> None:
    """What a rule decided by such sizes is a condition of the trace that asked, which a kept answer would leave out."""
    tensor = Interception(None).placeholder(contiguous(torch.float32, (9, 2)))  # type: ignore[arg-type]
    size = extent_of_size(Value("input", (), NumberType("int"), name="n"), 4)
    for sizes, is_known in (((4, 5), True), ((size, 5), False), ((size, 9 - size), False)):
        call = Call("aten.split_with_sizes.default", (Operand(0), sizes))
        assert (question_of(call, [tensor]) is not None) is is_known
