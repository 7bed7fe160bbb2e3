"""Devices are found by name, listed, and chosen for a block."""

import threading

import pytest
import torch

from weft.config import overrides
from weft.devices import Device, all_devices, cpu_count, current, on, parse
from weft.errors import UsageError
from weft.target import host_target


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("cpu", Device("cpu", 0)),
        ("cpu:3", Device("cpu", 3)),
        (torch.device("cpu"), Device("cpu", 0)),
        (Device("cpu", 1), Device("cpu", 1)),
    ],
)
def test_a_device_is_found_by_any_of_its_names(name: object, device: Device) -> None:
    assert parse(name) == device


def test_a_name_and_its_device_round_trip() -> None:
    assert all(parse(str(device)) == device for device in all_devices())


@pytest.mark.parametrize("name", ["", "tpu", "cpu:", "cpu:-1", "cpu:x", "cuda:0:1", "meta", 3])
def test_what_is_no_device_is_an_error(name: object) -> None:
    with pytest.raises(UsageError, match="there is no device called"):
        parse(name)


def test_who_writes_gpu_is_told_to_write_cuda() -> None:
    with pytest.raises(UsageError, match='for a GPU write "cuda:0"'):
        parse("gpu:1")


def test_a_gpu_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert parse("cuda:0") == Device("cuda", 0)
    with pytest.raises(UsageError, match=r"no device cuda:1 on this machine\n  why   PyTorch sees 1 CUDA device\n"):
        parse("cuda:1")


def test_a_logical_device_of_the_processor_lives_in_the_one_memory() -> None:
    assert parse("cpu:5").torch_device == torch.device("cpu")
    assert Device("cuda", 2).torch_device == torch.device("cuda:2")


def test_every_core_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with overrides(threads=0):
        names = [str(device) for device in all_devices()]
    assert names == [*(f"cpu:{index}" for index in range(host_target().cores)), "cuda:0", "cuda:1"]


def test_the_number_of_threads_can_be_chosen() -> None:
    with overrides(threads=5):
        assert cpu_count() == 5
        assert sum(device.kind == "cpu" for device in all_devices()) == 5


def test_without_a_choice_work_goes_where_torch_puts_tensors() -> None:
    assert current() == parse(torch.get_default_device())


def test_the_innermost_block_chooses_and_only_for_its_own_thread() -> None:
    elsewhere = []
    with on("cpu:1") as device:
        assert current() == device == Device("cpu", 1)
        with on("cpu:2"):
            assert current() == Device("cpu", 2)
        assert current() == Device("cpu", 1)
        thread = threading.Thread(target=lambda: elsewhere.append(current()))
        thread.start()
        thread.join(timeout=10)
    assert elsewhere == [parse(torch.get_default_device())]


@pytest.mark.gpu
def test_a_gpu_without_a_number_is_the_one_torch_uses() -> None:
    assert parse("cuda") == Device("cuda", torch.cuda.current_device())
