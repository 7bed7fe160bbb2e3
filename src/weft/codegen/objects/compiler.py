"""Compile texts of LLVM modules to machine code for a Target, as bytes of object files; several modules at once.

LLVM keeps what it knows of a module in a context. Each module has its own here, so modules are compiled at the same
time. llvmlite's bindings let one thread at a time into LLVM; the two functions that take long are called beside them.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import llvmlite
from llvmlite import binding as llvm
from llvmlite import ir
from llvmlite.binding import ffi

from weft.codegen.objects.memory import memory_for
from weft.devices import cpu_count
from weft.errors import InternalError, OutOfMemoryError
from weft.target import Target, architecture
from weft.worker_threads import WorkerThreads

OPTIMIZATION = 2
# Of machine code. More only orders instructions once again, which processors do themselves: it took a tenth of the time
# of compiling, and kernels were as fast without.
TRANSLATION = 1
# Emitters write registers, vectors and loops as they should be, and nothing twice: what is left to do is small. LLVM's
# own pipeline takes five times as long, makes the same code of our kernels, and would vectorise what is left scalar on
# purpose.
PASSES = (
    llvm.ModulePassManager.add_simplify_cfg_pass,
    llvm.ModulePassManager.add_loop_rotate_pass,
    llvm.ModulePassManager.add_instruction_combine_pass,
    llvm.ModulePassManager.add_new_gvn_pass,
    llvm.ModulePassManager.add_simplify_cfg_pass,
)
# LLVM's search for cheaper addresses in loops takes two fifths of the time of making machine code, and finds next to
# nothing where emitters carry along the one address that moves far, as register_block.py does.
AS_WRITTEN, AS_USUAL = "-disable-lsr", "-disable-lsr=false"
VERSIONS = (
    llvmlite.__version__,
    llvm.llvm_version_info,
    OPTIMIZATION,
    TRANSLATION,
    AS_WRITTEN,
    *(add.__name__ for add in PASSES),
)
OBJECT = 1  # rather than text
# Seconds after which a thread that computes in Python lets another have the interpreter, while somebody compiles. A
# module is some thirty calls of LLVM, most of them short: with Python's own 5 ms a thread would spend more time between
# them, waiting for the one that writes the next module, than in them.
SWITCH_INTERVAL = 1e-4


class Compilation:
    """Modules that other threads compile to object files of their own while the next ones are written.

    Each thread compiles one module and waits for nobody. Whoever makes one finishes it, or drops it.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._begun: list[tuple[str, Future[bytes]]] = []
        self._open = ExitStack()
        self._open.enter_context(_loops_as_written())
        threads = WorkerThreads(max(1, cpu_count() - 1), thread_name_prefix="weft compiler")
        self._threads = self._open.enter_context(threads)

    def add(self, text: str) -> None:
        """Begin to compile a module."""
        try:
            begun = self._threads.submit(object_code, text, self._target)
        except OutOfMemoryError:  # for another thread: this one compiles what no other has begun
            begun = Future()
        self._begun.append((text, begun))

    def finish(self) -> tuple[bytes, ...]:
        """Give the object files in the order of their texts, when all are compiled."""
        try:
            # Once all are written, this thread takes what no other has begun, the longest first: none is left alone
            # with a long one at the end.
            longest = sorted(self._begun, key=lambda entry: -len(entry[0]))
            own = {one: object_code(text, self._target) for text, one in longest if one.cancel()}
            return tuple(own[one] if one in own else one.result() for _, one in self._begun)
        finally:
            self.drop()

    def drop(self) -> None:
        """Compile no more: wait for what is being compiled, and forget it."""
        for _, one in self._begun:
            one.cancel()
        self._begun.clear()
        self._open.close()


def object_codes(texts: Iterable[str], target: Target, compilation: Compilation | None = None) -> tuple[bytes, ...]:
    """Compile modules to relocatable object files for any target, several at once, while the next ones are written.

    With a `compilation` that was begun before, its modules come first.
    """
    if compilation is None and cpu_count() < 2:
        return tuple(object_code(text, target) for text in texts)
    compilation = compilation or Compilation(target)
    try:
        for text in texts:
            compilation.add(text)
        return compilation.finish()
    finally:
        compilation.drop()  # where something failed


