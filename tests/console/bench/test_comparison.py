"""`weft.console.bench.comparison`: figures, verdicts and a comparison of real processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from weft.console.bench.comparison import _reference, compare, portrait
from weft.console.bench.harness import ratios, spread
from weft.console.bench.result import BenchComparison, BenchSettings, RivalTimes, error_of, time_text
from weft.console.bench.rivals import RIVALS
from weft.console.commands import RIVALS as NAMES
from weft.console.subject import load_subject
from weft.errors import UsageError

ENTRIES = (
    RivalTimes("eager", (20e-6, 21e-6, 20e-6, 20e-6), 300e-6, 1e-7, agrees=True),
    RivalTimes("compile", (20.1e-6, 20e-6, 21e-6, 20e-6), 9.5, 1e-7, agrees=True),
    RivalTimes("onnxruntime", (5e-6, 9e-6, 5e-6, 8e-6), 1.5, 0.2, agrees=False),
    RivalTimes("hybrid", (10e-6, 10.1e-6, 10e-6, 10e-6), 0.05, 1e-7, agrees=True),
)
FOUND = BenchComparison("net.py:net", 2, ENTRIES, {"openvino": "openvino not installed"})

TRAINED = BenchComparison(
    "net.py:step",
    2,
    (
        RivalTimes("eager", (20e-6, 21e-6), 300e-6, 1e-7, agrees=True, losses=(2.0, 1.0, 0.5)),
        RivalTimes("step", (10e-6, 10e-6), 300e-6, 1e-7, agrees=True, losses=(2.0, 1.0, 0.5)),
    ),
    {},
)

MODEL = """import torch
from torch import nn

net = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
example_inputs = torch.randn(4, 16)
print("loud")
"""


def test_a_spread_is_the_median_and_half_of_the_middle() -> None:
    found = spread([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.median, found.half) == (3.0, 1.0)
    assert spread([7.0]).half == 0


def test_a_rival_is_noisy_where_its_rounds_lie_more_than_a_tenth_apart() -> None:
    assert RivalTimes("eager", (1.0, 2.0, 3.0, 4.0, 5.0), 1.0, 0.0, agrees=True).noisy
    assert not RivalTimes("eager", (1.0, 1.01, 1.0, 1.01), 1.0, 0.0, agrees=True).noisy


def test_ratios_are_taken_round_by_round_so_that_drift_cancels() -> None:
    assert ratios([2.0, 4.0, 8.0], [1.0, 2.0, 4.0]).median == 2.0
    assert ratios([2.0, 4.0, 8.0], [1.0, 2.0, 4.0]).half == 0.0


@pytest.mark.parametrize(
    ("found", "expected", "error"),
    [
        ([np.ones(3)], [np.ones(3)], 0.0),
        ([np.ones(3) * 1.5], [np.ones(3)], 0.5),
        ([np.ones(3)], [np.ones(4)], np.inf),
        ([np.ones(3)], [], np.inf),
        ([np.array([np.nan])], [np.ones(1)], np.inf),
        ([np.array([np.nan, 1])], [np.array([np.nan, 1])], 0.0),
        ([np.ones(1)], [np.zeros(1)], np.inf),
        ([np.zeros(0)], [np.zeros(0)], 0.0),
    ],
)
def test_errors_are_relative_and_infinite_where_nothing_compares(found, expected, error: float) -> None:
    assert error_of(found, expected) == error


def test_times_are_said_in_the_unit_that_fits() -> None:
    assert [time_text(seconds) for seconds in (2.5, 0.0123, 4.56e-6)] == ["2.5 s", "12.3 ms", "4.56 µs"]


def test_the_fastest_with_a_right_answer_is_compared_with_the_others(golden) -> None:
    assert FOUND.fastest.name == "hybrid"
    assert not FOUND.agrees
    assert FOUND.noisy
    golden("cli", "bench", f"{FOUND}\n\n{FOUND.markdown()}")


def test_data_hold_every_round() -> None:
    found = json.loads(json.dumps(FOUND.as_dict()))
    assert found["results"][0]["rounds"] == [20e-6, 21e-6, 20e-6, 20e-6]
    assert found["times_slower"]["eager"]["median"] == pytest.approx(2.0)


def test_a_reference_that_eager_itself_is_far_from_does_not_allow_anything() -> None:
    eager, near, far = [np.ones(3)], [np.ones(3) + 1e-7], [np.zeros(3) + 5]
    assert _reference(eager, near) == (near, pytest.approx(1.2e-6, rel=1e-3))
    assert _reference(eager, far) == (eager, 1e-4)
    assert _reference(eager, []) == (eager, 1e-4)


@pytest.mark.slow
def test_a_rival_that_gives_something_else_is_told(tmp_path: Path, monkeypatch) -> None:
    # Which number it gives depends on the process: so each rival gives another one.
    text = "import os, torch\nnumber = os.getpid()\ndef f(x):\n    return x * number\n"
    text += "def g(x):\n    return x + torch.randn(3)\n"
    (tmp_path / "odd.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    few = BenchSettings(("eager",), threads=1, warmup=1, runs=2)
    assert [entry.agrees for entry in compare("odd.py:f", ["3"], few).entries] == [True, False]
    assert [entry.agrees for entry in compare("odd.py:g", ["3"], few).entries] == [True, True]


def test_the_command_line_offers_every_rival() -> None:
    assert tuple(rival.name for rival in RIVALS) == NAMES


def test_an_unknown_rival_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no rival 'mxnet'"):
        compare("net.py:net", settings=BenchSettings(against=("mxnet",)))


def test_pictures_have_a_bar_a_rival_and_curves_where_something_is_learned() -> None:
    (picture,) = FOUND.pictures()
    assert picture.html.count("wp-fill") == 4
    assert "onnxruntime" in picture.html
    assert len(TRAINED.pictures()) == 2
    shown = TRAINED._repr_html_()
    assert "<polyline" in shown
    assert "step ran 2.0" in shown


STEP = """import torch
from torch import nn
import weft
net = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
step = weft.step(net, nn.CrossEntropyLoss(), torch.optim.Adam(net.parameters(), lr=0.01), clip_norm=1.0)
example_inputs = (torch.randn(4, 16), torch.randint(0, 2, (4,)))
hybrid = weft.hybridize(nn.Linear(16, 2))
"""


@pytest.mark.slow
def test_training_steps_are_compared_by_losses_and_parameters(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "train.py").write_text(STEP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    few = BenchSettings(("lazy", "hybrid", "openvino"), threads=1, warmup=1, runs=2)
    found = compare("train.py:step", settings=few)
    assert [entry.name for entry in found.entries] == ["eager", "hybrid", "step", "lazy"]
    assert found.agrees
    assert found.skipped == {"openvino": "it does not train"}
    assert all(len(entry.losses) == 20 and entry.losses[-1] < entry.losses[0] for entry in found.entries)
    shown = portrait(found, trace=tmp_path / "call.json")
    assert "Memory over one call" in str(shown)
    assert "traceEvents" in (tmp_path / "call.json").read_text(encoding="utf-8")


def test_what_a_file_has_hybridized_is_compared_imperatively(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "train.py").write_text(STEP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert "forward" not in vars(load_subject("train.py:hybrid", ["1,16"]).thing)


@pytest.mark.slow
def test_processes_are_compared_and_one_that_fails_is_named(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "net.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "text.py").write_text("def f(x):\n    return x.sort().values, x.sum().item()\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    found = compare(
        "net.py:net", settings=BenchSettings(("onnxruntime",), threads=1, warmup=1, runs=2), say=told.append
    )
    assert [entry.name for entry in found.entries] == ["eager", "onnxruntime", "hybrid"]
    assert found.agrees
    assert "round 2 of 2" in told
    found = compare("text.py:f", ["5"], BenchSettings(("eager",), threads=1, warmup=1, runs=2))
    assert "turns a tensor into a Python number" in found.skipped["hybrid"]
