"""A trainer does what its arguments say: reductions, devices, schedules, fields, limits, callbacks and loggers."""

from __future__ import annotations

import copy
import csv
import gc
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import weft

X, Y = torch.randn(12, 4), torch.arange(12) % 3
BATCHES = [(X[:8], Y[:8]), (X[8:], Y[8:])]


def quiet(_: str) -> None:
    pass


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def trainer(net: nn.Module | None = None, loss: Any = functional.cross_entropy, **options: Any) -> weft.Trainer:
    net = model() if net is None else net
    return weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.1), loss, **options)


def same(one: nn.Module, other: nn.Module) -> None:
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(reduction="sum"), nn.MSELoss(reduction="sum")])
@pytest.mark.parametrize("options", [{}, {"devices": ["cpu:0", "cpu:1"]}, {"hybridize": False}])
def test_a_sum_is_trained_on_as_pytorch_does(loss: nn.Module, options: dict[str, Any]) -> None:
    target = Y if isinstance(loss, nn.CrossEntropyLoss) else torch.randn(12, 3)
    plain, net = model(), model()
    optimizer = torch.optim.SGD(plain.parameters(), 0.01)
    made = weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.01), loss, **options)
    for _ in range(2):
        optimizer.zero_grad()
        expected = loss(plain(X), target)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(made.step(X, target), expected.detach())
    same(net, plain)
    torch.testing.assert_close(made.fit([(X, target)], say=quiet)[0]["loss"], loss(plain(X), target).item() / 12)


def test_a_loss_of_every_sample_is_refused() -> None:
    with pytest.raises(weft.UsageError, match="its reduction is 'none'"):
        trainer(loss=nn.CrossEntropyLoss(reduction="none"))


def test_one_device_and_whole_steps_are_the_default() -> None:
    made = trainer()
    made.step(X, Y)
    assert [*map(str, made.devices)] == ["cpu:0"]
    assert repr(made) == (
        "weft.Trainer(Sequential, SGD, cross_entropy, on cpu:0, by whole steps: 0 epochs and 1 step done)"
    )


def test_a_number_of_devices_is_so_many_of_them() -> None:
    assert [*map(str, trainer(devices=2).devices)] == ["cpu:0", "cpu:1"]
    for wrong in (0, True):
        with pytest.raises(weft.UsageError, match="a number says how many devices"):
            trainer(devices=wrong)


def test_what_cannot_be_a_whole_step_trains_imperatively_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def strange(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weights = torch.from_numpy(scores.detach().numpy().copy())  # leaves PyTorch
        return functional.cross_entropy(scores, y) + 0 * weights.sum()

    with caplog.at_level(logging.WARNING, "weft"):
        made = trainer(loss=strange)
        first, second = made.step(X, Y), made.step(X, Y)
    assert second < first
    assert made.steps == 2
    told = [record for record in caplog.records if "training goes on without whole programs" in record.getMessage()]
    assert len(told) <= 1
    if told:
        with pytest.raises(weft.UnsupportedError):
            trainer(loss=strange, hybridize=True).step(X, Y)


@pytest.mark.parametrize(("every", "rate"), [("epoch", 0.01), ("step", 0.001)])
def test_schedules_step_once_an_epoch_as_scripts_do_or_once_an_update(every: str, rate: float) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    made = weft.Trainer(net, optimizer, functional.cross_entropy, scheduler=schedule, scheduler_every=every)
    made.fit(BATCHES, say=quiet)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 3)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.cat([first, second], 1))


