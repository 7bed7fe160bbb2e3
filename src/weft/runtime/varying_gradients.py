"""Show a program with gradients whose sizes vary to autograd as one node, with one backward for all sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from weft.errors import UnsupportedError
from weft.runtime.compiled_graph import CompiledGraph
from weft.runtime.differentiable import DifferentiableExecutable, Forward
from weft.runtime.differentiable_backward import BackwardGraph, Compile, Tangents
from weft.runtime.varying_sizes import SizePlace, VaryingExecutable


class VaryingDifferentiable(DifferentiableExecutable):
    """As its base; its graphs take the sizes that vary as numbers, and gradients that lie in memory in any way."""

    def __init__(
        self,
        forward: Forward,
        backward_of: Callable[[Tangents], BackwardGraph],
        compile_graph: Compile,
        sizes: Sequence[SizePlace],
    ) -> None:
        super().__init__(forward, backward_of, compile_graph, _refuse_again, self._kinds_of)
        self._sizes = tuple((place.input, place.dimension) for place in sizes)
        # What is in the way of a backward for all sizes shows now: exact programs have theirs.
        self._backwards.make(self._types_of_all(), self._saved.types_of(self._training))

    @property
    def forward_graph(self) -> CompiledGraph:
        """What runs the forward, at the largest sizes."""
        assert isinstance(self._training, VaryingExecutable)
        return self._training.compiled

    def work_for(self, sizes: Sequence[int]) -> int:
        """How much the forward has to compute for these sizes, compared with others."""
        assert isinstance(self._training, VaryingExecutable)
        return self._training.work_for(sizes)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the forward."""
        return super().__call__([*inputs, *(inputs[place].shape[dimension] for place, dimension in self._sizes)])

    def _kinds_of(self, tangents: Sequence[torch.Tensor | None]) -> Tangents:
        """One kind of backward for all gradients of the same results."""
        pairs = zip(self._types_of_all(), tangents, strict=True)
        return tuple(None if tangent is None else kind for kind, tangent in pairs)


def _refuse_again(tangents: Tangents, asking: frozenset[int]) -> NoReturn:
    del tangents, asking
    raise UnsupportedError(
        "a gradient of a program for many sizes is differentiated again",
        why="it draws random numbers, which would be drawn anew",
        fix="run this part imperatively (weft.hybridize(net, False))",
    )
