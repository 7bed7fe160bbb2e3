"""Join the paths of one signature to a tree of segments, in the words that native code walks by.

Paths that begin with the same segments share them. Where two paths hand on other things at the same place, both
segments are there, and who meets an outcome that only the other one has runs that.
"""

from __future__ import annotations

import ast
import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import pack
from typing import Any

import torch

from weft.codegen.calls.native_call import CallWord
from weft.codegen.calls.number_program import LARGEST, MOST_DEPTH, NumberOp
from weft.codegen.calls.path_walk import Ask, ElementKind, Given
from weft.ir.library import Operand
from weft.ir.size_text import parsed
from weft.ir.types import TensorType, row_major
from weft.runtime.binding import BoundProgram
from weft.runtime.built_in import python_address, state_of, table_of
from weft.runtime.compiled_graph import CompiledGraph, NativeParts
from weft.runtime.memory_layout import Row
from weft.runtime.new_tensors import TYPE_NUMBERS, result_rows
from weft.runtime.path_graph import PathDecision, PathGraph, PathSegment
from weft.trace.decisions import are_equal, elements, exact_number, truth
from weft.trace.python_state.counters import NumberLeaf

ELEMENTS = {
    torch.bool: ElementKind.U8,
    torch.uint8: ElementKind.U8,
    torch.int8: ElementKind.I8,
    torch.int16: ElementKind.I16,
    torch.int32: ElementKind.I32,
    torch.int64: ElementKind.I64,
    torch.float32: ElementKind.F32,
    torch.float64: ElementKind.F64,
}
FORMATS = {
    torch.bool: "?",
    torch.uint8: "B",
    torch.int8: "b",
    torch.int16: "h",
    torch.int32: "i",
    torch.int64: "q",
    torch.float32: "f",
    torch.float64: "d",
}
FROM_NUMBERS = {torch.float32: ElementKind.F32, torch.float64: ElementKind.F64, torch.int64: ElementKind.I64}
MOST_BYTES = 1 << 12  # of a list that decides
MOST_PLACES = 1 << 12


Instruction = tuple[int, int]


class UnwalkableError(Exception):
    """Native code cannot walk a path: what it asks, or what a segment does, it does not know."""


@dataclass(frozen=True, slots=True, eq=False)
class WalkedPath:
    """A path of a tree: which of the tree's inputs its own are, and what makes a call's results of what it gives.

    `row` is what the results are put in, or nothing where the one of them is given; `counts` says whether `finish`,
    where there is one, gets the numbers that were read behind the tensors.
    """

    graph: PathGraph
    inputs: tuple[int, ...]
    row: type | None
    finish: Callable[[Any, Sequence[Any]], Any] | None
    counts: bool


@dataclass(slots=True, eq=False)
class _Node:
    """A segment in the tree."""

    key: tuple[Any, ...]
    segment: PathSegment
    parts: NativeParts | None
    takes: tuple[int, ...]
    made: int  # the place of its first output
    cells: int  # of its numbers that are tensors
    stepped: int  # the place of the first number that it computes itself
    number: int  # of what it reads
    computed: dict[tuple[Any, ...], int] = field(default_factory=dict)  # places of what is computed then, by how
    works: dict[Any, dict[tuple[Any, ...], list[Instruction]]] = field(default_factory=dict)  # the same by outcome
    asked: tuple[int, ...] = ()
    following: dict[Any, list[_Node]] = field(default_factory=dict)
    programs: dict[Any, Any] = field(default_factory=dict)  # by outcome: what must be found
    last: WalkedPath | None = None
    gives: tuple[tuple[int, int], ...] = ()
    state: Any = None
    taken: Any = None


