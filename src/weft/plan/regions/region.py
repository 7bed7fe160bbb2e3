"""Cut a Graph into regions that kernels of Weft's own compute, between library calls, each with one value in its place.

A value that stands for a region has the op `native`, its region as attribute, the region's inputs as operands and its
outputs as a tuple. It exists between fusing and planning only; no printed or saved Graph holds one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from weft.errors import InternalError
from weft.ir.graph import Graph, Value
from weft.ir.ops import OPS
from weft.ir.recurrent import LEAST_STATE
from weft.ir.types import CPU, DTYPE_NAMES, NothingType, TensorType, TupleType, Type
from weft.plan.kernels.expression import DTYPE_BYTES
from weft.plan.regions.indices import INDEXED, SCATTERS, read_by_check
from weft.trace.lift.reductions import is_selected

FLOATS = frozenset({"f32", "f64"})
MOVES = frozenset({"reshape", "permute", "expand", "slice", "pad", "concat", "reverse"})
REDUCTIONS = frozenset({"sum", "prod", "max", "min", "any", "all", "argmax", "argmin"})
PRODUCTS = frozenset({"matmul", "convolution"})
CONVOLUTION_GRADIENTS = frozenset({"convolution_input_gradient", "convolution_weight_gradient"})
POOLING = frozenset({"max_pool", "average_pool", "max_pool_gradient", "average_pool_gradient"})
ATTENTION = frozenset({"attention", "attention_gradient"})
JOINING = SCATTERS - {"scatter"}
IMAGE_RANK, BYTES_OF_A_WORD = 4, 4
VIEWS = frozenset({"reshape", "permute", "expand", "slice", "reverse", "iota"})
LONGEST_MASK = 8  # operators that are computed once more by every region
Levels = dict[Value, tuple[bool, int]]
ANYWHERE = MOVES | REDUCTIONS | {"iota", "constant", "item"} | {name for name, op in OPS.items() if op.elementwise}


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Values that kernels compute; `inputs` come from outside, `outputs` are handed out.

    `weights` are the inputs whose elements change rarely: parameters and buffers. `stored` are values that are put into
    memory unless they cost less than that, however few read them. `loose` are the outputs that only programs of ours
    read: kernels lay them out as they like.
    """

    inputs: tuple[Value, ...]
    values: tuple[Value, ...]
    outputs: tuple[Value, ...]
    weights: frozenset[Value]
    stored: frozenset[Value] = frozenset()
    loose: frozenset[Value] = frozenset()


def find_regions(graph: Graph, weights: frozenset[Value]) -> list[Region]:
    """Cut a graph into regions, as few as library calls, and places that kernels find, allow."""
    levels, checked = _levels(graph)
    _write_last(graph, levels, checked)
    checks = frozenset().union(*checked.values())
    anywhere = _made_anywhere(graph, levels, checks)
    sink(graph, levels, checks)
    wanted = set(graph.roots())
    users = graph.users()
    found = []
    for level in sorted({level for native, level in levels.values() if native}):
        inside = {
            value
            for value in graph.values
            if levels[value] == (True, level) and value.op != "constant" and value not in anywhere
        }
        inside |= _read_of(inside, anywhere)
        values = [value for value in graph.values if value in inside]
        if all(value.op == "item" for value in values):
            continue
        read = dict.fromkeys(operand for value in values for operand in value.operands if operand not in inside)
        # A constant is written into every region that reads it; it is never handed from one to another.
        constants = [value for value in read if levels[value][0] and value.op == "constant"]
        outputs = tuple(
            value
            for value in values
            if isinstance(value.type, TensorType)
            and value not in anywhere
            and (value in wanted or any(user not in inside for user in users[value]))
        )
        if outputs:
            inputs = tuple(value for value in read if value not in constants)
            found.append(Region(inputs, (*constants, *values), outputs, weights & read.keys()))
    return found


def _made_anywhere(graph: Graph, levels: Levels, checks: Collection[Value]) -> frozenset[Value]:
    """The values that every region makes for itself: other views of inputs and constants, masks, and positions.

    Handed from one region to another they would be copied, and nobody would know any more what a mask hides.
    """
    wanted, users = set(graph.roots()), graph.users()
    lengths: dict[Value, int] = {}
    for value in graph.values:
        is_handed_on = value in checks or value in wanted or not all(levels[user][0] for user in users[value])
        made_of = [operand for operand in value.operands if operand.op not in ("input", "constant")]
        if levels[value][0] and not is_handed_on and all(operand in lengths for operand in made_of):
            length = sum(lengths[operand] for operand in made_of) + (value.op not in VIEWS)
            if value.op in VIEWS or (length <= LONGEST_MASK and _is_whole_numbers(value)):
                lengths[value] = length
    return frozenset(lengths)


