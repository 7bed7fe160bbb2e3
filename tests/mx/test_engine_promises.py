"""What MXNet promises of waiting and of failures holds on one to four devices, queued or run at the call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from weft import mx
from weft.mx import autograd, gluon, nd
from weft.mx.arrays import queue
from weft.mx.base.errors import MXNetError

Contexts = list[mx.Context]


@pytest.fixture(params=[1, 2, 3, 4])
def contexts(request: pytest.FixtureRequest) -> Contexts:
    queue.waitall()
    return [mx.cpu(50 + place) for place in range(request.param)]


@pytest.fixture
def naive(monkeypatch: pytest.MonkeyPatch) -> None:
    queue.waitall()
    monkeypatch.setitem(queue.__dict__, "NAIVE", [True])


def failing(context: mx.Context, shape: tuple[int, ...] = (2, 2)) -> nd.NDArray:
    """An array whose operator fails when it runs, as the real MXNet's does."""
    return nd.random.normal(0, -1, shape, ctx=context)


def held(context: mx.Context) -> tuple[nd.NDArray, threading.Event]:
    """An array that is not written before the event is set."""
    gate = threading.Event()
    x = nd.zeros((2,), ctx=context)
    queue.push(lambda: gate.wait(30), (), (x.order,), "held")
    return x, gate


