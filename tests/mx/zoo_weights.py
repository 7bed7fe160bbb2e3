"""Fill the parameters of a large network with numbers that follow from their names; imports neither MXNet nor Weft."""

from __future__ import annotations

import zlib

import numpy as np

# Of each family of gluon.model_zoo.vision: the sizes of images, and its architectures.
FAMILIES = {
    "alexnet": (224, ("alexnet",)),
    "densenet": (224, ("densenet121", "densenet161", "densenet169", "densenet201")),
    "inception": (299, ("inceptionv3",)),
    "mobilenet": (224, ("mobilenet1.0", "mobilenet0.75", "mobilenet0.5", "mobilenet0.25")),
    "mobilenet2": (224, ("mobilenetv2_1.0", "mobilenetv2_0.75", "mobilenetv2_0.5", "mobilenetv2_0.25")),
    "resnet1": (224, tuple(f"resnet{depth}_v1" for depth in (18, 34, 50, 101, 152))),
    "resnet2": (224, tuple(f"resnet{depth}_v2" for depth in (18, 34, 50, 101, 152))),
    "squeezenet": (224, ("squeezenet1.0", "squeezenet1.1")),
    "vgg": (224, tuple(f"vgg{depth}{norm}" for depth in (11, 13, 16, 19) for norm in ("", "_bn"))),
}
SIZES = {name: size for size, names in FAMILIES.values() for name in names}


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The elements of a parameter."""
    random = np.random.RandomState(zlib.crc32(name.split("_", 1)[1].encode()))
    if name.endswith(("gamma", "running_var", "moving_var")):
        return (0.5 + random.random_sample(shape)).astype(np.float32)
    if name.endswith("weight"):
        fan_in = int(np.prod(shape[1:]))
        # Numbers from a short line, repeated, are as good, and quick to make by the hundred million.
        line = random.standard_normal(10007).astype(np.float32) * np.float32(np.sqrt(2 / fan_in))
        return np.resize(line, shape)
    return (random.standard_normal(shape) * 0.1).astype(np.float32)


def image(size: int) -> np.ndarray:
    """A batch of one image."""
    return np.random.RandomState(0).standard_normal((1, 3, size, size)).astype(np.float32)


TRAINED = ("resnet18_v1", "resnet18_v2", "resnet34_v2")


def trained(mx, net):
    """The losses of four steps, with either library, from weights that follow from names."""
    random = np.random.RandomState(1)
    x = mx.nd.array(random.standard_normal((8, 3, 64, 64)))
    y = mx.nd.array(random.randint(0, 10, 8))
    net(x)
    for key, parameter in net.collect_params().items():
        parameter.set_data(mx.nd.array(weight(key, parameter.shape)))
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9, "wd": 1e-4})
    loss, found = mx.gluon.loss.SoftmaxCrossEntropyLoss(), []
    for _ in range(4):
        with mx.autograd.record():
            lost = loss(net(x), y)
        lost.backward()
        trainer.step(8)
        found.append(float(lost.mean().asscalar()))
    return found
