"""What a function changes in Python objects that it reaches by itself it changes at each call, or it is refused."""

from __future__ import annotations

import types
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.api.test_argument_effects import seen
from torch import nn

import weft

pytestmark = pytest.mark.usefixtures("by_library")
CALLS = 6


class Tally:
    total: ClassVar[int] = 0

    def __init__(self) -> None:
        self.count = 0
        self.names: list[str] = []

    def up(self, by: int = 1) -> int:
        self.count += by
        return self.count


class Room:
    """All that a function below may touch; a new one for eager, and one for the hybridized function."""

    def __init__(self) -> None:
        self.number = 0
        self.flag = False
        self.mode: Any = None
        self.text = "a"
        self.rows: list[Any] = [1, 2]
        self.table: dict[str, Any] = {"n": 0, "old": 3}
        self.counts: Counter[str] = Counter()
        self.groups: defaultdict[str, list[Any]] = defaultdict(list)
        self.ordered = OrderedDict(a=1, b=2)
        self.queue: deque[Any] = deque([1, 2, 3])
        self.window: deque[Any] = deque([0, 0], 2)
        self.members = {1, 2}
        self.bytes = bytearray(b"ab")
        self.array = array("i", [1, 2])
        self.numbers = np.zeros(3)
        self.tally = Tally()
        self.nested: dict[str, Any] = {"a": [{"n": 5}]}
        self.kind = type("Kind", (), {"steps": 0, "mode": "new"})
        self.module = types.ModuleType("settings_of_a_test")
        self.module.__dict__.update(steps=0, kept=None)


Work = Callable[[Room, torch.Tensor], Any]


def number(room: Room, x: torch.Tensor) -> Any:
    room.number += 1
    return x * room.number


def number_by_itself(room: Room, x: torch.Tensor) -> Any:
    room.number = 2 * room.number + 1
    return x, room.number


def number_compared(room: Room, x: torch.Tensor) -> Any:
    room.number += 1
    return x * 10 if room.number > 3 else x + room.number


def every_third(room: Room, x: torch.Tensor) -> Any:
    room.number += 1
    return x * 10 if room.number % 3 == 0 else x


def takes_turns(room: Room, x: torch.Tensor) -> Any:
    room.number = (room.number + 1) % 3
    return x * [2.0, 3.0, 4.0][room.number]


def toggles(room: Room, x: torch.Tensor) -> Any:
    room.flag = not room.flag
    return x * 2 if room.flag else x


def once(room: Room, x: torch.Tensor) -> Any:
    if room.mode is None:
        room.mode = "started"
        return x * 2
    return x * 3


def counts_in_a_table(room: Room, x: torch.Tensor) -> Any:
    room.table["n"] += 2
    room.table["last"] = "seen"
    return x * room.table["n"]


def counts_in_a_counter(room: Room, x: torch.Tensor) -> Any:
    room.counts["calls"] += 1
    room.counts.update(["x", "x"])
    return x + room.counts["x"]


def counts_in_a_list(room: Room, x: torch.Tensor) -> Any:
    room.rows[0] += 1
    return x * room.rows[0]


def counts_deep_inside(room: Room, x: torch.Tensor) -> Any:
    room.nested["a"][0]["n"] += 1
    return x * room.nested["a"][0]["n"]


def by_method(room: Room, x: torch.Tensor) -> Any:
    return x * room.tally.up() + room.tally.up(2)


def in_a_class(room: Room, x: torch.Tensor) -> Any:
    room.kind.steps += 1
    return x * room.kind.steps


def in_a_python_module(room: Room, x: torch.Tensor) -> Any:
    room.module.steps += 1
    room.module.kept = x * 2
    return x * room.module.steps


def of_a_class_method(room: Room, x: torch.Tensor) -> Any:
    room.kind.mode = "used"
    return x * 2 if room.kind.mode == "new" else x


def removes(room: Room, x: torch.Tensor) -> Any:
    room.table.pop("old", None)
    return x * len(room.table)


def reorders(room: Room, x: torch.Tensor) -> Any:
    room.ordered.move_to_end("a")
    room.table["old"] = room.table.pop("old")
    return x, list(room.ordered), list(room.table)


def adds_to_a_set(room: Room, x: torch.Tensor) -> Any:
    room.members.add(7)
    room.members.discard(1)
    return x * len(room.members)


def appends_blindly(room: Room, x: torch.Tensor) -> Any:
    room.rows.append(3)
    room.queue.append("b")
    return x * 2


def appends_a_tensor_and_a_text(room: Room, x: torch.Tensor) -> Any:
    room.groups["all"].append(x * 2)
    room.tally.names.append("x")
    return x


