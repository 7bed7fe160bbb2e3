"""Stop at whole steps, many devices, also unequal ones, and checkpoints."""

from __future__ import annotations

import torch

from weft.console.tour.stop import Claim, Names, Stop, before_and_after, change_text

CALLS = 50
CLOSE = 1e-6

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

DEVICES = """\
import torch
import weft

batch = torch.arange(24.0).reshape(6, 4)
devices = ["cpu:0", "cpu:1"]  # or "cuda:0", "cuda:1"
pieces = weft.split_and_load(batch, devices)
print([tuple(piece.shape) for piece in pieces])

data = [torch.ones(1, 2) * (device + 1) for device in range(2)]
print("before:", data)
weft.allreduce(data)
print("after: ", data)

tasks = []
for device in devices:
    with weft.on(device):
        tasks.append(weft.spawn(torch.mm, batch.t(), batch))
weft.waitall()  # for every device, not the current one only
done = [weft.ready(task) for task in tasks]
print("done:", done)"""

UNEQUAL = """\
import copy
import torch
from torch import nn
import weft

net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 10))
twin = copy.deepcopy(net)
x, y = torch.randn(32, 20), torch.randint(0, 10, (32,))
loss = nn.CrossEntropyLoss()

one = weft.Trainer(net, torch.optim.SGD(net.parameters(), lr=0.1),
                   loss, devices=["cpu:0"])
two = weft.Trainer(twin, torch.optim.SGD(twin.parameters(), lr=0.1),
                   loss, devices=["cpu:0", "cpu:1"], shares=[3, 1])
for turn in range(3):
    print(f"{one.step(x, y).item():.6f} {two.step(x, y).item():.6f}")
pairs = zip(net.parameters(), twin.parameters())
difference = max((a - b).abs().max().item() for a, b in pairs)"""

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
        Claim("step_faster", "torch.compile: 1.84 ms → 1.28 ms, × 1.44", change_text(*found), found[2] > 1, found[:2]),
    )


def _check_devices(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    sizes = ", ".join(f"{len(piece)}x{piece.shape[1]}" for piece in names["pieces"])
    sums = [tensor.tolist() for tensor in names["data"]]
    return (
        Claim("devices_split", "3x4, 3x4", sizes, sizes == "3x4, 3x4"),
        Claim("devices_sum", "[[3, 3]], [[3, 3]]", str(sums)[1:-1], sums == [[[3.0, 3.0]]] * 2),
        Claim("devices_wait", "synchronize(): 1 of 2", f"{sum(names['done'])} of 2", all(names["done"])),
    )


def _check_unequal(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    difference = names["difference"]
    return (Claim("unequal", "9.3e-10 (k=1, k=2)", f"{difference:.1e}", difference < CLOSE),)


def _check_checkpoint(names: Names, printed: str) -> tuple[Claim, ...]:
    del printed
    same = bool(torch.equal(names["net"].weight, names["wrapped"].module.weight))
    return (Claim("checkpoint", 'Missing key(s) "weight", "bias"', str(same), same),)


TRAINING = (
    Stop("step", STEP, _check_step, ("step",)),
    Stop("devices", DEVICES, _check_devices, ("split_and_load", "allreduce")),
    Stop("unequal", UNEQUAL, _check_unequal, ("Trainer",)),
    Stop("checkpoint", CHECKPOINT, _check_checkpoint, ("save", "load")),
)
