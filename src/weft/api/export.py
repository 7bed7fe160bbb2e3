"""Export a Program as a folder for C programs: header, source, machine code, weights and a checked example."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from weft.codegen.c_library import C_TYPES, CLibrary, CParameter, Interface, c_library
from weft.errors import ExecutionError, UnsupportedError, UsageError
from weft.files import given_path, write_atomically
from weft.ir.graph import Graph, Value
from weft.ir.types import DTYPE_NAMES, NumberType, TensorType
from weft.plan.fuse.fuse import Fused, fuse
from weft.plan.memory.arena import place
from weft.plan.regions.attention import with_attentions
from weft.plan.regions.region import Region, find_regions, with_regions
from weft.programs.loaded import LoadedProgram
from weft.programs.parts import ProgramParts
from weft.programs.program import Program
from weft.runtime.executable import NativeExecutable
from weft.target import host_target
from weft.trace.lift.lift import lift
from weft.tracebacks import shows_less
from weft.underway import underway

COMPILER = "cc"
SECONDS = 120


def makefile(name: str) -> str:
    """Write what links the library, and what compares."""
    return (
        f"CFLAGS = -O2\n\nall: lib{name}.so {name}_test\n\n"
        f"lib{name}.so: {name}.c {name}.h {name}_kernels.o\n\t"
        f"$(CC) $(CFLAGS) -shared -fPIC -o $@ {name}.c {name}_kernels.o -lm\n\n"
        f"{name}_test: {name}_test.c lib{name}.so\n"
        f"\t$(CC) $(CFLAGS) -o $@ {name}_test.c lib{name}.so -Wl,-rpath,'$$ORIGIN'\n\n"
        f"test: {name}_test\n\t./{name}_test\n"
    )


def build_and_compare(folder: Path, name: str) -> tuple[str, ...]:
    """Link the library and compare, where a C compiler is; give the files that this made."""
    compiler = shutil.which(COMPILER)
    if compiler is None:
        return ()
    # The library is linked by its file: `-lm` would be another where a folder is called m.
    library, test = f"lib{name}.so", f"{name}_test"
    commands = (
        (compiler, "-O2", "-shared", "-fPIC", "-o", library, f"{name}.c", f"{name}_kernels.o", "-lm"),
        (compiler, "-O2", "-o", test, f"{test}.c", library, "-Wl,-rpath,$ORIGIN"),
        (str(folder.resolve() / test),),
    )
    for command in commands:
        _run(command, folder)
    return library, test


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise ExecutionError(
            f"{folder} is written, but {Path(command[0]).name} failed on it",
            why=(done.stderr or done.stdout).strip(),
            fix=f"make -C {folder} test repeats it",
        )


CALL = 'weft.export(weft.program(net, x), "net")'
OTHER = re.compile(r"\W", re.ASCII)
# What the C files call something else, and C's own words: who has such a name gets another.
WORDS = """self scratch table file data wrong count words main room set read_data prepare take differs
auto break case char class const continue default delete do double else enum extern float for goto if inline int
long new register restrict return short signed sizeof static struct switch template this typedef union unsigned
void volatile while"""
TAKEN = frozenset(WORDS.split())


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written; `checked` says whether a C compiler was there and the compiled library gave the same bits."""

    folder: Path
    files: tuple[str, ...]
    checked: bool


