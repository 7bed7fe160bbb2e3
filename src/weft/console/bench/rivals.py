"""Run a model or a training step in the ways of its rivals, a row each, with what they need."""

from __future__ import annotations

import copy
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
from weft.api.hybridize import hybridize
from weft.api.step import Step, step
from weft.console.subject import losses_function
from weft.errors import UnsupportedError, UsageError
from weft.trace.interception.capture import tree_flatten, tree_map_only

Run = Callable[[], Any]
Losses = Callable[..., Any]
Prepare = Callable[[Callable[..., Any], tuple[Any, ...], int], Run]
Train = Callable[[Step, tuple[Any, ...]], Run]
COMPILERS = ("c++", "g++", "clang++")


def loop(trained: Step, inputs: tuple[Any, ...], losses: Losses | None = None) -> Run:
    """Give one turn of the usual loop: forward with loss, backward, update."""
    task, optimizer = trained.task, trained.optimizer
    if task.accumulate > 1:
        raise UsageError(
            "a step that accumulates is not compared", why="its calls differ", fix="name a step of one batch"
        )
    forward = losses or losses_function(trained)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def run() -> Any:
        optimizer.zero_grad()
        found = forward(*inputs)
        total = sum(leaf.sum() for leaf in tree_flatten(found)[0] if isinstance(leaf, torch.Tensor))
        total.backward()  # type: ignore[union-attr]  # a sum of tensors is one
        if task.clipping.value is not None:
            nn.utils.clip_grad_value_(parameters, task.clipping.value)
        if task.clipping.norm is not None:
            nn.utils.clip_grad_norm_(parameters, task.clipping.norm)
        optimizer.step()
        return tree_map_only(torch.Tensor, torch.Tensor.detach, found)

    return run


def eager_loop(trained: Step, inputs: tuple[Any, ...]) -> Run:
    """The loop as PyTorch runs it."""
    return loop(trained, inputs)


def compiled_loop(trained: Step, inputs: tuple[Any, ...]) -> Run:
    """The loop with forward and loss compiled by torch.compile, and with them their backward."""
    return loop(trained, inputs, torch.compile(losses_function(trained)))


def hybrid_loop(trained: Step, inputs: tuple[Any, ...]) -> Run:
    """The loop with forward and loss hybridized, and with them their backward."""
    if isinstance(trained.task.net, nn.Module):
        hybridize(trained.task.net)
        return loop(trained, inputs)
    return loop(trained, inputs, hybridize(losses_function(trained)))


def lazy_loop(trained: Step, inputs: tuple[Any, ...]) -> Run:
    """The loop in a lazy block, which waits at its end."""
    turn = loop(trained, inputs)

    def run() -> Any:
        with lazy():
            return turn()

    return run


def whole_step(trained: Step, inputs: tuple[Any, ...]) -> Run:
    """The step itself."""
    return lambda: trained(*inputs)


def in_double(trained: Step) -> Step:
    """The same training in float64, on copies."""
    task = trained.task
    net, loss, optimizer = copy.deepcopy((task.net, task.loss, trained.optimizer))
    for module in (net, loss):
        if isinstance(module, nn.Module):
            module.double()
    return step(net, loss, optimizer, clip_norm=task.clipping.norm, clip_value=task.clipping.value)


def parameters_of(trained: Step) -> list[torch.Tensor]:
    """Copies of what the optimizer changes."""
    return [parameter.detach().clone() for group in trained.optimizer.param_groups for parameter in group["params"]]


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
