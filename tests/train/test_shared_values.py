"""What a checkpoint holds once, however many ways lead to it, is read and written once, and is one afterwards."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.train.checkpoints.converting import convert
from weft.train.checkpoints.examining import difference
from weft.train.checkpoints.foreign_file import plain
from weft.train.checkpoints.values import decode, encode

DEPTH = 90
Joined = Callable[[Any], Any]
JOINED: dict[str, Joined] = {
    "lists": lambda x: [x, x],
    "tuples": lambda x: (x, x),
    "dictionaries": lambda x: {"a": x, "b": x},
    "ordered": lambda x: OrderedDict(a=x, b=x),
    "mixed": lambda x: [{"a": x}, (x, [x])],
}


def nested(join: Joined, depth: int = DEPTH, leaf: Any = None) -> Any:
    value: Any = [1] if leaf is None else leaf
    for _ in range(depth):
        value = join(value)
    return value


def doubled(value: Any) -> int:
    """Count the levels at which both ways lead to one thing."""
    count = 0
    while isinstance(value, (list, tuple, dict)) and len(value) == 2:
        one, other = value.values() if isinstance(value, dict) else value
        assert one is other
        value, count = one, count + 1
    return count


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", JOINED)
def test_a_small_file_of_shared_values_is_read_at_once(name: str, tmp_path: Path) -> None:
    depth = DEPTH if name != "mixed" else 30
    value = nested(JOINED[name], depth)
    torch.save({"model": {"w": torch.ones(1)}, "history": value}, tmp_path / "x.pt")
    found = weft.load(tmp_path / "x.pt")["history"]
    if name != "mixed":
        assert doubled(found) == DEPTH
    weft.save(tmp_path / "x.safetensors", torch.nn.Linear(1, 1), history=found)
    assert (tmp_path / "x.safetensors").stat().st_size < 60_000
    again = weft.load(tmp_path / "x.safetensors")["history"]
    if name != "mixed":
        assert doubled(again) == DEPTH
    convert(tmp_path / "x.pt", tmp_path / "y.safetensors")
    convert(tmp_path / "y.safetensors", tmp_path / "y.pt")
    assert type(weft.load(tmp_path / "y.pt")["history"]) is type(value)


@pytest.mark.timeout(30)
def test_arrays_in_shared_tuples_are_read_once(tmp_path: Path) -> None:
    value = nested(lambda x: (x, x), 40, leaf=np.arange(3))
    torch.save({"model": {"w": torch.ones(1)}, "v": value}, tmp_path / "x.pt")
    found = weft.load(tmp_path / "x.pt")["v"]
    for _ in range(40):
        assert found[0] is found[1]
        found = found[0]
    assert found.tolist() == [0, 1, 2]


@pytest.mark.timeout(30)
def test_tables_that_share_what_they_hold_are_told_at_once_to_be_no_model(tmp_path: Path) -> None:
    value = nested(lambda x: {"t": torch.ones(1), "a": x, "b": x}, 60, leaf={"t": torch.ones(1)})
    torch.save(value, tmp_path / "x.pt")
    with pytest.raises(weft.CheckpointError, match="not clear where in it the model's tensors are"):
        weft.load(tmp_path / "x.pt")


@pytest.mark.timeout(30)
def test_files_whose_values_are_shared_are_compared_at_once(tmp_path: Path) -> None:
    for name, leaf in (("a", [1]), ("b", [1]), ("c", [2])):
        torch.save({"w": torch.ones(1), "extra": nested(JOINED["lists"], 60, leaf)}, tmp_path / f"{name}.pt")
    assert difference(tmp_path / "a.pt", tmp_path / "b.pt").same
    assert [each.name for each in difference(tmp_path / "a.pt", tmp_path / "c.pt").changed] == ["extra"]


def circle(kind: str) -> Any:
    inner: list[Any] = [1]
    inner.append({"list": inner, "dict": {"x": inner}, "tuple": (inner,), "far": [[(inner, 1)]]}[kind])
    return inner


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["list", "dict", "tuple", "far"])
def test_a_circle_is_kept_where_it_can_be_and_else_one_error(kind: str, tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(1)}, "v": circle(kind)}, tmp_path / "x.pt")
    found = weft.load(tmp_path / "x.pt")["v"]
    assert found[0] == 1
    with pytest.raises(weft.UnsupportedError, match=r"cannot be stored in a checkpoint\n  why   it holds itself"):
        weft.save(tmp_path / "y", torch.nn.Linear(1, 1), v=found)
    assert not (tmp_path / "y").exists()


@pytest.mark.timeout(30)
def test_a_tuple_in_a_circle_cannot_be_made_anew() -> None:
    value: list[Any] = []
    value.append((value, 1))
    with pytest.raises(weft.UsageError, match="a tuple that holds itself"):
        plain(value[0])


def test_a_circle_of_dictionaries_with_two_ways_is_one_error(tmp_path: Path) -> None:
    value: dict[str, Any] = {}
    value.update(a=value, b=value)
    with pytest.raises(weft.UnsupportedError, match="it holds itself"):
        weft.save(tmp_path / "y", torch.nn.Linear(1, 1), v=value)


@pytest.mark.parametrize("depth", [99, 103, 100_000])
def test_values_that_nest_deeply_come_back_or_are_one_error(depth: int, tmp_path: Path) -> None:
    value = nested(lambda x: [x], depth)
    if depth < 100:
        weft.save(tmp_path / "x", torch.nn.Linear(1, 1), v=value)
        assert weft.load(tmp_path / "x")["v"] == value
        return
    with pytest.raises(weft.UnsupportedError, match="it nests too deeply"):
        weft.save(tmp_path / "x", torch.nn.Linear(1, 1), v=value)


def test_names_with_many_dots_do_not_nest(tmp_path: Path) -> None:
    value = {"a" + ".b" * 300: [torch.ones(2)]}
    weft.save(tmp_path / "x", torch.nn.Linear(1, 1), v=value)
    assert torch.equal(weft.load(tmp_path / "x")["v"]["a" + ".b" * 300][0], torch.ones(2))


def test_a_pickle_that_nests_deeply_is_an_error_of_checkpoints(tmp_path: Path) -> None:
    pickled = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
    torch.save({"w": torch.ones(1)}, tmp_path / "x.pt")
    (tmp_path / "old.pt").write_bytes(pickled)
    with pytest.raises(weft.CheckpointError):
        weft.load(tmp_path / "old.pt", verify=False)


def test_what_is_shared_is_one_and_what_is_equal_is_two() -> None:
    tensor, shared, equal = torch.ones(2), [1, 2], [1, 2]
    betas = (0.9, 0.999)
    value = {"a": shared, "b": shared, "c": equal, "t": [tensor, betas, betas], "d": {"s": shared}}
    tensors: dict[str, torch.Tensor] = {}
    data = encode(value, "#v", tensors)
    assert str(data).count("'shared'") == 1
    assert str(data).count("'again'") == 2
    found = decode(data, tensors)
    assert found == value
    assert found["a"] is found["b"] is found["d"]["s"]
    assert found["c"] is not found["a"]


@pytest.mark.parametrize(
    "data",
    [
        {"again": 0},
        {"again": [0]},
        {"shared": 3},
        {"shared": []},
        {"shared": [[], 1]},
        [{"again": 0}, {"shared": [0, 1]}],
        {"shared": [0, {"again": 0}]},
    ],
    ids=str,
)
def test_numbers_that_name_nothing_have_no_meaning(data: Any) -> None:
    with pytest.raises(weft.UsageError, match="a value in it has no meaning"):
        decode(data, {})


def test_other_values_come_back_as_they_were_beside_shared_ones() -> None:
    inner = {1, 2}
    value = [
        inner,
        inner,
        frozenset({3}),
        b"x",
        1j,
        float("inf"),
        torch.Size([2]),
        np.float32(2),
        defaultdict(int, a=1),
    ]
    found = decode(encode(value, "v", {}), {})
    assert found[0] is found[1]
    assert found == value
