"""Several optimizers in one step: what they leave is what PyTorch's loop would have left."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

import weft

SIZES = (4, 4, 4, 6, 3, 4, 4, 5)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


def muon_and_adamw(net: nn.Module) -> list[optim.Optimizer]:
    matrices = [parameter for parameter in net.parameters() if parameter.ndim == 2]
    rest = [parameter for parameter in net.parameters() if parameter.ndim != 2]
    return [optim.Muon(matrices, lr=0.02), optim.AdamW(rest, lr=0.01)]


def two_of_sgd(net: nn.Module) -> list[optim.Optimizer]:
    first, *rest = net.children()
    others = [parameter for one in rest for parameter in one.parameters()]
    return [optim.SGD(first.parameters(), 0.1, momentum=0.9), optim.SGD(others, 0.01, weight_decay=0.1)]


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 5, generator=generator), torch.randint(0, 3, (size,), generator=generator)) for size in SIZES
    ]


def usual_loss(net: nn.Module, optimizers: Any, batch: Any, count: int, *, is_first: bool) -> torch.Tensor:
    """Add gradients up as PyTorch's loop does."""
    if is_first:
        for one in optimizers:
            one.zero_grad()
    loss = functional.cross_entropy(net(batch[0]), batch[1])
    (loss / count).backward()
    return loss.detach()


@pytest.mark.parametrize("options", [{}, {"whole": True}, {"clip_norm": 0.1}, {"accumulate": 2}, {"check": 2}], ids=str)
@pytest.mark.parametrize("make", [muon_and_adamw, two_of_sgd])
def test_several_optimizers_make_one_step(make: Any, options: dict[str, Any]) -> None:
    eager, ours = network(), network()
    usual, own = make(eager), make(ours)
    step = weft.step(ours, functional.cross_entropy, own, **options)
    schedules = [optim.lr_scheduler.StepLR(one, 2, 0.5) for one in (*usual, *own)]
    count = options.get("accumulate", 1)
    for number, (x, y) in enumerate(batches()):
        updates = number % count == count - 1
        loss = usual_loss(eager, usual, (x, y), count, is_first=number % count == 0)
        if updates and "clip_norm" in options:
            nn.utils.clip_grad_norm_(eager.parameters(), options["clip_norm"])
        for one in usual if updates else ():
            one.step()
        torch.testing.assert_close(step(x, y), loss, rtol=1e-4, atol=1e-5)
        for schedule in schedules if updates else ():
            schedule.step()
    for expected, found in zip(eager.state_dict().values(), ours.state_dict().values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    for expected_one, found_one in zip(usual, own, strict=True):
        states = expected_one.state_dict()["state"], found_one.state_dict()["state"]
        assert states[0].keys() == states[1].keys()
        for key, entry in states[0].items():
            torch.testing.assert_close(states[1][key], entry, rtol=1e-3, atol=1e-4)


def test_a_step_whose_second_optimizer_fails_changes_nothing() -> None:
    net = network()
    optimizers = two_of_sgd(net)
    step = weft.step(net, functional.cross_entropy, optimizers)
    for x, y in batches()[:3]:
        step(x, y)
    before, kept = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizers[0].state_dict())

    def fail(*_: object) -> None:
        raise ValueError("stop")

    hook = optimizers[1].register_step_pre_hook(fail)
    with pytest.raises(ValueError, match="stop"):
        step(*batches()[0])
    hook.remove()
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    for key, entry in optimizers[0].state_dict()["state"].items():
        assert torch.equal(entry["momentum_buffer"], kept["state"][key]["momentum_buffer"])
    step(*batches()[0])


def test_copies_train_their_own_parameters() -> None:
    net = network()
    step = weft.step(net, functional.cross_entropy, two_of_sgd(net))
    x, y = batches()[0]
    step(x, y)
    before = copy.deepcopy(net.state_dict())
    for other in (copy.deepcopy(step), pickle.loads(pickle.dumps(step))):
        assert torch.equal(other(x, y), other(x, y)) is False
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_one_in_a_row_is_that_one() -> None:
    net = network()
    optimizer = optim.SGD(net.parameters(), 0.1)
    assert weft.step(net, functional.cross_entropy, [optimizer]).optimizer is optimizer


def test_rows_that_make_no_step_are_refused() -> None:
    net = network()
    first, second = two_of_sgd(net)
    with pytest.raises(weft.UsageError, match="the same parameter"):
        weft.step(net, functional.cross_entropy, [first, optim.Adam(net.parameters())])
    with pytest.raises(weft.UsageError, match="LBFGS makes no step beside others"):
        weft.step(net, functional.cross_entropy, [first, optim.LBFGS(second.param_groups[0]["params"])])
    with pytest.raises(weft.UsageError, match="is no optimizer"):
        weft.step(net, functional.cross_entropy, [])


def test_a_state_of_several_is_one_that_they_take_again() -> None:
    eager, ours = network(), network()
    step = weft.step(eager, functional.cross_entropy, muon_and_adamw(eager))
    other = weft.step(ours, functional.cross_entropy, muon_and_adamw(ours))
    for x, y in batches()[:3]:
        step(x, y)
    state = step.optimizer.state_dict()
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    assert numbers == list(range(len(list(eager.parameters()))))
    ours.load_state_dict(eager.state_dict())
    other.optimizer.load_state_dict(copy.deepcopy(state))
    for x, y in batches()[3:]:
        torch.testing.assert_close(other(x, y), step(x, y))
    for expected, found in zip(eager.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_state_of_other_optimizers_is_refused_and_changes_none() -> None:
    net = network()
    optimizers = two_of_sgd(net)
    step = weft.step(net, functional.cross_entropy, optimizers)
    for x, y in batches()[:3]:
        step(x, y)
    before = copy.deepcopy(step.optimizer.state_dict())
    fewer = {**before, "param_groups": before["param_groups"][:1]}
    with pytest.raises(weft.UsageError, match="groups of"):
        step.optimizer.load_state_dict(fewer)

    def fail(*_: object) -> None:
        raise ValueError("stop")

    empty = {**before, "state": {}}
    hook = optimizers[1].register_load_state_dict_pre_hook(fail)
    with pytest.raises(ValueError, match="stop"):
        step.optimizer.load_state_dict(empty)
    hook.remove()
    after = step.optimizer.state_dict()
    assert after["state"].keys() == before["state"].keys()
    for key, entry in before["state"].items():
        assert torch.equal(after["state"][key]["momentum_buffer"], entry["momentum_buffer"])


def test_what_each_of_several_has_is_told() -> None:
    step = weft.step(net := network(), functional.cross_entropy, two_of_sgd(net))
    with pytest.raises(AttributeError, match=r"ask each: step\.optimizer\.optimizers"):
        _ = step.optimizer.defaults
    with pytest.raises(AttributeError, match="several optimizers in a row have no"):
        step.optimizer.add_param_group({"params": []})
    with pytest.raises(AttributeError, match="several optimizers in a row have no"):
        step.optimizer.register_step_pre_hook(lambda *_: None)
