"""Random numbers are in the order of the calls, whatever runs beside them."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch

from weft import mx
from weft.mx import autograd, nd
from weft.mx.arrays import queue
from weft.mx.gluon import nn
from weft.mx.operators import RULES
from weft.mx.operators.table import OperatorRule


def test_a_seed_comes_after_draws_that_still_wait() -> None:
    context, gate = mx.cpu(41), threading.Event()
    queue.push(lambda: gate.wait(30), (), (queue.random_state(context),), "held")
    drawn = []
    for _ in range(2):
        mx.random.seed(3)
        drawn.append([nd.random.uniform(shape=(2,), ctx=context) for _ in range(5)])
    gate.set()
    for x, y in zip(*drawn, strict=True):
        assert x.asnumpy().tolist() == y.asnumpy().tolist()


def test_a_draw_that_fails_spoils_no_other() -> None:
    failed = nd.random.normal(0, -1, shape=(2,))
    assert nd.random.normal(shape=(2,)).asnumpy().shape == (2,)
    with pytest.raises(mx.base.MXNetError, match="scale"):
        failed.asnumpy()


def test_a_hybridized_block_draws_the_numbers_of_its_context() -> None:
    net = nn.HybridSequential()
    net.add(nn.Dropout(0.5), nn.Activation("relu"))
    net.hybridize()
    x = nd.ones((40,))

    def draws() -> list[list[float]]:
        mx.random.seed(5)
        with autograd.record():
            found = [net(x), nd.random.uniform(shape=(2,)), net(x)]
        torch.rand(1)  # of the default generator, which is not a context's
        return [array.asnumpy().tolist() for array in found]

    first, second = draws(), draws()
    assert first == second
    assert first[0] != first[2]


def test_what_is_traced_beside_other_threads_leaves_their_generators_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    here, reached, drawn = threading.current_thread(), threading.Event(), threading.Event()

    def compute(_p, x):
        if threading.current_thread() is not here:
            reached.set()
            assert drawn.wait(30)
        return torch.sin(x)

    monkeypatch.setitem(RULES, "sin", OperatorRule(compute))
    net = nn.HybridLambda("sin")
    net.hybridize()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    y = net(nd.zeros((2,)))
    assert reached.wait(30)
    numbers = random.random(), np.random.rand(), float(torch.rand(1))
    drawn.set()
    assert y.asnumpy().tolist() == [0, 0]
    more = random.random(), np.random.rand(), float(torch.rand(1))
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    assert (random.random(), np.random.rand(), float(torch.rand(1))) == numbers
    assert (random.random(), np.random.rand(), float(torch.rand(1))) == more
