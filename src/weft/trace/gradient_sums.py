"""Find sums of gradients that PyTorch's engine adds up in place: they lie in memory as the first of the gradients does.

Where several gradients reach one node, the engine adds each to the sum so far. It does so in the memory of the sum if
nobody else holds that, and the strides of dimensions of one element stay those of the first gradient; a new tensor
would have others. While code is traced the engine makes new tensors, since stand-ins are of a subclass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from weft.ir.types import TensorType
from weft.trace.interception.capture import (
    holders_of_gradient,
    is_stand_in,
    kind_of,
    number_of_holders,
    outside_tracing,
)
from weft.trace.interception.modes import running_autograd_number
from weft.trace.memory import TensorTable

SUM = "aten.add.Tensor"


class GradientSums:
    """The sums of gradients that the engine makes in one backward of these tensors."""

    def __init__(self, table: TensorTable, roots: Iterable[torch.Tensor]) -> None:
        self._table = table
        self._only_the_engine = holders_of_gradient()
        self._before_sums = _nodes_before_sums(roots)

    def is_in_place(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Whether an addition is such a sum, and would lie in memory otherwise if it were new."""
        if keywords or len(arguments) != 2 or torch.is_grad_enabled() or not all(map(is_stand_in, arguments)):
            return False
        first, second = arguments
        if 1 not in first.shape or first.shape != second.shape or first.dtype != second.dtype:
            return False
        if running_autograd_number() not in self._before_sums or not self._is_held_once(first):
            return False
        kind = kind_of(first)
        return _is_dense(kind) and kind.strides != _strides_of_sum(kind, kind_of(second))

    def _is_held_once(self, gradient: torch.Tensor) -> bool:
        memory = self._table.state_of(gradient).memory
        if memory.inputs or number_of_holders(gradient) > self._only_the_engine:
            return False
        others = (state.tensor for state in self._table.states.values() if state.memory is memory)
        return all(other is gradient or number_of_holders(other) == 1 for other in others)


def _nodes_before_sums(roots: Iterable[torch.Tensor]) -> frozenset[int]:
    """Number the nodes that give a gradient to where another one arrives too."""
    waiting = list(dict.fromkeys(root.grad_fn for root in roots if root.grad_fn is not None))
    seen = set(waiting)
    edges: list[tuple[int, tuple[Any, int]]] = []
    while waiting:
        node: Any = waiting.pop()
        for source, place in node.next_functions:
            if source is None:
                continue
            edges.append((int(node._sequence_nr()), (source, place)))
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    arrivals = Counter(target for _, target in edges)
    return frozenset(number for number, target in edges if arrivals[target] > 1)


def _is_dense(kind: TensorType) -> bool:
    """Whether elements lie one behind the other, each with memory of its own."""
    pairs = sorted((stride, size) for stride, size in zip(kind.strides, kind.shape, strict=True) if size != 1)
    step = 1
    for stride, size in pairs:
        if stride != step:
            return False
        step *= size
    return True


def _strides_of_sum(first: TensorType, second: TensorType) -> tuple[int, ...]:
    with outside_tracing():
        one, other = (torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype) for kind in (first, second))
        return (one + other).stride()
