"""Measure this machine once, in a fraction of a second: rates and waits, kept on disk as text."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any

from weft.codegen.measure_module import ACCUMULATORS, SWEEP_BYTES, can_flush, measure_module
from weft.codegen.objects.native import NativeLibrary
from weft.config import config
from weft.errors import UsageError
from weft.plan.schedule.cost import MachineModel, default_model, parse_model
from weft.runtime.arena import ArenaBlock
from weft.runtime.shared_code import ahead, shared_library
from weft.target import Target, host_target

VERSION = 5  # of what is measured, and how
FOLDER = "machine"
REPEATS, MEMORY_REPEATS = 5, 3
ROUNDS = 20_000  # of multiply-adds
ROUNDS_OF_SPANS, SPANS, HANDOVERS = 30, 2, 20
# Where others keep the cores busy each hand-over waits until both threads run: a round is enough to see that.
LONGEST_HAND_OVER = 0.005  # seconds after which no further round begins, if one has told
# Of a hand-over: then both threads had one core, from which the system takes one of them after a while.
ONE_CORE = 1e-5
MOST_ROUNDS_IN_VAIN = 5
MOST_CACHE_BYTES = 8 * 1024 * 1024
# Larger than all caches; where memory can be put out of them what is measured of caches does. Memory that a process
# touches for the first time may take longer to get than all that is measured here.
MOST_MEMORY_BYTES = 64 * 1024 * 1024
SWEPT_BYTES = 8 * 1024 * 1024  # of a cache, in one measurement
LINE_BYTES = 256
HANDED_BYTES = 8 * 1024  # what a lane typically reads of what another one has just written
LEAST_SECONDS = 1e-9
LEAST_SHARE = 0.5
TIMES = ("wait", "check", "lane")
# A wait longer than this many times the usual one was for a core that others used meanwhile, and says nothing.
LONGEST_WAIT = 4.0
# A lane starts by a mailbox and ends by a flag, each some waits; looking at a flag that another core has set is less.
WAITS_PER_LANE = 5.0
CHECKS_PER_WAIT = 3.0

Functions = dict[str, Callable[..., None]]

_blocks: dict[int, ArenaBlock] = {}  # by size, from when one is got ahead until it is measured in


def machine_model(target: Target) -> MachineModel:
    """Give the model of this machine: from memory, from disk, or measured now; of another machine, a guess."""
    if target != host_target():
        return default_model(target)
    # Who measures waits for nobody who takes this lock; two at once would measure each other.
    with _lock:
        return _known(target, config().cache_dir)


_lock = threading.Lock()


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603  # a forked child must not inherit a lock that nobody will release
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


@cache
def _known(target: Target, folder: Path | None) -> MachineModel:
    if folder is None:
        return measure_machine(target)
    path = _path(folder, target)
    try:
        return parse_model(path.read_text(encoding="ascii"), target)
    except (OSError, UnicodeError, UsageError):
        pass  # not measured yet, or damaged: measured now, and written anew
    model = measure_machine(target)
    _write(path, str(model))
    return model


def is_measured(target: Target) -> bool:
    """Tell whether the model of a machine is on disk."""
    folder = config().cache_dir
    return folder is not None and _path(folder, target).exists()


def get_memory() -> None:
    """Get the memory in which this machine will be measured: beside what its caller's other threads do until then."""
    target = host_target()
    size = _largest(target)
    # Who waits here is about to measure, and would have to get it himself; whoever has measured needs none.
    with _lock:
        if not (size in _blocks or _known.cache_info().currsize or is_measured(target)):
            _blocks[size] = _written(size)


def _path(folder: Path, target: Target) -> Path:
    return folder / FOLDER / f"{machine_key(target)}.txt"


def machine_key(target: Target) -> str:
    """Name a machine by all of its target that a model depends on."""
    return hashlib.sha256(repr((VERSION, target)).encode()).hexdigest()[:32]


def measure_machine(target: Target) -> MachineModel:
    """Measure this machine; the best of several times counts, since others may be using it."""
    functions = _functions(shared_library(measure_module))
    with ahead.paused():  # nothing of ours works beside what is measured
        return _measured(functions, target)


def _measured(functions: Functions, target: Target) -> MachineModel:
    guess = default_model(target)
    sizes, largest = _sizes(target), _largest(target)
    block = _blocks.pop(largest, None) or _written(largest)
    found = {"multiply_adds": _multiply_adds(functions, target)}
    for name, size in sizes.items():
        found[name] = _best_sweep(functions, block, size)
    found["memory"] = _memory(functions, block, largest)
    found["shared_memory"] = found["memory"] * max(1.0, guess.shared_memory / guess.memory)
    if target.cores > 1:
        wait = _hand_over(functions, block, 0)
        if wait <= LONGEST_WAIT * guess.wait:
            # There and back: who writes anew what another core has read since pays for that too.
            longer = max(2 * (_hand_over(functions, block, HANDED_BYTES) - wait), LEAST_SECONDS)
            found["transfer"] = min(HANDED_BYTES / longer, found["l3"])
        else:
            wait = guess.wait
        found |= {"wait": wait, "check": wait / CHECKS_PER_WAIT, "lane": wait * WAITS_PER_LANE}
    # Far below the guess, others were using the machine all the time: that is not what it can do.
    found |= {name: max(found[name], LEAST_SHARE * getattr(guess, name)) for name in found if name not in TIMES}
    names = {field.name for field in fields(MachineModel)}
    return replace(guess, **{name: value for name, value in found.items() if name in names})  # type: ignore[arg-type]


