"""What code does to arguments of classes derived from containers, and by operators of classes, it does at each call."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from tests.ways import Work, assert_every_way
from typing_extensions import Self

WAYS = ("hybridize", "library", "lazy")


class Table(dict):
    writes = 0

    def __setitem__(self, key, value):
        self.writes = 5
        super().__setitem__(key, value)


class Ordered(collections.OrderedDict):
    pass


class Rows(list):
    name = ""


class Wrapped(collections.UserList):
    pass


class Store:
    """Keeps what it is given by operators alone."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.log: list[Any] = []

    def __setitem__(self, key: str, value: Any) -> None:
        self.kept[key] = value

    def __delitem__(self, key: str) -> None:
        del self.kept[key]

    def __iadd__(self, value: Any) -> Self:
        self.log.append(value)
        return self

    def __or__(self, value: Any) -> torch.Tensor:
        self.kept["or"] = value * 3
        return self.kept["or"]


MAPPINGS = (Table, Ordered, collections.UserDict, collections.Counter, Store)
SEQUENCES = (Rows, Wrapped)


@pytest.mark.parametrize("kind", MAPPINGS)
def test_an_item_that_is_set_is_what_is_returned(kind):
    def make() -> Work:
        def function(x, held):
            held["h"] = h = x * 2
            return h, held

        return Work.repeated(function, torch.randn(3), kind())

    assert_every_way(make, *WAYS)


@pytest.mark.parametrize("kind", SEQUENCES)
def test_what_is_appended_is_there_after_each_call(kind):
    def make() -> Work:
        def function(x, held):
            held.append(x * 2)
            return x + 1

        return Work.repeated(function, torch.randn(3), kind())

    assert_every_way(make, *WAYS)


@pytest.mark.parametrize("kind", SEQUENCES)
def test_an_item_that_is_replaced_is_read_at_each_call(kind):
    def make() -> Work:
        def function(x, held):
            held[0] = held[0] + x
            return held[0] * 2

        return Work.repeated(function, torch.randn(3), kind([torch.ones(3)]))

    assert_every_way(make, *WAYS)


@pytest.mark.parametrize("kind", [Table, Ordered, collections.UserDict])
def test_an_item_that_is_deleted_is_gone_and_looked_for(kind):
    def make() -> Work:
        def function(x, held):
            if "a" in held:
                x = x + held["a"]
                del held["a"]
            return x * 2

        return Work.repeated(function, torch.randn(3), kind({"a": torch.ones(3), "b": 2}))

    assert_every_way(make, *WAYS)


def test_a_counter_counts_at_each_call():
    def make() -> Work:
        def function(x, counts):
            counts["h"] += 2
            return x * counts["h"]

        return Work.repeated(function, torch.ones(2), collections.Counter(), calls=4)

    assert_every_way(make, *WAYS)


def test_an_attribute_of_a_list_is_set_beside_its_items():
    def make() -> Work:
        def function(x, rows):
            rows.name = "set"
            rows.append(x)
            return rows

        return Work.repeated(function, torch.ones(2), Rows())

    assert_every_way(make, *WAYS)


def test_operators_of_a_class_change_what_it_keeps():
    def make() -> Work:
        def function(x, store):
            store["a"] = x * 2
            store["b"] = x
            del store["b"]
            store += x + 1
            return store | x

        return Work.repeated(function, torch.randn(3), Store())

    assert_every_way(make, *WAYS)


def test_bytes_that_are_written_are_read_at_the_next_call():
    def make() -> Work:
        def function(x, held):
            y = x + held[0]
            held[0] = 7
            return y

        return Work.repeated(function, torch.ones(2), bytearray(b"ab"))

    assert_every_way(make, *WAYS)
