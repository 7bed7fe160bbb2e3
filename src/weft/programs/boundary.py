"""Apply what a program does at its edge: writes into inputs, views handed out, the order of what is returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from types import MappingProxyType
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
from weft.runtime.linked_results import ResultLinks


class Boundary:
    """Applies a graph's writes and makes its results, from the inputs and the values that were computed."""

    def __init__(
        self,
        graph: Graph,
        carries_gradient: Sequence[bool],
        links: ResultLinks | None = None,
        views: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """`links` tie results to others, and `views` say which are views of other ones, by number."""
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
        self._links = links
        self._views = views

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
        if self._links is None and not self._views:
            return [self._made(entry, inputs, outputs, sizes) for entry in self.results]
        found: list[Any] = [None] * len(self.results)
        result = partial(self._found, found, inputs, made := [*outputs], sizes)  # a closure would hold itself
        if self._links is not None:
            self._links.connect(made, inputs, lambda number: self.results[number][1], result)
        return [result(number) for number in range(len(found))]

    def _found(
        self,
        found: list[Any],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        sizes: Mapping[Value, Any],
        number: int,
    ) -> Any:
        """A result that is made once, of the one that it is a view of."""
        if found[number] is not None:
            return found[number]
        if number in self._views:
            of, (_, _, path, carries) = self._views[number], self.results[number]
            rest = path[len(self.results[of][2]) :]
            root = self._found(found, inputs, outputs, sizes, of)
            found[number] = self._result(root, path_at_sizes(rest, sizes) if sizes else rest, carries)
        else:
            found[number] = self._made(self.results[number], inputs, outputs, sizes)
        return found[number]

    def _made(
        self,
        entry: tuple[int, int, Path, bool],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        sizes: Mapping[Value, Any],
    ) -> Any:
        source, index, path, carries = entry
        root = inputs[source] if source >= 0 else outputs[index]
        if not path:
            return root
        return self._result(root, path_at_sizes(path, sizes) if sizes else path, carries)

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
