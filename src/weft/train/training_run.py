"""Find the training run that a word names, `file.py:name` or `examples.lenet`: its trainer and its data."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from weft.api.user_file import run_file
from weft.errors import UsageError
from weft.train.checkpoints.checkpoint import Checkpoints
from weft.train.data import TRAIN, Batches, ImageData, fashion_mnist, synthetic_fashion_mnist
from weft.train.devices.choose_devices import devices_of_rank, find_devices
from weft.train.models import LeNet, mlp, resnet18
from weft.train.processes.peers import find_peers
from weft.train.trainer import Trainer

Parts = tuple[Trainer, Batches, Batches]


def _run(net: nn.Module, batch_size: int, lr: float, given: dict[str, Any]) -> Parts:
    """Train a network of the chapter by plain SGD on Fashion-MNIST."""
    count = given.get("samples") or TRAIN
    if given.get("synthetic"):
        train, test = synthetic_fashion_mnist(count, max(1, count // 6))
    else:
        train, test = fashion_mnist()
        train = ImageData(train.images[:count], train.labels[:count], train.name)
    checkpoints: Checkpoints | None = given.get("checkpoints")
    trainer = Trainer(
        net.to(devices_of_rank(given.get("devices"), net, find_peers())[0].torch_device),
        torch.optim.SGD(net.parameters(), lr),
        nn.CrossEntropyLoss(),
        given.get("devices"),
        checkpoints=checkpoints,
    )
    return trainer, Batches(train, batch_size), Batches(test, 1000, shuffle=False)


def _named(make: Callable[[], nn.Module], rate: float, purpose: str) -> Callable[..., Parts]:
    """Make the run of a network: what may be told to it is the same for all."""

    def run(  # noqa: PLR0913 - what a run may be told, by keyword
        *,
        devices: Any = "all",
        checkpoints: Checkpoints | None = None,
        synthetic: bool = False,
        samples: int | None = None,
        batch_size: int = 256,
        lr: float = rate,
    ) -> Parts:
        given = {"devices": devices, "checkpoints": checkpoints, "synthetic": synthetic, "samples": samples}
        torch.manual_seed(0)
        return _run(make(), batch_size, lr, given)

    run.__doc__ = purpose
    return run


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), mlp(784, (256, 128), 10))


RUNS: dict[str, Callable[..., Parts]] = {
    "examples.lenet": _named(LeNet, 0.2, "Train the chapter's LeNet."),
    "examples.resnet18": _named(resnet18, 0.1, "Train the chapter's ResNet-18."),
    "examples.mlp": _named(_perceptron, 0.1, "Train a multilayer perceptron."),
}


@dataclass(frozen=True)
class TrainingRun:
    """What is trained, and on what data."""

    trainer: Trainer
    train: Iterable[Any]
    test: Iterable[Any] | None = None


@dataclass(frozen=True)
class RunOptions:
    """What a run is given: where it computes, where its checkpoints are, and the values of its own parameters."""

    devices: Any = "all"
    checkpoints: str | None = None
    values: dict[str, Any] = field(default_factory=dict)


def load_run(target: str, options: RunOptions) -> TrainingRun:
    """Call what a word names: it gives a trainer, data to train on, and perhaps data to test on.

    It is given `devices`, `checkpoints` (a `weft.Checkpoints` or None) and the other values, where it has such
    parameters; a trainer that has no checkpoints of its own is given the folder here. A trainer with the attributes
    `train_data` and `test_data` may be given alone: so a class will do.
    """
    find_devices(options.devices)  # those that are not there are known before data is read
    make = _maker(target)
    folder = options.checkpoints
    given = {"devices": options.devices, "checkpoints": Checkpoints(folder) if folder is not None else None}
    parameters = inspect.signature(make).parameters
    anything = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    strange = [name for name in options.values if name not in parameters and not anything]
    if strange:
        close = difflib.get_close_matches(strange[0], parameters, n=1)
        raise UsageError(
            f"{target} takes no {strange[0]!r}",
            why="its parameters are " + ", ".join(parameters),
            fix=f"did you mean {close[0]}?" if close else None,
        )
    for name, value in options.values.items():
        _check_kind(target, name, value, parameters)
    if options.devices != "all" and "devices" not in parameters:
        raise UsageError(
            f"{target} takes no 'devices'",
            why=f"so it would not compute on {options.devices!r}",
            fix="give it a parameter devices, and give that to its Trainer",
        )
    needed = [name for name in _needed(parameters) if name not in given and name not in options.values]
    if needed:
        raise UsageError(
            f"{target} needs {', '.join(needed)}",
            why="it is called with devices, checkpoints and what is set, where it has such parameters",
            fix=f"--set {needed[0]}=..., or give the parameter a default",
        )
    found = make(**{name: value for name, value in given.items() if name in parameters}, **options.values)
    if isinstance(found, Trainer):
        found = (found, getattr(found, "train_data", None), getattr(found, "test_data", None))
    if not isinstance(found, tuple) or len(found) not in (2, 3) or not isinstance(found[0], Trainer) or not found[1]:
        empty = isinstance(found, tuple) and len(found) in (2, 3) and isinstance(found[0], Trainer)
        raise UsageError(
            f"{target} gives no data to train on"
            if empty
            else f"{target} gives {type(found).__name__}, which is no training run",
            fix="return (trainer, train) or (trainer, train, test), or a trainer with train_data",
        )
    trainer = found[0]
    if given["checkpoints"] is not None and trainer.options.checkpoints is None:
        trainer.options = dataclasses.replace(trainer.options, checkpoints=given["checkpoints"])
    return TrainingRun(*found)


def _check_kind(target: str, name: str, value: Any, parameters: Mapping[str, inspect.Parameter]) -> None:
    """Refuse a value that is no number, or no truth value, where the parameter's default is one."""
    usual = parameters[name].default if name in parameters else None
    kinds = (int, float) if isinstance(usual, int | float) and not isinstance(usual, bool) else type(usual)
    fits = isinstance(value, kinds) and isinstance(value, bool) == isinstance(usual, bool)
    if isinstance(usual, bool | int | float) and not fits and value is not None:
        written = json.dumps(usual)
        raise UsageError(
            f"{target}: {name} is set to {value!r}",
            why=f"it is {'true or false' if isinstance(usual, bool) else 'a number'}, {written} unless set",
            fix=f"--set {name}={written}",
        )


