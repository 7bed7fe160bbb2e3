"""Trace code once for a range of sizes, with symbols in the place of the sizes that vary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from weft.errors import UnsupportedError
from weft.ir.extents import today
from weft.ir.graph import Graph, Result, Value
from weft.ir.library import flat_results
from weft.ir.types import TensorType, TupleType, Type
from weft.trace.backward import Backward, Tangents
from weft.trace.decisions import Decision, EnoughDecidedError
from weft.trace.interception.modes import Autocast
from weft.trace.interception.refusals import is_refusal
from weft.trace.python_state.effects import Rebound
from weft.trace.python_state.impurity import without_draws, without_impure_calls
from weft.trace.request import Request
from weft.trace.size_symbols import AskedSizes
from weft.trace.traced import Gradient, Traced, leave_the_same, traced_once, traced_with_numbers

SAME_OPERATORS = {"aten._unsafe_view.default": "aten.view.default"}  # which of both it is, sizes may decide
MORE_THAN_NUMBERS = "the code takes them for more than numbers"
WRITTEN = (bool, int, float, complex)  # kinds of numbers that stand in a program
ALIAS = "aten.alias.default"  # what PyTorch makes of slices of all there is, where sizes are numbers
# Of numbers that are made as large as a tensor (a scale of 2.0) a trace knows the answer where sizes are numbers, too.
CHECKS = ("weft.refuse_if.default", "weft.refuse_unless.default")
WHOLE_SLICES = ("aten.slice.Tensor", "aten.slice_backward.default", ALIAS)


def trace_varying(request: Request, asked: AskedSizes, now: Request | None = None) -> Traced:
    """Trace code whose arguments have the largest sizes that some dimensions are to have, for all smaller ones too.

    Where values decide, they do so as in the call at hand, `now`, if that is given; the program checks it.

    PyTorch's rules say how sizes depend on one another, and its kernels how results of the largest ones lie in memory.
    Where `fixed_sizes` says that some of them are always the same number, nothing else of the result counts.
    """

    def both() -> tuple[Traced, Traced]:
        nonlocal request
        try:
            plain = traced_with_numbers(request)
        except UnsupportedError as error:
            if now is None or not is_refusal(error, "branch"):
                raise
            request, plain = _as_told(request, now)
        numbers = request.numbers - plain.fixed
        state = request.walk(*request.state.roots)
        found = traced_once(replace(request, sizes=asked, numbers=numbers, state=state))
        return traced_with_numbers(request) if request.sized.learns() else plain, found

    if request.state.asks_kinds:
        why = "the code tells by `is` or by a pattern whether a thing is True, or of a class"
        raise UnsupportedError(f"the sizes of {request.name} do not vary", why=why)
    plain, found = without_impure_calls(request.state, partial(without_draws, request.state.sources, both))
    found = replace(found, fixed=plain.fixed)
    if found.fixed_sizes or found.fixed:
        return found
    name = request.name
    if not _only_computes(found):
        raise UnsupportedError(f"the sizes of {name} do not vary", why="it does more than to compute new tensors")
    if request.expected and (found.graph.writes or found.flags.inputs):
        raise UnsupportedError(f"the sizes of {name} do not vary", why="values decide, and it writes into arguments")
    if not leave_the_same(found, plain):
        raise UnsupportedError(f"the sizes of {name} do not vary", why=MORE_THAN_NUMBERS)
    try:
        return _laid_out(found, plain)
    except OtherOperatorsError:
        why = "PyTorch runs other operators for other sizes"
        raise UnsupportedError(f"the sizes of {name} do not vary", why=why) from None


def _as_told(request: Request, now: Request) -> tuple[Request, Traced]:
    """Trace code that decides as it does in the call at hand.

    Most code decides once, before it has computed much: the trace of that call ends there, unless there is more.
    """
    for most in (1, None):
        told = _decisions(now, most)
        request = replace(request, expected=told, state=request.walk(*request.state.roots))
        try:
            return request, traced_with_numbers(request)
        except UnsupportedError as error:
            if most is None or len(told) < most or not is_refusal(error, "branch"):
                raise
    raise AssertionError("the last trace has all decisions")


def _decisions(now: Request, most: int | None) -> Sequence[Decision]:
    """The first decisions of a call, or all."""
    walked = now.walk(*now.state.roots)
    try:
        traced = traced_once(replace(now, decides=True, numbers=frozenset(), state=walked, ends_after=most))
    except EnoughDecidedError as enough:
        return enough.decisions
    return traced.decisions


def _laid_out(found: Traced, plain: Traced) -> Traced:
    """A program with symbols whose tensors lie in memory as those of one without do."""
    layout = _SameLayout()
    if found.gradient is None or plain.gradient is None:
        if found.gradient is not plain.gradient:
            raise OtherOperatorsError
        graph = layout.graph(found.graph, plain.graph)
        return replace(found, graph=graph, fixed_strides=_still_fixed(found, layout))
    layout.graph(found.gradient.graph, plain.gradient.graph)
    gradient = VaryingGradient(found.gradient, plain.gradient, layout, [entry.value for entry in found.sizes])
    fixed = _still_fixed(found, layout)
    return replace(found, graph=layout.replaced(found.graph), gradient=gradient, fixed_strides=fixed)


def _still_fixed(found: Traced, layout: SymbolicLayout) -> frozenset[Value]:
    """What has strides that are the same at any size, if the trace without symbols agrees about them."""
    pairs = ((layout(value), value) for value in found.fixed_strides)
    return frozenset(now for now, value in pairs if now.type == value.type)


def _only_computes(traced: Traced) -> bool:
    """Whether a program does nothing but compute tensors of its arguments and of weights."""
    own = any(entry.slot.given is None for entry in traced.kept)
    return not (own or traced.depends_on_offsets or traced.moving or traced.held)


class SymbolicLayout(ABC):
    """Gives values of graphs with symbols the strides that the same values have in graphs without."""

    def __init__(self) -> None:
        self._now: dict[Value, Value] = {}

    def __call__(self, value: Value) -> Value:
        """The value as it is laid out."""
        return self._now.get(value, value)

    @abstractmethod
    def fresh(self) -> SymbolicLayout:
        """One for another graph."""

    @abstractmethod
    def laid(self, kind: Type, other: Type) -> Type:
        """A type that lies in memory as the same one without symbols does."""

    @abstractmethod
    def graph(self, varying: Graph, plain: Graph) -> Graph:
        """Lay a graph out."""

    def add_inputs(self, varying: Sequence[Value], plain: Sequence[Value]) -> None:
        """Add inputs of backwards, of which numbers are in the graph with symbols alone."""
        tensors = [value for value in varying if isinstance(value.type, TensorType)]
        if len(tensors) != len(plain):
            raise OtherOperatorsError
        for value, other in zip(tensors, plain, strict=True):
            self._now[value] = replace(value, type=self.laid(value.type, other.type))

    def replaced(self, graph: Graph) -> Graph:
        """The same graph of values that are laid out already."""
        return replace(
            graph,
            inputs=tuple(map(self, graph.inputs)),
            values=tuple(map(self, graph.values)),
            results=tuple(replace(result, value=self(result.value)) for result in graph.results),
            writes=tuple(replace(write, value=self(write.value)) for write in graph.writes),
        )


class _SameLayout(SymbolicLayout):
    """Of graphs whose values are the same ones, but for slices of all there is."""

    def fresh(self) -> SymbolicLayout:
        return _SameLayout()

    def laid(self, kind: Type, other: Type) -> Type:
        if not are_alike(kind, other):
            raise OtherOperatorsError
        return with_strides(kind, other)

    def graph(self, varying: Graph, plain: Graph) -> Graph:
        """Lay a graph out; a slice of all there is lies as what it is of."""
        kinds, given = _kinds_beside(varying, plain), {*varying.roots()}
        for value in varying:
            operands = tuple(map(self, value.operands))
            kind = value.type
            other = kinds[value] if value in kinds else operands[0].type if operands else kind
            if value.op != "number" and not (value in given and lies_as(kind, other)):
                kind = with_strides(kind, other)
            self._now[value] = replace(value, type=kind, operands=operands)
        return self.replaced(varying)


class VaryingGradient(Gradient):
    """The differentiable side of a program whose sizes vary: the forward saves all of them too."""

    def __init__(self, varying: Gradient, plain: Gradient, layout: SymbolicLayout, sizes: Sequence[Value]) -> None:
        if varying.failure is not None or plain.failure is not None:
            raise OtherOperatorsError
        self._varying, self._plain, self.derivatives = varying, plain, varying.derivatives
        self._layout = layout
        self.roots = tuple(map(layout, varying.roots))
        self.wanted, self.unreached = varying.wanted, varying.unreached
        if [link.sources for link in varying.links] != [link.sources for link in plain.links]:
            raise OtherOperatorsError
        self.links, self.views, self.groups = varying.links, varying.views, varying.groups
        self._sizes = tuple(sizes)
        self._more = tuple(size for size in sizes if size not in varying.saved)
        self.saved = (*map(layout, varying.saved), *self._more)
        graph = layout.replaced(varying.graph)
        self.graph = replace(graph, results=(*graph.results, *map(Result, self._more)))

    @property
    def kept(self) -> tuple[Rebound, ...]:
        """What the backward leaves in Python."""
        return self._varying.kept

    def laid(self, value: Value) -> Value:
        """A value that was traced, as it is in the graph."""
        return self._layout(value)

    def backward(self, tangents: Tangents, link: int | None = None, autocast: Autocast = None) -> Backward:
        """The backward where some results get a gradient, however it lies in memory."""
        one, other = (
            derivatives.backward(
                tuple(
                    None if tangent is None else kind
                    for kind, tangent in zip(derivatives.full_pattern(), tangents, strict=True)
                ),
                autocast,
            )
            for derivatives in (self._varying.derivatives_of(link), self._plain.derivatives_of(link))
        )
        layout = self._layout.fresh()
        layout.add_inputs(one.graph.inputs, other.graph.inputs)
        graph = layout.graph(one.graph, other.graph)
        saved, sizes = len(one.saved), self._sizes_beside(one)
        inputs = (*graph.inputs[:saved], *sizes, *graph.inputs[saved:])
        return replace(one, graph=replace(graph, inputs=inputs))

    def saved_positions(self, backward: Backward) -> tuple[int, ...]:
        """Where the values that a backward reads stand among the saved ones, all sizes last."""
        order = [*self._varying.saved, *self._more]
        sizes = (order.index(size) for size in self._sizes_beside(backward))
        return (*self._varying.saved_positions(backward), *sizes)

    def _sizes_beside(self, backward: Backward) -> list[Value]:
        """The sizes that a backward does not read as what is saved."""
        return [size for size in self._sizes if size not in backward.saved]


class OtherOperatorsError(UnsupportedError):
    """PyTorch runs other operators where sizes are symbols."""

    def __init__(self) -> None:
        super().__init__("sizes of a program do not vary", why="PyTorch runs other operators for other sizes")


def _kinds_beside(varying: Graph, plain: Graph) -> dict[Value, Type]:
    """The types that the same values have in another graph.

    Arithmetic on sizes, slices of all there is and checks of what the other one knows are in the one alone.
    """
    others = iter((*(value for value in plain if operator_of(value) != ALIAS), None))
    other, found = next(others), {}
    for value in varying:
        if value.op == "number":
            continue
        beside = other if other is not None and _is_one_operator(value, other) else None
        if beside is not None and _have_same_numbers(value, beside):
            found[value] = beside.type
            other = next(others)
        elif not (is_whole(value) or operator_of(value) in CHECKS):  # else it may stand beside another one of its kind
            if beside is not None:
                raise UnsupportedError("sizes of a program do not vary", why=MORE_THAN_NUMBERS)
            raise OtherOperatorsError
    if other is not None:
        raise OtherOperatorsError
    return found


def _is_one_operator(value: Value, other: Value) -> bool:
    return operator_of(value) == operator_of(other) and are_alike(value.type, other.type)


def _have_same_numbers(value: Value, other: Value) -> bool:
    """Whether calls are given the same numbers, as far as they are written into both: those do not go by sizes."""
    return all(
        one == two or not (type(one) in WRITTEN and type(two) in WRITTEN)
        for one, two in zip(_numbers_of(value), _numbers_of(other), strict=False)
    )


def _numbers_of(value: Value) -> list[Any]:
    call = value.attributes.get("call")
    return [] if call is None else flat_results((call.arguments, [argument for _, argument in call.keywords]))


def operator_of(value: Value) -> str:
    """The operator of a value; of those that are one where sizes are symbols, one name."""
    call = value.attributes.get("call")
    return value.op if call is None else SAME_OPERATORS.get(call.target, str(call.target))


def are_alike(one: Type, other: Type) -> bool:
    """Whether types differ in nothing but strides."""
    return with_strides(one, other) == other


def is_whole(value: Value) -> bool:
    """Whether a value is a slice of all there is, or the gradient of one."""
    return operator_of(value) in WHOLE_SLICES and value.type == value.operands[0].type


def lies_as(kind: Type, plain: Type) -> bool:
    """Whether a tensor of symbols lies in memory as PyTorch's kernels say that the largest one does.

    Then its strides are those of eager at other sizes, too: of a part of a larger tensor they have gaps between them.
    """
    if not (isinstance(kind, TensorType) and isinstance(plain, TensorType)):
        return False
    return tuple(map(today, kind.strides)) == plain.strides


def with_strides(kind: Type, plain: Type) -> Type:
    """A type that lies in memory as another one does."""
    if isinstance(kind, TensorType) and isinstance(plain, TensorType):
        return kind if kind.strides == plain.strides else replace(kind, strides=plain.strides)
    if isinstance(kind, TupleType) and isinstance(plain, TupleType):
        return TupleType(tuple(map(with_strides, kind.items, plain.items)))
    return kind
