"""Numbers that Python's and NumPy's own generators give: drawn anew at each run, in eager's order, or refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.ways import Refused, Work, difference
from torch import nn

import weft

CALLS = 5


class Sources:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.old = np.random.RandomState(1)
        self.own = random.Random(2)
        self.items = [random.Random(3)]
        self.table = {"rng": np.random.default_rng(4)}
        self.last: Any = None


def normal(x: torch.Tensor, s: Sources) -> Any:
    return x + s.rng.normal()


def of_python(x: torch.Tensor, s: Sources) -> Any:
    return x * s.own.random() - s.own.uniform(1, 2)


def of_state(x: torch.Tensor, s: Sources) -> Any:
    return x + s.old.rand()


def whole(x: torch.Tensor, s: Sources) -> Any:
    return x * s.own.randint(1, 6)


def in_order(x: torch.Tensor, s: Sources) -> Any:
    for _ in range(3):
        x = x * s.rng.random() + s.own.gauss(0, 1)
    return x


def two_generators(x: torch.Tensor, s: Sources) -> Any:
    a, b = s.own.random(), s.items[0].random()
    return x * a + s.table["rng"].normal() - b


def used_twice(x: torch.Tensor, s: Sources) -> Any:
    a = s.rng.uniform(-1, 1)
    return x * a, x - a


def unused(x: torch.Tensor, s: Sources) -> Any:
    s.rng.random()
    return x * s.rng.random()


def arithmetic(x: torch.Tensor, s: Sources) -> Any:
    return x * (2 * s.rng.random() - 1)


def kept(x: torch.Tensor, s: Sources) -> Any:
    s.last = s.own.random()
    return x + s.last


def returned(x: torch.Tensor, s: Sources) -> Any:
    return x + 1, s.own.random()


def scaled_by_number(x: torch.Tensor, s: Sources) -> Any:
    return x + s.rng.normal(1.5, scale=0.1)


def filled(x: torch.Tensor, s: Sources) -> Any:
    return x + torch.full((2,), s.own.random())


FOLLOWED = [
    normal, of_python, of_state, whole, in_order, two_generators, used_twice, unused, arithmetic, kept, returned,
    scaled_by_number, filled,
]  # fmt: skip


def decides(x: torch.Tensor, s: Sources) -> Any:
    return x * 2 if s.own.random() < 0.5 else x


def factor_of_decision(x: torch.Tensor, s: Sources) -> Any:
    return x * (s.rng.random() < 0.5)


def size(x: torch.Tensor, s: Sources) -> Any:
    return torch.zeros(s.own.randint(1, 9))


def array(x: torch.Tensor, s: Sources) -> Any:
    return x + torch.from_numpy(s.rng.normal(size=2))


def numpy_integer(x: torch.Tensor, s: Sources) -> Any:
    return x + int(s.rng.integers(5))


def choice(x: torch.Tensor, s: Sources) -> Any:
    return x * s.own.choice([1, 2, 3])


def shuffled(x: torch.Tensor, s: Sources) -> Any:
    order = [0, 1]
    s.own.shuffle(order)
    return x[order]


def seeded(x: torch.Tensor, s: Sources) -> Any:
    s.own.seed(3)
    return x + s.own.random()


def kept_generator(x: torch.Tensor, s: Sources) -> Any:
    s.last = s.own
    return x + s.own.random()


def text(x: torch.Tensor, s: Sources) -> Any:
    return x, f"{s.own.random():.3f}"


REFUSED = [decides, factor_of_decision, size, array, numpy_integer, choice, shuffled, seeded]


class Owner(nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body, self.sources = body, Sources()

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x, self.sources)


def given(body: Callable[..., Any]) -> Work:
    sources = Sources()
    return Work(body, [((torch.ones(2), sources), {})] * CALLS)


def owned(body: Callable[..., Any]) -> Work:
    return Work(Owner(body), [((torch.ones(2),), {})] * CALLS)


@pytest.mark.parametrize("body", FOLLOWED, ids=lambda body: body.__name__)
@pytest.mark.parametrize("make", [given, owned], ids=lambda make: make.__name__)
@pytest.mark.parametrize("way", ["hybridize", "library", "step"])
def test_each_run_draws_as_eager_does(body: Callable[..., Any], make: Callable[..., Work], way: str) -> None:
    assert difference(lambda: make(body), way) is None


@pytest.mark.parametrize("body", FOLLOWED, ids=lambda body: body.__name__)
def test_one_program_draws_all_numbers(body: Callable[..., Any]) -> None:
    net = weft.hybridize(Owner(body))
    for _ in range(CALLS):
        net(torch.ones(2))
    assert net.forward.traces <= 2


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body.__name__)
def test_what_depends_on_the_very_numbers_is_refused_and_nothing_is_drawn(body: Callable[..., Any]) -> None:
    with pytest.raises(Refused, match="random numbers in Python"):  # and all is as before, the generators too
        difference(lambda: owned(body), "hybridize")


@pytest.mark.parametrize("body", [text, kept_generator], ids=lambda body: body.__name__)
def test_what_a_stand_in_cannot_give_or_must_not_leave_is_refused(body: Callable[..., Any]) -> None:
    with pytest.raises(Refused):
        difference(lambda: owned(body), "hybridize")


def test_a_generator_is_an_argument_and_another_one_is_seen() -> None:
    def body(x: torch.Tensor, rng: Any) -> Any:
        return x + rng.normal()

    def make() -> Work:
        sources = [np.random.default_rng(seed) for seed in (0, 0, 7)]
        sources[1] = sources[0]
        return Work(body, [((torch.ones(2), sources[number % 3]), {}) for number in range(6)], watched=sources)

    assert difference(make, "hybridize") is None


def test_a_generator_that_is_replaced_is_seen() -> None:
    def make() -> Work:
        net = Owner(normal)

        def before(number: int) -> None:
            if number == 2:
                net.sources.rng = np.random.default_rng(9)

        return Work(net, [((torch.ones(2),), {})] * CALLS, before=before)

    assert difference(make, "hybridize") is None


GLOBAL = np.random.default_rng(5)


def test_a_global_generator_is_drawn_from() -> None:
    def body(x: torch.Tensor) -> Any:
        return x * GLOBAL.random()

    before = GLOBAL.bit_generator.state
    expected = [body(torch.ones(1)).item() for _ in range(4)]
    GLOBAL.bit_generator.state = before
    hybrid = weft.hybridize(body)
    assert [hybrid(torch.ones(1)).item() for _ in range(4)] == expected
    assert isinstance(GLOBAL, np.random.Generator)


def test_a_generator_in_a_tuple_is_refused() -> None:
    pair = (random.Random(0), 1)
    before = pair[0].getstate()

    def body(x: torch.Tensor) -> Any:
        return x * pair[0].random()

    with pytest.raises(weft.UnsupportedError, match="random numbers in Python"):
        weft.hybridize(body)(torch.ones(1))
    assert pair[0].getstate() == before
