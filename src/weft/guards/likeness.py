"""Say what a call looks like, as words that native code compares: names, containers, constants, tensors, modes.

The items of a call are its arguments, by position and then by name, and behind them what is in containers of one
another. Its leaves are the items that are no containers, in the order of PyTorch's trees.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import torch

from weft.codegen.calls.native_call import CallWord
from weft.codegen.torch_functions import mode_functions
from weft.guards.words import MOST_DIMENSIONS
from weft.ir.types import order_of
from weft.runtime.built_in import table_of
from weft.runtime.memory_layout import (
    EVERY_BIT,
    GradLayout,
    grad_code,
    grad_layout,
    object_layout,
    tensor_masks,
    word,
)
from weft.trace.interception.modes import autocast_now, forward_levels, has_function_modes
from weft.trace.signature import same_tensors

PLAIN_ARGUMENTS = (torch.Tensor, torch.nn.Parameter)
CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.memory_format, torch.layout)
ROWS = (tuple, torch.Size)  # whose items stay
CONTAINERS = (*ROWS, list, dict)
MOST_ITEMS = 1 << 10
MOST_COMPARED = 32  # tensors of which each two are compared natively
SMALLEST = 2  # of a size that varies
NOTHING: Mapping[int, Collection[int]] = MappingProxyType({})


class Likeness:
    """What a call looks like: its words, and what of it has none. It keeps no argument of the call but constants.

    `leaves` and `containers` are places among the items; `tensors` are places among the leaves. `size_words` are of the
    tensors that vary: places among the items, and offsets in these of words that are not compared.
    """

    def __init__(
        self,
        items: CallItems,
        *,
        offsets: bool,
        varying: Mapping[int, Collection[int]] = NOTHING,
        numbers: Collection[int] = (),
    ) -> None:
        """`offsets` says that it matters where in their memory tensors start.

        Of leaves that are `varying`, some dimensions have any size of 2 or more: whoever runs such a call compares
        them, and strides. Leaves that are `numbers` may be any of their class.
        """
        self.leaves, self.containers = items.leaves, tuple(items.containers)
        leaves = [items.things[place] for place in self.leaves]
        self.tensors = tuple(number for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        self._odd = tuple((number, look_of(leaves[number])) for number in self.tensors if _is_odd(leaves[number]))
        odd = {self.leaves[number] for number, _ in self._odd}
        tensors = {self.leaves[number]: leaves[number] for number in self.tensors}
        free = {self.leaves[number] for number in numbers}
        rest = {place: leaf for place, leaf in zip(self.leaves, leaves, strict=True) if place not in tensors}
        constants = {place: leaf for place, leaf in rest.items() if place not in free}
        few = len(tensors) <= MOST_COMPARED
        self._same = None if few else same_tensors(leaves)
        self._autocast = autocast_now()
        compared = [*(tensors if few else ()), *(place for place in items.containers if items.may_change(place))]
        grad, masks = _grad_layout(), _masks(offsets=offsets)
        looked_at = {place: tensor for place, tensor in tensors.items() if place not in odd}
        counted: dict[tuple[CallWord, CallWord], Sequence[tuple[int, ...]]] = {
            (CallWord.CONTAINERS, CallWord.CONTAINER_COUNT): items.rows(),
            (CallWord.CONSTANTS, CallWord.CONSTANT_COUNT): [(place, id(leaf)) for place, leaf in constants.items()],
            (CallWord.OF_CLASS, CallWord.OF_CLASS_COUNT): [(place, id(type(rest[place]))) for place in free],
            (CallWord.TENSORS, CallWord.TENSOR_COUNT): [(place, id(type(one))) for place, one in looked_at.items()],
            (CallWord.MASKS, CallWord.MASK_COUNT): [(at,) for at, _ in masks],
            (CallWord.REST, CallWord.REST_COUNT): [(at,) for at in grad.rest],
            (CallWord.IDENTITIES, CallWord.IDENTITY_COUNT): _identities(items.things, compared),
            (CallWord.MODES, CallWord.MODE_COUNT): _modes(casts=self._autocast is not None),
            (CallWord.NAMES, CallWord.NAME_COUNT): [(id(name),) for name in items.names],
        }
        sized = {
            self.leaves[number]: _words_of_sizes(leaves[number], some)
            for number, some in varying.items()
            if number not in numbers
        }
        self.size_words = [(place, at) for place, words in sized.items() for at in sorted(words or ())]
        self.is_told_by_words = all(place in looked_at for place in sized) and None not in sized.values()
        looks = [
            (kept, word(tensor._cdata + at) & kept)
            for place, tensor in looked_at.items()
            for at, bits in masks
            for kept in (0 if at in (sized.get(place) or ()) else bits,)
        ]
        tables = {table: table_of(rows) for (table, _), rows in counted.items()} | {
            CallWord.LOOKS: table_of(looks),
            CallWord.GRADS: table_of([(grad_code(tensor, grad) or 0,) for tensor in looked_at.values()]),
        }
        self.words: dict[CallWord, int] = {
            **{name: ctypes.addressof(table) for name, table in tables.items()},
            **{count: len(rows) for (_, count), rows in counted.items()},
            CallWord.POSITIONAL_COUNT: items.positional,
            CallWord.ITEM_COUNT: len(items.things),
            CallWord.GRAD_KNOWN: grad.known,
            CallWord.GRAD_REQUIRES: grad.requires,
            CallWord.GRAD_FUNCTION: grad.function,
            CallWord.GRAD_KIND: grad.kind,
            CallWord.VIEW_KIND: grad.view_kind,
            CallWord.VIEW_BASE: grad.base,
        }
        # SAFETY: an identity stands for its object as long as that is kept; classes of arguments stay.
        self._kept = (tables, items.names, items.keys, [*constants.values()])

    @property
    def is_all_words(self) -> bool:
        """Whether words tell that a call looks like this one."""
        casts_elsewhere = any(kind != "cpu" for kind, _ in self._autocast or ())
        return not self._odd and self._same is None and not casts_elsewhere

    def is_that_of(self, leaves: Sequence[Any]) -> bool:
        """Whether a call of which the words agree looks like this one in what has no words."""
        if autocast_now() != self._autocast or (self._same is not None and same_tensors(leaves) != self._same):
            return False
        if not self._odd:
            return True
        pairs = ((leaves[place], look) for place, look in self._odd)
        same = all(type(leaf) in PLAIN_ARGUMENTS and look_of(leaf) == look for leaf, look in pairs)
        return same and not forward_levels()


class CallItems:
    """The items of a call while its words are found."""

    def __init__(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        self.positional, self.names = len(arguments), tuple(keywords)
        self.things: list[Any] = [*arguments, *keywords.values()]
        self.keys: dict[int, tuple[Any, ctypes.Array[Any]]] = {}
        self._inside: dict[int, range] = {}
        for place, thing in enumerate(self.things):  # which grows meanwhile
            if type(thing) in CONTAINERS and len(self.things) <= MOST_ITEMS:
                children = list(thing.items()) if type(thing) is dict else list(thing)
                if type(thing) is dict:
                    self.keys[place] = (children, table_of([(id(key),) for key, _ in children]))
                    children = [child for _, child in children]
                self._inside[place] = range(len(self.things), len(self.things) + len(children))
                self.things += children
        order = [place for first in range(len(arguments) + len(keywords)) for place in self._tree(first)]
        self.leaves = tuple(place for place in order if place not in self._inside)
        self.containers = [place for place in order if place in self._inside]

    def _tree(self, place: int) -> Iterator[int]:
        yield place
        for child in self._inside.get(place, ()):
            yield from self._tree(child)

    def rows(self) -> list[tuple[int, ...]]:
        """The words of the containers, outer ones first."""
        return [
            (place, id(type(self.things[place])), len(inside), inside.start, self._keys_at(place))
            for place, inside in self._inside.items()
        ]

    def _keys_at(self, place: int) -> int:
        return ctypes.addressof(self.keys[place][1]) if place in self.keys else 0

    def may_change(self, place: int) -> bool:
        """Whether code can put other things in a container."""
        return type(self.things[place]) not in ROWS

    def have_words(self) -> bool:
        """Whether native code can tell such a call: plain tensors, constants, containers that are different ones."""
        if len(self.things) > MOST_ITEMS or not all(_is_plain(self.things[place]) for place in self.leaves):
            return False
        changeable = [id(self.things[place]) for place in self.containers if self.may_change(place)]
        names = (key for children, _ in self.keys.values() for key, _ in children)
        return len({*changeable}) == len(changeable) and all(type(name) in CONSTANTS for name in names)


def likeness_of(
    items: CallItems,
    *,
    offsets: bool = False,
    varying: Mapping[int, Collection[int]] = NOTHING,
    numbers: Collection[int] = (),
) -> Likeness | None:
    """Say what a call looks like, in the modes of now; None where native code cannot tell calls like it."""
    if has_function_modes() or not _is_known() or not items.have_words():
        return None
    things = [items.things[place] for place in items.leaves]
    expected = {**dict.fromkeys(varying, (torch.Tensor,)), **dict.fromkeys(numbers, (int, float))}
    if not all(number < len(things) and isinstance(things[number], kinds) for number, kinds in expected.items()):
        return None  # the call has put other things in its arguments
    found = Likeness(items, offsets=offsets, varying=varying, numbers=numbers)
    return found if found.is_told_by_words else None


def _words_of_sizes(tensor: torch.Tensor, varying: Collection[int]) -> frozenset[int] | None:
    """The offsets in a tensor of words that its sizes decide, where these dimensions vary; None if that is not sure.

    They are those in which two like it differ; each must be a size, a stride, or the number of elements, whole.
    """
    order = order_of(tuple(tensor.shape), tensor.stride()) or tuple(range(tensor.dim()))
    pair = []
    for size in (SMALLEST, SMALLEST + 1):
        shape = tuple(size if place in varying else kept for place, kept in enumerate(tensor.shape))
        with torch.inference_mode(tensor.is_inference()):
            pair.append(torch.empty_permuted(shape, order, dtype=tensor.dtype, device=tensor.device))
    found = set()
    for at, bits in tensor_masks():
        one, other = (word(sample._cdata + at) & bits for sample in pair)
        if one != other:
            numbers = ({*sample.shape, *sample.stride(), sample.numel()} for sample in pair)
            if not all(number in some for number, some in zip((one, other), numbers, strict=True)):
                return None
            found.add(at)
    return frozenset(found)


def look_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Everything about a plain tensor that a program depends on, apart from its elements."""
    grad = tensor.requires_grad
    kind = (type(tensor), tensor.is_neg(), tensor.dtype, tensor.device, tensor.layout, tensor.is_inference())
    return (*kind, tensor.shape, tensor.stride(), grad, grad and tensor.is_leaf)


