"""Make a key of the arguments and modes of a call: two calls with equal keys may run the same program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import nn

from weft.errors import counted
from weft.trace.interception.capture import PLAIN_TYPES, TreeSpec
from weft.trace.interception.modes import autocast_now, has_function_modes
from weft.trace.interception.refusals import refuse

PLAIN = (bool, int, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
FRACTIONS = (float, np.float64)
FREE_BELOW = 1 << 62
Key = tuple[Any, ...]


class ByIdentity:
    """An argument of a kind that Weft knows nothing about: only the very same object makes an equal key.

    Modules are not kept by keys, which outlive programs: one that is gone is equal to none.
    """

    __slots__ = ("_found", "_name", "_number")

    def __init__(self, thing: object) -> None:
        self._found: Callable[[], object] = ref(thing) if isinstance(thing, nn.Module) else partial(_itself, thing)
        self._number = id(thing)
        self._name = type(thing).__name__

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, ByIdentity) or self._number != other._number:
            return False
        thing = self._found()
        return thing is not None and thing is other._found()

    def __hash__(self) -> int:
        return self._number

    def __repr__(self) -> str:
        return f"<{self._name} at {self._number:#x}>"


def _itself(thing: object) -> object:
    return thing


def leaf_key(leaf: Any) -> Key:
    """The part of a key that one argument makes."""
    if isinstance(leaf, torch.Tensor):
        return tensor_key(leaf)
    kind = type(leaf)
    if kind in FRACTIONS:
        return (kind, leaf.hex())
    if kind is complex:
        return (complex, leaf.real.hex(), leaf.imag.hex())
    if kind in PLAIN:
        return (kind, leaf)
    if isinstance(leaf, np.number):
        return (kind, leaf.tobytes())
    return (type(leaf), ByIdentity(leaf))


def can_be_free(number: float) -> bool:
    """Whether a program for any number takes this one: traces know of none so large, nor of NaN."""
    return -FREE_BELOW < number < FREE_BELOW


def number_of(key: Key) -> float | int | None:
    """The int or float that made a leaf's key."""
    if key[0] in FRACTIONS and key[1] != "any":
        return float.fromhex(key[1])
    return key[1] if key[0] is int and key[1] != "any" else None


def tensor_key(tensor: torch.Tensor) -> Key:
    """Everything about a tensor that a program depends on, apart from its elements."""
    if type(tensor) not in PLAIN_TYPES:
        refuse("subclass", None, detail=type(tensor).__name__)
    if tensor.is_nested:
        refuse("subclass", None, detail="nested tensor")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        refuse("layout", None)
    lazy_bits = (tensor.is_conj(), tensor.is_neg()) if tensor.dtype.is_complex or tensor.is_neg() else None
    grad = (tensor.requires_grad, tensor.is_leaf) if tensor.requires_grad else False
    kind = (type(tensor), tensor.is_inference())
    return (torch.Tensor, tensor.dtype, tensor.shape, tensor.stride(), tensor.device, grad, lazy_bits, *kind)


def without_sizes(key: Key) -> Key:
    """A signature without the sizes and strides of its tensors: calls that differ in nothing else have one."""
    structure, leaves, *others = key
    kinds = tuple((*leaf[:2], len(leaf[2]), *leaf[4:]) if leaf[0] is torch.Tensor else leaf for leaf in leaves)
    return (structure, kinds, *others)


def same_tensors(leaves: Sequence[Any]) -> tuple[int, ...]:
    """For each tensor among leaves the first place of the very same one; nothing where all differ.

    Python can tell by `is`, as attention does of queries and keys, and a gradient of one tensor is the sum of all uses.
    """
    tensors = [id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    first: dict[int, int] = {}
    found = tuple(first.setdefault(tensor, place) for place, tensor in enumerate(tensors))
    return () if len(first) == len(found) else found


def modes_key() -> Key:
    """The modes of this thread that change what operators do."""
    default_device = torch.get_default_device() if has_function_modes() else None
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast_now(),
        torch.get_default_dtype(),
        default_device,
    )


# What the entries of a key are called in a sentence.
TENSOR_FACTS = (
    "kind", "element type", "sizes", "strides", "device", "requires_grad", "conjugate or negative bit", "class",
    "inference",
)  # fmt: skip
MODE_FACTS = ("grad mode", "inference mode", "autocast", "default dtype", "default device")