class PathTree:
    """The tree of some paths, whose inputs have the first places; `tensors` are those that are no arguments."""

    def __init__(self, paths: Sequence[WalkedPath], tensors: Mapping[int, torch.Tensor], inputs: int) -> None:
        self._tensors = tensors
        self._inputs = self._places = inputs
        self._roots: list[_Node] = []
        self.frame_bytes = 0
        self.rows: list[Row] = []
        self.kept: list[Any] = []
        self.paths = tuple(paths)
        self._chains: list[list[_Node]] = []  # the segments of each path
        for path in paths:
            self._chains.append([])
            self._add(path)
        if self._places > MOST_PLACES:
            raise UnwalkableError
        self.most_given = max(len(node.gives) for node in self._nodes(self._roots))

    @property
    def place_count(self) -> int:
        """How many places there are."""
        return self._places

    def input_kinds(self) -> list[int]:
        """The bytes of an element of each input."""
        sizes = [1] * self._inputs
        for path in self.paths:
            for place, at in enumerate(path.inputs):
                kind = path.graph.kinds[place]
                assert isinstance(kind, TensorType)
                sizes[at] = kind.dtype.itemsize
        return sizes

    def _take(self, count: int) -> int:
        first = self._places
        self._places += count
        return first

    def _add(self, path: WalkedPath) -> None:
        places = dict(enumerate(path.inputs))
        siblings = self._roots
        for segment in path.graph.segments:
            takes = tuple(places[place] for place in segment.takes)
            decision = segment.decision
            asked = None if decision is None else (decision.ask, decision.read is not None)
            of = () if decision is None else tuple(_made_or_placed(one, segment, places) for one in decision.places)
            key = (segment.run, takes, asked, of)
            node = next((one for one in siblings if one.key == key and one.last is None), None)
            if node is None:
                node = self._node(key, segment, takes)
                siblings.append(node)
            self._chains[-1].append(node)
            if node.parts is not None:
                places.update(zip(segment.gives, [node.made + at for at in node.parts.order], strict=True))
            if decision is None:
                self._end(node, path, places)
                return
            node.asked = tuple(places[one] for one in decision.places)
            if decision.read is not None:
                self._read(node, decision, places, path.graph)
            siblings = node.following.setdefault(decision.outcome, [])
            if decision.outcome not in node.programs:
                node.programs[decision.outcome] = self._expected(decision, path.graph)

    def _node(self, key: tuple[Any, ...], segment: PathSegment, takes: tuple[int, ...]) -> _Node:
        parts = None
        if segment.run is not None:
            parts = segment.run.native_parts() if isinstance(segment.run, CompiledGraph) else None
            if parts is None:
                raise UnwalkableError
        made = self._take(0 if parts is None else len(parts.types))
        cells = self._take(0 if parts is None else 2 * sum(dtype is not None for _, dtype in parts.operands))
        stepped = self._take(0 if parts is None else len(parts.steps))
        read = None if segment.decision is None else segment.decision.read
        number = self._take(0 if read is None else 1)
        return _Node(key, segment, parts, takes, made, cells, stepped, number)

    def _read(self, node: _Node, decision: PathDecision, places: dict[int, int], graph: PathGraph) -> None:
        """Say where the number is that a segment reads, and those that any of its paths computes of it then."""
        read, first = decision.read, graph.first_number
        assert read is not None
        places[first + read.number] = node.number
        kinds = dict(graph.number_places)
        works = node.works.setdefault(decision.outcome, {})
        for one in read.computed:
            numbers = {place - first: (places[place], kinds[place]) for place in kinds if place in places}
            code, is_int = _Expression(one.leaf, numbers).code()
            if is_int is not (kinds[first + one.number] is int):
                raise UnwalkableError
            key = (*code, is_int)
            if key not in node.computed:
                node.computed[key] = self._take(1)
            places[first + one.number] = node.computed[key]
            store = int(NumberOp.STORE_INT if is_int else NumberOp.STORE_FLOAT)
            works[key] = [*code, (store, node.computed[key])]
        numbers = {place - first: (places[place], kinds[place]) for place in kinds if place in places}
        stored = [instruction for work in works.values() for instruction in work]
        node.programs[decision.outcome] = table_of([*stored, *_required(read, numbers)])

    def _end(self, node: _Node, path: WalkedPath, places: Mapping[int, int]) -> None:
        graph = path.graph
        given = [(places[place], int(Given.TENSOR)) for place in graph.root_places if place >= len(path.inputs)]
        kinds = {int: Given.INT, float: Given.FLOAT}
        if path.counts:
            given += [(places[place], int(kinds[kind])) for place, kind in graph.number_places]
        node.last, node.gives = path, tuple(given)

    def _expected(self, decision: PathDecision, graph: PathGraph) -> Any:
        """What must be found for an outcome: a number, or bytes."""
        if decision.ask in (truth, are_equal):
            return int(decision.outcome)
        kind = graph.kinds[decision.places[0]]
        assert isinstance(kind, TensorType)
        return _bytes_of(decision, kind)

    def _nodes(self, siblings: Sequence[_Node]) -> Iterator[_Node]:
        for node in siblings:
            yield node
            for found in node.following.values():
                yield from self._nodes(found)

    # -- words ------------------------------------------------------------------------------------------------

    def first(self, words: Mapping[CallWord, int], made: int) -> int:
        """Write the words of all segments, where what they call is in `words`; gives where those of the first are."""
        for node in self._nodes(self._roots):
            node.state = ctypes.create_string_buffer(len(CallWord) * 8)
            node.taken = ctypes.c_uint64(0)
            self.kept += [node.state, node.taken]
        self._write(self._roots, words, made)
        return ctypes.addressof(self._roots[0].state)

    def _write(self, siblings: Sequence[_Node], words: Mapping[CallWord, int], made: int) -> None:
        for node in siblings:
            found = {**words, **self._segment_words(node), **self._question_words(node)}
            found[CallWord.TAKEN] = ctypes.addressof(node.taken)
            if node.last is not None:
                found |= self._last_words(node, made)
            node.state.raw = state_of(CallWord, found)
            for following in node.following.values():
                self._write(following, words, made)

    def _table(self, rows: Sequence[tuple[int, ...]]) -> int:
        table = table_of(rows)
        self.kept.append(table)
        return ctypes.addressof(table)

    def _segment_words(self, node: _Node) -> dict[CallWord, int]:
        parts = node.parts
        if parts is None:
            return {}
        numbers = (*node.takes, *range(node.stepped, node.stepped + len(parts.steps)))
        program = self._steps(parts, numbers)
        scalars, positions, cell = [], [], node.cells
        for place, dtype in parts.operands:
            if dtype is None:
                positions.append(-1 - node.takes[place])
                continue
            if dtype not in FROM_NUMBERS:
                raise UnwalkableError
            is_float = parts.number_kinds[place] == "float"
            if is_float and not dtype.is_floating_point:
                raise UnwalkableError
            scalars.append((numbers[place], int(is_float), int(FROM_NUMBERS[dtype]), cell, program))
            program = 0  # the first one computes all
            positions.append(-1 - (cell + 1))
            cell += 2
        bound = self._bound(node, parts, positions)
        if bound.code.content is not None or any(kind.dtype not in TYPE_NUMBERS for kind in parts.types):
            raise UnwalkableError
        results, sizes = result_rows(parts.types)
        self.kept += [results, sizes, bound.kept, bound]
        self.rows += [row for row in bound.rows if row not in self.rows]
        self.frame_bytes = max(self.frame_bytes, bound.pool.size)
        return {
            **bound.code.words(),
            CallWord.CHANGING: self._table([(-1 - position,) for position, _ in bound.code.changing]),
            CallWord.CHANGING_COUNT: len(bound.code.changing),
            CallWord.LASTING: self._table([tuple(bound.words)]),
            CallWord.LASTING_COUNT: len(bound.words),
            CallWord.RESULTS: ctypes.addressof(results),
            CallWord.OUTPUT_COUNT: len(parts.types),
            CallWord.MADE_PLACE: node.made,
            CallWord.SCALARS: self._table(scalars),
            CallWord.SCALAR_COUNT: len(scalars),
        }

    def _steps(self, parts: NativeParts, numbers: Sequence[int]) -> int:
        """The words that compute the numbers of a segment; nothing where it computes none."""
        code: list[Instruction] = []
        kinds = {place: kind == "int" for place, kind in parts.number_kinds.items()}
        first = len(numbers) - len(parts.steps)
        for at, step in enumerate(parts.steps, first):
            op, is_int = STEPS.get(step.operator), step.kind == "int"
            if op is None or len(step.arguments) != 2:
                raise UnwalkableError
            for argument in step.arguments:
                code += _pushed(argument, numbers, kinds, is_int=is_int)
            code += [(int(op), 0), *([(int(NumberOp.BOUND), 0)] if is_int else [])]
            code.append((int(NumberOp.STORE_INT if is_int else NumberOp.STORE_FLOAT), numbers[at]))
            kinds[at] = is_int
        return self._table([*code, (int(NumberOp.END), 0)]) if code else 0

    def _bound(self, node: _Node, parts: NativeParts, positions: Sequence[int]) -> BoundProgram:
        operands = [node.takes[place] if dtype is None else -1 for place, dtype in parts.operands]
        found = parts.region.walked(positions, [self._tensors.get(place) for place in operands])
        if found is None:
            raise UnwalkableError
        return found

    def _question_words(self, node: _Node) -> dict[CallWord, int]:
        decision = node.segment.decision
        if decision is None:
            return {}
        graph = self._graph_of(node)
        kind = graph.kinds[decision.places[0]]
        if (
            not isinstance(kind, TensorType)
            or kind.dtype not in ELEMENTS
            or tuple(kind.strides) != row_major(kind.shape)
        ):
            raise UnwalkableError
        size = kind.dtype.itemsize
        for length in kind.shape:
            size *= length
        if decision.ask is are_equal:
            other = graph.kinds[decision.places[1]]
            if other != kind or kind.dtype.is_floating_point:
                raise UnwalkableError
        ask = _ask_of(decision, kind)
        if ask is Ask.BYTES and size > MOST_BYTES:
            raise UnwalkableError
        places = node.asked
        rows = [(node.programs[outcome], found[0]) for outcome, found in node.following.items()]
        rows += self._rows_elsewhere(node)
        self.kept += [program for program, _ in rows]
        table = [
            (word if isinstance(word, int) else ctypes.addressof(word), ctypes.addressof(following.state))
            for word, following in rows
        ]
        return {
            CallWord.ASK: int(ask),
            CallWord.ASKED: places[0],
            CallWord.OTHER: places[-1],
            CallWord.ASKED_KIND: int(ELEMENTS[kind.dtype]),
            CallWord.ASKED_BYTES: size,
            CallWord.NUMBER: node.number,
            CallWord.NEXT: self._table(table),
            CallWord.NEXT_COUNT: len(table),
        }

    def _rows_elsewhere(self, node: _Node) -> Iterator[tuple[Any, _Node]]:
        """The outcomes that only paths have which hand on other things, and where their own segments begin."""
        own = next(number for number, chain in enumerate(self._chains) if node in chain)
        depth = self._chains[own].index(node)
        before = self.paths[own].graph.outcomes[:depth]
        known = set(node.programs)
        for path, chain in zip(self.paths, self._chains, strict=True):
            outcomes = path.graph.outcomes
            if len(outcomes) <= depth or node in chain or outcomes[:depth] != before or outcomes[depth] in known:
                continue
            decision = path.graph.segments[depth].decision
            mine = self.paths[own].graph.segments[depth].decision
            if decision is None or mine is None or decision.ask is not mine.ask:
                continue
            if decision.read is None:
                program = chain[depth].programs[outcomes[depth]]
            else:
                try:
                    program = table_of(
                        _required(decision.read, {decision.read.number: (node.number, decision.read.kind)})
                    )
                except UnwalkableError:
                    continue
            known.add(outcomes[depth])
            first = next(at for at, one in enumerate(chain) if one is not self._chains[own][at])
            yield program, chain[first]

    def _graph_of(self, node: _Node) -> PathGraph:
        """The graph of a path that has a segment."""
        return next(path.graph for path in self.paths if any(one is node.segment for one in path.graph.segments))

    def _last_words(self, node: _Node, made: int) -> dict[CallWord, int]:
        path = node.last
        assert path is not None
        makers: Mapping[type, str] = {list: "PyList_New", tuple: "PyTuple_New"}
        self.kept.append(path.finish)
        return {
            CallWord.GIVES: self._table(node.gives),
            CallWord.GIVE_COUNT: len(node.gives),
            CallWord.MADE: made,
            CallWord.NEW_ROW: 0 if path.row is None else python_address(makers[path.row]),
            CallWord.FINISH: 0 if path.finish is None else id(path.finish),
        }

    def counts(self) -> list[int]:
        """How often each path has been taken to its end."""
        return [0 if chain[-1].taken is None else int(chain[-1].taken.value) for chain in self._chains]


