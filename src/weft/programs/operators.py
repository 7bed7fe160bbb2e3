"""A graph of any origin -> whether every operator that it calls may be called from a file."""

from __future__ import annotations

import keyword
from collections.abc import Collection, Iterator

from weft.errors import UsageError
from weft.ir.calls import Call
from weft.ir.graph import Graph
from weft.ir.library import packet_name, resolve, split

SPACES = frozenset({"aten", "prims"})
"""Namespaces whose operators compute with tensors and do nothing else, apart from those that the rules below find."""

OWN = frozenset({"weft.recurrent_layer", "weft.recurrent_layer_backward", "weft.packed_lengths", "weft.check_longest"})
"""Those of Weft that compute as PyTorch's do, or refuse numbers as these do."""

WORDS = frozenset(
    {"Tensor", "List", "Optional", "number", "int", "float", "bool", "complex", "str", "Device", "Generator"}
)
"""What the types of such an operator's arguments are made of: no storage, stream, dictionary or object."""

FILE_ARGUMENTS = frozenset({"filename", "file", "filepath"})
FORBIDDEN = frozenset({"aten.from_file", "aten.save", "aten.set_data", "aten._test_warn_in_autograd", "aten._print"})


def check_operators(graph: Graph, allowed: Collection[str]) -> None:
    """Raise UsageError for the first operator that a program from a file may not call."""
    for call in calls(graph):
        problem = _problem(call, SPACES | set(allowed), frozenset(allowed))
        if problem:
            raise UsageError(
                f"it calls {call.target}, {problem}",
                why="a file may call operators of PyTorch that only compute, and those of namespaces you allow",
                fix=f"if you trust the file: load_program(path, allow=[{split(call.target)[0]!r}])",
            )


def calls(graph: Graph) -> Iterator[Call]:
    """Every call of an operator in a graph, those of view steps among them."""
    paths = [result.path for result in graph.results] + [write.path for write in graph.writes]
    for value in graph.values:
        call = value.attributes.get("call")
        if isinstance(call, Call):
            yield call
            paths += [place.path for place in call.written]
    for path in paths:
        yield from (Call(step.target, step.arguments, step.keywords) for step in path)


def _problem(call: Call, spaces: frozenset[str], trusted: frozenset[str]) -> str | None:
    space = split(call.target)[0]
    if space not in spaces and packet_name(call.target) not in OWN:
        return f"and the namespace {space} is not allowed"
    schema = resolve(call.target)._schema
    names = [argument.name for argument in schema.arguments]
    if len(call.arguments) > len(names):
        return f"which takes {len(names)} arguments, with {len(call.arguments)}"
    for name, _ in call.keywords:
        # The caller's Python code is made of these names.
        if name not in names or keyword.iskeyword(name):
            return f"which has no argument {name}"
    if space in trusted:
        return None
    if packet_name(call.target) in FORBIDDEN or FILE_ARGUMENTS & set(names):
        return "which touches files or other state of the process"
    types = [str(part.type) for part in (*schema.arguments, *schema.returns)]
    words = {word for text in types for word in text.replace("[", " ").replace("]", " ").replace(",", " ").split()}
    if words - WORDS or not any("Tensor" in text for text in types):
        return "which does not compute with tensors alone"
    return None
