"""The chapter's helpers do what its listings ask of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import weft


def test_minibatches_are_of_the_size_asked_for_and_scaled() -> None:
    train, test = weft.load_data_fashion_mnist(64, resize=14, synthetic=True)
    images, labels = next(iter(train))
    assert (images.shape, labels.shape) == ((64, 1, 14, 14), (64,))
    assert next(iter(test))[0].shape == (64, 1, 14, 14)
    plain, _ = weft.load_data_fashion_mnist(64, synthetic=True)
    whole, same = next(iter(plain))
    assert torch.equal(labels, same)
    assert abs(whole.mean() - images.mean()) < 0.01


def test_sgd_is_pytorchs_with_gradients_of_a_sum() -> None:
    net, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(net.state_dict())
    x = torch.randn(8, 3)
    net(x).square().sum().backward()
    twin(x).square().sum(1).mean().backward()
    torch.optim.SGD(twin.parameters(), 0.1).step()
    weft.sgd([*net.parameters(), torch.zeros(2, requires_grad=True)], 0.1, batch_size=8)
    torch.testing.assert_close(net.weight, twin.weight)
    assert not net.weight.grad.any()


def test_accuracy_counts_and_evaluations_agree_on_any_devices() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.9))
    x, y = torch.randn(11, 3), torch.arange(11) % 4
    right = weft.accuracy(net.eval()(x), y)
    assert right == (net(x).argmax(1) == y).sum()
    assert weft.accuracy(y.double(), y) == 11
    net.train()
    data = [(x[:6], y[:6]), (x[6:], y[6:])]
    assert weft.evaluate_accuracy(net, data) == right / 11
    assert weft.evaluate_accuracy_gpu(net, data, "cpu:0") == right / 11
    assert weft.evaluate_accuracy_gpus(net, data, ["cpu:0", "cpu:1"]) == right / 11


def test_scatter_splits_evenly() -> None:
    pieces = weft.scatter(torch.arange(5), ["cpu:0", "cpu:1"])
    assert [piece.tolist() for piece in pieces] == [[0, 1, 2], [3, 4]]


def test_a_benchmark_may_have_a_description(capsys: pytest.CaptureFixture[str]) -> None:
    with weft.Benchmark(description="copy"):
        pass
    with weft.Benchmark("copy"):
        pass
    with weft.Benchmark():
        pass
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("copy: 0.")
    assert second.startswith("copy time: 0.")
    assert third.startswith("time: 0.")
    with pytest.raises(weft.UsageError, match="a prefix and a description"):
        weft.Benchmark("copy", description="copy")
