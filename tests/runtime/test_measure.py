"""The model of this machine: measured quickly, kept on disk as text, plausible."""

import ctypes
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from time import process_time, sleep

import pytest

from weft.codegen.measure_module import can_flush, measure_module
from weft.config import overrides
from weft.plan.schedule.cost import MachineModel, default_model, parse_model
from weft.runtime import measure
from weft.runtime.arena import ArenaBlock
from weft.runtime.measure import FOLDER, HANDED_BYTES, machine_model, measure_machine
from weft.runtime.shared_code import shared_library
from weft.target import cross_target, host_target


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with overrides(cache_dir=tmp_path):
        yield tmp_path / FOLDER


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    guess = default_model(host_target())
    monkeypatch.setattr(measure, "measure_machine", lambda _: calls.append(1) or guess)
    return calls


def test_a_machine_is_measured_in_under_a_second() -> None:
    begin = process_time()
    model = measure_machine(host_target())
    assert process_time() - begin < 1
    assert all(getattr(model, field.name) > 0 for field in fields(MachineModel))
    assert 1e9 < model.multiply_adds < 1e13
    assert model.memory < model.l1
    assert 1e-9 <= model.wait <= 1e-5


@pytest.mark.skipif(not can_flush(host_target()), reason="programs cannot put memory out of this machine's caches")
def test_what_was_flushed_is_in_no_cache() -> None:
    functions, size = measure._functions(shared_library(measure_module)), 512 * 1024
    block = ArenaBlock(size)
    ctypes.memset(block.address, 1, size)  # memory that nobody has written is all one page
    read = measure._sweep(functions, block, size, 1)
    warm = measure._best(read)
    assert measure._fastest(read, 5, lambda: functions["flush"](block.address, size)) > 1.3 * warm


def test_a_machine_is_measured_once_and_then_read_from_disk(folder: Path, counted: list[int]) -> None:
    first = machine_model(host_target())
    (path,) = folder.iterdir()
    assert parse_model(path.read_text(), host_target()) == first
    measure._known.cache_clear()  # as a new process would start
    assert machine_model(host_target()) == first
    assert len(counted) == 1


@pytest.mark.usefixtures("folder")
def test_memory_is_got_ahead_once_and_only_where_something_will_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    written = measure._written
    monkeypatch.setattr(measure, "_written", lambda size: made.append(size) or written(size))
    monkeypatch.setattr(measure, "_blocks", {})
    measure._known.cache_clear()
    measure.get_memory()
    measure.get_memory()
    assert len(made) == len(measure._blocks) == 1
    machine_model(host_target())
    measure.get_memory()
    measure._known.cache_clear()  # as a new process would start, which finds the model on disk
    measure.get_memory()
    assert len(made) == 1
    assert not measure._blocks


def test_a_damaged_file_is_measured_again(folder: Path, counted: list[int]) -> None:
    machine_model(host_target())
    (path,) = folder.iterdir()
    path.write_text("nonsense")
    measure._known.cache_clear()  # as a new process would start
    machine_model(host_target())
    assert len(counted) == 2
    assert path.read_text() != "nonsense"


def test_another_machine_is_not_measured(counted: list[int]) -> None:
    target = cross_target("aarch64")
    assert machine_model(target) == default_model(target)
    assert not counted


def test_what_another_core_has_written_comes_as_fast_as_a_hand_over_with_it_takes_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "_hand_over", lambda _, __, size: 0.1e-6 + 0.5 * size / 11e9)
    model = measure_machine(replace(host_target(), cores=2))
    assert model.wait == pytest.approx(0.1e-6)
    assert model.transfer == pytest.approx(11e9)
    monkeypatch.setattr(measure, "_hand_over", lambda _, __, size: 0.1e-6)
    model = measure_machine(replace(host_target(), cores=2))
    assert model.transfer == model.l3


def test_where_handing_over_takes_long_only_one_round_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    spoken: list[tuple[int, int]] = []
    functions = {"ping": lambda _, __, first, last, *___: spoken.append((first, last)), "pong": lambda *_: None}
    block = ArenaBlock(HANDED_BYTES)
    monkeypatch.setattr(measure, "LONGEST_HAND_OVER", 60.0)
    measure._hand_over(functions, block, HANDED_BYTES)
    assert len(spoken) == measure.ROUNDS_OF_SPANS * measure.SPANS
    assert [first for first, _ in spoken[1:]] == [last for _, last in spoken[:-1]]  # as both sides count
    spoken.clear()
    monkeypatch.setattr(measure, "LONGEST_HAND_OVER", 0.0)
    measure._hand_over(functions, block, HANDED_BYTES)
    assert len(spoken) == measure.SPANS


def test_rounds_in_which_both_threads_had_one_core_tell_nothing_and_another_one_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = [0.002] * 4  # of spans: as long as a thread may keep a core
    functions = {"ping": lambda *_: sleep(seconds.pop() if seconds else 0.0), "pong": lambda *_: None}
    block = ArenaBlock(HANDED_BYTES)
    monkeypatch.setattr(measure, "LONGEST_HAND_OVER", 0.0)
    assert measure._hand_over(functions, block, HANDED_BYTES) < measure.ONE_CORE
    seconds += [0.002] * 100  # others keep the machine busy
    assert measure._hand_over(functions, block, HANDED_BYTES) > measure.ONE_CORE
    assert len(seconds) == 100 - measure.MOST_ROUNDS_IN_VAIN * measure.SPANS
