"""Random programs that move tensors between attributes, items, tuples and objects leave them where eager does."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import weft

pytestmark = pytest.mark.usefixtures("by_library")
INNER = ("self.pair[0]", "self.pair[1]")  # of a tuple, which cannot be written into
WRITABLE = (
    *("self.now", "self.before", "self.by_name['x']", "self.by_name['y']", "self.row[0]", "self.row[1]"),
    *("self.thing.value", "self.thing.by_name['z']", "self.inner.now"),
)
PLACES = (*WRITABLE, *INNER)
STATEMENTS = (  # each with its weight; v is a value, p and q are two places that can be given things
    (6, "r{n} = torch.tanh({v}) + {w} * 2"),
    (3, "{p} = {v}"),
    (3, "{p} = {v} + x"),
    (2, "{p} = {v}.detach()"),
    (2, "{p}, {q} = {q}, {p}"),
    (2, "self.pair = ({v}, {w} - 1)"),
    (1, "self.row = [{v}, {w}]"),
    (2, "self.grown.append({v} + 0)"),
    (2, "{p}.add_(1)"),
    (1, "self.by_name = dict(self.by_name, x={v})"),
    (1, "self.thing.late = {v}"),
)


def source(draw: random.Random) -> str:
    values, lines = ["x"], []
    for number in range(draw.randint(3, 9)):
        (statement,) = draw.choices([text for _, text in STATEMENTS], [weight for weight, _ in STATEMENTS])
        first, second = draw.sample(WRITABLE, 2)
        v, w = (draw.choice([draw.choice(values), draw.choice(PLACES)]) for _ in range(2))
        lines.append(statement.format(n=number, v=v, w=w, p=first, q=second))
        if statement.startswith("r{n}"):
            values.append(f"r{number}")
    lines.append(f"return {draw.choice(values)} + {draw.choice(PLACES)} + self.weight * x")
    return "\n    ".join(["def forward(self, x):", *lines])


def module(text: str, same: tuple[bool, bool]) -> nn.Module:
    names: dict[str, Any] = {"torch": torch}
    exec(text, names)
    net = type("Moves", (nn.Module,), {"forward": names["forward"]})()
    tensors = iter(torch.randn(12, 3, generator=torch.Generator().manual_seed(1)).unbind())
    net.weight = nn.Parameter(next(tensors).clone())
    net.inner = nn.Module()
    net.inner.now, net.now, net.before = (next(tensors).clone() for _ in range(3))
    net.before = net.now if same[0] else net.before
    net.by_name = {"x": next(tensors).clone(), "y": net.before if same[1] else next(tensors).clone()}
    net.row, net.pair = [next(tensors).clone() for _ in range(2)], tuple(next(tensors).clone() for _ in range(2))
    net.thing = SimpleNamespace(value=next(tensors).clone(), by_name={"z": next(tensors).clone()}, late=None)
    net.grown = []
    return net


def held(net: Any) -> list[torch.Tensor | None]:
    """What is in all places; the pairs and lists may be others than at first."""
    thing = net.thing
    places = [net.now, net.before, net.by_name["x"], net.by_name["y"], *net.row, *net.pair, net.inner.now]
    return [*places, thing.value, thing.by_name["z"], thing.late, *net.grown]


def disturb(net: Any, how: str) -> None:
    """What users do to a module between its calls."""
    given = torch.full((3,), 0.5)
    changes = {"now": lambda: setattr(net, "now", given), "grown": net.grown.clear}
    changes["name"] = lambda: net.by_name.update(x=given)
    changes["row"] = lambda: net.row.__setitem__(0, given)
    changes["pair"] = lambda: setattr(net, "pair", (given, net.pair[1]))
    changes.get(how, lambda: None)()


def called(net: nn.Module, x: torch.Tensor, *, backward: bool) -> torch.Tensor | str:
    try:
        with torch.set_grad_enabled(backward):
            result: torch.Tensor = net(x.clone())
            if backward:
                result.sum().backward(retain_graph=True)
    except RuntimeError as error:  # such as a leaf that needs its gradient and is written into
        return type(error).__name__
    return result


@pytest.mark.parametrize("seed", range(24))
def test_a_random_program_leaves_tensors_where_eager_does(seed: int) -> None:
    draw = random.Random(seed)
    text, same, backward = source(draw), (draw.random() < 0.2, draw.random() < 0.2), draw.random() < 0.5
    eager, program = module(text, same), weft.hybridize(module(text, same))
    for number in range(5):
        x = torch.randn(3, generator=torch.Generator().manual_seed(number))
        expected, found = (called(net, x, backward=backward) for net in (eager, program))
        if isinstance(expected, str):
            assert found == expected, text
            return
        results, slopes = (expected, found), (eager.weight.grad, program.weight.grad)
        for one, other in (results, slopes, *zip(held(eager), held(program), strict=True)):
            torch.testing.assert_close(other, one, msg=f"call {number} of\n{text}")
        places = [[[one is other for other in held(net)] for one in held(net)] for net in (eager, program)]
        assert places[0] == places[1], text
        how = draw.choice(["nothing", "now", "grown", "name", "row", "pair"])
        for net in (eager, program):
            disturb(net, how)
