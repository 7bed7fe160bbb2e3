"""A run that is saved anywhere in an epoch goes on from there with the same bits, and ends with the same history."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.train.data import Batches, ImageData

SAMPLES, EPOCHS = 30, 3


def data() -> Batches:
    source = torch.Generator().manual_seed(0)
    images = torch.randint(256, (SAMPLES, 4, 4), dtype=torch.uint8, generator=source)
    return Batches(ImageData(images, torch.randint(3, (SAMPLES,), generator=source), "small"), 8)


class SaveUpdates(weft.Callback):
    """Saves after every update that a batch makes, also after the last batch of an epoch."""

    def __init__(self, folder: Path) -> None:
        self.checkpoints = weft.Checkpoints(folder, keep=None)
        self.saved = 0

    def after_step(self, trainer: Any, loss: Any) -> None:
        if trainer.steps > self.saved:
            self.saved = trainer.steps
            trainer.save(self.checkpoints)

    def after_epoch(self, trainer: Any, row: Any) -> None:
        self.saved = trainer.steps


def trainer(folder: Path, **options: Any) -> weft.Trainer:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(net.parameters(), 0.05)
    options["scheduler"] = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
    kept = weft.Checkpoints(folder, keep=None)
    return weft.Trainer(net, optimizer, nn.CrossEntropyLoss(), "cpu:0", checkpoints=kept, **options)


def quiet(_line: str) -> None:
    pass


def figures(history: Any) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"accumulate": 3}, {"prefetch": 0}], ids=str)
def test_saved_after_any_update_and_resumed_a_run_ends_with_the_same_bits(
    options: dict[str, Any], tmp_path: Path
) -> None:
    straight = trainer(tmp_path / "own", callbacks=[SaveUpdates(tmp_path)], **options)
    straight.fit(data(), data(), epochs=EPOCHS, say=quiet)
    files = sorted(tmp_path.glob("step-*.safetensors"))
    assert len(files) == EPOCHS * (4 // options.get("accumulate", 1))
    for file in files:
        folder = tmp_path / file.stem
        folder.mkdir()
        shutil.copy(file, folder)
        torch.rand(3)
        resumed = trainer(folder, **options)
        resumed.fit(data(), data(), epochs=EPOCHS, resume="auto", say=quiet)
        assert (resumed.steps, resumed.epoch) == (straight.steps, EPOCHS), file.name
        assert figures(resumed.history) == figures(straight.history), file.name
        for name, value in straight.net.state_dict().items():
            assert torch.equal(value, resumed.net.state_dict()[name]), file.name


def test_a_schedule_of_epochs_is_saved_after_its_step_by_what_comes_after_an_epoch(tmp_path: Path) -> None:
    class SaveEpochs(weft.Callback):
        def after_epoch(self, trainer: Any, row: Any) -> None:
            rates.append(trainer.optimizer.param_groups[0]["lr"])
            trainer.save(weft.Checkpoints(tmp_path))

    rates: list[float] = []
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 1.0)
    options = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}
    made = weft.Trainer(net, optimizer, nn.CrossEntropyLoss(), "cpu:0", callbacks=[SaveEpochs()], **options)
    made.fit([(torch.ones(2, 2), torch.zeros(2, dtype=torch.int64))], say=quiet)
    made.load(weft.Checkpoints(tmp_path))
    assert rates == [pytest.approx(0.1)]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize("error", [False, True])
def test_batches_that_were_made_ahead_in_vain_are_not_lost(error: bool) -> None:
    class End(weft.Callback):
        def after_step(self, trainer: Any, loss: Any) -> None:
            if trainer.steps == 1 and error:
                raise KeyboardInterrupt
            if trainer.steps == 1:
                trainer.stop()

    net, batches = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), data()
    made = weft.Trainer(net, torch.optim.SGD(net.parameters()), nn.CrossEntropyLoss(), "cpu:0", callbacks=[End()])
    with suppress(KeyboardInterrupt):
        made.fit(batches, say=quiet)
    assert (batches.epoch, batches.position) == (0, 8)


def test_a_trainer_saves_into_its_own_checkpoints_or_says_that_it_has_none(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.step(torch.rand(4, 1, 4, 4), torch.tensor([0, 1, 2, 0]))
    made.save()
    other = trainer(tmp_path)
    other.load()
    assert other.steps == 1
    with pytest.raises(weft.UsageError, match="this trainer has no checkpoints"):
        weft.Trainer(made.net, made.optimizer, made.loss_fn, "cpu:0").save()


def test_data_that_does_not_say_where_it_stands_is_said_and_its_epoch_begins_anew(tmp_path: Path, caplog: Any) -> None:
    class SaveOnce(weft.Callback):
        def after_step(self, trainer: Any, loss: Any) -> None:
            if trainer.steps == 2:
                trainer.save()
                raise KeyboardInterrupt

    batches = list(data())
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, callbacks=[SaveOnce()]).fit(batches, say=quiet)
    assert "data that does not say where it stands (a list)" in caplog.text
    resumed = trainer(tmp_path)
    resumed.fit(batches, resume="auto", say=quiet)
    assert resumed.steps == 2 + len(batches)
