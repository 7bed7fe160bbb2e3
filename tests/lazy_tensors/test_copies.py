"""Copies between devices in a lazy block are tasks of their own worker: they overlap, and are never read too early.

The device is a stand-in, whose tensors lie on the CPU behind a gate; the tests at the end run a real one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map_only
from typing_extensions import Self

import weft
from weft.engine import Engine, Var
from weft.errors import ExecutionError
from weft.lazy_tensors import copies as lazy_copies
from weft.lazy_tensors.tasks import engine
from weft.lazy_tensors.tensor import LazyTensor

FAR = torch.device("xpu:0")


class Far(torch.Tensor):
    """A tensor of a device that is not here: it computes on the CPU."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Self:
        made: Self = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=FAR
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Far, lambda far: far.inner, (args, dict(kwargs or {})))
        away = kwargs.get("device") == torch.device("cpu")
        kwargs |= {"device": "cpu"} if "device" in kwargs else {}
        result = func(*args, **kwargs)
        return result if away else tree_map_only(torch.Tensor, Far, result)


class Wire(lazy_copies.Transport):
    """Lets a copy pass when it is told to."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.opened.set()
        self.threads: list[int] = []
        self.broken = False

    def takes(self, tensor: torch.Tensor) -> bool:
        return type(tensor) in (torch.Tensor, Far)

    def _pass(self) -> None:
        self.threads.append(threading.get_ident())
        assert self.opened.wait(20)
        if self.broken:
            raise RuntimeError("the wire is broken")

    def fetch(self, tensor: Any, look: Any) -> Callable[[], torch.Tensor]:
        def copy() -> torch.Tensor:
            self._pass()
            return tensor.inner.to(look.dtype, copy=True)

        return copy

    def send(self, look: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        def copy(tensor: torch.Tensor) -> torch.Tensor:
            self._pass()
            return Far(tensor.to(look.dtype, copy=True))

        return copy


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """A device, and an engine whose failures no other test sees."""
    made = Wire()
    monkeypatch.setitem(lazy_copies.TRANSPORTS, "xpu", made)
    yield made
    made.opened.set()
    weft.lazy(False)
    engine().failures.drop_what_is_queued()
    engine().failures.known.clear()
    engine().close()


WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "to a name": lambda y: y.to("cpu"),
    "to a device, not blocking": lambda y: y.to(torch.device("cpu"), non_blocking=True),
    "to a device and a type": lambda y: y.to("cpu", torch.float32, True, copy=True),
    "to what another tensor is": lambda y: y.to(torch.zeros(1)),
    "cpu": lambda y: y.cpu(),
    "copy_ into what is computed": lambda y: (torch.zeros(8, 8) + 0).copy_(y, non_blocking=True),
    "copy_ into an ordinary tensor": lambda y: torch.zeros(8, 8).copy_(y),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_from_a_device_returns_at_once_and_a_look_waits_for_it(wire: Wire, way: str) -> None:
    y = Far(torch.randn(8, 8))
    with weft.lazy():
        for count in range(4):
            if count:
                wire.opened.clear()  # the first time is how it is learned what operators give
            found = WAYS[way](y)
            assert found.shape == (8, 8)
            assert found.device.type == "cpu"
            assert count == 0 or not weft.ready(found)
            doubled = found * 2
            wire.opened.set()
            assert torch.equal(weft.wait(doubled), y.inner * 2)
            assert torch.equal(weft.wait(found), y.inner)
    assert threading.get_ident() not in wire.threads


def test_a_copy_may_change_the_type(wire: Wire) -> None:
    y = Far(torch.randn(4, 4))
    with weft.lazy():
        found = y.to("cpu", torch.float64)
        assert found.dtype == torch.float64
        assert torch.equal(weft.wait(found), y.inner.double())


def test_the_device_goes_on_while_a_copy_is_under_way(wire: Wire) -> None:
    y = Far(torch.ones(8, 8))
    with weft.lazy():
        wire.opened.clear()
        found = y.to("cpu")
        z = y @ y + 1
        assert type(z) is Far
        assert torch.equal(z.inner, torch.full((8, 8), 9.0))
        assert not weft.ready(found)
        wire.opened.set()
        assert found.sum().item() == 64


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.add_(1),
        lambda y: y.fill_(5.0),
        lambda y: torch.add(y, 1, out=y),
        lambda y: y.__imul__(3),
        lambda y: torch.nn.functional.relu(y, inplace=True),
    ],
)
def test_a_write_on_the_device_waits_for_the_copies_that_read_it(wire: Wire, write: Callable[..., Any]) -> None:
    y = Far(torch.full((4, 4), -1.0))
    with weft.lazy():
        wire.opened.clear()
        found = y.to("cpu")
        timer = threading.Timer(0.05, wire.opened.set)
        timer.start()
        write(y)
        assert found.sum().item() == -16
        timer.join()


def test_a_copy_to_a_device_waits_for_its_source_and_is_waited_for(wire: Wire) -> None:
    x = torch.ones(8, 8)
    with weft.lazy():
        for count in range(4):
            if count:
                wire.opened.clear()
            y = x * 2
            found = y.to(FAR)
            assert type(found) is LazyTensor
            assert found.device == FAR
            assert found.shape == (8, 8)
            assert count == 0 or not weft.ready(found)
            y.add_(1)  # comes after the copy
            wire.opened.set()
            z = found + 1
            assert type(z) is Far
            assert torch.equal(z.inner, torch.full((8, 8), 3.0))
            assert torch.equal(weft.wait(found).inner, torch.full((8, 8), 2.0))
            assert y[0, 0].item() == 3
            assert (found * 2).to("cpu").sum().item() == 256


def test_there_and_back_again(wire: Wire) -> None:
    x = torch.randn(8, 8)
    with weft.lazy():
        for _ in range(3):
            assert torch.equal(weft.wait((x + 1).to(FAR).cpu()), x + 1)


def test_a_copy_that_fails_is_told_to_who_looks_with_the_line_that_asked_for_it(wire: Wire) -> None:
    y = Far(torch.ones(4))
    with weft.lazy():
        wire.broken = True
        found = y.to("cpu")
        weft.ready(found)
        with pytest.raises(ExecutionError, match=r"(?s)copy failed.*test_copies.py:\d+.*y.to\(.cpu.\).*broken"):
            found.tolist()
        wire.broken = False
        assert y.to("cpu").sum().item() == 4


def test_what_fails_while_somebody_asks_whether_it_is_ready_is_told(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = Engine.ready

    def slow(self: Engine, variable: Var) -> bool:
        wire.opened.set()
        self.finish([variable])
        return ready(self, variable)

    y = Far(torch.ones(4))
    with weft.lazy():
        wire.broken = True
        wire.opened.clear()
        found = y.to("cpu")
        monkeypatch.setattr(Engine, "ready", slow)
        with pytest.raises(ExecutionError, match="copy failed"):
            found.tolist()


def test_a_copy_that_nobody_holds_is_not_made(wire: Wire) -> None:
    gate = threading.Event()
    with weft.lazy():
        engine().push(lambda: gate.wait(20), device="copy")
        Far(torch.ones(4)).to("cpu")
        gate.set()
        weft.waitall()
    assert wire.threads == []


def test_copies_count_in_the_limit_of_memory(wire: Wire) -> None:
    y = Far(torch.ones(1000))
    wire.opened.clear()
    timer = threading.Timer(0.05, wire.opened.set)
    with weft.lazy():
        engine().close()  # the next begins to count anew
        weft.limit(bytes=10_000)
        timer.start()
        copies = [y.to("cpu") for _ in range(20)]
        weft.waitall()
        assert engine().statistics().most_bytes_in_flight <= 10_000
        assert sum(copy.sum().item() for copy in copies) == 20_000
    timer.join()


def test_memory_that_numpy_sees_is_copied_at_once(wire: Wire) -> None:
    y, into = Far(torch.ones(4)), torch.zeros(4)
    array = into.numpy()
    with weft.lazy():
        into.copy_(y.to("cpu"))
        into.numpy()
        into.copy_(y)
        assert array.sum() == 4


def test_a_tensor_of_the_cpu_is_its_own_copy_on_the_cpu() -> None:
    with weft.lazy():
        for _ in range(3):
            y = torch.ones(20) + 1
            assert y.cpu() is y
            assert y.to("cpu") is y
            z = y.to("cpu", copy=True)
            y.add_(1)
            assert (z.sum().item(), y.sum().item()) == (40, 60)


@pytest.mark.gpu
def test_copies_from_a_gpu_equal_the_tensor_as_it_was_at_the_call() -> None:
    x = torch.randn(500, 500, device="cuda")
    expected = x.cpu()
    with weft.lazy():
        copies = []
        for _ in range(20):
            copies.append(x.to("cpu", non_blocking=True))
            x = x @ x / 500
            x.add_(1)
        assert all(not copy.value.metadata.requires_grad for copy in copies)
        assert torch.equal(weft.wait(copies[0]), expected)
        for before, after in pairwise(copies):
            torch.testing.assert_close(after, before.cuda() @ before.cuda() / 500 + 1, check_device=False)


@pytest.mark.gpu
def test_batches_are_sent_to_a_gpu_while_it_computes() -> None:
    weight = torch.randn(64, 64, device="cuda")
    with weft.lazy():
        for _ in range(20):
            source = torch.randn(32, 64)
            x = source + 1
            far = x.to("cuda", non_blocking=True)
            x.zero_()
            assert (far @ weight).device.type == "cuda"
            assert torch.equal(far.cpu(), source + 1)
