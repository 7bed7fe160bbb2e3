"""What the clock has decided of lanes is kept on disk, told by explain, and changes no bit of any result."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import weft
from weft.codegen.threads import trial
from weft.codegen.threads.trial import ALONE, BEST_LANES, BEST_SINGLE, DECIDED, FIRST_TRIAL, LEFT, SHORTEST_INTERVAL
from weft.codegen.threads.workers import TRIAL_SLOT
from weft.config import overrides
from weft.plan.schedule.cost import default_model
from weft.plan.schedule.lanes import WORTH_TRYING, Scheduling
from weft.runtime import lane_choice
from weft.runtime.compiled_graph import NativeRegion
from weft.runtime.lane_choice import FOLDER, LaneChoice, LaneTrialWords, keep_all
from weft.runtime.lanes import start_crew, stop_crew
from weft.target import host_target


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with overrides(cache_dir=tmp_path, threads=2):
        yield tmp_path / FOLDER


def decided(words: LaneTrialWords, *, alone: bool) -> ctypes.Array[ctypes.c_int64]:
    """Say that the clock has decided."""
    memory = (ctypes.c_int64 * trial.WORDS)(*words.first)
    memory[ALONE], memory[DECIDED], memory[BEST_LANES], memory[BEST_SINGLE] = int(alone), 1, 3_310_000, 57_200
    words.lie_at(ctypes.addressof(memory), memory)
    return memory


@pytest.mark.parametrize("alone", [False, True])
def test_a_later_process_begins_with_what_was_decided(folder: Path, alone: bool) -> None:
    words = LaneTrialWords("a plan", 2, alone=not alone)
    assert words.choice is None
    assert (words.first[ALONE], words.first[LEFT]) == (int(not alone), 1 + FIRST_TRIAL)
    decided(words, alone=alone)
    words.keep()
    again = LaneTrialWords("a plan", 2, alone=not alone)
    assert again.choice == LaneChoice(2, alone, 3_310_000e-9, 57_200e-9)
    assert (again.first[ALONE], again.first[LEFT]) == (int(alone), 1 + SHORTEST_INTERVAL)
    assert LaneTrialWords("another plan", 2, alone=False).choice is None
    assert len([*folder.iterdir()]) == 1


@pytest.mark.usefixtures("folder")
def test_another_machine_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    words = LaneTrialWords("a plan", 2, alone=False)
    decided(words, alone=True)
    words.keep()
    monkeypatch.setattr(lane_choice, "machine_key", lambda _: "another")
    assert LaneTrialWords("a plan", 2, alone=False).choice is None


@pytest.mark.parametrize("body", [b"", b"nonsense", b"a\nb", b"\xff"])
def test_what_is_damaged_counts_as_absent(folder: Path, body: bytes) -> None:
    words = LaneTrialWords("a plan", 2, alone=False)
    decided(words, alone=True)
    words.keep()
    lane_choice._cache(folder.parent).write(words._key, body)
    assert LaneTrialWords("a plan", 2, alone=False).choice is None


@pytest.mark.usefixtures("folder")
def test_nothing_is_written_before_the_clock_has_decided() -> None:
    words = LaneTrialWords("a plan", 2, alone=False)
    memory = decided(words, alone=True)
    memory[DECIDED] = 0
    keep_all()
    assert LaneTrialWords("a plan", 2, alone=False).choice is None


@pytest.fixture
def wide(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[nn.Module, torch.Tensor]]:
    """A network with two lanes, whatever this machine has."""
    monkeypatch.setattr("weft.compile.pipeline.cpu_count", lambda: 2)
    monkeypatch.setattr("weft.compile.pipeline.machine_model", lambda target: replace(default_model(target), cores=2))
    start_crew(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256))
    with torch.no_grad():
        yield weft.hybridize(net), torch.randn(64, 256)
    stop_crew()


def regions(net: nn.Module, x: torch.Tensor) -> list[NativeRegion]:
    return list(weft.program(net, x)._forward().regions)


def test_a_trial_changes_no_bit(wide: tuple[nn.Module, torch.Tensor]) -> None:
    net, x = wide
    first = net(x)
    (region,) = regions(net, x)
    assert len(region.plan.lanes) == 2
    for _ in range(FIRST_TRIAL + trial.MOST_CALLS):
        assert torch.equal(net(x), first)
    words = region._execute._program
    assert words is not None
    assert words[TRIAL_SLOT + LEFT] > 1  # the trial is over


def test_explain_says_what_was_measured(wide: tuple[nn.Module, torch.Tensor]) -> None:
    net, x = wide
    net(x)
    assert "by the clock" not in weft.explain(net)
    (region,) = regions(net, x)
    words = region._execute._program
    assert words is not None
    for word, value in ((ALONE, 1), (DECIDED, 1), (BEST_LANES, 3_310_000), (BEST_SINGLE, 57_200)):
        words[TRIAL_SLOT + word] = value
    assert "by the clock 2 lanes take 3.31 ms, one takes 57.2 us: one lane runs" in weft.explain(net)


def test_lanes_that_would_hardly_pay_are_made_to_be_tried(wide: tuple[nn.Module, torch.Tensor]) -> None:
    net, x = wide
    net(x)
    (region,) = regions(net, x)
    plan = replace(region.plan, lanes=())
    model = replace(default_model(host_target()), cores=2)
    serial = Scheduling(plan, 1, model).schedule().seconds
    assert serial > WORTH_TRYING
    good = Scheduling(plan, 2, model).schedule(tried=True).plan
    assert (len(good.lanes), good.alone) == (2, False)
    dear = replace(model, wait=0.6 * serial, check=0.2 * serial, lane=0.6 * serial)
    for tried in (False, True):
        found = Scheduling(plan, 2, dear).schedule(tried=tried)
        assert (len(found.plan.lanes), found.plan.alone) == ((2, True) if tried else (1, False))
        assert found.seconds == pytest.approx(serial)
    hopeless = replace(model, wait=1.0, check=1.0, lane=1.0)
    assert len(Scheduling(plan, 2, hopeless).schedule(tried=True).plan.lanes) == 1


def test_a_plan_that_the_clock_tries_begins_on_one_lane(
    wide: tuple[nn.Module, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = wide
    dear = replace(default_model(host_target()), cores=2, wait=1e-4, check=3e-5, lane=1e-4)
    monkeypatch.setattr("weft.compile.pipeline.machine_model", lambda _: dear)
    first = net(x)
    (region,) = regions(net, x)
    words = region._execute._program
    assert region.plan.alone
    assert words is not None
    assert words[TRIAL_SLOT + ALONE] == 1
    assert "by estimate one lane is done sooner" in str(weft.program(net, x).plan)
    for _ in range(FIRST_TRIAL + trial.MOST_CALLS):
        assert torch.equal(net(x), first)