@pytest.mark.parametrize("options", [{}, {"devices": ["cpu:0", "cpu:1"]}, {"deterministic": True}])
def test_of_several_fields_the_last_is_the_target(options: dict[str, Any]) -> None:
    net, plain = Two(), Two()
    plain.load_state_dict(net.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    made = trainer(net, **options)
    made.step(X, X * 2, Y)
    made.fit([(X, X * 2, Y)], [(X, X * 2, Y)], say=quiet)
    for _ in range(2):
        optimizer.zero_grad()
        functional.cross_entropy(plain(X, X * 2), Y).backward()
        optimizer.step()
    same(net, plain)


def test_a_number_of_steps_ends_training_in_the_middle_of_an_epoch() -> None:
    made = trainer()
    history = made.fit(BATCHES, max_steps=5, say=quiet)
    assert (made.steps, len(history)) == (5, 3)
    made.fit(BATCHES, max_steps=5, say=quiet)
    assert made.steps == 5
    with pytest.raises(weft.UsageError, match="max_steps=0"):
        made.fit(BATCHES, max_steps=0)


class Noting(weft.Callback):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def at_start(self, trainer: Any) -> None:
        self.seen.append("start")

    def after_test(self, trainer: Any, figures: Any) -> None:
        assert trainer.net.training
        self.seen.append(f"test at {figures['step']:.0f}")

    def after_epoch(self, trainer: Any, row: Any) -> None:
        self.seen.append("epoch")

    def at_end(self, trainer: Any) -> None:
        self.seen.append("end")


def test_tests_inside_an_epoch_are_told_and_callbacks_know_start_and_end() -> None:
    noting, lines = Noting(), list[str]()
    made = trainer(callbacks=[noting])
    made.fit([*BATCHES, *BATCHES], BATCHES, test_every=2, say=lines.append)
    assert noting.seen == ["start", "test at 2", "test at 4", "epoch", "end"]
    assert lines[0].startswith("step 2, test_acc")
    with pytest.raises(weft.UsageError, match="test_every without data"):
        made.fit(BATCHES, test_every=2)


def test_callbacks_know_the_end_of_training_that_fails() -> None:
    noting = Noting()
    with pytest.raises(weft.UsageError, match="there was no batch"):
        trainer(callbacks=[noting]).fit([], say=quiet)
    assert noting.seen == ["start", "end"]


def test_predictions_are_those_of_evaluation_mode_in_order() -> None:
    net = nn.Sequential(model(), nn.Dropout(0.5))
    made = trainer(net)
    assert net.training
    expected = copy.deepcopy(net).eval()(X).detach()
    torch.testing.assert_close(made.predict(BATCHES), expected)
    torch.testing.assert_close(weft.predict(net, [X[:5], X[5:]]), expected)
    assert net.training
    torch.testing.assert_close(weft.predict(net, DataLoader(TensorDataset(X), 5)), expected)
    torch.testing.assert_close(weft.predict(Two(), [(X, X, Y)]).shape, torch.Size([12, 3]))
    torch.testing.assert_close(made.predict(X), expected)
    with pytest.raises(weft.UsageError, match="no batch to predict"):
        made.predict([])


def test_callbacks_say_what_they_do(tmp_path: Path) -> None:
    assert (
        repr(weft.EarlyStop("loss", 2))
        == "EarlyStop(figure='loss', patience=2, larger=True, by=0.0, best=-inf, since=0)"
    )
    best = weft.BestCheckpoint(tmp_path / "best")
    assert repr(best).startswith("BestCheckpoint(checkpoints=weft.Checkpoints(")
    assert "figure=" in repr(best)


def test_a_trainer_and_its_checkpoints_fit_on_a_screen(tmp_path: Path) -> None:
    checkpoints = weft.Checkpoints(tmp_path / "runs")
    assert repr(checkpoints) == f"weft.Checkpoints({str(tmp_path / 'runs')!r}): 0 checkpoints"
    made = trainer(checkpoints=checkpoints)
    assert "<table" in made._repr_html_()
    made.fit(BATCHES, epochs=2, say=quiet)
    assert repr(made).endswith("by whole steps: 2 epochs and 4 steps done)")
    shown = made._repr_html_()
    assert all(word in shown for word in ("Sequential", "SGD", "whole", "2 epochs and 4 steps", "<polyline"))
    assert repr(checkpoints).endswith("2 checkpoints, newest step-0000000004.safetensors")


def test_the_best_checkpoint_is_kept_and_can_be_gone_back_to(tmp_path: Path) -> None:
    figures = iter([0.5, 0.9, 0.7])
    best = weft.BestCheckpoint(tmp_path / "best", "given")
    made = trainer(callbacks=[best], metrics={"given": lambda scores, y: next(figures) * len(y)})
    made.fit([(X, Y)], [(X, Y)], epochs=3, say=quiet)
    assert [path.name for path in (tmp_path / "best").glob("step-*")] == ["step-0000000002.safetensors"]
    made.load(best.checkpoints)
    assert made.steps == 2
    with pytest.raises(weft.UsageError, match="the history has no 'typo'"):
        trainer(callbacks=[weft.BestCheckpoint(tmp_path / "other", "typo")]).fit([(X, Y)], say=quiet)


def test_a_csv_logger_writes_the_history(tmp_path: Path) -> None:
    made = trainer(callbacks=[weft.CSVLogger(tmp_path / "history.csv")])
    made.fit([(X, Y)], say=quiet)
    made.fit([(X, Y)], [(X, Y)], epochs=2, say=quiet)
    with (tmp_path / "history.csv").open(encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert rows[0]["test_acc"] == ""
    assert float(rows[1]["loss"]) == made.history[1]["loss"]
    with pytest.raises(weft.UsageError, match="there is no folder"):
        weft.CSVLogger(tmp_path / "none" / "history.csv")


def test_a_tensorboard_logger_says_what_is_missing_or_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[Any, ...]] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            assert folder == str(tmp_path)

        def add_scalar(self, *scalar: Any) -> None:
            written.append(scalar)

        def close(self) -> None:
            written.append(("closed",))

    found = {"tensorboard": None}
    monkeypatch.setattr("weft.train.callbacks.importlib.util.find_spec", found.get)
    with pytest.raises(weft.UsageError, match="pip install tensorboard"):
        weft.TensorBoardLogger(tmp_path)
    found["tensorboard"] = "is there"
    module = type("Module", (), {"SummaryWriter": Writer})
    made = trainer(callbacks=[weft.TensorBoardLogger(tmp_path, every=2)])
    monkeypatch.setattr("weft.train.callbacks.importlib.import_module", lambda _: module)
    made.fit(BATCHES, say=quiet)
    assert [(name, step) for name, _, step in written[:-1]] == [("step_loss", 2), ("loss", 2), ("seconds", 2)]
    assert written[-1] == ("closed",)


def test_int32_targets_are_taken_or_refused_as_eager_does() -> None:
    target = Y.to(torch.int32)
    with pytest.raises(RuntimeError) as eager:
        functional.cross_entropy(model()(X), target)
    for options in ({}, {"hybridize": False}):
        with pytest.raises(RuntimeError) as ours:
            trainer(**options).step(X, target)
        assert str(eager.value) in str(ours.value) or "Int" in str(ours.value)


def test_a_trainer_of_many_devices_leaves_no_hooks_for_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    net, batches = nn.Linear(4, 2), [(torch.randn(8, 4), torch.randint(2, (8,)))] * 2
    weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.1), nn.CrossEntropyLoss(), devices=2).fit(batches, epochs=1)
    gc.collect()
    assert not any(parameter._post_accumulate_grad_hooks for parameter in net.parameters())
    weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.1), nn.CrossEntropyLoss()).fit(batches, epochs=1)
    assert "gradient hook" not in caplog.text
