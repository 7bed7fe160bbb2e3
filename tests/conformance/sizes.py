"""Run every operator's samples with sizes that vary: traced at two, run at others, with NaN behind every input."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from tests.conformance.cases import Contestant, Outcome, Player, Rule, Section, Trial
from tests.conformance.fresh import fresh, moved_by_a_bit
from tests.conformance.operators import (
    float32_samples,
    in_dtype,
    names,
    operators,
    seed_everything,
    takes_float32,
    value_rule,
)
from tests.conformance.play import Call, play
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils import _pytree as pytree

from weft.ir.types import row_major
from weft.runtime.large_forms import VaryingInput

SMALLEST = 2  # sizes of 1 are broadcast
FRAGILE = frozenset({"_segment_reduce.lengths", "_segment_reduce.offsets", "lu_unpack"})
"""Operators that read anywhere in memory where their data does not fit their sizes."""
GROWTHS = (0, 3, 1, 2, 0)  # of a size from call to call: the first two make the program, which runs the others
MOST_ELEMENTS = 100_000  # of a sample; larger ones take long and show nothing else
MOST_LESS = 0.75  # of a number, where it is repeated: no two rows are alike, and no number leaves its range

Place = tuple[int, int]  # which tensor, which dimension


@dataclass(frozen=True)
class Group:
    """Dimensions of one size that vary together, and the plain numbers of the call that are this size."""

    size: int
    places: tuple[Place, ...]
    numbers: tuple[int, ...] = ()

    def grown(self, growth: int) -> int:
        """The size in a call that adds so much."""
        return self.size + growth


class Sample:
    """A call of an operator as one of its tensors alone, whose sizes can be others."""

    def __init__(self, operator: Callable[..., Any], sample: SampleInput) -> None:
        self.operator = operator
        self.leaves, self.structure = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        self.places = [at for at, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors: tuple[torch.Tensor, ...] = tuple(self.leaves[at] for at in self.places)
        self.groups: tuple[Group, ...] = ()

    def call(self, *tensors: torch.Tensor) -> Any:
        """Call the operator; numbers that are a size are computed from it."""
        leaves = list(self.leaves)
        for at, tensor in zip(self.places, tensors, strict=True):
            leaves[at] = tensor
        for group in self.groups:
            at, dimension = group.places[0]
            for number in group.numbers:
                leaves[number] = tensors[at].shape[dimension]
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return self.operator(*args, **kwargs)

    def tensors_of(self, growth: int) -> tuple[torch.Tensor, ...]:
        """The tensors of a call whose sizes are so much larger, each group's in its own way."""
        found: dict[int, torch.Tensor] = {}
        for at, tensor in enumerate(self.tensors):
            if id(tensor) in found:
                continue
            grown = tensor
            for number, group in enumerate(self.groups):
                for place, dimension in group.places:
                    if place == at:
                        grown = resized(grown, dimension, group.grown(growth + number if growth else 0))
            found[id(tensor)] = grown
        return tuple(found[id(tensor)] for tensor in self.tensors)

    def find_groups(self) -> None:
        """Let as many sizes vary as eager allows."""
        for group in self._wanted():
            taken = {place for one in self.groups for place in one.places}
            if taken & set(group.places):
                continue
            before = self.groups
            self.groups = (*before, group)
            if not self._runs():
                self.groups = before

    def _wanted(self) -> Iterator[Group]:
        places: dict[int, list[Place]] = {}
        for at, tensor in enumerate(self.tensors):
            if tensor.layout is not torch.strided or tensor.stride() != row_major(tuple(tensor.shape)):
                continue
            if (
                tensor.is_neg()
                or tensor.is_conj()
                or tensor.numel() > MOST_ELEMENTS
                or type(tensor) is not torch.Tensor
            ):
                continue
            for dimension, size in enumerate(tensor.shape):
                if size >= SMALLEST:
                    places.setdefault(size, []).append((at, dimension))
        for size, some in places.items():
            numbers = tuple(at for at, leaf in enumerate(self.leaves) if type(leaf) is int and leaf == size)
            yield Group(size, tuple(some))
            if numbers:
                yield Group(size, tuple(some), numbers)
        for size, some in places.items():
            numbers = tuple(at for at, leaf in enumerate(self.leaves) if type(leaf) is int and leaf == size)
            for place in some:
                yield Group(size, (place,))
                if numbers:
                    yield Group(size, (place,), numbers)

    def _runs(self) -> bool:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for growth in GROWTHS[1:4]:
                try:
                    self.call(*fresh(self.tensors_of(growth)))
                except Exception:  # noqa: BLE001 - whatever it is, the operator does not take such sizes
                    return False
        return True


