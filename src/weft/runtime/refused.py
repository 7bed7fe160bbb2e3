"""A graph that was not run because of an index out of range -> the exception that PyTorch's operators raise for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from weft.codegen.library import LibraryExecutable
from weft.errors import InternalError
from weft.ir.graph import Graph
from weft.plan.library_plan import plan_library


class RefusedError(Exception):
    """A region has done nothing, because an index names no place."""


def raise_as_operators(graph: Graph, inputs: Sequence[Any]) -> NoReturn:
    """Run a graph, as it was before it was lifted, by PyTorch's operators until one raises."""
    with torch.random.fork_rng(devices=[]):  # what was drawn before the region is drawn again
        LibraryExecutable(plan_library(graph))(inputs)
    raise InternalError("a check has found an index out of range, and PyTorch's operators have not")
