"""A kind of refusal -> the smallest program that meets it, and one that does the same as a whole program."""

from __future__ import annotations

DETACHED = """\
def both(x):
    y = x * 2
    detached = y.detach(){}
    detached.mul_(x)
    return y, detached


weft.hybridize(both)(torch.ones(2, requires_grad=True))"""

COUNTS = """\
class Net(torch.nn.Module):
    steps = 0

    def forward(self, x):
        self.steps += 1
        return {}


net = weft.hybridize(Net())
for _ in range(4):
    net(torch.ones(30))"""

GROWS = """\
sizes = []


def function(x):
    sizes.append(len(x))
    return x * {}


f = weft.hybridize(function)
for _ in range(4):
    f(torch.ones(2))"""

REENTRANT = """\
from torch.utils.checkpoint import CheckpointFunction, checkpoint

f = weft.hybridize(lambda x: {})
f(torch.ones(2, requires_grad=True)).sum().backward()"""
COUNTED = """\
class Net(torch.nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        y = x * 2
        y.register_hook(lambda gradient{})
        return y + 1


net = Net()
weft.hybridize(net)
net(torch.ones(2, requires_grad=True)).sum().backward()"""
CHECKPOINTS = """\
from torch.utils.checkpoint import checkpoint

norm = torch.nn.BatchNorm1d(3)
f = weft.hybridize(lambda x: {})
f(torch.randn(4, 3, requires_grad=True)).sum().backward()"""

HOOKED = """\
def f(x):
    {}


weft.hybridize(f)(torch.ones(2, requires_grad=True)).sum().backward()"""

PACKED = """\
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

f = weft.hybridize(lambda x, n: {})
f(torch.ones(3, 2, 4), torch.tensor([3, 1]))"""
PADDED = "pad_packed_sequence(pack_padded_sequence(x, n))[0].sum()"

