"""Run a program in the modes that its Python chose inside, and give results the marks that eager's would have.

The modes around a call are part of its signature. What a function changes inside them (`enable_grad()` under
`no_grad()`, a forward in `inference_mode`) its trace has seen: results that carry gradients, or are inference tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from weft.ir.graph import Graph
from weft.trace.python_state.trees import TensorLeaf
from weft.trace.traced import Traced


class RunModes:
    """The modes of one program's runs, where they are others than those around the call."""

    def __init__(self, traced: Traced, graph: Graph) -> None:
        leaves = [*traced.leaves, *(leaf for entry in traced.kept for leaf in entry.leaves)]
        carrying = {leaf.index for leaf in leaves if isinstance(leaf, TensorLeaf) and leaf.requires_grad}
        given = {*graph.inputs}
        new = {index for index, result in enumerate(graph.results) if result.value not in given}
        around = traced.around
        inside = new & {*traced.inference} if around.exact or not around.inference else new
        self._enables_grad = traced.gradient is not None and not around.grad
        self._all_inference = bool(new) and inside == new and not around.inference
        self._leaves_inference = around.inference and inside != new
        self._marked = () if self._all_inference or inside == new else tuple(sorted(inside))
        # What carries a gradient to nothing but tensors that were made inside: autograd has to see that it carries one.
        alone = traced.gradient is not None and not traced.gradient.wanted
        self._tied = tuple(sorted(carrying & new)) if alone and not around.inference else ()

    def __bool__(self) -> bool:
        return bool(self._enables_grad or self._all_inference or self._leaves_inference or self._marked or self._tied)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """In this block the program runs."""
        with ExitStack() as stack:
            if self._all_inference:
                stack.enter_context(torch.inference_mode())
            elif self._leaves_inference:
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.no_grad())
            if self._enables_grad:
                stack.enter_context(torch.enable_grad())
            yield

    def marked(self, results: Sequence[Any]) -> list[Any]:
        """The results as eager would mark them."""
        found = list(results)
        for index in self._marked:
            with torch.inference_mode():
                found[index] = found[index].clone()
        for index in self._tied:
            found[index] = _Tied.apply(found[index], torch.zeros((), requires_grad=True))  # type: ignore[no-untyped-call]
        return found


class _Tied(torch.autograd.Function):
    """A result that carries a gradient to a tensor that nobody outside has."""

    @staticmethod
    def forward(context: Any, result: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        del context, leaf
        return result.view_as(result)

    @staticmethod
    def backward(context: Any, *tangents: torch.Tensor) -> tuple[None, torch.Tensor]:
        del context
        return None, torch.zeros((), device=tangents[0].device)
