"""What a workload multiplies and adds is counted, whichever library eager computes it with."""

from __future__ import annotations

import pytest
from bench import workloads
from bench.measure import count_operations

# An LSTM of two layers: products of 8 rows, 128 columns in and out of four gates, 32 steps.
LSTM = 2 * 2 * 32 * 2 * 8 * 128 * 4 * 128


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("mlp", 2 * (512 * 256 + 256 * 128 + 128 * 2), 1.0), ("lstm", LSTM, 1.0), ("train_lstm", 2 * LSTM, 1.6)],
)
def test_products_are_counted(name: str, least: int, most: float) -> None:
    count = count_operations(workloads.by_name(name))
    assert least <= count <= most * least
