"""`.params` files: byte for byte as MXNet writes them, and one clear error for every damage."""

from __future__ import annotations

import struct

import pytest
import torch

from weft.errors import CheckpointError
from weft.params_file import read_arrays, written_arrays

# What MXNet 1.9.1 writes for {"w": ones((2, 3)), "b": [1, 2] of int32}.
WRITTEN = bytes.fromhex(
    "120100000000000000000000000000000200000000000000c9fa93f90000000002000000020000000000000003000000000000000100000000"
    "000000000000000000803f0000803f0000803f0000803f0000803f0000803fc9fa93f900000000010000000200000000000000010000000000"
    "00000400000001000000020000000200000000000000010000000000000077010000000000000062"
)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "uint8", "int8", "int64", "bool"])
def test_every_element_type_comes_back(dtype: str) -> None:
    source = torch.tensor([0, 1, 1]).to(getattr(torch, dtype))
    (found,), names = read_arrays(written_arrays([source], ["x"]), "x")
    assert names == ["x"]
    assert torch.equal(found, source)


def test_the_forms_before_0_9_and_1_0_are_read() -> None:
    elements = struct.pack("<2f", 1, 2)
    head = struct.pack("<QQQ", 0x112, 0, 1)
    oldest = head + struct.pack("<III", 2, 1, 2) + struct.pack("<iii", 1, 0, 0) + elements + struct.pack("<Q", 0)
    second = head + struct.pack("<IIqq", 0xF993FAC8, 2, 1, 2) + struct.pack("<iii", 1, 0, 0) + elements
    for content in (oldest, second + struct.pack("<Q", 0)):
        assert read_arrays(content, "x")[0][0].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: b"hello world" * 9, "does not begin as such a file does"),
        (lambda c: c[:40], "only"),
        (lambda c: c + b"x", "follows the last name"),
        (lambda c: c[:16] + struct.pack("<Q", 1 << 60) + c[24:], "too short"),
        (lambda c: c[:28] + struct.pack("<i", 1) + c[32:], "row_sparse"),
        (lambda c: c[:28] + struct.pack("<i", 2) + c[32:], "csr"),
        (lambda c: c[:32] + struct.pack("<i", 99) + c[36:], "99 dimensions"),
        (lambda c: c[:36] + struct.pack("<q", 1 << 50) + c[44:], "should take"),
        (lambda c: c[:36] + struct.pack("<q", -1) + c[44:], "sizes"),
        (lambda c: c[:60] + struct.pack("<i", 77) + c[64:], "unknown type 77"),
    ],
)
def test_a_damaged_file_is_one_clear_error(change, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        read_arrays(change(WRITTEN), "x")