def _made_or_placed(place: int, segment: PathSegment, places: Mapping[int, int]) -> tuple[bool, int]:
    """Tell a tensor that is asked by which result of the segment it is, or by where it is already."""
    return (True, segment.gives.index(place)) if place in segment.gives else (False, places[place])


def _ask_of(decision: PathDecision, kind: TensorType) -> Ask:
    if decision.read is not None:
        is_whole = not kind.dtype.is_floating_point
        if (decision.read.kind is int) != is_whole or decision.ask not in (torch.Tensor.item, int, float):
            raise UnwalkableError
        return Ask.NUMBER
    found = {truth: Ask.TRUTH, are_equal: Ask.EQUAL, exact_number: Ask.BYTES, elements: Ask.BYTES}.get(decision.ask)
    if found is None:
        raise UnwalkableError
    return found


def _bytes_of(decision: PathDecision, kind: TensorType) -> Any:
    """The bytes that a tensor has where an outcome names its elements."""
    text = decision.outcome[1] if decision.ask is exact_number else decision.outcome
    try:
        found = ast.literal_eval(parsed(text))
    except (ValueError, SyntaxError):  # nan, inf
        raise UnwalkableError from None
    flat = list(_flat(found))
    if kind.dtype not in FORMATS:
        raise UnwalkableError
    try:
        given = pack(f"@{len(flat)}{FORMATS[kind.dtype]}", *flat)
    except (ValueError, OverflowError):
        raise UnwalkableError from None
    return ctypes.create_string_buffer(given, max(len(given), 1))


