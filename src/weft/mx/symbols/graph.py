"""Run a symbol as one operator: a torch function of its variables, compiled whole by Weft."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.api.hybrid import HybridFunction
from weft.mx.operators.table import OperatorRule
from weft.mx.symbols.symbol import Entry, Symbol

Mode = namedtuple("Mode", ["train"])  # noqa: PYI024  # `_replace` is what rules are given
PREDICT = Mode(False)


class _Step:
    """One operator of the graph, with its parameters read for both modes."""

    def __init__(self, node: Any, places: dict[Entry, int]) -> None:
        self.rule = node.row.rule
        p = node.p
        self.p = {False: p, True: p._replace(train=True) if self.rule.modal else p}
        self.inputs = [places[entry] for entry in node.inputs]
        self.node = node
        self.count = node.output_count()
        self.first = len(places)
        for place in range(self.count):
            places[node, place] = self.first + place
        self.aux = [self.inputs[place] for place in self.rule.aux]


class _TracedBesideOthers(HybridFunction):
    """Runs a graph's programs. It is traced by a task, while the user's thread draws random numbers and seeds them."""

    draws = False


class GraphFunction:
    """A symbol as a function of tensors: its outputs, and while training new values of its auxiliary states."""

    def __init__(self, symbol: Symbol, inputs: Sequence[str]) -> None:
        places: dict[Entry, int] = {}
        nodes = symbol.nodes()
        by_name = {node.name: node for node in nodes if node.row is None}
        self._inputs = [by_name.get(name) for name in inputs]
        self._given: list[int] = []  # which inputs the graph reads
        for place, node in enumerate(self._inputs):
            if node is not None:
                places[node, 0] = len(self._given)
                self._given.append(place)
        self._steps = [_Step(node, places) for node in nodes if node.row is not None]
        self._symbol = symbol
        self._unsized = [
            step for step in self._steps if step.rule.creates and 0 in (getattr(step.p[False], "shape", ()) or ())
        ]
        self._sizes: dict[Any, dict[_Step, Any]] = {}
        self._outputs = [places[entry] for entry in symbol.entries]
        changed = dict.fromkeys(place for step in self._steps for place in step.aux)
        self._aux = list(changed)
        self.random = any(step.rule.random for step in self._steps)
        self.rule = OperatorRule(
            self.compute if not self.random else self._compute_random,
            outputs=len(self._outputs),
            aux=tuple(self._given[place] for place in self._aux),
            modal=True,
            random=self.random,
            mixed=True,
        )
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self.compiles = True

    def compute(self, p: Any, *tensors: Tensor) -> Any:
        """Run the program of a graph that draws no random numbers."""
        return self._compute_random(p, None, *tensors)

    def _compute_random(self, p: Any, generator: torch.Generator | None, *tensors: Tensor) -> Any:
        """Run the program; tensors without elements only go through the operators."""
        given = [tensors[place] for place in self._given]
        shapes, sized = self._sizes_at(given)
        if not self.compiles or not given or given[0].device.type == "meta":
            return self._run(p.train, generator, sized, given)
        key = p.train, generator, shapes
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = _TracedBesideOthers(self._alone(p.train, generator, sized))
        return compiled(*given)

    @property
    def output_count(self) -> int:
        """Count the outputs, without new values of auxiliary states."""
        return len(self._outputs)

    @property
    def changed_inputs(self) -> tuple[int, ...]:
        """The places of the inputs whose new values follow the outputs while training."""
        return self.rule.aux

    def run(self, train: bool, generator: torch.Generator | None, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the operators one after the other: for code that is itself traced, or not to be."""
        given = [tensors[place] for place in self._given]
        return self._run(train, generator, self._sizes_at(given)[1], given)

    def _sizes_at(self, given: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[_Step, Any]]:
        if not self._unsized:
            return (), {}
        shapes = tuple(tuple(tensor.shape) for tensor in given)
        return shapes, self._sized(shapes)

    def _alone(self, train: bool, generator: torch.Generator | None, sized: dict[_Step, Any]) -> Callable[..., Any]:
        """The graph as a function of tensors alone."""

        def run(*tensors: Tensor) -> Any:
            return self._run(train, generator, sized, tensors)

        return run

    def _sized(self, shapes: Sequence[Any]) -> dict[_Step, Any]:
        """The parameters of what makes arrays, some of whose sizes follow from those of the inputs."""
        found = self._sizes.get(shapes)
        if found is None:
            names = [node.name for node in self._inputs if node is not None]
            kinds = self._symbol._infer(dict(zip(names, shapes, strict=True)))
            found = self._sizes[shapes] = {
                step: step.p[False]._replace(shape=kinds[step.node, 0][0]) for step in self._unsized
            }
        return found

    def _run(
        self, train: bool, generator: torch.Generator | None, sized: dict[_Step, Any], tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        values = list(tensors)
        changed: dict[int, Tensor] = {}
        for step in self._steps:
            arguments = [values[place] for place in step.inputs]
            rule = step.rule
            p = sized.get(step, step.p[train])
            found = rule.compute(p, generator, *arguments) if rule.random else rule.compute(p, *arguments)
            results = found if isinstance(found, tuple) else (found,)
            values += results[: step.count]
            changed.update(zip(step.aux, results[step.count :], strict=False))
        outputs = [values[place] for place in self._outputs]
        return (*outputs, *[changed.get(place, values[place]) for place in self._aux]) if train else tuple(outputs)
