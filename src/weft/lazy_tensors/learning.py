"""One run of an operator -> what every call of the same form does: how its results look, what it writes.

Calls have the same form if the function, the looks of its tensors, which of them are the same tensor, its other
arguments and the grad mode are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.codegen.torch_functions import version_of
from weft.lazy_tensors.table import ARITHMETIC, MASKED_SIZES, does_more
from weft.lazy_tensors.values import Look, look_of
from weft.trace.interception.capture import storage_key

BYTES_A_SECOND = 5e9
OPERATIONS_A_SECOND = 50e9
MOST_NODES = 1000
SEQUENCES = (tuple, list)


class Hole:
    """The place of a tensor, or of a number, in the arguments of a form."""

    __slots__ = ("index", "number")

    def __init__(self, index: int, number: bool = False) -> None:
        self.index = index
        self.number = number


@dataclass(frozen=True, slots=True)
class Output:
    """One result: new, a view of an argument (`view_of`), or an argument itself (`same`)."""

    look: Look | None
    same: int = -1
    view_of: int = -1
    connected: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Form:
    """What all calls of one form do."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    grad: bool
    outputs: tuple[Output, ...] = ()
    kind: type | None = None  # what holds several results; None for a single one
    nothing: bool = False  # it returns None
    written: tuple[int, ...] = ()
    at_once: bool = False  # it cannot be queued
    changes: bool = True  # run at once, it may do more than read its arguments
    seconds: float = 0.0
    bytes: int = 0
    made: int = 0
    views: bool = False  # some result is a view of an argument
    plain: bool = False  # it gives one new tensor, and writes nothing

    def number_count(self) -> int:
        """How many numbers each call brings."""
        return sum(1 for item in (*self.args, *self.kwargs.values()) if item.__class__ is Hole and item.number)

    def call(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> Any:
        """Call the function with these in the holes."""
        args = [_fill(item, tensors, numbers) for item in self.args]
        if not self.kwargs:
            return self.function(*args)
        return self.function(*args, **{key: _fill(item, tensors, numbers) for key, item in self.kwargs.items()})


def _fill(item: Any, tensors: Sequence[Any], numbers: Sequence[Any]) -> Any:
    kind = item.__class__
    if kind is Hole:
        return numbers[item.index] if item.number else tensors[item.index]
    if kind is list or kind is tuple:
        return kind([_fill(entry, tensors, numbers) for entry in item])
    return item


def flat(result: Any) -> list[Any]:
    """The results of a call in order."""
    return list(result) if isinstance(result, SEQUENCES) else [result]


def learn(form: Form, tensors: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Any:
    """Run a call on ordinary tensors, note in its form what it did, and give its result."""
    before = [(version_of(tensor), tensor.detach().clone(), look_of(tensor)) for tensor in tensors]
    nodes = [tensor if tensor.is_leaf else tensor.grad_fn for tensor in tensors]
    random_state = torch.get_rng_state()
    result = form.call(tensors, numbers)
    drew = not torch.equal(random_state, torch.get_rng_state())
    written = []
    for index, (tensor, (version, content, look)) in enumerate(zip(tensors, before, strict=True)):
        if look_of(tensor) is not look or look is None:
            form.at_once = True
            return result
        if version_of(tensor) != version or not _is_same(tensor.detach(), content):
            written.append(index)
    form.written = tuple(written)
    form.changes = bool(written)
    # A gradient that joins in through a write also joins the views of what is written, which nobody keeps a list of.
    joined = any(set(_connected(tensors[index], tensors, nodes)) - {index} for index in written)
    more = drew or joined or does_more(form.function, form.args, form.kwargs) or _sized_by_mask(form, tensors)
    form.at_once = more or not _describe(form, result, tensors, nodes)
    _weigh(form, tensors)
    return result


def _is_same(now: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether elements are what they were; NaN is what NaN was."""
    return torch.equal(now, before) or bool(((now == before) | (now.isnan() & before.isnan())).all())


def _sized_by_mask(form: Form, tensors: Sequence[torch.Tensor]) -> bool:
    if form.function not in MASKED_SIZES:
        return False
    if form.function in (torch.where, torch.Tensor.where):
        return len(tensors) == 1 and len(form.args) == 1
    # The first tensor is the one that is indexed.
    return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors[1:])


def _describe(form: Form, result: Any, tensors: Sequence[torch.Tensor], nodes: Sequence[Any]) -> bool:
    """Note the results; False if one of them is of a kind that cannot be queued."""
    if result is None:
        form.nothing = True
        return True
    if isinstance(result, SEQUENCES):
        form.kind = type(result)
    storages = {storage_key(tensor): index for index, tensor in reversed(list(enumerate(tensors)))}
    outputs: list[Output] = []
    fresh: set[int] = set()
    for item in flat(result):
        if not isinstance(item, torch.Tensor):
            return False
        same = next((index for index, tensor in enumerate(tensors) if tensor is item), -1)
        look = look_of(item)
        if look is None or (look.requires_grad and look.leaf and same < 0):
            return False
        view_of = storages.get(storage_key(item), -1) if same < 0 else -1
        if same < 0 and view_of < 0:
            if storage_key(item) in fresh:
                return False  # several new results in one piece of memory
            fresh.add(storage_key(item))
        if view_of >= 0 and sum(storage_key(tensor) == storage_key(item) for tensor in tensors) > 1:
            view_of = storages[storage_key(item)]
        outputs.append(Output(look, same, view_of, _connected(item, tensors, nodes)))
        form.views = form.views or view_of >= 0
    form.outputs = tuple(outputs)
    form.made = sum(1 for output in outputs if output.same < 0)
    form.plain = form.made == 1 == len(outputs) and form.kind is None and not form.views and not form.written
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


def _weigh(form: Form, tensors: Sequence[torch.Tensor]) -> None:
    looks = [output.look for output in form.outputs if output.look is not None and output.view_of < 0]
    made = sum(look.bytes for look in looks)
    form.bytes = sum(
        output.look.bytes for output in form.outputs if output.look is not None and output.same < 0 > output.view_of
    )
    if form.views and not looks:
        return
    form.seconds = (made + sum(tensor.numel() * tensor.element_size() for tensor in tensors)) / BYTES_A_SECOND
    if form.function in ARITHMETIC and looks and tensors:
        numel = sum(look.numel for look in looks)
        inner = tensors[0].shape[-1] if tensors[0].dim() else 1
        if len(tensors) > 1 and tensors[1].dim() > 2:
            inner = max(inner, tensors[1].numel() // max(tensors[1].shape[0], 1))
        form.seconds += 2 * numel * inner / OPERATIONS_A_SECOND
