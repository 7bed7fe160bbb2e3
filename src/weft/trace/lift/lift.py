"""Replace the calls of PyTorch operators in a Graph by small ops, as far as the rule table goes.

A call without a rule, or that its rule does not cover, stays as it is. So does everything on other devices and in
dtypes that no small op computes in.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import pairwise

from weft.errors import InternalError, UsageError
from weft.ir import library
from weft.ir.graph import Graph, LiftedGraph, Result, Value, Write
from weft.ir.library import Call, WrittenArgument
from weft.ir.op_types import REAL
from weft.ir.ops import may_refuse
from weft.ir.sharing import SHARING_OPS, is_negated, looked_into, looks_elsewhere, sources
from weft.ir.types import CPU, NothingType, TensorType, TupleType, Type, UnsizedType
from weft.trace.lift.arguments import Arguments, Rule, defaults
from weft.trace.lift.expression import Expression
from weft.trace.lift.torch_ops import RULES
from weft.trace.lift.writes import put_back, view_at

logger = logging.getLogger("weft.trace")


def lift(graph: Graph) -> Graph:
    """Replace calls of PyTorch operators by small ops."""
    return _Lifter(graph).run().graph


def lift_by_call(graph: Graph, kept: Collection[Value] = ()) -> LiftedGraph:
    """Replace calls as `lift` does, but for those to be kept; give what each of them became, too."""
    return _Lifter(graph, kept).run()


def refusals(graph: Graph) -> dict[Value, str]:
    """Tell why calls of a graph stay with PyTorch's operators, a sentence each."""
    lifter = _Lifter(graph)
    lifter.run()
    return lifter.refusals


def rule_of(target: str) -> Rule | None:
    """The rule of an operator; an operator that writes its first argument has that of its twin which does not."""
    if target in RULES:
        return RULES[target]
    space, operator, overload = library.split(target)
    twin = f"{space}.{operator.removesuffix('_')}.{overload}"
    if not operator.endswith("_") or twin not in RULES or defaults(twin).keys() != defaults(target).keys():
        return None
    return RULES[twin]


