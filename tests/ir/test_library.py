"""What may be done with a call of a PyTorch operator is read from its schema, and from tables where that is silent."""

import pytest
import torch

from weft.errors import UsageError
from weft.ir import library


@pytest.mark.parametrize(
    "target", ["aten.add.Tensor", "aten.relu.default", "aten.empty.memory_format", "prims.exp.default"]
)
def test_a_name_finds_its_overload_and_the_overload_its_name(target: str) -> None:
    assert library.name_of(library.resolve(target)) == target


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("aten.weave.default", "there is no operator aten::weave"),
        ("loom.weave.default", "there is no operator loom::weave"),
        ("aten.relu.weave", "aten::relu has no overload weave\n  why   its overloads in this PyTorch .* are default"),
        ("relu", "'relu' does not name an operator overload"),
        ("aten.relu", "'aten.relu' does not name an operator overload"),
    ],
)
def test_a_name_that_finds_nothing_is_an_error_that_says_which_part_is_wrong(target: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        library.resolve(target)


@pytest.mark.parametrize(
    ("fact", "holds", "fails"),
    [
        (
            library.is_random,
            ["aten.rand.default", "aten.native_dropout.default", "aten.bernoulli_.float", "aten.randn.generator"],
            ["aten.add.Tensor", "aten.native_dropout_backward.default", "aten.empty.memory_format"],
        ),
        (
            library.has_effect,
            [
                "aten.rand.default",
                "aten._assert_async.msg",
                "aten._print.default",
                "_c10d_functional.all_reduce.default",
            ],
            ["aten.add.Tensor", "aten.add_.Tensor", "aten._foreach_add_.List", "aten.empty.memory_format"],
        ),
        (
            library.is_view,
            ["aten.detach.default", "aten.view.default", "aten.split.Tensor", "aten._unsafe_view.default"],
            ["aten.clone.default", "aten.add.Tensor", "aten.add_.Tensor", "aten.add.out", "aten._assert_async.msg"],
        ),
        (
            library.is_fresh,
            ["aten.clone.default", "aten.add.Tensor", "aten._to_copy.default", "aten.native_dropout.default"],
            ["aten.detach.default", "aten._unsafe_view.default", "aten.add_.Tensor", "aten._assert_async.msg"],
        ),
        (
            library.is_uninitialised,
            ["aten.empty.memory_format", "aten.empty_like.default", "aten.new_empty_strided.default"],
            ["aten.zeros.default", "aten.new_zeros.default", "aten.clone.default"],
        ),
    ],
)
def test_each_fact_holds_for_what_it_should_and_for_nothing_else(fact, holds, fails) -> None:
    assert [target for target in holds if not fact(target)] == []
    assert [target for target in fails if fact(target)] == []


def test_written_arguments_are_named_even_where_the_schema_hides_them() -> None:
    assert library.written_arguments("aten.add_.Tensor") == ("self",)
    assert library.written_arguments("aten.native_batch_norm.default") == ("running_mean", "running_var")
    assert library.written_arguments("aten.add.Tensor") == ()


def test_the_tables_name_operators_that_exist() -> None:
    packets = {*library.UNDECLARED_VIEWS, *library.UNDECLARED_WRITES, *library.UNINITIALISED, *library.EFFECTFUL}
    missing = [name for name in sorted(packets) if name.startswith("aten.") and not hasattr(torch.ops.aten, name[5:])]
    assert missing == []
