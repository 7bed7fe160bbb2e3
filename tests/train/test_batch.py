"""Batches of any structure are split over devices, and train as on one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import weft
from weft.train.devices.shares import moved, pair_of, samples_in, samples_of, split_tree

X, Y = torch.randn(11, 5, generator=torch.Generator().manual_seed(3)), torch.arange(11) % 3
DEVICES = ["cpu:0", "cpu:1", "cpu:2"]


class OfDictionary(nn.Module):
    """Takes a dictionary: samples, a weight for each, and a factor for all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.Linear(5, 3)

    def forward(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {"scores": self.inner(batch["x"]) * batch["weight"] * batch["factor"]}


def batch(count: int) -> Any:
    given = {"x": X[:count], "weight": torch.linspace(0.5, 1, 11)[:count, None], "factor": torch.tensor(2.0)}
    return given, (Y[:count], torch.ones(count))


def loss(answers: Any, y: Any) -> torch.Tensor:
    labels, weights = y
    return (functional.cross_entropy(answers["scores"], labels, reduction="none") * weights).mean()


def trained(devices: Any, **options: Any) -> list[torch.Tensor]:
    net = OfDictionary()
    trainer = weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.5), loss, devices, **options)
    trainer.fit([batch(11), batch(1), batch(4)], epochs=2, say=lambda _: None)
    return list(net.parameters())


@pytest.mark.parametrize(
    "options",
    [{}, {"shares": [0, 3, 1]}, {"hybridize": True}, {"deterministic": True}, {"memory": {"cpu:1": 1e9}}],
    ids=lambda options: next(iter(options), "usual"),
)
def test_dictionaries_and_tuples_train_as_on_one_device(options: dict[str, Any]) -> None:
    net = OfDictionary()
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    for count in (11, 1, 4) * 2:
        optimizer.zero_grad()
        x, y = batch(count)
        loss(net(x), y).backward()
        optimizer.step()
    for found, expected in zip(trained(DEVICES, **options), net.parameters(), strict=True):
        torch.testing.assert_close(found, expected.data)


def test_each_tensor_with_a_row_for_each_sample_is_split_and_the_rest_is_given_to_all() -> None:
    parts = split_tree({"x": X, "pair": [Y, 5], "factor": torch.tensor(2.0), "other": torch.zeros(4)}, [8, 0, 3])
    assert [len(part["x"]) for part in parts] == [8, 0, 3]
    assert [len(part["pair"][0]) for part in parts] == [8, 0, 3]
    assert [(part["pair"][1], float(part["factor"]), len(part["other"])) for part in parts] == [(5, 2.0, 4)] * 3
    assert torch.equal(torch.cat([piece["x"] for piece in weft.split_and_load({"x": X}, DEVICES)]), X)


def test_samples_are_counted_by_the_first_tensor_with_a_dimension() -> None:
    assert samples_in(torch.tensor(1.0), [5, {"x": X}]) == samples_of((torch.tensor(1.0), X), None) == 11
    copied = moved({"x": X}, torch.device("cpu"), copy=True)
    assert copied["x"].data_ptr() != X.data_ptr()
    with pytest.raises(weft.UsageError, match="11 samples and 4 labels"):
        samples_of(X, Y[:4])
    with pytest.raises(weft.UsageError, match="no tensor with a dimension is in a list"):
        samples_in([1, 2, 3])


@pytest.mark.parametrize("given", [{"x": X, "y": Y}, X, (X,)])
def test_a_batch_that_is_no_pair_is_said(given: Any) -> None:
    with pytest.raises(weft.UsageError, match="a batch is inputs and targets"):
        pair_of(given)
