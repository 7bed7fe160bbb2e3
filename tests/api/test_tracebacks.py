"""A refusal shows the user's frames and the four lines; WEFT_LOG=debug keeps all frames."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.config import overrides
from weft.owners import Owner, owner_of


def leaves(x: torch.Tensor) -> torch.Tensor:
    return x + len((x.numpy() * 2).tolist())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(leaves(x))


def loss(scores: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return leaves(scores.detach()).sum() + scores.sum()


def step() -> Any:
    net = nn.Linear(2, 2)
    return weft.step(net, loss, torch.optim.SGD(net.parameters()))


CALLS: dict[str, Callable[[], Any]] = {
    "module": lambda: weft.hybridize(Net())(torch.ones(2, 2)),
    "function": lambda: weft.hybridize(leaves)(torch.ones(2)),
    "step": lambda: step()(torch.ones(2, 2), torch.ones(2)),
}


def refused(call: Callable[[], Any]) -> weft.UnsupportedError:
    with pytest.raises(weft.UnsupportedError, match="hands a tensor to NumPy") as caught:
        call()
    return caught.value


@pytest.mark.parametrize("name", CALLS)
def test_a_refusal_shows_the_users_frames_alone(name: str) -> None:
    error = refused(CALLS[name])
    frames = traceback.extract_tb(error.__traceback__)
    assert not [frame for frame in frames if owner_of(frame.filename) is Owner.WEFT]
    assert frames[-1].name == "leaves"
    assert "direct cause" not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("name", CALLS)
def test_a_refusal_shows_them_alone_also_once_lazy_code_has_run(name: str) -> None:
    with weft.lazy():  # from now on lazy code stands around calls of programs
        torch.ones(2) + 1
    test_a_refusal_shows_the_users_frames_alone(name)


@pytest.mark.parametrize("name", CALLS)
def test_all_frames_are_kept_to_debug(name: str) -> None:
    with overrides(log="debug"):
        frames = traceback.extract_tb(refused(CALLS[name]).__traceback__)
    assert [frame for frame in frames if owner_of(frame.filename) is Owner.WEFT]
