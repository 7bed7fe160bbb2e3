"""Load functions in machine code into this process, from the disk cache or compiled now, and read object files.

An entry is named after all that decides its bytes. For a module that is its text; for what is costly to write as text
it is a description of what is to be written, with the digest of the code that writes it. Code from the cache and code
just compiled are the same bytes.

An entry is one file: a mark, the SHA-256 of the object code, the object code. It is written beside its place and
renamed onto it, so a reader sees all of it or nothing. An entry whose checksum is wrong counts as absent.

What is kept under a description of what it computes is as old as the generator that wrote it: `code_version`, a digest
of the generator's sources, is a part of its name, so that a changed generator never meets it again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from llvmlite import binding as llvm
from llvmlite import ir

from weft.codegen.objects.compiler import VERSIONS, Compilation, object_code, object_codes, target_machine
from weft.codegen.objects.memory import LOADING, memory_for
from weft.config import config
from weft.errors import InternalError
from weft.target import Target

MARK = b"weft object 2\n"
DIGEST_BYTES = 32
SUFFIX = ".weftobject"
LARGEST_CACHE = 256 * 1024 * 1024
# Counting the folder's bytes costs as much as many writes, so it is done once in so many writes.
WRITES_BETWEEN_PRUNES = 64

# All that code generation reads: its own files, the kernels it is given, and the types and processors they speak of.
SOURCES = ("codegen/**/*.py", "plan/**/*.py", "ir/**/*.py", "target.py")
DIGEST_FOLDER = "digests"
LARGEST_DIGESTS = 256 * 1024
# A file that has just been written may be written again without looking different: its time has ticks.
NEW_NANOSECONDS = 2_000_000_000

log = logging.getLogger("weft.codegen")
FileStamp = tuple[str, int, int, int, int]  # a file's path, number, size, and when it and what the system says changed


@dataclass
class ObjectCache:
    """The object code kept in one folder; the least recently used entries go when it is over its size."""

    folder: Path
    largest: int = LARGEST_CACHE
    writes: int = 0

    def path(self, key: str) -> Path:
        """Give the file of a key."""
        return self.folder / f"{key}{SUFFIX}"

    def read(self, key: str) -> bytes | None:
        """Give the object code of a key; None where there is none, or what is there is damaged."""
        path = self.path(key)
        try:
            entry = path.read_bytes()
        except OSError:
            return None
        body = entry[len(MARK) + DIGEST_BYTES :]
        if entry != MARK + hashlib.sha256(body).digest() + body:
            log.info("cache entry %s is damaged and will be built again", path.name)
            return None
        self._touch(path)
        return body

    def write(self, key: str, body: bytes) -> None:
        """Keep object code under a key; a folder that cannot be written is reported and costs only time."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".partial")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(MARK + hashlib.sha256(body).digest() + body)
                Path(temporary).replace(self.path(key))
            except OSError:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            log.warning("compiled code cannot be kept in %s: %s", self.folder, error)
            return
        if self.writes % WRITES_BETWEEN_PRUNES == 0:
            self.prune()
        self.writes += 1

    def prune(self) -> None:
        """Remove the least recently used entries until the rest fits in the cache's size."""
        entries = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # another process pruned it first
            entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.largest:
                break
            path.unlink(missing_ok=True)
            total -= size

    def _touch(self, path: Path) -> None:
        try:
            os.utime(path)
        except OSError:
            # Another user's cache, or one just pruned: the entry was read, only its age stays as it was.
            log.debug("cache entry %s keeps its age", path.name)


def digest_of(folder: Path, patterns: Sequence[str] = SOURCES) -> str:
    """Digest the names and contents of files: by default those that decide what machine code is written."""
    found = hashlib.sha256()
    for pattern in patterns:
        for stamp in sorted(_stamps(folder, pattern)):
            content, name = _content(stamp), stamp[0][len(str(folder)) + 1 :].replace(os.sep, "/")
            found.update(f"{name} {len(content)}\n".encode())
            found.update(content)
    return found.hexdigest()


def known_digest(folder: Path, patterns: Sequence[str] = SOURCES) -> str:
    """The same; from the disk cache where all files look as they did when it was kept, so that none is read."""
    place = config().cache_dir
    stamps = sorted(stamp for pattern in patterns for stamp in _stamps(folder, pattern))
    newest = max((max(stamp[3:]) for stamp in stamps), default=0)
    if place is None or newest > time.time_ns() - NEW_NANOSECONDS:
        return digest_of(folder, patterns)
    entries = ObjectCache(place / DIGEST_FOLDER, LARGEST_DIGESTS)
    key = hashlib.sha256(repr((str(folder), patterns, stamps)).encode()).hexdigest()
    found = entries.read(key)
    if found is None:
        found = f"{key} {digest_of(folder, patterns)}".encode()
        entries.write(key, found)
    name, _, digest = found.decode("ascii", "replace").partition(" ")
    # An entry that was moved to another's place is whole, and says whose it is.
    return digest if name == key else digest_of(folder, patterns)


@cache
def code_version() -> str:
    """Digest the files of this installation, as they are when it is first asked for."""
    return known_digest(Path(__file__).parents[2])


def _stamps(folder: Path, pattern: str) -> Iterator[FileStamp]:
    """FileStamp at the files of a pattern: one of them, or all of the kind in a folder and those inside."""
    top, _, rest = pattern.partition("/**/*")
    if not rest:
        yield _stamp(str(folder / top), (folder / top).stat())
        return
    folders = [str(folder / top)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(entry.path)
                elif entry.name.endswith(rest):
                    yield _stamp(entry.path, entry.stat())


def _stamp(path: str, status: os.stat_result) -> FileStamp:
    return path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _content(stamp: FileStamp) -> bytes:
    """Read a file of known size: in a first call, which reads hundreds, in half the time of an object for each."""
    path, _, size, *_ = stamp
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        content = os.read(descriptor, size + 1)
    finally:
        os.close(descriptor)
    return content if len(content) == size else Path(path).read_bytes()  # changed since it was looked at


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
