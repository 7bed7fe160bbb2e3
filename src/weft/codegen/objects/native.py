"""Load functions in machine code into this process, from the disk cache or compiled now, and read object files.

An entry is named after all that decides its bytes. For a module that is its text; for what is costly to write as text
it is a description of what is to be written, with the digest of the code that writes it. Code from the cache and code
just compiled are the same bytes.
"""

import hashlib
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from llvmlite import binding as llvm
from llvmlite import ir

from weft.codegen.objects.compiler import VERSIONS, Compilation, object_code, object_codes, target_machine
from weft.codegen.objects.memory import LOADING, memory_for
from weft.codegen.objects.object_cache import ObjectCache, code_version
from weft.config import config
from weft.errors import InternalError
from weft.target import Target

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


OBJECT_FOLDER = "objects"
LENGTH_BYTES = 8
COPIES = 4  # of object code that LLVM makes at most while it loads it

# llvmlite's engines are not thread safe. Held while one is made and asked; what runs inside never waits for another
# thread, so it cannot deadlock. A forked child starts with a fresh lock, because the thread that held the old one does
# not exist there.
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603  # a forked child must not inherit a lock that nobody will release
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class NativeLibrary:
    """Functions in machine code in this process; they live as long as this object does."""

    def __init__(self, engine: llvm.ExecutionEngine, names: frozenset[str], objects: Sequence[bytes]) -> None:
        self._engine = engine
        self._addresses: dict[str, int] = {}
        self.names = names
        self.objects = tuple(objects)

    def address(self, name: str) -> int:
        """Give the address of a function; it is valid while this library is referenced."""
        known = self._addresses.get(name)
        if known is not None:
            return known
        # LLVM ends the process when asked for a symbol that does not exist.
        if name not in self.names:
            there = "there are: " + ", ".join(sorted(self.names))
            raise InternalError(f"no native function is called {name!r}", why=there)
        # SAFETY: the engine is held by this object, and the address is only used while that is referenced.
        with _lock:
            self._addresses[name] = int(self._engine.get_function_address(name))
        return self._addresses[name]


def compile_native(module: str | ir.Module, target: Target, *, use_cache: bool = True) -> NativeLibrary:
    """Compile a module for this machine and load it; the disk cache is asked first unless told otherwise."""
    text = str(module)

    def compiled() -> Sequence[bytes]:
        return (object_code(text, target),)

    return load_objects(_cached(text, compiled, target) if use_cache else compiled(), target)


def compile_described(
    description: str, write: Callable[[], Iterable[str]], target: Target, begun: Compilation | None = None
) -> NativeLibrary:
    """Load what `write` gives the texts of, modules that call one another, which is only called where it is new.

    It may give a text as soon as it is written: that one is compiled while the next is. Some may have been `begun`
    before it was known what calls them: they come first.

    The description and the code of Weft decide the texts.
    """
    described = f"{code_version()}\n{description}"
    return load_objects(_cached(described, lambda: object_codes(write(), target, begun), target), target)


def _cached(description: str, compiled: Callable[[], Sequence[bytes]], target: Target) -> Sequence[bytes]:
    """Give object code from the disk cache, compiling and keeping it where it is not there."""
    folder = config().cache_dir
    if folder is None:
        return compiled()
    entries = _object_cache(folder)
    key = cache_key(description, target)
    entry = entries.read(key)
    if entry is not None:
        return _separate(entry)
    objects = compiled()
    entries.write(key, _together(objects))
    return objects


def cache_key(description: str, target: Target) -> str:
    """Name object code by all that decides its bytes: what it is of, the processor, the versions that compile it."""
    return hashlib.sha256(repr((VERSIONS, target, description)).encode()).hexdigest()


def _together(objects: Sequence[bytes]) -> bytes:
    return b"".join(len(code).to_bytes(LENGTH_BYTES, "little") + code for code in objects)


def _separate(entry: bytes) -> list[bytes]:
    """Undo `_together`; the cache has seen to it that the entry is as it was written."""
    objects, place = [], 0
    while place < len(entry):
        start = place + LENGTH_BYTES
        place = start + int.from_bytes(entry[place:start], "little")
        objects.append(entry[start:place])
    return objects


def load_objects(objects: Sequence[bytes], target: Target) -> NativeLibrary:
    """Load object files that were compiled for this machine; they may call one another through pointers."""
    contents = [read_object_file(code) for code in objects]
    with _lock, memory_for(0, LOADING + COPIES * sum(map(len, objects))):
        # In LLVM's global context: one of its own might be collected before the engine, whose module needs it.
        empty = llvm.parse_assembly(f'target triple = "{target.triple}"')
        # llvmlite's memory manager keeps code and constants in one reservation, as the small code model demands, but
        # it ends the process where LLVM needs a stub for a call to a far function. Emitters call through a pointer
        # (module.Module.imported), so only a call that LLVM itself invents (memset, fmodf) takes the other way.
        near = not any(content.outside_calls for content in contents)
        # The engine owns its target machine and ends it: each needs its own.
        engine = llvm.create_mcjit_compiler(empty, target_machine(target), use_lmm=near)
        for code in objects:
            engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return NativeLibrary(engine, frozenset().union(*(content.functions for content in contents)), objects)


@cache
def _object_cache(folder: Path) -> ObjectCache:
    return ObjectCache(folder / OBJECT_FOLDER)
