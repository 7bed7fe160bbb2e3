"""Share the prefixes of recordings in a trie, and predict which operator follows.

A node stands for an operator behind all those before it: its schema, where it takes its tensors from, and so also the
metadata of all that was taken or made on the way. Programs repeat themselves: what followed at a node the last time is
tried first, and a call that is as predicted needs no key to be found by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from weft.lazy_tensors.operators import NUMBERS_FREE
from weft.lazy_tensors.schema import LITERALS, NUMBERS, CallSchema
from weft.lazy_tensors.segment_plan import SegmentPlan, SegmentStep
from weft.lazy_tensors.tensor import TensorMetadata

MOST_STEPS = 1000  # of a recording
MOST_NODES_KEPT = 100_000
TINY = 16  # elements: a counter, say, which is brought up to date at once
# Of these an equal one is as good as the very same object; nothing equals one of them and is of its class but another.
COMPARED = frozenset((int, str, torch.dtype, torch.device))
NOT_EXPECTED = -1  # no modes are written so: the call is found the usual way


@dataclass(frozen=True, slots=True, eq=False)
class NewInput:
    """A tensor that a recording takes for the first time at some node."""

    place: int  # among the arguments
    position: int  # among the tensors
    index: int
    metadata: TensorMetadata | None


class TrieNode:
    """One operator behind all those before it, and what follows."""

    __slots__ = (
        "_reached", "bytes", "code", "count", "expected", "first", "following", "function", "inputs", "made",
        "may_be_tiny", "metadata", "modes", "names", "new_inputs", "operands", "parent", "place", "plans", "predicted",
        "schema", "seconds",
    )  # fmt: skip

    def __init__(self, parent: TrieNode | None, schema: CallSchema | None, operands: tuple[int, ...]) -> None:
        self.parent = parent
        self.schema = schema
        self.operands = operands
        self.following: dict[tuple[CallSchema, tuple[int, ...]], TrieNode] = {}
        self.predicted: TrieNode | None = None  # what followed last
        self.plans: dict[tuple[int, ...], SegmentPlan] = {}  # by the results that were held when a recording ended here
        self.count = self.first = self.made = self.bytes = self.inputs = 0
        self.seconds = 0.0
        if parent is not None and schema is not None:
            self.count = parent.count + 1
            self.seconds = parent.seconds + schema.seconds
            self.bytes = parent.bytes + schema.bytes
            self.first = parent.made  # the number of its first new result
            self.made = self.first + schema.made
            self.inputs = max(parent.inputs, 0, *(~take + 1 for take in operands if take < 0))
        self.function: Callable[..., Any] | None = None if schema is None else schema.function
        self.metadata = schema.outputs[0].metadata if schema is not None and schema.plain else None
        self.modes = NOT_EXPECTED
        self.expected: tuple[Any, ...] = ()
        self.names: tuple[str, ...] = ()
        self.new_inputs: tuple[NewInput, ...] = ()
        self.may_be_tiny = False
        self.code: CodeType | None = None  # the user's that called it last
        self.place: tuple[CodeType | None, int] = (None, -1)
        self._reached: list[frozenset[int]] | None = None

    def after(self, schema: CallSchema, operands: tuple[int, ...]) -> TrieNode:
        """The node of an operator behind this one."""
        found = self.following.get((schema, operands))
        if found is None:
            found = self.following[schema, operands] = TrieNode(self, schema, operands)
            _made.append(None)
        self.predicted = found
        return found

    def expect(
        self, modes: int, args: Sequence[Any], kwargs: dict[str, Any], input_metadata: Sequence[TensorMetadata | None]
    ) -> None:
        """Note what a call of this operator comes with; `input_metadata` is that of the recording's inputs."""
        if self.modes != NOT_EXPECTED or self.count >= MOST_STEPS:  # what ends a recording goes the usual way
            return
        expected: list[Any] = []
        new_inputs: list[NewInput] = []
        position = 0
        for place, item in enumerate((*args, *kwargs.values())):
            expected_item = _expectation(item, self.function in NUMBERS_FREE)
            if expected_item is None:
                return
            if expected_item is torch.Tensor:
                expected_item = self.operands[position]
                if self._is_fresh(expected_item) and all(other.index != expected_item for other in new_inputs):
                    new_inputs.append(NewInput(place, position, expected_item, input_metadata[~expected_item]))
                position += 1
            expected.append(expected_item)
        self.expected, self.names, self.new_inputs = tuple(expected), tuple(kwargs), tuple(new_inputs)
        self.may_be_tiny = all(map(self._is_fresh, self.operands)) and all(
            new.metadata is not None and new.metadata.numel <= TINY for new in new_inputs
        )
        self.modes = modes

    def _is_fresh(self, take: int) -> bool:
        """Whether no operator before took this input."""
        # The recording may have it nevertheless: from a call that took it, and then went elsewhere.
        assert self.parent is not None
        return take < 0 and ~take >= self.parent.inputs

    def steps(self) -> list[SegmentStep]:
        """The operators up to here; made when asked for, as most recordings have the structure of an earlier one."""
        nodes: list[TrieNode] = []
        node: TrieNode | None = self
        while node is not None and node.schema is not None:
            nodes.append(node)
            node = node.parent
        steps: list[SegmentStep] = []
        numbers = 0
        for node in reversed(nodes):
            schema = node.schema
            assert schema is not None
            slots = tuple(range(numbers, numbers := numbers + schema.number_count()))
            following = iter(range(node.first, node.made))
            result_numbers = tuple(-1 if output.same >= 0 else next(following) for output in schema.outputs)
            steps.append(SegmentStep(schema, node.operands, slots, result_numbers))
        return steps

    def reached(self, index: int) -> frozenset[int]:
        """The inputs, as steps take them, that a backward from a result gives gradients to."""
        if self._reached is None:
            self._reached = _reached(self.steps())
        return self._reached[index]


