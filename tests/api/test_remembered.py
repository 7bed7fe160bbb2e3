"""Functions that remember their results (functools.lru_cache) run once for each of their arguments, as in eager."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.ways import Work, assert_every_way, difference
from torch import Tensor, nn

import weft
from weft.config import overrides

ONES = [((torch.ones(3),), {})] * 4


class Case:
    """A function that remembers, what it does beside, and code that calls it."""

    def __init__(self, call: Callable[[Case, Tensor], Any], **limit: Any) -> None:
        self.calls: list[Any] = []
        self.scale = 1.0
        self.call = call

        @functools.lru_cache(**limit)
        def told(*arguments: Any, **keywords: Any) -> Any:
            self.calls.append((arguments, tuple(keywords)))
            return torch.randn(3) * self.scale + len(self.calls)

        self.told = told

    def __call__(self, x: Tensor) -> Any:
        return self.call(self, x)


def noise(case: Case, x: Tensor) -> Tensor:
    return x * case.told(3)


def two(case: Case, x: Tensor) -> Tensor:
    return x * case.told("a") - torch.rand(3) - case.told("b", key=2)


def given_back(case: Case, x: Tensor) -> Any:
    return x + 1, case.told(1)


def written(case: Case, x: Tensor) -> Tensor:
    case.told(1).add_(x)
    return case.told(1) * 2


def by_size(case: Case, x: Tensor) -> Tensor:
    return x + case.told(len(x)).sum()


def of_a_tensor(case: Case, x: Tensor) -> Tensor:
    return x + case.told(x)


CALLS = {function.__name__: function for function in (noise, two, given_back, by_size, of_a_tensor)}


@pytest.mark.parametrize("way", ["hybridize", "step"])
@pytest.mark.parametrize("limit", [{"maxsize": None}, {"maxsize": 1}, {"maxsize": 4, "typed": True}], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_what_was_found_once_is_found_again(name: str, limit: dict[str, Any], way: str) -> None:
    def make() -> Work:
        case = Case(CALLS[name], **limit)

        def before(number: int) -> None:
            case.scale = number + 1.0  # which nobody sees who asks again

        return Work(case, ONES, watched=case.calls, before=before)

    with overrides(whole="off"):
        assert_every_way(make, way)


@pytest.mark.parametrize("way", ["library", "step"])
@pytest.mark.parametrize("limit", [{}, {"maxsize": None}], ids=str)
def test_what_others_asked_for_stays_and_what_is_cleared_is_found_anew(limit: dict[str, Any], way: str) -> None:
    def make() -> Work:
        case = Case(noise, **limit)
        first = case.told(7)

        def before(number: int) -> None:
            assert case.told(7) is first or number > 2
            if number == 2:
                case.told.cache_clear()

        return Work(case, ONES, watched=case.calls, before=before)

    assert_every_way(make, way)


@pytest.mark.parametrize("limit", [{"maxsize": 1}, {"maxsize": 2}], ids=str)
def test_what_a_function_has_forgotten_is_found_anew(limit: dict[str, Any]) -> None:
    def make() -> Work:
        case = Case(noise, **limit)

        def before(number: int) -> None:
            if number > 1:
                case.told(number)
                case.told(-number)

        return Work(case, ONES * 2, watched=case.calls, before=before)

    with overrides(whole="off"):
        assert_every_way(make, "hybridize")


@pytest.mark.parametrize("way", ["hybridize", "library"])
def test_a_remembered_tensor_may_be_written(way: str) -> None:
    assert difference(lambda: Work(Case(written, maxsize=None), ONES), way) is None


@pytest.mark.parametrize("limit", [{}, {"maxsize": None}], ids=str)
def test_a_remembered_dictionary_may_change(limit: dict[str, Any]) -> None:
    def make() -> Work:
        @functools.lru_cache(**limit)
        def settings(name: str) -> dict[str, float]:
            return {name: 1.0}

        def function(x: Tensor) -> Tensor:
            return x * settings("scale")["scale"]

        def before(number: int) -> None:
            settings("scale")["scale"] = number / 2

        return Work(function, ONES, before=before)

    assert_every_way(make, "hybridize", "lazy", "step")


class Method(nn.Module):
    """A method that remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    @functools.cache  # noqa: B019 - people write it
    def row(self, size: int) -> Tensor:
        self.calls.append(size)
        return torch.randn(size)

    def forward(self, x: Tensor) -> Tensor:
        return self.row(len(x)) * x


@pytest.mark.parametrize("way", ["hybridize", "library", "step"])
def test_methods_remember_too(way: str) -> None:
    def make() -> Work:
        net = Method()
        return Work(net, [((torch.ones(size),), {}) for size in (3, 3, 4, 3, 4, 4)], watched=net.calls)

    assert_every_way(make, way)


def test_a_function_that_remembers_is_a_program_from_the_second_call_on() -> None:
    case = Case(noise)
    hybrid, x = weft.hybridize(case.__call__, whole=True), torch.ones(3)
    found = [hybrid(x) for _ in range(4)]
    assert hybrid.traces == 1
    assert all(torch.equal(one, found[0]) for one in found)
    assert len(case.calls) == 1