def _flat(thing: Any) -> Iterator[Any]:
    if isinstance(thing, list):
        for item in thing:
            yield from _flat(item)
    else:
        yield thing


# -- expressions ------------------------------------------------------------------------------------------------

BINARY: Mapping[type, NumberOp] = {
    ast.Add: NumberOp.ADD,
    ast.Sub: NumberOp.SUB,
    ast.Mult: NumberOp.MUL,
    ast.Div: NumberOp.DIV,
    ast.FloorDiv: NumberOp.FLOORDIV,
    ast.Mod: NumberOp.MOD,
}
COMPARED: Mapping[type, NumberOp] = {
    ast.Lt: NumberOp.LT,
    ast.LtE: NumberOp.LE,
    ast.Eq: NumberOp.EQ,
    ast.NotEq: NumberOp.NE,
    ast.Gt: NumberOp.GT,
    ast.GtE: NumberOp.GE,
}


def _required(read: Any, numbers: Mapping[int, tuple[int, type]]) -> list[Instruction]:
    """What requires what must hold of a number that was read."""
    found: list[Instruction] = []
    for condition in read.conditions:
        found += [*_Expression(condition.test, numbers).code()[0], (int(NumberOp.REQUIRE), 0)]
    return [*found, (int(NumberOp.END), 0)]


