"""Find the lists, dictionaries and other containers among the arguments of a call, in the order of PyTorch's trees."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from weft.trace.interception.capture import TreeSpec, tree_flatten, tree_unflatten

LEAVES = frozenset({torch.Tensor, torch.nn.Parameter, bool, int, float, complex, str, bytes, type(None)})
ROWS = (list, tuple, deque)
DICTIONARIES = (dict, OrderedDict, defaultdict)


def children_of(thing: Any) -> list[Any] | None:
    """What is directly in a node of PyTorch's trees; None of a leaf."""
    kind = type(thing)
    if kind in LEAVES:
        return None
    if kind in ROWS:
        return list(thing)
    if kind in DICTIONARIES:
        return list(thing.values())
    children, structure = _taken_apart(thing)
    return None if structure.is_leaf() else children


def _taken_apart(thing: Any) -> tuple[list[Any], TreeSpec]:
    return tree_flatten(thing, is_leaf=lambda other: other is not thing)


def containers_of(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
    """The containers among the arguments of a call, each place of one."""
    found: list[Any] = []
    waiting = [*arguments, *keywords.values()][::-1]
    while waiting:
        thing = waiting.pop()
        children = children_of(thing)
        if children is not None:
            found.append(thing)
            waiting += children[::-1]
    return found


def aliases_of(arguments: Sequence[Any], keywords: Mapping[str, Any], structure: TreeSpec) -> tuple[int, ...]:
    """For each container among the arguments the first place of the very same one; nothing where all differ."""
    if structure.num_nodes - structure.num_leaves < 5:  # the call, its arguments, its keywords and one container
        return ()
    first: dict[int, int] = {}
    found = tuple(
        first.setdefault(id(container) if can_be_changed(container) else -place, place)
        for place, container in enumerate(containers_of(arguments, keywords))
    )
    return () if len(first) == len(found) else found


def can_be_changed(container: Any) -> bool:
    """Whether code can put other things in a container."""
    return not isinstance(container, tuple)


def with_items(thing: Any, items: list[Any]) -> Any:
    """A container of the same kind with other items."""
    kind = type(thing)
    if kind is list:
        return items
    if kind is tuple:
        return tuple(items)
    if kind is deque:
        return deque(items, thing.maxlen)
    if kind is dict:
        return dict(zip(thing, items, strict=True))
    return tree_unflatten(items, _taken_apart(thing)[1])