def replaces_items(room: Room, x: torch.Tensor) -> Any:
    room.rows[:] = [5, 6, 7]
    return x * sum(room.rows)


def rotates(room: Room, x: torch.Tensor) -> Any:
    room.queue.rotate(1)
    return x * room.queue[0]


def keeps_a_window(room: Room, x: torch.Tensor) -> Any:
    room.window.append(x.sum())
    return x + room.window[-1]


def writes_an_array(room: Room, x: torch.Tensor) -> Any:
    room.numbers[1] = 4
    room.array[0] = 9
    room.bytes[0] = 65
    return x * float(room.numbers[1])


def several_at_once(room: Room, x: torch.Tensor) -> Any:
    room.number, room.table["n"] = room.number + 1, room.number
    room.mode = {"x": x}
    return x * room.table["n"], room.mode


def hands_on_a_number(room: Room, x: torch.Tensor) -> Any:
    room.number += 3
    return x, {"n": room.number, "again": [room.number * 2]}


def divides(room: Room, x: torch.Tensor) -> Any:
    room.number -= 7
    return x, room.number // 4, room.number % 5, -room.number


def swaps(room: Room, x: torch.Tensor) -> Any:
    room.table["n"], room.table["old"] = room.table["old"], room.table["n"]
    return x * room.table["n"]


def new_objects(room: Room, x: torch.Tensor) -> Any:
    room.mode = [1, {"a": 2}]
    room.mode.append(room.mode[1])
    return x, room.mode


def fills_a_table_by_length(room: Room, x: torch.Tensor) -> Any:
    if len(x) not in room.table:
        room.table[len(x)] = len(x) * 2
    return x * room.table[len(x)]


WORK: list[Work] = [
    *(number, number_by_itself, number_compared, every_third, takes_turns, toggles, once, counts_in_a_table),
    *(counts_in_a_counter, counts_in_a_list, counts_deep_inside, by_method, in_a_class, in_a_python_module),
    *(of_a_class_method, removes, reorders, adds_to_a_set, appends_blindly, appends_a_tensor_and_a_text),
    *(replaces_items, rotates, keeps_a_window, writes_an_array, several_at_once, hands_on_a_number, divides, swaps),
    *(new_objects, fills_a_table_by_length),
]
PLACES = ["rows", "table", "counts", "groups", "ordered", "queue", "window", "nested", "mode"]


def state_of(room: Room) -> Any:
    others = [sorted(room.members), bytes(room.bytes), room.array.tolist(), room.numbers.tolist(), room.text]
    kept = room.module.kept
    numbers = [room.number, room.flag, room.tally.count, room.tally.names, room.kind.steps, room.kind.mode]
    return others, seen([numbers, room.module.steps, *(getattr(room, name) for name in PLACES)]), seen([kept])


def in_a_closure(work: Work, room: Room) -> Any:
    return weft.hybridize(lambda x: work(room, x))


def in_a_module(work: Work, room: Room) -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.room = room

        def forward(self, x: torch.Tensor) -> Any:
            return work(self.room, x)

    return weft.hybridize(Net())


def as_an_argument(work: Work, room: Room) -> Any:
    hybrid = weft.hybridize(work)
    return lambda x: hybrid(room, x)


@pytest.mark.parametrize("way", [in_a_closure, in_a_module, as_an_argument])
@pytest.mark.parametrize("work", WORK, ids=[work.__name__ for work in WORK])
def test_what_is_left_after_each_call_is_what_eager_leaves(work: Work, way: Any) -> None:
    ours, theirs = Room(), Room()
    hybrid = way(work, ours)
    for call in range(CALLS):
        x = torch.arange(3.0) + call
        found, expected = hybrid(x), work(theirs, x)
        assert seen([found]) == seen([expected])
        assert state_of(ours) == state_of(theirs)


@pytest.mark.parametrize("work", [number, number_by_itself, counts_in_a_list, counts_deep_inside, in_a_class])
def test_one_program_does_for_all_counts(work: Work) -> None:
    room = Room()
    hybrid = in_a_closure(work, room)
    for _ in range(CALLS):
        hybrid(torch.ones(2))
    assert hybrid.traces == 1


def test_a_number_that_somebody_else_sets_is_the_one_that_is_counted_on() -> None:
    room = Room()
    hybrid = in_a_closure(number, room)
    for value in (5, -3, 10**12, True):
        room.number = value
        assert hybrid(torch.ones(1, dtype=torch.float64)).item() == value + 1
        assert room.number == value + 1


def number_of_columns(room: Room, x: torch.Tensor) -> Any:
    room.number += 1
    return x[:, : room.number]


