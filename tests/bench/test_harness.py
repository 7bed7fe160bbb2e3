"""Interleaving, statistics and the check of answers, on clocks and contestants that are not real."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from bench import contestants, workloads
from bench.answers import Reference, reference, relative_error
from bench.contestants import CONTESTANTS, Contestant
from bench.job import TRAINING_STEPS, CannotRunError, Job, Setting, channels_last
from bench.machine import Load, foreign_cores
from bench.models.subject import Subject
from bench.report import lines_of, markdown, summary
from bench.row import Entry, Row
from bench.torch_contestants import eager
from bench.workloads import WORKLOADS

from weft.console.bench.harness import (
    DroppedOutError,
    Spread,
    TurnLimits,
    geometric_mean,
    interleave,
    ratios,
    settled,
    spread,
    time_turn,
)


class Clock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Runner:
    """A contestant whose times are given."""

    name: str
    figures: Iterator[float]
    clock: Clock
    order: list[str] = field(default_factory=list)

    def turn(self, seconds: float) -> float:
        self.order.append(self.name)
        self.clock.now += seconds
        figure = next(self.figures, None)
        if figure is None:
            raise DroppedOutError("its process ended")
        return figure


def constantly(figure: float) -> Iterator[float]:
    while True:
        yield figure


def alternately(*figures: float) -> Iterator[float]:
    while True:
        yield from figures


def make_runners(clock: Clock, **figures: Iterator[float]) -> tuple[list[Runner], list[str]]:
    order: list[str] = []
    return [Runner(name, given, clock, order) for name, given in figures.items()], order


def test_contestants_take_turns_in_one_order() -> None:
    clock = Clock()
    runners, order = make_runners(clock, a=constantly(1.0), b=constantly(2.0), c=constantly(3.0))
    interleave(runners, TurnLimits(fewest_rounds=3), clock)
    assert order == ["a", "b", "c"] * 3


def test_times_that_do_not_vary_settle_after_the_fewest_rounds() -> None:
    clock = Clock()
    runners, _ = make_runners(clock, a=constantly(1.0))
    times = interleave(runners, TurnLimits(fewest_rounds=5), clock)
    assert times.settled
    assert times.rounds == {"a": [1.0] * 5}


def test_times_that_vary_are_taken_until_the_limit_and_are_said_not_to_have_settled() -> None:
    clock = Clock()
    runners, _ = make_runners(clock, a=alternately(1.0, 3.0))
    times = interleave(runners, TurnLimits(turn_seconds=1.0, fewest_rounds=3, seconds=20.0), clock)
    assert not times.settled
    assert len(times.rounds["a"]) == 20


def test_a_contestant_that_fails_drops_out_with_its_reason_and_the_others_go_on() -> None:
    clock = Clock()
    runners, _ = make_runners(clock, a=constantly(1.0), b=iter([2.0]))
    times = interleave(runners, TurnLimits(fewest_rounds=4), clock)
    assert times.rounds == {"a": [1.0] * 4}
    assert times.dropped == {"b": "its process ended"}


def test_no_contestant_gives_no_times() -> None:
    assert interleave([], TurnLimits(), Clock()).rounds == {}


@pytest.mark.parametrize("each", [1e-6, 3e-4, 0.02, 7.0])
def test_a_turn_gives_the_time_of_one_call_and_warms_up_first(each: float) -> None:
    clock = Clock()
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        clock.now += each if calls > 1 else 2 * each

    assert time_turn(call, 0.1, clock) == pytest.approx(each)
    assert calls >= 2


def test_a_spread_is_the_median_with_quartiles() -> None:
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert spread([2.0]) == Spread(2.0, 2.0, 2.0, 1)


def test_a_ratio_is_taken_round_by_round_so_that_drift_cancels() -> None:
    assert ratios([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == Spread(2.0, 2.0, 2.0, 3)


def test_one_figure_has_not_settled() -> None:
    assert not settled([[1.0]], within=0.5)
    assert settled([[1.0, 1.0]], within=0.5)
    assert not settled([[1.0, 1.0], [1.0, 9.0]], within=0.5)


def test_a_geometric_mean_of_nothing_is_nothing() -> None:
    assert geometric_mean([]) is None
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def test_an_error_is_relative_and_infinite_where_shapes_or_nans_differ() -> None:
    true = np.array([3.0, 4.0])
    assert relative_error(true, true) == 0.0
    assert relative_error(1.1 * true, true) == pytest.approx(0.1)
    assert relative_error(true[:1], true) == math.inf
    assert relative_error(np.array([3.0, np.nan]), true) == math.inf
    assert relative_error(np.array([3.0, np.inf]), np.array([3.0, np.inf])) == 0.0
    assert relative_error(np.array([1.0]), np.array([0.0])) == math.inf


@pytest.mark.parametrize(
    ("factor", "word"), [(1 + 1.9e-6, "right"), (1 + 3e-6, "less exact"), (1.5, "wrong"), (math.nan, "wrong")]
)
def test_an_answer_may_have_twice_the_error_of_eager(factor: float, word: str) -> None:
    true = np.linspace(1.0, 2.0, 50)
    verdict = Reference([true], [1e-6]).judge([true * factor])
    assert verdict.word == word
    assert verdict.may_compete == (word != "wrong")


def test_a_missing_result_is_a_wrong_answer() -> None:
    true = np.ones(3)
    assert Reference([true, true], [0.0, 0.0]).judge([true]).word == "wrong"


def test_an_answer_may_have_twice_eagers_error_on_a_neighbour_of_the_sample() -> None:
    true = np.linspace(1.0, 2.0, 50)
    asked: list[float] = []

    def beside() -> Iterable[list[float]]:
        for error in (1e-7, 1e-5, 1e-4):
            asked.append(error)
            yield [error]

    expected = Reference([true], [1e-6], beside)
    assert expected.judge([true * (1 + 1e-6)]).word == "right"
    assert asked == []
    verdict = expected.judge([true * (1 + 1e-5)])
    assert (verdict.word, verdict.allowed) == ("right", pytest.approx(2e-5, rel=0.01))
    assert asked == [1e-7, 1e-5]
    assert expected.judge([true * (1 + 1e-3)]).word == "less exact"


@pytest.mark.parametrize(("name", "layer"), [("train_mlp", 0), ("train_mlp", 2), ("train_mlp", 1)])
def test_a_step_with_a_slightly_wrong_gradient_of_one_layer_is_refused(name: str, layer: int) -> None:
    workload = workloads.by_name(name)
    subject = workload.subject()
    bent = subject.thing[layer]
    if list(bent.parameters()):
        bent.weight.register_hook(lambda gradient: gradient * 1.001)
    else:
        bent.register_full_backward_hook(lambda _module, inputs, _outputs: tuple(each * 1.001 for each in inputs))
    ready = eager(Job(name, subject, 1, Setting("plain")))
    for _ in range(ready.calls_before_answer):
        result = ready.call()
    assert reference(workload).judge(ready.answer(result)).word == "less exact"


@pytest.mark.parametrize("name", ["mlp", "fancy_func", "deepfm", "train_mlp_adam"])
def test_eager_passes_the_check_against_float64(name: str) -> None:
    workload = workloads.by_name(name)
    expected = reference(workload)
    ready = eager(Job(name, workload.subject(), 1, Setting("plain")))
    for _ in range(ready.calls_before_answer):
        result = ready.call()
    assert expected.judge(ready.answer(result)).word == "right"


def test_a_training_answer_has_the_first_losses_and_how_parameters_moved() -> None:
    workload = workloads.by_name("train_mlp_adam")
    expected = reference(workload)
    losses, moved, *gradients = expected.arrays
    assert [gradient.shape for gradient in gradients] == [(784 * 256 + 256,), (256 * 10 + 10,)]
    assert losses.shape == (TRAINING_STEPS,)
    assert losses[-1] < losses[0]
    assert np.abs(moved).max() > 0


def test_a_subject_is_the_same_each_time_it_is_made() -> None:
    first, second = (workloads.by_name("mlp").subject() for _ in range(2))
    assert torch.equal(first.inputs[0], second.inputs[0])
    assert torch.equal(first.thing(*first.inputs), second.thing(*second.inputs))


def test_names_are_unique() -> None:
    assert len({workload.name for workload in WORKLOADS}) == len(WORKLOADS)
    assert len({contestant.name for contestant in CONTESTANTS}) == len(CONTESTANTS)


def test_a_pattern_or_a_group_chooses_workloads_and_a_misspelt_one_is_refused() -> None:
    assert [workload.name for workload in workloads.choose(["towers_*"])] == ["towers_1", "towers_32"]
    assert all(workload.group == "training" for workload in workloads.choose(["training"]))
    assert workloads.choose([]) == WORKLOADS
    with pytest.raises(SystemExit, match="no workload is called towrs"):
        workloads.choose(["towrs"])
    with pytest.raises(SystemExit, match="no contestant is called egaer"):
        contestants.choose(["egaer"])


def test_a_contestant_whose_package_is_missing_says_how_to_get_it() -> None:
    absent = Contestant("absent", "nothing:nothing", needs=("no_such_package_here",))
    with pytest.raises(CannotRunError, match="no_such_package_here not installed: pip install"):
        absent.load()


def test_channels_last_without_an_image_is_skipped_with_a_reason() -> None:
    with pytest.raises(CannotRunError, match="no images"):
        channels_last([torch.ones(2, 3)])
    (images,) = channels_last([torch.ones(2, 3, 4, 4)])
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_cores_used_by_others_are_what_is_busy_without_ours() -> None:
    before = Load(at=0.0, everyone=10.0, ours=5.0, stolen=0.0)
    after = Load(at=10.0, everyone=25.0, ours=15.0, stolen=1.0)
    assert foreign_cores(before, after) == pytest.approx(0.6)
    assert foreign_cores(None, after) is None


MACHINE = {
    "processor": "a processor", "cores": 2, "threads": 2, "system": "a system", "python": "3", "versions": {},
    "commit": "abc", "changed_files": 0, "date": "today", "peak_gflops": 100.0,
}  # fmt: skip


def make_entry(time: float, verdict: str = "right", first_call: float = 0.1) -> Entry:
    return Entry((time, time, time), first_call, None, "all threads", ("one thread: failed",), 1e-8, 1e-7, verdict)


def make_row(**entries: Entry) -> Row:
    named = {name.replace("_", " "): entry for name, entry in entries.items()}
    return Row(workloads.by_name("mlp"), named, {"openvino": "not installed"}, 0.0, settled=True, operations=1000)


def test_the_ratio_is_to_the_best_peer_whose_answer_is_not_wrong() -> None:
    row = make_row(
        eager=make_entry(4.0), jax=make_entry(2.0), weft=make_entry(1.0), onnxruntime=make_entry(0.1, "wrong")
    )
    assert row.best_peer == "jax"
    assert row.ratio == Spread(2.0, 2.0, 2.0, 3)
    assert row.failures() == []


def test_one_lane_is_compared_with_all_and_is_never_the_entry_of_weft() -> None:
    row = make_row(eager=make_entry(4.0), weft=make_entry(2.0), weft_one_lane=make_entry(1.0))
    assert row.ours == "weft"
    assert row.lanes == Spread(0.5, 0.5, 0.5, 3)


def test_a_row_below_its_bar_a_wrong_answer_and_slow_compiling_are_said() -> None:
    slow = make_row(eager=make_entry(1.0), weft=make_entry(1.0, first_call=2.0))
    assert slow.failures() == ["1.00 times the best peer (eager), the bar is 1.1", "first call 2.00 s, the bar is 1.5"]
    wrong = make_row(eager=make_entry(1.0), weft=make_entry(0.1, "less exact"))
    assert wrong.failures() == ["weft is less exact: error 1e-08, allowed 1e-07"]
    assert wrong.ratio is None


@pytest.mark.parametrize("compiles", [True, False])
def test_what_torch_compile_leaves_to_eager_sets_no_bar_for_compiling(compiles: bool) -> None:
    entries = {"weft": make_entry(1.0), "torch.compile": replace(make_entry(1.5, first_call=0.01), compiles=compiles)}
    row = Row(workloads.by_name("mlp"), entries, {}, 0.0, settled=True, operations=0)
    assert row.failures() == (["first call 10.00 of torch.compile's, the bar is 0.2"] if compiles else [])
    assert ("mlp: torch.compile compiled nothing: it ran as in eager" in markdown([row], MACHINE)) is not compiles


def test_a_busy_machine_marks_the_row() -> None:
    row = make_row(eager=make_entry(4.0), weft=make_entry(1.0))
    noisy = Row(row.workload, row.entries, {}, 0.5, settled=True, operations=0)
    assert noisy.noisy == "others used 0.50 cores"
    assert row.noisy is None


def test_the_page_names_what_is_missing_and_what_could_not_run() -> None:
    row = make_row(eager=make_entry(4.0), weft=make_entry(1.0))
    page = markdown([row], MACHINE)
    assert "mlp: openvino skipped: not installed" in page
    assert "mlp: eager could not run one thread: failed" in page
    assert "geometric mean against the best peer 4.00, bar 1.3" in summary([row])[0]


def test_the_terminal_tells_the_share_of_the_machines_arithmetic_peak() -> None:
    row = make_row(weft=make_entry(1.0))
    machine = {"peak_gflops": 100.0}
    share = row.share_of_peak("weft", 100.0)
    assert share is not None
    assert f"  of peak: {share:.0%} of 100 GFLOP/s, in products and convolutions" in lines_of(row, machine)
    idle = Row(row.workload, row.entries, {}, 0.0, settled=True, operations=0)
    assert not any("of peak" in line for line in lines_of(idle, machine))


def test_a_function_is_a_subject_too() -> None:
    assert isinstance(workloads.by_name("fancy_func").subject(), Subject)
