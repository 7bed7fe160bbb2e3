"""Stop at imperative, symbolic and hybrid programming."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from weft.console.tour.stop import Claim, Names, Run, Stop, before_and_after, change_text
from weft.errors import UnsupportedError

CALLS = 200
LONGEST_FIRST_CALL = 1.5

IMPERATIVE = """\
def add(a, b):
    return a + b

def fancy_func(a, b, c, d):
    e = add(a, b)
    f = add(c, d)
    g = add(e, f)
    return g

print(fancy_func(1, 2, 3, 4))"""

SYMBOLIC = f'''\
import weft

source = weft.compile_source("""
{IMPERATIVE}
""")
print(source.optimised)
source.run()'''

FUSED = '''\
import torch
import weft

source = weft.compile_source("""
def fancy_func(a, b, c, d):
    e = a + b
    f = c + d
    return e + f
""")
given = [torch.ones(1000) * number for number in (1, 2, 3, 4)]
with torch.no_grad():
    program = weft.program(source.function("fancy_func"), *given)
    result = source.hybridize("fancy_func")(*given)
print(program)
print(program.summary())'''

HYBRIDIZE = """\
import time
import torch
from torch import nn
import weft

net = nn.Sequential(nn.Linear(512, 256), nn.ReLU(),
                    nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 2))
x = torch.randn(1, 512)
with torch.no_grad():
    imperative = net(x)
    eager = net.forward
    weft.hybridize(net)
    start = time.perf_counter()
    hybrid = net(x)
    first_call = time.perf_counter() - start
print(hybrid.sub(imperative).abs().max() < 1e-6)"""

ONCE = """\
import torch
from torch import nn
import weft

class HybridNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 10)
        self.output = nn.Linear(10, 2)

    def forward(self, x):
        print("Python is here, x has sizes", tuple(x.shape))
        return self.output(self.hidden(x).relu())

net = weft.hybridize(HybridNet())
x = torch.randn(1, 4)
with torch.no_grad():
    first, second = net(x), net(x)
print(torch.equal(first, second))"""

REFUSED = """\
import torch
import weft

@weft.hybridize(whole=True)
def net(x):
    if x.sum() > 0:
        return x + 1
    return x - 1

try:
    net(torch.ones(3))
except weft.UnsupportedError as error:
    refused = error
    print(refused)"""

PORTABLE = """\
import tempfile
from pathlib import Path
import torch
from torch import nn
import weft

net = nn.Sequential(nn.Linear(512, 256), nn.ReLU(),
                    nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 2))
x = torch.randn(1, 512)
with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    path = Path(folder) / "my_mlp.weft"
    weft.program(net, x).save(path)
    content = path.read_bytes()
    loaded = weft.load_program(path)
print(len(content) // 1024, "KiB")
print(torch.allclose(loaded(x), net(x), atol=1e-6))"""

# What another process runs: it has no model, only the file and an input.
ELSEWHERE = """
import sys, torch, weft
net = weft.load_program(sys.argv[1] + "/net.weft")
x = torch.load(sys.argv[1] + "/x.pt", weights_only=True)
torch.save(net(x), sys.argv[1] + "/y.pt")
"""


def _check_imperative(names: Names, printed: str) -> tuple[Claim, ...]:
    result = names["fancy_func"](1, 2, 3, 4)
    return (Claim("imperative", "10", str(result), result == 10 and printed == "10\n"),)


def _check_symbolic(names: Names, printed: str) -> tuple[Claim, ...]:
    optimised = names["source"].optimised
    last = printed.splitlines()[-1]
    return (
        Claim("symbolic_same", "10", last, last == "10"),
        Claim("symbolic_rewritten", "print(10)", optimised, optimised == "print(10)"),
    )


def _check_fused(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    summary = names["program"].summary()
    right = bool(torch.equal(names["result"], torch.full((1000,), 10.0)))
    return (
        Claim("fused", "e, f: -", summary.partition(";")[0], "1 region in machine code, 0 calls" in summary),
        Claim("fused_same", "10", f"{names['result'][0].item():g}", right),
    )


def _check_hybridize(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    net, eager, x = names["net"], names["eager"], names["x"]
    difference = (names["hybrid"] - names["imperative"]).abs().max().item()

    def trains(forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
        forward(x).sum().backward()
        net.zero_grad()

    with torch.no_grad():
        bare = _thousand(lambda: eager(x), lambda: net(x))
    recorded = _thousand(lambda: eager(x), lambda: net(x))
    trained = _thousand(lambda: trains(eager), lambda: trains(net))
    first = names["first_call"]
    return (
        Claim("hybrid_same", "0.0", f"{difference:.1e}", difference < 1e-6),
        Claim("hybrid_faster", "0.2385 s → 0.1001 s, × 2.38", change_text(*bare), bare[2] > 1, bare[:2]),
        Claim("recorded_faster", "-", change_text(*recorded), recorded[2] > 1),
        Claim("backward_faster", "-", change_text(*trained), trained[2] > 1),
        Claim("hybrid_soon", "torch.compile: 9.6 s", f"{first:.3f} s", first < LONGEST_FIRST_CALL),
    )


def _thousand(before: Run, after: Run) -> tuple[float, float, float]:
    """Time two ways in turn, and give what 1000 calls take."""
    found = before_and_after(before, after, CALLS)
    return found[0] * 1000 / CALLS, found[1] * 1000 / CALLS, found[2]


def _check_once(names: Names, printed: str) -> tuple[Claim, ...]:
    times = printed.count("Python is here")
    same = bool(torch.equal(names["first"], names["second"]))
    return (Claim("once", "1, 0", f"{times}, 0" if same and times == 1 else f"{times}", same and times == 1),)


def _check_refused(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    error = names.get("refused")
    named = isinstance(error, UnsupportedError) and "if x.sum() > 0" in (error.where or "") and bool(error.fix)
    return (Claim("refused", "NotImplementedForSymbol", type(error).__name__, named),)


def _check_portable(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    x = names["x"]
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        folder = Path(name)
        (folder / "net.weft").write_bytes(names["content"])
        torch.save(x, folder / "x.pt")
        subprocess.run([sys.executable, "-c", ELSEWHERE, name], check=True, cwd=name)
        found = torch.load(folder / "y.pt", weights_only=True)
        difference = (found - names["net"](x)).abs().max().item()
    size = len(names["content"]) / 1024
    return (
        Claim("portable", "C++, R, Scala, Perl", f"{difference:.1e}", difference < 1e-6),
        Claim("portable_size", "644 K + 3.1 K", f"{size:.0f} K", size < 1.05 * (644 + 3.1)),
    )


PROGRAMMING = (
    Stop("imperative", IMPERATIVE, _check_imperative),
    Stop("symbolic", SYMBOLIC, _check_symbolic, ("compile_source",)),
    Stop("fused", FUSED, _check_fused, ("compile_source", "program")),
    Stop("hybridize", HYBRIDIZE, _check_hybridize, ("hybridize",)),
    Stop("once", ONCE, _check_once, ("hybridize",)),
    Stop("refused", REFUSED, _check_refused, ("hybridize",)),
    Stop("portable", PORTABLE, _check_portable, ("program", "load_program")),
)
