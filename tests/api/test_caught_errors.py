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
