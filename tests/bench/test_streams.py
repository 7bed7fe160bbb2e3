"""Streams of requests are the same in every process, and answers that are wrong are told."""

from __future__ import annotations

import random

import pytest
import torch
from bench.streams import STREAMS, difference, eager, lognormal, network_of, ours, requests_of, seconds_of


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_seeded_and_its_network_takes_it(name: str) -> None:
    stream = STREAMS[name]
    one, other = (requests_of(stream, 3) for _ in range(2))
    assert all(torch.equal(x, y) for pair in zip(one, other, strict=True) for x, y in zip(*pair, strict=True))
    assert len({tuple(tensor.shape for tensor in request) for request in one}) > 1
    run = eager(stream, network_of(stream), one[0])
    with torch.set_grad_enabled(stream.trains):
        assert run(*one[0]).isfinite().all()


def test_sizes_are_drawn_around_the_middle_and_stay_in_range() -> None:
    drawn = random.Random(0)
    sizes = [lognormal(drawn, 48, 512) for _ in range(500)]
    assert 1 <= min(sizes) < 20
    assert 200 < max(sizes) <= 512
    assert 30 < sorted(sizes)[250] < 70


def test_a_wrong_answer_is_told() -> None:
    stream = STREAMS["deepfm"]
    requests, net = requests_of(stream, 4), network_of(stream)
    with torch.no_grad():
        assert difference(net, stream, requests, net) == 0
        assert difference(lambda *request: 1.01 * net(*request), stream, requests, net) > 1e-3


def test_weft_runs_a_stream() -> None:
    stream = STREAMS["deepfm"]
    requests, net = requests_of(stream, 6), network_of(stream)
    run = ours(stream, net, requests[0])
    with torch.no_grad():
        assert seconds_of(run, requests) > 0
        assert difference(run, stream, requests, net) < 1e-4
