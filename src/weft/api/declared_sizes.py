"""Read what users declare of sizes: names and ranges by argument and dimension, and the marks of torch._dynamo.

`sizes={"x": {0: "batch", 1: ("length", 1, 512)}}` names the sizes of an argument `x`; those of one name are equal, and
a range is a promise. A size in a list, a dict or an object is found by its place there: `{"batch": {"ids": {1: ...}}}`.
`torch._dynamo.mark_dynamic(x, 1, min=1, max=512)` says the same of one tensor, without a name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn

import torch

from weft.errors import UsageError
from weft.trace.interception.capture import leaf_paths
from weft.trace.python_state.tensor_facts import SizeMark, size_marks
from weft.trace.size_ties import SizeSpot

EXAMPLE = 'sizes={"x": {0: "batch", 1: ("length", 1, 512)}}'
Path = tuple[Any, ...]  # the name of an argument, and the way to a tensor inside it


@dataclass(frozen=True, slots=True)
class DeclaredSize:
    """A size that varies: its name, or none, and the range that is promised; `is_strict`: somebody relies on it."""

    name: str | None
    least: int = 0
    most: int | None = None
    is_strict: bool = True

    @property
    def range(self) -> str:
        """The range as a sentence has it."""
        return f"at least {self.least}" if self.most is None else f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class CallSizes:
    """What is declared of the sizes of one call: those that vary, and those that do not."""

    free: Mapping[SizeSpot, DeclaredSize] = field(default_factory=dict)
    fixed: frozenset[SizeSpot] = frozenset()

    @property
    def names(self) -> dict[SizeSpot, str]:
        """The names of sizes that have one."""
        return {spot: size.name for spot, size in self.free.items() if size.name is not None}

    @property
    def separate(self) -> dict[SizeSpot, str]:
        """What tells sizes apart that are declared: equal names, or each by itself."""
        return {spot: size.name or f"{spot}" for spot, size in self.free.items()}

    def most(self, spots: Sequence[SizeSpot]) -> int | None:
        """The largest size that is promised of what is one size."""
        found = [size.most for spot in spots if (size := self.free.get(spot)) is not None and size.most is not None]
        return min(found, default=None)


NONE_DECLARED = CallSizes()


@dataclass(frozen=True, slots=True)
class SizeRow:
    """A dimension of an argument, or of a tensor inside it, with its size; no size where it does not vary."""

    path: Path
    dimension: int
    size: DeclaredSize | None


SizeRows = tuple[SizeRow, ...]


def size_rows(sizes: Any) -> SizeRows:
    """Read `sizes=`, or raise UsageError; ranges of one name hold for all sizes of that name."""
    if sizes is None:
        return ()
    if isinstance(sizes, tuple) and all(isinstance(row, SizeRow) for row in sizes):
        return sizes  # read before: options that are copied
    if not isinstance(sizes, Mapping):
        _refuse(f"sizes is a {type(sizes).__name__}", "it is a dict: arguments by name, dimensions by number")
    rows = [row for name, inside in sizes.items() for row in _rows((name,), inside)]
    ranges: dict[str, DeclaredSize] = {}
    for row in rows:
        size = row.size
        if size is None or size.name is None or (size.least, size.most) == (0, None):
            continue
        before = ranges.setdefault(size.name, size)
        if before != size:
            _refuse(
                f"{size.name} is {before.range} and {size.range}", "sizes of one name are equal, so they have one range"
            )
    return tuple(
        row
        if row.size is None or row.size.name is None
        else SizeRow(row.path, row.dimension, ranges.get(row.size.name, row.size))
        for row in rows
    )


def _rows(path: Path, inside: Any) -> Iterator[SizeRow]:
    if isinstance(inside, (list, tuple)):
        inside = dict(enumerate(inside))
    if not isinstance(inside, Mapping):
        _refuse(f"the sizes of {path_text(path)} are {inside!r}", "a dict gives the dimensions their names")
    for place, found in inside.items():
        if isinstance(found, (Mapping, list)):
            yield from _rows((*path, place), found)
        elif isinstance(place, int) and not isinstance(place, bool):
            yield SizeRow(path, place, _size(path, place, found))
        elif found is not None:
            _refuse(
                f"{path_text(path)} has the dimension {place!r}", "dimensions are numbers, from 0 on or from -1 down"
            )


def _size(path: Path, place: int, given: Any) -> DeclaredSize | None:
    """The size of a dimension: None, a name, a name with a range, or a Dim of torch.export."""
    where = f"dim {place} of {path_text(path)}"
    if given is None:
        return None
    if isinstance(given, str):
        given = (given,)
    elif hasattr(given, "__name__") and hasattr(given, "min") and hasattr(given, "max"):  # torch.export.Dim
        most = given.max if type(given.max) is int else None
        given = (given.__name__, int(given.min), most)
    if not isinstance(given, tuple) or len(given) not in (1, 3):
        _refuse(f"the size of {where} is {given!r}", "it is a name, or a name with the least and the largest size")
    name, least, most = given if len(given) == 3 else (*given, 0, None)
    if not isinstance(name, str) or not name.isidentifier():
        _refuse(f"the size of {where} is called {name!r}", "a name is a word, as a variable's is")
    numbers = [bound for bound in (least, most) if bound is not None or bound is least]
    if not all(type(bound) is int and bound >= 0 for bound in numbers) or (most is not None and most < least):
        _refuse(f"{name} is from {least!r} to {most!r}", "a range goes from a whole number to one that is not smaller")
    return DeclaredSize(name, least, most)


def _refuse(fact: str, why: str) -> NoReturn:
    raise UsageError(fact, why=why, fix=EXAMPLE)


def path_text(path: Path) -> str:
    """A place among arguments as Python writes it: `batch['ids']`."""
    first, *rest = path
    return str(first) + "".join(f"[{key!r}]" for key in rest)


class DeclaredSizes:
    """What is declared of the sizes of one object's calls, looked up by how their arguments nest."""

    def __init__(self, rows: SizeRows) -> None:
        self.rows = rows
        self._found: dict[Any, list[tuple[SizeRow, int, str]]] = {}

    def of(self, structure: Any, nodes: Any, leaves: Sequence[Any], names: Sequence[str]) -> CallSizes:
        """What holds for a call, or UsageError where it does not; `nodes` are its arguments, `names` what they are."""
        found = self._found.get(structure)
        if found is None:
            found = self._found[structure] = [*self._places(nodes(), names)]
        free: dict[SizeSpot, DeclaredSize] = {}
        fixed: set[SizeSpot] = set()
        equal: dict[str, tuple[int, str]] = {}
        for row, place, label in found:
            leaf = leaves[place]
            if leaf is None:
                continue  # an argument that this call does without
            dimension, number = _dimension(row, leaf, label)
            if row.size is None:
                fixed.add((place, dimension))
                continue
            _check_range(row.size, number, f"dim {dimension} of {label}", row.size.name or "it")
            if row.size.name is not None:
                where = f"dim {dimension} of {label}"
                before = equal.setdefault(row.size.name, (number, where))
                if before[0] != number:
                    raise UsageError(
                        f"{row.size.name} is {before[0]} ({before[1]}) and {number} ({where})",
                        why="sizes that sizes= gives one name are equal",
                        fix=f"pass tensors whose {row.size.name} is equal, or give the two sizes different names",
                    )
            free[place, dimension] = row.size
        return CallSizes(free, frozenset(fixed))

    def _places(self, nodes: Any, names: Sequence[str]) -> Iterator[tuple[SizeRow, int, str]]:
        """The leaves that are spoken of, with what each is called."""
        paths = [*leaf_paths(nodes)]
        for row in self.rows:
            matching = [(place, path) for place, path in enumerate(paths) if row.path in _names_of(path, names)]
            given = [path for path in paths if row.path[:1] in (found[:1] for found in _names_of(path, names))]
            if not matching and len(row.path) > 1 and any(len(path) > 2 for path in given):
                there = ", ".join(path_text(_names_of(path, names)[0]) for path in given[:8])
                _refuse(f"there is no {path_text(row.path)} among the arguments", f"there are {there}")
            if not matching and len(row.path) == 1 and given:
                there = ", ".join(path_text(_names_of(path, names)[0]) for path in given[:8])
                _refuse(f"{path_text(row.path)} is no tensor", f"it holds {there}: say which of them is meant")
            for place, path in matching:
                yield row, place, path_text(_names_of(path, names)[0])


