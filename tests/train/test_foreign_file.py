"""Files of torch.save are read with what stands beside the model; NumPy's numbers in them without NumPy's own code."""

from __future__ import annotations

import copy
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import weft
from weft.train.checkpoints.converting import convert
from weft.train.checkpoints.foreign_file import NumpyArray, NumpyType, plain


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def trained(net: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(5, 4).cumsum(0)).sum().backward()
    optimizer.step()
    return optimizer


def test_an_optimizer_and_plain_values_of_torch_save_are_loaded(tmp_path: Path) -> None:
    net = model()
    optimizer = trained(net)
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, tmp_path / "all.pt")
    for path in (tmp_path / "all.pt", tmp_path / "all.safetensors"):
        if not path.exists():
            convert(tmp_path / "all.pt", path)
        other = model(1)
        fresh = torch.optim.Adam(other.parameters())
        found = weft.load(path, other, optimizer=fresh)
        assert found["epoch"] == 3
        torch.testing.assert_close(other.state_dict(), net.state_dict(), rtol=0, atol=0)
        torch.testing.assert_close(fresh.state_dict()["state"], optimizer.state_dict()["state"], rtol=0, atol=0)


def test_an_optimizer_of_other_groups_is_refused_before_anything_changes(tmp_path: Path) -> None:
    net = model()
    torch.save({"model": net.state_dict(), "optimizer": trained(net).state_dict()}, tmp_path / "all.pt")
    other = model(1)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(weft.CheckpointError, match=r"\[4\] parameters, and those of this optimizer \[2\]"):
        weft.load(tmp_path / "all.pt", other, optimizer=torch.optim.Adam(other[0].parameters()))
    torch.testing.assert_close(other.state_dict(), before, rtol=0, atol=0)


VALUES = [
    np.float64(0.5),
    np.float32(0.25),
    np.int64(-7),
    np.bool_(True),
    np.complex128(1 - 2j),
    np.arange(6).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(3, dtype=">i4"),
    np.zeros((0, 2), np.uint8),
    np.array(2.5),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}-{value.dtype.str}-{value.shape}")
@pytest.mark.parametrize("archive", [True, False])
def test_numbers_and_arrays_of_numpy_are_read(value: Any, archive: bool, tmp_path: Path) -> None:
    content = {"model": model().state_dict(), "kept": [{"value": value}]}
    torch.save(content, tmp_path / "numpy.pt", _use_new_zipfile_serialization=archive)
    found = weft.load(tmp_path / "numpy.pt", verify=archive)["kept"][0]["value"]
    assert np.array_equal(found, value)
    assert isinstance(found, np.ndarray) == isinstance(value, np.ndarray)


class Impostor:
    """Makes a pickle call one of NumPy's names with what it chooses."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return self.parts


class Holder:
    pass


SCALAR = np.float64(1).__reduce__()[0]
RECONSTRUCT = np.zeros(1).__reduce__()[0]


@pytest.mark.parametrize(
    "value",
    [
        np.array([{}], dtype=object),
        np.array(["text"]),
        np.datetime64("2020-01-01"),
        np.zeros(2, dtype=[("a", "f4")]),
        Impostor(SCALAR, (np.dtype("f8"), b"short")),
        Impostor(SCALAR, (5, b"x")),
        Impostor(RECONSTRUCT, (np.ndarray, (0,), b"b")),
        Impostor(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (10**12,), np.dtype("f8"), False, b"x")),
        Impostor(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (-1,), np.dtype("f8"), False, b"")),
        Impostor(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (1,), 5, False, b"")),
        Holder(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_number_is_refused_and_runs_nothing(value: Any, tmp_path: Path) -> None:
    torch.save({"model": model().state_dict(), "value": value}, tmp_path / "hostile.pt")
    with pytest.raises(weft.CheckpointError, match=r"hostile\.pt cannot be loaded"):
        weft.load(tmp_path / "hostile.pt", model())


def test_a_model_without_memory_is_not_loaded_into(tmp_path: Path) -> None:
    weft.save(tmp_path / "model.safetensors", model())
    with torch.device("meta"):
        other = model()
    with pytest.raises(weft.UsageError, match="on the device meta"):
        weft.load(tmp_path / "model.safetensors", other)
    weft.load(tmp_path / "model.safetensors", other.to_empty(device="cpu"))
    assert torch.equal(other[0].weight, model()[0].weight)


def test_a_path_below_a_file_is_an_error_of_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(weft.CheckpointError, match="could not be written"):
        weft.save(tmp_path / "file" / "model.safetensors", model())


def test_threads_that_read_at_the_same_time_leave_no_stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"model": model().state_dict(), "best": np.float64(0.5)}, tmp_path / "net.pt")
    before, load, both = {*torch.serialization.get_safe_globals()}, torch.load, threading.Barrier(2)
    met: list[int] = []

    def slowly(*given: Any, **named: Any) -> Any:
        with suppress(threading.BrokenBarrierError):
            met.append(both.wait(0.2))  # whoever is in here too comes
        return load(*given, **named)

    monkeypatch.setattr(torch, "load", slowly)
    threads = [threading.Thread(target=weft.load, args=(tmp_path / "net.pt",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met == []
    assert {*torch.serialization.get_safe_globals()} == before


@pytest.mark.parametrize("state", [None, 3, (1, 2), (1, (2,), "f8", False, b"x" * 16), [1, (2,), 3, 4, 5]], ids=repr)
def test_what_is_no_state_of_an_array_is_refused(state: Any) -> None:
    with pytest.raises(weft.UsageError, match="a NumPy array of another kind"):
        NumpyArray().__setstate__(state)


@pytest.mark.parametrize("key", [NumpyArray(), NumpyType("f8")], ids=lambda key: type(key).__name__)
def test_what_stands_for_an_array_is_no_key(key: Any) -> None:
    with pytest.raises(weft.UsageError, match="a table with a key that no table can have"):
        plain({"x": 1, key: 2})
