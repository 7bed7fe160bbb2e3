"""Weights are packed by another core while a first call gets ready, as they are when the call reads them."""

import gc
import threading
from collections.abc import Iterator

import pytest
import torch
from tests.runtime.plans import TARGET, linear_plan
from torch import nn

import weft
from weft.devices import cores
from weft.runtime import weights
from weft.runtime.executable import NativeExecutable
from weft.runtime.weights import PackedWeight

ROWS, INNER, COLUMNS = 2, 24, 40


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(weights, "WORTH_THREADS", 1)
    with cores(2):
        yield


@pytest.fixture
def packers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that packed."""
    found: list[str] = []
    pack = PackedWeight._pack

    def noted(self, tensors):
        found.append(threading.current_thread().name)
        return pack(self, tensors)

    monkeypatch.setattr(PackedWeight, "_pack", noted)
    return found


def begun(layer: nn.Linear) -> NativeExecutable:
    run = NativeExecutable(linear_plan(ROWS, INNER, COLUMNS), TARGET)
    run.pack_ahead({1: layer.weight, 2: layer.bias})
    (packed,) = run._packed_ahead
    packed.begun[1].result()
    return run


def is_right(run: NativeExecutable, layer: nn.Linear) -> bool:
    x, out = torch.randn(ROWS, INNER), torch.empty(ROWS, COLUMNS)
    run([x, layer.weight, layer.bias], [out])
    return torch.allclose(out, layer(x), atol=1e-5)


def test_what_was_packed_ahead_is_not_packed_again(packers: list[str]) -> None:
    layer = nn.Linear(INNER, COLUMNS)
    run = begun(layer)
    assert is_right(run, layer)
    assert is_right(run, layer)
    (packer,) = packers
    assert "ahead" in packer
    assert run._packed_ahead == []


def test_a_weight_that_is_written_meanwhile_is_packed_again(packers: list[str]) -> None:
    layer = nn.Linear(INNER, COLUMNS)
    run = begun(layer)
    with torch.no_grad():
        layer.weight.neg_()
    assert is_right(run, layer)
    assert len(packers) == 2


def test_another_layer_than_was_expected_is_packed(packers: list[str]) -> None:
    run, other = begun(nn.Linear(INNER, COLUMNS)), nn.Linear(INNER, COLUMNS)
    assert is_right(run, other)
    assert len(packers) == 2


def test_nothing_is_packed_of_what_is_not_known(packers: list[str]) -> None:
    layer = nn.Linear(INNER, COLUMNS)
    run = NativeExecutable(linear_plan(ROWS, INNER, COLUMNS), TARGET)
    run.pack_ahead({})
    assert run._packed_ahead == []
    assert is_right(run, layer)
    assert len(packers) == 1


def test_who_needs_a_weight_packs_what_nobody_has_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    packers: list[str] = []
    others_done = threading.Event()
    pack = PackedWeight._pack

    def slow(self, tensors):
        packers.append(threading.current_thread().name)
        if "ahead" in packers[-1]:
            assert others_done.wait(30)  # the second one is packed while this one still is
        found = pack(self, tensors)
        if "ahead" not in packers[-1]:
            others_done.set()
        return found

    monkeypatch.setattr(PackedWeight, "_pack", slow)
    net = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64)).eval()
    x = torch.randn(3, 64)
    with torch.no_grad():
        torch.testing.assert_close(weft.hybridize(net)(x), net[2](torch.tanh(net[0](x))))
    assert len(packers) == 2
    assert sum("ahead" in packer for packer in packers) <= 1


def test_a_forked_child_waits_for_no_thread_of_its_parent(packers: list[str]) -> None:
    layer = nn.Linear(INNER, COLUMNS)
    run = begun(layer)
    weights._renew_lock()
    assert is_right(run, layer)
    assert len(packers) == 2


def test_only_a_call_packs(packers: list[str]) -> None:
    net, x = nn.Linear(INNER, COLUMNS), torch.ones(ROWS, INNER)
    with torch.no_grad():
        weft.program(net, x)
        assert packers == []
        torch.testing.assert_close(weft.hybridize(net)(x), net(x))
    assert packers


def test_one_core_packs_when_it_is_needed(packers: list[str]) -> None:
    layer = nn.Linear(INNER, COLUMNS)
    with cores(1):
        run = NativeExecutable(linear_plan(ROWS, INNER, COLUMNS), TARGET)
        run.pack_ahead({1: layer.weight, 2: layer.bias})
        assert is_right(run, layer)
    assert packers == [threading.current_thread().name]


def test_what_no_call_takes_goes_with_its_program() -> None:
    layer = nn.Linear(INNER, COLUMNS)
    run = begun(layer)
    before = len(weights._packed_weights)
    del run
    gc.collect()
    assert len(weights._packed_weights) < before