LOOKS: dict[str, Callable[[nd.NDArray], object]] = {
    "wait_to_read": lambda x: x.wait_to_read(),
    "asnumpy": lambda x: x.asnumpy(),
    "asscalar": lambda x: x.asscalar(),
    "item": lambda x: x.item(),
    "print": str,
    "bool": bool,
    "float": lambda x: float(x.asscalar()),
    "a NumPy array": np.asarray,
    "copying into a NumPy array": lambda x: np.zeros((1, 1)).__setitem__(slice(None), x.asnumpy()),
    "iterating over numbers": lambda x: x.tolist(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_failure_is_told_by_each_way_to_look(look: str, contexts: Contexts) -> None:
    spoilt = [failing(context, (1, 1)) for context in contexts]
    for x in spoilt:
        assert (x.shape, x.dtype, len(x), x.size, x.ndim) == ((1, 1), np.float32, 1, 1, 2)
        with pytest.raises(MXNetError, match="scale"):
            LOOKS[look](x)


def test_a_failure_is_told_once_on_any_array_that_depends_on_it(contexts: Contexts) -> None:
    for context in contexts:
        x = failing(context)
        y = (x + 1) * 2
        z = nd.ones((2, 2), ctx=context) * 3
        assert z.asnumpy().tolist() == [[3, 3], [3, 3]]  # does not depend on it
        with pytest.raises(MXNetError, match="scale parameter"):
            y.wait_to_read()
        for array in (x, y):
            assert array.asnumpy().shape == (2, 2)  # told already


def test_a_failure_of_one_device_does_not_spoil_arrays_of_others(contexts: Contexts) -> None:
    spoilt = failing(contexts[0])
    others = [nd.ones((2,), ctx=context) + place for place, context in enumerate(contexts)]
    for place, array in enumerate(others):
        assert array.asnumpy().tolist() == [1 + place] * 2
    with pytest.raises(MXNetError):
        spoilt.asnumpy()


def test_a_copy_to_another_device_carries_the_failure(contexts: Contexts) -> None:
    copies = [failing(each).as_in_context(context) for each, context in zip(contexts, contexts[::-1], strict=True)]
    for array in copies:
        with pytest.raises(MXNetError):
            array.asnumpy()


def test_waitall_raises_the_first_failure_and_forgets_all(contexts: Contexts) -> None:
    spoilt = [failing(context) for context in contexts]
    with pytest.raises(MXNetError):
        nd.waitall()
    nd.waitall()
    for array in spoilt:
        assert array.asnumpy().shape == (2, 2)


def test_a_write_into_a_spoilt_array_is_skipped_until_somebody_was_told(contexts: Contexts) -> None:
    for context in contexts:
        x = failing(context)
        x[:] = 1
        with pytest.raises(MXNetError):
            x.asnumpy()
        x[:] = 1
        assert x.asnumpy().tolist() == [[1, 1], [1, 1]]


def test_a_backward_through_a_failure_is_told_by_who_looks_at_the_gradient(contexts: Contexts) -> None:
    for context in contexts:
        x = nd.ones((2, 2), ctx=context)
        x.attach_grad()
        with autograd.record():
            y = (x * failing(context)).sum()
        y.backward()
        with pytest.raises(MXNetError):
            x.grad.asnumpy()
        assert y.asnumpy().shape == (1,)


def test_wrong_sizes_types_and_arguments_raise_at_the_call(contexts: Contexts) -> None:
    for context in contexts:
        x, y = nd.ones((2, 3), ctx=context), nd.ones((2, 3), ctx=context)
        for wrong in (
            lambda x=x, y=y: nd.dot(x, y),
            lambda x=x: x + x.astype("float64"),
            lambda x=x: nd.sum(x, axes=1),
            lambda x=x: x.reshape((5,)),
        ):
            for _ in range(3):  # also where calls of its kind are known
                with pytest.raises(MXNetError):
                    wrong()


def test_a_write_waits_for_earlier_reads_and_a_read_for_earlier_writes(contexts: Contexts) -> None:
    for context in contexts:
        x, gate = held(context)
        before = x + 1
        x[:] = 5
        after = x + 1
        x += 1
        last = x * 1
        gate.set()
        found = [array.asnumpy().tolist() for array in (before, after, last)]
        assert found == [[1, 1], [6, 6], [6, 6]]


def test_what_waits_for_nothing_is_not_held_up(contexts: Contexts) -> None:
    held_up, gate = held(contexts[0])
    later = held_up + 1
    for context in contexts:
        free = nd.ones((2,), ctx=context)
        for _ in range(4):  # some of them at once
            assert (free + 1).asnumpy().tolist() == [2, 2]
    gate.set()
    assert later.asnumpy().tolist() == [1, 1]


def test_operators_in_a_bulk_are_told_alike(contexts: Contexts) -> None:
    for context in contexts:
        with mx.engine.bulk(4):
            x = failing(context)
            y = x + 1
        with pytest.raises(MXNetError):
            y.asnumpy()


def is_quiet() -> bool:
    """Whether nothing runs; the worker that has just told of its task still counts it for an instant."""
    last = time.monotonic() + 1
    while not queue.engine().is_quiet() and time.monotonic() < last:
        time.sleep(0)
    return queue.engine().is_quiet()


@pytest.mark.usefixtures("naive")
def test_with_the_naive_engine_each_operator_runs_and_fails_at_its_call(contexts: Contexts) -> None:
    for context in contexts:
        with pytest.raises(MXNetError, match="scale parameter"):
            failing(context)
        x = nd.ones((2,), ctx=context)
        x.attach_grad()
        for _ in range(4):
            with autograd.record():
                y = (x * x).sum()
            y.backward()
            assert is_quiet()
            x[:] = x + 1
        assert x.asnumpy().tolist() == [5, 5]
        assert x.grad.asnumpy().tolist() == [8, 8]
        nd.waitall()


def test_the_naive_engine_is_named_where_a_failure_is_told() -> None:
    with pytest.raises(MXNetError, match="NaiveEngine"):
        failing(mx.cpu(50)).asnumpy()


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_failure_in_a_worker_of_a_data_loader_is_raised_by_next(workers: int) -> None:
    class Broken(gluon.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, place: int) -> nd.NDArray:
            if place == 3:
                raise KeyError("the fourth is not there")
            return nd.ones((2,))

    batches = iter(gluon.data.DataLoader(Broken(), batch_size=2, num_workers=workers))
    assert next(batches).shape == (2, 2)
    with pytest.raises(KeyError, match="fourth"):
        next(batches)


def test_a_backward_in_python_reads_what_was_recorded_whatever_was_written_since() -> None:
    """As a custom operator's does: its labels are those of the next batch before it runs."""
    written = threading.Event()

    class Times(autograd.Function):
        def forward(self, x, y):
            self.x, self.y = x, y
            return x * y

        def backward(self, dz):
            assert written.wait(30)
            return dz * self.y, dz * self.x

    x, y = nd.array([2.0]), nd.array([3.0])
    x.attach_grad()
    with autograd.record():
        z = Times()(x, y)
    z.backward()
    y[:] = 100
    y.wait_to_read()
    written.set()
    assert x.grad.asscalar() == 3
    assert y.asscalar() == 100
