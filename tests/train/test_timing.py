"""Times are those of the work, also of what was only queued."""

from __future__ import annotations

import re
import threading

import pytest

import weft
from weft.train import timing


def test_a_benchmark_prints_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    with weft.Benchmark("outer"), weft.BenchMark("inner"), weft.Benchmark():
        pass
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"\d\.\d{4}", "N", line) for line in lines] == [
        "time: N sec",
        "inner time: N sec",
        "outer time: N sec",
    ]


def test_one_benchmark_nests_in_itself_and_keeps_the_last_time(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark = weft.Benchmark("b")
    with benchmark, benchmark:
        pass
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert benchmark.seconds >= 0


def test_what_the_block_queued_is_done_at_its_end() -> None:
    done, going_on = threading.Event(), threading.Event()

    def work() -> None:
        assert going_on.wait(timeout=10)
        done.set()

    with weft.Benchmark("queued"):
        weft.spawn(work)
        going_on.set()
    assert done.is_set()


def test_an_error_in_the_block_is_not_hidden_by_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), weft.Benchmark("failing"):
        raise KeyError
    assert capsys.readouterr().out == ""


def test_a_timer_sums_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 2.0, 5.0, 6.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    timer = weft.Timer()
    timer.stop()
    timer.start()
    timer.stop()
    assert (timer.times, timer.sum(), timer.avg(), timer.cumsum()) == ([2.0, 1.0], 3.0, 1.5, [2.0, 3.0])


def test_a_notebook_is_shown_the_time_of_the_last_block() -> None:
    with weft.Benchmark("<copy>") as clock:
        pass
    assert clock._repr_html_() == f"<code>&lt;copy&gt; time: {clock.seconds:.4f} sec</code>"
