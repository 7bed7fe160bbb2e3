"""The chapter's asynchronous computation: Python queues work and goes on; whoever looks at a value waits.

`python examples/chapter/asynchronous.py [--size 1000] [--repeats 10]`
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

import weft


def show_a_result() -> None:
    """Compute the chapter's first example: three statements are queued, the last one waits."""
    with weft.lazy():
        a, b = torch.ones(1, 2), torch.ones(1, 2)
        c = a * b + 2
        print(c)


def compare_with_numpy(size: int, repeats: int) -> None:
    """Time the same products: numpy computes at once, Weft queues; then both have computed."""
    with weft.Benchmark("numpy"):
        for _ in range(repeats):
            a = np.random.normal(size=(size, size))
            np.dot(a, a)
    with weft.lazy():
        x = torch.randn(size, size)
        for title, look in (("weft, queued and finished", False), ("weft, a look at every result", True)):
            with weft.Benchmark(title):  # it waits for all that the block queued
                for _ in range(repeats):
                    total = torch.mm(x, x).sum()
                    if look:
                        total.item()


def ways_to_wait(size: int) -> None:
    """Wait in each of the ways there are."""
    with weft.lazy():
        x = torch.rand(size, size)
        with weft.Benchmark("wait for one tensor"):
            weft.wait(torch.mm(x, x))
        with weft.Benchmark("waitall"):
            y, z = torch.mm(x, x), torch.mm(x, x)
            weft.waitall()
        print("ready without waiting:", weft.ready(y) and weft.ready(z))
        with weft.Benchmark("numpy()"):
            torch.mm(x, x).numpy()
        with weft.Benchmark("item()"):
            torch.mm(x, x).norm().item()


def main() -> None:
    """Run the section."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--size", type=int, default=1000)
    arguments.add_argument("--repeats", type=int, default=10)
    options = arguments.parse_args()
    show_a_result()
    compare_with_numpy(options.size, options.repeats)
    ways_to_wait(options.size)


if __name__ == "__main__":
    main()
