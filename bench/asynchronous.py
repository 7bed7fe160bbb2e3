"""What lazy and spawned work costs and gains: `python -m bench.asynchronous`; each line is one claim."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

import weft


def seconds(function: Callable[[], object], repeats: int = 5) -> float:
    """The best of some runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def queued_and_finished() -> str:
    """CHAPTER.md item 32: when Python is back, and when the product is done."""
    x = torch.randn(2000, 2000)
    with weft.lazy():
        for _ in range(3):
            weft.wait(torch.mm(x, x).sum())
        queued, done = [], []
        for _ in range(5):
            start = time.perf_counter()
            y = torch.mm(x, x).sum()
            queued.append(time.perf_counter() - start)
            weft.wait(y)
            done.append(time.perf_counter() - start)
    q, d = statistics.median(queued), statistics.median(done)
    return f"2000 x 2000 product: queued {q * 1e3:.3f} ms, finished {d * 1e3:.1f} ms, {q / d:.2%}"


def stages() -> str:
    """Items 35 and 36: waiting each time against once; the queue itself by tasks that nobody may remove."""
    x, count = torch.ones(2000, 2000), 100
    y = torch.empty_like(x)

    def eager() -> None:
        for _ in range(count):
            torch.add(x, 1, out=y)

    def each() -> None:
        for _ in range(count):
            weft.wait(weft.spawn(partial(torch.add, out=y), x, 1))

    def once() -> None:
        for _ in range(count):
            weft.spawn(partial(torch.add, out=y), x, 1)
        weft.waitall()

    def lazily() -> None:
        with weft.lazy():
            for _ in range(count):
                z = x + 1
            weft.wait(z)

    for function in (each, once, lazily):
        function()
    t_eager, t_each, t_once, t_lazy = (seconds(function, 3) for function in (eager, each, once, lazily))
    start = time.perf_counter()
    for _ in range(count):
        weft.spawn(partial(torch.add, out=y), x, 1)
    t1 = (time.perf_counter() - start) / count
    weft.waitall()
    t2 = t_eager / count
    t3 = t_each / count - t1 - t2
    return (
        f"{count} x y = x + 1: eager {t_eager * 1e3:.0f} ms, waiting each time {t_each * 1e3:.0f} ms, once "
        f"{t_once * 1e3:.0f} ms, lazily {t_lazy * 1e3:.1f} ms; t1 {t1 * 1e6:.0f} us, t2 {t2 * 1e6:.0f} us, "
        f"t3 {t3 * 1e6:.0f} us, t1 + n t2 + t3 = {(t1 + count * t2 + t3) * 1e3:.0f} ms"
    )


def front_end() -> str:
    """What it costs to queue an operator, with and without gradients."""
    count, found = 400, []
    for grad in (False, True):
        x = torch.randn(20, 20, requires_grad=grad)
        times = []
        with weft.lazy():
            for _ in range(12):
                start = time.perf_counter()
                y = x
                for _ in range(count):
                    y = y * 0.5
                times.append((time.perf_counter() - start) / count)
                weft.wait(y.sum())
        found.append(statistics.median(times[4:]) * 1e6)
    return f"front end: {found[0]:.1f} us an operator, {found[1]:.1f} us with gradients"


def products(x: torch.Tensor) -> list[torch.Tensor]:
    """Two hundred products, all kept."""
    return [torch.mm(x, x + index) for index in range(200)]


