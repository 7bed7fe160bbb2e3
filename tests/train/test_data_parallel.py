"""weft.DataParallel: the same results and gradients as the module it wraps, with the rest of the loop as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from weft.devices import Device
from weft.train.devices import data_parallel

CPUS = ["cpu:0", "cpu:1"]


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3)).double()


def gradients(net: nn.Module) -> list[Any]:
    return [parameter.grad for parameter in net.parameters()]


@settings(max_examples=20)
@given(shares=st.lists(st.integers(0, 4), min_size=2, max_size=5).filter(sum), size=st.integers(0, 12))
def test_results_and_gradients_are_those_of_the_module(shares: list[int], size: int) -> None:
    plain, x = model(), torch.randn(size, 4).double().requires_grad_()
    net = weft.DataParallel(model(), [f"cpu:{index}" for index in range(len(shares))], shares=shares)
    expected = plain(x)
    expected.square().sum().backward()
    x_gradient, x.grad = x.grad, None
    found = net(x)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    torch.testing.assert_close(gradients(net.module), gradients(plain))
    torch.testing.assert_close(x.grad, x_gradient)


def test_a_training_loop_stays_as_it_is() -> None:
    plain, net = model(), weft.DataParallel(model(), CPUS)
    for one in (plain, net):
        torch.manual_seed(5)
        optimizer = torch.optim.Adam(one.parameters(), 0.1)
        for _ in range(4):
            optimizer.zero_grad()
            one(torch.randn(7, 4).double()).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(list(net.module.parameters()), list(plain.parameters()))


def test_two_forwards_may_come_before_their_backwards() -> None:
    plain, net = model(), weft.DataParallel(model(), CPUS)
    x = torch.randn(2, 6, 4).double()
    for one in (plain, net):
        first, second = one(x[0]), one(x[1])
        (first.sum() * second.sum()).backward()
    torch.testing.assert_close(gradients(net.module), gradients(plain))


def test_two_forwards_with_batch_norm_may_come_before_their_backwards() -> None:
    net, x = weft.DataParallel(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), CPUS), torch.randn(2, 6, 4)
    for training in (True, False):
        net.train(training)
        (net(x[0]).sum() * net(x[1]).square().sum()).backward()
    assert net.module[1].num_batches_tracked == 2


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.unused = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor, name: str) -> dict[str, Any]:
        y = self.layer(x) * scale
        return {name: (y, y.detach()), "loss": y.square().mean(), "norm": self.norm(y)}


def test_nested_results_shared_arguments_and_numbers_are_gathered() -> None:
    net = weft.DataParallel(Several(), CPUS)
    x, scale = torch.randn(5, 3), torch.tensor(2.0, requires_grad=True)
    found = net(x, scale=scale, name="y")
    assert found["loss"].shape == (2,)
    torch.testing.assert_close(found["y"][0], net.module.layer(x) * 2)
    assert not found["y"][1].requires_grad or found["y"][1].grad_fn is not None
    found["y"][0].sum().backward()
    torch.testing.assert_close(scale.grad, net.module.layer(x).sum().detach())
    assert net.module.unused.grad is None


def test_evaluation_and_frozen_parameters_follow_the_module() -> None:
    net = weft.DataParallel(Several(), CPUS)
    x = torch.randn(4, 3)
    net(x, scale=torch.ones(1), name="y")
    net.eval()
    with torch.no_grad():
        found = net(x, scale=torch.ones(1), name="y")["norm"]
        torch.testing.assert_close(found, net.module(x, scale=torch.ones(1), name="y")["norm"])
    net.module.layer.bias.requires_grad_(False)
    net(x, scale=torch.ones(1), name="y")["norm"].sum().backward()
    assert net.module.layer.bias.grad is None


def test_a_checkpoint_of_it_loads_into_the_plain_module_and_back(tmp_path: Path) -> None:
    net = weft.DataParallel(model(), CPUS)
    weft.save(tmp_path / "net", net)
    plain = model()
    weft.load(tmp_path / "net", plain)
    torch.save(net.state_dict(), tmp_path / "net.pt")
    weft.load(tmp_path / "net.pt", plain)
    weft.load(tmp_path / "net", weft.DataParallel(plain, CPUS))


def test_hybridized_replicas_give_the_same() -> None:
    plain, net, x = model(), weft.DataParallel(model(), CPUS, hybridize=True), torch.randn(6, 4).double()
    for one in (plain, net):
        one(x).square().sum().backward()
    torch.testing.assert_close(gradients(net.module), gradients(plain))


@pytest.mark.parametrize("devices", [None, CPUS])
def test_it_is_evaluated_as_the_module_is(devices: Any) -> None:
    net, data = weft.DataParallel(model(), CPUS), [(torch.randn(5, 4).double(), torch.randint(3, (5,)))]
    assert weft.evaluate(net, data, devices) == weft.evaluate(net.module, data)


@pytest.mark.skipif(torch.cuda.is_available(), reason="names a device that is there")
def test_gpus_that_are_not_there_are_named() -> None:
    with pytest.raises(weft.UsageError, match="no device cuda:0"):
        weft.DataParallel(model(), device_ids=[0, 3])


def test_gpus_are_named_by_number_as_the_chapter_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(data_parallel, "Replicas", lambda *_: None)
    names = [str(device) for device in weft.DataParallel(model(), device_ids=[0, 3]).devices]
    assert names == ["cuda:0", "cuda:3"]
    with pytest.raises(weft.UsageError, match="no device cuda:4"):
        weft.DataParallel(model(), device_ids=[0, 4])


@pytest.mark.parametrize("count", [1, 2])
def test_the_chapters_devices_are_taken_where_there_is_no_gpu(count: int) -> None:
    devices = [weft.try_gpu(index) for index in range(count)]
    net, x = weft.DataParallel(model().to(devices[0]), device_ids=devices), torch.randn(4, 4).double().to(devices[0])
    torch.testing.assert_close(net(x), net.module(x))


def test_a_call_without_a_batch_is_refused() -> None:
    with pytest.raises(weft.UsageError, match="no batch to split"):
        weft.DataParallel(model(), CPUS)(torch.tensor(1.0))


def test_a_backward_may_be_run_again_where_the_graph_is_retained() -> None:
    plain, net, x = model(), weft.DataParallel(model(), CPUS), torch.randn(6, 4).double()
    for one in (plain, net):
        scores = one(x)
        scores[:, 0].sum().backward(retain_graph=True)
        scores[:, 1].square().sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            scores.sum().backward()
    torch.testing.assert_close(gradients(net.module), gradients(plain))


def test_a_gradient_of_a_gradient_is_refused() -> None:
    net = weft.DataParallel(model(), CPUS)
    x = torch.randn(6, 4).double().requires_grad_()
    with pytest.raises(weft.UnsupportedError, match="differentiated again"):
        torch.autograd.grad(net(x).square().sum(), x, create_graph=True)


def test_a_module_whose_numbers_became_others_is_followed() -> None:
    net = weft.DataParallel(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), CPUS)
    net(torch.randn(6, 4)).sum().backward()
    net.double().zero_grad()
    x = torch.randn(6, 4).double()
    net(x).sum().backward()
    assert {each.dtype for each in gradients(net)} == {torch.float64}
    torch.testing.assert_close(net.eval()(x), net.module(x))


class Named(nn.Module):
    """Gives more than tensors."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        counted = len(x) if self.kind == "counts" else None
        more = {f"part of {len(x)}": x} if self.kind == "names" else {}
        return {"x": 2 * x, "kind": self.kind, "none": counted, **more}


def test_results_may_hold_what_all_devices_agree_on() -> None:
    x = torch.randn(5, 4)
    found = weft.DataParallel(Named("plain"), CPUS)(x)
    assert torch.equal(found.pop("x"), 2 * x)
    assert found == {"kind": "plain", "none": None}
    with pytest.raises(weft.UsageError, match="gave 3, 2"):
        weft.DataParallel(Named("counts"), CPUS)(x)
    with pytest.raises(weft.UsageError, match="different structures"):
        weft.DataParallel(Named("names"), CPUS)(x)


def test_other_tracers_see_the_module() -> None:
    net, x = weft.DataParallel(model(), CPUS), torch.randn(6, 4).double()
    expected = net.module(x)
    hybrid = weft.hybridize(weft.DataParallel(model(), CPUS))
    torch.testing.assert_close(hybrid(x), expected)
    torch.testing.assert_close(make_fx(net)(x)(x), expected)


def test_gpus_are_not_traced_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    net = weft.DataParallel(model(), CPUS)
    monkeypatch.setattr(net, "devices", [Device("cuda", index) for index in range(2)])
    with pytest.raises(weft.UnsupportedError, match="hybridize=True"):
        weft.hybridize(net)(torch.randn(6, 4).double())
