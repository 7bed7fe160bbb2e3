"""How many cores a segment may use."""

import pytest

from weft.devices import cores, cpu_count
from weft.lazy_tensors import tasks as lazy_tasks
from weft.lazy_tensors.tasks import MOST_SHARED_SECONDS, segment_cores, waiting


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch):
    monkeypatch.setattr(lazy_tasks, "_WAITING", [])
    monkeypatch.setattr(lazy_tasks, "_TAKEN", [])


def test_a_core_is_left_to_the_thread_that_goes_on_queuing():
    with cores(3), segment_cores(0.001):
        assert cpu_count() == 2


def test_who_waits_needs_no_core():
    with cores(3), waiting(), segment_cores(0.001):
        assert cpu_count() == 3
    with cores(3), segment_cores(0.001):
        assert cpu_count() == 2


def test_a_long_segment_has_all_cores():
    with cores(3), segment_cores(2 * MOST_SHARED_SECONDS):
        assert cpu_count() == 3


def test_there_is_always_one_core():
    with cores(1), segment_cores(0.001):
        assert cpu_count() == 1


def test_segments_that_run_at_once_share_the_cores():
    with cores(4), waiting(), segment_cores(0.001):
        assert cpu_count() == 4
        with cores(4), segment_cores(0.001):
            assert cpu_count() == 1
    with cores(4), segment_cores(0.001), cores(4), waiting(), segment_cores(0.001):
        assert cpu_count() == 1


def test_a_segment_that_fails_gives_its_cores_back():
    with cores(3), waiting():
        with pytest.raises(ValueError, match="no"), segment_cores(0.001):
            raise ValueError("no")
        with segment_cores(0.001):
            assert cpu_count() == 3
