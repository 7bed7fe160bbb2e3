"""Time MXNet programs in this process, as asked line by line: the same code for the real MXNet and for weft.mx.

Run by `bench.mxnet`: `python mxnet_worker.py weft|mxnet`. A request is the name of a measurement, an answer its figures
as JSON. Imports nothing of Weft but what `import mxnet` gives.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
sys.path.remove(str(Path(__file__).resolve().parent))  # `bench.mxnet` lies there, too
if sys.argv[1:2] == ["weft"]:
    from weft import mx as dialect

    dialect.install()

import mxnet as mx  # noqa: E402  # what that is was decided above
import numpy as np  # noqa: E402
from mxnet import autograd, gluon, nd  # noqa: E402
from mxnet.gluon import nn  # noqa: E402

Measure = Callable[[], "dict[str, float]"]
CALLS, QUEUED, SIZE, FILL = 30, 200, 2000, 0.02  # few: short rounds find a quiet moment beside other work


def timed(run: Callable[[], object]) -> float:
    """Give the seconds until all that a call queues is done."""
    nd.waitall()
    start = time.perf_counter()
    run()
    nd.waitall()
    return time.perf_counter() - start


def mlp(hybrid: bool) -> Measure:
    """The chapter's MLP at batch 1: seconds a call."""
    net = nn.HybridSequential()
    net.add(nn.Dense(256, activation="relu"), nn.Dense(128, activation="relu"), nn.Dense(2))
    net.initialize()
    if hybrid:
        net.hybridize(static_alloc=True, static_shape=True)
    x = nd.random.normal(shape=(1, 512))
    for _ in range(50):
        net(x)

    def calls() -> None:
        for _ in range(CALLS):
            net(x)

    return lambda: {"call": timed(calls) / CALLS}


def queued_dot() -> Measure:
    """A large product: until it is queued, and until it is done."""
    x = nd.random.uniform(shape=(SIZE, SIZE))

    def run() -> dict[str, float]:
        nd.waitall()
        start = time.perf_counter()
        y = nd.dot(x, x)
        queued = time.perf_counter() - start
        y.wait_to_read()
        return {"queued": queued, "done": time.perf_counter() - start}

    return run


def queued_sum() -> Measure:
    """`y = x + 1`: seconds to queue one."""
    x = nd.ones((1, 2))

    def run() -> dict[str, float]:
        nd.waitall()
        start = time.perf_counter()
        for _ in range(QUEUED):
            _ = x + 1
        queued = time.perf_counter() - start
        nd.waitall()
        return {"queued": queued / QUEUED}

    return run


def training(net: Any, shape: tuple[int, ...], steps: int) -> Measure:
    """Steps of training with SGD: seconds a step."""
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    loss.hybridize()
    x, y = nd.random.uniform(shape=shape), nd.array(np.arange(shape[0]) % 10)

    def some() -> None:
        for _ in range(steps):
            with autograd.record():
                found = loss(net(x), y)
            found.backward()
            trainer.step(shape[0])

    timed(some)
    timed(some)
    return lambda: {"step": timed(some) / steps}


def lenet() -> Measure:
    """The chapter's LeNet at batch 256."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(20, 3, activation="relu"), nn.AvgPool2D(2, 2), nn.Conv2D(50, 5, activation="relu"))
    net.add(nn.AvgPool2D(2, 2), nn.Dense(128, activation="relu"), nn.Dense(10))
    return training(net, (256, 1, 28, 28), 3)


class Residual(nn.HybridBlock):
    """Two convolutions whose result is added to what went in."""

    def __init__(self, channels: int, wide: bool, **given: Any) -> None:
        super().__init__(**given)
        self.conv1 = nn.Conv2D(channels, 3, padding=1, strides=2 if wide else 1)
        self.conv2 = nn.Conv2D(channels, 3, padding=1)
        self.conv3 = nn.Conv2D(channels, 1, strides=2) if wide else None
        self.bn1, self.bn2 = nn.BatchNorm(), nn.BatchNorm()

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803  # MXNet's name
        """Compute it."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (self.conv3(x) if self.conv3 else x))


def resnet() -> Measure:
    """The chapter's ResNet-18 at batch 32."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(64, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"))
    for place, channels in enumerate((64, 128, 256, 512)):
        net.add(Residual(channels, place > 0), Residual(channels, False))
    net.add(nn.GlobalAvgPool2D(), nn.Dense(10))
    return training(net, (32, 1, 28, 28), 1)


def two_contexts() -> Measure:
    """Ten products on each of two devices: apart and together."""
    xs = [nd.random.uniform(shape=(SIZE // 2, SIZE // 2), ctx=mx.cpu(i)) for i in range(2)]

    def on(*places: int) -> Callable[[], object]:
        return lambda: [nd.dot(xs[place], xs[place]) for _ in range(10) for place in places]

    def run() -> dict[str, float]:
        return {"first": timed(on(0)), "second": timed(on(1)), "together": timed(on(0, 1))}

    return run


def zoo(name: str) -> Measure:
    """A network of the model zoo at batch 1: seconds a call."""
    net = gluon.model_zoo.vision.get_model(name)
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    size = 299 if name.startswith("inception") else 224
    x = nd.random.uniform(shape=(1, 3, size, size))
    for _ in range(3):
        net(x).wait_to_read()
    return lambda: {"call": timed(lambda: net(x))}


MEASUREMENTS: dict[str, Callable[[], Measure]] = {
    "mlp imperative": lambda: mlp(hybrid=False),
    "mlp hybridized": lambda: mlp(hybrid=True),
    "queued dot": queued_dot,
    "queued sum": queued_sum,
    "lenet training": lenet,
    "resnet18 training": resnet,
    "two contexts": two_contexts,
}


def main() -> None:
    """Answer requests until there are no more; what a library prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ready: dict[str, Measure] = {}
    for line in sys.stdin:
        name = line.strip()
        try:
            if name == "forget":
                ready.clear()
                told: Any = {}
            else:
                if name not in ready:
                    ready[name] = MEASUREMENTS[name]() if name in MEASUREMENTS else zoo(name)
                told = ready[name]()
        except Exception as error:  # noqa: BLE001  # told, and the others go on
            told = {"failed": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
