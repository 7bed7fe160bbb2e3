"""What a call costs: of an empty plan, hot, after a pause, and while another process keeps one core busy.

Prints microseconds and ratios. Claims: an empty plan takes at most 2 us; with a busy process on one of two cores a
call on two lanes costs at most 2.2 times a hot one; a call after 20 ms of pause at most 1.5 times.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable

import torch

from weft.plan.form.plan import Buffer, KernelCall, Location, Plan, Run, Wait
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.loop import LoopExpression, LoopKernel, plan_loop
from weft.runtime.executable import NativeExecutable
from weft.target import host_target

PAUSE_SECONDS = 0.02
TARGET = host_target()


def chain(size: int, count: int, lanes: int) -> Plan:
    """As many elementwise kernels one after another, each on one lane or halved over two."""
    kernels = [kernel(f"loop_{number}", ("exp", "sin")[number % 2], size) for number in range(count)]
    buffers = [Buffer("input", 0, 4 * size), Buffer("output", 0, 4 * size)]
    buffers += [Buffer("arena", number, 4 * size) for number in range(count - 1)]
    places = [Location(0), *map(Location, range(2, count + 1)), Location(1)]
    calls = [KernelCall(k, (places[i + 1],), (places[i],)) for i, k in enumerate(kernels)]
    orders: list[list[Run | Wait]] = [[], []]
    for lane, order in enumerate(orders):
        for number, call in enumerate(calls):
            half = call.kernel.tile_count // 2
            order += [Wait(1 - lane, number)] if number else []
            order.append(Run(number, *((0, half) if lane == 0 else (half, call.kernel.tile_count))))
    return Plan(
        tuple(buffers),
        tuple(calls),
        lanes=tuple(map(tuple, orders)) if lanes == 2 else (),
        arena_bytes=4 * size * count,
        offsets=tuple(4 * size * number for number in range(count - 1)),
    )


def kernel(name: str, op: str, size: int) -> LoopKernel:
    """One elementwise kernel."""
    view = View("f32", (1,))
    return plan_loop(LoopExpression(name, (size,), (view,), (view,), (Instruction(op, (0,), "f32"),), (1,)), TARGET)


def call_of(plan: Plan, size: int) -> Callable[[], None]:
    """Make a plan a function without arguments."""
    run, x, out = NativeExecutable(plan, TARGET), torch.randn(size), torch.empty(size)
    return lambda: run([x], [out])


def times(call: Callable[[], None], repeats: int, before: Callable[[], None] = lambda: None) -> list[float]:
    """Measure calls one by one, in microseconds."""
    found = []
    for _ in range(repeats):
        before()
        start = time.perf_counter()
        call()
        found.append(1e6 * (time.perf_counter() - start))
    return sorted(found)


def show(label: str, found: list[float], hot: float | None = None) -> float:
    """Print the spread of some calls; gives their mean, which a caller in a loop feels."""
    mean = statistics.mean(found)
    ratio = f"  {mean / hot:5.2f} times hot" if hot else ""
    low, middle, high = found[0], statistics.median(found), found[len(found) * 99 // 100]
    print(f"{label:40} min {low:8.1f}  median {middle:8.1f}  p99 {high:8.1f}  mean {mean:8.1f}{ratio}")
    return mean


def spin(core: int) -> None:
    """Keep a core busy."""
    os.sched_setaffinity(0, {core})
    while True:
        pass


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3000)
    repeats = parser.parse_args().repeats
    empty = NativeExecutable(Plan((), ()), TARGET)
    show("an empty plan", times(lambda: empty([], []), repeats))
    for size, count in ((1 << 15, 2), (1 << 16, 10), (1 << 18, 10)):
        calls = {lanes: call_of(chain(size, count, lanes), size) for lanes in (1, 2)}
        print(f"{count} kernels on {size} numbers")
        hot = {lanes: times(call, repeats) for lanes, call in calls.items()}
        means = {lanes: show(f"  {lanes} lanes, hot", found) for lanes, found in hot.items()}
        for lanes, call in calls.items():
            pause = times(call, repeats // 20, lambda: time.sleep(PAUSE_SECONDS))
            show(f"  {lanes} lanes, after a pause", pause, means[lanes])
        busy = multiprocessing.get_context("spawn").Process(target=spin, args=(max(os.sched_getaffinity(0)),))
        busy.start()
        time.sleep(1)
        try:
            for lanes, call in calls.items():
                show(f"  {lanes} lanes, a core busy", times(call, repeats), means[lanes])
        finally:
            busy.terminate()
            busy.join()


if __name__ == "__main__":
    main()