def _is_whole_numbers(value: Value) -> bool:
    """Whether a value is made of others element by element, and has no fractions."""
    kind = value.type
    return OPS[value.op].elementwise and isinstance(kind, TensorType) and not kind.dtype.is_floating_point


def _read_of(values: Collection[Value], anywhere: Collection[Value]) -> set[Value]:
    """Those of some values that others are made of."""
    found: set[Value] = set()
    waiting = [operand for value in values for operand in value.operands]
    while waiting:
        value = waiting.pop()
        if value in anywhere and value not in found:
            found.add(value)
            waiting += value.operands
    return found


def _levels(graph: Graph) -> tuple[Levels, dict[Value, frozenset[Value]]]:
    """For each value whether a kernel computes it, and how many cuts come before it at most.

    Every library call is a cut. A library call that needs nothing of what kernels compute, as one that draws the mask
    of a dropout, is on the level before all others. Library calls with effects keep their order: none is on a lower
    level than the one before. What takes from or writes to places that kernels find is behind a cut of its own where
    the places could not be checked otherwise. Tells also what is so checked, with what kernels have made that the
    check reads.
    """
    levels: Levels = dict.fromkeys(graph.inputs, (False, -1))
    checked: dict[Value, frozenset[Value]] = {}
    last_effect = -1
    first = _made_of_nothing(graph)
    for value in graph.values:
        native = is_native(value, levels)
        needed = [levels[operand] for operand in value.operands if operand.op != "constant"]
        if native:
            depth = max((level + (not was_native) for was_native, level in needed), default=0)
            depth = -1 if value in first else max(depth, 0)
            if value.op in INDEXED:
                read = read_by_check(value, _before(levels, depth))
                if read is None:
                    depth += 1
                    read = read_by_check(value, _before(levels, depth))
                    assert read is not None, "all that a value is made of lies in memory there"
                checked[value] = frozenset(operand for operand in read if levels[operand][0])
        else:
            depth = max((level for _, level in needed), default=-1)
        if keeps_order(value) and not native:
            depth = last_effect = max(depth, last_effect)
        levels[value] = (native, depth)
    return levels, checked


def _before(levels: Levels, depth: int) -> Callable[[Value], bool]:
    """Whether a value lies in memory when the region of a level begins."""
    return lambda value: not levels[value][0] or levels[value][1] < depth


def _write_last(graph: Graph, levels: Levels, checked: Mapping[Value, frozenset[Value]]) -> None:
    """Put what is written behind the last cut: a call that fails must find nothing written.

    Then it is written in place, not to memory of its own and copied. What it is made of follows, where that is cheap.
    """
    users = graph.users()
    calls = [level for value, (native, level) in levels.items() if not native and value.operands]
    last = max([*calls, *(levels[value][1] - 1 for value, read in checked.items() if read)], default=-1)
    for value in {write.value for write in graph.writes}:
        native, level = levels.get(value, (False, 0))
        if native and level <= last and not users[value] and OPS[value.op].elementwise:
            levels[value] = (True, last + 1)


def _made_of_nothing(graph: Graph) -> set[Value]:
    """What library calls are given that is made of constants alone: memory that they fill."""
    free: set[Value] = set()
    for value in graph.values:
        if value.op in ANYWHERE and all(operand.op == "constant" or operand in free for operand in value.operands):
            free.add(value)
    found: set[Value] = set()
    for value in reversed(graph.values):
        if value in found or value.op in ("library", "update"):
            found.update(operand for operand in value.operands if operand in free)
    return found


def keeps_order(value: Value) -> bool:
    """Whether a value stays in order with others of its kind: calls of operators, which may draw random numbers."""
    return OPS[value.op].effect is not None or value.op in ("library", "update")


