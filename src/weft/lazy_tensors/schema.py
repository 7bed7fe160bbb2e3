"""Infer what all calls of one key do from one run of them: their results, aliases, writes and cost.

Calls have the same key if the function, the metadata of its tensors, which of them are the same tensor, its other
arguments and the grad mode are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch

from weft.codegen.torch_functions import version_of
from weft.ir.generator import generator_state
from weft.lazy_tensors.operators import ARITHMETIC, MASKED_SIZES, does_more
from weft.lazy_tensors.tensor import PLAIN, SEQUENCES, LazyTensor, TensorMetadata, flat, metadata_of
from weft.trace.interception.capture import storage_key

LITERALS = frozenset(
    (type(None), bool, int, str, torch.dtype, torch.device, torch.layout, torch.memory_format, EllipsisType)
)
NUMBERS = frozenset((int, float))


class NotQueueable(Exception):  # noqa: N818  # leaves the search for a call's key; no user ever sees it
    """A call cannot be queued."""


class CallKey:
    """One call while its key is found: tensors in order, numbers in order, and the key."""

    __slots__ = ("free", "key", "numbers", "tensors")

    def __init__(self, key: list[Any], free: bool) -> None:
        self.key = key
        self.free = free
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[Any] = []

    def scan(self, item: Any) -> None:
        """Add one argument to the key."""
        kind = item.__class__
        key = self.key
        if kind is LazyTensor:
            value = item.value
            metadata = value.metadata if value.real is None else metadata_of(value.real)
        elif kind in PLAIN:
            metadata = metadata_of(item)
        elif kind in NUMBERS and self.free:
            self.numbers.append(item)
            key.append(kind)
            return
        elif kind in LITERALS:
            key.append(kind)
            key.append(item)
            return
        elif kind is float:
            key.append(item.hex())
            return
        else:
            self._scan_many(item, kind)
            return
        if metadata is None:
            raise NotQueueable
        key.append(metadata)
        tensors = self.tensors
        for index, other in enumerate(tensors):
            if other is item:
                key.append(index)
                break
        tensors.append(item)

    def _scan_many(self, item: Any, kind: type) -> None:
        if kind is slice:
            item = (item.start, item.stop, item.step)
            if any(isinstance(bound, torch.Tensor) for bound in item):
                raise NotQueueable
        elif kind is not tuple and kind is not list and kind is not torch.Size:
            raise NotQueueable
        self.key.append(kind)
        self.key.append(len(item))
        free, self.free = self.free, False
        for entry in item:
            self.scan(entry)
        self.free = free

    def template(self, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with slots for tensors and numbers; goes the way of `scan`."""
        counts = [0, 0]

        def slotted(entry: Any, free: bool) -> Any:
            if isinstance(entry, torch.Tensor):
                counts[0] += 1
                return ArgumentSlot(counts[0] - 1)
            if free and entry.__class__ in NUMBERS:
                counts[1] += 1
                return ArgumentSlot(counts[1] - 1, number=True)
            if entry.__class__ in (tuple, list):
                return entry.__class__([slotted(inner, False) for inner in entry])
            return entry

        return [slotted(entry, self.free) for entry in args], {
            name: slotted(entry, self.free) for name, entry in kwargs.items()
        }


BYTES_A_SECOND = 5e9
OPERATIONS_A_SECOND = 50e9
MOST_NODES = 1000


class ArgumentSlot:
    """The place of a tensor, or of a number, in the arguments of a schema."""

    __slots__ = ("index", "number")

    def __init__(self, index: int, number: bool = False) -> None:
        self.index = index
        self.number = number


