"""Read an ELF object file: the names it defines, and the functions it calls by a short jump outside itself."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from weft.errors import InternalError

ELF_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")
SYMBOL_TABLE, RELOCATIONS = 2, 4
FUNCTION, GLOBAL_BINDINGS = 2, (1, 2)
# Relocations of a call whose reach is less than the address space: PLT32, PC32 and the GOT loads on x86-64; CALL26,
# JUMP26 and the GOT pages on aarch64.
SHORT_REACH = {62: {2, 4, 9, 41, 42}, 183: {282, 283, 311, 312}}


@dataclass(frozen=True)
class ObjectFile:
    """What a loader must know of an object file."""

    functions: frozenset[str]
    outside_calls: frozenset[str]


@dataclass(frozen=True)
class _Section:
    kind: int
    body: bytes
    link: int


def read_object_file(code: bytes) -> ObjectFile:
    """Read the symbols and relocations of object code."""
    if not code.startswith(ELF_MAGIC):
        raise InternalError("object code is not a 64-bit ELF file", why=f"it starts with {code[:6]!r}")
    machine = HEADER.unpack_from(code)[2]
    sections = list(_sections(code))
    functions: set[str] = set()
    outside: set[str] = set()
    for table in (section for section in sections if section.kind == SYMBOL_TABLE):
        names = sections[table.link].body
        symbols = [(_name(names, row[0]), row) for row in SYMBOL.iter_unpack(table.body)]
        functions |= {name for name, row in symbols if _is_public_function(row)}
        for section in (section for section in sections if section.kind == RELOCATIONS):
            for _, info, _ in RELOCATION.iter_unpack(section.body):
                name, row = symbols[info >> 32]
                if not row[3] and info & 0xFFFFFFFF in SHORT_REACH.get(machine, set()):
                    outside.add(name)
    return ObjectFile(frozenset(functions), frozenset(outside))


def _sections(code: bytes) -> Iterator[_Section]:
    header = HEADER.unpack_from(code)
    start, size, count = header[6], header[11], header[12]
    for number in range(count):
        row = SECTION.unpack_from(code, start + number * size)
        yield _Section(row[1], code[row[4] : row[4] + row[5]], row[6])


def _is_public_function(symbol: tuple[int, ...]) -> bool:
    _, info, _, section, _, _ = symbol
    return section != 0 and info & 15 == FUNCTION and info >> 4 in GLOBAL_BINDINGS


def _name(names: bytes, offset: int) -> str:
    return names[offset : names.index(b"\0", offset)].decode()
