"""Lazy modules in steps, trainers and threads, and what is asked of them before their first call."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import nn
from torch.nn import functional

import weft

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, 0.1),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, max_iter=3),
    "Rprop": torch.optim.Rprop,
}


def _net():
    return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Dropout(0.5), nn.LazyLinear(2))


def _imperatively(net, optimizer, accumulate, clip):
    calls = 0

    def closure(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(net(x), y)
        loss.backward()
        return loss

    def run(x, y):
        nonlocal calls
        if isinstance(optimizer, torch.optim.LBFGS):
            return optimizer.step(lambda: closure(x, y))
        if not calls:
            optimizer.zero_grad()
        loss = functional.mse_loss(net(x), y)
        (loss / accumulate).backward()
        calls = (calls + 1) % accumulate
        if not calls:
            if clip:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
        return loss

    return run


def _by_steps(net, optimizer, accumulate, clip):
    return weft.step(net, functional.mse_loss, optimizer, accumulate=accumulate, clip_norm=clip)


def _trained(make, optimizer, accumulate, clip):
    torch.manual_seed(0)
    net = _net()
    run = make(net, optimizer(net.parameters()), accumulate, clip)
    drawn = torch.Generator().manual_seed(1)
    losses = [
        run(torch.randn(4, 3, generator=drawn), torch.randn(4, 2, generator=drawn)).detach().clone() for _ in range(4)
    ]
    return [*losses, *(parameter.detach() for parameter in net.parameters()), torch.rand(1)]


@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (2, None), (1, 0.1)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_step_materialises_and_trains_as_eager_does(name, accumulate, clip):
    if name == "LBFGS" and (accumulate > 1 or clip):
        pytest.skip("it computes the loss itself")
    expected = _trained(_imperatively, OPTIMIZERS[name], accumulate, clip)
    found = _trained(_by_steps, OPTIMIZERS[name], accumulate, clip)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_of_threads_that_make_the_first_call_at_once_one_materialises():
    together = Barrier(6, timeout=30)
    net = weft.hybridize(nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(2)))

    def call():
        together.wait()
        return net(torch.ones(2, 3)).detach()

    with ThreadPoolExecutor(6) as pool:
        found = [future.result() for future in [pool.submit(call) for _ in range(6)]]
    assert all(torch.allclose(one, found[0]) for one in found)


def test_a_program_is_given_once_the_first_call_has_been_made():
    net = _net().eval()
    with pytest.raises(weft.UsageError, match="not materialised yet"):
        weft.program(net, torch.ones(2, 3))
    net(torch.ones(2, 3))
    assert weft.program(net, torch.ones(2, 3)) is not None


def test_a_step_has_no_program_before_the_first_call():
    net = _net()
    step = weft.step(net, functional.mse_loss, torch.optim.SGD(net.parameters(), 0.1))
    with pytest.raises(weft.UsageError, match="not materialised yet"):
        weft.program(step, torch.ones(2, 3), torch.ones(2, 2))


def test_a_trainer_of_one_processor_materialises_and_one_of_copies_says_what_to_do():
    net = nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    trainer = weft.Trainer(net, optimizer, functional.mse_loss, ["cpu:0"], hybridize=True)
    trainer.step(torch.ones(4, 3), torch.zeros(4, 2))
    assert type(net[0]) is nn.Linear
    net = nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with pytest.raises(weft.UsageError, match="not materialised yet"):
        weft.Trainer(net, optimizer, functional.mse_loss, ["cpu:0", "cpu:1"], hybridize=False)
    with pytest.raises(weft.UsageError, match="not materialised yet"):
        weft.DataParallel(net, ["cpu:0", "cpu:1"])


def test_torch_compile_materialises_as_eager_does():
    torch.manual_seed(0)
    expected = nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(2))
    torch.manual_seed(0)
    net = nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(2))
    compiled = torch.compile(net, backend="weft")
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2, 3)), expected(torch.ones(2, 3)))
    assert type(net[0]) is nn.Linear