CONTEXT = """import contextvars

level = contextvars.ContextVar("level"{})


def f(x):
    level.set(2)
    return x * level.get()


weft.hybridize(f)(torch.ones(2))"""
EXAMPLES: dict[str, tuple[str, str]] = {
    "branch": (
        "f = weft.hybridize(lambda x: x if x.sum() > 0 else -x)\nf(torch.ones(2))",
        "f = weft.hybridize(lambda x: torch.where(x.sum() > 0, x, -x))\nf(torch.ones(2))",
    ),
    "number": (
        "f = weft.hybridize(lambda x: x * x.max().item())\nf(torch.ones(2))",
        "f = weft.hybridize(lambda x: x * x.max())\nf(torch.ones(2))",
    ),
    "numpy": (
        "f = weft.hybridize(lambda x: x + torch.from_numpy(x.numpy()))\nf(torch.ones(2))",
        "f = weft.hybridize(lambda x: x + x)\nf(torch.ones(2)).numpy()",
    ),
    "list": (
        "f = weft.hybridize(lambda x: sum(x.tolist()) * x)\nf(torch.ones(2))",
        "f = weft.hybridize(lambda x: x.sum() * x)\nf(torch.ones(2)).tolist()",
    ),
    "text": (
        'f = weft.hybridize(lambda x: print(f"{x.sum():.3f}") or x)\nf(torch.ones(2))',
        "f = weft.hybridize(lambda x: print(x) or x)  # shows type and sizes, once\nf(torch.ones(2))",
    ),
    "address": (
        "f = weft.hybridize(lambda x: x * (x.data_ptr() > 0))\nf(torch.ones(2))",
        "f = weft.hybridize(lambda x, y: x if x is y else x + y)\nf(torch.ones(2), torch.ones(2))",
    ),
    "version": (
        "f = weft.hybridize(lambda x: x * x._version)\nf(torch.ones(2))",
        "f = weft.hybridize(lambda x, version: x * version)\nx = torch.ones(2)\nf(x, x._version)",
    ),
    "tensor attribute": (
        "@weft.hybridize\ndef f(x):\n    x.scale = 2\n    return x * 2\n\n\nf(torch.ones(2))",
        "f = weft.hybridize(lambda x: x * 2)\nx = torch.ones(2)\nx.scale = 2\nf(x)",
    ),
    "data-dependent shape": (
        "f = weft.hybridize(lambda x: x[x > 0].sum())\nf(torch.ones(2))",
        "f = weft.hybridize(lambda x: torch.where(x > 0, x, 0).sum())\nf(torch.ones(2))",
    ),
    "captured write": (
        (
            "log = torch.zeros(2)\nfound = slice(log)\n"
            "f = weft.hybridize(lambda x: found.stop.add_(x))\nf(torch.ones(2))"
        ),
        "log = torch.zeros(2)\nf = weft.hybridize(lambda x: log.add_(x))\nf(torch.ones(2))",
    ),
    "packed sequence": (PACKED.format("pack_padded_sequence(x, n).data.sum()"), PACKED.format(PADDED)),
    "backward inside": (
        "x = torch.ones(2, requires_grad=True)\nf = weft.hybridize(lambda x: (x**2).sum().backward())\nf(x)",
        "x = torch.ones(2, requires_grad=True)\nf = weft.hybridize(lambda x: (x**2).sum())\nf(x).backward()",
    ),
    "reentrant checkpoint": (
        REENTRANT.format("CheckpointFunction.apply(torch.tanh, True, x)"),
        REENTRANT.format("checkpoint(torch.tanh, x, use_reentrant=True)"),
    ),
    "backward write": (CHECKPOINTS.format("checkpoint(norm, x, use_reentrant=False)"), CHECKPOINTS.format("norm(x)")),
    "hooked result": (
        HOOKED.format("y = x * 2\n    y.register_hook(lambda gradient: gradient * 10)\n    return y"),
        HOOKED.format("y = x.clone()\n    y.register_hook(lambda gradient: gradient * 10)\n    return y * 2"),
    ),
    "read in backward": (
        COUNTED.format(": gradient * net.calls"),
        COUNTED.format(", calls=self.calls: gradient * calls"),
    ),
    "gradient read": (
        "f = weft.hybridize(lambda x: x.grad)\nf(torch.ones(2))",
        "f = weft.hybridize(lambda x, gradient: x - 0.1 * gradient)\nf(torch.ones(2), torch.ones(2))",
    ),
    "gradient kept": (
        (
            "def f(x):\n    y = x * 2\n    y.retain_grad()\n    return y.sin()\n\n\n"
            "weft.hybridize(f)(torch.ones(2, requires_grad=True))"
        ),
        "f = weft.hybridize(lambda x: (x * 2).sin())\nf(torch.ones(2, requires_grad=True))",
    ),
    "gradient put": (
        "def f(x):\n    x.grad = None\n    return x * 2\n\n\nweft.hybridize(f)(torch.ones(2))",
        "f = weft.hybridize(lambda x: x * 2)\nx = torch.ones(2)\nx.grad = None\nf(x)",
    ),
    "context variable": (CONTEXT.format(""), CONTEXT.format(", default=1")),
    "memory replaced": (
        "def f(x):\n    x.data = torch.zeros(3)\n\n\nweft.hybridize(f)(torch.ones(2))",
        "def f(x):\n    x.data = torch.zeros(2)\n\n\nweft.hybridize(f)(torch.ones(2))",
    ),
    "input reshaped in place": (
        "f = weft.hybridize(lambda x: x.t_())\nf(torch.ones(2, 3))",
        "f = weft.hybridize(lambda x: x.t())\nf(torch.ones(2, 3))",
    ),
    "made leaf": (
        (
            "def f(x):\n    noise = torch.zeros(2, requires_grad=True)\n    return x + noise, noise\n\n\n"
            "weft.hybridize(f)(torch.ones(2))"
        ),
        (
            "f = weft.hybridize(lambda x, noise: x + noise)\nnoise = torch.zeros(2, requires_grad=True)\n"
            "f(torch.ones(2), noise)"
        ),
    ),
    "gradient flag": (
        "weight = torch.ones(2)\nf = weft.hybridize(lambda x: x.requires_grad_() * weight)\nf(weight)",
        "weight = torch.ones(2)\nf = weft.hybridize(lambda x: x * weight)\nf(weight.requires_grad_())",
    ),
    "python draw": (
        "import random\n\nf = weft.hybridize(lambda x: x * 2 if random.random() < 2 else x)\nf(torch.ones(2))",
        "f = weft.hybridize(lambda x: x * torch.rand(()))\nf(torch.ones(2))",
    ),
    "impure call": (
        "import time\n\nf = weft.hybridize(lambda x: x * time.time())\nf(torch.ones(2))",
        "import time\n\nf = weft.hybridize(lambda x, now: x * now)\nf(torch.ones(2), time.time())",
    ),
    "iterator": (
        "numbers = iter([1.0, 2.0])\nf = weft.hybridize(lambda x: x * next(numbers))\nf(torch.ones(2))",
        "numbers = iter([1.0, 2.0])\nf = weft.hybridize(lambda x, number: x * number)\nf(torch.ones(2), next(numbers))",
    ),
    "counter": (
        COUNTS.format("x[: self.steps]"),
        COUNTS.format("x * self.steps"),
    ),
    "growing": (
        GROWS.format("len(sizes)"),
        GROWS.format("len(x)"),
    ),
    "foreign result": (
        "f = weft.hybridize(lambda x: (row for row in x * 2))\nf(torch.ones(2))",
        "f = weft.hybridize(lambda x: [row for row in x * 2])\nf(torch.ones(2))",
    ),
    "kept tensor": (
        "kept = set()\nf = weft.hybridize(lambda x: kept.add(x * 2))\nf(torch.ones(2))",
        "kept = []\nf = weft.hybridize(lambda x: kept.append(x * 2))\nf(torch.ones(2))",
    ),
    "layout": (
        "f = weft.hybridize(lambda x: x * 2)\nf(torch.eye(2).to_sparse())",
        "f = weft.hybridize(lambda x: x * 2)\nf(torch.eye(2).to_sparse().to_dense())",
    ),
    "generator": (
        "f = weft.hybridize(lambda x: x + torch.rand(2, generator=torch.Generator().manual_seed(1)))\nf(torch.ones(2))",
        "f = weft.hybridize(lambda x, g: x + torch.rand(2, generator=g))\nf(torch.ones(2), torch.Generator())",
    ),
    "detached gradient": (
        DETACHED.format(""),
        DETACHED.format(".clone()"),
    ),
}
