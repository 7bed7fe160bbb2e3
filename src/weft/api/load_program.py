"""Load a program from a file, and run it for all its sizes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from weft.api.declared_sizes import DeclaredSize, SizeRow
from weft.api.hybrid import ModuleForward
from weft.api.hybrid_options import HybridOptions
from weft.ir.extents import Extent, today
from weft.ir.interpreter import apply_rule
from weft.ir.size_text import with_sizes
from weft.ir.types import TensorType, Type
from weft.programs.file import read_program
from weft.programs.listing import listing
from weft.programs.loaded import LoadedProgram
from weft.programs.parts import ProgramParts
from weft.tracebacks import shows_less


@shows_less
def load_program(path: str | os.PathLike[str], *, allow: Sequence[str] = ()) -> LoadedProgram:
    """Read a program from a file that `program.save` wrote.

    Nothing in the file is run by loading it. Calling the program calls operators of PyTorch that compute with tensors,
    and no others; `allow` names further namespaces, for a file that you trust and that uses operators of your own.
    """
    return read_program(path, allow, _runnable)


def _runnable(parts: ProgramParts) -> LoadedProgram:
    return LoadedProgram(parts, SizedCode(parts) if parts.sizes else None)


class GraphCode(nn.Module):
    """The graph of a file as code: it calls the operators, one after the other, on whatever sizes it is given.

    Traced with symbols, it gives programs for many sizes that rely on nothing that the file says of them.
    """

    def __init__(self, parts: ProgramParts) -> None:
        super().__init__()
        graph = parts.graph
        own = {entry.input: entry.tensor for entry in parts.state}
        sizes = {size.input: size for size in parts.sizes}
        arguments = [index for index in range(len(graph.inputs)) if index not in own and index not in sizes]
        place = {index: number for number, index in enumerate(arguments)}
        places = [(graph.inputs[size.input], place[size.of], size.dimension) for size in parts.sizes]
        constants = [value for value in graph.values if value.op == "constant"]
        for index, tensor in own.items():
            self.register_buffer(f"state{index}", tensor)
        for number, value in enumerate(constants):
            self.register_buffer(f"constant{number}", value.attributes["tensor"])
        roots = tuple(dict.fromkeys(graph.roots()))

        def run(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            known: dict[Any, Any] = {value: given[at].shape[dimension] for value, at, dimension in places}
            known |= {graph.inputs[index]: given[at] for index, at in place.items()}
            known |= {graph.inputs[index]: getattr(self, f"state{index}") for index in own}
            known |= {value: getattr(self, f"constant{number}") for number, value in enumerate(constants)}

            def now(size: Extent) -> Any:
                return size.expression.value(known.__getitem__)

            for value in graph.values:
                if value in known:
                    continue
                attributes = {name: with_sizes(entry, now) for name, entry in value.attributes.items()}
                operands = [known[operand] for operand in value.operands]
                known[value] = apply_rule(replace(value, attributes=MappingProxyType(attributes)), operands)
            return tuple(known[root] for root in roots)

        self.run = run

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the graph on its arguments; gives its roots, each once."""
        return self.run(*given)


class SizedCode:
    """Runs the graph of a file for all its sizes, by programs for ranges of them."""

    def __init__(self, parts: ProgramParts) -> None:
        self._graph = parts.graph
        own = {entry.input for entry in parts.state} | {size.input for size in parts.sizes}
        self._arguments = [index for index in range(len(parts.graph.inputs)) if index not in own]
        rows = []
        for size in parts.sizes:
            name = parts.graph.inputs[size.input].name
            declared = DeclaredSize(name, size.least, size.most, is_strict=False)
            rows.append(SizeRow((self._arguments.index(size.of),), size.dimension, declared))
        self.hybrid = ModuleForward(GraphCode(parts), HybridOptions(sizes=tuple(rows), whole=False))
        self.hybrid.name = parts.graph.name

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run the graph; gives its roots, each once."""
        found: Sequence[Any] = self.hybrid(*(inputs[index] for index in self._arguments))
        return found

    def __str__(self) -> str:
        return listing(self._graph)

    @property
    def plan(self) -> Any:
        """How the program is computed that was made last; one is made for the sizes of the file's text, if need be."""
        programs = [found.guarded.program for found in self.hybrid.varying]
        if not programs:
            kinds = [self._graph.inputs[index].type for index in self._arguments]
            with torch.no_grad():
                programs = [self.hybrid.program(tuple(map(_zeros, kinds)), {})]
        return programs[-1].plan

    def bound(self, arguments: Sequence[int]) -> None:
        """Give what runs the graph as it is bound now: nothing does, as sizes vary."""

    def check(self, inputs: Sequence[Any]) -> None:
        """Compare nothing: what the file says of sizes is not used."""


def _zeros(kind: Type) -> torch.Tensor:
    assert isinstance(kind, TensorType)
    return torch.zeros(tuple(map(today, kind.shape)), dtype=kind.dtype, device=kind.device)
