"""Export two networks with the real MXNet, with an input and its answer: run by the oracle's Python."""

from __future__ import annotations

from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.gluon import nn

HERE = Path(__file__).resolve().parents[1] / "fixtures" / "exported"


def main() -> None:
    """Write the fixtures."""
    HERE.mkdir(exist_ok=True)
    mx.random.seed(1)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, activation="relu"), nn.BatchNorm(), nn.MaxPool2D(2), nn.Flatten(), nn.Dense(5))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = nd.random.uniform(shape=(2, 1, 8, 8))
    y = net(x)
    net.export(str(HERE / "net"))
    loss = mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(mx.sym.var("data", shape=(2, 3)), num_hidden=4, name="fc"), name="softmax"
    )
    weights = {"fc_weight": nd.random.uniform(shape=(4, 3)), "fc_bias": nd.arange(4)}
    mx.model.save_checkpoint(str(HERE / "old"), 7, loss, weights, {})
    given = nd.random.uniform(shape=(2, 3))
    answer = loss.eval(data=given, softmax_label=nd.zeros(2), **weights)[0]
    np.savez(
        HERE / "answers.npz",
        net_input=x.asnumpy(),
        net=y.asnumpy(),
        old_input=given.asnumpy(),
        old=answer.asnumpy(),
    )


if __name__ == "__main__":
    main()
