"""The page of public models: ratios against the best peer, and answers that are judged by eager's error."""

import math

import torch
from bench.families import error_of, line_of, page, ratio, right

ROW = {
    "model": "net",
    "times": {"weft": 0.002, "eager": 0.006, "openvino": 0.003},
    "errors": {"weft": 1e-7, "eager": 1e-7},
    "first_call": 1.5,
    "skipped": {"onnxruntime": "no such operator"},
}


def test_the_ratio_is_that_of_the_best_peer() -> None:
    assert ratio(ROW) == 1.5
    assert ratio({"model": "net", "failed": ["error"]}) is None


def test_an_answer_is_right_by_what_eager_is_off() -> None:
    assert right(ROW)
    assert not right({**ROW, "errors": {"weft": 1e-3, "eager": 1e-7}})
    assert not right({**ROW, "errors": {}})


def test_an_answer_of_another_shape_or_without_number_is_infinitely_wrong() -> None:
    true = torch.ones(2, dtype=torch.float64)
    assert error_of(torch.ones(3), true) == math.inf
    assert error_of(torch.tensor([1.0, math.nan]), true) == math.inf
    assert error_of(torch.tensor([1.0, 1.5]), true) == 0.5


def test_the_page_says_means_failures_and_who_was_left_out() -> None:
    text = page([ROW, {"model": "broken", "failed": ["RuntimeError"]}], threads=1)
    assert "over 1 models: 1.50; least 1.50" in text
    assert "net: onnxruntime left out: no such operator" in text
    assert "failed: RuntimeError" in text
    assert "WRONG" in line_of({**ROW, "errors": {"weft": 1.0, "eager": 0.0}})
