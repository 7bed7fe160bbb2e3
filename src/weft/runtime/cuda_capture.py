"""Capture a plan of library calls on one GPU in a CUDA graph, where that is safe.

A graph repeats what was recorded, with the addresses that were recorded. So a program is captured only if every
operator is on a list of those that neither synchronise, draw random numbers nor depend on data, everything lies on one
GPU, and nothing is written but what the program makes. See docs/decisions/0014-cuda-graphs.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch

from weft.codegen.library import LibraryExecutable
from weft.config import config
from weft.ir.graph import Value
from weft.ir.types import TensorType
from weft.plan.library_plan import LibraryPlan

log = logging.getLogger("weft")
WARM_CALLS = 3
MOST_CAPTURES = 4  # of one program: each replaced parameter needs a new one
Run = Callable[[Sequence[Any]], tuple[Any, ...]]

# Operators that only compute: no random numbers, no sizes that depend on data, no look from the host at the GPU.
_SAFE = (
    "add.Tensor add.Scalar sub.Tensor sub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar neg.default abs.default "
    "relu.default gelu.default gelu_backward.default sigmoid.default sigmoid_backward.default tanh.default "
    "tanh_backward.default silu.default silu_backward.default threshold_backward.default exp.default log.default "
    "sqrt.default rsqrt.default pow.Tensor_Scalar maximum.default minimum.default where.self clone.default mm.default "
    "addmm.default bmm.default baddbmm.default convolution.default convolution_backward.default view.default "
    "_unsafe_view.default permute.default t.default transpose.int unsqueeze.default squeeze.dim expand.default "
    "slice.Tensor select.int cat.default split.Tensor detach.default alias.default sum.default sum.dim_IntList "
    "mean.default mean.dim amax.default amin.default _softmax.default _softmax_backward_data.default "
    "_log_softmax.default _log_softmax_backward_data.default native_layer_norm.default "
    "native_layer_norm_backward.default max_pool2d_with_indices.default max_pool2d_with_indices_backward.default "
    "avg_pool2d.default avg_pool2d_backward.default _adaptive_avg_pool2d.default "
)
SAFE_OPERATORS = frozenset(f"aten.{name}" for name in _SAFE.split())
SAFE_OPS = frozenset({"library", "item", "constant"})
"""Kinds of values; the small ops of machine code do not occur, as nothing of a GPU is lifted."""


class Graphs(Protocol):
    """What capture needs of a device."""

    def warm_up(self, run: Callable[[], object]) -> None:
        """Run several times beside the current stream, and wait."""

    def capture(self, run: Callable[[], tuple[Any, ...]]) -> tuple[Callable[[], None], tuple[Any, ...]]:
        """Record a run; give what repeats it, and the results that it writes."""

    def stream(self) -> object:
        """Say what the current stream is; None where nothing can be captured now."""


class CudaGraphs:
    """PyTorch's CUDA graphs."""

    def warm_up(self, run: Callable[[], object]) -> None:
        """Run on a side stream, as PyTorch asks for."""
        side, current = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_CALLS):
                run()
        current.wait_stream(side)

    def capture(self, run: Callable[[], tuple[Any, ...]]) -> tuple[Callable[[], None], tuple[Any, ...]]:
        """Record a run in a graph of its own memory."""
        graph = torch.cuda.CUDAGraph()
        # Other threads go on with what a capture of the whole process would forbid them.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            results = run()
        return graph.replay, results

    def stream(self) -> object:
        """Say what the current stream is."""
        return None if torch.cuda.is_current_stream_capturing() else torch.cuda.current_stream().cuda_stream


def refusal(plan: LibraryPlan, native: int) -> str | None:
    """Say why a plan cannot be captured; None if it can."""
    if native:
        return "a part of it runs in machine code on the CPU"
    for value in (*plan.inputs, *(step.value for step in plan.steps)):
        if isinstance(value.type, TensorType) and value.type.device.type != "cuda":
            return f"{value.op} is on the {value.type.device.type}"
    if len(devices := {value.type.device for value in plan.inputs if isinstance(value.type, TensorType)}) != 1:
        return f"its inputs are on {len(devices)} devices"
    if any(not isinstance(value.type, TensorType) for value in plan.inputs):
        return "a number is an input"
    for step in plan.steps:
        if reason := _unsafe(step.value):
            return reason
    return "it gives out an input" if set(plan.outputs) & set(plan.inputs) else None


