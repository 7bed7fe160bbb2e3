import pytest
from tests.conformance.contestants import CONTESTANTS
from tests.conformance.threads import SHAPES, stress

THREADS = 8
CALLS = 2000  # python -m tests.conformance threads makes 100,000


@pytest.mark.usefixtures("exact_sizes")
def test_many_threads_get_right_answers_from_one_module_with_one_trace_a_signature():
    found = stress(CONTESTANTS["hybridize"], threads=THREADS, calls=CALLS)
    assert found.wrong == []
    assert found.unfinished == 0
    assert found.traced_again == []
    assert len(found.runs) == 2 * len(SHAPES)


def test_the_stress_notices_a_module_that_python_runs_every_time():
    assert stress(CONTESTANTS["identity"], threads=2, calls=100).traced_again


@pytest.mark.parametrize("fault", ["detached", "unsupported"])
def test_the_stress_notices_wrong_answers(fault):
    assert stress(CONTESTANTS[fault], threads=2, calls=100).wrong
