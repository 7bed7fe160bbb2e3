"""A program is for any objects among the arguments that are alike, and changes those of its call as eager does."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import weft


class Layer:
    def __init__(self) -> None:
        self.k = None
        self.v = None

    def update(self, k, v):
        self.k = k if self.k is None else torch.cat([self.k, k], dim=-2)
        self.v = v if self.v is None else torch.cat([self.v, v], dim=-2)
        return self.k, self.v


class Cache:
    def __init__(self, layers: int = 2) -> None:
        self.layers = [Layer() for _ in range(layers)]
        self.seen = 0


@dataclass
class Batch:
    x: torch.Tensor
    scale: float = 2.0


@dataclass(slots=True)
class Slotted:
    x: torch.Tensor
    y: torch.Tensor | None = None


def programs(function) -> int:
    return sum(map(len, function.programs.values()))


def test_new_objects_at_each_call_run_one_program():
    @weft.hybridize
    def double(batch):
        return batch.x * batch.scale

    for _ in range(4):
        x = torch.randn(3)
        torch.testing.assert_close(double(Batch(x)), x * 2)
    assert programs(double) == 1


def test_what_code_puts_in_an_object_is_put_in_that_of_the_call():
    @weft.hybridize
    def keep(x, held):
        held.y = x + held.x
        held.x = x
        return held

    for _ in range(3):
        x, held = torch.randn(2), Slotted(torch.ones(2))
        assert keep(x, held) is held
        assert held.x is x
        torch.testing.assert_close(held.y, x + 1)
    assert programs(keep) == 1


def test_a_cache_of_layers_is_written_as_in_eager():
    def step(x, cache):
        for layer in cache.layers:
            k, v = layer.update(x, x * 2)
            x = (torch.softmax(x @ k.mT, -1) @ v).sum(-2, keepdim=True)
        cache.seen += 1
        return x

    fast = weft.hybridize(step)
    for _ in range(3):
        ours, theirs = Cache(), Cache()
        for _ in range(6):
            x = torch.randn(1, 2, 1, 4)
            torch.testing.assert_close(fast(x, ours), step(x, theirs))
            for one, other in zip(ours.layers, theirs.layers, strict=True):
                torch.testing.assert_close(one.k, other.k)
                assert one.k.stride() == other.k.stride()
        assert ours.seen == theirs.seen == 6


def test_a_number_that_is_counted_in_an_object_makes_two_programs():
    @weft.hybridize
    def count(x, held):
        held.steps += 1
        return x * held.steps

    held = SimpleNamespace(steps=0)
    for step in range(1, 8):
        assert count(torch.ones(()), held).item() == step
        assert held.steps == step
    assert programs(count) <= 2


def test_an_object_that_the_function_has_itself_is_told_from_others():
    nothing = SimpleNamespace()

    @weft.hybridize
    def choose(x, which):
        return x if which is nothing else x * 2

    for _ in range(2):
        assert choose(torch.ones(()), nothing).item() == 1
        assert choose(torch.ones(()), SimpleNamespace()).item() == 2


def test_an_object_that_a_dictionary_has_as_a_key_is_found_there():
    class Graph:
        def __init__(self, x):
            self.x = x

    one, other = Graph(torch.ones(2)), Graph(torch.ones(2))
    factors = {one: 2.0, other: 3.0}

    @weft.hybridize
    def scaled(graph):
        return graph.x * factors[graph]

    for _ in range(2):
        assert scaled(one).sum().item() == 4
        assert scaled(other).sum().item() == 6


def test_one_object_in_two_places_is_one():
    @weft.hybridize
    def both(one, other):
        one.x = one.x + 1
        return other.x * 2, one is other

    for _ in range(2):
        held, apart = Batch(torch.ones(1)), Batch(torch.ones(1))
        result, same = both(held, held)
        assert (result.item(), same, held.x.item()) == (4, True, 2)
        result, same = both(held, apart)
        assert (result.item(), same, held.x.item(), apart.x.item()) == (2, False, 3, 1)


def test_an_object_that_holds_itself_or_parameters_stays_whole():
    @weft.hybridize
    def doubled(held):
        return held.x * 2

    for _ in range(2):
        held = SimpleNamespace(x=torch.ones(1))
        held.own = held
        assert doubled(held).item() == 2
        assert doubled(SimpleNamespace(x=nn.Parameter(torch.ones(1)))).item() == 2


def test_an_attribute_that_is_new_or_gone_is_so_after_each_call():
    @weft.hybridize
    def change(x, held):
        held.fresh = x * 2
        del held.old
        return x

    for _ in range(3):
        held = SimpleNamespace(old=1, x=torch.ones(1))
        change(torch.ones(1), held)
        assert list(vars(held)) == ["x", "fresh"]
        assert held.fresh.item() == 2


def test_objects_of_other_classes_or_attributes_run_programs_of_their_own():
    class Square:
        def __init__(self, x):
            self.x = x

        def area(self):
            return self.x * self.x

    class Circle(Square):
        def area(self):
            return self.x * self.x * 3

    @weft.hybridize
    def area(shape):
        return shape.area()

    for _ in range(2):
        assert area(Square(torch.tensor(2.0))).item() == 4
        assert area(Circle(torch.tensor(2.0))).item() == 12


@pytest.mark.parametrize("grad", [False, True])
def test_tensors_in_objects_are_written_in_place(grad):
    @weft.hybridize
    def write(x, held):
        held.x.add_(x.detach())
        return held.x * x

    for _ in range(3):
        x, held = torch.ones(2, requires_grad=grad), Batch(torch.zeros(2))
        result = write(x, held)
        assert held.x.tolist() == [1, 1]
        if grad:
            result.sum().backward()
            assert x.grad.tolist() == [1, 1]


def test_a_step_takes_batches_that_are_objects():
    @dataclass
    class Rows:
        x: torch.Tensor
        y: torch.Tensor
        names: list[str] = field(default_factory=list)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, rows):
            return ((self.linear(rows.x) - rows.y) ** 2).mean()

    torch.manual_seed(0)
    net = Net()
    step = weft.step(net, None, torch.optim.SGD(net.parameters(), 0.1))
    losses = [float(step(Rows(torch.ones(4, 3), torch.ones(4, 1)))) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert programs(step) == 1


def test_the_text_of_a_program_names_attributes():
    def doubled(held):
        return held.x * 2

    assert "%held.x" in str(weft.program(doubled, Batch(torch.ones(2))))
