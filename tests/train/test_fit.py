"""What `fit` does around the steps: progress, history, callbacks, early stop, prefetch, schedules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import weft
from weft.train import history
from weft.train.data import Batches, ImageData
from weft.train.history import FitProgress, History
from weft.train.prefetch import Prefetched


def data(count: int = 40) -> Batches:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 4, 4), dtype=torch.uint8, generator=generator)
    return Batches(ImageData(images, torch.randint(3, (count,), generator=generator), "small"), 8)


def trainer(devices: Any = "cpu:0", **options: Any) -> weft.Trainer:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    return weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.1), functional.cross_entropy, devices, **options)


def quiet(_line: str) -> None:
    pass


def test_a_callback_stops_training_after_a_batch_and_fit_says_so() -> None:
    class Stop(weft.Callback):
        def after_step(self, trainer: Any, loss: Any) -> None:
            if trainer.steps == 3:
                trainer.stop("three are enough")

    said: list[str] = []
    stopped = trainer(callbacks=[Stop()])
    stopped.fit(data(), epochs=5, say=said.append)
    assert stopped.steps == 3
    assert said[-1] == "training ends after epoch 1: three are enough"


def test_fit_says_that_all_is_done_already() -> None:
    said: list[str] = []
    made = trainer()
    made.fit(data(), epochs=2, say=quiet)
    for given in ({"epochs": 2}, {"max_steps": 5}):
        made.fit(data(), say=said.append, **given)
    assert said == ["nothing to train: 2 epochs and 10 steps are done already, and fit trains so many in all"] * 2


def test_early_stop_ends_when_a_figure_stays_and_goes_on_from_a_checkpoint() -> None:
    stop = weft.EarlyStop("loss", 2, larger=False)
    asked: list[str] = []
    fake = type("Fake", (), {"stop": lambda self, why: asked.append(why)})()
    for loss in (3.0, 2.0, 2.5):
        stop.after_epoch(fake, {"loss": loss})
    again = weft.EarlyStop("loss", 2, larger=False)
    again.load_state_dict(stop.state_dict())
    assert asked == []
    again.after_epoch(fake, {"loss": 2.0})
    assert asked == ["loss has not become better for 2 epochs"]
    with pytest.raises(weft.UsageError, match="no 'test_acc'"):
        weft.EarlyStop().after_epoch(fake, {"loss": 1.0})


def test_history_is_a_list_that_a_notebook_shows_with_curves() -> None:
    history = trainer().fit(data(), data(16), epochs=2, say=quiet)
    assert [row["epoch"] for row in history] == [1, 2]
    shown = history._repr_html_()
    assert "test_acc</th>" in shown
    assert shown.count("<polyline") == 2
    assert str(history).splitlines()[0].split() == ["epoch", "loss", "seconds", "test_acc"]
    assert "<polyline" not in History()._repr_html_()
    long = repr(History({"epoch": float(number), "loss": 1.0} for number in range(1, 501)))
    assert [line.split()[0] for line in long.splitlines()][:7] == ["epoch", "1", "2", "3", "4", "...", "486"]
    assert long.splitlines()[-1].split()[0] == "500"
    assert len(long.splitlines()) < 24
    assert str(History()) == ""


def test_a_long_epoch_says_a_line_every_tenth(monkeypatch: Any) -> None:
    monkeypatch.setattr(history, "QUIET", -1.0)
    said: list[str] = []
    progress = FitProgress(1, 40, said.append)
    for done in range(1, 41):
        progress.after_batch(done, torch.tensor(0.5))
    progress.end()
    assert len(said) == 9
    assert re.fullmatch(r"epoch 1: batch 4/40 \(10 %\), loss 0.5, .* batches/s", said[0])


def test_a_short_epoch_says_nothing_before_its_end() -> None:
    said: list[str] = []
    progress = FitProgress(1, 10, said.append)
    for done in range(1, 11):
        progress.after_batch(done, 0.0)
    assert said == []


def test_batches_made_ahead_are_the_same_and_tell_the_position_of_training() -> None:
    plain, ahead = data(), Prefetched(data(), 3)
    positions = []
    for (x, y), (own_x, own_y) in zip(ahead, plain, strict=True):
        assert torch.equal(x, own_x)
        assert torch.equal(y, own_y)
        positions.append((ahead.state_dict()["position"], plain.position))
    assert [one for one, _ in positions] == [other for _, other in positions]
    assert ahead.state_dict()["epoch"] == 1


def test_an_error_of_the_data_reaches_fit_as_it_is() -> None:
    class Broken(Batches):
        def batch(self, epoch: int, position: int) -> Any:
            if position == 16:
                raise OSError("the disk is gone")
            return super().batch(epoch, position)

    with pytest.raises(OSError, match="the disk is gone"):
        trainer().fit(Broken(data().data, 8), say=quiet)


def test_autocast_computes_in_the_other_type() -> None:
    seen = []

    def loss(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(scores.dtype)
        return functional.cross_entropy(scores.float(), y)

    cast = trainer(autocast=torch.bfloat16)
    cast.loss_fn = loss
    cast.fit(data(), say=quiet)
    assert set(seen) == {torch.bfloat16}


def test_a_schedule_of_epochs_steps_once_an_epoch(tmp_path: Path) -> None:
    made = trainer()
    schedule = torch.optim.lr_scheduler.StepLR(made.optimizer, 1)
    trained = weft.Trainer(made.net, made.optimizer, made.loss_fn, "cpu:0", scheduler=schedule)
    trained.fit(data(), epochs=2, say=quiet)
    assert made.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    with pytest.raises(weft.UsageError, match="scheduler_every='batch'"):
        trainer(scheduler_every="batch")


@pytest.mark.parametrize("devices", ["cpu:0", ["cpu:0", "cpu:1"]])
def test_whole_steps_train_as_steps_on_devices_do(devices: Any) -> None:
    whole, plain = trainer(devices, hybridize=True, clip_norm=0.5), trainer(clip_norm=0.5)
    one, other = whole.fit(data(), epochs=2, say=quiet), plain.fit(data(), epochs=2, say=quiet)
    assert [row["loss"] for row in one] == pytest.approx([row["loss"] for row in other], rel=1e-4)
    for ours, theirs in zip(whole.net.parameters(), plain.net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_scaler_is_saved_and_restored_and_training_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    def scaled(folder: str) -> weft.Trainer:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_factor=4.0, growth_interval=3)
        return trainer(scaler=scaler, checkpoints=weft.Checkpoints(tmp_path / folder))

    straight, stopped, resumed = scaled("straight"), scaled("stopped"), scaled("stopped")
    straight.fit(data(), epochs=2, say=quiet)
    stopped.fit(data(), epochs=1, say=quiet)
    assert stopped.options.scaler.state_dict()["scale"] == 32.0  # grown once, after three of the five steps
    assert stopped.options.scaler.state_dict()["_growth_tracker"] == 2
    resumed.load(resumed.options.checkpoints, data())  # type: ignore[arg-type] # it has some
    assert resumed.options.scaler.state_dict() == stopped.options.scaler.state_dict()
    resumed.fit(data(), epochs=2, resume="auto", say=quiet)
    assert resumed.options.scaler.state_dict() == straight.options.scaler.state_dict()
    for one, other in zip(resumed.net.parameters(), straight.net.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("devices", ["cpu:0", ["cpu:0", "cpu:1"]])
def test_an_epoch_without_batches_is_said_and_not_counted(devices: Any) -> None:
    made = trainer(devices)
    with pytest.raises(weft.UsageError, match="there was no batch in epoch 2") as caught:
        made.fit(iter(list(data())), epochs=3, say=quiet)
    assert "gives its batches only once" in str(caught.value)
    assert (made.epoch, len(made.history)) == (1, 1)
    with pytest.raises(weft.UsageError, match="the data is empty"):
        trainer(devices).fit([], say=quiet)


def test_what_stopped_one_fit_does_not_stop_the_next() -> None:
    class StopOnce(weft.Callback):
        stops = 1

        def after_epoch(self, trainer: Any, row: Any) -> None:
            if self.stops:
                self.stops -= 1
                trainer.stop("once")

    made = trainer(callbacks=[StopOnce()])
    assert len(made.fit(data(), epochs=3, say=quiet)) == 1
    assert len(made.fit(data(), epochs=3, say=quiet)) == 3


def test_a_folder_for_checkpoints_that_cannot_be_made_is_said_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    made = trainer(checkpoints=weft.Checkpoints(tmp_path / "file"))
    with pytest.raises(weft.CheckpointError, match="cannot be made"):
        made.fit(data(), say=quiet)
    assert made.steps == 0


def test_a_loader_that_cannot_tell_its_length_trains() -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return ((torch.ones(4, 4), index % 3) for index in range(20))

    loader = torch.utils.data.DataLoader(Stream(), batch_size=8)
    assert Prefetched(loader, None).total is None
    assert len(trainer().fit(loader, epochs=2, say=quiet)) == 2


@pytest.mark.parametrize("devices", ["cpu:0", ["cpu:0", "cpu:1", "cpu:2"]])
def test_targets_that_are_no_labels_are_tested_by_the_loss(devices: Any) -> None:
    torch.manual_seed(0)
    net, x, y = nn.Linear(4, 3), torch.randn(7, 4), torch.randn(7, 3)
    made = weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.1), nn.MSELoss(), devices)
    row = made.fit([(x, y)], [(x[:5], y[:5]), (x[5:], y[5:])], say=quiet)[-1]
    with torch.no_grad():
        assert row["test_loss"] == pytest.approx(float(nn.functional.mse_loss(net(x), y)))
    assert "test_acc" not in row


def test_metrics_of_the_users_are_means_over_all_samples() -> None:
    def top2(scores: Any, y: Any) -> Any:
        return (scores.topk(2, 1)[1] == y[:, None]).any(1).sum()

    made = trainer(["cpu:0", "cpu:1"], metrics={"top2": top2, "mean_label": lambda scores, y: y.sum()})
    batches = list(data(21))
    row = made.fit(data(), batches, say=quiet)[-1]
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    with torch.no_grad():
        assert row["top2"] == pytest.approx(float(top2(made.net(x), y)) / 21)
    assert row["mean_label"] == pytest.approx(float(y.sum()) / 21)
    assert "test_acc" not in row
