"""Numbers that Python's and NumPy's own generators give: drawn anew at each run, in eager's order, or refused."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.ways import Refused, Work, assert_every_way, difference
from torch import nn

import weft
from weft.config import overrides

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


def test_a_generator_in_a_tuple_is_drawn_from_at_each_run() -> None:
    pair, other = (random.Random(0), 1), random.Random(0)
    hybrid = weft.hybridize(lambda x: x * pair[0].random())
    for _ in range(3):
        assert hybrid(torch.ones(1, dtype=torch.float64)).item() == other.random()
    assert type(pair[0]) is random.Random


def numbers_of(text: str, **names: Any) -> Callable[[], Work]:
    """Code in a module of its own, as a user's is."""

    def made() -> Work:
        space: dict[str, Any] = {"random": random, "np": np, "torch": torch, **names}
        exec(f"def f(x):\n    {text}\n", space)
        return Work(space["f"], [((torch.ones(2, 3, dtype=torch.float64),), {}) for _ in range(4)])

    return made


OF_THE_PROCESS = {
    "a class": numbers_of("return x * 2 if isinstance(random.random(), float) else x"),
    "random": numbers_of("return x * random.random()"),
    "a range": numbers_of("return x * random.uniform(2, 3)"),
    "a whole number": numbers_of("return x * random.randint(2, 30)"),
    "gauss": numbers_of("return x + random.gauss(0, 1)"),
    "rand": numbers_of("return x + np.random.rand()"),
    "normal": numbers_of("return x + np.random.normal(2, 3)"),
    "several": numbers_of("a = random.random(); return x * a + np.random.rand() - random.random() * a, a"),
    "an imported name": numbers_of("return x * draw()", draw=random.random),
    "an imported name of NumPy": numbers_of("return x * draw()", draw=np.random.rand),
    "an imported method": numbers_of("return x * draw(0, 1)", draw=random.gauss),
    "a partial function": numbers_of("return x * draw()", draw=partial(random.uniform, 1, 2)),
    "a fraction": numbers_of("return x * float(np.random.rand()) + float(random.randint(1, 9))"),
    "a whole part": numbers_of("return x * int(random.random() * 100)"),
}
OF_METHODS = {
    "a builtin method": lambda: random.Random(0).random,
    "a method": lambda: partial(random.Random(0).gauss, 0, 1),
    "a method of NumPy": lambda: np.random.default_rng(0).normal,
    "an old one of NumPy": lambda: np.random.RandomState(0).rand,
}


@pytest.mark.parametrize("name", OF_THE_PROCESS)
def test_functions_of_the_process_s_generators_draw_at_each_run(name: str) -> None:
    assert_every_way(OF_THE_PROCESS[name], "library", "hybridize", "lazy")


@pytest.mark.parametrize("name", OF_METHODS)
def test_methods_of_generators_draw_at_each_run(name: str) -> None:
    def make() -> Work:
        draw = OF_METHODS[name]()
        return Work(lambda x: x * draw(), [((torch.ones(2),), {}) for _ in range(4)])

    assert_every_way(make, "library")


LOOKS = {
    "a text": numbers_of("seen.append(str(random.random())); return x * 2", seen=[]),
    "a branch": numbers_of("return x * 2 if random.random() < 0.5 else x"),
    "a size": numbers_of("return x.sum() + torch.ones(random.randint(2, 3))"),
    "an array": numbers_of("return x + torch.from_numpy(np.random.rand(3))"),
    "a choice": numbers_of("return x * random.choice([1, 2])"),
    "a seed": numbers_of("random.seed(3); return x * random.random()"),
}


@pytest.mark.parametrize("name", LOOKS)
def test_code_that_looks_at_what_it_drew_is_refused(name: str) -> None:
    assert_every_way(LOOKS[name], "library", refused=("library",))


PATHS = {
    "python": (lambda: random.Random(3), lambda source: source.random()),
    "numpy": (lambda: np.random.default_rng(3), lambda source: float(source.normal())),
    "arrays": (lambda: np.random.default_rng(3), lambda source: torch.from_numpy(source.normal(size=3)).float()),
    "whole numbers": (lambda: np.random.default_rng(3), lambda source: torch.as_tensor(source.integers(0, 5, size=3))),
}


@pytest.mark.parametrize("way", ["hybridize", "step"])
@pytest.mark.parametrize("name", PATHS)
def test_where_values_decide_each_call_draws_once(name: str, way: str) -> None:
    begin, draw = PATHS[name]

    def make() -> Work:
        source = begin()

        def function(x: torch.Tensor) -> torch.Tensor:
            scale = draw(source)
            return x * scale if x.sum() > 0 else x - draw(source)

        return Work(function, [((torch.full((3,), sign),), {}) for sign in (1.0, -1.0, 1.0, 1.0, -1.0, -1.0)])

    with overrides(whole="off"):
        assert_every_way(make, way)


READ, WRITE = os.pipe()  # objects that other threads change would be taken for changed by the code


def draw_beside() -> None:
    os.write(WRITE, b"f" if type(random.random()) is float else b"?")


def draws_beside_a_thread(x: torch.Tensor) -> torch.Tensor:
    first = random.random()
    thread = threading.Thread(target=draw_beside)
    thread.start()
    thread.join(30)
    return x * first * random.random()


def test_other_threads_draw_meanwhile_and_the_functions_are_put_back() -> None:
    functions = random.random, np.random.rand
    assert weft.hybridize(draws_beside_a_thread)(torch.ones(2)).shape == (2,)
    assert set(os.read(READ, 100)) == {ord("f")}
    assert (random.random, np.random.rand) == functions
