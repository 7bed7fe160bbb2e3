"""Every place in a model's way is found at once, and a model without any has none."""

from __future__ import annotations

import torch
from torch import nn

from weft.console.report.diagnosis import obstacles


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all: set[torch.Tensor] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.all.add(x * 2)
        return x


class Asks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.sum().item()


class Selects(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sum() + torch.where(x > 0)[0].sum()


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), Asks())
        self.second = nn.ModuleList([Keeps(), nn.ReLU(), Selects()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for module in self.second:
            x = module(x)
        return x


def facts(thing, *inputs: torch.Tensor) -> list[str]:
    return [error.fact.partition(" (")[0] for error in obstacles(thing, inputs)]


def test_a_model_that_can_be_a_program_has_nothing_in_the_way() -> None:
    assert facts(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), torch.ones(1, 4)) == []


def test_places_in_different_modules_are_all_found_once() -> None:
    found = obstacles(Deep(), (torch.ones(1, 4),))
    texts = " ".join(error.fact for error in found)
    assert "turns a tensor into a Python number" in texts
    assert "keeps a tensor that it computed" in texts
    assert texts.count("depends on the values of a tensor") == 1, "one line is one place"
    assert len({(error.fact, error.where) for error in found}) == len(found)


def test_looking_leaves_the_model_as_it_was() -> None:
    net = Deep()
    before = net.state_dict().keys()
    obstacles(net, (torch.ones(1, 4),))
    assert net.state_dict().keys() == before
    assert not any(module._forward_pre_hooks for module in net.modules())
    assert all("forward" not in vars(module) for module in net.modules())


def test_a_function_is_watched_too() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x + 1
        values = x.tolist()
        return x * len(values)

    assert facts(function, torch.ones(2)) == [
        "the program branches on the value of a tensor",
        "the program turns a tensor into a Python list",
    ]
