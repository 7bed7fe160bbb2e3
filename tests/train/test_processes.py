"""Several processes train as one device would; when one fails, the others say which, and none is left behind."""

from __future__ import annotations

import copy
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import failing, failing_run, laws_run
from tests.train.failing import IN_TIME, end_parent, end_parent_at_once, fail_once

import weft
from weft.train.checkpoints.tensor_file import read_tensor_file
from weft.train.launch import train
from weft.train.processes import peers


@pytest.fixture(autouse=True)
def _same_weft(monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_three_processes_give_what_one_device_gives(tmp_path: Path) -> None:
    history = train(f"{laws_run.__file__}:run", processes=3, values={"folder": str(tmp_path)})
    assert [row["epoch"] for row in history] == [1]
    checked = {f"{law.__name__}-{rank}" for law in laws_run.LAWS for rank in range(3)}
    threads = {f"threads-{rank}" for rank in range(3)}
    assert {path.name for path in tmp_path.iterdir()} == {*checked, *threads, "bits.safetensors"}
    for name in threads:
        # One that PyTorch's group still had would end the process if it let go of a tensor just then.
        assert "pt_gloo" not in (tmp_path / name).read_text()
    alone = laws_run.deterministic()
    found = copy.deepcopy(alone)
    weft.load(tmp_path / "bits.safetensors", found)
    for name, value in alone.state_dict().items():
        assert torch.equal(value, found.state_dict()[name]), name


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("way, how, place", [("launcher", "stop", "data"), ("torchrun", "kill", "callback")])
def test_when_a_process_fails_the_others_say_so_within_two_seconds(way: str, how: str, place: str) -> None:
    assert fail_once(way, 2, {"how": how, "rank": 1, "step": 5, "place": place}) < IN_TIME


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_no_process_outlives_its_parent() -> None:
    end_parent("launcher", 2, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_no_process_outlives_a_parent_that_ended_while_it_was_importing() -> None:
    assert end_parent_at_once(2) < 60.0  # it had waited minutes for a store that had ended with the parent


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_run_of_processes_that_failed_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    target = f"{failing_run.__file__}:run"
    never = {"folder": str(tmp_path), "how": "fail", "rank": 1, "step": 10**6, "place": "loss"}
    straight, stopped = str(tmp_path / "straight"), str(tmp_path / "stopped")
    train(target, processes=2, epochs=3, checkpoints=straight, values=never)
    with pytest.raises(weft.ExecutionError, match="rank 1 of 2 failed in step 9"):
        train(target, processes=2, epochs=3, checkpoints=stopped, values={**never, "step": 9})
    assert len(train(target, processes=2, epochs=3, checkpoints=stopped, resume="auto", values=never)) == 3
    one, other = (read_tensor_file(Path(folder) / "step-0000000018.safetensors") for folder in (straight, stopped))
    assert one.blocks == other.blocks


class _Late:
    """A piece of communication that ends just as a wait for it does; with an error, or well."""

    def __init__(self, error: str | None) -> None:
        self.error, self.waits = error, 0

    def is_completed(self) -> bool:
        return self.waits > 0

    def wait(self, timeout: Any = None) -> None:
        self.waits += 1
        if self.waits == 1:
            raise RuntimeError("Operation timed out!")
        if self.error is not None:
            raise RuntimeError(self.error)


def test_what_is_done_as_a_wait_ends_is_done() -> None:
    assert peers._done(_Late(None), on_gpu=False)
    with pytest.raises(RuntimeError, match="reset by peer"):
        peers._done(_Late("reset by peer"), on_gpu=False)


def test_a_run_that_is_none_is_refused() -> None:
    with pytest.raises(weft.UsageError, match="names no training run"):
        train("nothing", processes=1)
    with pytest.raises(weft.UsageError, match="takes no 'wrong'"):
        train("examples.lenet", values={"wrong": 1})


def test_a_hundred_failures_can_be_chosen_in_parts(monkeypatch: Any, capsys: Any) -> None:
    def chosen(seed: int) -> list[int]:
        found: list[int] = []

        def once(source: random.Random, ways: Any) -> tuple[str, str, float]:
            found.append(source.randrange(10**6))
            return "kill", f"with {ways}", 0.5

        monkeypatch.setattr(failing, "once", once)
        with pytest.raises(SystemExit) as ended:
            failing.main(3, "both", seed)
        assert not ended.value.code
        assert capsys.readouterr().out.endswith(f"3 failures with seed {seed}, 0 faults\n")
        return found

    assert chosen(1) == chosen(1) != chosen(2)
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert "-m tests.train.failing $(KILLS) both $(SEED)\n" in makefile


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_all_name_the_step_of_a_rank_that_failed_between_two_steps(tmp_path: Path) -> None:
    broken = {"folder": str(tmp_path), "how": "fail", "rank": 1, "step": 5, "place": "callback"}
    with pytest.raises(weft.ExecutionError, match="rank 1 of 2 failed in step 5: "):
        train(f"{failing_run.__file__}:run", processes=2, epochs=1, values=broken)
    told = (tmp_path / "told-0.json").read_text()
    assert "rank 1 of 2 failed in step 5, so rank 0 stops too" in told
