"""Whatever Python value traced code has read is guarded, wherever it lives."""

from __future__ import annotations

import argparse
import dis
import functools
import threading
import types
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.trace.python_state.names import asks_kinds, compares_identity, global_names, imported, mentioned


@dataclass(slots=True)
class Slots:
    scale: float = 2.0
    kept: Any = None


class Attributes(dict):
    """A dictionary whose items are attributes too, as many libraries for settings have it."""

    __getattr__ = dict.__getitem__


class Methods:
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Holder:
    def __init__(self, thing: Any) -> None:
        self.thing = thing


package, inner = types.ModuleType("settings"), types.ModuleType("settings.inner")
package.inner = inner
numbers, queue, array_of_numbers = bytearray(b"\2"), deque([2.0]), np.full(2, 2.0, np.float32)
deep = {"a": {"b": {"c": {"scale": 2.0}}}}
slotted, holder, attributes = Slots(), Holder(Slots()), Attributes(scale=2.0)
ordered, default, namespace = OrderedDict(scale=2.0), defaultdict(float, scale=2.0), argparse.Namespace(scale=2.0)
Pair = namedtuple("Pair", "scale options")  # noqa: PYI024
pair, methods = Pair(2.0, {"more": 2.0}), Methods()


class Computed:
    """What an attribute is, is computed from a name elsewhere."""

    def __get__(self, owner: Any, kind: Any) -> float:
        return deep["a"]["b"]["c"]["scale"]

    def __getattr__(self, name: str) -> float:
        return deep["a"]["b"]["c"]["scale"]


class Owner:
    scale = Computed()


owner, computed = Owner(), Computed()


def with_default(x: torch.Tensor, options: dict[str, float] = {"scale": 2.0}) -> torch.Tensor:  # noqa: B006
    return x * options["scale"]


partial = functools.partial(lambda scales, x: x * scales[0], [2.0])


def by_getattr(x: torch.Tensor) -> torch.Tensor:
    return x * getattr(namespace, "scale")  # noqa: B009


def by_method(x: torch.Tensor) -> torch.Tensor:
    return methods.scaled(x)


def doubled_method(self: Methods, x: torch.Tensor) -> torch.Tensor:
    return x * 4


CASES = {
    "an object with slots": (lambda x: x * slotted.scale, lambda: setattr(slotted, "scale", 4.0)),
    "an object in an object": (lambda x: x * holder.thing.scale, lambda: setattr(holder.thing, "scale", 4.0)),
    "a dictionary of attributes": (lambda x: x * attributes.scale, lambda: attributes.update(scale=4.0)),
    "an ordered dictionary": (lambda x: x * ordered["scale"], lambda: ordered.update(scale=4.0)),
    "a dictionary with a default": (lambda x: x * default["scale"], lambda: default.update(scale=4.0)),
    "what is in a named tuple": (lambda x: x * pair.options["more"], lambda: pair.options.update(more=4.0)),
    "a module in a module": (lambda x: x * package.inner.scale, lambda: setattr(inner, "scale", 4.0)),
    "an attribute by its name": (by_getattr, lambda: setattr(namespace, "scale", 4.0)),
    "an array of numbers": (lambda x: x * torch.tensor(array_of_numbers), lambda: array_of_numbers.fill(4.0)),
    "an element of an array": (lambda x: x * float(array_of_numbers[0]), lambda: array_of_numbers.fill(4.0)),
    "bytes that can change": (lambda x: x * numbers[0], lambda: numbers.__setitem__(0, 4)),
    "a queue": (lambda x: x * queue[0], lambda: queue.__setitem__(0, 4.0)),
    "a deep dictionary": (lambda x: x * deep["a"]["b"]["c"]["scale"], lambda: deep["a"]["b"]["c"].update(scale=4.0)),
    "a descriptor": (lambda x: x * owner.scale, lambda: deep["a"]["b"]["c"].update(scale=4.0)),
    "a computed attribute": (lambda x: x * computed.scale, lambda: deep["a"]["b"]["c"].update(scale=4.0)),
    "a default of an argument": (with_default, lambda: with_default.__defaults__[0].update(scale=4.0)),
    "what a partial function was given": (partial, lambda: partial.args[0].__setitem__(0, 4.0)),
    "a method of a class": (by_method, lambda: setattr(Methods, "scaled", doubled_method)),
}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(Methods, "scaled", Methods.scaled)
    slotted.scale = holder.thing.scale = inner.scale = namespace.scale = 2.0
    slotted.kept = None
    for mapping in (attributes, ordered, default):
        mapping["scale"] = 2.0
    pair.options["more"] = queue[0] = partial.args[0][0] = 2.0
    deep["a"]["b"]["c"]["scale"] = with_default.__defaults__[0]["scale"] = 2.0
    numbers[0] = 2
    array_of_numbers.fill(2.0)


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen(name: str) -> None:
    function, change = CASES[name]
    hybrid, x = weft.hybridize(function), torch.ones(2)
    for _ in range(3):
        assert torch.equal(hybrid(x), x * 2)
    assert hybrid.traces == 1
    change()
    for _ in range(3):
        assert torch.equal(hybrid(x), x * 4)
    assert hybrid.traces == 2


calls: list[int] = []
counts = {"runs": 0, "scale": 2.0}
runs = 0


def appends(x: torch.Tensor) -> torch.Tensor:
    calls.append(len(x))
    return x + 1


def counts_in_dictionary(x: torch.Tensor) -> torch.Tensor:
    counts["runs"] += 1
    return x * counts["scale"]