@dataclass(frozen=True, slots=True)
class ResultSchema:
    """One result: new, a view of an argument (`view_of`), or an argument itself (`same`)."""

    metadata: TensorMetadata | None
    same: int = -1
    view_of: int = -1
    connected: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class CallSchema:
    """What all calls of one key do."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    grad: bool
    outputs: tuple[ResultSchema, ...] = ()
    kind: type | None = None  # what holds several results; None for a single one
    returns_none: bool = False  # it returns None
    written: tuple[int, ...] = ()
    eager_only: bool = False  # it cannot be queued
    changes: bool = True  # run at once, it may do more than read its arguments
    seconds: float = 0.0
    bytes: int = 0
    made: int = 0
    views: bool = False  # some result is a view of an argument
    plain: bool = False  # it gives one new tensor, and writes nothing

    def number_count(self) -> int:
        """How many numbers each call brings."""
        return sum(1 for item in (*self.args, *self.kwargs.values()) if item.__class__ is ArgumentSlot and item.number)

    def call(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> Any:
        """Call the function with these in the slots."""
        args = [_fill(item, tensors, numbers) for item in self.args]
        if not self.kwargs:
            return self.function(*args)
        return self.function(*args, **{key: _fill(item, tensors, numbers) for key, item in self.kwargs.items()})


def _fill(item: Any, tensors: Sequence[Any], numbers: Sequence[Any]) -> Any:
    kind = item.__class__
    if kind is ArgumentSlot:
        return numbers[item.index] if item.number else tensors[item.index]
    if kind is list or kind is tuple:
        return kind([_fill(entry, tensors, numbers) for entry in item])
    return item


def infer_schema(schema: CallSchema, tensors: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Any:
    """Run a call on ordinary tensors, note in its schema what it did, and give its result."""
    before = [(version_of(tensor), tensor.detach().clone(), metadata_of(tensor)) for tensor in tensors]
    nodes = [tensor if tensor.is_leaf else tensor.grad_fn for tensor in tensors]
    random_state = generator_state()
    result = schema.call(tensors, numbers)
    drew = not torch.equal(random_state, generator_state())
    written = []
    for index, (tensor, (version, content, metadata)) in enumerate(zip(tensors, before, strict=True)):
        if metadata_of(tensor) is not metadata or metadata is None:
            schema.eager_only = True
            return result
        if version_of(tensor) != version or not _is_same(tensor.detach(), content):
            written.append(index)
    schema.written = tuple(written)
    schema.changes = bool(written)
    # A gradient that joins in through a write also joins the views of what is written, which nobody keeps a list of.
    joined = any(set(_connected(tensors[index], tensors, nodes)) - {index} for index in written)
    more = drew or joined or does_more(schema.function, schema.args, schema.kwargs) or _sized_by_mask(schema, tensors)
    schema.eager_only = more or not _describe(schema, result, tensors, nodes)
    _weigh(schema, tensors)
    return result


def _is_same(now: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether elements are what they were; NaN is what NaN was."""
    return torch.equal(now, before) or bool(((now == before) | (now.isnan() & before.isnan())).all())


def _sized_by_mask(schema: CallSchema, tensors: Sequence[torch.Tensor]) -> bool:
    if schema.function not in MASKED_SIZES:
        return False
    if schema.function in (torch.where, torch.Tensor.where):
        return len(tensors) == 1 and len(schema.args) == 1
    # The first tensor is the one that is indexed.
    return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors[1:])


def _describe(schema: CallSchema, result: Any, tensors: Sequence[torch.Tensor], nodes: Sequence[Any]) -> bool:
    """Note the results; False if one of them is of a kind that cannot be queued."""
    if result is None:
        schema.returns_none = True
        return True
    if isinstance(result, SEQUENCES):
        schema.kind = type(result)
    storages = {storage_key(tensor): index for index, tensor in reversed(list(enumerate(tensors)))}
    outputs: list[ResultSchema] = []
    fresh: set[int] = set()
    for item in flat(result):
        if not isinstance(item, torch.Tensor):
            return False
        same = next((index for index, tensor in enumerate(tensors) if tensor is item), -1)
        metadata = metadata_of(item)
        if metadata is None or (metadata.requires_grad and metadata.leaf and same < 0):
            return False
        view_of = storages.get(storage_key(item), -1) if same < 0 else -1
        if same < 0 and view_of < 0:
            if storage_key(item) in fresh:
                return False  # several new results in one piece of memory
            fresh.add(storage_key(item))
        if view_of >= 0 and sum(storage_key(tensor) == storage_key(item) for tensor in tensors) > 1:
            view_of = storages[storage_key(item)]
        outputs.append(ResultSchema(metadata, same, view_of, _connected(item, tensors, nodes)))
        schema.views = schema.views or view_of >= 0
    schema.outputs = tuple(outputs)
    schema.made = sum(1 for output in outputs if output.same < 0)
    schema.plain = schema.made == 1 == len(outputs) and schema.kind is None and not schema.views and not schema.written
    return True


def _connected(result: torch.Tensor, tensors: Sequence[torch.Tensor], nodes: Sequence[Any]) -> tuple[int, ...]:
    """Which arguments a backward from this result gives gradients to."""
    if not result.requires_grad:
        return ()
    found: set[int] = set()
    waiting: list[Any] = [result.grad_fn]
    seen: set[Any] = set()
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        here = [i for i, start in enumerate(nodes) if start is node or (variable is not None and start is variable)]
        if here and tensors[here[0]].requires_grad:
            found.update(here)
            continue
        waiting += [following for following, _ in node.next_functions]
    return tuple(sorted(found))


def _weigh(schema: CallSchema, tensors: Sequence[torch.Tensor]) -> None:
    new = [output.metadata for output in schema.outputs if output.metadata is not None and output.view_of < 0]
    made = sum(metadata.bytes for metadata in new)
    schema.bytes = sum(
        output.metadata.bytes
        for output in schema.outputs
        if output.metadata is not None and output.same < 0 > output.view_of
    )
    if schema.views and not new:
        return
    schema.seconds = (made + sum(tensor.numel() * tensor.element_size() for tensor in tensors)) / BYTES_A_SECOND
    if schema.function in ARITHMETIC and new and tensors:
        numel = sum(metadata.numel for metadata in new)
        inner = tensors[0].shape[-1] if tensors[0].dim() else 1
        if len(tensors) > 1 and tensors[1].dim() > 2:
            inner = max(inner, tensors[1].numel() // max(tensors[1].shape[0], 1))
        schema.seconds += 2 * numel * inner / OPERATIONS_A_SECOND
