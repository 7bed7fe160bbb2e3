"""Arrays as handles: asynchronous, shared with torch, written in parts without harm to others."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from weft import mx
from weft.mx import autograd, nd
from weft.mx.arrays import queue
from weft.mx.arrays.invoke import invoke
from weft.mx.arrays.ndarray import NDArray
from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import OperatorRule


def held(gate: threading.Event) -> NDArray:
    """An array whose elements come when a gate opens."""

    def compute(_p, x):
        if x.device.type != "meta":
            assert gate.wait(30)
        return x + 1

    return invoke(OperatorRule(compute), "held", None, [nd.zeros((2,))])[0]


def test_operators_are_queued_and_sizes_are_known_at_once() -> None:
    gate = threading.Event()
    x = held(gate)
    y = (x + 1) * 2
    assert (y.shape, y.dtype, y.context, len(y)) == ((2,), np.float32, mx.cpu(0), 2)
    assert x._chunk.tensor is None
    gate.set()
    assert y.asnumpy().tolist() == [4, 4]


def test_a_write_waits_for_reads_that_were_queued_before() -> None:
    gate = threading.Event()
    x = nd.ones((2,))
    y = held(gate) + x
    x[:] = 100
    x[0] = 7
    gate.set()
    assert y.asnumpy().tolist() == [2, 2]
    assert x.asnumpy().tolist() == [7, 100]


def test_a_failed_operator_is_told_once_with_the_line_that_queued_it() -> None:
    x = nd.random.normal(0, -1, (2,))
    y = x + 1
    with pytest.raises(MXNetError, match=r"scale parameter in gaussian(.|\n)*where .*test_ndarray.py") as caught:
        y.asnumpy()
    assert "NaiveEngine" in str(caught.value)
    assert x.asnumpy().shape == (2,)
    nd.waitall()


def test_the_naive_engine_raises_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "NAIVE", [True])
    with pytest.raises(MXNetError, match="scale parameter"):
        nd.random.normal(0, -1, (2,))
    x = nd.ones((2,)) + 1
    assert x._chunk.tensor is not None


def test_torch_shares_memory_both_ways() -> None:
    tensor = torch.zeros(2, 2)
    x = nd.from_torch(tensor)
    x[0] = 5
    x += 1
    x.wait_to_read()
    assert tensor.tolist() == [[6, 6], [1, 1]]
    tensor.fill_(3)
    assert (x + 1).asnumpy().tolist() == [[4, 4], [4, 4]]
    y = nd.ones((2,))
    shared = nd.to_torch(y)
    y[:] = 9
    y.wait_to_read()
    assert shared.tolist() == [9, 9]
    assert torch.from_dlpack(nd.ones((3,))).tolist() == [1, 1, 1]
    assert nd.from_dlpack(nd.to_dlpack_for_read(nd.ones((2,)))).asnumpy().tolist() == [1, 1]


def test_results_that_are_views_are_not_changed_by_writes() -> None:
    x = nd.array([[1, 2], [3, 4]])
    y, z = x.T, x.expand_dims(0)
    x[0] = 9
    y[1, 1] = 8
    assert z.asnumpy().tolist() == [[[1, 2], [3, 4]]]
    assert x.asnumpy().tolist() == [[9, 9], [3, 4]]
    assert y.asnumpy().tolist() == [[1, 3], [2, 8]]
    x[:] = y
    y[0, 0] = 77
    assert x.asnumpy().tolist() == [[1, 3], [2, 8]]


def test_gradients_are_of_the_values_that_were_recorded() -> None:
    x = nd.array([1.0, 2.0])
    x.attach_grad()
    with autograd.record():
        y = x * x
    x[:] = 100  # MXNet 1.9.1 reads this in its backward and gives 200
    y.backward()
    assert x.grad.asnumpy().tolist() == [2, 4]


def test_gradients_with_several_arrays_and_heads_are_torchs() -> None:
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    ((a @ b).tanh().sum() + (a * a).mean()).backward()
    x, y = nd.array(a), nd.array(b)
    x.attach_grad()
    y.attach_grad()
    with autograd.record():
        heads = [nd.dot(x, y).tanh().sum(), (x * x).mean()]
    autograd.backward(heads)
    np.testing.assert_allclose(x.grad.asnumpy(), a.grad.numpy(), rtol=1e-5)
    np.testing.assert_allclose(y.grad.asnumpy(), b.grad.numpy(), rtol=1e-5)


def test_a_variable_that_many_tasks_read_first_has_one_gradient() -> None:
    for _ in range(20):
        x = nd.ones((3,))
        x.attach_grad()
        with autograd.record():
            total = nd.add_n(*[x * i for i in range(8)])
        total.backward()
        assert x.grad.asnumpy().tolist() == [28, 28, 28]


def test_random_numbers_of_a_context_come_in_the_order_of_the_calls() -> None:
    mx.random.seed(3)
    first = [nd.random.uniform(shape=(2,)) for _ in range(5)]
    mx.random.seed(3)
    again = [nd.random.uniform(shape=(2,)) for _ in range(5)]
    for x, y in zip(first, again, strict=True):
        assert x.asnumpy().tolist() == y.asnumpy().tolist()
    mx.random.seed(3, ctx=mx.cpu(1))
    assert queue.generator_of(mx.cpu(1)) is not queue.generator_of(mx.cpu(0))


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(MXNetError, match=r"gpu\(99\)"):
        nd.ones((1,), ctx=mx.gpu(99))


@pytest.mark.slow
def test_random_programs_of_writes_and_reads_are_numpys() -> None:
    chance = np.random.RandomState(0)
    for _ in range(150):
        truth = [chance.randint(0, 9, (4, 3)).astype(np.float32) for _ in range(3)]
        arrays = [nd.array(x) for x in truth]
        for _ in range(12):
            a, b, row = chance.randint(3), chance.randint(3), chance.randint(4)
            kind = chance.randint(6)
            if kind == 0:
                arrays[a][row] = arrays[b][(row + 1) % 4]
                truth[a][row] = truth[b][(row + 1) % 4].copy()
            elif kind == 1:
                arrays[a] += arrays[b]
                truth[a] += truth[b]
            elif kind == 2:
                arrays[a][:, 1:] = 2
                truth[a][:, 1:] = 2
            elif kind == 3:
                arrays[a] = arrays[b].reshape((3, 4)).T.copy()
                truth[a] = truth[b].reshape(3, 4).T.copy()
            elif kind == 4:
                arrays[a][:] = arrays[b] * 0.5
                truth[a][:] = truth[b] * 0.5
            else:
                arrays[a][[0, 2]] = arrays[b][1:3]
                truth[a][[0, 2]] = truth[b][1:3].copy()
        for x, y in zip(arrays, truth, strict=True):
            np.testing.assert_array_equal(x.asnumpy(), y)
