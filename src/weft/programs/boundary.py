"""Apply what a program does at its edge: write into inputs, nest, mark and hand out its results as eager would.

The modes around a call are part of its signature. What a function changes inside them (`enable_grad()` under
`no_grad()`, a forward in `inference_mode`) its trace has seen: results that carry gradients, or are inference tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count, groupby
from types import MappingProxyType
from typing import Any, NoReturn

import torch
from torch.autograd.graph import increment_version

from weft.codegen.torch_functions import copy_all
from weft.ir.at_sizes import path_at_sizes
from weft.ir.extents import Extent, Polynomial
from weft.ir.graph import Graph, Value
from weft.ir.library import Hole, Path, ViewStep, resolve
from weft.ir.sharing import sources
from weft.ir.types import NumberType, TensorType
from weft.runtime.linked_results import ResultLinks
from weft.trace.interception.capture import TreeSpec, tree_unflatten
from weft.trace.python_state.counters import NumberLeaf
from weft.trace.python_state.effects import Rebound
from weft.trace.python_state.trees import REFERENCES, GivenLeaf, HeldLeaf, MadeLeaf, TensorLeaf
from weft.trace.traced import Traced

Build = Callable[[Sequence[Any]], Any]
FLAT = (list, tuple)

SECOND_TIME = "Trying to backward through the graph a second time: a step has kept this tensor, and used its graph up"


def flat_kind(structure: TreeSpec) -> type | None:
    """Tell whether a result is a list or a tuple of leaves, and which."""
    is_flat = structure.type in FLAT and all(child.is_leaf() for child in structure.children())
    return structure.type if is_flat else None


def builder(structure: TreeSpec) -> Build:
    """Give the function; tuples, lists and dictionaries are built directly, other things as their classes say."""
    return _part(structure, count()) or (lambda leaves: tree_unflatten(leaves, structure))


def _part(structure: TreeSpec, places: Iterator[int]) -> Build | None:
    if structure.is_leaf():
        place = next(places)
        return lambda leaves: leaves[place]
    flat = flat_kind(structure)
    if flat is not None:
        found = [next(places) for _ in structure.children()]
        here = slice(found[0], found[-1] + 1) if found else slice(0)
        return lambda leaves: flat(leaves[here])
    parts = [_part(child, places) for child in structure.children()]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if structure.type is tuple:
        return lambda leaves: tuple([part(leaves) for part in known])
    if structure.type is list:
        return lambda leaves: [part(leaves) for part in known]
    if structure.type is dict:
        names = tuple(structure.context)
        return lambda leaves: {name: part(leaves) for name, part in zip(names, known, strict=True)}
    return None


Places = list[tuple[Rebound, Build]]  # that a run puts tensors in, and what makes of its results what is put there


class Returned:
    """What the runs of one program leave in Python."""

    def __init__(self, traced: Traced) -> None:
        self._leaves = traced.leaves
        self._build = builder(traced.structure)
        self._places = places(traced.kept)
        self._held = traced.held
        self._made = [(leaves, builder(structure)) for leaves, structure in traced.made]
        everything = (*traced.leaves, *(leaf for entry in traced.kept for leaf in entry.leaves))
        self._is_plain = not traced.needs_containers and not any(
            isinstance(leaf, (*REFERENCES, NumberLeaf)) for leaf in everything
        )

    def apply(self, results: Sequence[Any], given: Sequence[Any], numbers: Sequence[Any]) -> Any:
        """Put in Python places what a run keeps there, and give what it returns.

        `given` are the containers among the arguments of its call, `numbers` those that it runs on.
        """
        if self._is_plain:
            keep(self._places, results)
            return self._build(filled(self._leaves, results))
        leaves = _Leaves((results, given, [slot.get() for slot in self._held], numbers), self._made)
        # Where all of them are is looked up before anything is put there: one may be inside of another.
        for entry, container, build in [(entry, entry.slot.holder(given), build) for entry, build in self._places]:
            entry.put(container, build([leaves.of(leaf) for leaf in entry.leaves]))
        return self._build([leaves.of(leaf) for leaf in self._leaves])

    def of_row(self, boundary: Boundary) -> Build | None:
        """Give what makes of a row of what was computed, and then of the run's numbers, what a call gives.

        None where something else is among it.
        """
        count, found = len({position for _, position, _, _ in boundary.results}), []
        computed: list[tuple[int, NumberLeaf]] = []
        for place, leaf in enumerate(self._leaves):
            if isinstance(leaf, TensorLeaf):
                found.append(boundary.results[leaf.index][1])
            elif isinstance(leaf, NumberLeaf) and len(leaf.places) == 1:
                found.append(count + leaf.places[0])
                if not leaf.is_itself:
                    computed.append((place, leaf))
            else:
                return None
        build = self._build

        def of(row: Sequence[Any]) -> Any:
            leaves = [row[place] for place in found]
            for place, leaf in computed:
                leaves[place] = leaf.function(leaves[place])
            return build(leaves)

        return of


class _Leaves:
    """What the leaves of one run stand for."""

    def __init__(self, parts: tuple[Sequence[Any], ...], made: Sequence[Any]) -> None:
        self._results, self._given, self._held, self._numbers = parts
        self._made = made
        self._found: dict[int, Any] = {}

    def of(self, leaf: Any) -> Any:
        """The thing."""
        if isinstance(leaf, TensorLeaf):
            return self._results[leaf.index]
        if isinstance(leaf, GivenLeaf):
            return self._given[leaf.place]
        if isinstance(leaf, HeldLeaf):
            return self._held[leaf.number]
        if isinstance(leaf, NumberLeaf):
            return leaf.value(self._numbers)
        if not isinstance(leaf, MadeLeaf):
            return leaf
        if leaf.number not in self._found:
            inside, build = self._made[leaf.number]
            self._found[leaf.number] = build([self.of(part) for part in inside])
        return self._found[leaf.number]


def places(kept: Sequence[Rebound]) -> Places:
    """The places with what makes of leaves what is put there."""
    return [(entry, builder(entry.structure)) for entry in kept]


def keep(places: Places, results: Sequence[Any]) -> None:
    """Put in Python places what a run keeps there."""
    # Where all of them are is looked up before anything is put there: one may be inside of another.
    for entry, container, build in [(entry, entry.slot.holder(), build) for entry, build in places]:
        entry.put(container, build(filled(entry.leaves, results)))


def filled(leaves: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """The leaves with tensors where they name results."""
    return [results[leaf.index] if isinstance(leaf, TensorLeaf) else leaf for leaf in leaves]


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
        made = new | {index for index, result in enumerate(graph.results) if result.path}
        self._spent = tuple(sorted(traced.spent & made))
        self._leaves = traced.flags.results
        self._tied = tuple(sorted(carrying & new)) if alone and not around.inference else ()

    def __bool__(self) -> bool:
        return bool(
            self._enables_grad
            or self._all_inference
            or self._leaves_inference
            or self._marked
            or self._tied
            or self._spent
            or self._leaves
        )

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
        for index in self._spent:
            with torch.enable_grad():
                found[index] = _Spent.apply(found[index].data, torch.zeros((), requires_grad=True))  # type: ignore[no-untyped-call]
        for index in self._leaves:
            found[index] = found[index].detach().requires_grad_()
        return found


def is_spent(tensor: torch.Tensor) -> bool:
    """Whether a step has kept a tensor whose graph its own backward has used up."""
    return tensor.grad_fn is not None and tensor.grad_fn.name() == f"{_Spent.__name__}Backward"


class _Spent(torch.autograd.Function):
    """A tensor that carries a gradient to a graph that is gone, as after a backward in eager."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        del leaf
        context.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(context: Any, *tangents: torch.Tensor) -> NoReturn:
        del context, tangents
        raise RuntimeError(SECOND_TIME)


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


