"""`mx.np` beside NumPy: values, sizes, element types and gradients; `snippets` has programs of the book's."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from weft import mx
from weft.mx import autograd, gluon, npx

mnp: Any = mx.np


@pytest.fixture(autouse=True)
def numpy_mode() -> Iterator[None]:
    npx.set_np()
    yield
    npx.reset_np()


A = np.array([[1.5, -2.0, 3.0], [0.5, 4.0, -1.0]], np.float32)
B = np.array([1.0, 2.0, 0.5], np.float32)
CALLS = {
    **{name: (lambda f, x, y, name=name: getattr(f, name)(x)) for name in (
        "exp", "tanh", "abs", "sign", "floor", "ceil", "square", "sum", "mean", "max", "min", "prod", "std", "var",
        "cumsum", "ravel", "argmax", "argmin", "argsort", "sort", "isnan", "negative", "arctan", "sinh", "cbrt", "rint",
        "trunc", "expm1", "degrees", "zeros_like", "ones_like", "transpose", "squeeze", "tril", "any", "all",
    )},
    **{name: (lambda f, x, y, name=name: getattr(f, name)(x, y)) for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "hypot", "arctan2", "greater", "less_equal",
        "equal", "logical_and", "copysign", "fmax", "dot", "matmul", "inner", "outer", "mod", "not_equal",
    )},
    "sum of axes": lambda f, x, y: f.sum(x, axis=(0, 1)) + f.sum(x, axis=-1, keepdims=True),
    "means": lambda f, x, y: f.mean(x, axis=0),
    "deviation": lambda f, x, y: f.std(x, axis=1, ddof=1),
    "average": lambda f, x, y: f.average(x, axis=1, weights=y),
    "concatenate": lambda f, x, y: f.concatenate([x, x], axis=1),
    "stack": lambda f, x, y: f.stack([y, y], axis=1),
    "vstack": lambda f, x, y: f.vstack([x, y]),
    "split": lambda f, x, y: f.split(x, 3, axis=1)[1],
    "array_split": lambda f, x, y: f.array_split(y, 2)[0],
    "split at": lambda f, x, y: f.split(x, [1], axis=1)[1],
    "where": lambda f, x, y: f.where(x > 1, x, y),
    "take": lambda f, x, y: f.take(x, f.array([2, 0], dtype="int64"), axis=1),
    "einsum": lambda f, x, y: f.einsum("ij,j->i", x, y),
    "tensordot": lambda f, x, y: f.tensordot(x, x, axes=((1,), (1,))),
    "repeat": lambda f, x, y: f.repeat(x, 2, axis=0),
    "tile": lambda f, x, y: f.tile(y, (2, 2)),
    "roll": lambda f, x, y: f.roll(x, 1, axis=1),
    "flip": lambda f, x, y: f.flip(x, 0),
    "clip": lambda f, x, y: f.clip(x, 0, 2),
    "expand_dims": lambda f, x, y: f.expand_dims(x, (0, 2)),
    "moveaxis": lambda f, x, y: f.moveaxis(x, 0, 1),
    "swapaxes": lambda f, x, y: f.swapaxes(x, 0, 1),
    "broadcast_to": lambda f, x, y: f.broadcast_to(y, (2, 3)),
    "diag": lambda f, x, y: f.diag(y),
    "meshgrid": lambda f, x, y: f.meshgrid(y, y)[1],
    "norm": lambda f, x, y: f.linalg.norm(x, axis=1),
    "inv": lambda f, x, y: f.linalg.inv(f.dot(x, x.T)),
    "det": lambda f, x, y: f.linalg.det(f.dot(x, x.T)),
    "solve": lambda f, x, y: f.linalg.solve(f.dot(x, x.T), x),
    "around": lambda f, x, y: f.around(x / 3, 2),
    "operators": lambda f, x, y: (x + y) * 2 - y / x + x**2 - (1 - x) + (x % y) - (-x),
    "comparisons": lambda f, x, y: (x > y) | ~(x < 2) & (x != y),
    "parts": lambda f, x, y: x[1, ::2] * x[0, 1] + x[:, None][0, 0, 0],
    "mask": lambda f, x, y: x[x > 0],
    "places": lambda f, x, y: x[[0, 1], [2, 0]],
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_function_gives_what_numpys_gives(name: str) -> None:
    call = CALLS[name]
    wanted, found = call(np, A, B), call(mnp, mnp.array(A), mnp.array(B))
    assert type(found) is mnp.ndarray
    assert found.shape == np.shape(wanted)
    assert np.dtype(found.dtype).kind == np.asarray(wanted).dtype.kind
    np.testing.assert_allclose(found.asnumpy(), wanted, rtol=2e-5, atol=1e-6)


def test_numbers_of_python_go_to_numpy_and_results_into_what_is_given() -> None:
    assert mnp.exp(0.0) == 1.0
    assert mnp.add(1, 2) == 3
    out = mnp.zeros(3)
    assert mnp.exp(mnp.array(B), out=out) is out
    np.testing.assert_allclose(out.asnumpy(), np.exp(B), rtol=1e-6)


def test_element_types_are_those_of_mxnets_interface() -> None:
    whole = mnp.array([1, 2], dtype="int32")
    made = (mnp.array([1, 2]), mnp.arange(3), mnp.array(np.arange(2)), whole + 1, whole / 2)
    assert [x.dtype.name for x in made] == ["float32", "float32", "int64", "int32", "float32"]
    kinds = (whole + mnp.ones(2), whole.mean(), whole.sum(), whole > 1, (whole > 1).sum(), whole.argmax(), whole * 1.5)
    assert [x.dtype.name for x in kinds] == ["float32", "float32", "int32", "bool", "int64", "int64", "int32"]
    assert ((whole > 1) * 2).asnumpy().tolist() == [0, 2]


def test_an_array_without_axes_is_a_number_to_python_and_to_gradients() -> None:
    x = mnp.array(2.0)
    x.attach_grad()
    with autograd.record():
        y = x**3 + x.exp()
    y.backward()
    assert (y.shape, x.grad.shape, type(x.grad)) == ((), (), mnp.ndarray)
    assert float(x.grad) == pytest.approx(12 + np.exp(2), rel=1e-6)
    assert (f"{x:.1f}", int(x), bool(x), x.item()) == ("2.0", 2, True, 2.0)
    assert [1, 2, 3][mnp.array(1, dtype="int32")] == 2
    for wrong in (lambda: len(x), lambda: [1][x], lambda: bool(mnp.ones(2))):
        with pytest.raises((TypeError, ValueError)):
            wrong()
    assert repr(pickle.loads(pickle.dumps(x))) == "array(2.)"


def test_gradients_flow_through_functions_and_parts() -> None:
    x = mnp.array(A)
    x.attach_grad()
    with autograd.record():
        parts = mnp.split(x, 3, axis=1)
        y = (mnp.concatenate(parts[::-1], axis=1) * mnp.array([1.0, 10, 100])).sum() + (x[1] * x[1, 2]).sum()
    y.backward()
    wanted = np.array([[100, 10, 1], [99, 9, 1 + 0.5 + 4 - 2]])
    np.testing.assert_allclose(x.grad.asnumpy(), wanted, rtol=1e-6)


def test_a_block_is_one_program_for_arrays_of_both_kinds() -> None:
    class Net(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.dense = gluon.nn.Dense(2)

        def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:  # noqa: N803
            return F.npx.softmax(self.dense(x)) + F.np.exp(y) * y

    net = Net()
    net.initialize(mx.init.One())
    x, y = mnp.array(A), mnp.array([[1.0], [2.0]])
    before = net(x, y)
    net.hybridize()
    after = net(x, y)
    assert type(before) is type(after) is type(net.dense.weight.data()) is type(net.dense.weight.grad()) is mnp.ndarray
    np.testing.assert_allclose(after.asnumpy(), before.asnumpy(), rtol=1e-6)


def test_what_numpy_computes_waits_and_says_where_it_has_no_gradient() -> None:
    x = mnp.array(A)
    assert mnp.allclose(x, A)
    assert mnp.searchsorted(mnp.array([1.0, 2.0]), 1.5) == 1
    np.testing.assert_allclose(mnp.percentile(x, mnp.array([10, 90])).asnumpy(), np.percentile(A, [10, 90]), rtol=1e-6)
    np.testing.assert_allclose(mnp.linalg.qr(x)[1].asnumpy(), np.linalg.qr(A)[1], rtol=1e-5)
    x.attach_grad()
    with autograd.record():
        assert not mnp.allclose(x, x + 1)
        with pytest.raises(mx.MXNetError, match=r"np.percentile.*no gradient.*autograd.pause"):
            mnp.percentile(x, [10, 90])
        y = (mnp.pad(x, ((0, 0), (1, 2)), mode="edge") * mnp.pad(x * 0 + 1, ((0, 0), (1, 2)))).sum()
        y = y + mnp.diff(x, axis=1).sum() + mnp.append(x, [5.0]).sum() + mnp.hsplit(x, 3)[2].sum()
    y.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [[1, 2, 4], [1, 2, 4]])


def test_indices_and_copies_have_the_forms_of_numpys() -> None:
    x, place = mnp.array(A), mnp.array(1, dtype="int32")
    x[:, place] = 7
    assert x[place, place].item() == 7
    assert x[:, place].shape == (2,)
    assert type(x.copyto(mx.cpu(1))) is type(x.as_in_ctx(mx.cpu(1))) is mnp.ndarray
    np.testing.assert_array_equal(x.clip(min=0).asnumpy(), x.clip(0, 100).asnumpy())
    y = x.reshape(-1)
    y[0] = 50
    assert x[0, 0].item() == 1.5


def test_random_numbers_of_many_distributions_have_their_means() -> None:
    draw = mnp.random
    means = {
        "lognormal": np.exp(0.5), "gumbel": 0.5772, "logistic": 0.0, "rayleigh": 1.2533, "exponential": 1.0,
    }  # fmt: skip
    for name, mean in means.items():
        assert float(getattr(draw, name)(size=(40000,)).mean()) == pytest.approx(mean, abs=0.06), name
    for name, mean in {"weibull": 0.8862, "pareto": 1.0, "power": 2 / 3}.items():
        assert float(getattr(draw, name)(2.0, size=(40000,)).mean()) == pytest.approx(mean, abs=0.06), name
    lines = draw.multivariate_normal(mnp.array([1.0, -1.0]), mnp.array([[2.0, 1.0], [1.0, 2.0]]), size=(20000,))
    np.testing.assert_allclose(np.cov(lines.asnumpy().T), [[2, 1], [1, 2]], atol=0.1)


def test_functions_with_gradients_of_the_users_take_and_give_such_arrays() -> None:
    kinds = []

    class Exponential(autograd.Function):
        def forward(self, x: Any) -> Any:
            self.save_for_backward(x)
            return mnp.exp(x)

        def backward(self, slope: Any) -> Any:
            (x,) = self.saved_tensors
            kinds.append((type(slope), type(x)))
            return slope * mnp.exp(x)

    x = mnp.array(B)
    x.attach_grad()
    with autograd.record():
        y = Exponential()(x)
    y.backward()
    assert type(y) is mnp.ndarray
    np.testing.assert_allclose(x.grad.asnumpy(), np.exp(B), rtol=1e-6)
    assert kinds == [(mnp.ndarray, mnp.ndarray)]


def test_random_numbers_are_those_that_were_asked_for() -> None:
    mx.random.seed(3)
    one = mnp.random.normal(2.0, 0.5, (2000,))
    mx.random.seed(3)
    np.testing.assert_array_equal(one.asnumpy(), mnp.random.normal(2.0, 0.5, (2000,)).asnumpy())
    assert float(one.mean()) == pytest.approx(2, abs=0.05)
    assert float(one.std()) == pytest.approx(0.5, abs=0.05)
    assert mnp.random.uniform(mnp.zeros(3), mnp.ones(3)).shape == (3,)
    assert sorted(mnp.random.choice(5, size=5, replace=False).asnumpy().tolist()) == [0, 1, 2, 3, 4]
    drawn = mnp.random.choice(3, size=(3000,), p=[0.1, 0.0, 0.9]).asnumpy()
    assert set(drawn) == {0, 2}
    assert (drawn == 2).mean() == pytest.approx(0.9, abs=0.03)
    assert mnp.random.multinomial(50, [0.2, 0.8]).asnumpy().sum() == 50
    line = mnp.arange(50)
    mnp.random.shuffle(line)
    assert sorted(line.asnumpy()) == list(range(50))
    assert set(mnp.random.randint(2, 4, (100,)).asnumpy()) == {2, 3}
    with pytest.raises(ValueError, match="larger sample"):
        mnp.random.choice(2, size=3, replace=False)


def test_the_mode_is_that_of_the_process_unless_a_block_says_otherwise() -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(mx.is_np_array()))
    thread.start()
    thread.join()
    assert found == [True]
    npx.reset_np()
    assert not mx.is_np_array()

    @mx.use_np
    class Block(gluon.nn.Block):
        def forward(self, x: Any) -> Any:
            return mx.is_np_array()

    assert Block()(mx.nd.ones(1))
    assert not mx.is_np_array()
    with pytest.raises(ValueError, match="Shape semantics"):
        npx.set_np(shape=False)


def test_batches_of_a_loader_are_of_the_mode() -> None:
    data = gluon.data.ArrayDataset(np.ones((4, 2), np.float32), np.arange(4))
    for workers in (0, 2):
        x, y = next(iter(gluon.data.DataLoader(data, 2, num_workers=workers)))
        assert type(x) is type(y) is mnp.ndarray
