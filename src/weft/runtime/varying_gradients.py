"""Show a program with gradients whose sizes vary to autograd as one node, with one backward for all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from weft.errors import UnsupportedError
from weft.ir.generator import generator_state
from weft.runtime.compiled_graph import CompiledGraph
from weft.runtime.differentiable import DifferentiableExecutable, Done, Forward
from weft.runtime.differentiable_backward import BackwardOf, BackwardRuns, Compile, Tangents
from weft.runtime.path_graph import HANDED_OVER
from weft.runtime.varying_sizes import SizePlace, VaryingExecutable, sizes_in


class OneBackward(DifferentiableExecutable):
    """As its base, with a backward for all sizes and strides of gradients, which lie in memory in any way."""

    def __init__(self, forward: Forward, backward_of: BackwardOf, compile_graph: Compile) -> None:
        super().__init__(forward, backward_of, compile_graph, _refuse_again, self._kinds_of)
        self.draws = False
        # Its replay gives the memory that results look into, where they are views.
        numbers = {result.value: index for index, result in enumerate(self.graph.results)}
        self._result_of = tuple(numbers.get(self._training.roots[place]) for place in self.roots)

    def prepare_backward(self) -> None:
        """Make the backward for all sizes: what is in its way shows now, and exact programs have theirs."""
        self._backwards.make(self._types_of_all(), self._saved.types_of(self._training))

    def forward(self, context: Any, inputs: Sequence[Any], done: Done | None) -> tuple[Any, ...]:
        """The forward below autograd; one that draws is replayed from where the generator was."""
        handed_over = HANDED_OVER.last  # by a path that may have drawn before this one goes on
        random = None if handed_over is None else handed_over.random
        if random is None and self.draws:
            random = generator_state()
        roots = super().forward(context, inputs, done)
        if random is not None and self.draws and context.given is not None:
            context.given.append((random, random._version))
        return roots

    def backwards_of(self, root: int, backward_of: BackwardOf) -> BackwardRuns:
        """Give backwards of one of the results, of what a forward saves: one for all sizes."""
        kinds = (self._types_of_all()[root],)
        return BackwardRuns(backward_of, _refuse_again, self._compile, lambda _: kinds)

    def _kinds_of(self, tangents: Sequence[torch.Tensor | None]) -> Tangents:
        """One kind of backward for all gradients of the same results."""
        pairs = zip(self._types_of_all(), tangents, strict=True)
        return tuple(None if tangent is None else kind for kind, tangent in pairs)


class VaryingDifferentiable(OneBackward):
    """As its base; its graphs take the sizes of arguments that vary as numbers."""

    def __init__(
        self,
        forward: Forward,
        backward_of: BackwardOf,
        compile_graph: Compile,
        sizes: Sequence[SizePlace],
    ) -> None:
        super().__init__(forward, backward_of, compile_graph)
        self._sizes = tuple((place.input, place.dimension) for place in sizes)

    @property
    def forward_graph(self) -> CompiledGraph:
        """What runs the forward, at the largest sizes."""
        assert isinstance(self._training, VaryingExecutable)
        return self._training.compiled

    def work_for(self, sizes: Sequence[int]) -> int:
        """How much the forward has to compute for these sizes, compared with others."""
        assert isinstance(self._training, VaryingExecutable)
        return self._training.work_for(sizes)

    def share_for(self, sizes: Sequence[int], largest: Sequence[int]) -> float:
        """How much of what the forward computes for these sizes it needs."""
        assert isinstance(self._training, VaryingExecutable)
        return self._training.share_for(sizes, largest)

    @property
    def is_spread(self) -> bool:
        """Whether operators put what they give into memory of the largest sizes."""
        assert isinstance(self._training, VaryingExecutable)
        return self._training.is_spread

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the forward."""
        return super().__call__([*inputs, *sizes_in(inputs, self._sizes)])


def _refuse_again(tangents: Tangents, asking: frozenset[int]) -> NoReturn:
    del tangents, asking
    raise UnsupportedError(
        "a gradient of a program for many sizes is differentiated again",
        why="that takes its operators once more, and it runs code of its own in its backward, writes where autograd "
        "does not see it, or was given what has been written since",
        fix="run this part imperatively (weft.hybridize(net, False))",
    )
