"""What is not there is refused by its name, with a way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weft import mx
from weft.errors import UsageError


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: mx.nd.sparse.csr_matrix(([1], [0], [0, 1]), shape=(1, 1))[0, 0], "Multi-dimension"),
        (lambda: mx.nd.sparse.csr_matrix(([1, 2], [0, 5], [0, 1, 2]), shape=(2, 2)), "columns must be from 0 to 1"),
        (lambda: mx.nd.sparse.csr_matrix(([1, 2], [0, 1], [0, 2, 1]), shape=(2, 2)), "none smaller than the one"),
        (lambda: mx.nd.sparse.csr_matrix(([1, 2], [0], [0, 1]), shape=(1, 2)), "2 elements were given 1 rows and 1"),
        (lambda: mx.nd.sparse.row_sparse_array(([[1.0]], [3]), shape=(2, 1)), "indices must be from 0 to 1"),
        (lambda: mx.nd.sparse.row_sparse_array([[1.0]], shape=(2, 2)), "is not that of the elements"),
        (lambda: mx.nd.ones(2).tostype("csr"), "a csr array has two axes, not 1"),
        (lambda: mx.nd.ones((2, 2)).tostype("dense"), "unknown storage type: dense"),
        (lambda: mx.nd.sparse.retain(mx.nd.ones((2, 2)), mx.nd.ones(1)), "takes a row_sparse array"),
        (lambda: mx.nd.sparse.array([[1, 2]]), "Unexpected source_array type"),
        (lambda: mx.gluon.Parameter("w", shape=(2, 2), nonsense=1), "unexpected keyword"),
    ],
)
def test_what_sparse_arrays_cannot_be_is_told(call: Callable[[], Any], text: str) -> None:
    with pytest.raises((mx.MXNetError, ValueError, TypeError), match=text):
        call()


def test_the_numpy_interface_and_experiments_tell_who_imports_them() -> None:
    with pytest.raises(AttributeError, match=r"np.nanstd is not in weft.mx; x.asnumpy"):
        mx.np.nanstd  # noqa: B018
    with pytest.raises(AttributeError, match=r"npx.foo is not in weft.mx"):
        mx.npx.foo  # noqa: B018
    with pytest.raises(AttributeError, match=r"np.concatenate of symbols is not in weft.mx: call the block"):
        mx.sym.np.concatenate  # noqa: B018
    with pytest.raises(ImportError, match="to_torch"):
        from weft.mx.contrib import onnx  # noqa: F401
    with pytest.raises(AttributeError, match="no attribute 'foo'"):
        mx.foo  # noqa: B018


def test_vectors_that_mxnet_would_download_are_an_error_with_their_place(tmp_path: Any) -> None:
    create = mx.contrib.text.embedding.create
    with pytest.raises(UsageError, match="downloads nothing"):
        create("glove", pretrained_file_name="glove.6B.50d.txt", embedding_root=tmp_path)
    (tmp_path / "glove").mkdir()
    (tmp_path / "glove" / "glove.6B.50d.txt").write_text("a 1 2\nb 3 4\n")
    found = create("glove", pretrained_file_name="glove.6B.50d.txt", embedding_root=tmp_path)
    assert found.get_vecs_by_tokens("b").asnumpy().tolist() == [3, 4]


def test_what_a_custom_operator_raises_is_mxnets_error_with_its_cause() -> None:
    class Wrong(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            raise KeyError("nothing there")

    class WrongProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, in_shapes, in_dtypes):
            return Wrong()

    mx.operator.register("wrong_at_work")(WrongProp)
    with pytest.raises(mx.MXNetError, match=r"Error in CustomOp\.forward: KeyError: 'nothing there'") as told:
        mx.nd.Custom(mx.nd.ones(2), op_type="wrong_at_work").asnumpy()
    assert isinstance(told.value.__cause__, KeyError)


def test_an_initializer_of_an_unknown_name_is_told_before_sizes_are_known() -> None:
    with pytest.raises(AssertionError, match="nope is not registered"):
        mx.gluon.nn.Dense(2).initialize("nope")
