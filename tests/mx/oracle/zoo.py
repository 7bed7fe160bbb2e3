"""Export every architecture of gluon.model_zoo.vision with the real MXNet: run by the oracle's Python.

The fixture has the graph of each, the sizes of its parameters and the answer for one image; weights follow from names.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path

import mxnet as mx
import numpy as np

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

import zoo_weights as zw  # noqa: E402  # found only now


def answered(name: str) -> dict[str, object]:
    """The graph of an architecture, the sizes of its parameters, and its answer."""
    with mx.name.NameManager():
        net = mx.gluon.model_zoo.vision.get_model(name)
    shown, paths = repr(net), list(net._collect_params_with_prefix())
    net.initialize(mx.init.Zero())
    net.hybridize()
    x = mx.nd.array(zw.image(zw.SIZES[name]))
    net(x)
    for key, parameter in net.collect_params().items():
        parameter.set_data(mx.nd.array(zw.weight(key, parameter.shape)))
    y = net(x).asnumpy()[0]
    with tempfile.TemporaryDirectory() as folder:
        net.export(folder + "/net")
        graph = json.loads(Path(folder, "net-symbol.json").read_text())
    shapes = {key: parameter.shape for key, parameter in net.collect_params().items()}
    answer = {"answer": [float(x) for x in y[::50]], "scale": float(np.abs(y).max())}
    return {"graph": graph, "shapes": shapes, "shown": shown, "paths": paths, **answer}


def main() -> None:
    """Write the fixture."""
    found = {}
    for name in zw.SIZES:
        found[name] = answered(name)
        print(name, found[name]["answer"][:3], found[name]["scale"], flush=True)
    text = json.dumps(found, separators=(",", ":"))
    (HERE / "fixtures" / "zoo.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
