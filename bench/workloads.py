"""The rows that are measured: each a name, what it runs at exactly which size, and the bar it has to clear."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bench.models import chapter, sequence, tables, towers, vision
from bench.models.subject import SEED, Subject, TrainingSubject, for_evaluation

NAMED, FAMILIES, TRAINING, COMPILE = "named", "families", "training", "compile"


@dataclass(frozen=True, slots=True)
class Workload:
    """One row: `bar` is the least allowed ratio of the best peer's time to Weft's, None where only compiling counts."""

    name: str
    title: str
    group: str
    make: Callable[[], Subject | TrainingSubject]
    bar: float | None
    first_call_bar: float | None = 1.5
    size: int = 0  # operators, where the number of them is what is looked at

    def subject(self) -> Any:
        """Make the module and its tensors: the same ones in every process."""
        torch.manual_seed(SEED)
        return self.make()


def images(batch: int, channels: int, size: int) -> torch.Tensor:
    """Give random square images."""
    return torch.randn(batch, channels, size, size)


def evaluated(module: Callable[[], nn.Module], *inputs: Callable[[], torch.Tensor]) -> Subject:
    """Make a module in evaluation mode and its inputs."""
    return Subject(for_evaluation(module()), tuple(make() for make in inputs))


def called(function: Callable[..., Any], *inputs: Callable[[], torch.Tensor]) -> Subject:
    """Make the inputs of a plain function."""
    return Subject(function, tuple(make() for make in inputs))


def in_bfloat16(subject: Subject) -> Subject:
    """Convert a module, and its inputs, to bfloat16."""
    inputs = (one.bfloat16() if one.is_floating_point() else one for one in subject.inputs)
    return Subject(subject.thing.to(torch.bfloat16), tuple(inputs))


def graph_network() -> Subject:
    """Make the graph network with its random graph."""
    return Subject(for_evaluation(tables.Gcn()), tables.graph())


def random_(*shape: int) -> Callable[[], torch.Tensor]:
    """Give a maker of a normally distributed tensor."""
    return partial(torch.randn, *shape)


def whole(below: int, *shape: int) -> Callable[[], torch.Tensor]:
    """Give a maker of whole numbers below a limit: tokens, categories, classes."""
    return partial(torch.randint, below, shape)


SGD = partial(torch.optim.SGD, lr=0.01)
ADAM = partial(torch.optim.Adam, lr=0.001)
ADAMW = partial(torch.optim.AdamW, lr=0.001)


def trained(
    module: Callable[[], nn.Module],
    inputs: Callable[[], torch.Tensor],
    target: Callable[[], torch.Tensor],
    optimizer: Callable[..., torch.optim.Optimizer] = SGD,
    loss: Callable[[Any, torch.Tensor], torch.Tensor] = functional.cross_entropy,
) -> TrainingSubject:
    """Make a module in training mode with one batch."""
    return TrainingSubject(module().train(), (inputs(),), target(), loss, optimizer)


def _named(name: str, title: str, bar: float, make: Callable[[], Subject]) -> Workload:
    return Workload(name, title, NAMED, make, bar)


def _family(name: str, title: str, make: Callable[[], Subject]) -> Workload:
    return Workload(name, title, FAMILIES, make, 1.0 if name == "gcn" else 0.9)


def _training(name: str, title: str, bar: float, make: Callable[[], TrainingSubject]) -> Workload:
    return Workload(f"train_{name}", title, TRAINING, make, bar, first_call_bar=3.0)


def _long(operators: int) -> Workload:
    make = partial(evaluated, partial(tables.LongGraph, operators), random_(8, 32))
    title = f"{operators:,} operators, batch 8, width 32"
    return Workload(f"operators_{operators}", title, COMPILE, make, None, first_call_bar=10.0, size=operators)


MLP = partial(chapter.mlp, 512, 256, 128, 2)
IMAGE_MLP = partial(chapter.mlp, 784, 256, 10)
LSTM = partial(nn.LSTM, 128, 128, num_layers=2)
SEQUENCE = random_(4, 64, 256)

WORKLOADS = (
    _named("mlp", "chapter MLP 512-256-128-2, batch 1", 1.1, partial(evaluated, MLP, random_(1, 512))),
    _named(
        "towers_1", "8 towers of 3 x Linear(128, 128), batch 1", 2.5, partial(evaluated, towers.Towers, random_(1, 128))
    ),
    _named(
        "towers_32",
        "8 towers of 3 x Linear(128, 128), batch 32",
        1.7,
        partial(evaluated, towers.Towers, random_(32, 128)),
    ),
    _named(
        "inception",
        "GoogLeNet inception 3a + 3b, 12 x 12, batch 1",
        1.0,
        partial(evaluated, towers.inception_3a_3b, partial(images, 1, 192, 12)),
    ),
    _named(
        "lenet", "LeNet of the chapter, batch 256", 1.3, partial(evaluated, chapter.lenet, partial(images, 256, 1, 28))
    ),
    _named(
        "resnet18_1",
        "ResNet-18 of the chapter, batch 1",
        1.05,
        partial(evaluated, chapter.resnet18, partial(images, 1, 1, 28)),
    ),
    _named(
        "resnet18_32",
        "ResNet-18 of the chapter, batch 32",
        1.05,
        partial(evaluated, chapter.resnet18, partial(images, 32, 1, 28)),
    ),
    _named(
        "encoder",
        "transformer encoder layer, d = 256, 4 heads, 64 tokens, batch 4",
        1.2,
        partial(evaluated, sequence.encoder_layer, SEQUENCE),
    ),
    _named("lstm", "LSTM 2 x 128, 32 steps, batch 8", 1.2, partial(evaluated, LSTM, random_(32, 8, 128))),
    _named(
        "chain",
        "elementwise chain of 10, 4M elements",
        1.0,
        partial(called, chapter.elementwise_chain, random_(4 * 2**20)),
    ),
    _named(
        "fancy_func",
        "fancy_func on four 8-element tensors",
        1.2,
        partial(called, chapter.fancy_func, *[random_(8)] * 4),
    ),
    _family(
        "mobilenet", "MobileNet v2, 96 x 96, batch 1", partial(evaluated, vision.mobilenet, partial(images, 1, 3, 96))
    ),
    _family(
        "squeezenet",
        "SqueezeNet 1.1, 96 x 96, batch 1",
        partial(evaluated, vision.squeezenet, partial(images, 1, 3, 96)),
    ),
    _family(
        "densenet", "DenseNet 4-6-8, 32 x 32, batch 1", partial(evaluated, vision.densenet, partial(images, 1, 3, 32))
    ),
    _family("bert", "BERT-like, 4 x 256, 64 tokens, batch 1", partial(evaluated, sequence.Bert, whole(8000, 1, 64))),
    _family("gpt", "GPT-like, 4 x 256, 64 tokens, batch 1", partial(evaluated, sequence.Gpt, whole(4000, 1, 64))),
    _family(
        "bf16_mlp",
        "chapter MLP 784-256-10 in bfloat16, batch 64",
        lambda: in_bfloat16(evaluated(IMAGE_MLP, random_(64, 784))),
    ),
    _family(
        "bf16_encoder",
        "transformer encoder layer as above in bfloat16",
        lambda: in_bfloat16(evaluated(sequence.encoder_layer, SEQUENCE)),
    ),
    _family(
        "bf16_lenet",
        "LeNet of the chapter in bfloat16, batch 64",
        lambda: in_bfloat16(evaluated(chapter.lenet, partial(images, 64, 1, 28))),
    ),
    _family("deepfm", "DeepFM-like, 8 fields, batch 256", partial(evaluated, tables.DeepFM, whole(1000, 256, 8))),
    _family("gcn", "GCN-like, 2,000 nodes, 8,000 edges", graph_network),
    _family("unet", "U-Net, 64 x 64, batch 1", partial(evaluated, vision.UNet, partial(images, 1, 3, 64))),
    _family(
        "wavenet", "WaveNet-like, 8 layers, 1,024 samples", partial(evaluated, sequence.WaveNet, random_(1, 1, 1024))
    ),
    _family(
        "vae",
        "variational encoder, 28 x 28, batch 32",
        partial(evaluated, vision.VariationalEncoder, partial(images, 32, 1, 28)),
    ),
    _training(
        "mlp", "MLP 784-256-10, batch 256, SGD", 1.5, partial(trained, IMAGE_MLP, random_(256, 784), whole(10, 256))
    ),
    _training(
        "lenet",
        "LeNet, batch 256, SGD",
        1.5,
        partial(trained, chapter.lenet, partial(images, 256, 1, 28), whole(10, 256)),
    ),
    _training(
        "resnet18",
        "ResNet-18, 28 x 28, batch 32, SGD",
        1.08,
        partial(trained, chapter.resnet18, partial(images, 32, 1, 28), whole(10, 32)),
    ),
    _training(
        "mlp_adam",
        "MLP 784-256-10, batch 32, Adam",
        1.5,
        partial(trained, IMAGE_MLP, random_(32, 784), whole(10, 32), ADAM),
    ),
    _training(
        "encoder",
        "transformer encoder layer as above, AdamW",
        1.2,
        partial(trained, sequence.encoder_layer, SEQUENCE, SEQUENCE, ADAMW, functional.mse_loss),
    ),
    _training(
        "lstm",
        "LSTM 2 x 128, 32 steps, batch 8, Adam",
        1.2,
        partial(trained, sequence.LastStep, random_(32, 8, 128), whole(10, 8), ADAM),
    ),
    _training(
        "deepfm",
        "DeepFM-like, batch 256, Adam",
        1.3,
        partial(
            trained,
            tables.DeepFM,
            whole(1000, 256, 8),
            partial(torch.rand, 256),
            ADAM,
            functional.binary_cross_entropy_with_logits,
        ),
    ),
    _long(500),
    _long(1750),
    _long(3500),
)


def choose(patterns: Sequence[str]) -> tuple[Workload, ...]:
    """Give the rows whose name or group matches one of the patterns; all of them where there is no pattern."""
    if not patterns:
        return WORKLOADS
    for pattern in patterns:
        if not any(_matches(workload, pattern) for workload in WORKLOADS):
            known = ", ".join(workload.name for workload in WORKLOADS)
            raise SystemExit(f"no workload is called {pattern}: there are {known}, and the groups {', '.join(GROUPS)}")
    return tuple(workload for workload in WORKLOADS if any(_matches(workload, pattern) for pattern in patterns))


GROUPS = (NAMED, FAMILIES, TRAINING, COMPILE)


def _matches(workload: Workload, pattern: str) -> bool:
    return fnmatch.fnmatch(workload.name, pattern) or workload.group == pattern


def by_name(name: str) -> Workload:
    """Give the row of this name."""
    return next(workload for workload in WORKLOADS if workload.name == name)
