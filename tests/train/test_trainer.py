"""Training on several devices gives what one device gives, whatever the shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.train import laws_run
from torch import nn
from torch.nn import functional

import weft
from weft.train.data import Batches, ImageData
from weft.train.devices.shares import split_sizes

X, Y = torch.randn(24, 5, generator=torch.Generator().manual_seed(3)), torch.arange(24) % 3


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def trained(loss_fn: Any, devices: Any, batches: list[tuple[torch.Tensor, torch.Tensor]], **options: Any) -> nn.Module:
    net = model()
    trainer = weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.5, momentum=0.9), loss_fn, devices, **options)
    for x, y in batches:
        trainer.step(x.double(), y)
    return net


def close(one: nn.Module, other: nn.Module) -> None:
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def masked(scores: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mask = y != 1
    return (functional.cross_entropy(scores, y, reduction="none") * mask).sum(), mask.sum()


LOSSES = {
    "mean": functional.cross_entropy,
    "class": nn.CrossEntropyLoss(),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "weighted": nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5]).double(), ignore_index=2, label_smoothing=0.1),
    "masked": masked,
}


def plainly(name: str, updates: list[tuple[torch.Tensor, torch.Tensor]], factor: float) -> nn.Module:
    """Train with PyTorch alone, an update for each large batch; one without anything that counts has no gradient."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.5, momentum=0.9)
    for x, y in updates:
        optimizer.zero_grad()
        scores = net(x.double())
        found = LOSSES[name](scores, y)
        mean = found[0] / found[1] if isinstance(found, tuple) else found
        if len(y):
            (mean if mean.isfinite() else scores.sum() * 0).backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= factor
    return net


@settings(max_examples=40)
@given(
    name=st.sampled_from(sorted(LOSSES)),
    shares=st.lists(st.integers(0, 5), min_size=2, max_size=5).filter(sum),
    sizes=st.lists(st.sampled_from([0, 1, 2, 7, 24]), min_size=1, max_size=6),
    accumulate=st.integers(1, 3),
)
def test_any_shares_give_the_update_of_plain_training_on_the_global_batch(
    name: str, shares: list[int], sizes: list[int], accumulate: int
) -> None:
    batches = [(X[index : index + size], Y[index : index + size]) for index, size in enumerate(sizes)]
    batches = batches[: len(batches) // accumulate * accumulate]
    rounds = [batches[start : start + accumulate] for start in range(0, len(batches), accumulate)]
    updates = [tuple(map(torch.cat, zip(*one, strict=True))) for one in rounds]

    def scheduled(devices: Any, **options: Any) -> nn.Module:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), 0.5, momentum=0.9)
        options["scheduler"] = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        options["scheduler_every"] = "step"
        trainer = weft.Trainer(net, optimizer, LOSSES[name], devices, accumulate=accumulate, **options)
        for x, y in batches:
            trainer.step(x.double(), y)
        return net

    devices = [f"cpu:{index}" for index in range(len(shares))]
    plain = plainly(name, updates, 0.7)  # the schedule steps once an update, on however many devices
    close(scheduled(devices, shares=shares), plain)
    close(scheduled("cpu:0", hybridize=False), plain)


def test_clipping_takes_the_norm_of_the_whole_gradient() -> None:
    options = {"clip_norm": 0.01}
    close(
        trained(masked, ["cpu:0", "cpu:1"], [(X, Y)], **options),
        trained(masked, "cpu:0", [(X, Y)], **options),
    )


def test_a_step_gives_the_mean_loss_of_the_global_batch() -> None:
    net = model()
    trainer = weft.Trainer(net, torch.optim.SGD(net.parameters()), functional.cross_entropy, ["cpu:0", "cpu:1"])
    expected = functional.cross_entropy(net(X.double()), Y)
    torch.testing.assert_close(trainer.step(X.double(), Y), expected.detach())


def test_a_parameter_that_nobody_uses_is_left_alone() -> None:
    net = model()
    net.add_module("unused", nn.Linear(1, 1))
    net.forward = lambda x: net[2](net[1](net[0](x)))
    trainer = weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.1), functional.cross_entropy, "cpu:0")
    trainer.step(X.double(), Y)
    assert net.unused.weight.grad is None


@settings(max_examples=25)
@given(
    shares=st.lists(st.integers(0, 5), min_size=2, max_size=5).filter(sum),
    sizes=st.lists(st.sampled_from([1, 2, 7, 24]), min_size=1, max_size=3),
    overlap=st.booleans(),
)
def test_devices_may_take_different_branches_and_leave_parameters_unused(
    shares: list[int], sizes: list[int], overlap: bool
) -> None:
    devices = [f"cpu:{index}" for index in range(len(shares))]
    trainer = laws_run.prepared(laws_run.Branching, devices=devices, shares=shares, overlap=overlap)
    updates = []
    for size in sizes:
        trainer.step(laws_run.X[:size], laws_run.Y[:size])
        parts = split_sizes(size, shares)
        updates.append([*zip(laws_run.X[:size].split(parts), laws_run.Y[:size].split(parts), strict=True)])
    laws_run.agree(trainer, laws_run.expected(laws_run.Branching, updates, functional.cross_entropy))
    assert trainer.net.never.weight.grad is None


