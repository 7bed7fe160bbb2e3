"""What eager refuses, or answers in a dtype that only its rules tell -> calls, by what they are about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Case(NamedTuple):
    """A function and its arguments."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64
U8, I8, I32 = torch.uint8, torch.int8, torch.int32


def whole(*numbers: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


def real(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(3)).to(dtype)


def truth(*values: bool) -> Tensor:
    return torch.tensor(values)


def divisions() -> Iterator[tuple[str, Case]]:
    """Whole numbers by zero, and by others."""
    ways: dict[str, Callable[..., Any]] = {
        "floor_divide": lambda a, b: a // b,
        "remainder": lambda a, b: a % b,
        "fmod": torch.fmod,
        "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    }
    for name, way in ways.items():
        yield f"{name}_by_zero", Case(way, (whole(6, 7), whole(2, 0)))
        yield f"{name}_by_others", Case(way, (whole(6, -7), whole(2, 3)))
        yield f"{name}_of_bytes_by_zero", Case(way, (whole(6, 7, dtype=U8), whole(2, 0, dtype=I8)))
        yield f"{name}_of_floats_by_zero", Case(way, (torch.tensor([6.0, -7.0]), whole(2, 0)))
        yield (
            f"{name}_by_computed_zero",
            Case(lambda a, b, way=way: way(a + 1, b.cumsum(0) - 2) + a, (whole(6, 7), whole(2, 0))),
        )
        yield f"{name}_of_nothing_by_zero", Case(way, (whole(), whole(0)))
        yield f"{name}_by_the_number_zero", Case(lambda a, way=way: way(a, 0), (whole(6, 7),))
    yield "remainder_by_what_wraps_to_zero", Case(lambda a: a % 256, (whole(6, 7, dtype=U8),))
    yield "reversed_floor_divide", Case(lambda a: 7 // a, (whole(2, 0),))
    yield "in_place_remainder", Case(lambda a, b: a.remainder_(b), (whole(6, 7), whole(2, 0)))
    yield "division_that_nobody_uses", Case(lambda a, b: (a // b, a + 1)[1], (whole(6, 7), whole(2, 0)))
    yield "division_where_it_is_not_wanted", Case(lambda a: torch.where(a > 0, a // a, a), (whole(0, 5),))


def writes() -> Iterator[tuple[str, Case]]:
    """Results that do not fit into what they are written to."""
    yield "float_into_whole", Case(lambda a: a.mul_(1.5), (whole(1, 2),))
    yield "float_tensor_into_whole", Case(lambda a, b: a.add_(b), (whole(1, 2), torch.tensor(1.5)))
    yield "whole_into_bool", Case(lambda a, b: a.mul_(b), (truth(True, False), whole(2, 3)))
    yield "true_division_into_whole", Case(lambda a: a.div_(2), (whole(1, 2),))
    yield "complex_into_real", Case(lambda a: a.add_(1j), (real(2),))
    yield "double_into_single", Case(lambda a, b: a.add_(b), (real(2), real(2, dtype=F64)))
    yield "single_into_half", Case(lambda a, b: a.mul_(b), (real(2, dtype=F16), real(2)))
    yield "root_into_whole", Case(lambda a: a.sqrt_(), (whole(4, 9),))
    yield "into_expanded", Case(lambda a: a.expand(3, 2).add_(1), (real(1, 2),))
    yield "into_expanded_after_work", Case(lambda a: (a * 2).expand(3, 2).mul_(a), (real(1, 2),))
    yield "fill_expanded", Case(lambda a: a.clone().expand(3, 2).fill_(1), (real(1, 2),))
    yield "copy_into_expanded", Case(lambda a: a.clone().expand(3, 2).copy_(torch.ones(3, 2)), (real(1, 2),))
    yield "copy_onto_itself_shifted", Case(lambda a: (b := a.clone())[1:].add_(b[:-1]), (real(5),))
    yield (
        "masked_fill_expanded",
        Case(lambda a: a.clone().expand(3, 2).masked_fill_(torch.ones(3, 2) > 0, 2), (real(1, 2),)),
    )


def mixtures() -> Iterator[tuple[str, Case]]:
    """Operators that take one dtype, given two."""
    x, w, wide = real(2, 3), real(4, 3, dtype=BF16), real(4, 3, dtype=F64)
    index = whole(0)
    image, kernel = real(1, 2, 4, 4), real(3, 2, 2, 2, dtype=BF16)
    yield "linear", Case(functional.linear, (x, w))
    yield "linear_with_a_wide_bias", Case(functional.linear, (x, real(4, 3), real(4, dtype=F64)))
    yield "mm", Case(torch.mm, (x, wide.t()))
    yield "mm_of_whole_and_real", Case(torch.mm, (x, torch.ones(3, 2, dtype=torch.int64)))
    yield "bmm", Case(torch.bmm, (real(1, 2, 3), real(1, 3, 2, dtype=F16)))
    yield "addmm", Case(torch.addmm, (real(4, dtype=F64), x, real(3, 4)))
    yield "conv2d", Case(functional.conv2d, (image, kernel))
    yield "conv2d_with_a_wide_bias", Case(functional.conv2d, (image, kernel.float(), real(3, dtype=F64)))
    yield "conv1d_of_whole", Case(functional.conv1d, (torch.ones(1, 1, 4, dtype=torch.int64), real(1, 1, 2)))
    yield "layer_norm", Case(lambda a, b: functional.layer_norm(a, (3,), b), (x, w[0]))
    yield "layer_norm_of_whole", Case(lambda a: functional.layer_norm(a, (2,)), (whole(1, 2),))
    yield "batch_norm", Case(lambda a, b: functional.batch_norm(a, b, b + 1), (x, real(3, dtype=F64)))
    yield "group_norm", Case(lambda a, b: functional.group_norm(a, 1, b), (real(2, 4, 3), real(4, dtype=BF16)))
    yield "index_add", Case(lambda a, b: a.index_add(0, index, b), (x, x[:1].double()))
    yield "index_copy", Case(lambda a, b: a.index_copy(0, index, b), (x, x[:1].half()))
    yield "index_put", Case(lambda a, b: a.index_put((index,), b, accumulate=True), (x, x[0].double()))
    yield (
        "scatter_add",
        Case(lambda a, b: a.scatter_add(0, torch.zeros(1, 3, dtype=torch.int64), b), (x, x[:1].double())),
    )
    yield "gather_with_short_places", Case(lambda a, b: a.gather(1, b), (x, torch.zeros(2, 1, dtype=I32)))
    yield "index_select_with_reals", Case(lambda a, b: a.index_select(0, b), (x, torch.zeros(1)))
    yield "cross_entropy_with_short_classes", Case(functional.cross_entropy, (x, whole(0, 1, dtype=I32)))
    yield (
        "nll_loss_with_a_wide_weight",
        Case(lambda a, b: functional.nll_loss(a, whole(0, 1), b), (x, real(3, dtype=F64))),
    )
    yield "bce_with_whole_targets", Case(functional.binary_cross_entropy, (torch.rand(2), whole(0, 1)))
    yield "mse_of_wide", Case(functional.mse_loss, (x, x.double()))
    yield "huber_of_shorts_and_reals", Case(functional.huber_loss, (real(2, dtype=BF16), real(2)))
    yield (
        "huber_of_each",
        Case(lambda a, b: functional.huber_loss(a, b, reduction="none"), (real(2, dtype=BF16), real(2))),
    )
    yield "huber_of_whole", Case(functional.huber_loss, (whole(1, 2), whole(3, 1)))
    yield "embedding_with_real_places", Case(functional.embedding, (torch.zeros(1), x))
    yield (
        "attention",
        Case(
            functional.scaled_dot_product_attention, (real(1, 1, 2, 4), real(1, 1, 2, 4, dtype=BF16), real(1, 1, 2, 4))
        ),
    )
    yield "masked_select_by_whole", Case(torch.masked_select, (x, whole(1, 0, 1)))
    yield "where_by_reals", Case(torch.where, (real(3), x, x))
    yield "lerp", Case(torch.lerp, (x, x.double(), 0.5))
    yield "softmax_of_whole", Case(lambda a: a.softmax(0), (whole(1, 2),))
    yield "mean_of_whole", Case(lambda a: a.mean(), (whole(1, 2),))
    yield "pool_of_halves_and_whole", Case(lambda a: functional.avg_pool1d(a, 2), (torch.ones(1, 1, 4, dtype=I32),))
    yield "order_of_complex", Case(lambda a: a.max(), (torch.ones(2, dtype=torch.complex64),))
    yield "bits_of_reals", Case(torch.bitwise_and, (x, x))
    yield "gcd_of_reals", Case(torch.gcd, (x, x))


def truths() -> Iterator[tuple[str, Case]]:
    """Arithmetic on truth values, which PyTorch takes or refuses."""
    b, f, i = truth(True, False), torch.ones(2), whole(1, 2)
    yield "difference", Case(torch.sub, (b, truth(True, True)))
    yield "negative", Case(torch.neg, (b,))
    yield "sum_of_two", Case(torch.add, (b, b))
    yield "sum_with_true", Case(lambda a, n: a + n, (i, True))
    yield "power_of_true", Case(lambda a, n: a**n, (b, True))
    yield "power_of_whole", Case(lambda a, n: a**n, (b, 2))
    yield "true_to_the_power", Case(lambda a, n: n**a, (i, True))
    yield "less_a_tensor", Case(lambda a, n: n - a, (f, True))
    yield "alpha", Case(lambda a, n: torch.add(a, a, alpha=n), (f, True))
    yield "alpha_of_truths", Case(lambda a, n: torch.add(a, a, alpha=n), (b, True))
    yield "real_alpha_of_whole", Case(lambda a: torch.add(a, a, alpha=0.5), (i,))
    yield "clamp", Case(lambda a, n: a.clamp(min=n), (b, False))
    yield "lerp_of_whole", Case(lambda a: torch.lerp(a, a, 1), (i,))
    yield "largest", Case(lambda a: a.max(), (b,))
    yield "cumulative", Case(lambda a: a.cumsum(0), (b,))
    yield "product", Case(lambda a: a.prod(), (b,))
    yield "mean", Case(lambda a: a.mean(), (b,))
    yield "shift", Case(lambda a: a << 1, (b,))
    yield "division", Case(lambda a: a / a, (truth(True, True),))
    yield "remainder", Case(lambda a: a % True, (b,))
    yield "relu", Case(torch.relu, (b,))
    yield "sort", Case(lambda a: a.sort().values, (b,))


def numbers() -> Iterator[tuple[str, Case]]:
    """Python numbers that a dtype cannot hold."""
    u, i, h, f = whole(0, 1, 2, dtype=U8), whole(0, 1, 2), real(3, dtype=F16), real(3)
    for number in (2**31, 300, -1, 2**63, 2**64 - 1, -(2**63)):
        yield f"byte_plus_{number}", Case(lambda a, n=number: a + n, (u,))
        yield f"byte_ge_{number}", Case(lambda a, n=number: a >= n, (u,))
        yield f"byte_filled_with_{number}", Case(lambda a, n=number: torch.full_like(a, n), (u,))
        yield f"byte_clamped_to_{number}", Case(lambda a, n=number: a.clamp(max=n), (u,))
        yield f"byte_or_{number}", Case(lambda a, n=number: torch.where(a > 0, a, n), (u,))
        yield f"long_plus_{number}", Case(lambda a, n=number: a + n, (i,))
        yield f"single_plus_{number}", Case(lambda a, n=number: a + n, (f,))
    yield "long_past_everything", Case(lambda a: a + 2**64, (i,))
    yield "half_filled_with_a_million", Case(lambda a: a.fill_(1e6), (h,))
    yield "half_plus_a_million", Case(lambda a: a + 1e6, (h,))
    yield "whole_filled_with_infinity", Case(lambda a: a.fill_(float("inf")), (i,))
    yield "byte_masked_with_300", Case(lambda a: a.masked_fill(a > 0, 300), (u,))
    yield "short_to_a_negative_power", Case(lambda a: a**-1, (i,))


def data() -> Iterator[tuple[str, Case]]:
    """Elements that an operator refuses."""
    x, p = real(4, 5), torch.tensor([0.2, 1.5])
    yield "one_hot_of_minus_one", Case(lambda t: functional.one_hot(t, 3), (whole(-1, 0),))
    yield "one_hot_of_too_much", Case(lambda t: functional.one_hot(t, 3), (whole(3, 0),))
    yield "one_hot_of_computed", Case(lambda t: functional.one_hot(t - 1, num_classes=3).sum(0), (whole(1, 0),))
    yield "one_hot", Case(lambda t: functional.one_hot(t, 3), (whole(2, 0),))
    yield "one_hot_of_short", Case(lambda t: functional.one_hot(t, 3), (whole(2, 0, dtype=I32),))
    yield "one_hot_of_no_classes", Case(lambda t: functional.one_hot(t, 0), (whole(2, 0),))
    yield "one_hot_of_nothing", Case(lambda t: functional.one_hot(t, 3), (whole(),))
    yield "one_hot_that_nobody_uses", Case(lambda t: (functional.one_hot(t, 3), t + 1)[1], (whole(3, 0),))
    for name, places in {"past": whole(0, 9), "negative": whole(0, -1), "far_negative": whole(-9, 0)}.items():
        yield f"embedding_{name}", Case(lambda w, t: functional.embedding(t, w), (x, places))
        yield f"index_{name}", Case(lambda w, t: w[t], (x, places))
        yield f"index_select_{name}", Case(lambda w, t: w.index_select(0, t), (x, places))
        yield f"gather_{name}", Case(lambda w, t: w.gather(1, t.view(2, 1)), (x, places))
        yield f"take_{name}", Case(lambda w, t: w.take(t), (x, places))
        yield f"scatter_{name}", Case(lambda w, t: w.scatter(1, t.view(2, 1), 1.0), (x, places))
        yield f"index_add_{name}", Case(lambda w, t: w.index_add(0, t, torch.ones(2, 5)), (x, places))
        yield f"index_fill_{name}", Case(lambda w, t: w.index_fill(0, t, 3.0), (x, places))
        yield f"index_that_nobody_uses_{name}", Case(lambda w, t: (w[t], w + 1)[1], (x, places))
        classes = torch.cat([places, whole(1, 2)])
        yield f"cross_entropy_{name}", Case(functional.cross_entropy, (x, classes))
        yield (
            f"smoothed_cross_entropy_{name}",
            Case(lambda w, t: functional.cross_entropy(w, t, label_smoothing=0.1), (x, classes)),
        )
        yield (
            f"loss_that_nobody_uses_{name}",
            Case(lambda w, t: (functional.cross_entropy(w, t), w + 1)[1], (x, classes)),
        )
    batch = (real(5, 2, 4).log_softmax(-1), whole(1, 2, 3, 1).view(2, 2))
    for name, times, labels in (("as_it_is", 5, 2), ("too_long", 6, 2), ("of_too_many", 5, 3)):
        yield (
            f"ctc_that_nobody_uses_{name}",
            Case(
                lambda p, t, n, m: (functional.ctc_loss(p, t, n, m), p * 2)[1],
                (*batch, whole(times, 5), whole(labels, 2)),
            ),
        )
    yield "probability_over_one", Case(functional.binary_cross_entropy, (p, torch.ones(2)))
    yield "target_over_one", Case(lambda t: functional.binary_cross_entropy(torch.full((2,), 0.5), t), (p,))
    yield (
        "target_that_is_no_number",
        Case(lambda t: functional.binary_cross_entropy(torch.full((2,), 0.5), t), (torch.tensor([0.5, float("nan")]),)),
    )
    yield "cholesky", Case(torch.linalg.cholesky, (-torch.eye(3),))
    yield "inverse", Case(torch.linalg.inv, (torch.zeros(3, 3),))
    yield "select_scatter", Case(lambda a: a.select_scatter(torch.ones(5), 0, 9), (x,))


def layouts() -> Iterator[tuple[str, Case]]:
    """Strides that follow those of attention."""
    for sizes in ((2, 8, 4, 1), (1, 1, 4, 8), (2, 1, 4, 8)):
        name = "_".join(map(str, sizes))
        q = real(*sizes).transpose(1, 2)
        yield f"attention_{name}", Case(lambda a: functional.scaled_dot_product_attention(a, a, a), (q,))
        yield (
            f"resized_attention_{name}",
            Case(
                lambda a: functional.interpolate(
                    functional.scaled_dot_product_attention(a, a, a), scale_factor=2, mode="bicubic"
                ),
                (q,),
            ),
        )


GROUPS = (divisions, writes, mixtures, truths, numbers, data, layouts)
CASES: dict[str, Case] = {f"{group.__name__}-{name}": case for group in GROUPS for name, case in group()}
