"""Write a program to one `.weft` file and read it back; every size in a file is checked before it is believed.

docs/program-file.md is the format: named blocks of bytes behind a table, each with a digest.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from weft.errors import UsageError
from weft.files import given_file, given_path, open_regular, what_is_near, write_atomically
from weft.programs.loaded import LoadedProgram
from weft.programs.parts import LARGEST_METADATA, LARGEST_TEXT, ProgramParts, Written, read_parts, write_parts

MAGIC = b"\x89WEFT\r\n\x1a"  # a high bit and both line ends: a transfer as text breaks it visibly
SUFFIX = ".weft"
VERSIONS = (1, 2)  # since 2 sizes may vary
ALIGNMENT = 64
MOST_SECTIONS = 64
HEADER = struct.Struct("<8sIIQ8s32s")  # magic, version, sections, length of the file, zeros, digest of the table
ENTRY = struct.Struct("<16sQQ32s")  # name, offset, length, digest of the bytes
SECTION_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,15}", re.ASCII)
Bytes = bytes | memoryview


class ProgramFileError(UsageError):
    """A file that is not a program file, is damaged, or holds what may not be run; the fact names the file."""


@dataclass(frozen=True, slots=True)
class Section:
    """A row of a file's table: what the bytes from `offset` on are."""

    name: str
    offset: int
    length: int
    digest: bytes


def file_error(path: Path, problem: str, *, why: str | None = None, fix: str | None = None) -> ProgramFileError:
    """Make the error that names the file and what is wrong with it."""
    return ProgramFileError(f"{path} is not a program that can be loaded: {problem}", why=why, fix=fix)


def packed(sections: Mapping[str, Bytes], version: int = VERSIONS[0]) -> list[Bytes]:
    """Give the pieces of a file in order: header, table, and every section at a multiple of 64 bytes."""
    rows = []
    pieces: list[Bytes] = []
    position = HEADER.size + ENTRY.size * len(sections)
    for name, content in sections.items():
        gap = -position % ALIGNMENT
        length = len(content)
        rows.append(ENTRY.pack(name.encode("ascii"), position + gap, length, hashlib.sha256(content).digest()))
        pieces += [bytes(gap), content]
        position += gap + length
    table = b"".join(rows)
    header = HEADER.pack(MAGIC, version, len(sections), position, bytes(8), hashlib.sha256(table).digest())
    return [header, table, *pieces]


def read_sections(path: Path, most: Mapping[str, int | None]) -> dict[str, bytes]:
    """Read the sections named in `most`, each of which may have at most so many bytes (None: as many as the file)."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            table = _read_table(path, file, size)
            _check_names(path, table, most)
            return {section.name: _read_section(path, file, section) for section in table if section.name in most}
    except FileNotFoundError as error:
        why, fix = what_is_near(path, [SUFFIX])
        raise file_error(path, "there is no such file", why=why, fix=fix) from error
    except OSError as error:
        raise file_error(path, error.strerror or type(error).__name__) from error


def _read_table(path: Path, file: BinaryIO, size: int) -> list[Section]:
    header = file.read(HEADER.size)
    if len(header) < HEADER.size or not header.startswith(MAGIC):
        raise file_error(path, "it does not begin as one", fix="give a file that Program.save wrote")
    _, version, count, length, zeros, digest = HEADER.unpack(header)
    if version not in VERSIONS:
        raise file_error(path, f"its format has version {version}; this Weft reads versions 1 and 2")
    if length != size:
        raise file_error(path, f"it says that it has {length} bytes, and it has {size}", why="it was cut or extended")
    if zeros != bytes(8) or not 0 < count <= MOST_SECTIONS:
        raise file_error(path, "its header is damaged")
    table = file.read(ENTRY.size * count)
    if hashlib.sha256(table).digest() != digest:
        raise file_error(path, "its table of sections is damaged", why="the digest in its header is of other bytes")
    sections = [_section(path, *ENTRY.unpack_from(table, ENTRY.size * row)) for row in range(count)]
    _check_layout(path, sections, size)
    return sections


def _section(path: Path, name: bytes, offset: int, length: int, digest: bytes) -> Section:
    text = name.rstrip(b"\0").decode("latin-1")
    if not SECTION_NAME.fullmatch(text):
        raise file_error(path, f"a section has the name {text!r}")
    return Section(text, offset, length, digest)


def _check_layout(path: Path, sections: Sequence[Section], size: int) -> None:
    """Sections follow one another without overlap, each at the next multiple of 64, up to the file's end."""
    position = HEADER.size + ENTRY.size * len(sections)
    for section in sections:
        position += -position % ALIGNMENT
        if section.offset != position or section.length > size - position:
            raise file_error(path, f"its section {section.name} does not lie where it must")
        position += section.length
    if position != size:
        raise file_error(path, f"its sections end at byte {position} of {size}")


