"""Ask operators how a large result would lie with a small one: each size is a prime, of which a stride is a product.

That tells nothing of operators that compute with sizes. It does of those that know only which sizes are equal, and that
order dimensions by their strides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)
Sizes = tuple[int, ...]
Layout = tuple[Sizes, tuple[int, ...]]  # sizes and strides
LEAST = 2**14  # elements of a result that is worth a smaller one


@dataclass(frozen=True, slots=True)
class Smaller:
    """Primes in the place of sizes, the larger in the place of the larger."""

    primes: Mapping[int, int]

    def size(self, size: int) -> int:
        """The small size."""
        return self.primes.get(size, size)

    def strides(self, layout: Layout) -> tuple[int, ...] | None:
        """The small strides of a tensor; None of one that steps by what is no product of sizes and gaps."""
        small, whole, known = 1, 1, {0: 0, 1: 1}
        for factor in _factors(layout) or ():
            whole, small = whole * factor, small * self.size(factor)
            known[whole] = small
        found = [known.get(stride) for stride in layout[1]]
        return None if None in found else tuple(stride for stride in found if stride is not None)

    def stride(self, small: int) -> int | None:
        """The stride that a small one stands for; None where it is no product of sizes."""
        if small == 0:
            return 0
        whole = 1
        for size, prime in self.primes.items():
            while small % prime == 0:
                small, whole = small // prime, whole * size
        return whole if small == 1 else None

    def large(self, found: torch.Tensor, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The strides of a result of a shape, by those of the small one."""
        if tuple(found.shape) != tuple(map(self.size, shape)):
            return None
        strides = [self.stride(small) for small in found.stride()]
        return None if None in strides else tuple(stride for stride in strides if stride is not None)


def _factors(layout: Layout) -> list[int] | None:
    """The sizes of a tensor and the gaps between them, the innermost first; None where some overlap."""
    shape, strides = layout
    found, whole = [], 1
    for stride, size in sorted(pair for pair in zip(strides, shape, strict=True) if pair[0] and pair[1] > 1):
        gap, rest = divmod(stride, whole)
        if rest or not gap:
            return None
        found += [gap, size] if gap > 1 else [size]
        whole = stride * size
    return found


def smaller(results: Iterable[Sizes], given: Sequence[Layout]) -> Smaller | None:
    """What to ask with in the place of tensors; None where they are small, or lie otherwise, or have no elements."""
    shapes, factors = [*results, *(shape for shape, _ in given)], list(map(_factors, given))
    if None in factors:
        return None
    sizes = sorted({size for some in (*shapes, *factors) for size in some or () if size != 1})
    if not sizes or sizes[0] == 0 or len(sizes) > len(PRIMES) or max(map(prod, shapes)) < LEAST:
        return None
    found = Smaller(dict(zip(sizes, PRIMES, strict=False)))
    return found if all(found.strides(layout) is not None for layout in given) else None
