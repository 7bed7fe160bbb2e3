"""The chapter's imperative, symbolic and hybrid programming: one function, one text, one network, each way.

`python examples/chapter/hybridize.py [--calls 1000]`
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn

import weft


def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


def fancy_func(a: float, b: float, c: float, d: float) -> float:
    """Add four numbers step by step: Python makes every call, and keeps e and f until the end."""
    e = add(a, b)
    f = add(c, d)
    g = add(e, f)
    return g  # noqa: RET504 - as the chapter writes it


def add_str() -> str:
    """Give the text of the first function."""
    return """
def add(a, b):
    return a + b
"""


def fancy_func_str() -> str:
    """Give the text of the second function."""
    return """
def fancy_func(a, b, c, d):
    e = add(a, b)
    f = add(c, d)
    g = add(e, f)
    return g
"""


def evoke_str() -> str:
    """Give the text of the whole program."""
    return add_str() + fancy_func_str() + "\nprint(fancy_func(1, 2, 3, 4))\n"


def get_net() -> nn.Module:
    """Make the chapter's multilayer perceptron."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 2))


def benchmark(title: str, net: nn.Module, x: torch.Tensor, calls: int) -> float:
    """Say how long so many calls take."""
    with torch.no_grad(), weft.Benchmark(title) as timer:
        for _ in range(calls):
            net(x)
    return timer.seconds


def hybrid(calls: int) -> None:
    """Compile a network as a whole: the same results, faster, and a file that needs no Python class."""
    net, x = get_net(), torch.randn(1, 512)
    with torch.no_grad():
        before = net(x)
        slow = benchmark("before hybridizing", net, x, calls)
        weft.hybridize(net)
        after = net(x)  # the first call compiles
        fast = benchmark("after hybridizing", net, x, calls)
    print(f"{slow / fast:.1f} times as fast, largest difference {float((after - before).abs().max()):.0e}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "my_mlp.weft"
        with torch.no_grad():
            weft.program(net, x).save(path)
        loaded = weft.load_program(path)
        print(f"loaded without the model's code, largest difference {float((loaded(x) - after).abs().max()):.0e}")


def main() -> None:
    """Run the section."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--calls", type=int, default=1000)
    options = arguments.parse_args()
    print("imperative:", fancy_func(1, 2, 3, 4))
    prog = evoke_str()
    print(prog)
    exec(compile(prog, "", "exec"))  # as the chapter does: defined, compiled, executed
    source = weft.compile_source(prog)
    print("optimised as a whole:", source.optimised)
    source.run()
    hybrid(options.calls)


if __name__ == "__main__":
    main()