def counts_in_name(x: torch.Tensor) -> torch.Tensor:
    global runs  # noqa: PLW0603
    runs += 1
    return x + 1


def counts_in_array(x: torch.Tensor) -> torch.Tensor:
    array_of_numbers[0] += 1
    return x + 1


def appends_to_queue(x: torch.Tensor) -> torch.Tensor:
    queue.append(2.0)
    return x + 1


@pytest.mark.parametrize("function", [appends, counts_in_dictionary, counts_in_name, appends_to_queue])
def test_what_code_itself_changes_makes_no_further_programs(function) -> None:
    hybrid = weft.hybridize(function)
    for _ in range(3):
        for size in (2, 3, 4):
            hybrid(torch.ones(size))
    assert hybrid.traces == 3


def test_a_count_in_an_array_is_refused_and_taken_back() -> None:
    with pytest.raises(weft.UnsupportedError, match=r"adds to a Python object[\s\S]*array_of_numbers\[0\] \+= 1"):
        weft.hybridize(counts_in_array)(torch.ones(2))
    assert array_of_numbers[0] == 2


def test_what_stands_beside_it_is_guarded_as_before(monkeypatch) -> None:
    hybrid, x = weft.hybridize(counts_in_dictionary), torch.ones(2)
    assert torch.equal(hybrid(x), x * 2)
    monkeypatch.setitem(counts, "scale", 4.0)
    assert torch.equal(hybrid(x), x * 4)


def test_an_object_with_slots_is_given_its_tensor_at_each_call() -> None:
    def keeps(x: torch.Tensor) -> torch.Tensor:
        before = slotted.kept
        slotted.kept = x * 2
        return x if before is None else x + before

    hybrid = weft.hybridize(keeps)
    found = [hybrid(torch.full((1,), float(number))).item() for number in range(1, 5)]
    assert found == [1.0, 4.0, 7.0, 10.0]
    assert slotted.kept.item() == 8.0
    slotted.kept = None


def test_computed_attributes_of_installed_classes_are_not_followed() -> None:
    folder, event = Path("a/b"), threading.Event()
    hybrid = weft.hybridize(lambda x: x * len(folder.parent.parent.name) + event.is_set())
    hybrid(torch.ones(1))
    (group,) = hybrid.programs.values()
    paths = {fact.path for fact in group[0]._facts}
    assert not [path for path in paths if "parent" in path or path.startswith("Event.")]


def test_of_the_standard_library_only_what_code_mentions_is_looked_into() -> None:
    hybrid = weft.hybridize(lambda x: x * len(types.__name__))
    assert torch.equal(hybrid(torch.ones(1)), torch.full((1,), 5.0))
    (group,) = hybrid.programs.values()
    assert [fact.path for fact in group[0]._facts if fact.path.startswith("types.")] == ["types.__name__"]


A = 1.0


def test_a_global_name_is_none_of_an_attribute_that_is_called_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder(torch.ones(2))
    holder.A = torch.ones(3)  # type: ignore[attr-defined]

    @weft.hybridize
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * holder.A  # type: ignore[attr-defined, no-any-return]

    for value in (2.0, 3.0, 4.0):
        monkeypatch.setitem(globals(), "A", value)
        assert doubled(torch.ones(3)).tolist() == [1.0] * 3
    assert doubled.traces == 1  # type: ignore[attr-defined]


def test_a_global_name_that_is_asked_for_by_text_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    @weft.hybridize
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * globals()["A"]  # type: ignore[no-any-return]

    for value in (2.0, 3.0):
        monkeypatch.setitem(globals(), "A", value)
        assert scaled(torch.ones(1)).item() == value


def test_global_names_are_those_that_instructions_read() -> None:
    for function in (
        argparse.ArgumentParser.parse_known_args,
        functools.singledispatch,
        torch.nn.functional.layer_norm,
    ):
        codes, expected = [function.__code__], set[str]()
        while codes:
            code = codes.pop()
            codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
            instructions = dis.get_instructions(code)
            expected |= {found.argval for found in instructions if found.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        assert expected
        assert set(global_names(function.__code__)) == expected


def test_what_code_mentions_is_looked_for_once_and_code_that_changes_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def one() -> object:
        return unknown_one  # type: ignore[name-defined] # noqa: F821

    def other() -> object:
        return unknown_other  # type: ignore[name-defined] # noqa: F821

    assert mentioned(one.__code__) is mentioned(one.__code__)
    assert global_names(one.__code__) == ("unknown_one",)
    one.__code__ = other.__code__
    assert global_names(one.__code__) == ("unknown_other",)
    monkeypatch.setattr("weft.trace.python_state.names.MOST_CODE", 2)
    made = [eval(f"lambda: name_{number}").__code__ for number in range(9)]
    assert [global_names(code) for code in made * 2] == [(f"name_{number}",) for number in range(9)] * 2


def test_code_without_such_instructions_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[Any]()
    instructions = dis.get_instructions
    monkeypatch.setattr(dis, "get_instructions", lambda code: taken.append(code) or instructions(code))
    questions = (compares_identity, asks_kinds, imported)
    plain = (lambda x: x.relu() + 1).__code__
    assert [question(plain) for question in questions] == [False, False, frozenset()]
    assert not taken

    def code(x: Any, y: Any) -> Any:
        import math

        return math.pi if x is y or x is True else 0

    assert [question(code.__code__) for question in questions] == [True, True, frozenset({"math"})]
    assert taken == [code.__code__] * 3
