"""The chapter's automatic parallelism: two devices work at the same time without being told.

`python examples/chapter/parallel.py [--size 300] [--products 200]`, on two GPUs, or else on two virtual CPU devices.
"""

from __future__ import annotations

import argparse

import torch

import weft

NEEDED = 2


@weft.hybridize
def product(x: torch.Tensor) -> torch.Tensor:
    """Multiply a matrix by itself."""
    return torch.mm(x, x)


def run(x: torch.Tensor, device: str, products: int) -> list[torch.Tensor]:
    """Queue products on a device; nothing waits here."""
    with weft.on(device):
        return [weft.spawn(product, x) for _ in range(products)]


def main() -> None:
    """Run the section."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--size", type=int, default=300)
    arguments.add_argument("--products", type=int, default=200)
    options = arguments.parse_args()
    kind = "cuda" if torch.cuda.device_count() >= NEEDED else "cpu"
    names = [f"{kind}:{index}" for index in range(NEEDED)]
    xs = [torch.rand(options.size, options.size, device=name if kind == "cuda" else "cpu") for name in names]
    for x, name in zip(xs, names, strict=True):
        weft.wait(run(x, name, 2))  # the first calls compile
    times = []
    for title, x, name in zip(("Run on", "Then run on"), xs, names, strict=True):
        with weft.Benchmark(f"{title} {name}.") as timer:  # it waits for every device, not only for the current one
            kept = run(x, name, options.products)  # what nobody holds is not computed
        times.append(timer.seconds)
        del kept
    with weft.Benchmark(f"Run on both {names[0]} and {names[1]} in parallel.") as timer:
        found = [run(x, name, options.products) for x, name in zip(xs, names, strict=True)]
    print(f"together {timer.seconds / sum(times):.2f} of the sum")
    right = all(
        torch.allclose(result, torch.mm(x, x), rtol=1e-4)
        for x, results in zip(xs, found, strict=True)
        for result in weft.wait(results)
    )
    print("all results are right:", right)


if __name__ == "__main__":
    main()
