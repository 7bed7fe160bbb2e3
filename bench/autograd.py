"""Time the chapter's MLP as a reader types it: with gradients on, and with its backward, by Weft and by eager PyTorch.

`python -m bench.autograd [--rounds 100] [--threads 2]` checks answers and gradients first, then makes both in turn. It
prints the least and the median of what a call takes, and the quotients of both; the page is build/bench/autograd.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from statistics import median

import torch
from torch import nn

import weft
from bench.machine import ROOT, describe
from bench.models.chapter import mlp

CALLS = 50
WARM = 200  # calls before: lanes have been tried, and what is made late is made
FOLDER = ROOT / "build" / "bench"


def bare(net: nn.Module, x: torch.Tensor) -> None:
    """Call without gradients."""
    with torch.no_grad():
        net(x)


def recorded(net: nn.Module, x: torch.Tensor) -> None:
    """Call with gradients on."""
    net(x)


def trained(net: nn.Module, x: torch.Tensor) -> None:
    """Call forward and backward, with gradients that begin anew, as `zero_grad()` makes them."""
    net(x).sum().backward()
    for parameter in parameters_of(net):
        parameter.grad = None


@cache
def parameters_of(net: nn.Module) -> tuple[nn.Parameter, ...]:
    """List the parameters once, as optimizers do: to look for them takes as long as a fifth of eager's forward."""
    return tuple(net.parameters())


def accumulated(net: nn.Module, x: torch.Tensor) -> None:
    """Call forward and backward, with gradients that add up."""
    net(x).sum().backward()


WAYS: dict[str, Callable[[nn.Module, torch.Tensor], None]] = {
    "without gradients": bare,
    "with gradients on": recorded,
    "forward and backward, gradients None": trained,
    "forward and backward, gradients added": accumulated,
}


def nets() -> tuple[nn.Module, nn.Module]:
    """Make the network twice with the same parameters, the second one hybridized; stop where they differ."""
    torch.manual_seed(0)
    eager, ours = mlp(512, 256, 128, 2), mlp(512, 256, 128, 2)
    ours.load_state_dict(eager.state_dict())
    weft.hybridize(ours)
    x = torch.randn(1, 512)
    for net in (eager, ours):
        net(x).sum().backward()
    torch.testing.assert_close(ours(x), eager(x))
    for one, other in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    return eager, ours


def microseconds(call: Callable[[], None]) -> float:
    """Give the time of one call, measured over some."""
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begin) / CALLS * 1e6


def row(name: str, pairs: Sequence[tuple[float, float]]) -> str:
    """Give a line of the table."""
    eager, ours = zip(*pairs, strict=True)
    least, middle = (min(eager), min(ours)), (median(eager), median(ours))
    cells = [f"{one:.1f} | {other:.1f} | {one / other:.2f}" for one, other in (least, middle)]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Measure, print, and write the page."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--rounds", type=int, default=100)
    words.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = words.parse_args()
    torch.set_num_threads(given.threads)
    (eager, ours), x = nets(), torch.randn(1, 512)
    machine = describe(given.threads)
    told = f"the least and the median of {given.rounds} rounds in turn, and the quotient of each."
    where = f"{machine['processor']}, {given.threads} threads, {machine['date']}"
    lines = [
        f"Chapter MLP 512-256-128-2, batch 1, microseconds a call on {where}: {told}",
        "",
        "| | eager, least | Weft, least | times | eager, median | Weft, median | times |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, call in WAYS.items():
        for net in (eager, ours):
            for _ in range(WARM):
                call(net, x)
        calls = [partial(call, net, x) for net in (eager, ours)]
        pairs = [(microseconds(calls[0]), microseconds(calls[1])) for _ in range(given.rounds)]
        lines.append(row(name, pairs))
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "autograd.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
