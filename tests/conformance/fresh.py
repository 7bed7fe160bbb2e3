"""Arguments of a sample -> copies that share memory among themselves exactly as the originals do."""

import copy
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree


def fresh(tree: Any) -> Any:
    """Copy every tensor and generator of a tree; strides, overlaps and shared storages stay as they are."""
    return _copy(tree, {}, {})


def tensors(tree: Any) -> tuple[torch.Tensor, ...]:
    """List the tensors of a tree, each once."""
    leaves = pytree.tree_leaves(tree, is_leaf=lambda node: isinstance(node, PackedSequence))
    found: list[torch.Tensor] = []
    for leaf in leaves:
        parts = (leaf.data,) if isinstance(leaf, PackedSequence) else (leaf,)
        found.extend(part for part in parts if isinstance(part, torch.Tensor))
    return tuple({id(tensor): tensor for tensor in found}.values())


def _copy(tree: Any, copies: dict[int, Any], memo: dict[int, Any]) -> Any:
    """Copy a tree; `copies` keeps one tensor one tensor, `memo` keeps shared storages shared."""

    def leaf(node: Any) -> Any:
        if id(node) not in copies:
            copies[id(node)] = _copy_leaf(node, memo)
        return copies[id(node)]

    return pytree.tree_map(leaf, tree, is_leaf=lambda node: isinstance(node, PackedSequence))


def _copy_leaf(node: Any, memo: dict[int, Any]) -> Any:
    if isinstance(node, torch.nn.Parameter | torch.nn.Module | PackedSequence):
        return copy.deepcopy(node, memo)
    if isinstance(node, torch.Tensor) and node.layout is not torch.strided:
        return node.detach().clone().requires_grad_(node.requires_grad)
    if isinstance(node, torch.Tensor):
        # Detached, because deepcopy refuses tensors that autograd made; the copy is a leaf, so that it gets a gradient.
        return copy.deepcopy(node.detach(), memo).requires_grad_(node.requires_grad)
    if isinstance(node, torch.Generator):
        return node.clone_state()
    return node


def moved_by_a_bit(tree: Any, seed: int) -> Any:
    """Copy a tree with every finite float32 but 0 moved up or down by its last bit."""
    generator = torch.Generator().manual_seed(seed)
    moved = fresh(tree)
    for tensor in tensors(moved):
        plain = tensor.detach()
        if plain.dtype is torch.float32 and _is_plain(plain):
            direction = torch.rand(plain.shape, generator=generator) < 1 / 2
            ends = torch.where(direction, torch.inf, -torch.inf)
            stays = (plain == 0) | ~plain.isfinite()
            values = torch.where(stays, plain, torch.nextafter(plain, ends))
            plain.copy_(values)
    return moved


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether each element has memory of its own, so that it can be written."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        return False
    return not any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
