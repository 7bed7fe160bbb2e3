"""LLVM module text -> machine code for a Target: loaded into this process, or as bytes of an object file.

Every way in optimises the text, emits one object file and, for this process, loads it; so code from the disk cache
and code just compiled are the same bytes.
"""

import hashlib
import os
import threading
from functools import cache
from pathlib import Path

import llvmlite
from llvmlite import binding as llvm
from llvmlite import ir

from weft.codegen.object_cache import ObjectCache
from weft.codegen.object_file import read_object_file
from weft.config import config
from weft.errors import InternalError
from weft.target import Target

OPTIMIZATION = 2
# Emitters write registers, vectors and loops as they should be: what is left to do is small. LLVM's own pipeline takes
# five times as long, makes the same code of our kernels, and would vectorise what is left scalar on purpose.
PASSES = (
    llvm.FunctionPassManager.add_simplify_cfg_pass,
    llvm.FunctionPassManager.add_loop_rotate_pass,
    llvm.FunctionPassManager.add_instruction_combine_pass,
    llvm.FunctionPassManager.add_new_gvn_pass,
    llvm.FunctionPassManager.add_simplify_cfg_pass,
)
OBJECT_FOLDER = "objects"

# LLVM's global context and llvmlite's bindings are not thread safe. Held while one module is parsed, optimised,
# emitted and loaded; what runs inside never waits for another thread, so it cannot deadlock. A forked child starts
# with a fresh lock, because the thread that held the old one does not exist there.
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603  # a forked child must not inherit a lock that nobody will release
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class NativeLibrary:
    """Functions in machine code in this process; they live as long as this object does."""

    def __init__(self, engine: llvm.ExecutionEngine, names: frozenset[str], object_code: bytes) -> None:
        self._engine = engine
        self._addresses: dict[str, int] = {}
        self.names = names
        self.object_code = object_code

    def address(self, name: str) -> int:
        """Give the address of a function; it is valid while this library is referenced."""
        known = self._addresses.get(name)
        if known is not None:
            return known
        # LLVM ends the process when asked for a symbol that does not exist.
        if name not in self.names:
            there = "there are: " + ", ".join(sorted(self.names))
            raise InternalError(f"no native function is called {name!r}", why=there)
        with _lock:
            self._addresses[name] = int(self._engine.get_function_address(name))
        return self._addresses[name]


def compile_native(module: str | ir.Module, target: Target, *, use_cache: bool = True) -> NativeLibrary:
    """Compile a module for this machine and load it; the disk cache is asked first unless told otherwise."""
    text = str(module)
    code = cached_object_code(text, target) if use_cache else object_code(text, target)
    return load_object_code(code, target)


def cached_object_code(text: str, target: Target) -> bytes:
    """Give the object code of module text from the disk cache, compiling and keeping it where it is not there."""
    folder = config().cache_dir
    if folder is None:
        return object_code(text, target)
    entries = _object_cache(folder)
    key = cache_key(text, target)
    code = entries.read(key)
    if code is None:
        code = object_code(text, target)
        entries.write(key, code)
    return code


def cache_key(text: str, target: Target) -> str:
    """Name object code by all that decides its bytes: the text, the processor, the versions that compile it."""
    versions = (llvmlite.__version__, llvm.llvm_version_info, OPTIMIZATION, [add.__name__ for add in PASSES])
    processor = (target.triple, target.cpu, target.features)
    return hashlib.sha256(repr((versions, processor, text)).encode()).hexdigest()


def object_code(module: str | ir.Module, target: Target) -> bytes:
    """Compile a module to a relocatable object file for any target."""
    with _lock:
        machine = target_machine(target)
        return bytes(machine.emit_object(optimized(str(module), machine)))


def assembly(module: str | ir.Module, target: Target) -> str:
    """Compile a module to assembly text for any target: to read what became of it."""
    with _lock:
        machine = target_machine(target)
        machine.set_asm_verbosity(False)
        return str(machine.emit_assembly(optimized(str(module), machine)))


def optimized_text(module: str | ir.Module, target: Target) -> str:
    """Give a module's LLVM text after optimisation: to read what became of it."""
    with _lock:
        return str(optimized(str(module), target_machine(target)))


def load_object_code(code: bytes, target: Target) -> NativeLibrary:
    """Load an object file that was compiled for this machine."""
    contents = read_object_file(code)
    with _lock:
        empty = llvm.parse_assembly(f'target triple = "{target.triple}"')
        # llvmlite's memory manager keeps code and constants in one reservation, as the small code model demands, but
        # it ends the process where LLVM needs a stub for a call to a far function. Emitters call through a pointer
        # (module.Module.imported), so only a call that LLVM itself invents (memset, fmodf) takes the other way.
        near = not contents.outside_calls
        # The engine owns its target machine and ends it: each needs its own.
        engine = llvm.create_mcjit_compiler(empty, target_machine(target), use_lmm=near)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return NativeLibrary(engine, contents.functions, code)


def optimized(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """Parse, check and optimise module text; text that LLVM rejects is a mistake of an emitter."""
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"LLVM rejects the code of a kernel: {error}") from error
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=OPTIMIZATION))
    passes = llvm.create_new_function_pass_manager()
    for add in PASSES:
        add(passes)
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return module


def target_machine(target: Target) -> llvm.TargetMachine:
    """Make LLVM's description of a target; every engine needs its own."""
    _initialize_llvm()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.feature_string,
        opt=OPTIMIZATION,
        reloc="pic",
        codemodel="small",
        jit=True,
    )


@cache
def _initialize_llvm() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def _object_cache(folder: Path) -> ObjectCache:
    return ObjectCache(folder / OBJECT_FOLDER)
