"""Stops about training: a whole step as one program, and checkpoints that load anywhere."""

from __future__ import annotations

import torch

from weft.tour.stop import Claim, Names, Stop
from weft.tour.timing import before_and_after, change_text

CALLS = 50

STEP = """\
import copy
import torch
from torch import nn
import weft

net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
twin = copy.deepcopy(net)
x, target = torch.randn(32, 64), torch.randint(0, 10, (32,))
loss = nn.CrossEntropyLoss()

step = weft.step(net, loss, torch.optim.SGD(net.parameters(), lr=0.1))
optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)

def eager_step():
    optimizer.zero_grad()
    found = loss(twin(x), target)
    found.backward()
    optimizer.step()
    return found

pairs = [(eager_step().item(), step(x, target).item()) for turn in range(5)]
for eager, whole in pairs:
    print(f"{eager:.6f} {whole:.6f}")"""

CHECKPOINT = """\
import tempfile
from pathlib import Path
import torch
from torch import nn
import weft

wrapped = nn.DataParallel(nn.Linear(4, 2))  # as it is trained on two GPUs
net = nn.Linear(4, 2)
try:
    net.load_state_dict(wrapped.state_dict())
except RuntimeError as error:
    print(str(error).splitlines()[1].strip())

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "run.ckpt"
    weft.save(path, wrapped)
    weft.load(path, net)
print(torch.equal(net.weight, wrapped.module.weight))"""


def _check_step(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    worst = max(abs(eager - whole) for eager, whole in names["pairs"])
    step, x, target = names["step"], names["x"], names["target"]
    found = before_and_after(names["eager_step"], lambda: step(x, target), CALLS)
    return (
        Claim("step_same", "-", f"{worst:.1e}", worst < 1e-5),
        Claim("step_faster", "torch.compile: 1.84 ms → 1.28 ms, × 1.44", change_text(*found), found[2] > 1),
    )


def _check_checkpoint(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    same = bool(torch.equal(names["net"].weight, names["wrapped"].module.weight))
    return (Claim("checkpoint", 'Missing key(s) "weight", "bias"', str(same), same),)


TRAINING = (
    Stop("step", STEP, _check_step, ("step",)),
    Stop("checkpoint", CHECKPOINT, _check_checkpoint, ("save", "load")),
)
