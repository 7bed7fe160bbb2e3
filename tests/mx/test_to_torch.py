"""A network of MXNet's becomes a torch module that gives the same, trains, and needs no weft."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.mx import zoo_weights as zw

from weft.errors import UnsupportedError, UsageError
from weft.mx import autograd, gluon, init, nd, to_torch
from weft.mx.gluon import nn
from weft.mx.gluon.vision_models import get_model
from weft.mx.symbols import sym

# Sizes of images for networks that take any: these are enough.
SMALLER = {"alexnet": 95, "mobilenet0.25": 64, "mobilenetv2_0.25": 64, "resnet50_v2": 64}


def compare(net: Any, *arrays: Any) -> Any:
    made = to_torch(net, *arrays).eval()
    wanted = net(*arrays).asnumpy()
    found = made(*[torch.from_numpy(x.asnumpy()) for x in arrays])
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    return made


@pytest.mark.parametrize(
    "name",
    [
        "squeezenet1.1",
        "mobilenet0.25",
        "mobilenetv2_0.25",
        *[
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("alexnet", "densenet121", "inceptionv3", "resnet50_v2")
        ],
    ],
)
def test_a_network_of_the_zoo_gives_the_same(name: str) -> None:
    net = get_model(name)
    net.initialize()
    x = nd.array(zw.image(SMALLER.get(name, zw.SIZES[name])))
    net(x)
    for key, parameter in net.collect_params().items():
        parameter.set_data(nd.array(zw.weight(key, parameter.shape)))
    compare(net, x)


def small() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, padding=1), nn.BatchNorm(), nn.LeakyReLU(0.1), nn.AvgPool2D(2), nn.Conv2DTranspose(3, 2))
    net.add(nn.Flatten(), nn.LayerNorm(), nn.Dropout(0.3), nn.Dense(3, activation="tanh"))
    net.initialize(init.Xavier())
    return net


def test_layers_are_those_of_torch_and_parameters_are_copies() -> None:
    net, x = small(), nd.random.uniform(shape=(2, 3, 8, 8))
    made = compare(net, x)
    kinds = [type(layer).__name__ for layer in made.children()]
    assert kinds == [
        "Conv2d",
        "BatchNorm2d",
        "LeakyReLU",
        "AvgPool2d",
        "ConvTranspose2d",
        "LayerNorm",
        "Dropout",
        "Linear",
        "Tanh",
    ]
    assert all(type(layer).__module__.startswith("torch.") for layer in made.modules() if layer is not made)
    before = net(x).asnumpy()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    np.testing.assert_array_equal(net(x).asnumpy(), before)
    assert made(torch.zeros(5, 3, 8, 8)).shape == (5, 3)


def test_gradients_are_the_same() -> None:
    net, x = nn.HybridSequential(), nd.random.uniform(shape=(4, 3))
    net.add(nn.Dense(5, activation="relu"), nn.Dense(2))
    net.initialize(init.Xavier())
    made = to_torch(net, x)
    with autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    (made(torch.from_numpy(x.asnumpy())) ** 2).sum().backward()
    for ours, theirs in zip(net.collect_params().values(), made.parameters(), strict=True):
        np.testing.assert_allclose(theirs.grad.numpy(), ours.grad().asnumpy(), rtol=1e-4, atol=1e-5)


def test_a_saved_module_runs_where_there_is_no_weft(tmp_path: Path) -> None:
    net, x = small(), nd.random.uniform(shape=(2, 3, 8, 8))
    made = compare(net, x)
    torch.save(
        {"net": made, "x": torch.from_numpy(x.asnumpy()), "y": torch.from_numpy(net(x).asnumpy())}, tmp_path / "f"
    )
    code = f"""
import sys
sys.modules["weft"] = None
import torch
kept = torch.load({str(tmp_path / "f")!r}, weights_only=False)
assert torch.allclose(kept["net"](kept["x"]), kept["y"], atol=1e-4)
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False).returncode == 0


def test_a_symbol_block_is_written_too() -> None:
    out = sym.softmax(sym.FullyConnected(sym.var("data"), num_hidden=3, name="fc") * 2 + 1, axis=-1)
    block = gluon.SymbolBlock(out, sym.var("data"))
    block.initialize(init.Normal(0.3))  # Xavier is for matrices alone
    block(nd.ones((2, 4)))
    compare(block, nd.ones((2, 4)))


def test_what_cannot_be_written_is_named() -> None:
    net = nn.HybridLambda("arcsinh")
    with pytest.raises(UnsupportedError, match="does not know the operator arcsinh"):
        to_torch(net, (2, 2))
    with pytest.raises(UsageError, match="takes a HybridBlock"):
        to_torch(nn.Sequential(), (2, 2))
    with pytest.raises(UsageError, match="needs an array, or the sizes"):
        to_torch(net)