def is_native(value: Value, levels: Levels) -> bool:
    """Whether a kernel can compute a value."""
    if value.op == "item":
        return levels[value.operands[0]][0]
    if value.op == "library" and read_by_check(value, lambda operand: not levels[operand][0]) is None:
        return False
    kinds = [operand.type for operand in value.operands]
    if not all(map(_is_plain, kinds if value.op == "library" else [value.type, *kinds])):
        return False
    if value.op in PRODUCTS | POOLING | ATTENTION | {"recurrent"}:
        return _is_supported_window(value, kinds) and _is_in_vectors(value)
    if value.op in CONVOLUTION_GRADIENTS:
        return _is_supported_window(value, kinds) and _has_numbers(value, kinds)
    if value.op in INDEXED or value.op == "top_places":
        return _joins(value) and _finds(value)
    if value.op == "library":
        return True
    return value.op in ANYWHERE and not (value.op == "pad" and _crops(value))


def _is_plain(kind: Type) -> bool:
    if isinstance(kind, TupleType):
        return all(map(_is_plain, kind.items))
    return isinstance(kind, TensorType) and kind.device == CPU and DTYPE_NAMES[kind.dtype] in DTYPE_BYTES


def _is_supported_window(value: Value, kinds: Sequence[Type]) -> bool:
    first = kinds[0]
    if _multiplies_bytes(value):
        return True
    if not isinstance(first, TensorType) or DTYPE_NAMES[first.dtype] not in FLOATS:
        return False
    if value.op == "recurrent":
        return first.dtype is torch.float32
    return value.op == "matmul" or value.op in ATTENTION or first.rank == 4


def _is_in_vectors(value: Value) -> bool:
    """Whether a recurrent layer has states of float32 that are whole numbers of vectors, or is none."""
    state = value.operands[2].type if value.op == "recurrent" else None
    return state is None or (isinstance(state, TensorType) and state.shape[1] % LEAST_STATE == 0)


def _multiplies_bytes(value: Value) -> bool:
    """Whether a value is a product of integers of 8 bits, the first without a sign, as integers of 32 bits.

    Of a convolution, whose channels make whole words, and which sees nothing outside of its images.
    """
    if value.op not in PRODUCTS or any(operand.op != "cast" for operand in value.operands):
        return False
    kinds = [operand.operands[0].type for operand in value.operands]
    whole = isinstance(value.type, TensorType) and value.type.dtype is torch.int32
    if not whole or [kind.dtype for kind in kinds if isinstance(kind, TensorType)] != [torch.uint8, torch.int8]:
        return False
    return value.op == "matmul" or _is_in_words(value, kinds[1])


def _is_in_words(value: Value, weight: Type) -> bool:
    if not isinstance(weight, TensorType) or weight.rank != IMAGE_RANK or any(value.attributes["padding"]):
        return False
    return weight.size > 0 and weight.shape[1] % BYTES_OF_A_WORD == 0


def _has_numbers(value: Value, kinds: Sequence[Type]) -> bool:
    """Whether a gradient is of some numbers from some numbers."""
    return all(kind.size for kind in (value.type, *kinds) if isinstance(kind, TensorType))


def _joins(value: Value) -> bool:
    """Whether a kernel can join elements as a value does: it cannot join truth values."""
    return value.op not in JOINING or (isinstance(value.type, TensorType) and value.type.dtype is not torch.bool)


def _finds(value: Value) -> bool:
    """Whether a kernel finds the first of an order as PyTorch does."""
    kind = value.operands[0].type
    return value.op != "top_places" or (
        isinstance(kind, TensorType) and is_selected(kind.shape[-1], value.attributes["count"])
    )


def _crops(value: Value) -> bool:
    return any(extent < 0 for name in ("low", "high") for extent in value.attributes[name])


# A value that is computed before a library call and read behind it has to be stored in between. Where it costs no more
# to hand over what it is made of (a number before it is spread out, a tensor that is handed over anyway), it is made
# behind the call, in the kernel that reads it.
CHEAP_MOVES = VIEWS | {"pad"}


def sink(graph: Graph, levels: Levels, stay: Collection[Value]) -> None:
    """Move cheap values to the first level that reads them; `levels` says for each whether it is native, and where."""
    users = graph.users()
    wanted = set(graph.roots())
    for value in reversed(graph.values):
        native, level = levels[value]
        readers = users[value]
        if not native or value in wanted or value in stay or not readers or not _is_cheap(value):
            continue
        first = min(levels[reader][1] for reader in readers)
        if first <= level or not all(levels[reader][0] for reader in readers):
            continue
        handed_over = sum(
            size_of(operand)
            for operand in dict.fromkeys(value.operands)
            if levels[operand][0]
            and operand.op != "constant"
            and operand not in wanted
            and all(levels[reader][1] < first for reader in users[operand] if reader is not value)
        )
        if handed_over <= size_of(value):
            levels[value] = (True, first)


