"""weft.Checkpoints: a run that is stopped anywhere goes on as if it had not been."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import weft
from weft.config import overrides
from weft.train.checkpoints import file_series
from weft.train.checkpoints.checkpoint import Checkpoints


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def numbered(step: int) -> nn.Module:
    net = nn.Linear(1, 1)
    nn.init.constant_(net.weight, step)
    return net


def test_the_newest_files_are_kept_and_latest_names_the_last(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run", keep=2)
    assert checkpoints.latest() is None
    for step in (1, 2, 10):
        path = checkpoints.save(numbered(step), step)
    assert path == checkpoints.latest()
    assert names(tmp_path / "run") == ["latest", "step-0000000002.safetensors", "step-0000000010.safetensors"]
    net = numbered(0)
    assert checkpoints.load(net)["step"] == 10
    assert net.weight.item() == 10


def test_a_run_that_goes_on_from_an_earlier_step_keeps_what_it_writes(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(numbered(9), 9)
    checkpoints.save(numbered(3), 3)
    assert checkpoints.load()["step"] == 3


def test_a_damaged_checkpoint_is_said_loudly_and_the_one_before_it_is_loaded(tmp_path: Path, caplog: Any) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(numbered(step), step)
    content = bytearray((tmp_path / "step-0000000002.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "step-0000000002.safetensors").write_bytes(content)
    with caplog.at_level(logging.WARNING, "weft"):
        assert weft.load(tmp_path)["step"] == 1
    assert "CHECKPOINT DAMAGED, going back to step-0000000001.safetensors" in caplog.text
    assert "step-0000000002.safetensors cannot be loaded: its tensor" in caplog.text


@pytest.mark.parametrize("pointer", [b"", b"\xff\xfe", b"../../etc/passwd", b"x" * 10_000, b"step-7.safetensors"])
def test_a_damaged_pointer_does_no_harm(pointer: bytes, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(numbered(step), step)
    (tmp_path / "latest").write_bytes(pointer)
    assert weft.load(tmp_path)["step"] == 2


def test_a_checkpoint_of_another_model_is_no_reason_to_go_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(nn.Linear(1, 1), 1)
    checkpoints.save(nn.Linear(2, 2), 2)
    with pytest.raises(weft.CheckpointError, match="does not fit the model"):
        checkpoints.load(nn.Linear(1, 1))


def test_where_nothing_is_good_all_of_it_is_named(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / f"step-{step:010d}.safetensors").write_bytes(b"x")
    with pytest.raises(weft.CheckpointError, match=r"(?s)there is no checkpoint to load.*step-0000000002.*0000000001"):
        weft.load(tmp_path)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    going_on = threading.Event()
    write = file_series.write_durably

    def slow(path: Path, pieces: Any) -> None:
        assert going_on.wait(timeout=10)
        write(path, pieces)

    monkeypatch.setattr(file_series, "write_durably", slow)
    checkpoints, net = Checkpoints(tmp_path, background=True), numbered(1)
    with overrides(engine="async"):
        checkpoints.save(net, 1)
        nn.init.constant_(net.weight, 5)  # training goes on
        going_on.set()
        checkpoints.wait()
    checkpoints.load(net)
    assert net.weight.item() == 1


@pytest.mark.parametrize("engine", ["async", "serial"])
def test_a_failed_write_is_raised_by_whoever_waits_next_and_is_over_then(
    engine: str, tmp_path: Path, monkeypatch: Any
) -> None:
    def full(path: Path, pieces: Any) -> None:
        raise weft.CheckpointError("disk full")

    def save_and_wait() -> None:
        checkpoints.save(net, 1)
        checkpoints.wait()

    checkpoints, net = Checkpoints(tmp_path, background=True), numbered(1)
    with overrides(engine=engine):
        with monkeypatch.context() as patch:
            patch.setattr(file_series, "write_durably", full)
            with pytest.raises(weft.CheckpointError, match="disk full"):
                save_and_wait()
        save_and_wait()
        assert checkpoints.load()["step"] == 1


def test_keeping_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(weft.UsageError, match="keep is 0"):
        Checkpoints(tmp_path, keep=0)


class Run:
    """Training with everything that has a state: dropout, shuffling, momentum, a schedule, accumulation."""

    DATA = torch.randn(24, 5, generator=torch.Generator().manual_seed(7))
    BATCH = 4
    ACCUMULATED = 2

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.4), nn.Linear(6, 1))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.1, total_steps=20)
        self.scaler = torch.amp.GradScaler("cpu", enabled=True)
        self.shuffling = torch.Generator().manual_seed(1)
        self.order = torch.empty(0, dtype=torch.int64)
        self.position = 0

    def parts(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "shuffling": self.shuffling,
        }

    def values(self) -> dict[str, Any]:
        gradients = [None if item.grad is None else item.grad for item in self.net.parameters()]
        return {"order": self.order, "position": self.position, "gradients": gradients}

    def micro_step(self) -> None:
        if self.position % len(self.DATA) == 0:
            self.order = torch.randperm(len(self.DATA), generator=self.shuffling)
        start = self.position % len(self.DATA)
        x = self.DATA[self.order[start : start + self.BATCH]]
        self.scaler.scale(self.net(x).square().mean()).backward()
        self.position += self.BATCH
        if self.position // self.BATCH % self.ACCUMULATED == 0:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.scheduler.step()

    def resume(self, checkpoints: Checkpoints) -> None:
        found = checkpoints.load(self.net, **self.parts())
        self.order, self.position = found["order"], found["position"]
        for parameter, gradient in zip(self.net.parameters(), found["gradients"], strict=True):
            parameter.grad = gradient


@pytest.mark.slow
def test_stopped_at_any_step_and_resumed_a_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    steps = 3 * len(Run.DATA) // Run.BATCH
    checkpoints = Checkpoints(tmp_path, keep=None)
    torch.manual_seed(5)
    straight = Run()
    for step in range(steps):
        checkpoints.save(straight.net, step, **straight.parts(), **straight.values())
        straight.micro_step()
    for stopped in range(steps):
        torch.manual_seed(1000 + stopped)  # another process, where other things were drawn
        run = Run()
        (tmp_path / "latest").write_text(f"step-{stopped:010d}.safetensors\n")
        run.resume(checkpoints)
        for _ in range(stopped, steps):
            run.micro_step()
        for one, other in zip(run.net.state_dict().values(), straight.net.state_dict().values(), strict=True):
            assert torch.equal(one, other), stopped


STEPS: dict[str, Any] = {
    "negative": -1,
    "text": "3",
    "fraction": 2.5,
    "whole float": 2.0,
    "true": True,
    "nothing": None,
    "truth of numpy": np.True_,
    "float of numpy": np.float64(3),
    "truth of a tensor": torch.tensor(True),
    "float of a tensor": torch.tensor(3.0),
    "two numbers": torch.tensor([1, 2]),
    "array": np.array([1, 2]),
    "too large": 10**18,
    "huge": 10**5000,
    "huge and negative": -(10**5000),
    "list": [3],
    "complex": 3j,
    "bytes": b"3",
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("background", [False, True])
def test_a_step_that_cannot_be_found_again_is_refused(background: bool, name: str, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run", background=background)
    with pytest.raises(weft.UsageError, match=r"^step is ") as caught:
        checkpoints.save(numbered(1), STEPS[name])
    assert caught.value.why
    checkpoints.wait()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("step", [0, 1, np.int64(7), np.uint8(200), torch.tensor(5), 10**12, 10**18 - 1], ids=repr)
def test_steps_of_every_kind_of_whole_number_are_found_again(step: Any, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save(numbered(1), step)
    assert path.name == f"step-{int(step):010d}.safetensors"
    found = checkpoints.load()["step"]
    assert (found, type(found)) == (int(step), int)
    assert checkpoints.latest() == path


def test_a_step_is_given_once(tmp_path: Path) -> None:
    with pytest.raises(weft.UsageError, match="given its step twice"):
        Checkpoints(tmp_path).save(numbered(1), 3, step=4)


@pytest.mark.parametrize("keep", [True, "3", 2.5, -1, 0, [1], torch.tensor(True)], ids=repr)
def test_how_many_are_kept_is_a_whole_number(keep: Any, tmp_path: Path) -> None:
    with pytest.raises(weft.UsageError, match=r"^keep is "):
        Checkpoints(tmp_path, keep=keep)


def test_a_reader_lists_again_where_what_it_found_has_gone(tmp_path: Path, monkeypatch: Any) -> None:
    writer = Checkpoints(tmp_path, keep=1)
    writer.save(numbered(1), 1)
    listing, rounds = file_series.FileSeries.newest_first, []

    def overtaken(series: Any) -> list[Path]:
        found = listing(series)
        if len(rounds) < 4:
            rounds.append(found)
            writer.save(numbered(1), len(rounds) + 1)  # and what was found goes
        return found

    monkeypatch.setattr(file_series.FileSeries, "newest_first", overtaken)
    assert weft.load(tmp_path)["step"] == 5
    assert len(rounds) == 4


def test_a_folder_whose_files_always_go_is_given_up(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        file_series.FileSeries, "newest_first", lambda series: [tmp_path / "step-0000000001.safetensors"]
    )
    with pytest.raises(weft.CheckpointError, match="there is no checkpoint to load"):
        weft.load(tmp_path)


def test_writers_of_one_folder_leave_each_others_newest_file(tmp_path: Path, monkeypatch: Any) -> None:
    first, second = (Checkpoints(tmp_path, keep=1) for _ in range(2))
    drop, dropped = file_series.FileSeries._drop_oldest, []

    def late(series: Any, written: Path) -> None:
        if not dropped:
            dropped.append(written)
            second.save(numbered(2), 2)  # between the writing of the first and its tidying up
        drop(series, written)

    monkeypatch.setattr(file_series.FileSeries, "_drop_oldest", late)
    first.save(numbered(1), 1)
    assert weft.load(tmp_path)["step"] == 2
    assert [name for name in names(tmp_path) if name != "latest"] == ["step-0000000002.safetensors"]


@pytest.mark.slow
def test_a_reader_beside_several_writers_always_finds_one(tmp_path: Path) -> None:
    Checkpoints(tmp_path, keep=1).save(numbered(0), 0)
    over, problems = threading.Event(), []

    def write(first: int) -> None:
        checkpoints = Checkpoints(tmp_path, keep=1)
        for step in range(first, first + 40):
            checkpoints.save(numbered(step), step, random=False)

    def read() -> None:
        while not over.is_set():
            try:
                weft.load(tmp_path)
            except weft.CheckpointError as error:
                problems.append(str(error))

    writers = [threading.Thread(target=write, args=(1000 * place,)) for place in (1, 2, 3)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    over.set()
    reader.join()
    assert problems == []
    assert not [name for name in names(tmp_path) if name.endswith(".part")]


def test_an_old_file_that_cannot_be_removed_stays_and_is_told(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(numbered(1), 1)

    def refused(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "weft"):
        patch.setattr(Path, "unlink", refused)
        checkpoints.save(numbered(2), 2)
    assert "step-0000000001.safetensors stays: Permission denied" in caplog.text
    assert checkpoints.load()["step"] == 2


def test_folders_and_links_that_lead_nowhere_are_no_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "step-0000000007.safetensors").mkdir()
    (tmp_path / "step-0000000008.safetensors").symlink_to("nothing")
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (1, 2):
        checkpoints.save(numbered(step), step)
    assert weft.load(tmp_path)["step"] == 2
    assert "step-0000000001.safetensors" not in names(tmp_path)
    assert "step-0000000007.safetensors" in names(tmp_path)


def test_a_folder_that_is_a_file_or_cannot_be_read_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "file/below"):
        with pytest.raises(weft.CheckpointError, match="cannot be made") as caught:
            Checkpoints(tmp_path / name).save(numbered(1), 1)
        assert caught.value.fix
        assert Checkpoints(tmp_path / name).latest() is None

    def refused(self: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(weft.CheckpointError, match="cannot be read\n  why   Permission denied"):
        weft.load(tmp_path)


def test_every_save_of_a_model_sweeps_what_killed_ones_left(tmp_path: Path) -> None:
    left = [tmp_path / f".{name}.{'0' * 16}.part" for name in ("net.safetensors", "other.safetensors")]
    for path in left:
        path.touch()
    weft.save(tmp_path / "net.safetensors", numbered(1))
    assert names(tmp_path) == ["net.safetensors"]
