"""A loaded graph -> what runs it: in machine code, once a first run has shown that what its file says of it is true.

Kernels rely on the sizes and types that a graph declares. A graph that was traced has them from the operators; one from
a file may say anything, so at the first call each value is compared with what PyTorch's operator gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import torch

from weft.codegen.library import LibraryExecutable
from weft.compile.pipeline import compile_graph
from weft.errors import InternalError, UnsupportedError, UsageError
from weft.ir.graph import Graph, Value
from weft.ir.interpreter import evaluate
from weft.ir.library import split
from weft.ir.types import CPU, TensorType
from weft.passes.pipeline import run_pipeline
from weft.plan.library_plan import plan_library
from weft.plan.regions.indices import INDEXED
from weft.programs.operators import SPACES, calls
from weft.programs.plan import ProgramPlan
from weft.runtime.compiled_graph import CompiledGraph
from weft.runtime.new_tensors import OutputType
from weft.runtime.whole_call import BoundProgram
from weft.trace.interception.capture import PLAIN_TYPES, traced_elsewhere


class LoadedGraph:
    """Runs a graph of any origin on inputs that fit it; gives its roots in order, each once."""

    def __init__(self, graph: Graph, weights: frozenset[Value]) -> None:
        self._graph = graph
        self._weights = weights
        self._operators = LibraryExecutable(plan_library(graph))
        self._may_be_native = _may_be_native(graph)
        self._lock = Lock()
        self._planned: CompiledGraph | None = None
        self._is_true = False

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run the graph."""
        if not self._may_be_native or not _are_ordinary(inputs):
            return self._operators(inputs)
        if not self._is_true:
            self.check(inputs)
        return self._compiled()(inputs)

    @property
    def plan(self) -> ProgramPlan:
        """How the graph is computed."""
        if not self._may_be_native:
            return ProgramPlan((), self._operators.plan)
        compiled = self._compiled()
        return ProgramPlan(tuple(region.plan for region in compiled.regions), compiled.executable.plan)

    def bound(self, arguments: Sequence[int]) -> tuple[BoundProgram, tuple[OutputType, ...]] | None:
        """Give what runs the graph as it is bound now, where that is one region; the first inputs are `arguments`."""
        return self._compiled().bound(arguments) if self._is_true else None

    def check(self, inputs: Sequence[Any]) -> None:
        """Run the graph by PyTorch's operators, and raise UsageError if a value is not what the graph declares."""
        if not self._may_be_native:
            raise UnsupportedError(
                f"{self._graph.name} runs by PyTorch's operators alone",
                why="it is on another device, or its file calls operators of other packages, or small ops with indices",
            )
        known = dict(zip(self._graph.inputs, inputs, strict=True))
        # The run proper draws the same random numbers again.
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for step in self._operators.plan.steps:
                operands = [known[operand] for operand in step.value.operands]
                try:
                    known[step.value] = evaluate(step.value, operands)
                except InternalError as error:
                    raise UsageError(
                        f"{self._graph.name} is not what its file says: {error.fact}",
                        where=error.where,
                        why="the file was written by another version of PyTorch, or is forged",
                        fix="save the program again, with this version",
                    ) from error
                for value in step.dying:
                    del known[value]
        self._is_true = True

    def _compiled(self) -> CompiledGraph:
        with self._lock:
            if self._planned is None:
                self._planned = compile_graph(run_pipeline(self._graph), self._weights)
            return self._planned


def _may_be_native(graph: Graph) -> bool:
    """Whether kernels may compute a graph once it is known to be true.

    Indices are compared with sizes where operators are lifted, not in small ops that stand in a file; and operators of
    other packages may do something more than compute, so they must not run once more.
    """
    kinds = (value.type for value in (*graph.inputs, *graph.values))
    return (
        all(kind.device == CPU for kind in kinds if isinstance(kind, TensorType))
        and all(value.op not in INDEXED for value in graph.values)
        and all(split(call.target)[0] in SPACES for call in calls(graph))
    )


def _are_ordinary(inputs: Sequence[Any]) -> bool:
    """Whether inputs are memory and nothing more, and no mode wants to see operators."""
    tensors = [given for given in inputs if isinstance(given, torch.Tensor)]
    return all(type(tensor) in PLAIN_TYPES for tensor in tensors) and not traced_elsewhere(inputs)