def _needed(parameters: Mapping[str, inspect.Parameter]) -> Iterator[str]:
    """Name the parameters that have no default."""
    fixed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return (name for name, one in parameters.items() if one.default is one.empty and one.kind not in fixed)


def _maker(target: str) -> Callable[..., Any]:
    if target in RUNS:
        return RUNS[target]
    file, colon, name = target.rpartition(":")
    if not colon or not file.endswith(".py"):
        close = difflib.get_close_matches(target, RUNS, n=1)
        guess = f"did you mean {close[0]}?" if close else "file.py:name, or one of " + ", ".join(RUNS)
        raise UsageError(f"{target!r} names no training run", fix=guess)
    names = run_file(Path(file))
    make = names.get(name)
    if isinstance(make, nn.Module):
        raise UsageError(
            f"{name} in {file} is a {type(make).__name__}, which is no training run",
            fix="name a function that returns (trainer, train) or (trainer, train, test)",
        )
    if not callable(make):
        known = [known for known, value in names.items() if callable(value) and not known.startswith("_")]
        raise UsageError(f"{file} has no function or class {name!r}", why="it has " + (", ".join(known) or "none"))
    return make  # type: ignore[no-any-return]


def parsed_values(words: Sequence[str]) -> dict[str, Any]:
    """Read `name=value` words: a value is JSON where it is some, else a text."""
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"{word!r} sets nothing", fix="--set name=value")
        try:
            values[name] = json.loads(text)
        except json.JSONDecodeError:
            values[name] = text
    return values


def parsed_devices(word: str) -> Any:
    """Read names of devices with commas between them, or how many there are to be."""
    return int(word) if word.isdecimal() else word if word == "all" else word.split(",")
