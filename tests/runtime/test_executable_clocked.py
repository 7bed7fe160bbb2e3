"""Clocked programs compute as others do, and note what each lane did and when."""

from itertools import pairwise

import torch
from tests.runtime.plans import TARGET, chain_plan

from weft.runtime.executable import ClockedExecutable


def measured(lanes: int):
    x, out = torch.randn(5000), torch.empty(5000)
    run = ClockedExecutable(chain_plan(5000, "neg", "exp", lanes=lanes), TARGET)
    for _ in range(3):
        run([x], [out])
    spans = run.spans()
    torch.testing.assert_close(out, torch.exp(-x))
    return spans


def test_one_lane_notes_each_call_in_order() -> None:
    spans = measured(1)
    assert [span.lane for span in spans] == [0, 0]
    assert 0 <= spans[0].start < spans[0].end <= spans[1].start < spans[1].end
    assert not any(span.is_wait for span in spans)
    assert spans[0].name.startswith("loop")


def test_each_lane_notes_its_runs_and_waits_if_the_crew_was_there() -> None:
    spans = measured(2)
    assert {span.lane for span in spans} <= {0, 1}
    for lane in {span.lane for span in spans}:
        own = [span for span in spans if span.lane == lane]
        assert [span.is_wait for span in own] in ([False, True, False], [False, False])  # alone if no worker was free
        assert all(one.end <= other.start for one, other in pairwise(own))