def test_hybridized_replicas_give_the_same() -> None:
    batches = [(X, Y), (X[:1], Y[:1]), (X, Y)]
    found = trained(functional.cross_entropy, ["cpu:0", "cpu:1"], batches, hybridize=True)
    close(found, trained(functional.cross_entropy, "cpu:0", batches))


@pytest.mark.parametrize("hybridize", [False, True])
def test_a_batch_without_samples_changes_nothing_and_its_loss_is_zero(hybridize: bool) -> None:
    for loss_fn in LOSSES.values():
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), 0.5)
        trainer = weft.Trainer(net, optimizer, loss_fn, ["cpu:0", "cpu:1"], hybridize=hybridize)
        assert trainer.step(X[:0].double(), Y[:0]) == 0
        close(net, model())


def test_a_batch_that_fails_on_one_device_leaves_no_trace() -> None:
    def failing(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if y[0] == Y[12]:
            raise RuntimeError("the second device fails")
        return functional.cross_entropy(scores, y)

    net = model()
    trainer = weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.5, momentum=0.9), failing, ["cpu:0", "cpu:1"])
    y = Y.clone()
    y[0] = (Y[12] + 1) % 3
    with pytest.raises(RuntimeError, match="the second device fails"):
        trainer.step(X.double(), y)
    trainer.loss_fn = functional.cross_entropy
    trainer.step(X.double(), Y)
    close(net, trained(functional.cross_entropy, "cpu:0", [(X, Y)]))


def data(count: int) -> ImageData:
    images, labels = torch.randint(256, (count, 4, 4), dtype=torch.uint8), torch.randint(3, (count,))
    images[:, 0] = labels[:, None].byte() * 100
    return ImageData(images, labels, "small")


def fit(
    folder: Path, epochs: int, resume: str | None = None, devices: int = 1, **options: Any
) -> tuple[weft.Trainer, list[str]]:
    torch.manual_seed(4)
    train, test = Batches(data(40), 16), Batches(data(20), 7, shuffle=False)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    options |= {"scheduler": scheduler, "checkpoints": weft.Checkpoints(folder)}
    trainer = weft.Trainer(net, optimizer, nn.CrossEntropyLoss(), [f"cpu:{n}" for n in range(devices)], **options)
    said: list[str] = []
    trainer.fit(train, test, epochs=epochs, resume=resume, say=said.append)
    return trainer, said


@pytest.mark.parametrize(
    "options", [{}, {"devices": 2, "hybridize": True}, {"devices": 2, "deterministic": True}], ids=str
)
def test_fit_trains_and_resumed_ends_with_the_same_bits(options: dict[str, Any], tmp_path: Path) -> None:
    straight, said = fit(tmp_path / "straight", 6, **options)
    assert straight.history[-1]["loss"] < straight.history[0]["loss"]
    rows = [line for line in said if ": batch " not in line]  # a machine that is busy is told how far an epoch is
    assert rows[0].startswith("epoch 1, loss")
    assert straight.steps == 18
    fit(tmp_path / "stopped", 2, **options)
    torch.rand(3)
    resumed, _ = fit(tmp_path / "stopped", 6, resume="auto", **options)
    assert [row["epoch"] for row in resumed.history] == [1, 2, 3, 4, 5, 6]
    for one, other in zip(straight.net.parameters(), resumed.net.parameters(), strict=True):
        assert torch.equal(one, other)


def test_saving_between_accumulated_batches_is_refused(tmp_path: Path) -> None:
    net = model()
    trainer = weft.Trainer(net, torch.optim.SGD(net.parameters()), masked, "cpu:0", accumulate=2)
    trainer.step(X.double(), Y)
    with pytest.raises(weft.UsageError, match="1 of 2 batches are accumulated"):
        trainer.save(weft.Checkpoints(tmp_path))


@pytest.mark.parametrize(
    "loss_fn, fact",
    [
        (lambda scores, y: None, "the loss is a NoneType"),
        (lambda scores, y: scores.sum().item(), "the loss is a float"),
        (lambda scores, y: (scores.sum(), {"more": 1}), "the loss is a tuple of Tensor, dict"),
        (lambda scores, y: (scores.sum(), 1, 2), "the loss is a tuple of Tensor, int, int"),
        (lambda scores, y: scores, r"the loss has the shape \[12, 3\]"),
    ],
)
def test_a_loss_that_is_none_is_said(loss_fn: Any, fact: str) -> None:
    with pytest.raises(weft.UsageError, match=fact):
        trained(loss_fn, ["cpu:0", "cpu:1"], [(X, Y)])


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("loss_fn", [functional.cross_entropy, nn.CrossEntropyLoss()])
def test_labels_that_are_ignored_count_on_no_device(loss_fn: Any, hybridize: bool) -> None:
    y = Y.clone()
    y[:9] = -100
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    functional.cross_entropy(net(X.double()), y).backward()
    optimizer.step()
    close(trained(loss_fn, ["cpu:0", "cpu:1"], [(X, y)], hybridize=hybridize), net)


