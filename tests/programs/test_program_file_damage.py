"""Files that are damaged or forged: the same answer or one clear error, in little time and memory."""

from __future__ import annotations

import hashlib
import json
import random
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.programs.program_examples import parts

from weft.api.load_program import load_program
from weft.programs.file import (
    ENTRY,
    HEADER,
    MAGIC,
    SECTIONS,
    VERSIONS,
    ProgramFileError,
    packed,
    read_sections,
    save_program,
)
from weft.programs.loaded import LoadedProgram

X = torch.arange(6.0).reshape(2, 3)
RIGHT = LoadedProgram(parts())(X, scale=2.0)["y"]
Sections = dict[str, bytes]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "net.weft"


@pytest.fixture
def sections(path: Path) -> Sections:
    save_program(parts(), path)
    return read_sections(path, SECTIONS)


def refused(path: Path, content: bytes) -> str:
    """The error's text, or nothing if the file loads and gives the right answer."""
    path.write_bytes(content)
    try:
        program = load_program(path)
    except ProgramFileError as error:
        found = error
    else:
        assert torch.equal(program(X, scale=2.0)["y"], RIGHT)
        return ""
    assert str(path) in found.fact
    return str(found)


def whole(sections: Sections) -> bytes:
    return b"".join(packed(sections))


def flip(content: bytearray, source: random.Random) -> None:
    content[source.randrange(len(content))] ^= 1 << source.randrange(8)


def cut(content: bytearray, source: random.Random) -> None:
    del content[source.randrange(len(content)) :]


def extend(content: bytearray, source: random.Random) -> None:
    content += source.randbytes(source.randrange(1, 100))


def splice(content: bytearray, source: random.Random) -> None:
    start, length = source.randrange(len(content)), source.randrange(1, 200)
    target = source.randrange(len(content))
    content[target : target + length] = content[start : start + length]


def remove(content: bytearray, source: random.Random) -> None:
    start = source.randrange(len(content))
    del content[start : start + source.randrange(1, 200)]


def lie(content: bytearray, source: random.Random) -> None:
    """Put a number of 32 or 64 bits where header and table have theirs."""
    number = source.choice([0, 1, 63, 64, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, len(content) + 64])
    position = 4 * source.randrange((HEADER.size + 3 * ENTRY.size) // 4)
    content[position : position + 8] = struct.pack("<Q", number)


MUTATIONS = (flip, cut, extend, splice, remove, lie)


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_a_damaged_file_gives_the_same_answer_or_an_error_that_names_it(
    mutate: Callable[[bytearray, random.Random], None], sections: Sections, path: Path
) -> None:
    source = random.Random(mutate.__name__)
    good = whole(sections)
    for _ in range(150):
        content = bytearray(good)
        for _ in range(source.choice([1, 1, 1, 2, 5])):
            if content:
                mutate(content, source)
        changed = bytes(content) != good
        found = refused(path, bytes(content))
        assert changed or not found


def mutate_text(text: str, source: random.Random) -> str:
    """Change a word, number or sign of a text in a way that often leaves it well-formed."""
    position = source.randrange(len(text))
    choice = source.randrange(6)
    if choice == 0:
        return text[:position] + source.choice("0123456789-_%#!@.,:()[]{}\"'\\ \n\0\xff") + text[position + 1 :]
    if choice == 1:
        other = source.randrange(len(text))
        return text[:position] + text[other : other + source.randrange(1, 40)] + text[position:]
    if choice == 2:
        return text[:position] + text[position + source.randrange(1, 10) :]
    digits = [index for index, sign in enumerate(text) if sign.isdigit()]
    position = source.choice(digits)
    number = source.choice(
        ["-1", "0", "7", "99", str(2**31), str(2**62), str(2**63 - 1), str(2**64), "9" * 400, "1e999"]
    )
    if choice == 3:
        number = "9" * source.choice([1, 20, 300, 5000])
    return text[:position] + number + text[position + 1 :]


def refused_or_loaded(path: Path, sections: Sections) -> str:
    """A forged file may hold another program; then it only has to load or be refused, not to give the old answer."""
    path.write_bytes(whole(sections))
    try:
        load_program(path)
    except ProgramFileError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["graph", "metadata", "tensors"])
