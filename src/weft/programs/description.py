"""Describe a traced program, its example call and its tensors as the parts that a file holds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from weft.errors import InternalError, UnsupportedError
from weft.ir.graph import Graph, Value
from weft.ir.size_text import with_inputs
from weft.programs.parts import ProgramParts, ProgramSize, StateTensor
from weft.programs.structure import Branch, CallStructure, FixedLeaf, LeafPort, Node, describe, ports
from weft.trace.python_state.counters import NumberLeaf
from weft.trace.python_state.given_objects import FlatArguments
from weft.trace.python_state.locations import Slot
from weft.trace.python_state.trees import REFERENCES, GivenLeaf, TensorLeaf
from weft.trace.signature import memory_key
from weft.trace.traced import Traced

Ranges = Mapping[tuple[int, int], tuple[int, int | None]]  # by argument and dimension


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A call that a program was made for, and where the tensors live that the function reached by itself."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    slots: tuple[Slot, ...]
    apart: Mapping[int, Any] = field(default_factory=dict)  # objects among the arguments that stay whole
    ranges: Ranges = field(default_factory=dict)  # of sizes that users have declared
    size_numbers: frozenset[int] = frozenset()  # whole numbers among the arguments that are sizes which vary

    def flat(self) -> FlatArguments:
        """Give the arguments as leaves."""
        return FlatArguments(self.arguments, self.keywords, self.apart)

    def names(self) -> tuple[str, ...]:
        """A name of its own for each of these tensors: its path, numbered where that is taken."""
        found: dict[str, None] = {}
        for slot in self.slots:
            unique, number = slot.path, 1
            while unique in found:
                number += 1
                unique = f"{slot.path}.{number}"
            found[unique] = None
        return tuple(found)


def state_names(traced: Traced, example: Example) -> dict[int, str]:
    """Which inputs of the graph belong to the program, and their names."""
    own = (index for index, entry in enumerate(traced.inputs) if entry.argument is None)
    return dict(zip(own, example.names(), strict=True))


def named_graph(graph: Graph, traced: Traced, example: Example) -> Graph:
    """The same graph, whose inputs have the names of the arguments and tensors that they are."""
    paths, _ = pytree.tree_flatten_with_path(example.flat().with_nodes())
    names = _positional_names(example.function, len(example.arguments))
    labels: list[str] = []
    for (_, first, *rest), _ in paths:
        name = names[first.idx] if isinstance(first, pytree.SequenceKey) else str(getattr(first, "key", first))
        labels.append(name + pytree.keystr(tuple(rest)))
    arguments = [entry.argument for entry in traced.inputs] + [entry.argument for entry in traced.numbers]
    found = {index: labels[position] for index, position in enumerate(arguments) if position is not None}
    found |= {len(traced.inputs) + index: entry.slot.path for index, entry in enumerate(traced.numbers) if entry.slot}
    return _named(graph, found | state_names(traced, example))


def describe_program(graph: Graph, traced: Traced, example: Example) -> ProgramParts:
    """Describe a program without reference to the process that made it; `graph` is what `traced` became by passes."""
    flat = example.flat()
    leaves, structure = flat.leaves, flat.structure
    positions = {entry.argument: index for index, entry in enumerate(traced.inputs) if entry.argument is not None}
    numbers = enumerate(traced.numbers, len(traced.inputs))
    positions |= {entry.argument: index for index, entry in numbers if entry.argument is not None}
    names = state_names(traced, example)
    if any(entry.slot is not None or entry.later is not None for entry in traced.numbers):
        raise UnsupportedError(
            "the program counts in a Python object, which a program file cannot",
            why="a file has no Python objects: it takes tensors and returns tensors",
            fix="count in a registered buffer, or pass the number as an argument",
        )
    if any(entry.slot.given is not None for entry in traced.kept):
        raise UnsupportedError(
            "the program changes a container among its arguments, which a program file cannot",
            why="a file has no Python objects: it takes tensors and returns tensors",
            fix="return what the function puts in its arguments",
        )
    tensors = [slot.get() for slot in example.slots]
    state = tuple(StateTensor(index, names[index], tensor) for index, tensor in zip(names, tensors, strict=True))
    both = describe(structure, _argument_leaves(leaves, positions), "an argument")
    arguments = _call(example, both)
    containers = _containers(both)
    results = describe(traced.structure, [_result_leaf(leaf, containers) for leaf in traced.leaves], "the result")
    given = {index: leaves[position] for position, index in positions.items()}
    given |= {entry.input: entry.tensor for entry in state}
    return ProgramParts(
        named_graph(graph, traced, example),
        arguments,
        results,
        state,
        _memory([given[index] for index in sorted(given)], list(names)) if _relies_on_memory(traced) else None,
        torch.is_grad_enabled() and not torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        _sizes(graph, traced, example),
        tuple(dict.fromkeys(condition.text for condition in traced.size_conditions)),
    )


def _sizes(graph: Graph, traced: Traced, example: Example) -> tuple[ProgramSize, ...]:
    """The sizes that vary: which dimension of which input each is, and its range."""
    inputs = {entry.argument: index for index, entry in enumerate(traced.inputs) if entry.argument is not None}
    if example.size_numbers:
        raise UnsupportedError(
            "a number among the arguments is a size that varies, which a program file cannot hold",
            why="a file takes sizes from its tensors",
            fix="take it from a tensor: x.shape[1]",
        )
    first = len(graph.inputs) - len(traced.sizes)
    found = []
    for index, entry in enumerate(traced.sizes, first):
        least, most = example.ranges.get((entry.argument, entry.dimension), (0, None))
        found.append(ProgramSize(index, inputs[entry.argument], entry.dimension, least, most))
    return tuple(found)


def _relies_on_memory(traced: Traced) -> bool:
    return bool(traced.graph.writes) or traced.depends_on_offsets


def _memory(inputs: Sequence[Any], own: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """How the tensors that go in share memory; arguments may not share it with what belongs to the program."""
    tensors = [index for index, given in enumerate(inputs) if isinstance(given, torch.Tensor)]
    key = memory_key([inputs[index] for index in tensors])
    groups: dict[bool, set[int]] = {True: set(), False: set()}
    for index, (group, _) in zip(tensors, key, strict=True):
        if inputs[index].numel():
            groups[index in own].add(group)
    if groups[True] & groups[False]:
        raise UnsupportedError(
            "an argument shares memory with a tensor that the program keeps",
            why="a file has memory of its own, and the program writes or gives views",
            fix="make the program for an argument with memory of its own: tensor.clone()",
        )
    return tuple((int(group), int(offset)) for group, offset in key)


def _argument_leaves(leaves: Sequence[Any], positions: dict[int, int]) -> list[Node]:
    """Which input each tensor is: one that was given twice is one input."""
    first = {id(leaves[position]): index for position, index in positions.items()}
    found: list[Node] = []
    for position, leaf in enumerate(leaves):
        index = positions.get(position, first.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None)
        if isinstance(leaf, torch.Tensor):
            if index is None:
                raise InternalError(f"the tensor at position {position} of the arguments is no input of the program")
            if leaf.is_conj() or leaf.is_neg():
                raise UnsupportedError(
                    "a program made for a lazy conjugate or negative cannot be saved",
                    fix="make it for x.resolve_conj().resolve_neg()",
                )
        found.append(FixedLeaf(leaf) if index is None else LeafPort(index))
    return found


def _containers(both: Node) -> list[Node]:
    """The containers among the arguments of a call, in the order of PyTorch's trees; the call's own two are none."""

    def inside(node: Node) -> list[Node]:
        return [node, *(found for item in node.items for found in inside(item))] if isinstance(node, Branch) else []

    parts = both.items if isinstance(both, Branch) else ()
    return [found for part in parts for found in inside(part)[1:]]


def _call(example: Example, both: Node) -> CallStructure:
    """The structure of a call from that of its arguments as PyTorch flattens them: a tuple and a dictionary."""
    if not isinstance(both, Branch) or not all(isinstance(part, Branch) for part in both.items):
        raise InternalError("the arguments of a call are not a tuple and a dictionary")
    positional, keywords = (part for part in both.items if isinstance(part, Branch))
    names = _positional_names(example.function, len(positional.items))
    return CallStructure(
        tuple(zip(names, positional.items, strict=True)),
        tuple(zip(map(str, keywords.keys), keywords.items, strict=True)),
    )


def _result_leaf(leaf: Any, given: Sequence[Node]) -> Node:
    if isinstance(leaf, GivenLeaf) and not ports(found := given[leaf.place]):
        return found
    if isinstance(leaf, NumberLeaf):
        raise UnsupportedError(
            "the program gives back a number that differs from call to call, which a program file cannot",
            why="a file computes tensors; what else it returns is the same at each run",
            fix="return tensors alone, and read such a number of their sizes where the program is called: y.shape[0]",
        )
    if isinstance(leaf, REFERENCES):
        raise UnsupportedError(
            "the program gives back a container that was there before, which a program file cannot",
            why="a file has no Python objects: what it returns is made anew at each run",
            fix="return a new one: dict(batch), list(outputs)",
        )
    return LeafPort(leaf.index) if isinstance(leaf, TensorLeaf) else FixedLeaf(leaf)


def _positional_names(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    """What the function calls its positional arguments."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []  # a function written in C may not say
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)][:count]
    rest = next((one.name for one in parameters if one.kind is one.VAR_POSITIONAL), "argument")
    return (*names, *(f"{rest}[{index}]" for index in range(count - len(names))))


def _named(graph: Graph, names: dict[int, str]) -> Graph:
    """The same graph, whose inputs have these names; in a graph's text a name does not begin with a digit."""
    changed: dict[Value, Value] = {}
    for index, value in enumerate(graph.inputs):
        name = names.get(index, value.name)
        changed[value] = replace(value, name=f"_{name}" if name[:1].isdigit() else name)
    return with_inputs(graph, changed)