def memory_key(tensors: list[torch.Tensor], written: Collection[int] | None = None) -> Key:
    """Which tensors share memory, and where in it they start: programs that write into arguments depend on it.

    With `written`, the positions of the tensors that are written, the rest matters only where it shares memory with
    those; and where a tensor starts in memory, only if the memory is shared.
    """
    groups: dict[int, int] = {}
    members = [groups.setdefault(tensor.untyped_storage().data_ptr(), len(groups)) for tensor in tensors]
    if written is None:
        return tuple(zip(members, (tensor.storage_offset() for tensor in tensors), strict=True))
    if len(groups) == len(tensors):
        return ()
    crowded = {group for group, count in Counter(members).items() if count > 1}
    shared = crowded & {members[position] for position in written}
    return tuple(
        (position, members[position], tensor.storage_offset())
        for position, tensor in enumerate(tensors)
        if members[position] in shared
    )


def key_distance(before: Key, now: Key) -> int:
    """How many arguments and modes differ between two keys."""
    if before[0] != now[0]:
        return len(before[1]) + len(now[1]) + len(MODE_FACTS)
    return sum(old != new for part in (1, 2) for old, new in zip(before[part], now[part], strict=True))


def key_change(before: Key, now: Key, names: Sequence[str]) -> str:
    """A sentence on how the key of a call differs from that of an earlier one."""
    if before[0] != now[0]:
        return _structure_change(before[0], now[0])
    for name, old, new in zip(names, before[1], now[1], strict=True):
        if old != new:
            return _leaf_change(f"argument {name}", old, new)
    for fact, old, new in zip(MODE_FACTS, before[2], now[2], strict=True):
        if old != new:
            return f"{fact} was {_mode_text(old)}, is {_mode_text(new)}"
    if before[4:] != now[4:]:
        return "other arguments are the very same tensor"
    if before[3:] != now[3:]:
        return "other containers among the arguments are the very same one"
    return "nothing that a key holds"


def _mode_text(mode: Any) -> str:
    if mode is None or isinstance(mode, bool):
        return "on" if mode else "off"
    return ", ".join(f"{kind} {dtype}" for kind, dtype in mode) if isinstance(mode, tuple) else str(mode)


def _structure_change(before: Any, now: Any) -> str:
    """A sentence on arguments that were passed, or nested, in another way."""
    was, found = _form(before), _form(now)
    if was == found:
        return "the arguments are nested in another way"
    return f"was called with {was}, is called with {found}"


def _form(structure: Any) -> str:
    """How a call passes its arguments: `2 arguments and scale=`."""
    positional, by_keyword = structure.children()
    names = "".join(f" and {name}=" for name in by_keyword.context or ())
    return f"{counted(len(positional.children()), 'argument')}{names}"


def tensor_change(name: str, before: Key, now: Key) -> str:
    """A sentence on how a tensor's key differs from before."""
    sizes = TENSOR_FACTS.index("sizes")
    old, new = before[sizes], now[sizes]
    if len(old) == len(new):
        for dimension, (was, extent) in enumerate(zip(old, new, strict=True)):
            if was != extent:
                return f"{name}: size of dim {dimension} was {was}, is {extent}"
    for fact, was, found in zip(TENSOR_FACTS, before, now, strict=True):
        if was != found:
            show = _flag_text if fact == "requires_grad" else _text
            return f"{name}: {fact} was {show(was)}, is {show(found)}"
    return f"{name} is another tensor"


def _flag_text(fact: Any) -> str:
    return "off" if fact is False else "of a parameter or leaf" if fact[1] else "of a computed tensor"


def _leaf_change(name: str, before: Key, now: Key) -> str:
    if before[0] is torch.Tensor and now[0] is torch.Tensor:
        return tensor_change(name, before, now)
    return f"{name} was {leaf_text(before)}, is {leaf_text(now)}"


def leaf_text(key: Key) -> str:
    """An argument as it is named in a sentence."""
    if key[0] is torch.Tensor:
        return f"{str(key[1]).removeprefix('torch.')}{list(key[TENSOR_FACTS.index('sizes')])}"
    if key[1] == "any":
        return f"any {key[0].__name__}"
    return repr(number_of(key) if key[0] in FRACTIONS else key[1])


def _text(entry: Any) -> str:
    return str(tuple(entry)) if isinstance(entry, torch.Size) else str(entry)


def names_of_leaves(structure: TreeSpec, names: Sequence[str]) -> list[str]:
    """What the arguments of a call are called, nested ones by their place; `names` are those of positional ones."""
    positional, by_keyword = structure.children()[0].children(), structure.children()[1]
    found: list[str] = []
    for index, child in enumerate(positional):
        name = names[index] if index < len(names) else str(index)
        found += [name] if child.num_leaves == 1 else [f"{name}[{item}]" for item in range(child.num_leaves)]
    for name, child in zip(by_keyword.context or (), by_keyword.children(), strict=False):
        found += [name] if child.num_leaves == 1 else [f"{name}[{item}]" for item in range(child.num_leaves)]
    return found
