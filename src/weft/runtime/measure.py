"""Measure this machine in a fraction of a second: its rates, and how long cores wait for each other."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from functools import partial
from time import perf_counter
from typing import Any

from weft.codegen.measure_module import ACCUMULATORS, SWEEP_BYTES, can_flush, measure_module
from weft.codegen.objects.native import NativeLibrary
from weft.plan.schedule.cost import MachineModel, default_model
from weft.runtime.arena import ArenaBlock
from weft.runtime.shared_code import ahead, shared_library
from weft.target import Target

REPEATS, MEMORY_REPEATS = 5, 3
ROUNDS = 20_000  # of multiply-adds
SPANS, HANDOVERS = 2, 20
MOST_ROUNDS, MANY_SPANS = 200, 50
BEST_SPANS, SPREAD = 5, 1.1  # so many spans that are alike within this tell what a hand-over takes
# Where others keep the cores busy both threads seldom run at once: then it takes longer until spans tell.
LONGEST_HAND_OVER, LONGEST_PATIENCE = 0.005, 0.3  # seconds
# Of a hand-over: then both threads had one core, from which the system takes one of them after a while.
ONE_CORE = 1e-5
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


def has_block(size: int) -> bool:
    """Tell whether memory of a size waits to be measured in."""
    return size in _blocks


def get_block(size: int) -> None:
    """Get memory to measure in, ahead."""
    _blocks[size] = _written(size)


def measure_machine(target: Target) -> MachineModel:
    """Measure this machine; the best of several times counts, since others may be using it."""
    functions = _functions(shared_library(measure_module))
    with ahead.paused():  # nothing of ours works beside what is measured
        return _measured(functions, target)


def quick_look(target: Target) -> dict[str, float]:
    """Measure in milliseconds what tells whether a machine is another one: how fast it computes."""
    functions = _functions(shared_library(measure_module))
    with ahead.paused():
        found = {"multiply_adds": _multiply_adds(functions, target)}
        size = _sizes(target)["l2"]
        found["l2"] = _best_sweep(functions, _written(size), size)
    return found


def _measured(functions: Functions, target: Target) -> MachineModel:
    guess = default_model(target)
    sizes, largest = _sizes(target), largest_size(target)
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


def largest_size(target: Target) -> int:
    """Give the bytes of the memory that is measured in."""
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
    start, first, count, spans = perf_counter(), 0, SPANS, [float("inf")]
    for _ in range(MOST_ROUNDS):
        rest = (block.address, size, out)
        with _kept_apart() if count > SPANS else nullcontext() as partners:
            found = _round(ping, partners(pong) if partners else pong, range(first, first + count * HANDOVERS), rest)
        spans = sorted([*spans, *found])[:BEST_SPANS]
        first += count * HANDOVERS
        taken = perf_counter() - start
        if taken > (LONGEST_HAND_OVER if _agree(spans) else LONGEST_PATIENCE):
            break
        # The first rounds are short: where nobody disturbs they tell all. Later ones wait until both threads run, each
        # on a core of its own: the system would let them take turns on one, as they wake each other.
        count = SPANS if taken <= LONGEST_HAND_OVER else MANY_SPANS
    return max(spans[0], LEAST_SECONDS)


@contextmanager
def _kept_apart() -> Iterator[Callable[[Callable[..., None]], Callable[..., None]] | None]:
    """Keep this thread on one core in this block; gives what keeps another function's thread on another core."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    if len(cores) < 2:
        yield None
        return
    os.sched_setaffinity(0, cores[:1])

    def elsewhere(run: Callable[..., None]) -> Callable[..., None]:
        def placed(*arguments: Any) -> None:
            os.sched_setaffinity(0, cores[1:2])
            run(*arguments)

        return placed

    try:
        yield elsewhere
    finally:
        os.sched_setaffinity(0, cores)


def _agree(spans: Sequence[float]) -> bool:
    """Tell whether the best spans were as long as each other, and not those of threads that share a core."""
    return len(spans) == BEST_SPANS and spans[-1] <= min(SPREAD * spans[0], ONE_CORE)


def _round(ping: Callable[..., None], pong: Callable[..., None], numbers: range, rest: tuple[Any, ...]) -> list[float]:
    """Hand over once for each number, with a thread that does the other half: the seconds of one in each span."""
    partner = threading.Thread(target=pong, args=(numbers.start, numbers.stop, *rest), daemon=True)
    partner.start()
    spans = []
    for first in numbers[::HANDOVERS]:
        before = perf_counter()
        # Each side waits for a number that the other one publishes before it waits itself, so neither waits forever.
        ping(first, first + HANDOVERS, *rest)
        spans.append((perf_counter() - before) / (2 * HANDOVERS))
    partner.join()
    return spans


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
