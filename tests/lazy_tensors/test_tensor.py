"""Memory is known by where it lies only as long as it lives."""

from __future__ import annotations

import pytest
import torch

from weft.lazy_tensors.tensor import LazyStorage, StorageTable


def at_the_same_place(storages: StorageTable) -> tuple[LazyStorage, torch.Tensor]:
    """The memory of a tensor that is gone, and a tensor whose storage lies where that one's lay."""
    others = []  # they take the other free places
    for _ in range(1000):
        first = torch.ones(8)
        known, place = storages.of(first), id(first.untyped_storage())
        storages.export(first)
        assert storages.find(first.view(2, 4)) is known
        assert storages.exported(first)
        del first
        second = torch.ones(8)
        if id(second.untyped_storage()) == place:
            return known, second
        others.append(second)
    pytest.fail("no storage was made where another one had been")


def test_what_comes_to_lie_where_other_memory_was_is_another_memory():
    storages = StorageTable()
    known, tensor = at_the_same_place(storages)
    assert storages.find(tensor) is None
    assert not storages.exported(tensor)
    assert storages.of(tensor) is not known


def test_a_computed_value_there_has_its_own_memory():
    storages = StorageTable()
    known, tensor = at_the_same_place(storages)
    own = LazyStorage()
    assert storages.bind(tensor, own) is own
    assert storages.bind(tensor.view(-1), known) is own


def test_a_failure_is_forgotten_with_the_memory_that_it_poisoned():
    storages = StorageTable()
    known, tensor = at_the_same_place(storages)
    for memory in (known, storages.of(tensor)):
        memory.variable().failure = RuntimeError("lost")
    storages.forget()
    assert storages.find(tensor) is not None
    del tensor
    storages.forget()
    assert storages.all() == []