def resized(tensor: torch.Tensor, dimension: int, size: int) -> torch.Tensor:
    """A tensor whose rows begin anew behind the last one; numbers that are repeated are smaller, each by itself."""
    before = tensor.shape[dimension]
    if size == before:
        return tensor
    rows = torch.arange(size)
    found = tensor.detach().index_select(dimension, rows % before)
    if tensor.is_floating_point():
        generator = torch.Generator().manual_seed(size)
        less = torch.rand(found.shape, generator=generator, dtype=tensor.dtype)
        less.narrow(dimension, 0, min(before, size)).zero_()
        found = found * (1 - less * MOST_LESS)
    return found.requires_grad_(tensor.requires_grad)


@contextmanager
def poisoned() -> Iterator[None]:
    """Let NaN lie behind every input, and numbers of no meaning behind those of whole numbers."""
    taken = VaryingInput.take

    def take(self: VaryingInput, tensor: torch.Tensor, taker: Any) -> torch.Tensor:
        memory = taken(self, tensor, taker)
        if memory.is_floating_point() or memory.is_complex():
            memory.fill_(float("nan"))
            self.put(memory, tensor, taker)
        return memory

    with mock.patch.object(VaryingInput, "take", take):
        yield


def size_trial(sample: Sample, rule: Rule) -> Trial:
    """Make the trial of one sample."""
    examined: list[Any] = []

    def start(dtype: torch.dtype | None, seed: int | None, contestant: Contestant) -> Player:
        def call(*tensors: torch.Tensor) -> Any:
            return sample.call(*tensors)

        function = contestant(call)
        examined.append(function)

        def player(number: int) -> Outcome:
            tensors = sample.tensors_of(GROWTHS[number])
            if seed is not None:
                tensors = moved_by_a_bit(tensors, seed)
            tensors = fresh(tensors if dtype is None else in_dtype(tensors, dtype))
            with torch.no_grad(), poisoned():
                return play(Call(function, tensors, {}))

        return player

    def neighbour(seed: int) -> tuple[Any, Any]:
        return functools.partial(start, None, seed), functools.partial(start, torch.float64, seed)

    return Trial(
        functools.partial(start, None, None),
        rule,
        calls=len(GROWTHS) if sample.groups else 0,
        exact_start=functools.partial(start, torch.float64, None),
        neighbour=neighbour,
        any_order=True,
        notes=lambda: (how_it_ran(sample, examined),),
    )


def how_it_ran(sample: Sample, examined: Sequence[Any]) -> str:
    """Say whether a program for a range of sizes ran, and if not why."""
    if not sample.groups:
        return "no size that can vary"
    found = [one.varying for one in examined if hasattr(one, "varying")]
    if any(list(one) for one in found):
        return "a program for many sizes"
    reasons = [reason for one in found for reason in one.refusals]
    return reasons[0] if reasons else "exact programs, for no reason given"


class SizeTrials(Sequence[Trial]):
    """The trials of an entry, each made when it is asked for: which sizes can vary is found by running eager."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.samples = float32_samples(name)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> Any:
        sample = Sample(operators()[self.name].op, self.samples[index])
        seed_everything(self.name)
        if self.name not in FRAGILE and sum(tensor.numel() for tensor in sample.tensors) <= MOST_ELEMENTS:
            sample.find_groups()
        return size_trial(sample, value_rule(self.name))


def sections() -> Sequence[Section]:
    """List the section over sizes."""
    return (
        Section(
            "sizes",
            "float32 samples of every operator with sizes that vary",
            functools.partial(names, takes_float32),
            SizeTrials,
            codegens=("library", "native"),
        ),
    )
