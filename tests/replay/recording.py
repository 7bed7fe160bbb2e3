"""Record the texts of every graph that is compiled: the graph, the plan of each region, and its LLVM module.

This is the one file of the replay that knows where in the source a graph becomes machine code: whoever moves that
changes this file, and nothing else here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from weft.codegen.plan_module import emit_plan
from weft.compile import pipeline
from weft.config import overrides
from weft.ir.printer import print_graph
from weft.lazy_tensors import backoff as lazy_backoff
from weft.lazy_tensors import segment_plan as lazy_plan
from weft.plan.plan_text import plan_text
from weft.plan.schedule.cost import default_model
from weft.runtime import compiled_graph
from weft.target import host_target

LANES = 2


@dataclass(frozen=True, slots=True)
class Texts:
    """What one compiled graph is at each stage."""

    graph: str
    plan: str
    llvm: str

    def digests(self) -> dict[str, str]:
        """Give a short digest of each stage's text."""
        return {name: _digest(getattr(self, name)) for name in self.__slots__}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


@contextmanager
def recording(into: list[Texts]) -> Iterator[None]:
    """Note every graph that is compiled in this thread or another, planned for a machine that is the same everywhere.

    Nothing is read from disk, and rates and waits are the guess for a machine that nobody has measured: a measurement
    differs from run to run, and plans with it. Lazy segments are compiled at their second run, and always queued.
    """
    compiled = compiled_graph.CompiledGraph.__init__

    def noted(self: Any, graph: Any, *arguments: Any, **keywords: Any) -> None:
        compiled(self, graph, *arguments, **keywords)
        target = host_target()
        plans = [region.plan for region in self.regions]
        into.append(
            Texts(
                print_graph(graph, places=False),
                "\n".join([*(plan_text(plan, default_model(target)) for plan in plans), str(self.executable.plan)]),
                "\n".join(emit_plan(plan, target).text for plan in plans),
            )
        )

    with ExitStack() as stack:
        stack.enter_context(overrides(cache_dir=None, codegen="native"))
        stack.enter_context(mock.patch.object(pipeline, "machine_model", default_model))
        stack.enter_context(mock.patch.object(pipeline, "cpu_count", return_value=LANES))
        stack.enter_context(mock.patch.object(lazy_plan, "COMPILED_AFTER", 0.0))
        stack.enter_context(mock.patch.object(lazy_backoff, "MOST_LOST", float("inf")))
        stack.enter_context(mock.patch.object(compiled_graph.CompiledGraph, "__init__", noted))
        yield
