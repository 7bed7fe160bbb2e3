"""Rows measured apart become one page: the last of each, said of which commit, and of one machine only."""

from __future__ import annotations

from typing import Any

import pytest
from bench.join import join
from bench.row import Entry, Row, row_of
from bench.workloads import by_name


def row(name: str, ours: float) -> dict[str, Any]:
    entries = {
        "eager": Entry((2.0, 2.1), 0.1, None, "one thread", (), 1e-7, 2e-7, "right"),
        "weft": Entry((ours, ours), 0.5, 0.1, "all threads", ("a remark",), 1e-7, 2e-7, "right"),
    }
    return Row(by_name(name), entries, {"jax": "skipped"}, 0.05, True, 100).as_dict()


def file(date: str, commit: str, *rows: dict[str, Any], processor: str = "A processor") -> dict[str, Any]:
    machine = {"processor": processor, "cores": 2, "threads": 2, "commit": commit, "changed_files": 0, "date": date}
    return {"machine": machine, "rows": list(rows)}


def test_a_row_read_from_its_file_is_the_row_that_was_written() -> None:
    written = row("mlp", 1.0)
    assert row_of(written).as_dict() == written


def test_the_last_measured_row_counts_in_whatever_order_the_files_are_named() -> None:
    files = [file("2026-02-02", "new", row("mlp", 1.0)), file("2026-01-01", "old", row("mlp", 4.0), row("gcn", 1.0))]
    for given in (files, files[::-1]):
        rows, machine = join(given)
        assert [found.workload.name for found in rows] == ["mlp", "gcn"]
        assert rows[0].entries["weft"].time.median == 1.0
        assert machine["commit"] == "new, old"
        assert machine["date"] == "2026-02-02"


def test_a_commit_that_no_row_is_from_is_not_named() -> None:
    rows, machine = join([file("2026-02-02", "new", row("mlp", 1.0)), file("2026-01-01", "old", row("mlp", 4.0))])
    assert (len(rows), machine["commit"]) == (1, "new")


def test_files_of_different_machines_are_refused() -> None:
    with pytest.raises(SystemExit, match="different machines"):
        join([file("2026-01-01", "a", row("mlp", 1.0)), file("2026-01-02", "b", row("gcn", 1.0), processor="Another")])
