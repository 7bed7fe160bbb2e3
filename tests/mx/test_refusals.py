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
        (lambda: mx.nd.sparse.csr_matrix(([1], [0], [0, 1]), shape=(1, 1)), "csr is not in weft.mx.*toarray"),
        (lambda: mx.nd.sparse.row_sparse_array([1]), "row_sparse is not in weft.mx"),
        (lambda: mx.nd.zeros((2, 2), stype="row_sparse"), "row_sparse is not in weft.mx"),
        (lambda: mx.nd.ones(2).attach_grad(stype="row_sparse"), "row_sparse is not in weft.mx"),
        (lambda: mx.nd.ones(2).tostype("csr"), "csr is not in weft.mx"),
    ],
)
def test_sparse_arrays_are_refused_with_what_to_do(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(mx.MXNetError, match=text):
        call()


def test_the_numpy_interface_and_experiments_tell_who_imports_them() -> None:
    with pytest.raises(ImportError, match="NumPy interface"):
        from weft.mx import np  # noqa: F401
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
