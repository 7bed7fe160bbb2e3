"""`nd.save` and `nd.load`: files as MXNet writes them, and its kind of error for every damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.test_params_file import WRITTEN

from weft.mx import nd
from weft.mx.base.errors import MXNetError


def test_named_arrays_are_written_as_mxnet_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "a.params"
    nd.save(str(path), {"w": nd.ones((2, 3)), "b": nd.array([1, 2], dtype="int32")})
    assert path.read_bytes() == WRITTEN
    found = nd.load(str(path))
    assert list(found) == ["w", "b"]
    assert found["b"].asnumpy().tolist() == [1, 2]
    assert found["w"].shape == (2, 3)


def test_a_list_is_read_as_a_list(tmp_path: Path) -> None:
    nd.save(tmp_path / "b.params", [nd.ones((1,)), nd.zeros((2, 2), dtype="float64")])
    assert [x.dtype.__name__ for x in nd.load(tmp_path / "b.params")] == ["float32", "float64"]
    assert len(nd.load_frombuffer((tmp_path / "b.params").read_bytes())) == 2


def test_damage_is_mxnets_error() -> None:
    with pytest.raises(MXNetError, match=r"Invalid NDArray file format: the buffer cannot be loaded: .*only"):
        nd.load_frombuffer(WRITTEN[:40])


def test_a_missing_file_is_named() -> None:
    with pytest.raises(MXNetError, match="no_such"):
        nd.load("no_such.params")