def _is_plain(leaf: Any) -> bool:
    if type(leaf) not in PLAIN_ARGUMENTS:
        return type(leaf) in CONSTANTS
    return not leaf.dtype.is_complex and not leaf.is_neg()


def _is_odd(tensor: torch.Tensor) -> bool:
    """Whether words do not tell what a tensor looks like: hooks, tangents, views with gradients, many dimensions."""
    return tensor.dim() > MOST_DIMENSIONS or grad_code(tensor, _grad_layout()) is None


def _masks(*, offsets: bool) -> list[tuple[int, int]]:
    layout = object_layout()
    assert layout is not None
    return [*tensor_masks(), *([(layout.offset, EVERY_BIT)] if offsets else ())]


def _grad_layout() -> GradLayout:
    layout = grad_layout()
    assert layout is not None
    return layout


def _identities(things: Sequence[Any], places: Sequence[int]) -> list[tuple[int, int, bool]]:
    """For each two of these places whether they hold the very same thing: Python can tell by `is`."""
    pairs = [(one, other) for number, other in enumerate(places) for one in places[:number]]
    return [(one, other, things[one] is things[other]) for one, other in pairs]


@cache
def _is_known() -> bool:
    layouts = (object_layout(), grad_layout(), mode_functions())
    return None not in layouts and bool(tensor_masks())


def _modes(*, casts: bool) -> list[tuple[int, int, int, int]]:
    ask = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)
    rows = mode_functions() or ()
    rows = rows if casts else rows[:-1]
    return [(place, number, bits, int(ask(place)(number)) & bits) for place, number, bits in rows]
