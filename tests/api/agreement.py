"""A module or function and its hybridized self -> whether calls of both do the same to everything they touch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tests.conformance.compare import form_difference, same_bits
from torch import nn
from torch.utils import _pytree as pytree

import weft

CALLS = 3


def assert_same(thing: Any, *arguments: Any, calls: int = CALLS, **keywords: Any) -> Any:
    """Call both several times on equal arguments; compares results, arguments, state and random numbers."""
    eager = copy.deepcopy(thing)
    hybrid = weft.hybridize(copy.deepcopy(thing))
    result = None
    for _ in range(calls):
        expected, seen = played(eager, copied((arguments, keywords)))
        result, left = played(hybrid, copied((arguments, keywords)))
        assert_equal_trees(result, expected)
        assert_equal_trees(left, seen)
    return result


def played(thing: Callable[..., Any], call: tuple[Sequence[Any], dict[str, Any]]) -> tuple[Any, Any]:
    """The result of a call, and what it left: its arguments, the module's state, the next random number."""
    arguments, keywords = call
    torch.manual_seed(7)
    result = thing(*arguments, **keywords)
    state = {name: value.clone() for name, value in thing.state_dict().items()} if isinstance(thing, nn.Module) else {}
    return result, (arguments, keywords, state, torch.rand(1))


def copied(tree: Any) -> Any:
    """Copies of the tensors in a tree; tensors that share memory share it afterwards."""
    memo: dict[int, Any] = {}
    return pytree.tree_map(lambda leaf: copy.deepcopy(leaf, memo) if isinstance(leaf, torch.Tensor) else leaf, tree)


def assert_equal_trees(actual: Any, expected: Any) -> None:
    """The same structure, the same tensors bit by bit and in form, other leaves equal."""
    actual_leaves, actual_structure = pytree.tree_flatten(actual)
    expected_leaves, expected_structure = pytree.tree_flatten(expected)
    assert actual_structure == expected_structure
    for found, wanted in zip(actual_leaves, expected_leaves, strict=True):
        if isinstance(wanted, torch.Tensor):
            assert form_difference(wanted, found) is None
            assert same_bits(wanted, found)
        else:
            assert found == wanted


def assert_lazily_same(work: Callable[[], Sequence[torch.Tensor]]) -> None:
    """Lazily, four times so that segments are compiled, the tensors are what they are eagerly."""
    torch.manual_seed(0)
    expected = work()
    for _ in range(CALLS + 1):
        torch.manual_seed(0)
        with weft.lazy():
            found = work()
        for one, other in zip(expected, found, strict=True):
            assert type(weft.wait(other)) is type(one)
            assert torch.equal(one, other)


def gradients(loss: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradients of a loss, None where it does not depend on a tensor."""
    return list(torch.autograd.grad(loss, list(tensors), allow_unused=True))