def _unsafe(value: Value) -> str | None:
    call = value.attributes.get("call")
    name = value.op if call is None else call.target
    is_safe = value.op in SAFE_OPS and (call is None or call.target in SAFE_OPERATORS)
    return None if is_safe else f"{name} is not on the list of safe operators"


def captured(executable: LibraryExecutable, lasting: Collection[int], native: int) -> CapturedExecutable | None:
    """Give what runs a plan of a GPU, through a graph where that is safe; None for plans of the CPU."""
    kinds = [value.type for value in executable.plan.inputs]
    on_gpu = any(isinstance(kind, TensorType) and kind.device.type == "cuda" for kind in kinds)
    if not on_gpu or config().cuda_graphs == "off":
        return None
    found = CapturedExecutable(executable, lasting, CudaGraphs())
    found.refused = refusal(executable.plan, native)
    return found


class CapturedExecutable:
    """Runs a plan through a graph once it has run a few times; by itself where the graph is busy or elsewhere.

    `lasting` are the inputs whose address is part of the graph; the others are copied to where the graph reads them.
    """

    def __init__(self, run: Run, lasting: Collection[int], graphs: Graphs) -> None:
        self._run = run
        self._lasting = frozenset(lasting)
        self._graphs = graphs
        self._calls = 0
        self._captures = 0
        self._capture: _Capture | None = None
        self.refused: str | None = None
        # Held while the static inputs of the graph are in use. Nobody waits for it: who does not get it runs without.
        self._busy = threading.Lock()

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run the plan."""
        stream = self._graphs.stream()
        if self.refused is not None or stream is None or not self._busy.acquire(blocking=False):
            return self._run(inputs)
        try:
            self._calls += 1
            if self._calls <= WARM_CALLS:
                return self._run(inputs)
            capture = self._capture
            if capture is not None and capture.stream != stream:
                return self._run(inputs)
            if capture is None or not capture.fits(inputs):
                return self._begin(inputs, stream)
            return capture.replay(inputs)
        finally:
            self._busy.release()

    def describe(self) -> str:
        """Say whether it is captured, and if not, why."""
        if self.refused is not None:
            return f"not captured: {self.refused}"
        return "captured in a CUDA graph" if self._capture is not None else "not captured yet"

    def _begin(self, inputs: Sequence[Any], stream: object) -> tuple[Any, ...]:
        """Capture, and believe it only if it gives what the plain run gives."""
        expected = self._run(inputs)
        if self._captures >= MOST_CAPTURES:
            return self._refuse("its parameters were replaced too often", expected)
        self._captures += 1
        try:
            capture = _Capture(self._run, inputs, (self._lasting, stream), self._graphs)
            found = capture.replay(inputs)
        except RuntimeError as error:
            return self._refuse(str(error).splitlines()[0], expected)
        if not capture.is_separate or not all(map(_same, found, expected)):
            return self._refuse("a replay does not give what the operators give", expected)
        self._capture = capture
        return expected

    def _refuse(self, reason: str, expected: tuple[Any, ...]) -> tuple[Any, ...]:
        self.refused, self._capture = reason, None
        log.info("weft: a program on the GPU is not captured in a CUDA graph: %s", reason)
        return expected


class _Capture:
    """One recording: where it reads its inputs and writes its results."""

    def __init__(self, run: Run, inputs: Sequence[Any], which: tuple[Collection[int], object], graphs: Graphs) -> None:
        lasting, self.stream = which
        with torch.inference_mode(False), torch.no_grad():
            self._static = [given if at in lasting else _copy(given) for at, given in enumerate(inputs)]
            graphs.warm_up(lambda: run(self._static))
            self._repeat, self._results = graphs.capture(lambda: run(self._static))
        self._places = {at: given.data_ptr() for at, given in enumerate(inputs) if at in lasting}
        storages = [result.untyped_storage().data_ptr() for result in self._results]
        held = {given.untyped_storage().data_ptr() for given in self._static}
        self.is_separate = len(set(storages)) == len(storages) and not held & set(storages)

    def fits(self, inputs: Sequence[Any]) -> bool:
        """Whether what the graph reads in place lies where it did."""
        return all(inputs[at].data_ptr() == place for at, place in self._places.items())

    def replay(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Copy the inputs in, repeat, and copy the results out: the next replay writes there again."""
        with torch.inference_mode(False), torch.no_grad():
            for at, static in enumerate(self._static):
                if at not in self._places:
                    static.copy_(inputs[at])
        self._repeat()
        with torch.no_grad():
            return tuple(_copy(result) for result in self._results)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor.detach())


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True) and one.stride() == other.stride()
