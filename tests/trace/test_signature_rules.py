"""Keys tell apart all that programs depend on and nothing else, pair by pair; sentences name the first difference."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest
import torch

from weft.errors import UnsupportedError
from weft.trace.interception.capture import tree_flatten
from weft.trace.interception.modes import autocast_now
from weft.trace.signature import (
    ByIdentity,
    key_change,
    key_distance,
    leaf_key,
    leaf_text,
    memory_key,
    modes_key,
    names_of_leaves,
    number_of,
    tensor_change,
    tensor_key,
    without_sizes,
)


class Thing:
    """Something Weft knows nothing about."""


ONE, OTHER = Thing(), Thing()
COMPLEX = torch.zeros(2, dtype=torch.complex64)
# Each of these is another argument than each other one.
LEAVES: dict[str, Any] = {
    "0": 0,
    "1": 1,
    "False": False,
    "True": True,
    "0.0": 0.0,
    "-0.0": -0.0,
    "1.0": 1.0,
    "next float": 1.0000000000000002,
    "nan": float("nan"),
    "inf": float("inf"),
    "0j": 0j,
    "1j": 1j,
    "-1j": -1j,
    "1+0j": 1 + 0j,
    "-0.0+0j": complex(-0.0, 0.0),
    "a": "a",
    "b'a'": b"a",
    "empty": "",
    "None": None,
    "float32": torch.float32,
    "float64": torch.float64,
    "cpu": torch.device("cpu"),
    "meta": torch.device("meta"),
    "strided": torch.strided,
    "channels_last": torch.channels_last,
    "a thing": ONE,
    "another thing": OTHER,
    "a tensor": torch.zeros(2, 3),
    "other sizes": torch.zeros(3, 2),
    "fewer sizes": torch.zeros(6),
    "no sizes": torch.zeros(()),
    "transposed": torch.zeros(3, 2).t(),
    "with a step": torch.zeros(2, 6)[:, ::2],
    "another type": torch.zeros(2, 3, dtype=torch.float64),
    "elsewhere": torch.zeros(2, 3, device="meta"),
    "a leaf that trains": torch.zeros(2, 3, requires_grad=True),
    "computed of one": torch.zeros(2, 3, requires_grad=True) * 1,
    "complex": COMPLEX,
    "conjugate": COMPLEX.conj(),
    "negative": COMPLEX.conj().imag,
    "not negative": COMPLEX.imag,
}


@pytest.mark.parametrize("name", LEAVES)
def test_each_of_these_has_another_key_than_all_others(name: str) -> None:
    one = leaf_key(LEAVES[name])
    assert [other for other in LEAVES if leaf_key(LEAVES[other]) == one] == [name]


SAME: list[tuple[Any, Any]] = [
    (torch.zeros(2, 3), torch.ones(2, 3)),
    (torch.zeros(4, 3)[1:3], torch.zeros(2, 3)),
    (float("nan"), -float("nan") * -1),
    (1.5, 1.5),
    ("ab", "a" + "b"),
    (ONE, ONE),
    (torch.zeros(2).conj(), torch.zeros(2)),
    (COMPLEX.conj().conj(), COMPLEX),
]


@pytest.mark.parametrize("number", range(len(SAME)))
def test_what_programs_do_not_depend_on_makes_no_difference(number: int) -> None:
    one, other = map(leaf_key, SAME[number])
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize("value", [0, 1, -7, 1.5, -0.0, float("inf")])
def test_the_number_of_a_key_is_the_number(value: float) -> None:
    found = number_of(leaf_key(value))
    assert type(found) is type(value)
    assert repr(found) == repr(value)


@pytest.mark.parametrize("key", [leaf_key("a"), leaf_key(None), leaf_key(True), (int, "any"), (float, "any")])
def test_what_is_no_number_or_any_has_none(key: Any) -> None:
    assert number_of(key) is None


TEXTS = [
    (leaf_key(1.5), "1.5"),
    (leaf_key(-0.0), "-0.0"),
    (leaf_key(3), "3"),
    (leaf_key("a"), "'a'"),
    (leaf_key(None), "None"),
    ((int, "any"), "any int"),
    ((float, "any"), "any float"),
    (leaf_key(torch.zeros(2, 3)), "float32[2, 3]"),
    (leaf_key(torch.zeros(())), "float32[]"),
]


@pytest.mark.parametrize("key, text", TEXTS)
def test_an_argument_is_named(key: Any, text: str) -> None:
    assert leaf_text(key) == text


@pytest.mark.parametrize(
    "tensor, reason",
    [
        (torch.zeros(2).to_sparse(), "layout"),
        (torch.zeros(2).as_subclass(type("Own", (torch.Tensor,), {})), "Own"),
    ],
)
def test_tensors_that_are_no_plain_ones_are_refused(tensor: torch.Tensor, reason: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        tensor_key(tensor)
    assert reason in str(caught.value) or "sparse" in str(caught.value)


def test_identity_is_of_the_very_thing() -> None:
    assert ByIdentity(ONE) == ByIdentity(ONE)
    assert ByIdentity(ONE) != ByIdentity(OTHER)
    assert ByIdentity(ONE) != ONE
    assert hash(ByIdentity(ONE)) == hash(ByIdentity(ONE))
    assert repr(ByIdentity(ONE)) == f"<Thing at {id(ONE):#x}>"


MODES: dict[str, Any] = {
    "none": torch.enable_grad,
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "float16": lambda: torch.autocast("cpu", torch.float16),
    "a device": lambda: torch.device("meta"),
    "no casts": lambda: torch.autocast("cpu", enabled=False),
}


def test_modes_that_change_operators_have_keys_of_their_own() -> None:
    keys = {}
    for name, mode in MODES.items():
        with mode():
            keys[name] = modes_key()
    assert keys.pop("no casts") == keys["none"]
    assert len(set(keys.values())) == len(keys)
    torch.set_default_dtype(torch.float64)
    try:
        assert modes_key() not in keys.values()
    finally:
        torch.set_default_dtype(torch.float32)
    assert modes_key() == keys["none"]
    assert autocast_now() is None
    with torch.autocast("cpu", torch.bfloat16):
        assert autocast_now() == (("cpu", torch.bfloat16),)


def relations(tensors: list[torch.Tensor], written: list[int]) -> Any:
    """Say what a program that writes may depend on: which share memory with one that is written, and how far apart."""
    starts = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [
        (one, other, tensors[one].storage_offset(), tensors[other].storage_offset())
        for one, other in combinations(range(len(tensors)), 2)
        if starts[one] == starts[other] and any(starts[place] == starts[one] for place in written)
    ]


@pytest.mark.parametrize("seed", range(60))
def test_memory_keys_differ_where_what_is_shared_with_what_is_written_does(seed: int) -> None:
    dice = random.Random(seed)
    count = dice.randrange(1, 5)
    written = dice.sample(range(count), dice.randrange(count + 1))

    def draw() -> list[torch.Tensor]:
        storages = [torch.zeros(12) for _ in range(3)]
        found = []
        for _ in range(count):
            offset = dice.choice((0, 0, 4))
            found.append(dice.choice(storages)[offset : offset + 4])
        return found

    for _ in range(12):
        one, other = draw(), draw()
        same = relations(one, written) == relations(other, written)
        assert (memory_key(one, written) == memory_key(other, written)) is same
        whole = relations(one, range(count)) == relations(other, range(count))
        offsets = [tensor.storage_offset() for tensor in one] == [tensor.storage_offset() for tensor in other]
        assert (memory_key(one) == memory_key(other)) is (whole and offsets)


def key(*arguments: Any, **keywords: Any) -> Any:
    leaves, structure = tree_flatten((arguments, keywords))
    return (structure, tuple(map(leaf_key, leaves)), modes_key())


X = torch.zeros(2, 3)
SENTENCES = [
    (key(X), key(X), "nothing that a key holds"),
    (key(X), key(torch.zeros(2, 4)), "argument x: size of dim 1 was 3, is 4"),
    (key(X), key(torch.zeros(5, 4)), "argument x: size of dim 0 was 2, is 5"),
    (key(X), key(torch.zeros(2)), "argument x: sizes was (2, 3), is (2,)"),
    (key(X), key(X.double()), "argument x: element type was float32, is float64"),
    (key(X), key(torch.zeros(3, 2).t()), "argument x: strides was (3, 1), is (1, 2)"),
    (
        key(X),
        key(torch.zeros(2, 3, requires_grad=True)),
        "argument x: requires_grad was off, is of a parameter or leaf",
    ),
    (
        key(torch.zeros(2, 3, requires_grad=True) * 1),
        key(X),
        "argument x: requires_grad was of a computed tensor, is off",
    ),
    (key(X), key(1), "argument x was float32[2, 3], is 1"),
    (key(1), key(2), "argument x was 1, is 2"),
    (key(1.5), key("a"), "argument x was 1.5, is 'a'"),
    (key(X, 1), key(X, 2), "argument y was 1, is 2"),
    (key(X), key(X, X), "was called with 1 argument, is called with 2 arguments"),
    (key(X), key(X, scale=2), "was called with 1 argument, is called with 1 argument and scale="),
    (key([X]), key((X,)), "the arguments are nested in another way"),
    (
        (*key(X)[:2], (True, *modes_key()[1:])),
        (*key(X)[:2], (False, *modes_key()[1:])),
        "grad mode was on, is off",
    ),
    (
        (*key(X)[:2], (*modes_key()[:2], None, *modes_key()[3:])),
        (*key(X)[:2], (*modes_key()[:2], (("cpu", torch.bfloat16),), *modes_key()[3:])),
        "autocast was off, is cpu torch.bfloat16",
    ),
    ((*key(X), 1), (*key(X), 2), "other containers among the arguments are the very same one"),
]


@pytest.mark.parametrize("number", range(len(SENTENCES)))
def test_the_first_difference_is_said(number: int) -> None:
    before, now, sentence = SENTENCES[number]
    found = key_change(before, now, ("x", "y")[: len(before[1])])
    assert found.replace("torch.float", "float").replace("torch.Size([2, 3])", "(2, 3)").replace(
        "torch.Size([2])", "(2,)"
    ) == sentence.replace("torch.float", "float")


DISTANCES = [
    (key(X, 1), key(X, 1), 0),
    (key(X, 1), key(X, 2), 1),
    (key(X, 1), key(1, 2), 2),
    (key(X), key(X, X), 1 + 2 + 5),
    ((*key(X)[:2], (True, True, 1, 2, 3)), (*key(1)[:2], (False, True, 1, 2, 4)), 3),
]


@pytest.mark.parametrize("number", range(len(DISTANCES)))
def test_keys_are_as_far_apart_as_they_differ(number: int) -> None:
    before, now, distance = DISTANCES[number]
    assert key_distance(before, now) == key_distance(now, before) == distance


def test_tensors_of_equal_keys_are_other_tensors() -> None:
    assert tensor_change("x", tensor_key(X), tensor_key(X)) == "x is another tensor"


def test_leaves_are_named_by_their_argument_and_nested_ones_by_their_place() -> None:
    _, structure = tree_flatten(((1, [2, 3], (4,)), {"a": 5, "b": {"c": 6, "d": 7}}))
    assert names_of_leaves(structure, ["x", "y"]) == ["x", "y[0]", "y[1]", "2", "a", "b[0]", "b[1]"]


def test_without_sizes_keys_differ_in_all_else() -> None:
    def key(*leaves: Any) -> Any:
        return without_sizes((None, tuple(map(leaf_key, leaves)), "modes"))

    x = torch.zeros(2, 3)
    assert key(x, 1) == key(torch.zeros(4, 1), 1) == key(x.t(), 1)
    others = [key(x, 2), key(x[0], 1), key(x.double(), 1), key(x.clone().requires_grad_(), 1), key(x, torch.Tensor)]
    assert key(x, 1) not in others
    assert without_sizes((None, (leaf_key(x),), "others")) != without_sizes((None, (leaf_key(x),), "modes"))


def test_the_same_device_is_as_good_as_another_object() -> None:
    assert leaf_key(torch.device("cpu")) == leaf_key(torch.device("cpu"))
    assert not isinstance(leaf_key(torch.device("cpu"))[-1], ByIdentity)