def object_code(module: str | ir.Module, target: Target) -> bytes:
    """Compile a module to a relocatable object file for any target."""
    text = str(module)
    with (
        memory_for(len(text)),
        _lent_machine(target) as machine,
        optimized(text, machine) as compiled,
        ffi.OutputString() as problem,
        _loops_as_written(),
    ):
        # SAFETY: machine and module are this thread's alone, and live until the function has returned.
        memory = _beside_the_lock("LLVMPY_TargetMachineEmitToMemory")(machine, compiled, OBJECT, problem)
        if not memory:
            raise InternalError(f"LLVM cannot translate the code of a kernel: {problem}")
    try:
        start, size = ffi.lib.LLVMPY_GetBufferStart(memory), ffi.lib.LLVMPY_GetBufferSize(memory)
        return ctypes.string_at(start, size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(memory)


def assembly(module: str | ir.Module, target: Target) -> str:
    """Compile a module to assembly text for any target: to read what became of it."""
    text = str(module)
    with memory_for(len(text)):
        machine = target_machine(target)
        machine.set_asm_verbosity(False)
        with optimized(text, machine) as compiled, _loops_as_written():
            return str(machine.emit_assembly(compiled))


def optimized_text(module: str | ir.Module, target: Target) -> str:
    """Give a module's LLVM text after optimisation: to read what became of it."""
    text = str(module)
    with memory_for(len(text)), optimized(text, target_machine(target)) as compiled:
        return str(compiled)


def optimized(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """Parse, check and optimise module text; text that LLVM rejects is a mistake of an emitter.

    Whoever asks closes the module: whatever looks at frames, as debuggers and profilers do, may keep it for the
    collector, which might end its context first, and the process crashes where a module ends after its context.
    """
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
    except RuntimeError as error:
        raise InternalError(f"LLVM rejects the code of a kernel: {error}") from error
    try:
        module.verify()
    except RuntimeError as error:
        module.close()  # now: the traceback holds it, and its context might be collected first
        raise InternalError(f"LLVM rejects the code of a kernel: {error}") from error
    tuning = llvm.create_pipeline_tuning_options(speed_level=OPTIMIZATION)
    with llvm.create_pass_builder(machine, tuning) as builder, llvm.create_new_module_pass_manager() as passes:
        for add in PASSES:
            add(passes)
        # SAFETY: all of these belong to one module, which is this thread's alone.
        _beside_the_lock("LLVMPY_RunNewModulePassManager")(passes, module, builder)
    return module


# Descriptions that no thread uses now: making one, and its tables when it is first used, takes longer than a small
# module. Of a thread in the middle of a module a forked child has none. Lists give and take in one step.
_idle: dict[Target, list[llvm.TargetMachine]] = {}
MOST_IDLE = 8


@contextmanager
def _lent_machine(target: Target) -> Iterator[llvm.TargetMachine]:
    """Lend a description of a target to one thread for one module."""
    idle = _idle.setdefault(target, [])
    try:
        machine = idle.pop()
    except IndexError:
        machine = target_machine(target)
    try:
        yield machine
    finally:
        if len(idle) < MOST_IDLE:
            idle.append(machine)


def target_machine(target: Target) -> llvm.TargetMachine:
    """Make LLVM's description of a target; every engine and every thread needs its own."""
    _initialize_llvm(target)
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.feature_string,
        opt=TRANSLATION,
        reloc="pic",
        codemodel="small",
        jit=True,
    )


@cache
def _beside_the_lock(name: str) -> Any:
    """Give a function of llvmlite's library with the types that its binding has, but not its lock."""
    binding = getattr(ffi.lib, name)
    function = getattr(_library(), name)
    function.argtypes, function.restype = binding.argtypes, binding.restype
    return function


@cache
def _library() -> ctypes.CDLL:
    # Loaded long ago: this only finds it again, with function objects of its own.
    return ctypes.CDLL(ffi.lib._name)


class _Users:
    """Counts who compiles now; the lock is held for a count and settings, and never while LLVM works."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.turns = 0.0  # the interpreter's switch interval before

    def renew(self) -> None:
        """Begin anew in a forked child: of those who compiled, none is there."""
        self.lock = threading.Lock()
        if self.count:
            self.leave_turns()
        self.count = 0

    def take_turns(self) -> None:
        """Let threads that come back from LLVM have the interpreter soon."""
        self.turns = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH_INTERVAL, self.turns))

    def leave_turns(self) -> None:
        """Undo that, unless somebody has chosen otherwise since."""
        if sys.getswitchinterval() == SWITCH_INTERVAL:
            sys.setswitchinterval(self.turns)


_users = _Users()
os.register_at_fork(after_in_child=_users.renew)


@contextmanager
def _loops_as_written() -> Iterator[None]:
    """Let LLVM leave addresses in loops as they are; as settings are the process's, only while it compiles for us."""
    with _users.lock:
        _users.count += 1
        if _users.count == 1:
            llvm.set_option("weft", AS_WRITTEN)
            _users.take_turns()
    try:
        yield
    finally:
        with _users.lock:
            _users.count -= 1
            if _users.count == 0:
                llvm.set_option("weft", AS_USUAL)
                _users.leave_turns()


_initialized: set[bool] = set()  # whether for other processors too


def _initialize_llvm(target: Target) -> None:
    """Make known to LLVM what it needs for a target: all processors' tables are 25 MB, of which most need one's."""
    # Twice at once does no harm: llvmlite lets one in after the other, and the second finds nothing to do.
    foreign = architecture(target.triple) != architecture(llvm.get_default_triple())
    if foreign in _initialized:
        return
    if foreign:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    else:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    _initialized.add(foreign)
