"""Code that catches exceptions goes on as in eager, also where Weft refuses it, or elements decide what raises."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.ways import Work, assert_every_way
from torch import Tensor, nn

import weft
from weft.config import overrides

Function = Callable[[Tensor], Any]
TABLE = nn.Embedding(5, 4)
ASKED: dict[str, Function] = {
    "branch": lambda x: 2.0 if x.sum() > 0 else 3.0,
    "number": lambda x: x.sum().item(),
    "list": lambda x: x.tolist()[0][0],
    "numpy": lambda x: float(x.numpy().sum()),
    "number of numpy": lambda x: float(np.asarray(x)[0, 0]),
    "clock": lambda x: time.time() * 0 + 2,
    "nonzero": lambda x: len(x.nonzero()),
    "version": lambda x: x._version,
    "address": lambda x: x.data_ptr() * 0 + 1,
    "storage": lambda x: x.untyped_storage()[0] * 0 + 1,
    "set": lambda x: x.set_(torch.zeros(3, 4)),
    "saved": lambda x: [torch.save(x, io.BytesIO()), 2][1],
    "made of one": lambda x: torch.tensor([x[0, 0], 1.0])[1],
}


@pytest.mark.parametrize("way", ["hybridize", "step"])
@pytest.mark.parametrize("caught", [RuntimeError, Exception])
@pytest.mark.parametrize("name", ASKED)
def test_what_weft_raises_into_traced_code_cannot_be_caught(name: str, caught: type[Exception], way: str) -> None:
    def make() -> Work:
        def function(x: Tensor) -> Tensor:
            try:
                return x * ASKED[name](x)
            except caught:
                return x * -1000

        return Work(function, [((torch.randn(3, 4),), {})] * 2)

    with overrides(whole="off"):
        assert_every_way(make, way)


def test_code_that_raises_something_else_instead_gets_the_refusal() -> None:
    def function(x: Tensor) -> Tensor:
        try:
            return x * x.numpy().sum()
        except RuntimeError as error:
            raise KeyError("no numbers") from error

    with pytest.raises(weft.UnsupportedError, match="NumPy"):
        weft.hybridize(function)(torch.ones(2))


def cholesky(x: Tensor) -> Tensor:
    for more in (1e-6, 1e-3, 10.0):
        try:
            return torch.linalg.cholesky(x @ x.t() - torch.eye(3) + more * torch.eye(3))
        except torch.linalg.LinAlgError:
            continue
    raise ValueError("not positive definite")


def suppressed(x: Tensor) -> Tensor:
    with contextlib.suppress(RuntimeError):
        return torch.inverse(x[:, :3] * 0)
    return x


def looked_up(x: Tensor) -> Tensor:
    try:
        return TABLE((x * 10).long().abs())
    except IndexError:
        return x


def indexed(x: Tensor) -> Tensor:
    return x[torch.tensor([0, 1, 7])]


def in_another_function(x: Tensor) -> Tensor:
    try:
        return indexed(x)
    except IndexError:
        return x * 2


def divided(x: Tensor) -> Tensor:
    try:
        return torch.ones(3, dtype=torch.long) // (x[:, 0] * 0).long()
    except:  # noqa: E722 - people write it
        return x


@pytest.mark.parametrize("way", ["hybridize", "step", "lazy"])
@pytest.mark.parametrize("function", [cholesky, suppressed, looked_up, in_another_function, divided])
def test_what_an_operator_raises_because_of_elements_is_caught_as_in_eager(function: Function, way: str) -> None:
    with overrides(whole="off"):
        assert_every_way(lambda: Work(function, [((torch.randn(3, 4),), {})] * 2), way)


def with_finally(x: Tensor) -> Tensor:
    try:
        y = torch.linalg.inv(x[:, :3] + 5 * torch.eye(3))
    finally:
        x = x + 1
    return y + x[:, :3]


def in_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.linalg.inv(x[:, :3] + 5 * torch.eye(3))


def outside_of_a_handler(x: Tensor) -> Tensor:
    try:
        y = x * 2
    except ValueError:
        y = x
    return torch.linalg.inv(y[:, :3] + 5 * torch.eye(3))


@pytest.mark.parametrize("function", [with_finally, in_no_grad, outside_of_a_handler])
def test_what_nobody_catches_is_a_program(function: Function) -> None:
    x, hybrid = torch.randn(3, 4), weft.hybridize(function, whole=True)
    assert torch.allclose(hybrid(x), function(x))
    assert hybrid.traces == 1


def copied_where_a_device_can(x: Tensor) -> Tensor:
    """As caches of transformers write keys: no device but one lacks the operator, and no element is the reason."""
    cache, rows = x.new_zeros(6, 4), torch.tensor([4, 0, 2])
    try:
        cache.index_copy_(0, rows, x)
    except NotImplementedError:
        cache[rows] = x * 1000
    try:
        return cache.index_select(0, rows)
    except (KeyError, TypeError):
        return cache
    except AttributeError as error:
        return cache * len(str(error))


@pytest.mark.parametrize("whole", [True, False])
def test_handlers_of_what_no_element_raises_leave_a_program(whole: bool) -> None:
    x, hybrid = torch.randn(3, 4), weft.hybridize(copied_where_a_device_can, whole=whole)
    for _ in range(3):
        assert torch.equal(hybrid(x), copied_where_a_device_can(x))
    assert "by Python" not in weft.explain(hybrid)


class OwnNames:
    """Functions of modules that name their own exceptions as Python's are."""

    source = """
def tolerant(x, rows):
    try:
        return x.index_select(0, rows)
    except NotImplementedError:
        return x * 2

def partly(x, rows):
    try:
        return x.index_select(0, rows)
    except (KeyError, IndexError):
        return x * 3
"""

    @classmethod
    def get(cls, name: str, **names: Any) -> Callable[[Tensor, Tensor], Tensor]:
        exec(compile(cls.source, __file__, "exec"), names)
        return names[name]


