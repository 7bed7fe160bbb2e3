"""Answer code that reads values while it is traced, with those of this call, and say what it decided by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import ge, le
from types import MappingProxyType
from typing import Any, Protocol

import torch

from weft.ir.extents import Extent, FixedSizeError, today
from weft.ir.graph import Place, Value
from weft.ir.library import name_of
from weft.ir.types import NumberType
from weft.trace.decisions import (
    ASKED,
    MOST_ELEMENTS,
    OPERATOR_ASKS,
    ComputedNumber,
    Decision,
    Decisions,
    FoundResults,
    FoundSize,
    NumberRead,
    elements,
    exact_number,
    is_of_fractions,
    settled,
)
from weft.trace.found_sizes import LEAST, LEAST_OF_ARGUMENTS, TRACED_FROM, finding_of, lies_in, room_for
from weft.trace.interception.builtin_names import is_asked_by_name
from weft.trace.interception.capture import (
    Interception,
    Operator,
    extent_of,
    hint_of,
    is_stand_in,
    outside_tracing,
    tree_flatten,
    tree_map_only,
)
from weft.trace.interception.printed import Printed
from weft.trace.interception.refusals import refuse
from weft.trace.mask_index import with_places
from weft.trace.python_state.counters import Condition, NumberLeaf
from weft.trace.recorder import Recorder

INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
EXTREMES: Mapping[Any, Callable[..., Any]] = MappingProxyType({max: torch.sym_max, min: torch.sym_min})
# Where operators are given sizes of what they make.
SIZES_AT: Mapping[str, int] = MappingProxyType(
    {f"aten.{name}": 0 for name in ("zeros.default", "ones.default", "full.default", "empty.memory_format")}
    | {f"aten.{name}": 0 for name in ("rand.default", "randn.default", "arange.default")}
    | {f"aten.new_{name}.default": 1 for name in ("zeros", "ones", "full", "empty")}
    | {"aten.expand.default": 1, "aten.arange.start": 1, "aten.constant_pad_nd.default": 1}
)
# What Python calls for a number of its own, where no stand-in of a builtin does.
CONVERSIONS = (torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__)
MOST_READ = 16  # elements of a list that are read as numbers, each at a decision of its own


class TracesValues(Protocol):
    """What traces."""

    recorder: Recorder
    interception: Interception
    printed: Printed

    @property
    def request(self) -> Any:
        """What is traced."""

    @property
    def trace(self) -> Any:
        """What it has shown so far."""

    def real_inputs(self) -> Mapping[Value, Any]:
        """What goes in, as this call has it."""

    def of_places(self, expression: Any, *, of_arguments: bool = False) -> NumberLeaf | None:
        """An expression of nothing but numbers that go in."""

    def add_later(self, later: NumberRead, number: float, name: str, expression: Any = None) -> Any:
        """Add a number that is there in a run."""

    def add_found(self, number: int, value: Value, size: Any, read: NumberRead) -> None:
        """Add a size that is found out in a run."""

    def place(self) -> Place | None:
        """The user's line."""