STEPS: Mapping[str, NumberOp] = {"add": NumberOp.ADD, "mul": NumberOp.MUL}


def _pushed(argument: Any, numbers: Sequence[int], kinds: Mapping[int, bool], *, is_int: bool) -> list[Instruction]:
    """What puts an argument of a step on the stack."""
    if not isinstance(argument, Operand):
        if is_int and (type(argument) is not int or abs(argument) > LARGEST):
            raise UnwalkableError
        return [(int(NumberOp.CONST), int.from_bytes(pack("@d", float(argument)), "little"))]
    whole = kinds[argument.index]
    if is_int and not whole:
        raise UnwalkableError
    push = (int(NumberOp.INT if whole else NumberOp.FLOAT), numbers[argument.index])
    return [push, (int(NumberOp.BOUND), 0)] if whole else [push]


class _Expression:
    """An expression of numbers, as Python computes it, for a stack of floats."""

    def __init__(self, leaf: NumberLeaf, numbers: Mapping[int, tuple[int, type]]) -> None:
        if not leaf.text:
            raise UnwalkableError
        tree = parsed(leaf.text).body
        assert isinstance(tree, ast.Lambda)
        names = [argument.arg for argument in tree.args.args]
        if any(place not in numbers for place in leaf.places):
            raise UnwalkableError
        self._numbers = {name: numbers[place] for name, place in zip(names, leaf.places, strict=True)}
        self._tree = tree.body
        self._code: list[Instruction] = []

    def code(self) -> tuple[list[Instruction], bool]:
        """The instructions, and whether they give a whole number."""
        is_int = self._emit(self._tree)
        if len(self._code) > MOST_DEPTH:
            raise UnwalkableError
        return self._code, is_int

    def _put(self, op: NumberOp, operand: int = 0) -> None:
        self._code.append((int(op), operand))

    def _emit(self, tree: Any) -> bool:
        if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float):
            self._put(NumberOp.CONST, int.from_bytes(pack("@d", float(tree.value)), "little"))
            return not isinstance(tree.value, float)
        if isinstance(tree, ast.Name) and tree.id in self._numbers:
            place, kind = self._numbers[tree.id]
            self._put(NumberOp.INT if kind is int else NumberOp.FLOAT, place)
            if kind is int:
                self._put(NumberOp.BOUND)
            return kind is int
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.Not):
            is_int = self._emit(tree.operand)
            self._put(NumberOp.NEG if isinstance(tree.op, ast.USub) else NumberOp.NOT)
            return is_int or isinstance(tree.op, ast.Not)
        if isinstance(tree, ast.BoolOp):
            op = NumberOp.AND if isinstance(tree.op, ast.And) else NumberOp.OR
            for place, value in enumerate(tree.values):
                self._emit(value)
                if place:
                    self._put(op)
            return True
        if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and type(tree.ops[0]) in COMPARED:
            self._emit(tree.left)
            self._emit(tree.comparators[0])
            self._put(COMPARED[type(tree.ops[0])])
            return True
        if isinstance(tree, ast.BinOp) and type(tree.op) in BINARY:
            return self._emit_binary(tree)
        raise UnwalkableError

    def _emit_binary(self, tree: ast.BinOp) -> bool:
        are_int = [self._emit(tree.left), self._emit(tree.right)]
        op, is_int = BINARY[type(tree.op)], all(are_int)
        if op in (NumberOp.FLOORDIV, NumberOp.MOD) and not is_int:
            raise UnwalkableError
        self._put(op)
        if op is NumberOp.DIV:
            return False
        if is_int:
            self._put(NumberOp.BOUND)
        return is_int