def test_a_program_that_is_asked_for_before_any_call_has_what_functions_remember() -> None:
    case, x = Case(noise), torch.ones(3)
    hybrid = weft.hybridize(case.__call__)
    weft.program(hybrid, x)
    assert case.told.cache_info().currsize == 1
    assert torch.equal(hybrid(x), case.told(3))
    assert hybrid.traces == 1


def test_a_function_that_is_asked_for_something_else_each_time_runs_by_python() -> None:
    hybrid = weft.hybridize(Case(of_a_tensor).__call__)
    with overrides(whole="off"):
        for _ in range(5):
            hybrid(torch.ones(3))
    assert "remembers its results" in str(weft.explain(hybrid))


def clearing(case: Case, x: Tensor) -> Any:
    case.told.cache_clear()
    return x + case.told(1)


def telling(case: Case, x: Tensor) -> Any:
    return x + case.told(1), case.told.cache_info().currsize


@pytest.mark.parametrize("function", [clearing, telling])
def test_code_that_asks_a_cache_itself_runs_by_python(function: Callable[[Case, Tensor], Any]) -> None:
    def make() -> Work:
        return Work(case := Case(function), ONES, watched=case.calls)

    with overrides(whole="off"):
        assert difference(make, "hybridize") is None
    assert "hybridize" in assert_every_way(make, "hybridize", refused=["hybridize"])


class Recipe:
    """What a library makes of a pattern."""

    def __init__(self, parts: list[int]) -> None:
        self.parts = parts


LIBRARY = """
def reshaped(x, patterns):
    made = patterns.recipe("a bb")
    try:
        sizes, _ = patterns.layout(made, tuple(x.shape))
    except TypeError:  # sizes that have no hash
        sizes = [x.shape[0] * made.parts[0], *x.shape[1:]]
    return (x * 2).reshape(sizes)
"""
SPACE: dict[str, Any] = {"__name__": "library"}
exec(compile(LIBRARY, "/usr/lib/python3/site-packages/library.py", "exec"), SPACE)


class Patterns:
    """Functions that remember what they make of patterns and sizes, as libraries of notations do."""

    def __init__(self, seen: Callable[[Any], None] = lambda _: None) -> None:
        @functools.lru_cache(256)
        def recipe(pattern: str) -> Recipe:
            return Recipe([len(part) for part in pattern.split()])

        @functools.lru_cache(1024)
        def layout(made: Recipe, shape: tuple[int, ...]) -> tuple[list[int], dict[int, int]]:
            seen(shape)
            return [shape[0] * made.parts[0], *shape[1:]], {}

        self.recipe, self.layout = recipe, layout

    def __call__(self, x: Tensor) -> Tensor:
        found: Tensor = SPACE["reshaped"](x, self)
        return found


def test_what_functions_find_out_besides_tensors_they_find_out_as_code_is_traced() -> None:
    patterns = Patterns()
    hybrid = weft.hybridize(patterns.__call__, whole=True)
    for size in (4, 5, 6, 7, 9, 11, 13):
        x = torch.randn(size, 3)
        assert torch.equal(hybrid(x), x * 2)
    assert hybrid.traces <= 3
    assert patterns.recipe.cache_info().currsize == 1


def test_a_function_that_does_more_than_to_find_something_out_runs_once() -> None:
    def make() -> Work:
        seen: list[Any] = []
        calls = [((torch.ones(size, 3),), {}) for size in (4, 4, 5, 5, 4, 6, 7)]
        return Work(Patterns(seen.append), calls, watched=seen)

    with overrides(whole="off"):
        assert_every_way(make, "hybridize")


def test_what_a_function_has_found_out_may_change_later() -> None:
    def make() -> Work:
        patterns = Patterns()

        def before(number: int) -> None:
            if number == 2:
                patterns.recipe("a bb").parts[0] = 1 + number - number
            if number == 3:
                patterns.recipe.cache_clear()

        return Work(patterns, [((torch.ones(6, 3),), {})] * 5, before=before)

    assert_every_way(make, "hybridize")


def test_what_a_function_asks_for_once_is_no_obstacle() -> None:
    @functools.lru_cache
    def started() -> float:
        return time.time()

    hybrid, x = weft.hybridize(lambda x: x * started(), whole=True), torch.ones(3)
    found = [hybrid(x) for _ in range(4)]
    assert hybrid.traces == 1
    assert all(torch.equal(one, x * started()) for one in found)


def test_what_is_remembered_for_each_size_is_found_for_each_size() -> None:
    @functools.lru_cache(32)
    def mask(size: int) -> Tensor:
        return torch.arange(size)[None] * 2.0

    hybrid = weft.hybridize(lambda x: x + mask(x.shape[1]))
    with overrides(programs_at_once=9):
        for size in (3, 4, 5, 6, 7) * 2:
            x = torch.ones(2, size)
            assert torch.equal(hybrid(x), x + mask(size))
    assert len(hybrid.programs) == 5
    assert not hybrid.refused
