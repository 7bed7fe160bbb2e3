"""What a function does to the containers and objects that it is given, it does at each call of its program."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import weft

pytestmark = pytest.mark.usefixtures("by_library")
CALLS = 3


class Pair(NamedTuple):
    left: Any
    right: Any


def one() -> torch.Tensor:
    return torch.ones(2)


def numbered() -> dict[str, Any]:
    return {"x": torch.arange(3.0), "y": torch.ones(3), "n": 2}


# -- each of these changes what it is given, or hands it on ------------------------------------------------------------


def puts(batch: Any) -> Any:
    batch["h"] = batch["x"] * 2


def replaces(batch: Any) -> Any:
    batch["x"] = batch["x"] + 1
    return batch["x"]


def pops(batch: Any) -> Any:
    return batch.pop("x") + batch.pop("missing", 3)


def deletes(batch: Any) -> Any:
    del batch["y"]
    return batch["x"].sum()


def renames(batch: Any) -> Any:
    batch["z"] = batch.pop("x")
    return batch


def moves_to_the_end(batch: Any) -> Any:
    batch["x"] = batch.pop("x") * 2
    batch["y"] = batch.pop("y")
    return list(batch)


def clears(batch: Any) -> Any:
    total = batch["x"] + batch["y"]
    batch.clear()
    batch["total"] = total
    return batch


def updates(batch: Any) -> Any:
    batch.update(a=batch["x"] * 2, b={"c": batch["y"]})
    batch.setdefault("a", None)
    batch.setdefault("d", [batch["x"]])
    return batch["b"]["c"] + 1


def puts_itself(batch: Any) -> Any:
    batch["self"] = [batch["x"], batch]
    return len(batch)


def swaps(batch: Any) -> Any:
    batch["x"], batch["y"] = batch["y"], batch["x"]
    return batch


def counts(batch: Any) -> Any:
    batch["n"] += 1
    return batch["x"] * batch["n"]


def gives_it_nested(batch: Any) -> Any:
    return {"batch": batch, "again": (batch, batch["x"] * 2)}


def shares_what_is_new(batch: Any) -> Any:
    made = {"h": batch["x"] * 2}
    batch["made"] = made
    return made, [made]


def appends(rows: Any) -> Any:
    rows.append(rows[0] * 2)


def looks_at_the_length(rows: Any) -> Any:
    rows.append(rows[0] * len(rows))
    return len(rows)


def inserts(rows: Any) -> Any:
    rows.insert(0, rows[-1] + 1)
    rows.extend([rows[1], 3])
    return rows


def reverses(rows: Any) -> Any:
    rows.reverse()
    return rows[0]


def drops(rows: Any) -> Any:
    last = rows.pop()
    rows[:] = [row * 2 for row in rows]
    return last


def adds_in_place(rows: Any) -> Any:
    rows += [rows[0]]
    rows *= 2
    return rows


def sets_an_item(rows: Any) -> Any:
    rows[0] = rows[0] + 1
    return rows


def nests(rows: Any) -> Any:
    rows.append([rows[0], {"h": rows[1] * 2}])
    rows[-1].append(rows)
    return rows[-1][1]


def empties(rows: Any) -> Any:
    total = torch.stack(list(rows)).sum(0)
    del rows[:]
    return total


def rotates(rows: Any) -> Any:
    rows.append(rows.popleft() * 2)
    rows.appendleft(rows[0])
    return rows


def counts_missing(groups: Any) -> Any:
    groups["new"].append(groups["x"][0] * 2)
    return groups["looked at"]


def to_the_end(batch: Any) -> Any:
    batch.move_to_end("x")
    return [*batch]


def inner_only(tree: Any) -> Any:
    tree["a"][0]["h"] = tree["a"][0]["x"] * 2
    tree["a"].append(tree["t"][1])
    tree["t"][0].append(5)
    return tree["a"], tree["t"]


def between(tree: Any) -> Any:
    tree["a"].append(tree["b"].pop())
    tree["b"].append(tree["a"][0])
    tree["c"] = tree["a"]
    return tree["c"] is tree["a"]


ROWS = [
    *((f, numbered) for f in (puts, replaces, pops, deletes, renames, moves_to_the_end, clears, updates, puts_itself)),
    *((f, numbered) for f in (swaps, counts, gives_it_nested, shares_what_is_new)),
    *((f, lambda: OrderedDict(numbered())) for f in (puts, renames, moves_to_the_end, to_the_end, clears)),
    *((f, lambda: [one(), one() * 2]) for f in (appends, looks_at_the_length, inserts, reverses, drops)),
    *((f, lambda: [one(), one() * 2]) for f in (adds_in_place, sets_an_item, nests, empties)),
    *((f, lambda: deque([one(), one() * 2, one() * 3], 3)) for f in (rotates, appends, reverses, sets_an_item)),
    (counts_missing, lambda: defaultdict(list, x=[one()])),
    (inner_only, lambda: {"a": [{"x": one()}], "t": ([1], one())}),
    (between, lambda: {"a": [one()], "b": [one() * 2, one() * 3]}),
]


def seen(thing: Any, known: dict[int, int] | None = None) -> Any:
    """What a thing is, with a number for each object in it: two that are one have one number."""
    known = {} if known is None else known
    if isinstance(thing, torch.Tensor):
        return ("tensor", known.setdefault(id(thing), len(known)), thing.tolist(), thing.requires_grad)
    if isinstance(thing, (str, int, float, type(None))):
        return (type(thing), thing)
    if id(thing) in known:
        return ("again", known[id(thing)])
    number = known.setdefault(id(thing), len(known))
    inside = (
        [(key, seen(item, known)) for key, item in thing.items()]
        if isinstance(thing, (dict, UserDict))
        else [seen(item, known) for item in thing]
        if isinstance(thing, (list, tuple, deque))
        else [(name, seen(item, known)) for name, item in vars(thing).items()]
    )
    return (type(thing).__name__, None if thing == () else number, inside)


@pytest.mark.parametrize(("function", "made"), ROWS, ids=[function.__name__ for function, _ in ROWS])
def test_what_is_given_is_after_each_call_what_eager_leaves(function: Callable[[Any], Any], made: Any) -> None:
    hybrid = weft.hybridize(function)
    for _ in range(CALLS):
        ours, theirs = made(), made()
        left = hybrid(ours), ours
        expected = function(theirs), theirs
        assert seen(left) == seen(expected)


CHANGING_LOOKS = [puts, replaces, updates, gives_it_nested, appends, looks_at_the_length, inserts, sets_an_item]


@pytest.mark.parametrize("function", CHANGING_LOOKS, ids=[function.__name__ for function in CHANGING_LOOKS])
def test_the_same_container_may_be_given_again(function: Callable[[Any], Any]) -> None:
    hybrid = weft.hybridize(function)
    of_rows = function in (appends, looks_at_the_length, inserts, sets_an_item)
    ours, theirs = ([one(), one() * 2], [one(), one() * 2]) if of_rows else (numbered(), numbered())
    for _ in range(2):
        left = hybrid(ours), ours
        expected = function(theirs), theirs
        assert seen(left) == seen(expected)


def test_one_container_that_is_given_twice_is_one() -> None:
    def both(left: Any, right: Any) -> Any:
        left["h"] = left["x"] + 1
        return right.get("h"), left is right, right

    hybrid = weft.hybridize(both)
    for _ in range(CALLS):
        for twice in (True, False, True):
            ours, theirs = numbered(), numbered()
            others = [(batch, batch if twice else numbered()) for batch in (ours, theirs)]
            assert seen((hybrid(*others[0]), *others[0])) == seen((both(*others[1]), *others[1]))


def test_lists_that_take_turns_in_being_one_are_told_apart_on_the_quick_way() -> None:
    def both(left: list[Any], right: list[Any]) -> Any:
        left.append(left[0] * 2)
        return len(right), right[-1] + 0

    hybrid = weft.hybridize(both)
    for number in range(12):
        ours, theirs = [one()], [one()]
        mine, yours = (
            (ours, [one()]) if number % 3 else (ours, ours),
            (theirs, [one()]) if number % 3 else (theirs,) * 2,
        )
        assert seen((hybrid(*mine), mine)) == seen((both(*yours), yours))


def test_what_is_nested_in_arguments_and_one_stays_one() -> None:
    def rows_of(tree: Any, *, more: Any) -> Any:
        tree[0].append(more[0] * 2)
        more.append(len(tree[1]))
        return tree[1], more

    hybrid = weft.hybridize(rows_of)
    for _ in range(CALLS):
        row, other = [one()], [one()]
        assert seen((hybrid((row, row), more=row), row)) == seen((rows_of((other, other), more=other), other))


def test_named_tuples_and_tuples_are_the_ones_that_were_given() -> None:
    hybrid = weft.hybridize(lambda pair, other: (pair, other, pair.left * 2, [pair]))
    for _ in range(CALLS):
        pair, other = Pair(one(), [one()]), (one(), 3)
        found = hybrid(pair, other)
        assert found[0] is pair
        assert found[1] is other
        assert found[3][0] is pair


def test_two_tuples_are_two_where_one_was_given_twice_before() -> None:
    hybrid = weft.hybridize(lambda left, right: (right, left[0] + right[0]))
    pair, other = (one(),), (one() * 2,)
    assert hybrid(pair, pair)[0] is pair
    found, total = hybrid(pair, other)
    assert found is other
    assert total.tolist() == [3, 3]


# -- objects ----------------------------------------------------------------------------------------------------


@dataclass
class Batch:
    x: torch.Tensor
    h: Any = None
    rows: list[Any] = field(default_factory=list)


class Cache:
    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None

    def update(self, keys: torch.Tensor) -> torch.Tensor:
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], 1)
        return self.keys


class Slots:
    __slots__ = ("h", "x")

    def __init__(self) -> None:
        self.x = one()


def test_an_object_that_is_given_is_given_back_with_what_was_put_in_it() -> None:
    def work(batch: Any) -> Any:
        batch.h = batch.x * 2
        batch.rows.append(batch.h)
        return {"batch": batch}, batch.rows

    hybrid = weft.hybridize(work)
    ours, theirs = Batch(one()), Batch(one())
    for _ in range(CALLS):
        assert seen((hybrid(ours), ours)) == seen((work(theirs), theirs))


@pytest.mark.parametrize("made", [SimpleNamespace, Slots])
def test_new_objects_at_each_call_get_what_eager_gives_them(made: Any) -> None:
    def work(thing: Any) -> Any:
        thing.h = thing.x * 2
        return thing

    hybrid = weft.hybridize(work)
    for _ in range(CALLS):
        thing = made()
        thing.x = torch.randn(2)
        assert hybrid(thing) is thing
        assert torch.equal(thing.h, thing.x * 2)


def test_a_cache_in_a_dictionary_grows_as_in_eager() -> None:
    def step(x: torch.Tensor, caches: dict[str, Cache]) -> torch.Tensor:
        return caches["keys"].update(x).sum()

    hybrid, ours, theirs = weft.hybridize(step), {"keys": Cache()}, {"keys": Cache()}
    for number in range(4):
        x = torch.full((1, 1), float(number))
        assert hybrid(x, ours) == step(x, theirs)
        assert torch.equal(ours["keys"].keys, theirs["keys"].keys)


def test_a_module_gives_back_itself_and_what_it_holds() -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = [one()]
            self.table = {"a": [one()]}
            self.pair = (one(), 3)
            self.last: Any = None

        def forward(self, x: torch.Tensor) -> Any:
            self.table["h"] = x * 2
            before, self.last = self.last, {"x": x + 1}
            return self, self.rows, self.table, self.pair, self.table["a"], self.last, before

    eager, net = Holds(), weft.hybridize(Holds())
    for _ in range(CALLS):
        before = net.last
        found = net(one())
        assert found[0] is net
        assert found[1] is net.rows
        assert found[2] is net.table
        assert found[3] is net.pair
        assert found[4] is net.table["a"]
        assert found[5] is net.last
        assert found[6] is before
        assert seen(found[1:]) == seen(eager(one())[1:])
        net.rows, eager.rows = [one() * 2], [one() * 2]


# -- gradients, steps, other ways --------------------------------------------------------------------------------


def test_gradients_flow_through_what_was_put_in_a_batch() -> None:
    def work(batch: Any) -> Any:
        batch["h"] = batch["x"] * batch["w"]
        return batch

    for function in (work, weft.hybridize(work)):
        for _ in range(CALLS):
            weight = torch.ones(3, requires_grad=True)
            batch = {"x": torch.arange(3.0), "w": weight}
            function(batch)["h"].sum().backward()
            assert weight.grad.tolist() == [0, 1, 2]
            assert batch["w"] is weight


def test_a_step_leaves_in_its_batch_what_eager_leaves() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            batch["h"] = batch["x"] * self.scale
            batch["rows"].append(batch["h"].sum())
            return batch["h"]

    net = Net()
    eager = copy.deepcopy(net)
    step = weft.step(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1))
    optimizer = torch.optim.SGD(eager.parameters(), 0.1)
    for _ in range(4):
        ours, theirs = ({"x": torch.arange(3.0), "rows": []} for _ in range(2))
        loss = step(ours, torch.zeros(3))
        expected = nn.functional.mse_loss(eager(theirs), torch.zeros(3))
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(ours["h"], theirs["h"].detach())
        torch.testing.assert_close(ours["rows"], [theirs["rows"][0].detach()])


def test_what_fails_half_way_has_left_what_eager_leaves() -> None:
    def work(batch: dict[str, Any]) -> None:
        batch["h"] = batch["x"] * 2
        raise KeyError("no more")

    batch = numbered()
    with pytest.raises(KeyError, match="no more"):
        weft.hybridize(work)(batch)
    assert batch["h"].tolist() == [0, 2, 4]


def test_what_is_refused_has_changed_nothing() -> None:
    def work(batch: dict[str, Any]) -> Any:
        batch["h"] = batch["x"] * 2
        return batch["x"].tolist()

    batch = numbered()
    with pytest.raises(weft.UnsupportedError):
        weft.hybridize(work)(batch)
    assert list(batch) == ["x", "y", "n"]
    with pytest.warns(UserWarning, match="runs imperatively"):
        assert weft.hybridize(work, fallback="eager")(batch) == [0, 1, 2]
    assert list(batch) == ["x", "y", "n", "h"]


def test_lazily_and_for_dynamo_it_is_the_same() -> None:
    ours = numbered()
    with weft.lazy():
        puts(ours)
    assert ours["h"].tolist() == [0, 2, 4]
    compiled = torch.compile(puts, backend="weft")
    for _ in range(2):
        ours = numbered()
        compiled(ours)
        assert ours["h"].tolist() == [0, 2, 4]


def test_a_program_that_changes_or_hands_on_what_it_is_given_has_no_file(tmp_path: Any) -> None:
    with pytest.raises(weft.UnsupportedError, match="changes a container among its arguments"):
        weft.program(puts, numbered()).save(tmp_path / "a.weft")
    with pytest.raises(weft.UnsupportedError, match="gives back a container that was there before"):
        weft.program(gives_it_nested, numbered()).save(tmp_path / "a.weft")
    assert "program 1" in str(weft.explain(hybrid := weft.hybridize(puts))) or not hybrid(numbered())