_NOTHING: frozenset[int] = frozenset()
# One for each node of the trie: appending is one step of the interpreter, adding to a number is not.
_made: list[None] = []
_root = [TrieNode(None, None, ())]
_roots: dict[int, TrieNode] = {}  # of settings that are not those in force
_settings = [0]


def root() -> TrieNode:
    """The node before all operators."""
    if len(_made) > MOST_NODES_KEPT:
        _made.clear()
        _roots.clear()
        _root[0] = TrieNode(None, None, ())  # programs that never repeat themselves leave nothing worth keeping
    return _root[0]


def use_trie_of(settings: int) -> None:
    """Follow other paths from here on: under other settings the same operator may do something else."""
    _roots[_settings[0]] = _root[0]
    _settings[0] = settings
    _root[0] = _roots.get(settings) or TrieNode(None, None, ())


def is_expected(expected_item: Any, kind: type, item: Any) -> bool:
    """Whether an argument that is neither a tensor nor a free number is the one expected."""
    return (
        expected_item.__class__ is tuple
        and expected_item[0] is kind
        and (expected_item[1] is item or (kind in COMPARED and bool(expected_item[1] == item)))
    )


def _expectation(item: Any, free: bool) -> Any:
    """What to compare an argument with: `torch.Tensor` for tensors, None where only the usual way can tell."""
    kind = item.__class__
    if isinstance(item, torch.Tensor):
        return torch.Tensor
    if kind in NUMBERS and free:
        return kind
    if kind in LITERALS or kind is float or (kind is tuple and all(entry.__class__ in LITERALS for entry in item)):
        return kind, item
    return None


def _reached(steps: Iterable[SegmentStep]) -> list[frozenset[int]]:
    found: list[frozenset[int]] = []
    for step in steps:
        for number, output in zip(step.result_numbers, step.schema.outputs, strict=True):
            if number < 0:
                continue  # what is changed in place keeps what it reached: others never join in through a write
            here = _NOTHING
            for take in (step.operands[place] for place in output.connected):
                more = found[take] if take >= 0 else frozenset((take,))
                here = here | more if here and not more <= here else here or more
            found.append(here)
    return found