class Boundary:
    """Applies a graph's writes and makes its results, from the inputs and the values that were computed."""

    def __init__(
        self,
        graph: Graph,
        carries_gradient: Sequence[bool],
        links: ResultLinks | None = None,
        views: Mapping[int, int] = MappingProxyType({}),
        sizes: Mapping[Value, tuple[int, int | None]] = MappingProxyType({}),
    ) -> None:
        """`links` tie results to others, and `views` say which are views of other ones, by number.

        `sizes` say where those are that are not found by the graph.
        """
        roots = tuple(dict.fromkeys(graph.roots()))
        position = {value: index for index, value in enumerate(roots)}
        inputs = {value: index for index, value in enumerate(graph.inputs)}
        self.writes = tuple((inputs[write.input], position[write.value], write.path) for write in graph.writes)
        # What is written, or given out, may lie in the memory of an input, which a write may change.
        shown = {result.value for result in graph.results} - set(inputs)
        held = [value for value in (*shown, *(write.value for write in graph.writes)) if _may_be_input(value, inputs)]
        copied = [position[write.value] for write in graph.writes] if held else []
        self._copied = sorted({*copied, *(position[value] for value in held)}) if graph.writes else []
        self._sizes = {**_size_places(graph), **sizes} if any(_varies(result.path) for result in graph.results) else {}
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
