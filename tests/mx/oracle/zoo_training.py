"""Train three exported networks some steps further with the real MXNet: run by the oracle's Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mxnet as mx

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

import zoo_weights as zw  # noqa: E402  # found only now


def losses(name: str) -> list[float]:
    """The losses of a few steps."""
    with mx.name.NameManager():
        net = mx.gluon.model_zoo.vision.get_model(name, classes=10)
    net.initialize(mx.init.Zero())
    net.hybridize()
    return zw.trained(mx, net)


def main() -> None:
    """Write the fixture."""
    found = {name: losses(name) for name in zw.TRAINED}
    print(found)
    (HERE / "fixtures" / "zoo_training.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
