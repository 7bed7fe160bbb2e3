"""Run a graph by PyTorch's operators where its kernels refuse the data.

For an index out of range that is their exception; for strange offsets of bags that they take, their result.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from weft.codegen.library import LibraryExecutable
from weft.ir.graph import Graph
from weft.ir.ops import effect_of
from weft.plan.library_plan import plan_library


class RefusedError(Exception):
    """A region has done nothing, because data is not as its kernels need it."""


class InPlace(threading.local):
    """How many regions of this thread have written memory that they were given, which no version tells before the end.

    A program that fails half-way leaves it so: only if none has, and no version has changed, may it be run again.
    """

    regions: int = 0


IN_PLACE = InPlace()


def run_as_operators(graph: Graph, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Run a graph, as it was before it was lifted, by PyTorch's operators; gives its roots in order, each once."""
    executable = LibraryExecutable(plan_library(graph))
    draws = any(effect_of(value) == "random" for value in graph.values)
    # What was drawn before the region is drawn again; other threads draw from the same generator.
    with torch.random.fork_rng(devices=[]) if draws else nullcontext():
        found = dict(zip(executable.plan.outputs, executable(inputs), strict=True))
    return tuple(found[root] for root in dict.fromkeys(graph.roots()))
