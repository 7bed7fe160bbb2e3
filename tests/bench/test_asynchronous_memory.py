"""A lazy training loop that never waits takes no more memory than its limit."""

import pytest
from bench.asynchronous_memory import growths


@pytest.mark.slow
@pytest.mark.timeout(300)  # two processes of 130 batches each: half a minute alone, and the machine may be busy
def test_the_peak_beyond_eagers_is_within_the_limit() -> None:
    found = growths(("eager", "limited"), 64)
    assert found["limited"] - found["eager"] <= 64
