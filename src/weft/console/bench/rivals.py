"""The rivals: ways to run a module or a function, a row each, with what they need."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from weft.api.asynchronous import lazy, wait
from weft.api.hybrid import hybridize
from weft.api.step import Step
from weft.console.bench.training import Run, compiled_loop, eager_loop, hybrid_loop, lazy_loop, whole_step
from weft.errors import UnsupportedError

Prepare = Callable[[Callable[..., Any], tuple[Any, ...], int], Run]
Train = Callable[[Step, tuple[Any, ...]], Run]
COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True, slots=True)
class Rival:
    """One way to run: `compute` takes a module or function, its inputs and the threads, `train` a step and its inputs.

    Each gives a call of no arguments, and is None where the rival has no such way.
    """

    name: str
    compute: Prepare | None
    train: Train | None
    needs: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """Say which package is not installed."""
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"{' and '.join(absent)} not installed" if absent else None

    def able(self, thing: Callable[..., Any]) -> bool:
        """Tell whether it has a way to run this."""
        return (self.train if isinstance(thing, Step) else self.compute) is not None

    def prepare(self, thing: Callable[..., Any], inputs: tuple[Any, ...], threads: int) -> Run:
        """Give the call that is timed."""
        if isinstance(thing, Step):
            assert self.train is not None, "only those that are able are asked"
            return self.train(thing, inputs)
        assert self.compute is not None, "as above"
        return self.compute(thing, inputs, threads)


class Wrapped(nn.Module):
    """A function as a module, for exporters that take nothing else."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        """Call the function."""
        return self.function(*arguments)


def _eager(thing: Callable[..., Any], inputs: tuple[Any, ...], threads: int) -> Run:
    del threads  # set for PyTorch as a whole
    return lambda: thing(*inputs)


def _compile(thing: Callable[..., Any], inputs: tuple[Any, ...], threads: int) -> Run:
    del threads  # as above
    _need_compiler()
    compiled = torch.compile(thing)
    return lambda: compiled(*inputs)


def _compile_step(trained: Step, inputs: tuple[Any, ...]) -> Run:
    _need_compiler()
    return compiled_loop(trained, inputs)


def _need_compiler() -> None:
    if not any(map(shutil.which, COMPILERS)):
        raise UnsupportedError("there is no C++ compiler on this machine")


def _hybrid(thing: Callable[..., Any], inputs: tuple[Any, ...], threads: int) -> Run:
    del threads  # by WEFT_THREADS, in the environment of the process
    hybridized = hybridize(thing)
    return lambda: hybridized(*inputs)


def _lazy(thing: Callable[..., Any], inputs: tuple[Any, ...], threads: int) -> Run:
    del threads  # as for hybrid

    def run() -> Any:
        with lazy():
            found = thing(*inputs)
        return wait(found)

    return run


def _onnxruntime(thing: Callable[..., Any], inputs: tuple[Any, ...], threads: int) -> Run:
    onnxruntime = importlib.import_module("onnxruntime")  # one of the optional rivals, without types
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(_module(thing), inputs, path, dynamo=True, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    arrays = [tensor.numpy() for tensor in inputs if isinstance(tensor, torch.Tensor)]
    feed = {given.name: array for given, array in zip(session.get_inputs(), arrays, strict=True)}
    return lambda: session.run(None, feed)


def _openvino(thing: Callable[..., Any], inputs: tuple[Any, ...], threads: int) -> Run:
    openvino = importlib.import_module("openvino")  # as above
    shapes = [tuple(tensor.shape) for tensor in inputs]
    model = openvino.convert_model(_module(thing), example_input=inputs, input=shapes)
    # In float32 also where the processor has bfloat16: the answers are to be the same.
    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(model, "CPU", hints).create_infer_request()
    arrays = {place: tensor.numpy() for place, tensor in enumerate(inputs)}
    return lambda: list(request.infer(arrays, share_inputs=True).values())


def _module(thing: Callable[..., Any]) -> nn.Module:
    return thing if isinstance(thing, nn.Module) else Wrapped(thing)


RIVALS = (
    Rival("eager", _eager, eager_loop),
    Rival("compile", _compile, _compile_step),
    Rival("onnxruntime", _onnxruntime, None, ("onnxruntime", "onnx", "onnxscript")),
    Rival("openvino", _openvino, None, ("openvino",)),
    Rival("hybrid", _hybrid, hybrid_loop),
    Rival("step", None, whole_step),
    Rival("lazy", _lazy, lazy_loop),
)