def refuse_unknown(rows: SizeRows, function: Callable[..., Any], more: Sequence[str] = ()) -> None:
    """Raise UsageError where an argument is spoken of that a function does not have."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    names = [*(name for name in parameters if name != "self"), *more]
    for row in rows:
        if isinstance(row.path[0], str) and row.path[0] not in names:
            there = ", ".join(names) or "none"
            _refuse(f"sizes= speaks of an argument {row.path[0]}, and there is none", f"the arguments are {there}")


def positional_names(function: Callable[..., Any], count: int) -> list[str]:
    """Name the first `count` arguments of a function as it does, as far as it says."""
    try:
        parameters = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    except (TypeError, ValueError):
        return []
    names = [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    places = [one.kind for one in parameters]
    if inspect.Parameter.VAR_POSITIONAL not in places:
        return names
    rest = places.index(inspect.Parameter.VAR_POSITIONAL)
    return [*names[:rest], *(f"{parameters[rest].name}[{index}]" for index in range(count - rest))]


def _names_of(path: Path, names: Sequence[str]) -> tuple[Path, ...]:
    """What a leaf may be called: its argument's name or number, then where it is in there."""
    by_keyword, first, *rest = path
    if by_keyword:
        return ((first, *rest),)
    if first >= len(names):
        return ((first, *rest),)
    name, _, place = names[first].partition("[")  # of several in one: `rest[0]`
    own: Path = (name, int(place[:-1])) if place else (name,)
    return ((*own, *rest), (first, *rest))