class _Lifter:
    """Rebuilds one Graph, value by value."""

    def __init__(self, graph: Graph, stays: Collection[Value] = ()) -> None:
        self.graph = graph
        self.stays = frozenset(stays)
        self.now: dict[Value, Value] = {value: value for value in graph.inputs}
        self.kept: dict[Value, None] = dict.fromkeys(graph.inputs)
        self.parts: dict[Value, tuple[Expression | None, ...]] = {}
        self.refusals: dict[Value, str] = {}  # why a call stays as it is
        self.roots = set(graph.roots())
        read = {operand for value in graph.values for operand in value.operands} | self.roots
        self.used = read
        self.read = {(item.operands[0], item.attributes["index"]) for item in read if item.op == "item"}
        self.rigid = _with_sources(looked_into(graph))
        # Memory that the caller comes to see, or that is looked into as memory, must stay separate from all other.
        self.own = _with_sources(self.roots) | self.rigid

    def run(self) -> LiftedGraph:
        """The rebuilt Graph."""
        ends = [len(self.kept)]
        for value in self.graph.values:
            self.now[value] = self._item(value) if value.op == "item" else self._lifted(value)
            ends.append(len(self.kept))
        every = tuple(self.kept)
        spans = zip(self.graph.values, pairwise(ends), strict=True)
        graph = replace(
            self.graph,
            values=every[len(self.graph.inputs) :],
            results=tuple(Result(self.now[result.value], result.path) for result in self.graph.results),
            writes=tuple(Write(write.input, self.now[write.value], write.path) for write in self.graph.writes),
        )
        return LiftedGraph(graph, {value: every[start:stop] for value, (start, stop) in spans}, self.now)

    def _item(self, value: Value) -> Value:
        whole = value.operands[0]
        if whole not in self.parts:
            return self._kept_as_is(value)
        found = self.parts[whole][value.attributes["index"]]
        if found is None:
            return value  # an absent result, which nothing reads
        return self._placed(value, found, fresh=not sources(whole))

    def _lifted(self, value: Value) -> Value:
        why = self._refusal(value) if value.op in ("library", "update") else ""
        results = self._results(value) if why is None else None
        if results is None:
            if why:
                self.refusals[value] = why
            return self._kept_as_is(value)
        if isinstance(value.type, TupleType):
            self.parts[value] = results
            return value
        [result] = results
        assert result is not None
        return self._placed(value, result, fresh=not sources(value))

    def _refusal(self, value: Value) -> str | None:
        """Why a call is not even tried, if it is not."""
        call: Call = value.attributes["call"]
        if value in self.stays:
            return "its rule does not say how it depends on sizes that vary"
        if rule_of(call.target) is None:
            return "there is no rule that lifts it"
        if any(isinstance(kind, UnsizedType) for kind in _kinds_of(value)):
            return "it takes or gives tensors whose sizes only a run knows"
        if value not in self.used and may_refuse(value):
            return "it is called for what it raises"  # no kernel would read at its indices
        if looks_elsewhere(call, value.operands) or (value in self.rigid and sources(value)):
            return "it reads memory as such: by offset and strides"
        if is_negated(value) or any(map(is_negated, value.operands)):
            return "it takes or gives a lazy conjugate or negative"
        tensors = [kind for kind in _kinds_of(value) if isinstance(kind, TensorType)]
        device = next((kind.device for kind in tensors if kind.device != CPU), None)
        dtype = next((kind.dtype for kind in tensors if kind.dtype not in REAL), None)
        return f"it is on {device}" if device else f"no machine code computes in {dtype}" if dtype else None

    def _results(self, value: Value) -> tuple[Expression | None, ...] | None:
        """The results of a call as expressions, or None if its rule does not cover it."""
        call: Call = value.attributes["call"]
        rule = rule_of(call.target)
        assert rule is not None
        operands = [self._operand(operand, value) for operand in value.operands]
        try:
            bases = {place.base: self._tensor(value.operands[place.base], value) for place in call.written}
            views = [view_at(bases[place.base], place.path, RULES) for place in call.written]
            fresh = results_of(value.type)[: len(results_of(value.type)) - len(bases)]
            written = _written(call)
            if len(written) > 1 and len(bases) < len(call.written):
                raise UsageError(f"{call.target} writes memory one piece after the other that it reads too")
            states = tuple(views[index].kind for index in written)
            # A rule of a twin knows of the new state alone; fresh results there are none.
            absent = (None,) * (0 if call.target in RULES else len(fresh))
            declared = (*fresh, *states)
            arguments = Arguments(call, [*operands, *views], declared[len(absent) :], value.place)
            if isinstance(value.type, TupleType) and not absent and value not in self.roots:
                arguments.unread = frozenset(at for at in range(len(fresh)) if (value, at) not in self.read)
            found = rule(arguments)
            results = (*absent, *(found if isinstance(found, tuple) else (found,)))
            if len(results) != len(declared):  # of a size that cannot occur, as code has counted them
                raise UsageError(f"{call.target} gives {len(results)} results, not {len(declared)}")
            results = tuple(
                None if result is None and at in arguments.unread else _fitted(result, kind)
                for at, (result, kind) in enumerate(zip(results, declared, strict=True))
            )
            for index, new in zip(written, results[len(fresh) :], strict=True):
                assert new is not None
                place = call.written[index]
                bases[place.base] = put_back(bases[place.base], place.path, new, RULES)
        except UsageError as error:
            # What a rule refuses, or the op table does, stays PyTorch's.
            logger.debug("%s: %s stays a library call: %s", self.graph.name, call.target, error.fact)
            self.refusals[value] = error.fact
            return None
        for check in arguments.checks:
            self._keep(check)
        return (*results[: len(fresh)], *bases.values())

    def _operand(self, operand: Value, user: Value) -> Expression | Value:
        return self._tensor(operand, user) if isinstance(operand.type, TensorType) else self.now[operand]

    def _tensor(self, operand: Value, user: Value) -> Expression:
        return Expression(self.now[operand], user.place)

    def _placed(self, value: Value, result: Expression, *, fresh: bool) -> Value:
        """A result in the place of the value that it stands for: of its layout, in memory of its own where seen."""
        assert isinstance(value.type, TensorType)
        if value in self.own and fresh and self._may_share(result.value):
            result = result.copy()
        elif value in self.roots and result.value in self.kept:
            result = result.build("reshape", shape=result.shape)
        found = result.value
        if found.type != value.type:
            found = _laid_out(found, value.type, is_new=found not in self.kept)
        if found not in self.kept and value.name:
            found = replace(found, name=value.name)
        return self._keep(found)

    def _may_share(self, value: Value) -> bool:
        """Whether a value may be memory that is there already, or a constant."""
        while value not in self.kept and value.op in SHARING_OPS and value.op != "item":
            value = value.operands[0]
        return value in self.kept or value.op == "constant"

    def _kept_as_is(self, value: Value) -> Value:
        operands = tuple(self.now[operand] for operand in value.operands)
        if any(new is not old for new, old in zip(operands, value.operands, strict=True)):
            value = replace(value, operands=operands)
        return self._keep(value)

    def _keep(self, value: Value) -> Value:
        """Add a value to the Graph, after those of its operands that are new."""
        waiting = [value]
        while waiting:
            last = waiting[-1]
            missing = [operand for operand in last.operands if operand not in self.kept]
            if missing:
                waiting += missing
            else:
                self.kept[waiting.pop()] = None
        return value


def results_of(kind: Type) -> tuple[Type, ...]:
    """The types of the results of a call, one or several."""
    if isinstance(kind, TupleType):
        return kind.items
    return (kind,)


def _kinds_of(value: Value) -> list[Type]:
    """The types of a call's operands and results."""
    return [*(operand.type for operand in value.operands), *results_of(value.type)]


def _written(call: Call) -> list[int]:
    """Which of the written places a call writes: the others it only reads, from memory that it writes elsewhere."""
    names = list(defaults(call.target))
    given = {**dict(zip(names, call.arguments, strict=False)), **dict(call.keywords)}
    found = [given.get(name) for name in library.written_arguments(call.target)]
    entries = [entry for argument in found for entry in (argument if isinstance(argument, tuple) else (argument,))]
    return [entry.index for entry in entries if isinstance(entry, WrittenArgument)]


def _fitted(result: Expression | None, declared: Type) -> Expression | None:
    """A result in its declared dtype and shape."""
    if isinstance(declared, NothingType):
        return None
    assert isinstance(declared, TensorType)
    if result is None:
        raise InternalError(f"a rule leaves out a result of type {declared}")
    return result.cast(declared.dtype).expand(declared.shape)


def _laid_out(value: Value, kind: TensorType, *, is_new: bool) -> Value:
    """A value with the declared strides: itself if nobody has seen it yet, else a copy."""
    if is_new and value.op not in ("item", "constant"):
        return replace(value, type=kind)
    return Expression(value, value.place).build("reshape", shape=kind.shape, type=kind).value


def _with_sources(values: Iterator[Value] | set[Value]) -> set[Value]:
    """Values and all that they may be views of."""
    found: set[Value] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += sources(value)
    return found
