"""Apply what a program does at its edge: writes into inputs, views handed out, the order of what is returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch.autograd.graph import increment_version

from weft.codegen.torch_functions import copy_all
from weft.ir.at_sizes import path_at_sizes
from weft.ir.calls import Hole, Path, ViewStep
from weft.ir.extents import Extent, Polynomial
from weft.ir.graph import Graph, Value
from weft.ir.library import resolve
from weft.ir.sharing import sources
from weft.ir.types import NumberType, TensorType


class Boundary:
    """Applies a graph's writes and makes its results, from the inputs and the values that were computed."""

    def __init__(self, graph: Graph, carries_gradient: Sequence[bool]) -> None:
        roots = tuple(dict.fromkeys(graph.roots()))
        position = {value: index for index, value in enumerate(roots)}
        inputs = {value: index for index, value in enumerate(graph.inputs)}
        self.writes = tuple((inputs[write.input], position[write.value], write.path) for write in graph.writes)
        # What is written, or given out, may lie in the memory of an input, which a write may change.
        shown = {result.value for result in graph.results} - set(inputs)
        held = [value for value in (*shown, *(write.value for write in graph.writes)) if _may_be_input(value, inputs)]
        copied = [position[write.value] for write in graph.writes] if held else []
        self._copied = sorted({*copied, *(position[value] for value in held)}) if graph.writes else []
        self._sizes = _size_places(graph) if any(_varies(result.path) for result in graph.results) else {}
        self.results = tuple(
            (inputs.get(result.value, -1), position[result.value], result.path, carries)
            for result, carries in zip(graph.results, carries_gradient, strict=True)
        )

    def apply(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """Write into the inputs, then give the results in order."""
        if self._copied:
            outputs = [*outputs]
            for index in self._copied:
                outputs[index] = outputs[index].clone()
        changed = [source for source, index, _ in self.writes if outputs[index] is inputs[source]]
        if changed:  # in place, by machine code, which PyTorch has not seen
            increment_version([inputs[source] for source in changed])
        _write_all(
            [
                (follow(inputs[source], path), outputs[index])
                for source, index, path in self.writes
                if outputs[index] is not inputs[source]
            ]
        )
        sizes = {
            size: inputs[source] if dimension is None else inputs[source].shape[dimension]
            for size, (source, dimension) in self._sizes.items()
        }
        return [
            self._result(
                inputs[source] if source >= 0 else outputs[index],
                path_at_sizes(path, sizes) if sizes else path,
                carries,
            )
            if path
            else (inputs[source] if source >= 0 else outputs[index])
            for source, index, path, carries in self.results
        ]

    def _result(self, root: torch.Tensor, path: Path, carries_gradient: bool) -> torch.Tensor:
        if carries_gradient or not root.requires_grad:
            return follow(root, path)
        with torch.no_grad():
            return follow(root, path)


def _varies(argument: Any) -> bool:
    """Whether a path, or an argument of one of its steps, depends on sizes that vary."""
    if isinstance(argument, ViewStep):
        return _varies(argument.arguments) or _varies(argument.keywords)
    return any(map(_varies, argument)) if isinstance(argument, tuple) else isinstance(argument, Extent)


def _size_places(graph: Graph) -> dict[Value, tuple[int, int | None]]:
    """Where each size that varies is found: an input, and a dimension of it, or an input that is a number."""
    numbers = {value: (index, None) for index, value in enumerate(graph.inputs) if isinstance(value.type, NumberType)}
    return numbers | {
        atom: (index, dimension)
        for index, value in enumerate(graph.inputs)
        if isinstance(value.type, TensorType)
        for dimension, size in enumerate(value.type.shape)
        if isinstance(size, Extent)
        for atom in size.expression.atoms()
        if size.expression == Polynomial.atom(atom)
    }


def _may_be_input(value: Value, inputs: Mapping[Value, int]) -> bool:
    return value in inputs or any(_may_be_input(source, inputs) for source in sources(value))


def _write_all(writes: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for carries, group in groupby(writes, lambda write: write[1].requires_grad):
        if carries:
            for target, value in group:
                target.copy_(value)
            continue
        # Entered once for many writes: it costs as much as a small write.
        with torch.no_grad():
            copy_all(*zip(*group, strict=True))


def follow(tensor: torch.Tensor, path: Path) -> torch.Tensor:
    """Take view steps of a tensor."""
    for step in path:
        arguments = [_fill(argument, tensor) for argument in step.arguments]
        keywords = {name: _fill(argument, tensor) for name, argument in step.keywords}
        found: Any = resolve(step.target)(*arguments, **keywords)
        tensor = found if step.item is None else found[step.item]
    return tensor


def _fill(argument: Any, tensor: torch.Tensor) -> Any:
    if isinstance(argument, tuple):
        return [_fill(item, tensor) for item in argument]
    return tensor if isinstance(argument, Hole) else argument
