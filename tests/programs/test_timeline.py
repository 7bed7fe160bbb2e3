"""A program tells how it is computed and what each lane did in a measured call."""

import json

import pytest
import torch
from torch import nn

import weft
from weft.config import overrides
from weft.errors import UsageError


def towers() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.Tanh()).eval()


def test_the_timeline_is_a_chrome_trace_with_a_track_for_each_lane(tmp_path):
    with torch.no_grad():
        program = weft.program(towers(), torch.randn(64, 64))
        found = program.timeline(tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    work = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in work} == {span.lane for span in found.spans}
    assert any("gemm" in event["name"] for event in work)
    assert all(event["ts"] >= 0 and event["ts"] + event["dur"] <= found.seconds * 1e6 for event in work)
    for span in found.spans:
        if span.is_wait:  # of all lanes the clock is one: what is waited for has been done
            awaited = [other.start for other in found.spans if other.lane != span.lane and not other.is_wait]
            assert min(awaited) < span.end
    assert "lane 0" in str(found)


def test_what_runs_by_pytorch_has_a_place_in_it_too():
    def run(x):
        return torch.linalg.inv(x * 2) + 1

    program = weft.program(run, torch.eye(4))
    assert "linalg" in str(program.plan)
    assert any(span.name == "PyTorch's operators" for span in program.timeline().spans)


def test_where_no_operator_of_pytorch_runs_none_is_shown():
    with torch.no_grad():
        program = weft.program(towers(), torch.randn(64, 64))
        names = {span.name for span in program.timeline().spans}
    assert "0 calls of PyTorch's operators" in program.summary()
    assert "PyTorch's operators" not in names


def test_measuring_leaves_statistics_and_random_numbers_as_they_are():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    x = torch.randn(8, 4)
    program = weft.program(net, x)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    state = torch.get_rng_state()
    program.timeline()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_a_program_without_an_example_has_no_timeline():
    program = weft.program(towers(), torch.randn(2, 64))
    program._example = None
    with pytest.raises(UsageError, match="no example call"):
        program.timeline()


def test_the_plan_names_kernels_lanes_and_memory():
    with torch.no_grad():
        text = str(weft.program(towers(), torch.randn(64, 64)).plan)
    assert text.startswith("region 0\nplan of ")
    assert "lane 0: " in text
    assert "arena of " in text


def test_the_plan_of_library_calls_lists_them():
    with overrides(codegen="library"):
        text = str(weft.program(torch.relu, torch.ones(3)).plan)
    assert text.startswith("library plan")
    assert "relu" in text
