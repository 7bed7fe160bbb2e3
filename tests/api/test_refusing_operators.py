"""Behaviour where eager refuses dtypes or data, or answers in a dtype that only its own rules tell."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.api.agreement import copied
from tests.api.refusing_operators import CASES, Case
from tests.conformance.compare import form_difference
from tests.conformance.contestants import lazily
from torch import nn
from torch.utils import _pytree as pytree

import weft
from weft.config import overrides

pytestmark = pytest.mark.filterwarnings("ignore")  # eager warns of divisions and of memory that overlaps, and so do we
Way = Callable[[Callable[..., Any]], Callable[..., Any]]


def outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What a call gives, or its exception."""
    torch.manual_seed(5)
    try:
        return function(*copied(arguments))
    except Exception as error:  # noqa: BLE001  whatever it is, the other way has to raise it too
        return error


def assert_same_outcome(found: Any, expected: Any) -> None:
    if isinstance(expected, Exception):
        assert isinstance(found, type(expected)), found
        assert str(expected).splitlines()[0] in str(found)
        return
    if isinstance(found, Exception):
        raise found
    for ours, theirs in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        assert form_difference(theirs, ours) is None
        torch.testing.assert_close(
            ours, theirs, rtol=1e-2 if theirs.dtype.itemsize < 4 else 1e-5, atol=1e-6, equal_nan=True
        )


def whole_program(function: Callable[..., Any]) -> Callable[..., Any]:
    return weft.hybridize(function)


def lazy(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: lazily(function, *arguments)


WAYS: dict[str, tuple[Way, str]] = {
    "in machine code": (whole_program, "native"),
    "in library calls": (whole_program, "library"),
    "lazily": (lazy, "native"),
    "lazily in library calls": (lazy, "library"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", WAYS)
def test_a_call_gives_or_raises_what_eager_does(way: str, name: str) -> None:
    make, codegen = WAYS[way]
    case = CASES[name]
    if make is lazy and "nobody_uses" in name:
        pytest.skip("lazily nobody waits for it")
    expected = outcome(case.function, case.arguments)
    with overrides(codegen=codegen):
        ours = make(case.function)
        for _ in range(2):
            assert_same_outcome(outcome(ours, case.arguments), expected)


class Weighted(nn.Module):
    """The sum of what a function gives, times a weight that is trained."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, *arguments: Any) -> torch.Tensor:
        leaves = [leaf for leaf in pytree.tree_leaves(self.function(*arguments)) if not leaf.is_complex()]
        return self.weight * torch.stack([leaf.detach().double().nan_to_num().sum() for leaf in leaves]).sum()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_training_step_gives_or_raises_what_eager_does(case: Case) -> None:
    net = Weighted(case.function)
    tensors = tuple(argument for argument in case.arguments if isinstance(argument, torch.Tensor))
    plain = case.arguments[len(tensors) :]

    def eager(*arguments: Any) -> Any:
        return net(*arguments, *plain).detach()

    net_of_tensors = Weighted(lambda *arguments: case.function(*arguments, *plain))
    step = weft.step(net_of_tensors, lambda found, _: found, torch.optim.SGD(net_of_tensors.parameters(), 0.0))
    expected = outcome(eager, tensors)
    found = outcome(lambda *arguments: step(*arguments, torch.zeros(1)), tensors)
    assert_same_outcome(found, expected)


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@contextmanager
def silently() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


SOME = (
    "divisions-floor_divide_by_zero",
    "writes-float_into_whole",
    "mixtures-linear",
    "data-one_hot_of_minus_one",
    "numbers-byte_plus_2147483648",
    "layouts-attention_2_8_4_1",
)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", SOME)
def test_a_graph_of_torch_compile_gives_or_raises_what_eager_does(name: str) -> None:
    case = CASES[name]
    expected = outcome(case.function, case.arguments)
    with silently():
        found = outcome(torch.compile(case.function, backend="weft"), case.arguments)
    if isinstance(expected, Exception):  # Dynamo has a name of its own for what its own rules refuse
        assert isinstance(found, Exception)
    else:
        assert_same_outcome(found, expected)
