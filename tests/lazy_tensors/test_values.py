"""Memory is known by where it lies only as long as it lives."""

from __future__ import annotations

import pytest
import torch

from weft.lazy_tensors.values import Memories, Memory


def at_the_same_place(memories: Memories) -> tuple[Memory, torch.Tensor]:
    """The memory of a tensor that is gone, and a tensor whose storage lies where that one's lay."""
    others = []  # they take the other free places
    for _ in range(1000):
        first = torch.ones(8)
        known, place = memories.of(first), id(first.untyped_storage())
        memories.export(first)
        assert memories.find(first.view(2, 4)) is known
        assert memories.exported(first)
        del first
        second = torch.ones(8)
        if id(second.untyped_storage()) == place:
            return known, second
        others.append(second)
    pytest.fail("no storage was made where another one had been")


def test_what_comes_to_lie_where_other_memory_was_is_another_memory():
    memories = Memories()
    known, tensor = at_the_same_place(memories)
    assert memories.find(tensor) is None
    assert not memories.exported(tensor)
    assert memories.of(tensor) is not known


def test_a_computed_value_there_has_its_own_memory():
    memories = Memories()
    known, tensor = at_the_same_place(memories)
    own = Memory()
    assert memories.bind(tensor, own) is own
    assert memories.bind(tensor.view(-1), known) is own


def test_a_failure_is_forgotten_with_the_memory_that_it_poisoned():
    memories = Memories()
    known, tensor = at_the_same_place(memories)
    for memory in (known, memories.of(tensor)):
        memory.variable().failure = RuntimeError("lost")
    memories.forget()
    assert memories.find(tensor) is not None
    del tensor
    memories.forget()
    assert memories.all() == []