def two_lanes() -> str:
    """Item 50: two programs on two lanes against the sum of both alone."""
    a, b = torch.randn(100, 100), torch.randn(100, 100)
    one, two = (weft.hybridize(products) for _ in range(2))

    def run(*jobs: tuple[str, Callable[..., object], torch.Tensor]) -> None:
        results = []
        for lane, program, x in jobs:
            with weft.on(lane):
                results.append(weft.spawn(program, x))
        weft.wait(results)

    first, second = ("cpu:0", one, a), ("cpu:1", two, b)
    for _ in range(3):
        run(first)
        run(second)
        run(first, second)
    alone, other, both = (seconds(partial(run, *jobs), 15) for jobs in ((first,), (second,), (first, second)))
    plain = seconds(lambda: (products(a), products(b)), 5)

    def lazily() -> None:
        with weft.lazy():
            results = (products(a), products(b))
            weft.wait(results)

    for _ in range(4):
        lazily()
    t_lazy = seconds(lazily, 10)
    return (
        f"2 x 200 products of 100 x 100: alone {alone * 1e3:.2f} and {other * 1e3:.2f} ms, together {both * 1e3:.2f} ms"
        f" ({both / (alone + other):.2f} of the sum); eager {plain * 1e3:.2f} ms, lazily {t_lazy * 1e3:.2f} ms "
        f"({t_lazy / plain:.2f})"
    )


def independent() -> str:
    """Items 56 and 58: ten products of one matrix, large and small."""
    lines = []
    for size, times in ((1000, 5), (20, 20)):
        x = torch.randn(size, size)

        def eager(x: torch.Tensor = x) -> list[torch.Tensor]:
            return [torch.mm(x, x) + index for index in range(10)]

        def lazily(work: Callable[[], list[torch.Tensor]] = eager) -> None:
            with weft.lazy():
                weft.wait(work())

        for _ in range(4):
            lazily()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        one = seconds(eager, times)
        torch.set_num_threads(threads)
        all_cores, lazy = seconds(eager, times), seconds(lazily, times)
        lines.append(
            f"10 products of {size} x {size}: one core {one * 1e3:.3f} ms, eager {all_cores * 1e3:.3f} ms, "
            f"lazily {lazy * 1e3:.3f} ms ({lazy / one:.2f} of one core, {lazy / all_cores:.2f} of eager)"
        )
    return "\n".join(lines)


def train(net: torch.nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]], rate: float = 0.05) -> torch.Tensor:
    """An ordinary loop that never waits."""
    optimizer = torch.optim.SGD(net.parameters(), rate, momentum=0.9)
    loss = torch.zeros(())
    for x, y in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    return loss.detach()


NETS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "perceptron": (
        lambda: torch.nn.Sequential(
            torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128), torch.nn.ReLU(),
            torch.nn.Linear(128, 10),
        ),
        (64, 784),
    ),
    "LeNet": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(1, 6, 5, padding=2), torch.nn.Sigmoid(), torch.nn.AvgPool2d(2), torch.nn.Conv2d(6, 16, 5),
            torch.nn.Sigmoid(), torch.nn.AvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(400, 120),
            torch.nn.Sigmoid(), torch.nn.Linear(120, 84), torch.nn.Sigmoid(), torch.nn.Linear(84, 10),
        ),
        (64, 1, 28, 28),
    ),
}  # fmt: skip


def training() -> str:
    """Training loops written imperatively, eager and lazy."""
    lines = []
    for name, (make, shape) in NETS.items():
        batches = [(torch.randn(shape), torch.randint(10, shape[:1])) for _ in range(30)]
        net = make()

        def lazily(net: torch.nn.Module = net, batches: list[tuple[torch.Tensor, torch.Tensor]] = batches) -> None:
            with weft.lazy():
                weft.wait(train(net, batches))

        lazily()
        eager = seconds(partial(train, net, batches), 4)
        lazy = seconds(lazily, 4)
        step, lazy_step = eager / len(batches) * 1e3, lazy / len(batches) * 1e3
        lines.append(f"{name}: {step:.2f} ms a step, lazily {lazy_step:.2f} ms, {eager / lazy:.2f} times as fast")
    return "\n".join(lines)


PARTS = {part.__name__: part for part in (queued_and_finished, stages, front_end, two_lanes, independent, training)}


def main() -> None:
    """Run the parts that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="which; all if none is named")
    for name in parser.parse_args().parts or PARTS:
        print(PARTS[name](), flush=True)


if __name__ == "__main__":
    main()