def _is_cheap(value: Value) -> bool:
    return value.op in CHEAP_MOVES or OPS[value.op].elementwise


def size_of(value: Value) -> int:
    """How many bytes a value takes."""
    kind = value.type
    return kind.size * kind.dtype.itemsize if isinstance(kind, TensorType) else 0


NATIVE = "native"


def with_regions(graph: Graph, regions: Sequence[Region]) -> Graph:
    """Put one value in the place of each region's values."""
    inside = {
        value: number for number, region in enumerate(regions) for value in region.values if value.op != "constant"
    }
    arrangement = _Arrangement(graph, regions)
    waiting = list(graph.values)
    while waiting:
        left = arrangement.place_ready(arrangement.place_checks(waiting, inside), inside)
        if len(left) == len(waiting):
            raise InternalError("regions and library calls wait for each other", why="a region was cut wrongly")
        waiting = left
    now = arrangement.now
    results = tuple(replace(result, value=now.get(result.value, result.value)) for result in graph.results)
    writes = tuple(replace(write, value=now.get(write.value, write.value)) for write in graph.writes)
    # A region holds the constants that it reads: outside only those stay that somebody there reads.
    read = {operand for value in arrangement.values for operand in value.operands}
    read.update(result.value for result in results)
    read.update(write.value for write in writes)
    values = tuple(value for value in arrangement.values if value.op != "constant" or value in read)
    return replace(graph, values=values, results=results, writes=writes)


def _is_check(value: Value) -> bool:
    return value.op == "library" and isinstance(value.type, NothingType)


class _Arrangement:
    """Values in an order in which they can be computed; library calls keep theirs."""

    def __init__(self, graph: Graph, regions: Sequence[Region]) -> None:
        self.regions = regions
        self.now: dict[Value, Value] = {}
        self.values: list[Value] = []
        self.known = set(graph.inputs)
        self.placed: set[int] = set()

    def place_checks(self, waiting: list[Value], inside: dict[Value, int]) -> list[Value]:
        """Place the checks of data that can run now, with the calls before them: before any kernel that could wait."""
        checks = [position for position, value in enumerate(waiting) if _is_check(value)]
        left: list[Value] = []
        blocked = False
        for position, value in enumerate(waiting):
            ready = self.known.issuperset(value.operands) and not (blocked and keeps_order(value))
            if value in inside or not ready or not checks or position > checks[-1]:
                blocked = blocked or (value not in inside and keeps_order(value))
                left.append(value)
            else:
                self._place(value)
        return left

    def place_ready(self, waiting: list[Value], inside: dict[Value, int]) -> list[Value]:
        """Place what has all its operands; gives what is left."""
        left: list[Value] = []
        blocked = False
        for value in waiting:
            number = inside.get(value)
            if number is not None:
                self._place_region(number)
            if number is None:
                ready = self.known.issuperset(value.operands) and not (blocked and keeps_order(value))
                blocked = blocked or (not ready and keeps_order(value))
                if ready:
                    self._place(value)
                else:
                    left.append(value)
            elif number not in self.placed:
                left.append(value)
        return left

    def _place(self, value: Value) -> None:
        operands = tuple(self.now.get(operand, operand) for operand in value.operands)
        current = value if operands == value.operands else replace(value, operands=operands)
        self.now[value] = current
        self.values.append(current)
        self.known.add(value)

    def _place_region(self, number: int) -> None:
        region = self.regions[number]
        if number in self.placed or not self.known.issuperset(region.inputs):
            return
        self.placed.add(number)
        operands = tuple(self.now.get(operand, operand) for operand in region.inputs)
        kinds = tuple(output.type for output in region.outputs)
        whole = Value(NATIVE, operands, TupleType(kinds), MappingProxyType({"region": number}), region.outputs[0].place)
        self.values.append(whole)
        for index, output in enumerate(region.outputs):
            item = Value("item", (whole,), output.type, MappingProxyType({"index": index}), output.place)
            self.values.append(item)
            self.now[output] = item
        self.known.update(region.values)
