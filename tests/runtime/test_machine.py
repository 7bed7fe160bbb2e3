"""The model of this machine is kept once it was measured in quiet, and measured again where it may have changed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from weft.compile.pipeline import plan_graph
from weft.compile.plan_cache import Machine, Question
from weft.config import overrides
from weft.ir.parser import parse_graph
from weft.plan.schedule.cost import MachineModel, default_model, parse_model
from weft.runtime import machine, measure
from weft.runtime.machine import FOLDER, machine_measurement, machine_model, renew
from weft.target import cross_target, host_target

DAY = 24 * 3600.0
CAUTIOUS = default_model(host_target())
GUESS = replace(CAUTIOUS, wait=80e-9, transfer=20e9, multiply_adds=1.8 * CAUTIOUS.multiply_adds)


class World:
    """A machine that others may be using, with a clock that goes on only when told."""

    def __init__(self) -> None:
        self.now, self.busy, self.model = 1e9, False, GUESS
        self.clock = self.processor = self.switches = 0.0
        self.measured = self.looked = 0

    def measure(self, _: object) -> MachineModel:
        self.measured += 1
        self._work()
        if not self.busy:
            return self.model
        return replace(self.model, wait=3.5 * self.model.wait, transfer=self.model.transfer / 3)

    def look(self, _: object) -> dict[str, float]:
        self.looked += 1
        self._work()
        return {"multiply_adds": self.model.multiply_adds / (3 if self.busy else 1)}

    def _work(self) -> None:
        self.clock += 0.3 if self.busy else 0.1
        self.processor += 0.1
        self.switches += 40 if self.busy else 1


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    found = World()
    monkeypatch.setattr(machine, "measure_machine", found.measure)
    monkeypatch.setattr(machine, "quick_look", found.look)
    monkeypatch.setattr(machine, "time", lambda: found.now)
    monkeypatch.setattr(machine, "_numbers", lambda: (found.clock, found.processor, found.switches))
    before = dict(machine._latest)
    machine._known.cache_clear()
    with overrides(cache_dir=tmp_path):
        yield found
    machine._known.cache_clear()
    machine._latest.clear()
    machine._latest.update(before)


def in_a_new_process() -> MachineModel:
    machine._known.cache_clear()
    machine._latest.clear()
    return machine_model(host_target())


def kept(folder: Path) -> Path:
    (path,) = (folder / FOLDER).iterdir()
    return path


def test_a_quiet_machine_is_measured_once_and_then_read_from_disk(world: World, tmp_path: Path) -> None:
    first = in_a_new_process()
    assert parse_model(kept(tmp_path).read_text(), host_target()) == first
    assert in_a_new_process() == parse_model(str(GUESS), host_target())
    assert world.measured == 1


def test_a_measurement_beside_others_serves_a_minute_and_is_then_replaced(world: World, tmp_path: Path) -> None:
    world.busy = True
    first = in_a_new_process()
    assert first.wait > 2 * GUESS.wait
    assert "quiet 0" in kept(tmp_path).read_text()
    tries = world.measured
    assert in_a_new_process() == parse_model(str(first), host_target())
    assert world.measured == tries  # processes that start together do not measure each other
    world.busy, world.now = False, world.now + 61
    assert in_a_new_process().wait == GUESS.wait
    assert "quiet 1" in kept(tmp_path).read_text()


def test_a_machine_that_is_always_busy_keeps_its_model_and_so_its_plans(world: World) -> None:
    world.busy = True
    first = in_a_new_process()
    for _ in range(3):
        world.now += 61
        assert str(in_a_new_process()) == str(first)


def test_the_fastest_of_disturbed_measurements_counts(world: World) -> None:
    world.busy = True
    in_a_new_process()
    world.now, world.model = world.now + 61, replace(GUESS, wait=GUESS.wait / 3)
    found = in_a_new_process()
    assert found.wait == pytest.approx(3.5 * GUESS.wait / 3)
    assert found.transfer == pytest.approx(GUESS.transfer / 3)


def test_a_quiet_machine_that_is_slower_than_most_is_believed_the_second_time(world: World) -> None:
    world.model = replace(GUESS, wait=900e-9)
    assert in_a_new_process().wait == 900e-9
    assert world.measured == 2
    in_a_new_process()
    assert world.measured == 2


def test_it_is_compared_once_a_day(world: World) -> None:
    in_a_new_process()
    world.now += DAY / 2
    in_a_new_process()
    assert world.looked == 0
    world.now += DAY
    in_a_new_process()
    in_a_new_process()
    assert (world.looked, world.measured) == (1, 1)


def test_one_that_has_become_another_is_measured_again_but_not_for_being_busy(world: World) -> None:
    in_a_new_process()
    world.busy, world.now = True, world.now + 2 * DAY
    in_a_new_process()
    assert (world.looked, world.measured) == (1, 1)
    world.busy, world.model = False, replace(GUESS, multiply_adds=GUESS.multiply_adds / 2)
    assert in_a_new_process().multiply_adds == GUESS.multiply_adds / 2
    assert (world.looked, world.measured) == (2, 3)  # one so slow is measured twice


@pytest.mark.parametrize("part", range(5))
def test_another_host_another_limit_of_a_container_another_processor_are_other_machines(
    world: World, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    in_a_new_process()
    shape = list(machine.machine_shape())
    shape[part] += " and another"
    monkeypatch.setattr(machine, "machine_shape", lambda: tuple(shape))
    in_a_new_process()
    assert world.measured == 2


def test_renewing_measures_whatever_was_kept(world: World, tmp_path: Path) -> None:
    in_a_new_process()
    world.model = replace(GUESS, wait=70e-9)
    assert renew(host_target()).model.wait == 70e-9
    assert machine_measurement(host_target()).model.wait == pytest.approx(70e-9)
    assert world.measured == 2
    assert kept(tmp_path).exists()


@pytest.mark.parametrize("text", ["nonsense", "", "quiet 1\nmeasured x\nchecked 0\n"])
def test_a_damaged_file_is_measured_again(world: World, tmp_path: Path, text: str) -> None:
    in_a_new_process()
    kept(tmp_path).write_text(text)
    in_a_new_process()
    assert world.measured == 2
    assert kept(tmp_path).read_text() != text


def test_one_process_measures_once_for_several_folders(world: World, tmp_path: Path) -> None:
    first = in_a_new_process()
    with overrides(cache_dir=tmp_path / "another"):
        assert machine_model(host_target()) == first
        assert kept(tmp_path / "another").exists()
    assert world.measured == 1


def test_another_machine_is_not_measured(world: World) -> None:
    target = cross_target("aarch64")
    assert machine_model(target) == default_model(target)
    assert not world.measured


def test_memory_is_got_ahead_once_and_only_where_something_will_be_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[int] = []
    written: Callable[[int], object] = measure._written
    monkeypatch.setattr(measure, "_written", lambda size: made.append(size) or written(size))
    monkeypatch.setattr(measure, "_blocks", {})
    monkeypatch.setattr(machine, "DISTURBED_SERVES", 1e9)
    with overrides(cache_dir=tmp_path):
        machine._known.cache_clear()
        monkeypatch.setattr(machine, "_latest", {})
        machine.get_memory()
        machine.get_memory()
        assert len(made) == len(measure._blocks) == 1
        machine_model(host_target())
        assert not measure._blocks
        count = len(made)
        machine.get_memory()
        machine._known.cache_clear()  # as a new process would start, which finds the model on disk
        machine.get_memory()
        assert len(made) == count
    machine._known.cache_clear()


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


GRAPHS = (
    """graph chain(%x: f32[64,1024], %w: f32[1024,1024], %v: f32[1024,1024]) {
      %0: f32[64,1024] = matmul %x, %w
      %1: f32[64,1024] = relu %0
      %2: f32[64,1024] = matmul %1, %v
      return %2
    }""",
    """graph small(%x: f32[4,64], %w: f32[64,64]) {
      %0: f32[4,64] = matmul %x, %w
      %1: f32[4,64] = tanh %0
      return %1
    }""",
    """graph loops(%x: f32[256,1024], %y: f32[256,1024]) {
      %0: f32[256,1024] = exp %x
      %1: f32[256,1024] = tanh %y
      %2: f32[256,1024] = add %0, %1
      %3: f32[256] = sum %2, dimensions=[1], keep=False
      return %2, %3
    }""",
)


def lanes(text: str, model: MachineModel) -> list[int]:
    target = host_target()
    question = Question(parse_graph(text), frozenset(), (), frozenset(), Machine(target, 2, model))
    return [len(region.plan.lanes) for region in plan_graph(question, None).regions]


@pytest.mark.skipif(host_target().cores < 2, reason="lanes need two cores")
def test_a_first_measurement_beside_four_busy_processes_leads_to_the_lanes_of_a_quiet_one() -> None:
    target = host_target()
    alone = machine._measured(target, None)
    with busy_processes(4):
        beside = machine._measured(target, None)
    assert not beside.quiet
    for name in ("wait", "multiply_adds", "l1"):
        ratio = getattr(beside.model, name) / getattr(alone.model, name)
        assert 0.4 < ratio < 2.5, name
    assert [lanes(text, beside.model) for text in GRAPHS] == [lanes(text, alone.model) for text in GRAPHS]
