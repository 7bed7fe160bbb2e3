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
            nd.FRONTEND.function(name)(*arrays, **oc.with_results(given, arrays))
        return
    with autograd.record() if arrays and not updates else autograd.pause():
        found = nd.FRONTEND.function(name)(*arrays, **oc.with_results(given, arrays))
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
    with pytest.raises(MissingOperator, match=r"operator _contrib_edge_id of MXNet 1.9.1 is not in weft.mx"):
        nd.contrib.edge_id(nd.ones((2, 4)))
    with pytest.raises(MissingOperator, match=r"no_such is none of MXNet 1.9.1"):
        operator("no_such")
    with pytest.raises(AttributeError, match="has no attribute 'no_such'"):
        _ = nd.no_such


def test_a_result_is_an_array() -> None:
    assert isinstance(nd.relu(nd.ones((2,))), NDArray)


def test_what_mxnet_has_for_gpus_alone_is_what_numpy_computes() -> None:
    x = np.random.RandomState(0).standard_normal((2, 6)).astype("float32")
    spectrum = np.fft.fft(x)
    pairs = np.stack([spectrum.real, spectrum.imag], -1).reshape(2, 12)
    np.testing.assert_allclose(nd.contrib.fft(nd.array(x)).asnumpy(), pairs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(nd.contrib.ifft(nd.array(pairs)).asnumpy(), x * 6, rtol=1e-5, atol=1e-5)
    places, signs = np.array([[0, 2, 1, 0, 2, 2]]), np.array([[1, -1, 1, -1, 1, 1]])
    sketch = np.zeros((2, 3), "float32")
    for column, (place, sign) in enumerate(zip(places[0], signs[0], strict=True)):
        sketch[:, place] += sign * x[:, column]
    found = nd.contrib.count_sketch(nd.array(x), nd.array(places), nd.array(signs), out_dim=3)
    np.testing.assert_allclose(found.asnumpy(), sketch, rtol=1e-5, atol=1e-5)


def test_numbers_of_failures_have_their_means() -> None:
    nd.random.seed(3)
    k, chance = nd.array([2.0, 5.0]), nd.array([0.5, 0.25])
    drawn = nd.sample_negative_binomial(k, chance, shape=(4000,)).asnumpy()
    np.testing.assert_allclose(drawn.mean(1), [2, 15], rtol=0.1)
    drawn = nd.sample_generalized_negative_binomial(nd.array([4.0, 3.0]), nd.array([0.5, 0.0]), shape=(4000,)).asnumpy()
    np.testing.assert_allclose(drawn.mean(1), [4, 3], rtol=0.1)
    np.testing.assert_allclose(drawn.var(1), [4 + 0.5 * 16, 3], rtol=0.2)


def test_quantized_maxima_and_products_are_those_of_the_numbers() -> None:
    x = nd.array([[[[1, -7], [3, 2]]]], dtype="int8")
    bounds = nd.array([-1.0]), nd.array([2.0])
    found = nd.contrib.quantized_pooling(x, *bounds, kernel=(2, 2), pool_type="max")
    assert [array.asnumpy().reshape(-1).tolist() for array in found] == [[3], [-1], [2]]
    product = nd.FRONTEND.function("_contrib_quantized_elemwise_mul")(x, x, *bounds, *bounds)
    assert product[0].asnumpy().reshape(-1).tolist() == [1, 49, 9, 4]
    assert product[0].dtype == np.int32


def test_numbers_between_two_are_spread_over_eight_bits() -> None:
    found = nd.contrib.quantize_asym(nd.array([[-1.0, 0.0], [2.0, 3.0]]))
    assert [array.asnumpy().reshape(-1).tolist() for array in found] == [[0, 64, 191, 255], [63.75], [63.75]]
    found = nd.contrib.quantize_asym(nd.array([-9.0, 1.0]), min_calib_range=0.0, max_calib_range=2.0)
    assert found[0].asnumpy().tolist() == [0, 128]


def test_a_colour_jitter_without_reach_changes_nothing_and_one_with_it_draws() -> None:
    image = nd.array(np.arange(48).reshape(4, 4, 3))
    np.testing.assert_array_equal(nd.image.random_color_jitter(image, 0.0, 0.0, 0.0, 0.0).asnumpy(), image.asnumpy())
    assert (nd.image.random_color_jitter(image, 0.5, 0.5, 0.5, 0.2).asnumpy() != image.asnumpy()).any()


def test_unique_numbers_are_unique_and_small_ones_come_more_often() -> None:
    nd.random.seed(1)
    numbers, tries = nd._internal._sample_unique_zipfian(range_max=1000, shape=(40, 50))
    rows = numbers.asnumpy()
    assert all(len(set(row)) == 50 for row in rows.tolist())
    assert (tries.asnumpy() >= 50).all()
    assert (rows < 100).sum() > (rows >= 900).sum() * 3
