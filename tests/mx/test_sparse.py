"""Sparse arrays: which rows count as stored, and what updates change by them; `snippets` has programs of MXNet's."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft import mx
from weft.mx import autograd, gluon, nd


def rows(pairs: dict[int, float], count: int = 4) -> Any:
    return nd.sparse.row_sparse_array(([[each] for each in pairs.values()], list(pairs)), shape=(count, 1))


def test_rows_that_were_given_count_as_stored_though_they_are_zero_until_somebody_writes() -> None:
    x = rows({2: 0, 1: 5})
    assert x.indices.asnumpy().tolist() == [1, 2]
    assert x.data.asnumpy().tolist() == [[5], [0]]
    for same in (x.copy(), x.astype("float64"), x.copyto(mx.cpu(1)), x * 2, -x, abs(x), x.copyto(rows({}))):
        assert same.indices.asnumpy().tolist() == [1, 2], same
    x[:] = nd.array([[1], [0], [0], [2]])
    assert x.indices.asnumpy().tolist() == [0, 3]
    x[:] = 0
    assert x.indices.shape == (0,)


def test_kept_rows_are_those_that_are_asked_for() -> None:
    kept = rows({1: 5, 3: 7}).retain(nd.array([3, 0]))
    assert kept.indices.asnumpy().tolist() == [0, 3]
    assert kept.asnumpy().reshape(-1).tolist() == [0, 0, 0, 7]


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize(("kind", "options"), [("sgd", {}), ("sgd", {"momentum": 0.5}), ("adam", {})])
def test_only_rows_that_were_looked_up_are_changed_also_those_whose_gradient_is_zero(
    sparse: bool, kind: str, options: dict[str, float]
) -> None:
    table = gluon.nn.Embedding(5, 2, sparse_grad=sparse)
    table.initialize(mx.init.One())
    trainer = gluon.Trainer(table.collect_params(), kind, {"learning_rate": 0.1, "wd": 0.5, **options})
    with autograd.record():
        loss = (table(nd.array([1, 3])) * nd.array([[0.0], [1.0]])).sum()
    loss.backward()
    trainer.step(1)
    changed = (table.weight.data().asnumpy() != 1).any(1)
    assert changed.tolist() == ([False, True, False, True, False] if sparse else [True] * 5)


def test_what_a_lazy_update_does_to_its_rows_is_what_the_operator_does_to_them() -> None:
    weight, momentum = nd.array(np.arange(8.0).reshape(4, 2)), nd.ones((4, 2))
    grad = nd.sparse.row_sparse_array(([[1, 2], [3, 4]], [0, 2]), shape=(4, 2))
    before = [x.asnumpy() for x in (weight, momentum)]
    parts = [nd.array(x[[0, 2]]) for x in before]
    given = {"lr": 0.1, "momentum": 0.9, "wd": 0.01}
    nd.sgd_mom_update(parts[0], nd.array([[1, 2], [3, 4]]), parts[1], out=parts[0], **given)
    nd.sgd_mom_update(weight, grad, momentum, out=weight, **given)
    for found, old, part in zip((weight, momentum), before, parts, strict=True):
        np.testing.assert_array_equal(found.asnumpy()[[1, 3]], old[[1, 3]])
        np.testing.assert_array_equal(found.asnumpy()[[0, 2]], part.asnumpy())


def test_gradients_of_a_table_that_is_used_in_other_ways_too_are_whole() -> None:
    weight = nd.ones((4, 2))
    weight.attach_grad(stype="row_sparse")
    given = {"input_dim": 4, "output_dim": 2, "sparse_grad": True}
    with autograd.record():
        y = nd.Embedding(nd.array([1, 1]), weight, **given).sum() + (weight[3] * 2).sum()
        y = y + nd.Embedding(nd.array([0]), weight * 3, **given).sum()
    y.backward()
    np.testing.assert_array_equal(weight.grad.asnumpy(), [[3, 3], [2, 2], [0, 0], [2, 2]])
    assert weight.grad.indices.asnumpy().tolist() == [0, 1, 3]
    dense = nd.ones((4, 2))
    dense.attach_grad("add")
    for _ in range(2):
        with autograd.record():
            y = nd.Embedding(nd.array([1, 1]), dense, **given).sum()
        y.backward()
    np.testing.assert_array_equal(dense.grad.asnumpy(), [[0, 0], [4, 4], [0, 0], [0, 0]])
    with autograd.record():
        y = nd.Embedding(nd.array([1, 2]), dense, **given) ** 2
        (slope,) = autograd.grad([y], [dense], create_graph=True)
    np.testing.assert_array_equal(slope.asnumpy(), [[0, 0], [2, 2], [2, 2], [0, 0]])


def test_sparse_arrays_are_pickled_as_such_and_saved_with_all_elements(tmp_path: Path) -> None:
    x = nd.sparse.csr_matrix(([1.0, 2.0], ([0, 1], [1, 0])), shape=(2, 3))
    back = pickle.loads(pickle.dumps(x))
    assert back.stype == "csr"
    np.testing.assert_array_equal(back.asnumpy(), x.asnumpy())
    nd.save(tmp_path / "x", [x])
    np.testing.assert_array_equal(nd.load(tmp_path / "x")[0].asnumpy(), x.asnumpy())


def test_a_matrix_of_scipys_is_taken_by_what_it_can_do() -> None:
    class Matrix:
        dtype = np.dtype("float32")

        def toarray(self) -> Any:
            return np.eye(2, dtype="float32")

        tocsr = toarray

    for made in (nd.sparse.csr_matrix(Matrix()), nd.sparse.array(Matrix())):
        assert made.stype == "csr"
        np.testing.assert_array_equal(made.asnumpy(), np.eye(2))


def test_parts_of_a_file_of_libsvm_are_sparse_and_damage_is_told(tmp_path: Path) -> None:
    file = tmp_path / "data.t"
    file.write_text("1 0:1 3:2.5\n0 1:3  # a remark\n\n1 2:1 3:4\n")
    (batch, last) = mx.io.LibSVMIter(str(file), (4,), 2)
    assert batch.data[0].stype == "csr"
    np.testing.assert_array_equal(batch.data[0].asnumpy(), [[1, 0, 0, 2.5], [0, 3, 0, 0]])
    assert batch.label[0].asnumpy().tolist() == [1, 0]
    assert last.pad == 1
    for text in ("1 7:1\n", "1 a:1\n", "1 0:x\n"):
        file.write_text(text)
        with pytest.raises(mx.MXNetError, match="cannot be read"):
            mx.io.LibSVMIter(str(file), (4,), 2)
