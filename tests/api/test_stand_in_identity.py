"""Classes, identities and texts of tensors: a program says what eager says, or is refused; ties are seen when made."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.ways import Work, assert_every_way
from torch import nn

import weft
from weft.errors import UnsupportedError

KINDS: dict[type, str] = {torch.Tensor: "tensor", nn.Parameter: "parameter", int: "int"}


@functools.singledispatch
def name_of(thing: object) -> str:
    return "object"


@name_of.register
def _(thing: torch.Tensor) -> str:
    return "tensor"


def name_of_class(x: torch.Tensor) -> Any:
    return type(x).__name__, type(x * 2).__name__, x.__class__.__name__, (x * 2).__class__.__name__


def class_is(x: torch.Tensor) -> Any:
    return x * 2 if type(x * 2) is torch.Tensor else x * 3


def table_of_classes(x: torch.Tensor) -> Any:
    return KINDS[type(x)], KINDS[type(x + 1)], KINDS[int]


def dispatch(x: torch.Tensor) -> Any:
    return name_of(x), name_of(x + 1), name_of(None), x


def views(x: torch.Tensor) -> Any:
    found = (x[0], x.view(-1), x.t(), x.detach(), x.unbind(0)[0], x.sort().values, torch.zeros(2), torch.tensor([1]))
    return [(type(one).__name__, one.__class__.__name__) for one in found], x + 1


def mapped(x: torch.Tensor) -> Any:
    return list(map(type, [x, x + 1, 2, "text"])), x * 2


def of_texts(x: torch.Tensor) -> Any:
    return f"{type(x).__name__}{tuple(x.shape)}", repr(type(x + 1)), x


def new_classes(x: torch.Tensor) -> Any:
    class Meta(type):
        pass

    class Scale(metaclass=Meta):
        value = 2

    return x * Scale.value, type("Other", (), {"value": 3}).value, isinstance(Scale, type), type(Scale) is Meta


def builtin_subclass(x: torch.Tensor) -> Any:
    return issubclass(type(x), torch.Tensor), isinstance(type(x), type), type(type(x)).__name__ != "", x


def deep_copies(x: torch.Tensor) -> Any:
    other = copy.deepcopy([x, {"a": x, "b": x + 0}])
    other[0].mul_(2)
    return other, x


def memo_by_identity(x: torch.Tensor) -> Any:
    seen = {id(x): 1}
    y = x + 1
    seen.setdefault(id(y), 2)
    return [seen[id(one)] for one in (x, y, x)], y


CASES = [
    name_of_class, class_is, table_of_classes, dispatch, views, mapped, of_texts, new_classes, builtin_subclass,
    deep_copies, memo_by_identity,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("make", [torch.Tensor.clone, nn.Parameter], ids=["tensor", "parameter"])
def test_code_that_asks_for_classes_is_told_what_eager_is_told(
    case: Callable[..., Any], make: Callable[..., Any]
) -> None:
    if case is deep_copies and make is nn.Parameter:
        pytest.skip("eager refuses to copy what autograd computed")
    x = make(torch.ones(2, 2))
    hybrid = weft.hybridize(case)
    for _ in range(2):
        expected, found = case(x), hybrid(x)
        torch.testing.assert_close(
            [one for one in torch.utils._pytree.tree_leaves(found) if isinstance(one, torch.Tensor)],
            [one for one in torch.utils._pytree.tree_leaves(expected) if isinstance(one, torch.Tensor)],
        )
        plain = [
            [one for one in torch.utils._pytree.tree_leaves(tree) if not isinstance(one, torch.Tensor)]
            for tree in (expected, found)
        ]
        assert plain[0] == plain[1]
    assert "type" not in globals()
    assert "id" not in globals()


def test_the_class_of_a_number_that_varies_is_that_of_numbers() -> None:
    def scaled(x: torch.Tensor, n: float) -> Any:
        return x * n, type(n) is int, type(n).__name__

    hybrid = weft.hybridize(scaled)
    for n in (2, 3, 4, 5, 0.5, 1.5, 2.5):
        assert hybrid(torch.ones(1), n)[1:] == (type(n) is int, type(n).__name__)


class Kept:
    def __init__(self) -> None:
        self.seen: Any = set()
        self.last: Any = None


def keeps_identity(x: torch.Tensor, kept: Kept) -> torch.Tensor:
    kept.seen.add(id(x))
    return x + 1


def identity_as_attribute(x: torch.Tensor, kept: Kept) -> torch.Tensor:
    kept.last = id(x + 1)
    return x + 1


def identity_as_key(x: torch.Tensor, kept: Kept) -> torch.Tensor:
    kept.last = {id(x): 1}
    return x + 1


def text_of_tensor(x: torch.Tensor, kept: Kept) -> torch.Tensor:
    kept.last = str(x)
    return x + 1


def weak_reference(x: torch.Tensor, kept: Kept) -> torch.Tensor:
    kept.last = weakref.ref(x)
    return x + 1


def gives_identity(x: torch.Tensor, kept: Kept) -> Any:
    return id(x), x + 1


def gives_text(x: torch.Tensor, kept: Kept) -> Any:
    return repr(x * 2), x + 1


LEAKS = [keeps_identity, identity_as_attribute, identity_as_key, text_of_tensor, weak_reference, gives_identity,
         gives_text]  # fmt: skip


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
def test_what_was_made_of_a_stand_in_is_not_left_behind(leak: Callable[..., Any]) -> None:
    kept = Kept()
    with pytest.raises(UnsupportedError):
        weft.hybridize(leak)(torch.ones(2), kept)
    assert (kept.seen, kept.last) == (set(), None)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)


class TiedByIdentity(Pair):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(x) * (2 if self.a.weight is self.b.weight else 1)


class CountsParameters(Pair):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(x) + sum(one.pow(2).sum() for one in self.parameters())


class NamesParameters(Pair):
    def forward(self, x: torch.Tensor) -> Any:
        return self.b(x), [name for name, _ in self.named_parameters()]


class Writes(Pair):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.a.weight.mul_(0.5)
        return self.b(x)


class ByNumber(Pair):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(x) * len({id(one) for one in self.parameters()})


class Swaps(Pair):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) - 2 * self.b(x)


@pytest.mark.parametrize("kind", [TiedByIdentity, CountsParameters, NamesParameters, Writes, ByNumber, Swaps])
@pytest.mark.parametrize("change", ["tie", "untie", "swap", "replace"])
def test_parameters_that_are_tied_or_parted_later_are_seen(kind: type[Pair], change: str) -> None:
    def make() -> Work:
        torch.manual_seed(0)
        net = kind()
        if change == "untie":
            net.b.weight = net.a.weight

        def before(number: int) -> None:
            if number == 2:
                if change == "tie":
                    net.b.weight = net.a.weight
                elif change == "untie":
                    net.b.weight = nn.Parameter(net.a.weight.detach().clone())
                elif change == "swap":
                    net.a.weight, net.b.weight = net.b.weight, net.a.weight
                else:
                    net.a.weight = nn.Parameter(torch.ones(2, 2))

        return Work(net, [((torch.ones(1, 2),), {})] * 4, before=before, backward=True)

    assert_every_way(make, "hybridize", "library", "lazy")


def by_identity() -> tuple[Any, dict[int, float]]:
    known: dict[int, float] = {}
    return lambda x: x * known.get(id(x), 2.0), known


def in_list_of_identities() -> tuple[Any, list[int]]:
    known: list[int] = []
    return lambda x: x * 3 if id(x) in known else x * 2, known


def kept_identity() -> tuple[Any, dict[str, int]]:
    known = {"last": 0}
    return lambda x: x * 3 if id(x) == known["last"] else x * 2, known


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("case", [by_identity, in_list_of_identities, kept_identity])
def test_an_argument_is_found_by_its_identity_in_every_call(case: Any, first: bool) -> None:
    function, known = case()
    hybrid, x = weft.hybridize(function, whole=False), torch.ones(2)

    def know() -> None:
        if isinstance(known, list):
            known.append(id(x))
        else:
            known["last" if "last" in known else id(x)] = id(x) if "last" in known else 3.0

    if not first:
        assert hybrid(x).tolist() == [2, 2]
    know()
    assert hybrid(x).tolist() == [3, 3]
    assert hybrid(torch.ones(2)).tolist() == [2, 2]
    assert hybrid(x).tolist() == [3, 3]


def test_identities_in_a_dictionary_of_the_code_itself_make_a_program() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        names = {id(x): 2, id(y): 3}
        return x * names[id(x)] + y * names[id(y)]

    hybrid = weft.hybridize(function, whole=True)
    assert hybrid(torch.ones(2), torch.ones(2)).tolist() == [5, 5]
