"""Files of records: damage is one clear error, before memory is asked for; images need a decoder, and say so."""

from __future__ import annotations

import contextlib
import random
import struct
import sys
from pathlib import Path

import pytest

from weft.mx import image, recordio
from weft.mx.base.errors import MXNetError

RECORDS = [
    b"",
    b"a",
    recordio.MAGIC,
    b"abcd" + recordio.MAGIC * 2 + b"e",
    b"ab" + recordio.MAGIC,
    bytes(range(256)) * 5,
]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "a.rec"
    writer = recordio.MXRecordIO(path, "w")
    for record in RECORDS:
        writer.write(record)
    writer.close()
    return path


def read_all(path: Path) -> list[bytes]:
    reader = recordio.MXRecordIO(path, "r")
    return list(iter(reader.read, None))


def test_records_come_back(written: Path) -> None:
    assert read_all(written) == RECORDS


def test_a_length_beyond_the_file_is_refused_before_it_is_read(written: Path) -> None:
    written.write_bytes(recordio.MAGIC + struct.pack("<I", (1 << 29) - 1) + b"abcd")
    with pytest.raises(MXNetError, match="a record of 536870911 bytes, and 4 are left"):
        read_all(written)


@pytest.mark.parametrize("kind", [2, 3])
def test_a_record_that_begins_with_its_middle_is_refused(written: Path, kind: int) -> None:
    written.write_bytes(recordio.MAGIC + struct.pack("<I", kind << 29 | 4) + b"abcd")
    with pytest.raises(MXNetError, match="begins with its middle"):
        read_all(written)


def test_a_record_without_an_end_is_refused(written: Path) -> None:
    written.write_bytes(recordio.MAGIC + struct.pack("<I", 1 << 29 | 4) + b"abcd")
    with pytest.raises(MXNetError, match="has no end"):
        read_all(written)


def test_damage_is_an_error_or_other_records(written: Path) -> None:
    whole, draw = written.read_bytes(), random.Random(0)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        written.write_bytes(bytes(damaged[: draw.randrange(len(whole) + 1)]))
        with contextlib.suppress(MXNetError):
            read_all(written)


def test_a_header_that_promises_too_many_labels_is_refused() -> None:
    packed = recordio.pack(recordio.IRHeader(0, [1.0, 2.0], 0, 0), b"")
    with pytest.raises(MXNetError, match="has 2 labels, and has 4 bytes"):
        recordio.unpack(packed[:-4])
    with pytest.raises(MXNetError, match="has no header"):
        recordio.unpack(packed[:10])


def test_without_pillow_an_image_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MXNetError, match="pip install pillow"):
        image.imdecode(b"any")


def test_an_image_comes_back_from_a_record() -> None:
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("PIL")
    pixels = numpy.arange(4 * 5 * 3, dtype="uint8").reshape(4, 5, 3)
    header = recordio.IRHeader(0, 3.0, 7, 0)
    found, back = recordio.unpack_img(recordio.pack_img(header, pixels, quality=3, img_fmt=".png"))
    assert found == header
    assert (back == pixels).all()
    with pytest.raises(ValueError, match="failed to encode"):
        recordio.pack_img(header, pixels, img_fmt=".xyz")