def _dimension(row: SizeRow, leaf: Any, label: str) -> tuple[int, int]:
    """The dimension, counted from the front, and its size; a whole number is one size."""
    if type(leaf) is int and row.dimension == 0:
        return 0, leaf
    if not isinstance(leaf, torch.Tensor):
        _refuse(
            f"{label} is a {type(leaf).__name__}, and sizes= says that it is a tensor", "sizes are those of tensors"
        )
    rank = leaf.dim()
    if not -rank <= row.dimension < rank:
        _refuse(f"{label} has {rank} dimensions, and sizes= speaks of dim {row.dimension}", "there is none such")
    dimension = row.dimension % rank
    return dimension, leaf.shape[dimension]


def _check_range(size: DeclaredSize, number: int, where: str, name: str) -> None:
    if number >= size.least and (size.most is None or number <= size.most):
        return
    promise = f"sizes= promises {size.range}" if size.name is not None else f"mark_dynamic promises {size.range}"
    wider = f"({size.name!r}, {min(size.least, number)}, {max(size.most or number, number)})"
    raise UsageError(
        f"{name} is {number} ({where}), and {promise}",
        why="programs for many sizes are made for the range that is promised",
        fix=f"pass sizes in this range, or promise another one: {wider}"
        if size.name is not None
        else "pass sizes in this range, or mark the tensor with another one",
    )


def marked(leaves: Sequence[Any], declared: CallSizes) -> CallSizes:
    """What is declared, and what marks on the tensors say beside."""
    free, fixed = dict(declared.free), set(declared.fixed)
    for place, leaf in enumerate(leaves):
        marks = size_marks(leaf) if isinstance(leaf, torch.Tensor) else ()
        for mark in marks:
            spot = (place, mark.dimension)
            if spot in free or spot in fixed:
                continue
            if not mark.varies:
                fixed.add(spot)
                continue
            size = _marked_size(mark)
            _check_range(size, leaf.shape[mark.dimension], f"dim {mark.dimension} of tensor {place}", "a size")
            free[spot] = size
    return CallSizes(MappingProxyType(free), frozenset(fixed)) if free or fixed else NONE_DECLARED


def _marked_size(mark: SizeMark) -> DeclaredSize:
    return DeclaredSize(None, mark.least, mark.most, is_strict=mark.is_strict)