def test_a_forged_file_with_right_digests_is_loaded_or_refused(name: str, sections: Sections, path: Path) -> None:
    source = random.Random(name)
    encoding = "latin-1"
    good = sections[name].decode(encoding)
    tracemalloc.start()
    try:
        refusals = 0
        for _ in range(100):
            text = good
            for _ in range(source.choice([1, 1, 2, 4])):
                text = mutate_text(text, source)
            refusals += refused_or_loaded(path, {**sections, name: text.encode(encoding)}) != ""
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refusals > 20
    assert peak < 8 << 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_thousands_of_forged_files(seed: int, sections: Sections, path: Path) -> None:
    source = random.Random(seed)
    for _ in range(1000):
        forged = dict(sections)
        for _ in range(source.choice([1, 2, 3])):
            name = source.choice(list(forged))
            if forged[name]:
                forged[name] = mutate_text(forged[name].decode("latin-1"), source).encode("latin-1")
        refused_or_loaded(path, forged)


def changed_metadata(sections: Sections, change: Callable[[dict], None]) -> Sections:
    metadata = json.loads(sections["metadata"])
    change(metadata)
    return {**sections, "metadata": json.dumps(metadata).encode()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["state"].pop(), "where every input of the graph comes from"),
        (lambda data: data["state"].append(dict(data["state"][0], name="again")), "which do not make a"),
        (lambda data: data["state"][0].update(name="count"), "two tensors in it have one name"),
        (lambda data: data["state"][0].update(entry="fc.bias"), "which do not make a"),
        (lambda data: data["state"][0].update(entry="none"), "there is no tensor none"),
        (lambda data: data["state"][0].update(offset=1), "12 elements; 13 are needed"),
        (lambda data: data["state"][0].update(offset=-1), "offset is -1"),
        (lambda data: data["state"][0].update(input=99), "no tensor as input 99"),
        (
            lambda data: data["state"][2].update(entry="fc.bias", offset=0),
            r"fc.bias is torch.float32 on cpu; i64\[\] is needed",
        ),
        (lambda data: data["constants"][0].update(type=f"f32[{2**62},{2**62}]"), "impossible sizes"),
        (lambda data: data["constants"][0].update(type=f"f32[0,{2**62}]"), "impossible sizes"),
        (lambda data: data["constants"][0].update(type="f32[" + "1," * 70 + "16]"), "impossible sizes"),
        (lambda data: data["constants"][0].update(type="f32[4,4]"), "its graph is malformed"),
        (lambda data: data["constants"][0].update(type=f"f32[16]{{{2**40}}}"), "which do not make a"),
        (lambda data: data["constants"][0].update(type="f32[16]@meta"), "on the device meta"),
        (lambda data: data["constants"][0].update(type="f32[16]@cuda:99"), "made for cuda:99, which this machine"),
        (lambda data: data["constants"][0].update(type="int"), "is not the type of a tensor"),
        (lambda data: data.update(results=5), "results that the graph does not have"),
        (lambda data: data.update(results={"list": [[[]]]}), "structure of its arguments or results is damaged"),
        (lambda data: data.update(results={"torch.max": [0]}), "structure of its arguments or results is damaged"),
        (lambda data: data.update(results={"torch.nothing": [0]}), "structure of its arguments or results is damaged"),
        (lambda data: data.update(results={"dict": [["a", "a"], [0, 0]]}), "structure of its arguments or results"),
        (lambda data: data.update(positional=[["x", 0], ["x", 0]]), "two of its arguments have one name"),
        (lambda data: data.update(positional=[]), "where every input of the graph comes from"),
        (lambda data: data.update(memory=[["a", 1]]), "memory must be a list of pairs"),
        (lambda data: data.update(state=None), "state must be a list"),
    ],
)
def test_metadata_that_lies_is_refused_with_what_is_wrong(change, message: str, sections: Sections, path: Path) -> None:
    assert re.search(message, refused_or_loaded(path, changed_metadata(sections, change)))


