"""Behaviour of operators that are run once for real while tracing, where their dtypes are new."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import weft
from weft.trace.python_state.reachable import find_state
from weft.trace.request import Request
from weft.trace.results import rehearsal
from weft.trace.several_traces import trace_program
from weft.trace.traced import Traced


@pytest.fixture(autouse=True)
def nothing_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_checked", set())


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators that are run for real."""
    found: list[str] = []
    run = rehearsal._Rehearsal._run

    def noted(self: Any, *fill: float) -> Any:
        found.append(self.target)
        return run(self, *fill)

    monkeypatch.setattr(rehearsal._Rehearsal, "_run", noted)
    return found


def traced(function: Callable[..., Any], *arguments: Any) -> Traced:
    names = tuple("xyz"[: len(arguments)])
    return trace_program(Request(function, arguments, {}, "f", find_state(function), names))


def test_programs_of_single_floats_run_nothing_for_real(runs: list[str]) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    classes = torch.tensor([1, 2])
    traced(lambda x, y: functional.cross_entropy(net(x), y), torch.randn(2, 3, 6, 6), classes)
    assert set(runs) <= {"aten.add_.Tensor"}  # the number of batches, a whole number


def test_a_combination_of_dtypes_is_asked_once(runs: list[str]) -> None:
    x = torch.ones(3, dtype=torch.bfloat16)
    traced(lambda x: (x * x).exp() * x, x)
    traced(lambda x: x * x, torch.ones(4, dtype=torch.bfloat16))
    assert runs.count("aten.mul.Tensor") == 1


def test_another_dtype_or_number_is_asked_again(runs: list[str]) -> None:
    for x, number in ((torch.ones(3).half(), 1), (torch.ones(3).int(), 1), (torch.ones(3).int(), 2**31)):
        traced(lambda x, number=number: x + number, x)
    assert runs.count("aten.add.Tensor") == 3


def test_what_the_kernel_refuses_whatever_its_data_is_raised_while_tracing() -> None:
    with pytest.raises(RuntimeError, match="same dtype"):
        traced(torch.mm, torch.randn(2, 3), torch.randn(3, 2).half())


def test_what_only_some_data_make_the_kernel_refuse_is_traced() -> None:
    traced(lambda x, y: x // y, torch.tensor([1]), torch.tensor([0]))
    traced(torch.linalg.cholesky, torch.zeros(2, 2, dtype=torch.float64))
    traced(lambda p: torch.multinomial(p, 1), torch.zeros(3, dtype=torch.float64))


def test_code_that_expects_the_refusal_catches_it() -> None:
    def either(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        try:
            return x @ y
        except RuntimeError:
            return x @ y.float()

    x, y = torch.randn(2, 3), torch.randn(3, 2).half()
    torch.testing.assert_close(weft.hybridize(either, whole=False)(x, y), either(x, y))


def test_a_random_operator_leaves_the_generator_alone() -> None:
    x = torch.ones(3, dtype=torch.bfloat16)
    torch.manual_seed(3)
    traced(lambda x: functional.dropout(x, 0.5) + torch.rand_like(x), x)
    found = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(found, torch.rand(2))


def test_large_arguments_of_an_elementwise_operator_are_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    run = rehearsal._Rehearsal._run

    def noted(self: Any, *fill: float) -> Any:
        found = run(self, *fill)
        sizes.append(found.numel())
        return found

    monkeypatch.setattr(rehearsal._Rehearsal, "_run", noted)
    traced(lambda x: x * 2, torch.ones(1, dtype=torch.bfloat16).expand(1000, 1, 1000))
    assert sizes
    assert max(sizes) <= 4


def test_large_arguments_of_other_operators_repeat_one_element() -> None:
    traced(lambda x: x.narrow(1, 0, 2).sum(), torch.ones(1, dtype=torch.bfloat16).expand(1, 2**40))
    with pytest.raises(RuntimeError, match="same dtype"):
        traced(torch.mm, torch.ones(1).expand(1, 2**20), torch.ones(1, dtype=torch.float64).expand(2**20, 1))


def test_memory_that_another_operator_has_laid_out_is_not_made_up(runs: list[str]) -> None:
    layer = nn.LSTM(3, 4, batch_first=True)
    traced(lambda x: layer(x)[0].sum(), torch.randn(2, 5, 3))
    assert not [target for target in runs if "rnn" in target]


def test_a_kernel_that_takes_more_than_its_rule_is_believed() -> None:
    base = torch.arange(6)
    index = torch.tensor([True, False, True, False, True, False])
    function = lambda a, b: torch.ops.aten._unsafe_masked_index(a, b, [torch.zeros(6, dtype=torch.int64)], 0)  # noqa: E731
    assert torch.equal(weft.hybridize(function)(base, index), function(base, index))


def test_results_look_as_the_kernels_do_where_the_rule_says_otherwise() -> None:
    a, b = torch.tensor([0.5, 3.0]).bfloat16(), torch.tensor([0.0, 1.0])
    found = traced(functional.huber_loss, a, b)
    assert found.graph.results[0].value.type.dtype is torch.bfloat16


@pytest.mark.parametrize(("mode", "rank"), [("linear", 1), ("bilinear", 2), ("trilinear", 3), ("area", 3)])
def test_sizes_without_elements_are_refused_as_the_kernel_does(mode: str, rank: int) -> None:
    def larger(x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x, scale_factor=2, mode=mode)

    whole = (2, 3, *(4,) * rank)
    for place in range(rank + 2):  # no samples are taken, no channels are not
        x = torch.ones(*whole[:place], 0, *whole[place + 1 :])
        try:
            expected = larger(x)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=re.escape(str(error))):
                traced(larger, x)
        else:
            assert weft.hybridize(larger, whole=True)(x).shape == expected.shape


def test_a_result_without_elements_is_asked_for_too() -> None:
    with pytest.raises(RuntimeError, match="greater than 0"):
        traced(lambda x: functional.interpolate(x, size=(0, 4), mode="bilinear"), torch.ones(1, 2, 3, 3))


def test_one_combination_without_elements_tells_nothing_of_another(runs: list[str]) -> None:
    for shape in ((0, 2, 3, 3), (0, 2, 3, 4), (0, 2, 3, 3)):
        traced(lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), torch.ones(shape))
    assert runs.count("aten.upsample_bilinear2d.vec") + runs.count("aten.upsample_bilinear2d.default") == 2