def length_of_a_list(room: Room, x: torch.Tensor) -> Any:
    room.rows.append(1)
    return x * len(room.rows)


def counts_in_an_array(room: Room, x: torch.Tensor) -> Any:
    room.numbers[0] += 1
    return x


def longer_text(room: Room, x: torch.Tensor) -> Any:
    room.text += "b"
    return x * len(room.text)


def grows_a_set(room: Room, x: torch.Tensor) -> Any:
    room.members.add(len(room.members) + 10)
    return x


def counts_by_fractions(room: Room, x: torch.Tensor) -> Any:
    room.table["n"] = float(room.table["n"]) + 0.1
    return x * room.table["n"]


RESTLESS = {
    number_of_columns: "room.number += 1",
    length_of_a_list: "room.rows.append(1)",
    counts_in_an_array: "room.numbers[0] += 1",
    longer_text: 'room.text += "b"',
    counts_by_fractions: 'room.table["n"] = float(room.table["n"]) + 0.1',
    grows_a_set: "room.members.add(len(room.members) + 10)",
}


@pytest.mark.parametrize("work", RESTLESS, ids=lambda work: work.__name__)
def test_what_would_need_a_program_a_call_is_refused_at_the_first_one(work: Work) -> None:
    room = Room()
    before = state_of(room)
    with pytest.raises(weft.UnsupportedError) as caught:
        in_a_closure(work, room)(torch.ones(2, 40))
    assert RESTLESS[work] in str(caught.value.where)
    assert state_of(room) == before
    with pytest.warns(UserWarning, match="runs imperatively"):
        weft.hybridize(lambda x: work(room, x), fallback="eager")(torch.ones(2, 40))
    assert state_of(room) != before


calls = 0
log: list[Any] = []


def counts_globally(x: torch.Tensor) -> torch.Tensor:
    global calls  # noqa: PLW0603
    calls += 1
    log.append(calls)
    return x * calls


def with_default(x: torch.Tensor, kept: list[Any] = []) -> torch.Tensor:  # noqa: B006
    kept[:] = [x * 2]
    return x + kept[0]


def with_attribute(x: torch.Tensor) -> torch.Tensor:
    with_attribute.calls += 1  # type: ignore[attr-defined]
    return x * with_attribute.calls  # type: ignore[attr-defined]


def test_global_names_and_attributes_and_defaults_of_functions_are_changed_at_each_call() -> None:
    global calls
    calls, with_attribute.calls = 0, 0  # type: ignore[attr-defined]
    log.clear()
    hybrid, other, defaulted = map(weft.hybridize, (counts_globally, with_attribute, with_default))
    for call in range(1, 5):
        assert hybrid(torch.ones(1)).item() == call
        assert other(torch.ones(1)).item() == call
        assert defaulted(torch.full((1,), float(call))).item() == 3 * call
        assert with_default.__defaults__[0][0].item() == 2 * call  # type: ignore[index]
    assert log == [1, 2, 3, 4]
    assert (calls, with_attribute.calls) == (4, 4)  # type: ignore[attr-defined]


def test_a_closed_over_name_is_rebound_at_each_call() -> None:
    def made() -> Any:
        count, last = 0, None

        def function(x: torch.Tensor) -> Any:
            nonlocal count, last
            count += 1
            before, last = last, x * count
            return count, before

        return function

    hybrid, eager = weft.hybridize(made()), made()
    for call in range(4):
        x = torch.full((2,), float(call))
        assert seen(hybrid(x)) == seen(eager(x))


def test_a_step_counts_what_its_loss_counts() -> None:
    room = Room()
    net = nn.Linear(2, 1)

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        room.number += 1
        room.rows.append(0)
        return (out - y).square().mean() * room.number

    step = weft.step(net, loss, torch.optim.SGD(net.parameters(), 0.0))
    first = step(torch.ones(4, 2), torch.zeros(4, 1))
    for call in range(2, 7):
        torch.testing.assert_close(step(torch.ones(4, 2), torch.zeros(4, 1)), first * call)
    assert (room.number, len(room.rows)) == (6, 8)


def test_lazily_python_runs_each_time() -> None:
    room = Room()
    with weft.lazy():
        found = [weft.wait(number(room, torch.ones(1))).item() for _ in range(3)]
    assert (found, room.number) == ([1, 2, 3], 3)


def test_a_program_that_counts_has_no_file(tmp_path: Any) -> None:
    room = Room()
    with pytest.raises(weft.UnsupportedError, match="counts in a Python object, which a program file cannot"):
        weft.program(lambda x: number(room, x), torch.ones(2)).save(tmp_path / "a.weft")
    assert room.number == 0