def test_deep_nesting_is_refused(sections: Sections, path: Path) -> None:
    for deep in ("[" * 100_000, '{"list":[' * 100_000, '{"results":' + '{"list":[' * 60 + "0" + "]}" * 60 + "}"):
        assert refused_or_loaded(path, {**sections, "metadata": deep.encode()})
    graph = sections["graph"].replace(b"16]", b"16]" + b"[" * 100_000, 1)
    assert refused_or_loaded(path, {**sections, "graph": graph})


def test_a_block_of_tensors_with_huge_sizes_is_refused(sections: Sections, path: Path) -> None:
    for shape, offsets in (([2**40, 2**40], [0, 4]), ([2**62], [0, 2**62]), ([1], [0, 4]), ([0, 2**62], [0, 0])):
        header = json.dumps({"fc.weight": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
        block = struct.pack("<Q", len(header)) + header + bytes(4)
        assert refused_or_loaded(path, {**sections, "tensors": block})
    assert refused_or_loaded(path, {**sections, "tensors": struct.pack("<Q", 2**63) + b"{}"})


def test_booleans_that_are_neither_true_nor_false_are_refused(path: Path, sections: Sections) -> None:
    header = json.dumps({"#constant.0": {"dtype": "BOOL", "shape": [16], "data_offsets": [0, 16]}}).encode()
    forged = {**sections, "tensors": struct.pack("<Q", len(header)) + header + bytes([2] * 16)}
    forged = changed_metadata(forged, lambda data: data["constants"][0].update(type="bool[16]"))
    assert "neither true nor false" in refused_or_loaded(path, forged)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it does not begin as one"),
        (b"PK\x03\x04" + bytes(100), "it does not begin as one"),
        (MAGIC + struct.pack("<I", VERSIONS[-1] + 1) + bytes(52), "version 3; this Weft reads versions 1 and 2"),
        (HEADER.pack(MAGIC, VERSIONS[0], 1, 2**60, bytes(8), bytes(32)), "bytes, and it has 64"),
        (HEADER.pack(MAGIC, VERSIONS[0], 0, 64, bytes(8), hashlib.sha256(b"").digest()), "its header is damaged"),
        (HEADER.pack(MAGIC, VERSIONS[0], 2**32 - 1, 64, bytes(8), bytes(32)), "its header is damaged"),
        (HEADER.pack(MAGIC, VERSIONS[0], 1, 64, bytes(8), bytes(32)), "its table of sections is damaged"),
    ],
)
def test_what_is_no_program_file_is_refused(content: bytes, message: str, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(ProgramFileError, match=message):
        load_program(path)


def test_native_code_for_another_machine_is_skipped_and_other_sections_are_not(sections: Sections, path: Path) -> None:
    assert not refused(path, whole({**sections, "object.avx512": b"\x7fELF"}))
    assert "does not know its section extra" in refused(path, whole({**sections, "extra": b""}))
    del sections["graph"]
    assert "it has no section graph" in refused(path, whole(sections))


def test_a_section_past_its_limit_is_refused_before_it_is_read(sections: Sections, path: Path) -> None:
    big = b" " * (SECTIONS["metadata"] + 1)
    assert "the limit is" in refused(path, whole({**sections, "metadata": big}))


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, Path("/dev/zero"), tmp_path / "missing.weft"):
        with pytest.raises(ProgramFileError, match=str(place)):
            load_program(place)


def test_a_missing_file_names_the_one_that_was_meant(tmp_path: Path) -> None:
    (tmp_path / "net.weft").touch()
    with pytest.raises(ProgramFileError, match=r"there is no such file\n.*did you mean .*/net\.weft\?"):
        load_program(tmp_path / "nte.weft")
