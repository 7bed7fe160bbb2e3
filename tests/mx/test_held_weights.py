"""Weights that stay are held, and writes to them are seen."""

from __future__ import annotations

import numpy as np
import pytest

from weft import mx
from weft.mx import autograd, gluon, nd
from weft.mx.gluon import nn
from weft.mx.symbols import graph


@pytest.fixture(autouse=True)
def all_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "FEWEST_BYTES", 0)


def made(contexts: list[mx.Context]) -> nn.HybridSequential:
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, in_channels=2), nn.BatchNorm(in_channels=4), nn.Dropout(0.5), nn.Dense(3, in_units=36))
    net.initialize(ctx=contexts)
    net.hybridize()
    return net


def imperatively(net: nn.HybridSequential, x: nd.NDArray) -> np.ndarray:
    for block in net:
        x = block.hybrid_forward(nd, x, **{name: each.data(x.context) for name, each in block._reg_params.items()})
    return x.asnumpy()


def held(net: nn.HybridSequential) -> list[bool]:
    return [found.are_held for found in net._cached[0]._held.values()]


def test_writes_of_all_kinds_to_weights_that_are_held_are_seen() -> None:
    net, x = made([mx.cpu()]), nd.random.uniform(shape=(2, 2, 5, 5))
    weight = net[0].weight
    writes = (
        lambda: None,
        lambda: weight.set_data(nd.ones(weight.shape)),
        lambda: weight.data().__setitem__(0, 3),
        lambda: weight.data().__imul__(2),
        lambda: net.initialize(mx.init.Normal(1), force_reinit=True),
    )
    for write in writes:
        write()
        for _ in range(6):
            np.testing.assert_allclose(net(x).asnumpy(), imperatively(net, x), rtol=1e-4, atol=1e-5)
    assert held(net) == [True]


def test_weights_that_change_at_each_call_are_inputs() -> None:
    net, x = made([mx.cpu()]), nd.random.uniform(shape=(2, 2, 5, 5))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for _ in range(6):
        with autograd.record():
            loss = net(x).sum()
        loss.backward()
        trainer.step(2)
        np.testing.assert_allclose(net(x).asnumpy(), imperatively(net, x), rtol=1e-4, atol=1e-5)
    assert held(net) == [False]


def test_devices_have_weights_of_their_own() -> None:
    contexts = [mx.cpu(60), mx.cpu(61)]
    net = made(contexts)
    xs = [nd.random.uniform(shape=(2, 2, 5, 5), ctx=context) for context in contexts]
    for context in contexts:
        net[3].bias.data(context)[:] = context.device_id
    for _ in range(10):
        found = [net(x) for x in xs]
        for x, y in zip(xs, found, strict=True):
            assert y.context is x.context
            np.testing.assert_allclose(y.asnumpy(), imperatively(net, x), rtol=1e-4, atol=1e-5)
    assert held(net) == [True, True]