@pytest.mark.parametrize("way", ["hybridize", "lazy"])
@pytest.mark.parametrize("name", ["tolerant", "partly"])
def test_handlers_of_other_exceptions_of_the_same_name_are_followed(name: str, way: str) -> None:
    function = OwnNames.get(name, NotImplementedError=IndexError)
    calls = [((torch.randn(3, 4), torch.tensor(rows)), {}) for rows in ([0, 1], [0, 7], [2, 2])]
    with overrides(whole="off"):
        assert_every_way(lambda: Work(function, calls), way)


NOTED: list[str] = []


def explained(x: Tensor, index: Tensor) -> Tensor:
    try:
        return x.index_select(0, index)
    except (IndexError, RuntimeError) as error:
        if index.numel() > 0 and index.max() >= x.shape[0]:
            raise IndexError(f"no row {int(index.max())}") from error
        raise


def explained_in_a_loop(x: Tensor, index: Tensor) -> Tensor:
    for _ in range(2):
        try:
            x = x + TABLE(index).sum()
        except IndexError as error:
            for name in ("rows", "words"):
                NOTED.append(name)  # noqa: PERF402 - people write it
            raise KeyError("words") from error
    return x


def raised_again_after_noting(x: Tensor, index: Tensor) -> Tensor:
    try:
        return x[index]
    except:
        NOTED.append("failed")
        raise


@pytest.mark.parametrize("function", [explained, explained_in_a_loop, raised_again_after_noting])
def test_what_is_caught_only_to_be_raised_is_a_program(function: Callable[..., Tensor]) -> None:
    x, index = torch.randn(3, 4), torch.tensor([2, 0, 1])
    hybrid = weft.hybridize(function, whole=True)
    for _ in range(3):
        torch.testing.assert_close(hybrid(x, index), function(x, index), rtol=1e-5, atol=1e-6)  # sums of 12 numbers
    assert hybrid.traces == 1


@pytest.mark.parametrize("way", ["hybridize", "step", "lazy"])
@pytest.mark.parametrize("function", [explained, raised_again_after_noting])
def test_what_a_handler_raises_instead_is_raised_as_in_eager(function: Callable[..., Tensor], way: str) -> None:
    indices = [torch.tensor(rows) for rows in ([2, 0, 1], [1, 1, 1], [0, 7, 1], [2, 2, 2])]
    calls = [((torch.randn(3, 4), index), {}) for index in indices]
    assert_every_way(lambda: Work(function, calls), way)


def test_a_handler_that_raises_does_what_it_does_before_once() -> None:
    hybrid, x = weft.hybridize(raised_again_after_noting), torch.randn(3, 4)
    NOTED.clear()
    hybrid(x, torch.tensor([0, 1]))
    with pytest.raises(IndexError):
        hybrid(x, torch.tensor([0, 5]))
    assert NOTED == ["failed"]


def returned_at_the_end(x: Tensor) -> Tensor:
    try:
        return torch.linalg.inv(x[:, :3] * 0)
    finally:
        return x  # noqa: B012, SIM107 - people write it


def swallowed_inside(x: Tensor) -> Tensor:
    try:
        return torch.linalg.inv(x[:, :3] * 0)
    except RuntimeError as error:
        try:
            raise KeyError("singular") from error
        except KeyError:
            pass
    return x


@pytest.mark.parametrize("way", ["hybridize", "step"])
@pytest.mark.parametrize("function", [returned_at_the_end, swallowed_inside])
def test_other_ways_to_swallow_what_an_operator_raises_are_seen(function: Function, way: str) -> None:
    with overrides(whole="off"):
        assert_every_way(lambda: Work(function, [((torch.randn(3, 4),), {})] * 2), way)


def caught_quotient(x: Tensor, n: Tensor) -> Any:
    try:
        factor = 10 / int(n)
    except ZeroDivisionError:
        factor = 0.5
    return x * factor


def caught_count(x: Tensor, n: Tensor) -> Any:
    try:
        return x[: 10 // int(n)] * 2
    except ZeroDivisionError:
        return x[:1]


def caught_result(x: Tensor, n: Tensor) -> Any:
    try:
        return x * 2, 10 % int(n), n.item() / (n.item() - 3)
    except ZeroDivisionError:
        return x, -1


def caught_power(x: Tensor, n: Tensor) -> Any:
    try:
        return x * 0.5 ** (-400 * int(n))
    except OverflowError:
        return x * -1


@pytest.mark.parametrize("first", [0, 3, 5])
@pytest.mark.parametrize("grad", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("function", [caught_quotient, caught_count, caught_result, caught_power])
def test_what_python_raises_for_some_numbers_decides(function: Callable[..., Any], first: int, *, grad: bool) -> None:
    with overrides(whole="off"):
        ours = weft.hybridize(function)
        for number in (first, 5, 0, 7, 3, 2, 0, 3, 1):
            x = torch.linspace(1, 2, 12).requires_grad_(grad)
            torch.testing.assert_close(ours(x, torch.tensor(number)), function(x, torch.tensor(number)))