def _sizes(target: Target) -> dict[str, int]:
    return {
        "l1": target.l1_bytes // 2,
        "l2": target.l2_bytes // 2,
        "l3": min(max(target.l3_bytes // 2, target.l2_bytes), MOST_CACHE_BYTES),
    }


def _largest(target: Target) -> int:
    return max(_sizes(target).values()) if can_flush(target) else MOST_MEMORY_BYTES


def _written(size: int) -> ArenaBlock:
    block = ArenaBlock(size)
    # Memory that nobody has written is all one page. SAFETY: the block is as long as this.
    ctypes.memset(block.address, 1, size)
    return block


def _functions(library: NativeLibrary) -> Functions:
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    kinds = {
        "multiply_adds": (number, pointer),
        "sweep": (pointer, number, number, pointer),
        "flush": (pointer, number),
        "ping": (pointer, pointer, number, number, pointer, number, pointer),
        "pong": (pointer, pointer, number, number, pointer, number, pointer),
    }
    # SAFETY: the kinds are those of the module's functions; `library` is kept by whoever calls them here.
    there = {name: kind for name, kind in kinds.items() if name in library.names}
    return {name: ctypes.CFUNCTYPE(None, *kind)(library.address(name)) for name, kind in there.items()}


def _multiply_adds(functions: Functions, target: Target) -> float:
    out = ctypes.create_string_buffer(4096)
    seconds = _best(lambda: functions["multiply_adds"](ROUNDS, out))
    return ROUNDS * ACCUMULATORS * target.lanes(32) / seconds


def _best_sweep(functions: Functions, block: ArenaBlock, size: int) -> float:
    """Give the bytes a second that are read of what stays in a cache."""
    size = _whole(size)
    times = max(1, SWEPT_BYTES // size)
    return size * times / _best(_sweep(functions, block, size, times))


def _memory(functions: Functions, block: ArenaBlock, size: int) -> float:
    """Give the bytes a second that are read of what is in no cache."""
    size, flush = _whole(size), functions.get("flush")
    # What is larger than all caches is never warm: its first run is as good as the others. SAFETY: as in `_sweep`.
    before = None if flush is None else partial(flush, block.address, size)
    return size / _fastest(_sweep(functions, block, size, 1), MEMORY_REPEATS, before)


def _whole(size: int) -> int:
    return max(size // SWEEP_BYTES, 1) * SWEEP_BYTES


def _sweep(functions: Functions, block: ArenaBlock, size: int, times: int) -> Callable[[], None]:
    out = ctypes.create_string_buffer(4096)
    # SAFETY: the block is as long as the largest size that is measured, and held by the caller.
    return partial(functions["sweep"], block.address, size, times, out)


def _hand_over(functions: Functions, block: ArenaBlock, size: int) -> float:
    """Give the seconds of a hand-over, half of there and back, with so many bytes that are written here."""
    memory = ctypes.create_string_buffer(4 * LINE_BYTES)
    base = -(-ctypes.addressof(memory) // LINE_BYTES) * LINE_BYTES
    # SAFETY: the counters and the block are held by this function and its caller until both threads are done.
    ping = partial(functions["ping"], base, base + LINE_BYTES)
    pong = partial(functions["pong"], base + LINE_BYTES, base)
    out = ctypes.create_string_buffer(4096)
    start, best = perf_counter(), float("inf")
    for number in range(ROUNDS_OF_SPANS):
        first = number * SPANS * HANDOVERS
        rest = (block.address, size, out)
        best = min(best, _round(ping, pong, range(first, first + SPANS * HANDOVERS), rest))
        has_told = best < ONE_CORE or number + 1 >= MOST_ROUNDS_IN_VAIN
        if has_told and perf_counter() - start > LONGEST_HAND_OVER:
            break
    return max(best, LEAST_SECONDS)


def _round(ping: Callable[..., None], pong: Callable[..., None], numbers: range, rest: tuple[Any, ...]) -> float:
    """Hand over once for each number, with a thread that does the other half: the seconds of one in the best span."""
    partner = threading.Thread(target=pong, args=(numbers.start, numbers.stop, *rest), daemon=True)
    partner.start()
    best = float("inf")
    for first in numbers[::HANDOVERS]:
        before = perf_counter()
        # Each side waits for a number that the other one publishes before it waits itself, so neither waits forever.
        ping(first, first + HANDOVERS, *rest)
        best = min(best, (perf_counter() - before) / (2 * HANDOVERS))
    partner.join()
    return best


def _best(run: Callable[[], None]) -> float:
    run()
    return _fastest(run, REPEATS)


def _fastest(run: Callable[[], None], repeats: int, before: Callable[[], None] | None = None) -> float:
    best = float("inf")
    for _ in range(repeats):
        if before is not None:
            before()
        begin = perf_counter()
        run()
        best = min(best, perf_counter() - begin)
    return max(best, LEAST_SECONDS)


def _write(path: Path, text: str) -> None:
    """Write a file so that nobody ever sees a part of it; where that cannot be, the next process measures again."""
    own = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(text, encoding="ascii")
        own.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # there may be no folder that it could be in
            own.unlink(missing_ok=True)
