"""What a step differentiates: one loss, several, one that is not reduced, the one that a dict calls `loss`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import weft

STEPS = 5  # the first ones are Python's, the others programs'


def stepped(
    net: nn.Module, loss: Callable[..., Any] | None, differentiated: Callable[..., torch.Tensor], **options: Any
) -> list[Any]:
    """Train a copy by steps, and the module by PyTorch's loop; both must be alike. Gives what the steps gave."""
    other = copy.deepcopy(net)
    plain, ours = (torch.optim.SGD(one.parameters(), 0.1, momentum=0.9) for one in (net, other))
    step, found = weft.step(other, loss, ours, **options), []
    for number in range(STEPS * options.get("accumulate", 1)):
        x, y = torch.randn(6, 8), torch.randint(0, 3, (6,))
        differentiated(net, x, y).sum().div(options.get("accumulate", 1)).backward()
        if (number + 1) % options.get("accumulate", 1) == 0:
            plain.step()
            plain.zero_grad()
        found.append(step(x, y))
    torch.testing.assert_close(other.state_dict(), net.state_dict())
    return found


@pytest.mark.parametrize("options", [{}, {"whole": True}, {"accumulate": 2}], ids=["usual", "whole", "accumulated"])
def test_the_numbers_of_a_loss_that_is_not_reduced_are_added_up(options: dict[str, Any]) -> None:
    loss = nn.CrossEntropyLoss(reduction="none")
    found = stepped(nn.Linear(8, 3), loss, lambda net, x, y: loss(net(x), y), **options)
    assert all(one.shape == (6,) and not one.requires_grad for one in found)


class Answering(nn.Module):
    """A net that gives its loss beside what it is made of, as many do in a plain dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(x)
        entropy, size = functional.cross_entropy(logits, y), logits.square().mean()
        return {"loss": entropy + 0.1 * size, "entropy": entropy, "size": size, "logits": logits}


@pytest.mark.parametrize("options", [{}, {"whole": True}], ids=["usual", "whole"])
@pytest.mark.parametrize("by", ["net", "function"])
def test_of_a_dict_with_a_loss_that_alone_is_differentiated(by: str, options: dict[str, Any]) -> None:
    if by == "net":
        found = stepped(Answering(), None, lambda net, x, y: net(x, y)["loss"], **options)
    else:

        def loss(logits: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            entropy = functional.cross_entropy(logits, y)
            return {"loss": entropy, "twice": 2 * entropy, "logits": logits}

        found = stepped(nn.Linear(8, 3), loss, lambda net, x, y: functional.cross_entropy(net(x), y), **options)
    for one in found:
        assert [value.dim() for value in one.values()] == [0] * (len(one) - 1) + [2]
        assert not any(value.requires_grad for value in one.values())
