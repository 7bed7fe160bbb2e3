"""Time programs that look at values: `python -m bench.values [--compile] [--train] [--rounds 12] [NAME ...]`.

Eager, Weft and with `--compile` torch.compile's default (which needs a C++ compiler), in turn in one process, on the
same random calls; answers are compared first. Prints microseconds a call, eager's time over ours, and how many paths
and segments there are. None is to be slower than eager; the last line counts those that are.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import weft
from bench.models.subject import SEED
from bench.models.values import PROGRAMS, Deciding
from weft.api.hybridize import hybrid_of

CALLS = 16  # different ones of each program
WARM = 24  # times that all of them are made, before any is timed
TOLERANCE = 2e-3


def flat(thing: Any) -> list[Any]:
    """Give the leaves of a result."""
    return list(torch.utils._pytree.tree_flatten(thing)[0])


def compare(name: str, function: Callable[..., Any], eager: Callable[..., Any], calls: Sequence[Any]) -> None:
    """Stop the run if an answer is another than eager's."""
    for call in calls:
        for one, other in zip(flat(function(*call)), flat(eager(*call)), strict=True):
            if not torch.allclose(torch.as_tensor(one), torch.as_tensor(other), TOLERANCE, TOLERANCE, equal_nan=True):
                raise SystemExit(f"{name}: {one} in the place of {other}")


def times(function: Callable[..., Any], calls: Sequence[Any]) -> list[float]:
    """Give the microseconds of each call: the fastest of a few, as other processes use the cores, too."""
    found = []
    for call in calls:
        best = math.inf
        for _ in range(4):
            begin = time.perf_counter()
            function(*call)
            best = min(best, time.perf_counter() - begin)
        found.append(best * 1e6)
    return found


def trained(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a call be followed by its backward."""

    def run(*given: Any) -> Any:
        leaves = [one.detach().requires_grad_(one.is_floating_point()) for one in given]
        result = function(*leaves)
        carrying = [one for one in flat(result) if isinstance(one, torch.Tensor) and one.requires_grad]
        if carrying:
            sum(one.sum() for one in carrying).backward()
        return result

    return run


def measure(program: Deciding, rounds: int, peers: Sequence[str], *, train: bool) -> dict[str, float]:
    """Give the microseconds a call of each contestant, and count paths and segments."""
    torch.manual_seed(SEED)
    eager = program.make()
    ours = weft.hybridize(program.make())
    if isinstance(eager, torch.nn.Module):
        ours.load_state_dict(eager.state_dict())
    contestants: dict[str, Callable[..., Any]] = {"eager": eager, "weft": ours}
    if "compile" in peers:
        contestants["compile"] = torch.compile(eager)
    calls = [program.inputs() for _ in range(CALLS)]
    if train:
        contestants = {who: trained(function) for who, function in contestants.items()}
    fastest = {who: [math.inf] * CALLS for who in contestants}
    with torch.set_grad_enabled(train):
        for who, function in contestants.items():
            for _ in range(WARM if who == "weft" else 3):
                times(function, calls)
            compare(f"{program.name}, {who}", function, contestants["eager"], calls)
        for _ in range(rounds):
            for who, function in contestants.items():
                fastest[who] = list(map(min, fastest[who], times(function, calls)))
    hybrid = hybrid_of(ours)
    best = {who: sum(of) / CALLS for who, of in fastest.items()}
    best["paths"] = sum(map(len, hybrid.programs.values()))
    best["segments"] = len(hybrid.segments)
    return best


def mean(ratios: Sequence[float]) -> float:
    """Give the geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main() -> None:
    """Measure what was chosen."""
    parser = argparse.ArgumentParser(prog="bench.values", description="Programs that look at values.")
    parser.add_argument("names", nargs="*", help="programs (all)")
    parser.add_argument("--compile", action="store_true", help="time torch.compile's default, too")
    parser.add_argument("--train", action="store_true", help="with gradients and a backward")
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    peers = ["compile"] if given.compile else []
    chosen = [one for one in PROGRAMS if not given.names or one.name in given.names]
    torch.set_num_threads(1)
    ratios: dict[str, list[float]] = {"eager": [], **{peer: [] for peer in peers}}
    for program in chosen:
        found = measure(program, given.rounds, peers, train=given.train)
        for peer, of in ratios.items():
            of.append(found[peer] / found["weft"])
        times = "".join(f"{who} {found[who]:8.1f}  " for who in ("eager", *peers, "weft"))
        counts = f"{found['paths']:3.0f} paths {found['segments']:3.0f} segments"
        print(f"{program.name:20} {times} {ratios['eager'][-1]:6.2f} times eager  {counts}", flush=True)
    for peer, of in ratios.items():
        slower = sum(one < 1 for one in of)
        print(f"{len(of)} programs: {mean(of):.2f} times {peer} in the geometric mean, {slower} of them slower")


if __name__ == "__main__":
    main()