@pytest.mark.parametrize("hybridize", [False, True])
def test_weights_of_labels_count_as_pytorch_counts_them(hybridize: bool) -> None:
    y = Y.clone()
    y[::5] = -100
    loss_fn = nn.CrossEntropyLoss(torch.tensor([1.0, 3.0, 0.5]).double(), label_smoothing=0.1)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    loss_fn(net(X.double()), y).backward()
    optimizer.step()
    close(trained(loss_fn, ["cpu:0", "cpu:1"], [(X, y)], hybridize=hybridize), net)


def test_a_module_whose_numbers_became_others_is_followed() -> None:
    net = model().float()
    trainer = weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.5), functional.cross_entropy, ["cpu:0", "cpu:1"])
    trainer.step(X, Y)
    net.double()
    trainer.step(X.double(), Y)
    assert {each.dtype for each in net.parameters()} == {torch.float64}


@pytest.mark.parametrize("devices", ["cpu:0", ["cpu:0", "cpu:1"]])
def test_a_module_whose_parameters_were_replaced_is_refused(devices: Any) -> None:
    net = model()
    trainer = weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.5), functional.cross_entropy, devices)
    net[2] = nn.Linear(7, 3).double()
    with pytest.raises(weft.UsageError, match="other parameters than when its replicas were made"):
        trainer.step(X.double(), Y)


def test_what_would_train_nothing_or_otherwise_is_refused_when_the_trainer_is_made() -> None:
    net, other = model(), model()
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    def make(used: Any = optimizer, devices: Any = "cpu:0", **options: Any) -> None:
        weft.Trainer(net, used, functional.cross_entropy, devices, **options)

    with pytest.raises(weft.UsageError, match="none of the module's parameters"):
        make(torch.optim.SGD(other.parameters(), 0.5))
    with pytest.raises(weft.UnsupportedError, match="LBFGS computes the loss several times"):
        make(torch.optim.LBFGS(net.parameters()))
    with pytest.raises(weft.UsageError, match='scheduler_every="epoch"'):
        make(scheduler=plateau, scheduler_every="step")
    with pytest.raises(weft.UsageError, match="a function is no callback"):
        make(callbacks=[lambda *_: None])
    with pytest.raises(weft.UsageError, match=r"no option 'clip'[\s\S]*did you mean clip_norm\?"):
        make(clip=1.0)
    with pytest.raises(weft.UsageError, match=r"no option 'device'[\s\S]*did you mean devices\?"):
        make(device="cpu")
    with pytest.raises(weft.UsageError, match=r"no option 'max_epochs'[\s\S]*trainer\.fit takes it"):
        make(max_epochs=3)
    with pytest.raises(weft.UsageError, match="no device is named"):
        make(devices=[])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (((None,), {}), "None gives no batches"),
        ((([], 3), {}), "3 gives no batches"),
        ((([],), {"epochs": "3"}), "epochs='3'"),
        ((([],), {"max_steps": 2.5}), "max_steps=2.5"),
    ],
    ids=["no data", "number", "text", "half"],
)
def test_what_fit_cannot_go_through_is_refused(given: Any, message: str) -> None:
    net = nn.Linear(2, 2)
    trainer = weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.1), nn.MSELoss())
    with pytest.raises(weft.UsageError, match=message):
        trainer.fit(*given[0], **given[1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"accumulate": "2"}, {"accumulate": 0}, {"clip_norm": "1"}, {"scheduler": 3}, {"prefetch": -1}, {"scaler": 3},
        {"autocast": "bf16"}, {"checkpoints": "runs"}, {"callbacks": 3}, {"metrics": 3}, {"memory": 3},
    ],
)  # fmt: skip
def test_an_option_of_the_wrong_kind_is_refused_when_the_trainer_is_made(wrong: dict[str, Any]) -> None:
    net = model()
    (name,) = wrong
    with pytest.raises(weft.UsageError, match=rf"^{name} is [\s\S]*fix "):
        weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.5), functional.cross_entropy, "cpu:0", **wrong)


def test_what_a_trainer_takes_in_another_order_is_refused_with_the_right_one() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    with pytest.raises(weft.UsageError, match=r"in the other order[\s\S]*Trainer\(net, optimizer, loss_fn\)"):
        weft.Trainer(net, functional.cross_entropy, optimizer)  # type: ignore[arg-type]
    with pytest.raises(weft.UsageError, match="a trainer takes a module, not 3"):
        weft.Trainer(3, optimizer, functional.cross_entropy)  # type: ignore[arg-type]
    with pytest.raises(weft.UsageError, match="'mean' is no loss"):
        weft.Trainer(net, optimizer, "mean")
    with pytest.raises(weft.UsageError, match="DataParallel takes a module, not 3"):
        weft.DataParallel(3)  # type: ignore[arg-type]