@shows_less
def export(program: Program | LoadedProgram, folder: str | os.PathLike[str]) -> Exported:
    """Write a program as a C library that needs neither Python nor PyTorch: header, source, object code and weights.

    It runs on the thread of its caller, on processors like this one (with `WEFT_TARGET=avx2`, on more).
    Where there is a C compiler, the shared library is linked, and a C program calls it and compares the results.
    """
    target = given_path(folder, "export", CALL)
    if not isinstance(program, Program | LoadedProgram):
        raise UsageError(f"export takes a program, not {type(program).__name__}", fix=CALL)
    parts = program.parts
    underway(f"planning {parts.graph.name}")
    native = _native(parts)
    if isinstance(program, LoadedProgram):
        _check(program)
    name = _identifier(target.resolve().name or "net")
    interface = _interface(parts, native, name)
    underway(f"compiling {parts.graph.name}")
    library = c_library(native.fused.plan, interface, host_target())
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExecutionError(f"the folder {target} cannot be made", why=error.strerror) from error
    files = {
        f"{name}.h": library.header.encode(),
        f"{name}.c": library.source.encode(),
        f"{name}_kernels.o": library.code,
        f"{name}.data": _data(parts, native, interface, library),
        f"{name}_test.c": library.test.encode(),
        f"{name}.example": _example(parts, native, interface),
        "Makefile": makefile(name).encode(),
    }
    _check_overwritten(target, files, name)
    for file, content in files.items():
        write_atomically(target / file, [content])
    underway(f"linking and calling lib{name}.so")
    built = build_and_compare(target, name)
    return Exported(target, (*files, *built), bool(built))


def _check_overwritten(folder: Path, files: Iterable[str], name: str) -> None:
    """Overwrite what an earlier export wrote, and nothing else: a folder of the user's own may have a Makefile."""
    there = [file for file in files if (folder / file).exists()]
    if there and not (folder / f"{name}.example").is_file():
        raise UsageError(
            f"{folder} has a {there[0]} already",
            why="export writes such a file, and no earlier export has written that one",
            fix="name a new folder",
        )


def _check(program: LoadedProgram) -> None:
    """Compare what a file says of its program with what operators give: the machine code relies on it."""
    generator = torch.Generator().manual_seed(0)
    own = {entry.input: entry.tensor for entry in program.parts.state}
    program.check([own.get(i, _random(value, generator)) for i, value in enumerate(program.graph.inputs)])


@dataclass(frozen=True, slots=True, eq=False)
class _Native:
    """A program that is one region: the graph it was cut from, the region, its plan and the constants of that."""

    graph: Graph
    region: Region
    fused: Fused


def _native(parts: ProgramParts) -> _Native:
    """Plan a program that is machine code from end to end; any other cannot do without PyTorch."""
    if parts.sizes:
        names = ", ".join(parts.graph.inputs[size.input].name for size in parts.sizes)
        raise UnsupportedError(
            f"{parts.graph.name} cannot be exported: its sizes vary ({names})",
            why="a C library is made for one size of each argument",
            fix="export a program of a network that is hybridized without sizes=, or run the .weft file with Weft",
        )
    if parts.graph.writes:
        raise UnsupportedError(
            f"{parts.graph.name} cannot be exported: it writes into tensors that it is given or keeps",
            fix="export it in evaluation mode: net.eval()",
        )
    state = frozenset(parts.graph.inputs[entry.input] for entry in parts.state)
    graph = with_attentions(lift(parts.graph), host_target())
    regions = find_regions(graph, state)
    calls = Counter(
        value.attributes["call"].target if value.op == "library" else value.op
        for value in with_regions(graph, regions).values
        if value.op in ("library", "update")
    )
    if calls or len(regions) != 1:
        raise UnsupportedError(
            f"{parts.graph.name} cannot be exported: not all of it is machine code of Weft's own",
            why="by PyTorch's operators: " + (", ".join(f"{name} x {count}" for name, count in calls.items()) or "all"),
            fix="export the part of the model without these, or run the .weft file with Weft",
        )
    region = regions[0]
    for result in graph.results:
        if result.path or result.value not in region.outputs:
            raise UnsupportedError(
                f"{parts.graph.name} cannot be exported: a result of it is an argument, or a view of one",
                fix="return a copy: x.clone()",
            )
    if any(isinstance(value.type, NumberType) for value in region.inputs):
        raise UnsupportedError(
            f"{parts.graph.name} cannot be exported: it takes a Python number that changes",
            fix="give the number as a tensor",
        )
    fused = fuse(region, host_target())
    return _Native(graph, region, replace(fused, plan=place(fused.plan)))


