"""Time the chapter's MXNet programs, and the model zoo, with weft.mx and with the real MXNet 1.9.1, in turn.

    python -m bench.mxnet --oracle build/mxnet-oracle/bin/python            the chapter's programs
    python -m bench.mxnet --oracle ... --zoo [--only resnet18_v1 ...]       networks of the model zoo, batch 1

Each library has a process of its own (`mxnet_worker.py`), which is asked in turn, round by round; a figure is the least
of its rounds. `make mxnet-oracle` installs the real MXNet.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("mxnet_worker.py")
PROGRAMS = (
    "mlp imperative",
    "mlp hybridized",
    "queued dot",
    "queued sum",
    "lenet training",
    "resnet18 training",
    "two contexts",
)
ZOO = """
alexnet densenet121 densenet161 densenet169 densenet201 inceptionv3 mobilenet0.25 mobilenet0.5 mobilenet0.75
mobilenet1.0 mobilenetv2_0.25 mobilenetv2_0.5 mobilenetv2_0.75 mobilenetv2_1.0 resnet18_v1 resnet18_v2 resnet34_v1
resnet34_v2 resnet50_v1 resnet50_v2 resnet101_v1 resnet101_v2 resnet152_v1 resnet152_v2 squeezenet1.0 squeezenet1.1
vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn
""".split()  # noqa: SIM905  # words in lines read better than a column of them
# What the chapter's programs are held to: the figure, at most so much (seconds, or a part).
WANTED = {
    "mlp imperative": ("call", 60e-6),
    "mlp hybridized": ("call", 12e-6),
    "queued dot": ("queued / done", 0.01),
    "queued sum": ("queued", 10e-6),
    "lenet training": ("against MXNet", 1 / 1.5),
    "resnet18 training": ("against MXNet", 1 / 1.15),
    "two contexts": ("together / sum", 0.6),
}


class Library:
    """A process that has one of the two libraries, and is stopped while the other one is asked."""

    def __init__(self, name: str, python: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [python, "-W", "ignore", str(WORKER), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.process.send_signal(signal.SIGSTOP)

    def ask(self, request: str) -> dict[str, Any]:
        """Ask for a measurement."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.name} ended")
        self.process.send_signal(signal.SIGSTOP)
        found: dict[str, Any] = json.loads(line)
        return found


@contextlib.contextmanager
def libraries(oracle: str) -> Iterator[list[Library]]:
    """The two processes, which end with the block."""
    found = [Library("weft", sys.executable), Library("mxnet", oracle)]
    try:
        yield found
    finally:
        for library in found:
            library.process.kill()
            library.process.wait()


def measured(found: list[Library], request: str, rounds: int) -> dict[str, dict[str, float]]:
    """The least of each figure of each library, in rounds that take turns."""
    least: dict[str, dict[str, float]] = {library.name: {} for library in found}
    for _ in range(rounds):
        for library in found:
            told = library.ask(request)
            if "failed" in told:
                raise SystemExit(f"{library.name}, {request}: {told['failed']}")
            for name, seconds in told.items():
                least[library.name][name] = min(seconds, least[library.name].get(name, math.inf))
    for library in found:
        library.ask("forget")
    return least


def shares(figures: dict[str, float]) -> dict[str, float]:
    """Figures with the parts that follow from them."""
    made = dict(figures)
    if "done" in made:
        made["queued / done"] = made["queued"] / made["done"]
    if "together" in made:
        made["together / sum"] = made["together"] / (made["first"] + made["second"])
    return made


def row(request: str, least: dict[str, dict[str, float]]) -> dict[str, Any]:
    """One line of the result: both libraries, their ratio, and whether it is what was wanted."""
    weft, mxnet = shares(least["weft"]), shares(least["mxnet"])
    main = "step" if "step" in weft else "call" if "call" in weft else next(reversed(weft))
    made: dict[str, Any] = {"name": request, "figure": main, "weft": weft, "mxnet": mxnet}
    made["times faster"] = mxnet[main] / weft[main]
    if request in WANTED:
        what, most = WANTED[request]
        here = weft[main] / mxnet[main] if what == "against MXNet" else weft[what]
        made |= {"wanted": f"{what} <= {most:.3g}", "here": here, "holds": here <= most}
    return made


def main(words: list[str] | None = None) -> None:
    """Measure and print, line by line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", default="build/mxnet-oracle/bin/python")
    parser.add_argument("--zoo", action="store_true")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="also write the result there")
    given = parser.parse_args(words)
    if not Path(given.oracle).exists():
        raise SystemExit(f"there is no {given.oracle}: make mxnet-oracle installs the real MXNet")
    names = given.only or (ZOO if given.zoo else PROGRAMS)
    rows = []
    print(f"{os.cpu_count()} cores, the least of {given.rounds} rounds")
    with libraries(given.oracle) as found:
        for name in names:
            made = row(name, measured(found, name, given.rounds))
            rows.append(made)
            figure, verdict = made["figure"], ""
            if "wanted" in made:
                verdict = f"  {made['wanted']}: {made['here']:.3g} {'holds' if made['holds'] else 'does not hold'}"
            print(
                f"{name:20s} weft {made['weft'][figure]:10.3g}  MXNet {made['mxnet'][figure]:10.3g}"
                f"  x {made['times faster']:.2f}{verdict}",
                flush=True,
            )
    ratios = [made["times faster"] for made in rows]
    print(f"geometric mean x {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")
    if given.json:
        Path(given.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
