"""Run the lanes of programs on the calling thread and on worker threads that live in machine code.

Workers are Python threads that enter native code once and stay there, without the interpreter's lock. They spin
briefly, then sleep. There is one crew in a process, so there are never more spinning threads than cores.
"""

import atexit
import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from weft.codegen.objects.native import NativeLibrary
from weft.codegen.threads.layout import COUNT_OFFSET, MAIN_THREAD_OFFSET, MOST_LANES, WORKERS_BYTES, mailbox_offset
from weft.codegen.threads.workers import worker_module
from weft.config import config
from weft.runtime.memory_layout import EVERY_BIT, Row, word
from weft.runtime.shared_code import shared_library
from weft.target import usable_cores

# In the order in which a crew's block has them; see weft.codegen.threads.layout.
OPENMP_FUNCTIONS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads")
CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # a CFUNCTYPE releases the interpreter's lock


class LaneWorkers:
    """The workers of this process. The block of their mailboxes lives at one address as long as the process does."""

    def __init__(self) -> None:
        # Private, or a forked child would post to its parent's workers.
        self.memory = mmap.mmap(-1, WORKERS_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # SAFETY: the mapping is held by this object, which the module holds until the process ends.
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.threads: list[threading.Thread] = []
        self.is_ready = False
        self._is_child = False
        # Held while workers are started or ended; whoever holds it waits only for threads that never take it.
        self.lock = threading.Lock()

    def start(self, workers: int | None = None) -> None:
        """Start the workers: one fewer than there are cores, or than WEFT_THREADS says."""
        with self.lock:
            if self.is_ready:
                return
            wanted = (config().threads or usable_cores()) - 1 if workers is None else workers
            work = CALL(_library().address("work"))
            for number in range(min(wanted, MOST_LANES)):
                # SAFETY: the mailbox lies in the crew's block, and is this worker's alone.
                mailbox = self.address + mailbox_offset(number)
                thread = threading.Thread(target=work, args=(mailbox,), name=f"weft lane {number + 1}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no memory for its stack, or no more threads for this user: fewer will do
                    break
                self.threads.append(thread)
            self._set_count(len(self.threads))
            self._set_team()
            self.is_ready = True

    def stop(self) -> None:
        """End the workers; programs run on their callers' threads alone until the crew is started again."""
        with self.lock:
            if not self.is_ready:
                return
            # SAFETY: the block lives as long as the process.
            CALL(_library().address("close"))(self.address)
            # A worker ends when it is idle. What keeps it busy is a lane, which ends: it never takes this lock.
            for thread in self.threads:
                thread.join()
            self._forget()

    def _forget(self) -> None:
        self._set_count(0)
        self.memory[MAIN_THREAD_OFFSET:] = bytes(WORKERS_BYTES - MAIN_THREAD_OFFSET)
        self.threads = []
        self.is_ready = False

    def after_fork(self) -> None:
        """Begin anew in a child process, which has none of the threads."""
        self.lock = threading.Lock()
        self._is_child = True
        self._forget()

    def _set_team(self) -> None:
        """Let the main thread's calls run on its OpenMP team: not in a forked child, where GNU's OpenMP hangs."""
        functions = openmp_functions()
        main = threading.main_thread().ident
        if functions and main is not None and not self._is_child:
            # The thread comes last: whoever sees it sees the functions.
            words = b"".join(word.to_bytes(8, "little") for word in functions)
            self.memory[MAIN_THREAD_OFFSET + 8 : MAIN_THREAD_OFFSET + 8 + len(words)] = words
            self.memory[MAIN_THREAD_OFFSET : MAIN_THREAD_OFFSET + 8] = main.to_bytes(8, "little")

    def _set_count(self, count: int) -> None:
        self.memory[COUNT_OFFSET : COUNT_OFFSET + 8] = count.to_bytes(8, "little")


_crew = LaneWorkers()
os.register_at_fork(after_in_child=_crew.after_fork)


def crew_address() -> int:
    """Give the address of the crew's block, for a frame."""
    return _crew.address


def crew_row() -> Row:
    """Give the word of memory that says how many workers there are: 0 in a forked child, until it starts its own."""
    place = _crew.address + COUNT_OFFSET
    return place, EVERY_BIT, word(place)


def start_crew(workers: int | None = None) -> None:
    """Start the crew where it is not started; `workers` is for tests."""
    _crew.start(workers)


def stop_crew() -> None:
    """End the crew; the next program with several lanes starts it again."""
    _crew.stop()


def ensure_crew() -> None:
    """Start the crew where it is not started: at the first call of a process, also of a forked one."""
    if not _crew.is_ready:
        _crew.start()


def dispatch_address() -> int:
    """Give the address of the function that runs the program of a frame on its lanes."""
    return _library().address("dispatch")


def run_lanes(frame: int) -> None:
    """Run the program that a frame belongs to on its lanes."""
    _dispatch()(frame)


def _library() -> NativeLibrary:
    return shared_library(worker_module)


@cache
def _dispatch() -> Callable[[int], None]:
    # SAFETY: the function takes the address of a frame that a plan's executable has filled.
    return CALL(_library().address("dispatch"))


# Before the interpreter ends, so that workers do not outlive what they run.
atexit.register(stop_crew)


@cache
def openmp_functions() -> tuple[int, ...]:
    """Give the addresses of the functions; none where PyTorch has no OpenMP library of this kind in the process."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return ()
    bundled = sorted(map(str, (Path(torch.__file__).parent / "lib").glob("libgomp*.so*")))
    for name in (*bundled, "libgomp.so.1"):
        try:
            library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            found = [getattr(library, function) for function in OPENMP_FUNCTIONS]
        except (OSError, AttributeError):
            continue
        return tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in found)
    return ()
