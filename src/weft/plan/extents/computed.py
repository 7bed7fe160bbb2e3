"""Estimate what the kernels of a plan compute at a call of small sizes, where a program is for a range of sizes.

Most end where a call does. Others compute all that the largest sizes need, and what is left out of some goes by whole
tiles: then a program of smaller sizes, or Python, may do with less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from weft.ir.extents import Polynomial
from weft.plan.form.plan import KernelCall, Plan
from weft.plan.kernels.recurrent import RecurrentKernel
from weft.plan.schedule.cost import MachineModel, kernel_seconds

NEGLIGIBLE = 20e-6  # seconds of one core
DOUBT = 1.5  # times what is needed by a count of operations that know nothing of kernels
SizeOf = Callable[[Polynomial], int]


@dataclass(frozen=True, slots=True)
class _Call:
    """A kernel, the seconds of all of it, and the sizes that it reads, by their buffers."""

    call: KernelCall
    seconds: float
    sizes: Mapping[int, Polynomial]

    def part(self, size_of: SizeOf) -> float:
        """How much of the kernel runs."""
        found = 1.0
        if (needed := self.call.needed) is not None:
            counts = np.array([end - begin for begin, end in pairwise(needed.starts)])
            runs = np.ones(len(counts), bool)
            for buffer, least in zip(needed.sizes, needed.least, strict=True):
                runs &= np.array(least) < size_of(self.sizes[buffer])
            found *= float(counts[runs].sum() / max(counts.sum(), 1))
        for end in self.call.ends:
            found *= end.count(size_of(self.sizes[end.size])) / max(end.most, 1)
        if self.steps is not None:
            found *= size_of(self.sizes[self.call.reads[-1].buffer]) / max(self.steps, 1)
        return found

    @property
    def steps(self) -> int | None:
        """The most steps of a recurrent layer that is told how many there are."""
        kernel = self.call.kernel
        return kernel.steps if isinstance(kernel, RecurrentKernel) and kernel.limited else None

    @property
    def ends(self) -> bool:
        """Whether calls of small sizes leave out some of it."""
        return self.call.needed is not None or bool(self.call.ends) or self.steps is not None


class KernelWork:
    """The kernels of some plans, each with the sizes that its buffers hold."""

    def __init__(self, plans: Sequence[tuple[Plan, Mapping[int, Polynomial]]], model: MachineModel) -> None:
        calls = [_Call(call, kernel_seconds(call.kernel, model), sizes) for plan, sizes in plans for call in plan.calls]
        self._ending = [one for one in calls if one.ends]
        self._endless = sum(one.seconds for one in calls) - sum(one.seconds for one in self._ending)

    def share(self, size_of: SizeOf, needed: float) -> float:
        """How much of what a call of these sizes computes it needs, at most 1.

        Of a call of the largest sizes it needs the part `needed`: so much of kernels that do not end. Where these end
        by one of two sizes alone, all of them compute much more than that.
        """
        ending = sum(one.seconds * one.part(size_of) for one in self._ending)
        computed = ending + self._endless
        if computed <= NEGLIGIBLE:
            return 1.0
        largest = self._endless + sum(one.seconds for one in self._ending)
        return min((ending + needed * self._endless) / computed, DOUBT * needed * largest / computed, 1.0)
