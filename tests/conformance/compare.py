"""Two tensors -> equal, within a bound, or a sentence that says what differs."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
ULPS = 4  # the "few units in the last place" of the numerics rule
RELATIVE_FLOOR = 1e-7  # of the whole-model rule
ROUNDINGS = 512  # sums in another order: so many roundings of the largest element
ROUNDINGS_OF_SHORT = 4  # of bfloat16 and float16, whose sums are float32's
FARTHEST_TRUTH = 2.0**-8  # a float64 answer that is further from eager's, relatively, answers another question
SHORT = 16  # bits
GROWN_ROUNDINGS = 8  # times the scaled float32 error, which may be small by chance
QUANTIZED = (torch.qint8, torch.quint8, torch.qint32)


def same_bits(expected: torch.Tensor, actual: torch.Tensor) -> bool:
    """Compare values bit by bit, signs of zeros included; any NaN equals any other."""
    expected, actual = dense(expected), dense(actual)
    if expected.numel() == 0 or expected.is_meta:
        return True
    if expected.is_complex():
        expected, actual = torch.view_as_real(expected), torch.view_as_real(actual)
    if not expected.is_floating_point():
        return torch.equal(expected, actual)
    integer = INTEGER_OF_SIZE[expected.element_size()]
    both_nan = expected.double().isnan() & actual.double().isnan()
    return bool(((expected.view(integer) == actual.view(integer)) | both_nan).all())


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Give a tensor's values in the plain form: strided, not lazily conjugated, not quantized, without autograd."""
    tensor = tensor.detach()
    if tensor.dtype in QUANTIZED:
        return tensor.int_repr()
    if tensor.layout is not torch.strided:
        return tensor.to_dense()
    return tensor.resolve_conj().resolve_neg()


def form(tensor: torch.Tensor, *, stride: bool = True) -> dict[str, Any]:
    """List what two equal tensors share besides their values."""
    facts: dict[str, Any] = {
        "type": type(tensor).__name__,
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "device": tensor.device,
        "layout": tensor.layout,
        "requires_grad": tensor.requires_grad,
        "conjugated": tensor.is_conj(),
        "negated": tensor.is_neg(),
    }
    if stride and tensor.layout is torch.strided:
        facts["stride"] = tensor.stride()
    return facts


def form_difference(expected: torch.Tensor, actual: torch.Tensor, *, stride: bool = True) -> str | None:
    """Say in which facts two tensors differ, values aside; None if in none."""
    left, right = form(expected, stride=stride), form(actual, stride=stride)
    parts = [f"{name} is {right.get(name)}, eager's {left[name]}" for name in left if left[name] != right.get(name)]
    return "; ".join(parts) or None


def value_difference(expected: torch.Tensor, actual: torch.Tensor) -> str:
    """Say how far two tensors of one form are apart, with the first element that differs."""
    left, right = dense(expected), dense(actual)
    wide = torch.complex128 if left.is_complex() else torch.float64
    left, right = left.to(wide).flatten(), right.to(wide).flatten()
    differs = ~((left == right) & (signs(left) == signs(right)) | (left.isnan() & right.isnan()))
    place = int(differs.nonzero()[0]) if differs.any() else 0
    count = int(differs.sum())
    first = f"element {place} is {right[place].item()!r}, eager's {left[place].item()!r}"
    return f"{count} of {left.numel()} values differ: {first}"


def signs(tensor: torch.Tensor) -> torch.Tensor:
    """Give the sign bits, that of zero included."""
    if tensor.is_complex():
        return torch.view_as_real(tensor).signbit().all(dim=-1)
    return tensor.signbit()


def same_rounding(
    expected: torch.Tensor, actual: torch.Tensor, precision: torch.dtype | None = None, least_scale: float = 0.0
) -> bool:
    """Accept sums that were added in another order, in this precision where it is less than the result's.

    Roundings are those of the largest element, and at least of a number of `least_scale`.
    """
    left, right = dense(expected), dense(actual)
    if not (left.is_floating_point() or left.is_complex()):
        return False
    if not same_specials(left, right):
        return False
    finite = left.isfinite()
    if not finite.any():
        return True
    scale = left[finite].abs().max().clamp(min=max(torch.finfo(left.dtype).tiny, least_scale))
    unit = max(rounding_unit(left.dtype), rounding_unit(precision or left.dtype))
    return bool(((left - right)[finite].abs() <= unit * scale).all())


def rounding_unit(dtype: torch.dtype) -> float:
    """Give how far, relative to the largest element, sums in another order may be apart."""
    is_short = torch.finfo(dtype).bits == SHORT
    return torch.finfo(dtype).eps * (ROUNDINGS_OF_SHORT if is_short else ROUNDINGS)


