"""Operators give what the real MXNet gave: values, element types, gradients, kinds of errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.mx import operator_cases as oc

from weft.mx import autograd, nd
from weft.mx.arrays.ndarray import NDArray
from weft.mx.base.errors import MissingOperator, MXNetError
from weft.mx.operators import RULES
from weft.mx.operators.table import OPERATORS, operator

CASES = list(oc.cases())
ANSWERS = np.load(Path(__file__).parent / "fixtures" / oc.FIXTURE)

# Where weft.mx differs from MXNet 1.9.1, and why.
DIFFERENCES = {
    "sort {}": "MXNet 1.9.1 fails to sort upwards while it records",
    "Deconvolution {'kernel': (4, 4), 'num_filter': 2, 'stride': (2, 2), 'target_shape': (8, 8)}": (
        "MXNet 1.9.1 fails with a target_shape while it records"
    ),
    "LeakyReLU {'act_type': 'selu'}": "MXNet 1.9.1's gradient takes the scale twice; here it is that of the function",
    "SoftmaxOutput {'out_grad': True}": "MXNet 1.9.1 multiplies by its output; here by the gradient from behind",
    "Cast {'dtype': 'int32'}": "a cast to whole numbers has no gradient here",
}


def answer(number: int, letter: str, place: int) -> np.ndarray | None:
    key = f"{number}{letter}{place}"
    return ANSWERS.get(key)


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_an_operator_gives_what_mxnet_gave(number: int) -> None:
    name, _, given = case = CASES[number]
    if f"{number}e" not in ANSWERS and answer(number, "o", 0) is None:
        pytest.skip("the real MXNet's process ended here")
    arrays = [nd.array(x, dtype=x.dtype) for x in oc.inputs_of(case, number)]
    if f"{name} {given}" in DIFFERENCES:
        pytest.skip(DIFFERENCES[f"{name} {given}"])
    updates = name.endswith(("_update", "_phase1", "_phase2"))
    for array in arrays:
        if array.dtype == np.float32 and not updates:
            array.attach_grad()
    if f"{number}e" in ANSWERS:
        with pytest.raises((MXNetError, ValueError, TypeError, AssertionError, IndexError)):
            nd.FRONTEND.function(name)(*arrays, **given)
        return
    with autograd.record() if arrays and not updates else autograd.pause():
        found = nd.FRONTEND.function(name)(*arrays, **given)
    outputs = found if isinstance(found, list) else [found]
    for place, output in enumerate(outputs):
        wanted = answer(number, "o", place)
        assert wanted is not None
        close(output.asnumpy(), wanted)
    if any(answer(number, "g", place) is not None for place in range(len(arrays))):
        autograd.backward(outputs, [nd.array(oc.head_gradient(x.shape), dtype=x.dtype) for x in outputs])
    for place, array in enumerate(arrays):
        if (gradient := answer(number, "g", place)) is not None:
            close(array.grad.asnumpy(), gradient)
        if (changed := answer(number, "u", place)) is not None:
            close(array.asnumpy(), changed)


def test_every_rule_belongs_to_a_row() -> None:
    assert sorted(set(RULES) - set(OPERATORS)) == []


def test_every_row_is_read() -> None:
    for row in OPERATORS.values():
        for parameter in row.parameters.values():
            assert parameter.required or parameter.optional or parameter.default is not None, (row.name, parameter)


def test_a_missing_operator_is_an_error_with_its_name() -> None:
    with pytest.raises(MissingOperator, match=r"operator _contrib_fft of MXNet 1.9.1 is not in weft.mx"):
        nd.contrib.fft(nd.ones((2, 4)))
    with pytest.raises(MissingOperator, match=r"no_such is none of MXNet 1.9.1"):
        operator("no_such")
    with pytest.raises(AttributeError, match="has no attribute 'no_such'"):
        _ = nd.no_such


def test_a_result_is_an_array() -> None:
    assert isinstance(nd.relu(nd.ones((2,))), NDArray)
