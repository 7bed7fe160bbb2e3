"""Cheap operators run at their call, and nobody can tell but by the time it takes."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from tests.mx.random_programs import program, run

from weft import mx
from weft.mx import autograd, nd
from weft.mx.arrays import at_once, queue
from weft.mx.base.errors import MXNetError
from weft.mx.gluon import nn
from weft.mx.operators import RULES


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """All operators are cheap once they were called."""
    queue.waitall()
    monkeypatch.setattr(at_once, "MOST_SECONDS", 1e9)


def pushed() -> int:
    return queue.engine().limits.pushed


def settled(x: nd.NDArray, function) -> None:
    """Call it until it is known to be cheap."""
    for _ in range(3):
        function(x)
        nd.waitall()


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("number", range(0, 60, 3))
def test_random_programs_show_the_same_a_second_time(number: int) -> None:
    first = run(program(number), nd, autograd)
    nd.waitall()
    again = run(program(number), nd, autograd)
    assert len(first) == len(again)
    for one, other in zip(first, again, strict=True):
        if isinstance(one, str):
            assert one == other
        else:
            assert one[:2] == other[:2]
            np.testing.assert_allclose(one[2], other[2], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("cheap")
def test_a_cheap_operator_is_not_queued_and_one_that_waits_is() -> None:
    x = nd.ones((2,))
    settled(x, lambda x: x + 1)
    before = pushed()
    y = x + 1
    assert pushed() == before
    gate = threading.Event()
    queue.push(lambda: gate.wait(30), (), (x.order,), "held")
    z = x + 1
    assert pushed() == before + 2
    assert (y + 1).asnumpy().tolist() == [3, 3]  # of another array
    gate.set()
    assert z.asnumpy().tolist() == [2, 2]


def test_what_takes_long_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_once, "MOST_SECONDS", -1.0)
    x = nd.ones((3, 5))
    settled(x, nd.cbrt)
    before = pushed()
    nd.cbrt(x)
    assert pushed() == before + 1


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether sines fail from now on."""
    fails = [False]

    def compute(_p, x):
        if fails[0] and x.device.type != "meta":
            raise ValueError("no sine today")
        return torch.sin(x)

    # In the rule itself: calls that were prepared by earlier tests hold it.
    monkeypatch.setitem(vars(RULES["sin"]), "compute", compute)
    return fails


@pytest.mark.usefixtures("cheap")
def test_a_cheap_operator_that_fails_is_told_by_who_waits(fails: list[bool]) -> None:
    x = nd.zeros((2,))
    settled(x, nd.sin)
    fails[0] = True
    y = nd.sin(x)
    z = y + 1
    with pytest.raises(MXNetError, match="no sine today"):
        z.wait_to_read()
    x += 1
    assert x.asnumpy().tolist() == [1, 1]


@pytest.mark.usefixtures("cheap")
def test_a_cheap_write_that_fails_spoils_what_it_writes(fails: list[bool]) -> None:
    x, y = nd.zeros((2,)), nd.zeros((2,))
    settled(x, lambda x: nd.sin(x, out=y))
    fails[0] = True
    nd.sin(x, out=y)
    with pytest.raises(MXNetError, match="no sine today"):
        y.asnumpy()
    assert y.asnumpy().shape == (2,)


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize(
    "mode", [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16), lambda: torch.device("meta")]
)
def test_modes_of_the_thread_that_calls_have_no_say(mode) -> None:
    x, w = nd.ones((2, 2)), nd.ones((2, 2))
    for _ in range(3):
        nd.dot(x, w).wait_to_read()
    with mode():
        y = nd.dot(x, w)
        y.attach_grad()
        with autograd.record():
            z = (y * y).sum()
        z.backward()
    assert y.asnumpy().tolist() == [[2, 2], [2, 2]]
    assert y.dtype == np.float32
    assert y.grad.asnumpy().tolist() == [[4, 4], [4, 4]]