def _interface(parts: ProgramParts, native: _Native, name: str) -> Interface:
    state = {entry.input for entry in parts.state}
    numbers = {value: index for index, value in enumerate(native.graph.inputs)}
    names = iter(_unique(_identifier(value.name or "x") for value in native.region.inputs))
    arguments: dict[int, CParameter] = {}
    data = []
    for index, (value, unique) in enumerate(zip(native.region.inputs, names, strict=True)):
        if numbers[value] in state:
            data.append(index)
        else:
            arguments[index] = _port(unique, value)
    count = len(native.region.outputs)
    results = [_port("result" if count == 1 else f"result{i}", value) for i, value in enumerate(native.region.outputs)]
    return Interface(name, f"Program {parts.graph.name}", arguments, tuple(data), tuple(results))


def _port(name: str, value: Value) -> CParameter:
    kind = value.type
    assert isinstance(kind, TensorType)
    dtype = DTYPE_NAMES[kind.dtype]
    extent = 1 + sum((size - 1) * step for size, step in zip(kind.shape, kind.strides, strict=True)) if kind.size else 0
    layout = f"{C_TYPES[dtype]}[{']['.join(map(str, kind.shape))}]" if kind.shape else C_TYPES[dtype]
    return CParameter(name, dtype, extent * kind.dtype.itemsize, f"{layout}, strides {list(kind.strides)}")


def _tensors(parts: ProgramParts, native: _Native) -> list[torch.Tensor | None]:
    """The region's inputs that belong to the program; None for arguments."""
    own = {parts.graph.inputs[entry.input]: entry.tensor for entry in parts.state}
    return [own.get(value) for value in native.region.inputs]


def _data(parts: ProgramParts, native: _Native, interface: Interface, library: CLibrary) -> bytes:
    tensors = _tensors(parts, native)
    stored = [tensors[index] for index in interface.data] + list(native.fused.constants)
    content = bytearray(library.data_bytes)
    for offset, tensor in zip(library.data_offsets, stored, strict=True):
        assert tensor is not None
        piece = _memory(tensor)
        content[offset : offset + len(piece)] = piece
    return bytes(content)


def _example(parts: ProgramParts, native: _Native, interface: Interface) -> bytes:
    """Arguments and the results of the very same code, run here."""
    generator = torch.Generator().manual_seed(0)
    inputs = _tensors(parts, native)
    for index in interface.arguments:
        inputs[index] = _random(native.region.inputs[index], generator)
    outputs = [_empty(value) for value in native.region.outputs]
    given = [tensor for tensor in inputs if tensor is not None]
    lasting = list(interface.data)
    NativeExecutable(native.fused.plan, host_target(), native.fused.constants, lasting)(given, outputs)
    return b"".join(_memory(tensor) for tensor in (*(given[index] for index in interface.arguments), *outputs))


def _random(value: Value, generator: torch.Generator) -> torch.Tensor:
    tensor = _empty(value)
    if tensor.dtype.is_floating_point:
        return tensor.normal_(generator=generator)
    return tensor.random_(0, 2, generator=generator)


def _empty(value: Value) -> torch.Tensor:
    kind = value.type
    assert isinstance(kind, TensorType)
    return torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype)


def _memory(tensor: torch.Tensor) -> bytes:
    """The bytes from a tensor's first element to its last, as they lie."""
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.detach().as_strided((extent if tensor.numel() else 0,), (1,))
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def _identifier(text: str) -> str:
    found = OTHER.sub("_", text)
    return f"_{found}" if not found or found[0].isdigit() or found in TAKEN else found


def _unique(names: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    for name in names:
        unique, number = name, 1
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found[unique] = None
    return list(found)
