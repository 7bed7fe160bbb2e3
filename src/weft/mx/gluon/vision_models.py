"""Build the networks of `gluon.model_zoo.vision` from descriptions, with the structure and names of MXNet's files.

A description is a text of layers (`conv 64 k7 s2 p3, bn, relu`: kernel, stride, padding), a list (a chain), a tuple
(side by side), a `Named` part, or a function that makes a block. Weights are not downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from weft.errors import UsageError
from weft.mx.gluon import contrib_nn, nn
from weft.mx.gluon.block import HybridBlock
from weft.mx.training.initializer import Xavier

Description = Any


@dataclass(frozen=True)
class Named:
    """A part whose parameters' names begin with a prefix."""

    prefix: str
    parts: Description


class RELU6(HybridBlock):
    """Bound each element by 0 and 6."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        return F.clip(x, 0, 6, name="relu6")


def _conv(words: dict[str, Any]) -> HybridBlock:
    given = {"strides": words.get("s", 1), "padding": words.get("p", 0), "in_channels": words.get("i", 0)}
    made: HybridBlock = nn.Conv2D(
        words["count"],
        words["k"],
        groups=words.get("g", 1),
        use_bias="nobias" not in words,
        activation="relu" if "relu" in words else None,
        weight_initializer=Xavier("gaussian", "out", 2) if "xavier" in words else None,
        **given,
    )
    return made


def _pool(kind: Callable[..., HybridBlock], words: dict[str, Any]) -> HybridBlock:
    return kind(words["k"], words.get("s"), words.get("p", 0), ceil_mode="ceil" in words)


def _dense(words: dict[str, Any]) -> HybridBlock:
    init = "normal" if "normal" in words else None
    activation = "relu" if "relu" in words else None
    return nn.Dense(words["count"], activation, weight_initializer=init, in_units=words.get("i", 0))


def _norm(words: dict[str, Any]) -> HybridBlock:
    fixed = {"scale": False, "center": False} if "fixed" in words else {}
    return nn.BatchNorm(epsilon=words.get("eps", 1e-5), **fixed)


LAYERS: dict[str, Callable[[dict[str, Any]], HybridBlock]] = {
    "conv": _conv,
    "dense": _dense,
    "bn": _norm,
    "relu": lambda _: nn.Activation("relu"),
    "relu6": lambda _: RELU6(prefix="relu6_"),
    "max": partial(_pool, nn.MaxPool2D),
    "avg": partial(_pool, nn.AvgPool2D),
    "global_avg": lambda _: nn.GlobalAvgPool2D(),
    "flatten": lambda _: nn.Flatten(),
    "dropout": lambda words: nn.Dropout(words["share"]),
    "identity": lambda _: contrib_nn.Identity(),
}


def _layer(text: str) -> HybridBlock:
    """Make the layer of a text such as `conv 64 k1x7 p0x3 nobias`."""
    kind, *rest = text.split()
    words: dict[str, Any] = {}
    for word in rest:
        number = word[1:]
        if word.isdigit():
            words["count"] = int(word)
        elif word.startswith("eps"):
            words["eps"] = float(word[3:])
        elif word[0].isdigit():
            words["share"] = float(word)
        elif number[:1].isdigit():
            sizes = tuple(map(int, number.split("x")))
            words[word[0]] = sizes if len(sizes) > 1 else sizes[0]
        else:
            words[word] = True
    return LAYERS[kind](words)


def build(description: Description, into: Any) -> Any:
    """Add the blocks of a description to a chain."""
    if isinstance(description, str):
        for text in description.split(","):
            into.add(_layer(text))
    elif isinstance(description, Named):
        parts = description.parts
        made = _container(parts, description.prefix)
        with made.name_scope():
            for part in parts if isinstance(parts, (list, tuple)) else [parts]:
                build(part, made)
        into.add(made)
    elif callable(description):
        into.add(description())
    else:
        made = _container(description, "")
        for part in description:
            build(part, made)
        into.add(made)
    return into


def _container(parts: Description, prefix: str) -> Any:
    if isinstance(parts, tuple):
        return contrib_nn.HybridConcurrent(axis=1, prefix=prefix)
    return nn.HybridSequential(prefix)


class _Network(HybridBlock):
    """What networks share: features, and what makes classes of them."""

    prefixes = ("", "")
    features: HybridBlock
    output: HybridBlock

    def _make(self, features: Sequence[Description], output: Description) -> None:
        with self.name_scope():
            for name, prefix, parts in (
                ("features", self.prefixes[0], features),
                ("output", self.prefixes[1], output),
            ):
                if name == "output" and isinstance(output, str):
                    self.output = _layer(output)
                    continue
                chain = nn.HybridSequential(prefix)
                with chain.name_scope():
                    for part in parts:
                        build(part, chain)
                setattr(self, name, chain)

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: ARG002
        """Compute it."""
        return self.output(self.features(x))


class AlexNet(_Network):
    """Krizhevsky, Sutskever and Hinton, 2012, in one column."""

    def __init__(self, classes: int = 1000, **given: Any) -> None:
        super().__init__(**given)
        self._make(
            [
                "conv 64 k11 s4 p2 relu, max k3 s2, conv 192 k5 p2 relu, max k3 s2, conv 384 k3 p1 relu",
                "conv 256 k3 p1 relu, conv 256 k3 p1 relu, max k3 s2, flatten",
                "dense 4096 relu, dropout 0.5, dense 4096 relu, dropout 0.5",
            ],
            f"dense {classes}",
        )


VGG_STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


class VGG(_Network):
    """Simonyan and Zisserman, 2014."""

    def __init__(
        self, layers: Sequence[int], filters: Sequence[int], classes: int = 1000, batch_norm: bool = False, **given: Any
    ) -> None:
        super().__init__(**given)
        norm = "bn, " if batch_norm else ""
        features = [
            ", ".join([f"conv {width} k3 p1 xavier, {norm}relu"] * count) + ", max k2 s2"
            for count, width in zip(layers, filters, strict=True)
        ]
        head = "dense 4096 relu normal, dropout 0.5, dense 4096 relu normal, dropout 0.5"
        self._make([*features, head], f"dense {classes} normal")


class _Residual(HybridBlock):
    """What residual blocks share: the sum of what went in, perhaps made smaller, and of what is computed of it."""

    first = ""  # of a block of the first kind: the body, and the shortcut
    shortcut = ""

    def __init__(
        self, channels: int, stride: int, downsample: bool = False, in_channels: int = 0, **given: Any
    ) -> None:
        super().__init__(**given)
        self._fill(channels, stride, in_channels, downsample)

    def _fill(self, channels: int, stride: int, width: int, downsample: bool) -> None:
        sizes = {"c": channels, "q": channels // 4, "s": stride, "i": width}
        self.body = build(self.first.format(**sizes), nn.HybridSequential(""))
        self.downsample = None
        if downsample:
            self.downsample = build(self.shortcut.format(**sizes), nn.HybridSequential(""))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        rest = x if self.downsample is None else self.downsample(x)
        return F.Activation(self.body(x) + rest, act_type="relu")


class BasicBlockV1(_Residual):
    """Two convolutions, norms after them."""

    first = "conv {c} k3 s{s} p1 i{i} nobias, bn, relu, conv {c} k3 p1 i{c} nobias, bn"
    shortcut = "conv {c} k1 s{s} i{i} nobias, bn"


class BottleneckV1(_Residual):
    """Three convolutions, of which the middle one is narrow, norms after them."""

    first = "conv {q} k1 s{s}, bn, relu, conv {q} k3 p1 i{q} nobias, bn, relu, conv {c} k1, bn"
    shortcut = "conv {c} k1 s{s} i{i} nobias, bn"


class _PreActivated(_Residual):
    """A residual block whose norms come before convolutions."""

    convs: Sequence[str] = ()

    def _fill(self, channels: int, stride: int, width: int, downsample: bool) -> None:
        sizes = {"c": channels, "q": channels // 4, "s": stride, "i": width}
        for place, text in enumerate(self.convs, 1):
            setattr(self, f"bn{place}", nn.BatchNorm())
            setattr(self, f"conv{place}", _layer(text.format(**sizes)))
        self.downsample = _layer("conv {c} k1 s{s} i{i} nobias".format(**sizes)) if downsample else None

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        rest = x
        for place in range(1, len(self.convs) + 1):
            x = F.Activation(getattr(self, f"bn{place}")(x), act_type="relu")
            if place == 1 and self.downsample is not None:
                rest = self.downsample(x)
            x = getattr(self, f"conv{place}")(x)
        return x + rest


class BasicBlockV2(_PreActivated):
    """Two convolutions, norms before them."""

    convs = ("conv {c} k3 s{s} p1 i{i} nobias", "conv {c} k3 p1 i{c} nobias")


class BottleneckV2(_PreActivated):
    """Three convolutions, of which the middle one is narrow, norms before them."""

    convs = ("conv {q} k1 nobias", "conv {q} k3 s{s} p1 i{q} nobias", "conv {c} k1 nobias")


RESNETS: dict[
    int, tuple[bool, Sequence[int], Sequence[int]]
] = {  # whether of bottlenecks, blocks and channels of stages
    18: (False, (2, 2, 2, 2), (64, 64, 128, 256, 512)),
    34: (False, (3, 4, 6, 3), (64, 64, 128, 256, 512)),
    50: (True, (3, 4, 6, 3), (64, 256, 512, 1024, 2048)),
    101: (True, (3, 4, 23, 3), (64, 256, 512, 1024, 2048)),
    152: (True, (3, 8, 36, 3), (64, 256, 512, 1024, 2048)),
}


class _ResNet(_Network):
    """What residual networks share."""

    before = ""
    after = ""

    def __init__(
        self,
        block: type[_Residual],
        layers: Sequence[int],
        channels: Sequence[int],
        classes: int = 1000,
        thumbnail: bool = False,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        stem = f"conv {channels[0]} k3 p1 nobias"
        if not thumbnail:
            stem = f"conv {channels[0]} k7 s2 p3 nobias, bn, relu, max k3 s2 p1"
        features: list[Description] = [self.before + stem]
        for stage, count in enumerate(layers):
            width, wide = channels[stage], channels[stage + 1]
            first = partial(block, wide, 1 if stage == 0 else 2, wide != width, in_channels=width, prefix="")
            others = partial(block, wide, 1, False, in_channels=wide, prefix="")
            features.append(Named(f"stage{stage + 1}_", [first, *[others] * (count - 1)]))
        self._make([*features, self.after], f"dense {classes} i{channels[-1]}")


class ResNetV1(_ResNet):
    """He and others, 2015."""

    after = "global_avg"


class ResNetV2(_ResNet):
    """He and others, 2016: norms before convolutions."""

    before = "bn fixed, "
    after = "bn, relu, global_avg, flatten"


class SqueezeNet(_Network):
    """Iandola and others, 2016."""

    def __init__(self, version: str, classes: int = 1000, **given: Any) -> None:
        super().__init__(**given)
        if version not in SQUEEZENETS:
            raise AssertionError(f"Unsupported SqueezeNet version {version}: 1.0 or 1.1 expected")
        stem, places = SQUEEZENETS[version]
        features: list[Description] = [stem + ", relu, max k3 s2 ceil"]
        for place, width in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
            wide = [[f"conv {4 * width} k1, relu"], [f"conv {4 * width} k3 p1, relu"]]
            features.append([[f"conv {width} k1, relu"], tuple(wide)])
            if place in places:
                features.append("max k3 s2 ceil")
        self._make([*features, "dropout 0.5"], [f"conv {classes} k1, relu, avg k13, flatten"])


SQUEEZENETS = {"1.0": ("conv 96 k7 s2", (2, 6)), "1.1": ("conv 64 k3 s2", (1, 3))}


class DenseNet(_Network):
    """Huang and others, 2016."""

    def __init__(
        self,
        num_init_features: int,
        growth_rate: int,
        block_config: Sequence[int],
        bn_size: int = 4,
        dropout: float = 0,
        classes: int = 1000,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        features: list[Description] = [f"conv {num_init_features} k7 s2 p3 nobias, bn, relu, max k3 s2 p1"]
        width = num_init_features
        layer = f"bn, relu, conv {bn_size * growth_rate} k1 nobias, bn, relu, conv {growth_rate} k3 p1 nobias"
        layer += f", dropout {float(dropout)}" if dropout else ""
        for stage, count in enumerate(block_config, 1):
            features.append(Named(f"stage{stage}_", [("identity", [layer])] * count))
            width += count * growth_rate
            if stage < len(block_config):
                width //= 2
                features.append([f"bn, relu, conv {width} k1 nobias, avg k2 s2"])
        self._make([*features, "bn, relu, avg k7, flatten"], f"dense {classes}")


DENSENETS = {
    121: (64, 32, (6, 12, 24, 16)),
    161: (96, 48, (6, 12, 36, 24)),
    169: (64, 32, (6, 12, 32, 32)),
    201: (64, 32, (6, 12, 48, 32)),
}


class MobileNet(_Network):
    """Howard and others, 2017."""

    def __init__(self, multiplier: float = 1.0, classes: int = 1000, **given: Any) -> None:
        super().__init__(**given)
        widths = [int(width * multiplier) for width in (32, 64, 128, 128, 256, 256, *(512,) * 6, 1024, 1024)]
        features = [f"conv {widths[0]} k3 s2 p1 nobias, bn, relu"]
        for place, (width, wide) in enumerate(pairwise(widths)):
            stride = 2 if place in (1, 3, 5, 11) else 1
            features.append(f"conv {width} k3 s{stride} p1 g{width} nobias, bn, relu")
            features.append(f"conv {wide} k1 nobias, bn, relu")
        self._make([*features, "global_avg, flatten"], f"dense {classes}")


class LinearBottleneck(HybridBlock):
    """A convolution of each channel between two that mix channels; where sizes are kept, what went in is added."""

    def __init__(self, in_channels: int, channels: int, t: int, stride: int, **given: Any) -> None:
        super().__init__(**given)
        self.use_shortcut = stride == 1 and in_channels == channels
        wide = in_channels * t
        text = f"conv {wide} k1 nobias, bn, relu6, conv {wide} k3 s{stride} p1 g{wide} nobias, bn, relu6"
        with self.name_scope():
            self.out = build(text + f", conv {channels} k1 nobias, bn", nn.HybridSequential())

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        out = self.out(x)
        return F.elemwise_add(out, x) if self.use_shortcut else out


class MobileNetV2(_Network):
    """Sandler and others, 2018."""

    prefixes = ("features_", "output_")
    # Of each stage: how much wider it is inside, its channels, its blocks, the stride of the first.
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(self, multiplier: float = 1.0, classes: int = 1000, **given: Any) -> None:
        super().__init__(**given)
        width = int(32 * multiplier)
        features: list[Description] = [f"conv {width} k3 s2 p1 nobias, bn, relu6"]
        for wider, channels, count, stride in self.stages:
            for place in range(count):
                wide = int(channels * multiplier)
                features.append(partial(LinearBottleneck, width, wide, wider, stride if place == 0 else 1))
                width = wide
        last = int(1280 * multiplier) if multiplier > 1.0 else 1280
        features.append(f"conv {last} k1 nobias, bn, relu6, global_avg")
        head = partial(nn.Conv2D, classes, 1, use_bias=False, prefix="pred_")
        self._make(features, [head, "flatten"])


def _basic(*texts: str) -> list[Description]:
    """A chain of convolutions, each with its norm; what is none stays as it is."""
    return [[f"conv {text} nobias, bn eps0.001, relu"] if text[0].isdigit() else text for text in texts]


def _spread(*texts: str) -> list[Description]:
    """A chain of convolutions whose result goes through a flat one and a tall one."""
    return [_basic(*texts), (_basic("384 k1x3 p0x1"), _basic("384 k3x1 p1x0"))]


def _inception_a(pooled: int) -> Description:
    double = _basic("64 k1", "96 k3 p1", "96 k3 p1")
    return (_basic("64 k1"), _basic("48 k1", "64 k5 p2"), double, _basic("avg k3 s1 p1", f"{pooled} k1"))


def _inception_c(width: int) -> Description:
    flat, tall = f"{width} k1x7 p0x3", f"{width} k7x1 p3x0"
    double = _basic(f"{width} k1", tall, flat, tall, "192 k1x7 p0x3")
    return (
        _basic("192 k1"),
        _basic(f"{width} k1", flat, "192 k7x1 p3x0"),
        double,
        _basic("avg k3 s1 p1", "192 k1"),
    )


_INCEPTION_E = (_basic("320 k1"), _spread("384 k1"), _spread("448 k1", "384 k3 p1"), _basic("avg k3 s1 p1", "192 k1"))
_INCEPTION: list[Description] = [
    *_basic("32 k3 s2", "32 k3", "64 k3 p1", "max k3 s2", "80 k1", "192 k3", "max k3 s2"),
    *[Named(f"A{place}_", _inception_a(width)) for place, width in enumerate((32, 64, 64), 1)],
    Named("B_", (_basic("384 k3 s2"), _basic("64 k1", "96 k3 p1", "96 k3 s2"), ["max k3 s2"])),
    *[Named(f"C{place}_", _inception_c(width)) for place, width in enumerate((128, 160, 160, 192), 1)],
    Named(
        "D_",
        (
            _basic("192 k1", "320 k3 s2"),
            _basic("192 k1", "192 k1x7 p0x3", "192 k7x1 p3x0", "192 k3 s2"),
            ["max k3 s2"],
        ),
    ),
    Named("E1_", _INCEPTION_E),
    Named("E2_", _INCEPTION_E),
    "avg k8, dropout 0.5",
]


class Inception3(_Network):
    """Szegedy and others, 2015."""

    def __init__(self, classes: int = 1000, **given: Any) -> None:
        super().__init__(**given)
        self._make(_INCEPTION, f"dense {classes}")


def _models() -> dict[str, Callable[..., HybridBlock]]:
    widths = (64, 128, 256, 512, 512)
    found: dict[str, Callable[..., HybridBlock]] = {"alexnet": AlexNet, "inceptionv3": Inception3}
    for depth, stages in VGG_STAGES.items():
        found[f"vgg{depth}"] = partial(VGG, stages, widths)
        found[f"vgg{depth}_bn"] = partial(VGG, stages, widths, batch_norm=True)
    for depth, (deep, layers, channels) in RESNETS.items():
        found[f"resnet{depth}_v1"] = partial(ResNetV1, BottleneckV1 if deep else BasicBlockV1, layers, channels)
        found[f"resnet{depth}_v2"] = partial(ResNetV2, BottleneckV2 if deep else BasicBlockV2, layers, channels)
    for depth, sizes in DENSENETS.items():
        found[f"densenet{depth}"] = partial(DenseNet, *sizes)
    for version in SQUEEZENETS:
        found[f"squeezenet{version}"] = partial(SqueezeNet, version)
    for part in ("1.0", "0.75", "0.5", "0.25"):
        found[f"mobilenet{part}"] = partial(MobileNet, float(part))
        found[f"mobilenetv2_{part}"] = partial(MobileNetV2, float(part))
    return found


MODELS = _models()


def get_model(name: str, pretrained: bool = False, ctx: Any = None, root: Any = None, **given: Any) -> HybridBlock:
    """A network by its name, with weights that are yet to be initialized."""
    _ = ctx, root
    if pretrained:
        raise UsageError(
            f"get_model({name!r}, pretrained=True) asks for weights",
            why="weft.mx downloads nothing",
            fix=f'net = get_model({name!r}); net.load_parameters("{name}.params")',
        )
    if name.lower() not in MODELS:
        raise ValueError(
            "Model {} is not supported. Available options are\n\t{}".format(name, "\n\t".join(sorted(MODELS)))
        )
    return MODELS[name.lower()](**given)


def _function_name(model: str) -> str:
    """The function of a model: `mobilenet_v2_0_25` makes `mobilenetv2_0.25`."""
    return model.replace(".", "_").replace("mobilenetv2", "mobilenet_v2").replace("inceptionv3", "inception_v3")


for _name in MODELS:
    globals()[_function_name(_name)] = partial(get_model, _name)
