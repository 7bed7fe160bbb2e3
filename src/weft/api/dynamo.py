"""Run the graphs that Dynamo finds: `torch.compile(net, backend="weft")`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.api.hybrid import HybridFunction
from weft.api.hybrid_options import HybridOptions
from weft.trace.interception.modes import hide_from_dynamo

# What runs or makes programs. A hybridized function itself Dynamo looks into.
MACHINERY = tuple(
    f"weft.{name}" for name in ("codegen", "compile", "guards", "ir", "passes", "plan", "programs", "runtime", "trace")
)


def backend(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """What Dynamo calls with each graph it captured; the program is traced when the graph is first run."""
    hide_from_dynamo(MACHINERY)
    del example_inputs  # their sizes may be symbolic; the first call brings real ones
    return HybridFunction(module.forward, HybridOptions(fallback="eager"))
