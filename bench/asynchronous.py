"""What lazy and spawned work costs and gains: `python -m bench.asynchronous [ROW ...]`; each row is one claim.

As bench/README.md says: answers first, contestants in turn in one process, warm-up, medians with quartiles, ratios
round by round, and the machine.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial

import torch

import weft
from bench.asynchronous_engine import engine
from bench.asynchronous_gpu import copies, cpu_and_gpu, streams
from bench.asynchronous_looks import looks
from bench.asynchronous_memory import bounded_memory
from bench.machine import describe
from bench.rounds import Times, compare, in_turn, ratio_text


def queued_and_finished() -> str:
    """Items 32 to 34: when Python is back, when the product is done, and what each way of looking takes."""
    x = torch.randn(2000, 2000)

    def product() -> torch.Tensor:
        return torch.mm(x, x)

    with weft.lazy():
        compare(weft.wait(product().sum()), torch.mm(x, x).sum(), "the sum of a lazy product")
        queued, done = [], []
        for _ in range(12):
            start = time.perf_counter()
            y = product().sum()
            queued.append(time.perf_counter() - start)
            weft.wait(y)
            done.append(time.perf_counter() - start)
        q, d = statistics.median(queued[4:]), statistics.median(done[4:])
        looks: dict[str, Callable[[], object]] = {
            "weft.wait": lambda: weft.wait(product()),
            "two products, waitall": lambda: (product(), product(), weft.waitall())[:2],
            "numpy": lambda: product().numpy(),
            "norm().item()": lambda: product().norm().item(),
        }
        times = in_turn(looks, 5, alike=False)
    told = "; ".join(times.show(name) for name in looks)
    return f"2000 x 2000 product: queued {q * 1e3:.3f} ms, finished {d * 1e3:.1f} ms, {q / d:.2%} (bar 1 %); {told}"


def stages() -> str:
    """Items 35 and 36: waiting each time against once; the queue itself by tasks that nobody may remove."""
    x, count = torch.ones(2000, 2000), 1000
    y = torch.empty_like(x)
    pushing: list[float] = []

    def push() -> object:
        return weft.spawn(partial(torch.add, out=y), x, 1)

    def eager() -> torch.Tensor:
        for _ in range(count):
            torch.add(x, 1, out=y)
        return y

    def each() -> torch.Tensor:
        for _ in range(count):
            weft.wait(push())
        return y

    def once() -> torch.Tensor:
        start = time.perf_counter()
        for _ in range(count):
            push()
        pushing.append((time.perf_counter() - start) / count)
        weft.waitall()
        return y

    def lazily() -> torch.Tensor:
        with weft.lazy():
            for _ in range(count):
                z = x + 1
            return weft.wait(z)  # type: ignore[no-any-return]

    times = in_turn({"eager": eager, "each": each, "once": once, "lazily": lazily}, 5)
    t1, t2 = statistics.median(pushing[-5:]), times.median("eager") / count
    t3 = times.median("each") / count - t1 - t2
    fitted = t1 + count * t2 + t3
    return (
        f"{count} x y = x + 1: {', '.join(map(times.show, times.rounds))}; t1 {t1 * 1e6:.0f} us, t2 {t2 * 1e6:.0f} us, "
        f"t3 {t3 * 1e6:.0f} us; once over t1 + {count} t2 + t3 = {fitted * 1e3:.0f} ms: "
        f"{times.median('once') / fitted:.2f}"
    )


def front_end() -> str:
    """What it costs to queue an operator, with and without gradients, of a lazy tensor and of an ordinary one."""
    count = 400
    found: dict[str, list[float]] = {}
    inputs = {"": torch.randn(20, 20), " with gradients": torch.randn(20, 20, requires_grad=True)}
    with weft.lazy():
        for _ in range(20):
            for name, x in inputs.items():
                start = time.perf_counter()
                y = x
                for _ in range(count):
                    y = y * 0.5
                middle = time.perf_counter()
                for _ in range(count):
                    z = x + 1
                end = time.perf_counter()
                compare(weft.wait(z), x + 1, "x + 1")
                weft.wait(y)
                found.setdefault("y = y * 0.5" + name, []).append((middle - start) / count)
                found.setdefault("y = x + 1" + name, []).append((end - middle) / count)
    medians = (f"{name} {statistics.median(times[6:]) * 1e6:.1f} us" for name, times in found.items())
    return "front end, an operator (bar 6 us, with gradients 15): " + ", ".join(medians)


def products(x: torch.Tensor) -> list[torch.Tensor]:
    """Two hundred products, all kept."""
    return [torch.mm(x, x + index) for index in range(200)]


def two_lanes() -> str:
    """Item 50: two programs on two lanes against the sum of both alone, and beside two plain threads."""
    a, b = torch.randn(100, 100), torch.randn(100, 100)
    one, two = (weft.hybridize(products) for _ in range(2))

    def run(*jobs: tuple[str, Callable[..., object], torch.Tensor]) -> object:
        results = []
        for lane, program, x in jobs:
            with weft.on(lane):
                results.append(weft.spawn(program, x))
        return weft.wait(results)

    def plain_threads() -> list[list[torch.Tensor]]:
        results: list[list[torch.Tensor]] = [[], []]
        workers = [
            threading.Thread(target=lambda i=i, x=x: results[i].extend(products(x))) for i, x in enumerate((a, b))
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return results

    def lazily() -> object:
        with weft.lazy():
            return weft.wait([products(a), products(b)])

    first, second = ("cpu:0", one, a), ("cpu:1", two, b)
    compare(run(first), products(a), "the first program")
    compare(run(second), products(b), "the second program")
    alone = in_turn({"first": partial(run, first), "second": partial(run, second)}, alike=False)
    both: dict[str, Callable[[], object]] = {
        "eager": lambda: [products(a), products(b)],
        "together": partial(run, first, second),
        "lazily": lazily,
        "plain threads": plain_threads,
    }
    times = in_turn(both, 20)
    # Both alone and together in one set of rounds, for the ratio.
    sums = in_turn(
        {"first": partial(run, first), "second": partial(run, second), "together": both["together"]}, 30, alike=False
    )
    return (
        f"2 x 200 products of 100 x 100: {', '.join(map(alone.show, alone.rounds))}; "
        f"{', '.join(map(times.show, times.rounds))}; together over the sum "
        f"{ratio_text(sums.ratio('together', 'first', 'second'))} (bar 0.56), lazily over eager "
        f"{ratio_text(times.ratio('lazily', 'eager'))} (bar 0.8), plain threads over eager "
        f"{ratio_text(times.ratio('plain threads', 'eager'))}"
    )


def lazily_and_eager(work: Callable[[], object], rounds: int) -> Times:
    """The same work as it comes, lazily and hybridized; and on one core."""

    def lazily() -> object:
        with weft.lazy():
            return weft.wait(work())

    times = in_turn({"eager": work, "lazily": lazily, "hybridized": weft.hybridize(work)}, rounds)
    # Apart: PyTorch makes its threads anew whenever their number changes, which whoever comes next would pay for.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = in_turn({"one core": work}, rounds)
    finally:
        torch.set_num_threads(threads)
    return Times({**times.rounds, **alone.rounds})


def beside_eager(name: str, times: Times) -> str:
    """One line about them."""
    return (
        f"{name}: {', '.join(map(times.show, times.rounds))}; lazily over one core "
        f"{ratio_text(times.ratio('lazily', 'one core'))}, over eager {ratio_text(times.ratio('lazily', 'eager'))}, "
        f"hybridized over eager {ratio_text(times.ratio('hybridized', 'eager'))}"
    )


def independent() -> str:
    """Items 56 and 58: ten products of one matrix, large and small."""
    lines = []
    for size, rounds in ((1000, 6), (20, 60)):
        x = torch.randn(size, size)
        times = lazily_and_eager(lambda x=x: [torch.mm(x, x) + index for index in range(10)], rounds)
        lines.append(beside_eager(f"10 products of {size} x {size}", times))
    return "\n".join(lines)


def dependencies() -> str:
    """Item 57: two long branches that meet, and a random graph of products and sums."""
    x = torch.randn(200, 200) / 14

    def diamond() -> torch.Tensor:
        left, right = x, x.t()
        for _ in range(10):
            left, right = left @ x, right @ x
        return left + right

    chosen = random.Random(0)
    picks = [(chosen.randrange(number + 1), chosen.randrange(number + 1)) for number in range(40)]

    def graph() -> list[torch.Tensor]:
        made = [x]
        for one, other in picks:
            made.append(torch.tanh(made[one] @ made[other]))
        return made[-8:]

    return "\n".join(
        beside_eager(name, lazily_and_eager(work, 20)) for name, work in (("diamond", diamond), ("random graph", graph))
    )


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
    """Training loops written imperatively: eager, lazy, and `weft.step`, which is the most that can be had."""
    lines = []
    for name, (make, shape) in NETS.items():
        batches = [(torch.randn(shape), torch.randint(10, shape[:1])) for _ in range(30)]
        nets = []
        for _ in range(3):
            torch.manual_seed(0)
            nets.append(make())
        optimizer = torch.optim.SGD(nets[2].parameters(), 0.05, momentum=0.9)
        step = weft.step(nets[2], torch.nn.functional.cross_entropy, optimizer)

        def lazily(
            net: torch.nn.Module = nets[1], batches: list[tuple[torch.Tensor, torch.Tensor]] = batches
        ) -> object:
            with weft.lazy():
                return weft.wait(train(net, batches))

        def steps(
            step: Callable[..., torch.Tensor] = step, batches: list[tuple[torch.Tensor, torch.Tensor]] = batches
        ) -> None:
            for x, y in batches:
                step(x, y)

        compare(lazily(), train(nets[0], batches), f"the last loss of {name}")
        work = {"eager": partial(train, nets[0], batches), "lazily": lazily, "weft.step": steps}
        times = in_turn(work, 6, alike=False)
        lines.append(
            f"{name}, {len(batches)} steps: {', '.join(map(times.show, times.rounds))}; eager over lazily "
            f"{ratio_text(times.ratio('eager', 'lazily'))} (bar 1.3), "
            f"over weft.step {ratio_text(times.ratio('eager', 'weft.step'))}"
        )
    return "\n".join(lines)


ROWS: dict[str, Callable[[], str]] = {
    row.__name__: row
    for row in (
        engine, queued_and_finished, stages, front_end, looks, bounded_memory, two_lanes, independent, dependencies,
        copies, cpu_and_gpu, streams, training,
    )
}  # fmt: skip


def main() -> None:
    """Run the rows that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", choices=[[], *ROWS], help="which; all if none is named")
    wanted = parser.parse_args().rows or list(ROWS)
    machine = describe(torch.get_num_threads())
    print(f"{machine['processor']}, {machine['threads']} threads, torch {machine['versions']['torch']}", flush=True)
    for name in wanted:
        print(ROWS[name](), flush=True)


if __name__ == "__main__":
    main()