def within_grown_rounding(expected: torch.Tensor, actual: torch.Tensor, narrow: torch.Tensor) -> bool:
    """Judge float64 by the error that the same computation makes in float32: cancellation lets both grow alike."""
    left, right, narrow = dense(expected), dense(actual), dense(narrow)
    if left.dtype not in (torch.float64, torch.complex128) or not same_specials(left, right):
        return False
    narrow = narrow.to(left.dtype)
    finite = left.isfinite() & narrow.isfinite()
    if narrow.shape != left.shape or not torch.equal(finite, left.isfinite()):
        return False
    error = (narrow - left)[finite].abs().max()
    ratio = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    return bool(((left - right)[finite].abs() <= GROWN_ROUNDINGS * ratio * error).all())


def largest(tensors: Iterable[Any]) -> float:
    """Give the size of the largest finite number in any of some tensors of floats."""
    found = 0.0
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex()):
            sizes = dense(tensor).abs().double()
            sizes = sizes[sizes.isfinite()]
            found = max(found, float(sizes.max()) if sizes.numel() else 0.0)
    return found


def same_specials(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare where two tensors are NaN, and that their infinities are the same ones."""
    if left.is_complex():
        left, right = torch.view_as_real(left), torch.view_as_real(right)
    same_nan = torch.equal(left.isnan(), right.isnan())
    infinite = left.isinf()
    return same_nan and torch.equal(infinite, right.isinf()) and torch.equal(left[infinite], right[infinite])


def is_truth(exact: torch.Tensor, eager: torch.Tensor) -> bool:
    """Say whether a float64 answer is that of the same question: random numbers, for one, are others in float64."""
    exact, eager = dense(exact), dense(eager)
    if exact.shape != eager.shape or not (eager.is_floating_point() or eager.is_complex()):
        return False
    wide = torch.complex128 if eager.is_complex() else torch.float64
    exact, eager = exact.to(wide), eager.to(wide)
    finite = eager.isfinite() & exact.isfinite()
    if not finite.any():
        return True
    return bool((eager - exact)[finite].abs().max() <= FARTHEST_TRUTH * exact[finite].abs().max())


def largest_error(eager: torch.Tensor, exact: torch.Tensor) -> float:
    """Give eager's largest error against float64; 0 where that has another form or nothing is finite."""
    eager, exact = dense(eager), dense(exact)
    if eager.shape != exact.shape or not (eager.is_floating_point() or eager.is_complex()):
        return 0.0
    wide = torch.complex128 if eager.is_complex() else torch.float64
    eager, exact = eager.to(wide), exact.to(wide)
    finite = eager.isfinite() & exact.isfinite()
    return float((eager - exact)[finite].abs().max()) if finite.any() else 0.0


def within_native_bound(
    actual: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, eager_error: float | None = None
) -> bool:
    """Judge native code: no error against float64 above twice eager's largest plus a few ulps of the element."""
    actual, eager = dense(actual), dense(eager)
    if not (eager.is_floating_point() or eager.is_complex()) or not same_specials(eager, actual):
        return False
    wide = torch.complex128 if eager.is_complex() else torch.float64
    exact = dense(exact).to(wide)
    finite = eager.isfinite() & exact.isfinite()
    if not finite.any():
        return True
    if eager_error is None:
        eager_error = largest_error(eager, exact)
    ulps = ULPS * torch.finfo(eager.dtype).eps * exact[finite].abs()
    smallest = torch.finfo(eager.dtype).smallest_normal * torch.finfo(eager.dtype).eps * ULPS
    return bool(((actual.to(wide) - exact)[finite].abs() <= 2 * eager_error + ulps + smallest).all())


def within_variation(expected: torch.Tensor, actual: torch.Tensor, neighbours: Sequence[torch.Tensor]) -> bool:
    """Accept what is no further from eager's answer than twice the way that moves when arguments move by a last bit."""
    left, right = dense(expected), dense(actual)
    if not left.is_floating_point() or not same_specials(left, right):
        return False
    finite = left.isfinite()
    moved = [largest_error(other, left.double()) for other in neighbours]
    return bool(moved) and bool(((left - right)[finite].abs() <= 2 * max(moved)).all())


def within_model_bound(actual: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """Judge a whole model: a relative root mean square error of at most twice eager's plus 1e-7."""
    actual, eager = dense(actual), dense(eager)
    if not eager.is_floating_point() or not same_specials(eager, actual) or not eager.isfinite().all():
        return False
    actual, eager, exact = actual.double(), eager.double(), dense(exact).double()
    scale = exact.square().mean().sqrt()
    error = (actual - exact).square().mean().sqrt()
    eager_error = (eager - exact).square().mean().sqrt()
    return bool(error <= 2 * eager_error + RELATIVE_FLOOR * scale)
