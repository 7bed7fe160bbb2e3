"""Describe where the elements of a value lie: sizes, steps and a start in some memory, and how views change them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from weft.ir.types import row_major


@dataclass(frozen=True, slots=True)
class Window:
    """Element [i, j, ...] lies at offset + i * strides[0] + j * strides[1] + ..., counted in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_plain(self) -> bool:
        """Whether the elements lie row by row, without gaps, from the start on."""
        return self.offset == 0 and all(
            stride == expected
            for stride, expected, extent in zip(self.strides, row_major(self.shape), self.shape, strict=True)
            if extent != 1
        )

    def permuted(self, order: Sequence[int]) -> Window:
        """The same elements with dimensions in another order."""
        return Window(tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order), self.offset)

    def expanded(self, shape: Sequence[int]) -> Window:
        """Dimensions of size 1, and new ones in front, repeated."""
        new = len(shape) - len(self.shape)
        kept = zip(self.shape, self.strides, shape[new:], strict=True)
        steps = tuple(0 if extent == 1 and wanted != 1 else stride for extent, stride, wanted in kept)
        return Window(tuple(shape), (*([0] * new), *steps), self.offset)

    def sliced(self, start: Sequence[int], stop: Sequence[int], step: Sequence[int]) -> Window:
        """Every step-th element from start to before stop, in each dimension."""
        cuts = list(zip(start, stop, step, strict=True))
        shape = tuple(max(0, -((first - last) // every)) for first, last, every in cuts)
        offset = self.offset + sum(first * stride for (first, _, _), stride in zip(cuts, self.strides, strict=True))
        return Window(shape, tuple(s * every for s, (_, _, every) in zip(self.strides, cuts, strict=True)), offset)

    def reversed(self, dimensions: Sequence[int]) -> Window:
        """Dimensions run through backwards."""
        offset = self.offset + sum(max(self.shape[i] - 1, 0) * self.strides[i] for i in dimensions)
        steps = tuple(-stride if i in dimensions else stride for i, stride in enumerate(self.strides))
        return Window(self.shape, steps, offset)

    def reshaped(self, shape: Sequence[int]) -> Window | None:
        """The same elements, row by row, in another shape; None where no steps give them."""
        if self.size == 0:
            return Window(tuple(shape), row_major(tuple(shape)), self.offset)
        strides: list[int] = []
        old = _runs(self)
        for extent in reversed(shape):
            if extent == 1:
                strides.append(0 if not strides else strides[-1])
                continue
            while old and old[-1][0] == 1:
                old.pop()
            if not old:
                return None
            run, stride = old.pop()
            if run % extent:
                return None
            strides.append(stride)
            old.append((run // extent, stride * extent))
        return Window(tuple(shape), tuple(reversed(strides)), self.offset)


def _runs(window: Window) -> list[tuple[int, int]]:
    """Dimensions merged where one continues the other: (number of elements, step) from the outside in."""
    runs: list[tuple[int, int]] = []
    for extent, stride in zip(window.shape, window.strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == stride * extent:
            runs[-1] = (runs[-1][0] * extent, stride)
        else:
            runs.append((extent, stride))
    return runs


def plain(shape: Sequence[int]) -> Window:
    """Elements row by row, without gaps."""
    return Window(tuple(shape), row_major(tuple(shape)))


def in_order_of(shape: Sequence[int], strides: Sequence[int]) -> Window:
    """Elements without gaps, dimensions nested as these strides nest them (a repeated dimension outermost)."""
    order = sorted(range(len(shape)), key=lambda i: (-strides[i] if strides[i] > 0 else -float("inf"), i))
    steps = [0] * len(shape)
    step = 1
    for dimension in reversed(order):
        steps[dimension] = step
        step *= max(shape[dimension], 1)
    return Window(tuple(shape), tuple(steps))


def same_layout(first: Window, second: Window) -> bool:
    """Whether two windows over one buffer read the same elements in the same order."""
    return (first.shape, first.offset) == (second.shape, second.offset) and all(
        one == other or extent == 1
        for one, other, extent in zip(first.strides, second.strides, first.shape, strict=True)
    )


def is_dense(window: Window) -> bool:
    """Whether a window is all of its memory, each element once, in whatever order of dimensions."""
    return window.size > 0 and same_layout(window, in_order_of(window.shape, window.strides))
