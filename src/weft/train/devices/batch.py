"""A batch, tensors in dictionaries, lists and tuples -> how many samples it has, and a part of it for each device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from weft.errors import UsageError, counted


def pair_of(batch: Any) -> tuple[Any, Any]:
    """Take a batch apart into what the module is given and what the loss compares its answers with."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    size = f" of {len(batch)}" if isinstance(batch, tuple | list | dict) else ""
    raise UsageError(
        f"a batch is a pair of inputs and targets; this one is a {type(batch).__name__}{size}",
        why="the module is called with the first, and the loss with the answers and the second",
        fix="give (x, y); either may be a dictionary, list or tuple of tensors",
    )


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """List the tensors of a tree."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def samples_in(*trees: Any) -> int:
    """Count samples: the length of the first tensor that has a dimension."""
    if isinstance(trees[0], torch.Tensor) and trees[0].ndim:
        return len(trees[0])
    for leaf in tensors_in(trees):
        if leaf.ndim:
            return len(leaf)
    raise UsageError(
        f"there is no batch to split: no tensor with a dimension is in a {type(trees[0]).__name__}",
        fix="make tensors of it: torch.as_tensor(...)",
    )


def samples_of(x: Any, y: Any) -> int:
    """Count the samples of inputs and targets, which must be as many; there may be no targets."""
    count = samples_in(x, y)
    labels = count if y is None else samples_in(y)
    if labels != count:
        raise UsageError(f"there are {counted(count, 'sample')} and {counted(labels, 'label')}")
    return count


def split_tree(tree: Any, sizes: Sequence[int]) -> list[Any]:
    """Split every tensor that has a row for each sample; whatever else there is goes into each part as it is."""
    sizes = list(sizes)
    count = sum(sizes)
    leaves, structure = pytree.tree_flatten(tree)
    parts = [
        leaf.split(sizes)
        if isinstance(leaf, torch.Tensor) and leaf.ndim and len(leaf) == count
        else [leaf] * len(sizes)
        for leaf in leaves
    ]
    return [pytree.tree_unflatten([part[place] for part in parts], structure) for place in range(len(sizes))]


def moved(tree: Any, device: torch.device, *, copy: bool = False) -> Any:
    """Put every tensor on a device."""
    return pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.to(device, non_blocking=True, copy=copy), tree)