@pytest.mark.usefixtures("cheap")
def test_views_of_inputs_are_not_written_over() -> None:
    x = nd.array([[1, 2], [3, 4]])
    settled(x, nd.transpose)
    settled(x, nd.identity)
    turned, same = nd.transpose(x), nd.identity(x)
    x[0] = 9
    x += 1
    assert turned.asnumpy().tolist() == [[1, 3], [2, 4]]
    assert same.asnumpy().tolist() == [[1, 2], [3, 4]]


def test_zeros_of_both_signs_are_told_apart() -> None:
    x = nd.ones((2,))
    for _ in range(3):
        for zero in (0.0, -0.0, 0):
            assert np.signbit((x * zero).asnumpy()).tolist() == [str(zero) == "-0.0"] * 2


def test_numbers_that_change_are_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    x = nd.ones((23, 3, 7))  # of a size that no other test multiplies
    monkeypatch.setattr(at_once, "_kinds", {})
    for number in range(20):
        _ = x * (number + 0.5)
    assert len(at_once._kinds) == 1
    nd.waitall()


def block() -> nn.HybridSequential:
    net = nn.HybridSequential()
    net.add(nn.Dense(8, activation="relu"), nn.Dense(3))
    net.initialize()
    net.hybridize()
    return net


@pytest.mark.usefixtures("cheap")
def test_a_hybridized_block_runs_at_its_call_and_sees_its_parameters_change() -> None:
    net, x = block(), nd.ones((2, 5))
    settled(x, net)
    before = pushed()
    y = net(x)
    assert pushed() == before
    weight, bias = net[1].weight, net[1].bias
    assert np.allclose(y.asnumpy(), 0 + y.asnumpy())
    bias.data()[:] = 7
    weight.data()[:] = 0
    assert net(x).asnumpy().tolist() == [[7] * 3] * 2
    bias.set_data(nd.ones((3,)))
    assert net(x).asnumpy().tolist() == [[1] * 3] * 2
    net.initialize(mx.init.Zero(), force_reinit=True)
    assert net(x).asnumpy().tolist() == [[0] * 3] * 2
    assert net(nd.ones((4, 5))).shape == (4, 3)
    assert net(x).shape == (2, 3)


@pytest.mark.usefixtures("cheap")
def test_a_hybridized_block_waits_for_its_parameters_and_carries_failures() -> None:
    net, x = block(), nd.ones((2, 5))
    settled(x, net)
    gate = threading.Event()
    bias = net[1].bias.data()
    queue.push(lambda: gate.wait(30), (), (bias.order,), "held")
    bias[:] = 3
    y = net(x)
    gate.set()
    assert np.allclose(y.asnumpy() - net(x).asnumpy(), 0)
    spoilt = net(nd.random.normal(0, -1, (2, 5)))
    with pytest.raises(MXNetError):
        spoilt.asnumpy()
    assert net(x).asnumpy().shape == (2, 3)


@pytest.mark.usefixtures("cheap")
def test_what_is_recorded_has_gradients_whether_it_is_cheap_or_not() -> None:
    net, x = block(), nd.ones((2, 5))
    settled(x, net)
    found = []
    for _ in range(3):
        with autograd.record():
            y = net(x).sum()
        y.backward()
        found.append(net[1].bias.grad().asnumpy().tolist())
    assert found == [[2, 2, 2]] * 3


@pytest.mark.usefixtures("cheap")
def test_threads_that_write_and_read_one_array_never_see_half_a_write() -> None:
    x = nd.zeros((64,))
    settled(x, lambda x: x * 1)
    stop = threading.Event()
    torn = []

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            x[:] = number
            x[:32] = number + 0.5
            x[32:] = number + 0.5

    def read() -> None:
        while not stop.is_set():
            found = (x * 1).asnumpy()
            if len(set(found[:32])) > 1 or len(set(found[32:])) > 1:
                torn.append(found)

    threads = [threading.Thread(target=each) for each in (write, read)]
    for thread in threads:
        thread.start()
    stop.wait(0.3)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not torn
    nd.waitall()
