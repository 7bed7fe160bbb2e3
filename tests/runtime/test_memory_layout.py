"""Words of memory say of every container whether it holds what it held: a change of any kind changes one of them."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from types import CellType
from typing import Any

import pytest

from weft.runtime.memory_layout import word
from weft.runtime.python_layout import Rows, content_rows, held_rows, versions_count
from weft.trace.python_state.containers import AbsentNames, OfPartial, Slotted
from weft.trace.python_state.facts import can_change

pytestmark = pytest.mark.skipif(not versions_count(), reason="this Python keeps no versions of dictionaries")

FIRST, SECOND, OTHER = object(), object(), object()


def holds(rows: Rows | None) -> bool:
    assert rows is not None
    return all(word(place) & bits == before for place, bits, before in rows)


def emptied(thing: dict[str, Any]) -> None:
    thing.clear()
    thing["a"] = OTHER


def grown_and_changed(thing: dict[str, Any]) -> None:
    thing.update((str(number), number) for number in range(1000))
    thing["b"] = OTHER


class Roomy:
    """An object whose class makes room for its attributes."""

    __slots__ = ("a", "b", "c")

    def __init__(self) -> None:
        self.a, self.b = FIRST, SECOND


def slotted() -> Slotted:
    return Slotted(Roomy())


PLACES: Sequence[tuple[str, Callable[[], Any], Any, Callable[[Any], None]]] = (
    ("an entry changed", lambda: {"a": FIRST, "b": SECOND}, "b", lambda thing: thing.update(b=OTHER)),
    ("an entry deleted", lambda: {"a": FIRST, "b": SECOND}, "b", lambda thing: thing.pop("b")),
    ("emptied", lambda: {"a": FIRST, "b": SECOND}, "b", emptied),
    ("grown", lambda: {"a": FIRST, "b": SECOND}, "b", grown_and_changed),
    ("keys of any kind", lambda: {1: FIRST, "b": SECOND}, "b", lambda thing: thing.update(b=OTHER)),
    ("item changed", lambda: [FIRST, SECOND], 1, lambda thing: thing.__setitem__(1, OTHER)),
    ("items dropped", lambda: [FIRST, SECOND], 1, list.clear),
    ("cell changed", lambda: CellType(SECOND), None, lambda thing: setattr(thing, "cell_contents", OTHER)),
    ("slot changed", slotted, "b", lambda of: setattr(of.thing, "b", OTHER)),
    ("slot emptied", slotted, "b", lambda of: delattr(of.thing, "b")),
    ("partial function", lambda: OfPartial(partial(max)), "func", lambda of: of.thing.__setstate__((min, (), {}, {}))),
    ("cell emptied", lambda: CellType(SECOND), None, lambda thing: delattr(thing, "cell_contents")),
)


def test_slots_that_are_empty_are_watched_and_others_may_change():
    thing = Roomy()
    rows = held_rows(AbsentNames(Slotted(thing)), frozenset({"c", "d"}), (), {})
    thing.a = OTHER
    assert holds(rows)
    thing.c = OTHER
    assert not holds(rows)


def test_slots_of_classes_whose_code_gives_something_else_have_no_words():
    class Giving(Roomy):
        __slots__ = ()

        def __getattr__(self, name: str) -> str:
            return name

    assert held_rows(Slotted(Giving()), "b", SECOND, {}) is None
    assert held_rows(AbsentNames(Slotted(Giving())), frozenset({"c"}), (), {}) is None


@pytest.mark.parametrize(("make", "key", "change"), [row[1:] for row in PLACES], ids=[row[0] for row in PLACES])
def test_a_place_that_holds_another_thing_is_seen(make, key, change):
    container = make()
    rows = held_rows(container, key, SECOND, {})
    assert holds(rows)
    change(container)
    assert not holds(rows)


def test_changes_of_other_names_are_no_changes_of_a_name():
    names = {"a": FIRST, "b": SECOND}
    rows = held_rows(names, "b", SECOND, {})
    names["a"] = OTHER
    names["c"] = OTHER
    assert holds(rows)


def test_attributes_that_objects_of_a_class_share_the_names_of_are_watched_together():
    class Settings:
        def __init__(self) -> None:
            self.a, self.b = FIRST, SECOND

    settings = [Settings() for _ in range(3)]
    rows = held_rows(vars(settings[1]), "b", SECOND, {})
    settings[0].b = OTHER
    assert holds(rows)
    settings[1].b = OTHER
    assert not holds(rows)


class Derived(dict[str, Any]):
    """A dictionary of a class of the user's."""


CONTENTS: Sequence[tuple[str, Any, Callable[[Any], Any]]] = (
    ("dict", {"a": FIRST}, lambda thing: thing.update(b=OTHER)),
    ("derived dict", Derived(a=FIRST), lambda thing: thing.update(a=OTHER)),
    ("inner list", {"a": [FIRST, (1, [SECOND])]}, lambda thing: thing["a"][1][1].append(OTHER)),
    ("list shortened", [FIRST, SECOND], lambda thing: thing.pop()),
    ("list reordered", [FIRST, SECOND], lambda thing: thing.reverse()),
    ("tuple of lists", ([FIRST], [SECOND]), lambda thing: thing[1].clear()),
    ("set grown", {FIRST, SECOND}, lambda thing: thing.add(OTHER)),
    ("set with another", {FIRST, SECOND}, lambda thing: (thing.remove(FIRST), thing.add(OTHER))),
    ("large set", set(range(100)), lambda thing: (thing.remove(7), thing.add(1000))),
    ("ordered changed", OrderedDict(a=FIRST, b=SECOND), lambda thing: thing.update(a=OTHER)),
    ("ordered moved", OrderedDict.fromkeys("abcdef"), lambda thing: thing.move_to_end("c")),
    ("ordered moved first", OrderedDict.fromkeys("abcdef"), lambda thing: thing.move_to_end("c", last=False)),
)


@pytest.mark.parametrize(("thing", "change"), [row[1:] for row in CONTENTS], ids=[row[0] for row in CONTENTS])
def test_a_container_that_holds_other_things_is_seen(thing, change):
    rows = content_rows(thing, can_change)
    assert holds(rows)
    change(thing)
    assert not holds(rows)


def test_what_cannot_be_told_from_memory_has_no_words():
    assert content_rows(bytearray(8), can_change) is None
    assert content_rows([bytearray(8)], can_change) is None
    assert held_rows(Derived(a=FIRST), "a", FIRST, {}) is None
