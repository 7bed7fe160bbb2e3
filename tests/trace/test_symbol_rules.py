"""Rules for symbols say of all sizes what operators give at each, and decide nothing by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft.ir.library import resolve
from weft.trace.interception.capture import Interception, storage_key, tree_flatten, tree_map_only
from weft.trace.results.symbol_rules import SYMBOL_RULES, result_by_symbols

LARGEST, OTHERS = (12, 20), ((2, 3), (5, 2), (7, 11))
Make = Callable[[Any, Any], tuple[tuple[Any, ...], dict[str, Any]]]


def real(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(sizes, dtype=dtype)


def places(*sizes: int) -> torch.Tensor:
    return torch.zeros(sizes, dtype=torch.int64)


def truth(*sizes: int) -> torch.Tensor:
    return torch.ones(sizes, dtype=torch.bool)


def given(*arguments: Any, **keywords: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return arguments, keywords


ONE: Make = lambda a, b: given(real(a, b, 8))  # noqa: E731
TWO: Make = lambda a, b: given(real(a, b, 8), real(8))  # noqa: E731
SAME: Make = lambda a, b: given(real(a, b), real(a, b))  # noqa: E731
NUMBER: Make = lambda a, b: given(real(a, b), 2)  # noqa: E731
BOTH: Make = lambda a, b: given(truth(a, b), truth(a, 1))  # noqa: E731
REDUCED: Make = lambda a, b: given(real(a, b, 8), [1, -1], True)  # noqa: E731
NEW: Make = lambda a, b: given([a, b, 3], dtype=torch.int64, device=torch.device("cpu"), pin_memory=False)  # noqa: E731
PARTS = (real(8), real(8), real(8), real(8))
CASES: dict[str, Make] = {
    "add.Tensor": TWO,
    "sub.Tensor": lambda a, b: given(places(a, 1), places(b), alpha=2),
    "mul.Tensor": TWO,
    "div.Tensor": lambda a, b: given(real(a, b), 3),
    "div.Scalar": NUMBER,
    "pow.Tensor_Scalar": NUMBER,
    "clamp.default": lambda a, b: given(real(a, b), 0, None),
    "hardtanh.default": ONE,
    "gelu.default": lambda a, b: given(real(a, b), approximate="tanh"),
    "gelu_backward.default": SAME,
    "threshold_backward.default": lambda a, b: given(real(a, b), real(a, b), 0),
    "sigmoid_backward.default": SAME,
    "tanh_backward.default": SAME,
    "silu_backward.default": SAME,
    "maximum.default": TWO,
    "minimum.default": TWO,
    **{f"{name}.Tensor": SAME for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"{name}.Scalar": NUMBER for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "logical_and.default": BOTH,
    "logical_or.default": BOTH,
    "bitwise_and.Tensor": BOTH,
    "bitwise_or.Tensor": BOTH,
    "bitwise_not.default": lambda a, b: given(truth(a, b)),
    "logical_not.default": lambda a, b: given(truth(a, b)),
    "where.self": lambda a, b: given(truth(a, b), real(b), real(a, 1)),
    "index.Tensor": lambda a, b: given(real(a, 8), [None, places(b)]),
    "index_add.default": lambda a, b: given(real(a, b), 0, places(3), real(3, b)),
    "masked_fill.Scalar": lambda a, b: given(real(a, b), truth(a, 1), 0),
    "clone.default": lambda a, b: given(real(a, b).t(), memory_format=torch.contiguous_format),
    "_to_copy.default": lambda a, b: given(real(a, b), dtype=torch.float64),
    "sum.dim_IntList": REDUCED,
    "mean.dim": lambda a, b: given(real(a, b, 8), [0]),
    "amax.default": REDUCED,
    "amin.default": REDUCED,
    "_softmax.default": lambda a, b: given(real(a, b), 1, False),
    "_log_softmax.default": lambda a, b: given(real(a, b), 0, False),
    "native_layer_norm.default": lambda a, b: given(real(a, b, 8), [8], real(8), None, 1e-5),
    "native_batch_norm.default": lambda a, b: given(real(a, 8, b, 3), *PARTS, False, 0.1, 1e-5),
    "native_layer_norm_backward.default": lambda a, b: given(
        real(a, b, 8), real(a, b, 8), [8], real(a, b, 1), real(a, b, 1), real(8), None, [True, True, False]
    ),
    "native_group_norm.default": lambda a, b: given(real(a, 8, b, 3), real(8), real(8), a, 8, 3 * b, 2, 1e-5),
    "native_group_norm_backward.default": lambda a, b: given(
        *(real(a, 8, b, 3), real(a, 8, b, 3), real(a, 2), real(a, 2), real(8), a, 8, 3 * b, 2, [True, True, True])
    ),
    "native_batch_norm_backward.default": lambda a, b: given(
        *(real(a, 8, b), real(a, 8, b), real(8), None, None, real(8), real(8), True, 1e-5, [True, False, True])
    ),
    "_softmax_backward_data.default": lambda a, b: given(real(a, b), real(a, b), 1, torch.float32),
    "_log_softmax_backward_data.default": lambda a, b: given(real(a, b), real(a, b), 0, torch.float32),
    "embedding_dense_backward.default": lambda a, b: given(real(a, b, 8), places(a, b), 9, -1, False),
    "zeros_like.default": lambda a, b: given(real(a, b), pin_memory=False),
    "ones_like.default": lambda a, b: given(real(a, b), dtype=torch.int64),
    "full_like.default": lambda a, b: given(real(a, b), 3, memory_format=torch.preserve_format),
    "empty_like.default": ONE,
    "tril.default": lambda a, b: given(truth(a, b)),
    "triu.default": lambda a, b: given(real(a, b), 1),
    "mm.default": lambda a, b: given(real(a, b), real(b, 7)),
    "bmm.default": lambda a, b: given(real(a, b, 8), real(a, b, 8).transpose(1, 2)),
    "addmm.default": lambda a, b: given(real(8), real(a, b), real(8, b).t()),
    "embedding.default": lambda a, b: given(real(9, 8), places(a, b)),
    "cat.default": lambda a, b: given([real(a, b, 8), real(a, b, 8), real(a, 3, 8)], -2),
    "full.default": lambda a, b: given([a, b], 1, dtype=torch.float32),
    "zeros.default": NEW,
    "ones.default": NEW,
    "convolution.default": lambda a, b: given(
        real(a, 3, b, 9), real(8, 3, 2, 3), None, [1, 2], [1, 0], [1, 1], False, [0, 0], 1
    ),
    "convolution_backward.default": lambda a, b: given(
        *(real(a, 8, b, 9), real(a, 3, b, 9), real(8, 3, 1, 1), [8], [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        [True, True, True],
    ),
    "upsample_nearest2d_backward.default": lambda a, b: given(real(a, 3, 8, 8), [8, 8], [a, 3, 4, 4], None, None),
    "view.default": lambda a, b: given(real(a, b, 8), [a * b, 2, -1]),
    "_unsafe_view.default": lambda a, b: given(real(a * b, 8), [a, -1, 4, 2]),
    "expand.default": lambda a, b: given(real(a, 1, 8), [3, -1, b, 8]),
    "detach.default": lambda a, b: given(real(a, b).t()),
    "t.default": lambda a, b: given(real(a, b)),
    "transpose.int": lambda a, b: given(real(a, b, 8), 0, -1),
    "permute.default": lambda a, b: given(real(a, b, 8), [-1, 0, 1]),
    "select.int": lambda a, b: given(real(a, 8, b), 1, -2),
    "unbind.int": lambda a, b: given(real(a, b, 3), -1),
    "unsqueeze.default": lambda a, b: given(real(a, b), 1),
    "squeeze.dim": lambda a, b: given(real(a, 1, b), -2),
}
OF_ONE = (
    "relu sigmoid tanh silu exp log sqrt rsqrt neg erf sin cos "
    "square abs reciprocal leaky_relu softplus elu log1p expm1"
)
CASES.update({f"{name}.default": ONE for name in OF_ONE.split()})
# Gradients of images that were made larger are all of one rule.
LIKE_ANOTHER = {target for target in SYMBOL_RULES if "upsample" in target} - {
    "aten.upsample_nearest2d_backward.default"
}


def test_each_rule_has_a_case() -> None:
    assert {f"aten.{name}" for name in CASES} == SYMBOL_RULES.keys() - LIKE_ANOTHER


class Varying:
    """Stand-ins of tensors with two sizes, which are symbols."""

    def __init__(self) -> None:
        self.interception = Interception(None)  # type: ignore[arg-type]
        self.sizes = [self.interception.size(size, f"size_{size}") for size in LARGEST]

    def call(self, name: str) -> Any:
        """What the rule gives of a case, and the first of the tensors that it is given."""
        a, b = LARGEST

        def size(number: Any) -> Any:
            one, other = self.sizes
            known = {a: one, b: other, a * b: one * other, 3 * b: 3 * other, 2 * b + 3: 2 * other + 3}
            return known.get(number, number) if isinstance(number, int) else number

        def stand_in(tensor: torch.Tensor) -> torch.Tensor:
            order = sorted(range(tensor.dim()), key=lambda place: (-tensor.stride(place), place))
            return self.interception.sized([*map(size, tensor.shape)], tensor.dtype, tensor.device, order)

        arguments, keywords = CASES[name](a, b)
        arguments, keywords = tree_map_only(torch.Tensor, stand_in, tree_map_only(int, size, (arguments, keywords)))
        first = next((one for one in tree_flatten(arguments)[0] if isinstance(one, torch.Tensor)), None)
        return result_by_symbols(f"aten.{name}", arguments, keywords, self.interception), first

    def at(self, numbers: tuple[int, ...], sizes: Any) -> tuple[int, ...]:
        """Sizes that may be symbols where these are such numbers."""
        symbols = {one.node.expr: number for one, number in zip(self.sizes, numbers, strict=True)}
        return tuple(int(one.node.expr.xreplace(symbols)) if isinstance(one, torch.SymInt) else one for one in sizes)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_gives_what_the_operator_gives_at_all_sizes(name: str) -> None:
    varying = Varying()
    found, first = varying.call(name)
    assert found is not None
    for numbers in (LARGEST, *OTHERS):
        arguments, keywords = CASES[name](*numbers)
        right, base = resolve(f"aten.{name}")(*arguments, **keywords), arguments[0]
        pairs = list(zip(tree_flatten(found)[0], tree_flatten(right)[0], strict=True))
        assert pairs
        for one, other in pairs:
            assert (one is None) == (other is None)
            if one is None:
                continue
            assert one.dtype is other.dtype
            assert varying.at(numbers, one.shape) == tuple(other.shape)
            assert varying.at(numbers, one.stride()) == other.stride()
            assert varying.at(numbers, [one.storage_offset()]) == (other.storage_offset(),)
            if isinstance(base, torch.Tensor):
                assert (storage_key(one) == storage_key(first)) == (storage_key(other) == storage_key(base))
    assert not varying.interception.guards  # sizes have decided nothing


@pytest.mark.parametrize(
    ("target", "make"),
    [
        ("aten.add.Tensor", lambda a, b: (new(a), new(b))),  # perhaps one of them is 1
        ("aten.add.Tensor", lambda a, b: (new(a), new(a, dtype=torch.float64))),
        ("aten.add.Tensor", lambda a, b: (new(a, b), new(b, a, order=(1, 0)))),
        ("aten.view.default", lambda a, b: (new(a, b), [-1, 4])),
        ("aten.view.default", lambda a, b: (new(a, b), [b, b])),
        ("aten.view.default", lambda a, b: (new(a, b, order=(1, 0)), [-1])),
        ("aten.expand.default", lambda a, b: (new(a, 4), [a, b])),
        ("aten.select.int", lambda a, b: (new(a, 4), 0, 1)),
        ("aten.squeeze.dim", lambda a, b: (new(a, 4), 0)),
        ("aten.mm.default", lambda a, b: (new(a, b), new(a, 4))),
        ("aten.cat.default", lambda a, b: ([new(a, 4), new(b, 4)], 1)),
        ("aten.mean.dim", lambda a, b: (new(a, 4, dtype=torch.int64), [0])),
        ("aten.masked_fill.Scalar", lambda a, b: (new(1, 4), new(a, 4, dtype=torch.bool), 0)),
    ],
)
def test_what_depends_on_more_is_left_to_pytorch(target: str, make: Callable[[Any, Any], tuple[Any, ...]]) -> None:
    varying = Varying()

    def sized(one: Any) -> Any:
        return varying.interception.sized(*one.given) if isinstance(one, new) else one

    arguments = [[*map(sized, one)] if isinstance(one, list) else sized(one) for one in make(*varying.sizes)]
    assert result_by_symbols(target, tuple(arguments), {}, varying.interception) is None


class new:  # noqa: N801 - read as a function
    """A stand-in that is to be made."""

    def __init__(self, *shape: Any, dtype: torch.dtype = torch.float32, order: tuple[int, ...] | None = None) -> None:
        self.given = (shape, dtype, torch.device("cpu"), order)
