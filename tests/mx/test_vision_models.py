"""The networks of the model zoo are MXNet's, and those that the real MXNet exported give its answers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.mx import zoo_weights as zw

from weft import mx
from weft.errors import UsageError
from weft.mx import gluon, nd
from weft.mx.gluon.vision_models import get_model
from weft.mx.symbols import sym
from weft.mx.symbols.names import NameManager, naming

EXPORTED: dict[str, Any] = json.loads(
    gzip.decompress((Path(__file__).parent / "fixtures" / "zoo.json.gz").read_bytes())
)
QUICK = ("squeezenet1.1", "mobilenet0.25", "mobilenetv2_0.25")
# All 32 gave MXNet's answers when this was written, in six minutes: one of each family and kind of block stays.
LARGE = (
    "alexnet",
    "densenet121",
    "inceptionv3",
    "resnet18_v1",
    "resnet50_v1",
    "resnet18_v2",
    "resnet50_v2",
    "vgg11_bn",
)
NAMES = [*QUICK, *[pytest.param(name, marks=pytest.mark.slow) for name in LARGE]]


def made(name: str) -> Any:
    naming.managers[:] = [NameManager()]  # MXNet's was new for each, too
    return get_model(name)


@pytest.mark.parametrize("name", zw.SIZES)
def test_a_network_has_the_structure_the_names_and_the_sizes_of_mxnets(name: str) -> None:
    net, exported = made(name), EXPORTED[name]
    assert repr(net) == exported["shown"]
    assert list(net._collect_params_with_prefix()) == exported["paths"]
    parameters = net.collect_params()
    assert list(parameters.keys()) == list(exported["shapes"])
    for key, shape in exported["shapes"].items():
        assert all(size in (0, wanted) for size, wanted in zip(parameters[key].shape, shape, strict=True))


def close(found: np.ndarray, exported: dict[str, Any]) -> None:
    error = np.abs(found[0, ::50] - np.array(exported["answer"])).max()
    assert error <= 1e-4 * exported["scale"]


@pytest.mark.parametrize("name", NAMES)
def test_an_exported_network_gives_mxnets_answer(name: str) -> None:
    exported = EXPORTED[name]
    block = gluon.SymbolBlock(sym.load_json(json.dumps(exported["graph"])), sym.var("data"))
    for key, parameter in block.collect_params().items():
        parameter.shape = tuple(exported["shapes"][key])
        parameter.initialize()
        parameter.set_data(nd.array(zw.weight(key, parameter.shape)))
    close(block(nd.array(zw.image(zw.SIZES[name]))).asnumpy(), exported)


@pytest.mark.parametrize("name", [*QUICK, pytest.param("resnet18_v2", marks=pytest.mark.slow)])
def test_a_network_made_here_gives_mxnets_answer(name: str) -> None:
    net = made(name)
    net.initialize()
    x = nd.array(zw.image(zw.SIZES[name]))
    net(x)
    for key, parameter in net.collect_params().items():
        parameter.set_data(nd.array(zw.weight(key, parameter.shape)))
    close(net(x).asnumpy(), EXPORTED[name])
    net.hybridize()
    close(net(x).asnumpy(), EXPORTED[name])


def test_weights_are_not_downloaded_and_names_are_checked() -> None:
    with pytest.raises(UsageError, match=r"weft\.mx downloads nothing"):
        get_model("alexnet", pretrained=True)
    with pytest.raises(ValueError, match=r"Model foo is not supported. Available options are\n\talexnet"):
        get_model("foo")
    assert gluon.model_zoo.vision.mobilenet_v2_0_25(classes=7).output[0]._channels == 7


@pytest.mark.slow
@pytest.mark.parametrize("name", zw.TRAINED)
def test_a_network_is_trained_further_with_mxnets_losses(name: str) -> None:
    wanted = json.loads((Path(__file__).parent / "fixtures" / "zoo_training.json").read_text(encoding="utf-8"))[name]
    naming.managers[:] = [NameManager()]
    net = get_model(name, classes=10)
    net.initialize(mx.init.Zero())
    net.hybridize()
    found = zw.trained(mx, net)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    np.testing.assert_allclose(found, wanted, rtol=1e-2)  # both are float32, and errors grow from step to step
