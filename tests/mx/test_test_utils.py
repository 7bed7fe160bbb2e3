"""`mx.test_utils`: what is nearly equal, what raises, and gradients by small steps."""

from __future__ import annotations

import os

import numpy as np
import pytest

from weft.mx import MXNetError, nd, sym, test_utils


def test_equal_arrays_pass_and_others_are_told_with_their_places() -> None:
    test_utils.assert_almost_equal(nd.ones(2), np.ones(2))
    test_utils.assert_allclose([1.0, np.nan], [1.0, np.nan])
    with pytest.raises(AssertionError, match=r"(?s)Items are not equal.*a\(1,\) = 1.0+, b\(1,\) = 2.0"):
        test_utils.assert_almost_equal(nd.ones(2), np.array([1.0, 2.0]))
    with pytest.raises(AssertionError, match="shapes differ"):
        test_utils.assert_almost_equal(nd.ones(2), nd.ones(3))
    assert test_utils.same(nd.ones(2), np.ones(2))
    assert not test_utils.almost_equal(np.ones(1), np.ones(1) * 1.1)
    x = nd.ones((2, 2))
    assert test_utils.same_array(x, x.reshape((4,)).reshape((2, 2)))


def test_an_exception_is_asked_for_also_of_what_is_queued() -> None:
    test_utils.assert_exception(nd.dot, MXNetError, nd.ones((2, 3)), nd.ones((4, 5)))
    test_utils.assert_exception(nd.random.normal, MXNetError, 0, -1, (2, 2))
    with pytest.raises(AssertionError, match="Did not raise MXNetError"):
        test_utils.assert_exception(nd.ones, MXNetError, (2,))


def test_random_arrays_and_sizes() -> None:
    assert test_utils.rand_ndarray((2, 3)).shape == (2, 3)
    assert len(test_utils.rand_shape_nd(4, dim=3)) == 4
    assert len(test_utils.rand_shape_3d()) == 3
    one, two = test_utils.random_arrays((2,), (3, 4))
    assert (one.shape, two.shape) == ((2,), (3, 4))
    assert test_utils.rand_ndarray((2, 2), "csr").stype == "csr"
    made, (data, indices) = test_utils.rand_sparse_ndarray((50, 2), "row_sparse", density=0.5)
    assert test_utils.same(made.asnumpy()[indices], data)
    assert 10 < len(indices) < 40


def test_the_environment_is_what_it_was_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXNET_A", "1")
    with test_utils.environment({"MXNET_A": None, "MXNET_B": "2"}):
        assert "MXNET_A" not in os.environ
        assert os.environ["MXNET_B"] == "2"
    assert os.environ["MXNET_A"] == "1"
    assert "MXNET_B" not in os.environ


def test_gradients_are_compared_with_small_steps() -> None:
    product = sym.var("x") * sym.var("y")
    arrays = {"x": np.array([1.0, 2.0]), "y": np.array([3.0, -1.0])}
    test_utils.check_numeric_gradient(product, arrays)
    test_utils.check_numeric_gradient(lambda x: nd.sin(x) * 2, [np.array([0.3, 0.7])])
    test_utils.check_symbolic_forward(product, arrays, [np.array([3.0, -2.0])])
    test_utils.check_symbolic_backward(product, arrays, [np.ones(2)], {"x": arrays["y"], "y": arrays["x"]})
    with pytest.raises(AssertionError):
        test_utils.check_symbolic_backward(product, arrays, [np.ones(2)], {"x": arrays["x"]})