class ReadValues:
    """What one trace reads of its call's values; with `flow`, numbers that it reads flow on."""

    def __init__(self, tracer: TracesValues, flow: bool, before: Sequence[Decision] | None = None) -> None:
        self._tracer = tracer
        self._flow = flow
        request, values = tracer.request, tracer.recorder.values
        self._decisions = Decisions(values, tracer.real_inputs, request.name, before, request.ends_after)
        self._parts: dict[Any, Any] = {}  # sizes that are computed, by what they are
        self._read_of: dict[Any, NumberRead] = {}  # by the symbol of such a size: the read that it is computed after

    def may_ask(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
        """Whether the values of this call may decide what a function gives."""
        return function in ASKED and (function is not torch.Tensor.tolist or arguments[0].numel() <= MOST_ELEMENTS)

    def ask(self, function: Callable[..., Any], tensor: torch.Tensor) -> Any:
        """Give what a function gives of the tensor that this call has."""
        asks, gives = ASKED[function]
        if asks is elements and tensor.dtype is not torch.bool and tensor.numel() <= MOST_READ and tensor.dim():
            # Each is a number of its own, which flows on.
            return [self.ask(torch.Tensor.tolist if row.dim() else torch.Tensor.item, row) for row in tensor.unbind()]
        value, place = self._tracer.recorder.value_of(tensor), self._tracer.place()
        self._tracer.printed.decided()
        with outside_tracing():
            is_free = function not in CONVERSIONS or is_asked_by_name()
            if self._flow and is_free and asks is exact_number and tensor.dtype is not torch.bool:
                return self._decisions.read(value, gives, self._add, place)
            return gives(*self._decisions.note([value], asks, place))

    def ask_by_operator(self, operator: Operator, values: Sequence[Value]) -> Any:
        """Give what an operator gives of the tensors that this call has."""
        self._tracer.printed.decided()
        with outside_tracing():
            return operator(*self._decisions.note(values, OPERATOR_ASKS[name_of(operator)], self._tracer.place()))

    def find(self, operator: Operator, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Let an operator find out how large its results are in this call; None of one that does something else."""
        found = finding_of(operator, arguments, keywords)
        if found is None:
            return None
        finding, given = found
        tracer, place = self._tracer, self._tracer.place()
        tracer.printed.decided()
        tensors = list(dict.fromkeys(leaf for leaf in tree_flatten((arguments, keywords))[0] if is_stand_in(leaf)))
        values = [tracer.recorder.value_of(tensor) for tensor in tensors]
        dimension, order = finding.dimension(given), finding.order(given)

        def run(*real: torch.Tensor) -> FoundResults:
            known = dict(zip(map(id, tensors), real, strict=True))
            told = tree_map_only(torch.Tensor, lambda tensor: known[id(tensor)], (arguments, keywords))
            results = operator(*told[0], **told[1])
            all_of_them = (results,) if isinstance(results, torch.Tensor) else tuple(results)
            if not all(lies_in(one, None if at else order) for at, one in enumerate(all_of_them)):
                refuse("data-dependent shape", place, detail=str(operator))
            return FoundResults(all_of_them[0].shape[dimension], tuple(one.dtype for one in all_of_them))

        with outside_tracing():
            found_results = self._decisions.count(values, run, place)
        count = found_results.count
        read, size = None, count
        if self._flow and tracer.request.finds_sizes and count >= TRACED_FROM:
            with tracer.interception.plainly():
                bound = finding.bound(given)
            read = NumberRead(-1, int)
            size = self._add_size(count, bound, read)
        with tracer.interception.plainly():
            shapes = finding.shapes(given, size)
        results = [
            tracer.interception.sized(shape, dtype, tensors[0].device, None if at else order)
            for at, (shape, dtype) in enumerate(zip(shapes, found_results.dtypes, strict=True))
        ]
        value = tracer.recorder.record_found(operator, arguments, keywords, results)
        self._decisions.found(value, FoundSize(dimension), found_results, place, read)
        return results[0] if len(results) == 1 else tuple(results)

    def _add_size(self, count: int, bound: Any, read: NumberRead) -> Any:
        """Add a size that is found, as a symbol; it grows with its bound."""
        tracer = self._tracer
        read.number = len(tracer.trace.numbers)
        largest = None if bound is None else today(extent_of(bound))
        grown = count if largest is None else -(-count * largest // max(int(hint_of(bound)), 1))
        read.room = tracer.request.rooms.get(read.number) or room_for(grown, largest)
        size, read.bounds = self._symbol(count, read.room, read)
        read.symbol = size.node.expr
        return size

    def size_of_argument(self, count: int, largest: int, name: str) -> tuple[Any, NumberRead]:
        """Add the size of an argument, as a symbol of this name."""
        tracer, read = self._tracer, NumberRead(len(self._tracer.trace.numbers), int)
        read.room = tracer.request.rooms.get(read.number) or largest
        size, read.bounds = self._symbol(count, read.room, read, name, LEAST_OF_ARGUMENTS)
        read.symbol = size.node.expr
        return size, read

    def size_is_read(self, argument: int, dimension: int, read: NumberRead) -> None:
        """Read the size of an argument, before all else."""
        [entry] = [entry for entry in self._tracer.trace.inputs if entry.argument == argument]
        self._decisions.size_of(entry.value, FoundSize(dimension), read)

    def _symbol(
        self, count: int, largest: int, read: NumberRead, name: str = "", least: int = LEAST
    ) -> tuple[Any, tuple[Condition, ...]]:
        """The symbol of the next number, a size, and within which bounds it has to be."""
        tracer, number = self._tracer, len(self._tracer.trace.numbers)
        name = name or f"found{number}"
        size = tracer.interception.found_size(count, least, largest, name)
        value = Value("input", (), NumberType("int"), name="found")
        tracer.recorder.varies = True
        tracer.recorder.numbers[size.node.expr] = tracer.interception.sizes[size.node.expr] = value
        tracer.interception.largest[value] = largest
        tracer.add_found(count, value, size, read)
        return size, (
            Condition(NumberLeaf(partial(le, least), (number,)), f"{least} <= {name}"),
            Condition(NumberLeaf(partial(ge, largest), (number,)), f"{name} <= {largest}"),
        )

    def in_slices(self, function: Callable[..., Any], arguments: Any, elements: Callable[[torch.Tensor], Any]) -> Any:
        """The arguments of an index, where slices begin and end at the numbers that tensors hold, not at tensors."""
        if function not in INDEXING:
            return arguments

        def number(part: Any) -> Any:
            is_one = isinstance(part, torch.Tensor) and is_stand_in(part) and part.dim() == 0
            if not is_one or part.is_floating_point() or elements(part) is not None:
                return part
            return self.ask(torch.Tensor.item, part)

        def plain(item: Any) -> Any:
            if not isinstance(item, slice):
                return item
            start, stop, step = map(number, (item.start, item.stop, item.step))
            begins = start is None or (type(start) is int and start == 0)
            is_prefix = function is INDEXING[0] and begins and step is None
            return slice(start, self._alone(stop) if is_prefix else stop, step)

        tensor, items, *value = arguments
        return (tensor, tuple(map(plain, items)) if isinstance(items, tuple) else plain(items), *value)

    def replaced(
        self, function: Callable[..., Any], arguments: Any, elements: Callable[[torch.Tensor], Any]
    ) -> Callable[..., Any] | None:
        """What to call in the place of a function of numbers, or of what indexes by masks."""
        if function in EXTREMES:
            return partial(self._extreme, function)
        return with_places(function, arguments, lambda mask: elements(mask) is not None)

    def _extreme(self, builtin: Callable[..., Any], numbers: Sequence[Any]) -> Any:
        """The largest or smallest of numbers, one of which was read: a number that decides nothing by which it is."""
        with outside_tracing():
            found = reduce(EXTREMES[builtin], numbers)
            is_read = isinstance(found, torch.SymInt) and self._of(found.node.expr) is not None
            if not is_read or hint_of(found) < TRACED_FROM:
                return builtin(numbers)
            same = [one for one in numbers if isinstance(one, torch.SymInt) and one.node.expr == found.node.expr]
            size = same[0] if same else self.part(found, None)
            return found if size is None else size

    def part(self, size: Any, whole: Any) -> Any:
        """The size of a part of a dimension as one that grows with each size that it is made of; None where it cannot.

        One that shrinks, is made of numbers that are no sizes, or without a `whole` is the largest or smallest of some,
        is a size of its own, which is computed of them.
        """
        if not isinstance(size, torch.SymInt):
            return size
        if not self._tracer.request.finds_sizes:
            return None
        expression, count = size.node.expr, int(hint_of(size))
        if whole is not None and self._tracer.interception.sizes and _grows(size):
            return size
        if count < TRACED_FROM:
            return int(size)
        if expression not in self._parts:
            found = self._of(expression)
            if found is None:
                return None
            leaf, read = found
            number = len(self._tracer.trace.numbers)
            bound = self._longest() if whole is None else today(extent_of(whole))
            room = self._tracer.request.rooms.get(number) or room_for(count, bound)
            self._parts[expression], bounds = self._symbol(count, room, NumberRead(number, int, room=room))
            self._read_of[self._parts[expression].node.expr] = read
            read.computed.append(ComputedNumber(number, leaf, room))
            read.bounds += bounds
        return self._parts[expression]

    def with_sizes(self, target: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of an operator, in which sizes that get smaller as others grow are sizes of their own."""
        at = SIZES_AT.get(target, len(arguments))
        if at >= len(arguments) or not self._tracer.request.finds_sizes:
            return arguments
        sizes = arguments[at]
        found = [*map(self._alone, sizes)] if isinstance(sizes, (list, tuple)) else self._alone(sizes)
        return (*arguments[:at], found, *arguments[at + 1 :])

    def _alone(self, size: Any) -> Any:
        """A size of its own in the place of one that does not grow with the sizes that it is made of."""
        if not (isinstance(size, torch.SymInt) and self._tracer.request.finds_sizes) or hint_of(size) < TRACED_FROM:
            return size
        if self._tracer.interception.sizes and _grows(size):
            return size
        found = self.part(size, None)
        return size if found is None else found

    def _longest(self) -> int:
        """The largest size of what goes in."""
        shapes = (entry.value.type.shape for entry in self._tracer.trace.inputs)
        return max((today(size) for shape in shapes for size in shape), default=0)

    def lies(self, condition: Any) -> bool:
        """Whether a part lies within what it is a part of; that it does is a condition of each call."""
        if not isinstance(condition, torch.SymBool):
            return bool(condition)
        expression = condition.node.expr
        found = self._of(expression)
        if found is None:
            return bool(condition)
        leaf, read = found
        if not leaf.value([entry.number for entry in self._tracer.trace.numbers]):
            return False
        read.inside += (Condition.of(leaf, expression),)
        return True

    def _add(self, number: float, read: NumberRead) -> Any:
        is_size = self._tracer.request.finds_sizes and len(self._decisions.made) not in self._tracer.request.plain
        if is_size and type(number) is int and number >= TRACED_FROM:
            largest = self._longest()
            return self._add_size(number, largest if largest >= number else None, read)
        read.number = len(self._tracer.trace.numbers)
        stand_in = self._tracer.add_later(read, number, "read")
        read.symbol = self._tracer.trace.numbers[-1].symbol
        return stand_in

    def leaf(self, expression: Any) -> NumberLeaf | None:
        """An expression of numbers some of which were read; nothing if it is of others."""
        found = self._of(expression)
        return None if found is None else found[0]

    def _of(self, expression: Any) -> tuple[NumberLeaf, NumberRead] | None:
        computed = {self._read_of[symbol].symbol for symbol in expression.free_symbols if symbol in self._read_of}
        read = self._decisions.last_of(expression.free_symbols | computed)
        leaf = None if read is None else self._tracer.of_places(expression, of_arguments=True)
        return None if read is None or leaf is None else (leaf, read)

    def compute(self, expression: Any) -> None:
        """Let Python compute an expression of numbers that were read as soon as a run has read them."""
        found = self._of(expression)
        if found is None:
            return
        leaf, read = found
        numbers = self._tracer.trace.numbers
        number = leaf.value([entry.number for entry in numbers])
        read.computed.append(ComputedNumber(len(numbers), leaf))
        self._tracer.add_later(NumberRead(len(numbers), type(number)), number, "computed", expression)

    def decisions(self) -> tuple[Decision, ...]:
        """What was decided by values, with what must hold of the numbers that were read; the trace is at its end."""
        self._decisions.let_go()
        for read in self._decisions.reads():
            read.conditions = (*read.bounds, *read.inside)
        interception = self._tracer.interception
        decided = [*interception.conditions(), *dict.fromkeys(interception.not_zero)]
        for expression in decided if self._decisions.reads() else ():
            found = self._of(expression)
            if found is not None:
                found[1].conditions += (Condition.of(found[0], expression),)
        return tuple(map(settled, self._decisions.made))

    def fixes_sizes(self) -> bool:
        """Whether it holds for one value of a whole number that it read, as of what is a size."""
        whole = [one for one in self._decisions.reads() if one.kind is int]
        return any(
            self._tracer.interception.has_one_value(one.symbol)
            or any(condition.is_equality for condition in one.conditions)
            for one in whole
        )

    def fixes_fractions(self) -> bool:
        """Whether it holds for one value of a fraction that was read, which hardly ever comes again."""
        read = [one for one in self._decisions.reads() if one.kind is float]
        fixed = any(self._tracer.interception.has_one_value(one.symbol) for one in read)
        return fixed or any(map(is_of_fractions, self._decisions.made))


def _grows(size: Any) -> bool:
    """Whether a size is made of sizes alone, and none of them makes it smaller."""
    try:
        extent = extent_of(size)
    except FixedSizeError:
        return False
    return not (isinstance(extent, Extent) and extent.expression.shrinks)