def _check_names(path: Path, sections: Sequence[Section], most: Mapping[str, int | None]) -> None:
    names = [section.name for section in sections]
    if len(set(names)) < len(names):
        raise file_error(path, "two of its sections have one name")
    for name in most:
        if name not in names:
            raise file_error(path, f"it has no section {name}")
    for section in sections:
        # Native code for some processor may be skipped: the graph says the same. Anything else may not.
        if section.name not in most and not section.name.startswith("object."):
            raise file_error(path, f"this Weft does not know its section {section.name}")
        limit = most.get(section.name)
        if limit is not None and section.length > limit:
            raise file_error(path, f"its section {section.name} has {section.length} bytes; the limit is {limit}")


def _read_section(path: Path, file: BinaryIO, section: Section) -> bytes:
    file.seek(section.offset)
    content = file.read(section.length)
    if len(content) != section.length or hashlib.sha256(content).digest() != section.digest:
        raise file_error(path, f"its section {section.name} is damaged", why="its digest is of other bytes")
    return content


__all__ = ["LoadedProgram", "ProgramFileError", "read_program", "save_program"]
SECTIONS = {"metadata": LARGEST_METADATA, "graph": LARGEST_TEXT, "tensors": None}


def save_program(parts: ProgramParts, path: str | os.PathLike[str], versions: dict[str, str] | None = None) -> None:
    """Write a program as a file: its graph, its signature, and its tensors as they are now."""
    target = given_file(path, "program.save", 'program.save("net.weft")')
    written = write_parts(parts, {"torch": torch.__version__, **(versions or {})})
    sections = {"metadata": written.metadata, "graph": written.text, "tensors": written.tensors}
    for name, limit in SECTIONS.items():
        if limit is not None and len(sections[name]) > limit:
            raise UsageError(f"{target} would have {len(sections[name])} bytes of {name}; the limit is {limit}")
    write_atomically(target, packed(sections, VERSIONS[bool(parts.sizes)]))


def read_program(
    path: str | os.PathLike[str],
    allow: Sequence[str] = (),
    make: Callable[[ProgramParts], LoadedProgram] = LoadedProgram,
) -> LoadedProgram:
    """Read a program from a file that `save_program` wrote, and make what runs it."""
    source = given_path(path, "load_program", 'weft.load_program("net.weft")')
    sections = read_sections(source, SECTIONS)
    written = Written(sections["metadata"], sections["graph"], sections["tensors"])
    try:
        with torch.inference_mode(False):
            return make(read_parts(written, allow))
    except UsageError as error:
        where = f" ({error.where})" if error.where else ""
        raise file_error(source, error.fact + where, why=error.why, fix=error.fix) from error
    except (ValueError, RuntimeError, OverflowError, RecursionError) as error:
        # What PyTorch and Python raise for values that no saved program has, such as numbers of 5,000 digits.
        raise file_error(source, "something in it has no meaning", why=str(error)) from error
