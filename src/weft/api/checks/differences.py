"""Find the first place where two snapshots of the same objects differ, one after a call of either kind.

Integers, booleans and all that is no number must be equal. Floating-point numbers may be apart by 512 roundings of the
largest number of the tensor (4 roundings of 16-bit numbers), and by four times what eager's own answer moves when what
the call is given moves by its last bits. Gradients count as one tensor, and so does what an optimizer keeps under one
name: a bias before a batch norm has gradients that are nothing but roundings of others.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.api.checks.snapshot import PLAIN, Entry, Snapshot, TensorContent, same_elements

ROUNDINGS, ROUNDINGS_OF_SHORT, SHORT_BITS = 512, 4, 16
IMMUTABLE = (tuple, frozenset)
Gradients = Mapping[str, "torch.Tensor | None"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A place, what differs there, and what eager PyTorch and the program have there where that is a tensor."""

    path: str
    text: str
    eager: torch.Tensor | None = None
    ours: torch.Tensor | None = None

    @property
    def is_of_numbers(self) -> bool:
        """Whether only floating-point numbers differ, of which some error is allowed."""
        return self.eager is not None and (self.eager.is_floating_point() or self.eager.is_complex())


@dataclass(frozen=True, slots=True)
class Bound:
    """How far floating-point numbers may be apart: the shortest type that took part, and how far eager's move."""

    precision: torch.dtype = torch.float32
    movement: Mapping[str, float] = field(default_factory=dict)

    def allows(self, path: str, eager: torch.Tensor, ours: torch.Tensor, scale: float) -> bool:
        """Say whether numbers at a place may be as they are; `scale` is the largest that they were computed with."""
        if not (eager.is_floating_point() or eager.is_complex()):
            return False
        if eager.is_complex():
            eager, ours = torch.view_as_real(eager.resolve_conj()), torch.view_as_real(ours.resolve_conj())
        wide, other = eager.double(), ours.double()
        finite = wide.isfinite()
        if not torch.equal(finite, other.isfinite()) or not same_elements(wide[~finite], other[~finite]):
            return False
        if not finite.any():
            return True
        scale = max(scale, float(wide[finite].abs().max()))
        unit = max(_rounding(eager.dtype), _rounding(self.precision) if eager.dtype != torch.float64 else 0.0)
        most = unit * scale + 4 * self.movement.get(path, 0.0)
        return bool(((wide - other)[finite].abs() <= most).all())


def _rounding(dtype: torch.dtype) -> float:
    kind = torch.finfo(dtype)
    return kind.eps * (ROUNDINGS_OF_SHORT if kind.bits <= SHORT_BITS else ROUNDINGS)


class Comparison:
    """A walk through what two calls left, side by side, from the same roots."""

    def __init__(self, before: Snapshot, eager: Snapshot, ours: Snapshot, bound: Bound) -> None:
        self._before, self._eager, self._ours, self._bound = before, eager, ours, bound
        self._others: dict[int, Any] = {}
        self._eagers: dict[int, Any] = {}
        memories = (entry.held.storage for entry in before.entries.values() if isinstance(entry.held, TensorContent))
        known = [memory for memory in memories if memory is not None]
        self._memories: dict[Any, Any] = dict(zip(known, known, strict=True))
        self._memories_back = dict(self._memories)
        self._scales: dict[str, float] = {}
        for entry in eager.entries.values():
            if isinstance(entry.held, TensorContent) and (name := _family(entry.path)) is not None:
                self._scales[name] = max(self._scales.get(name, 0.0), largest(entry.held.elements))

    def first(self, roots: Sequence[str]) -> Difference | None:
        """Give the first difference, of numbers only where nothing else differs."""
        numbers: Difference | None = None
        waiting = collections.deque((path, self._eager.roots.get(path), self._ours.roots.get(path)) for path in roots)
        waiting.extend((entry.path, entry.thing, entry.thing) for entry in self._before.found())
        walked: set[int] = set()
        while waiting:
            path, eager, ours = waiting.popleft()
            found = self._paired(path, eager, ours)
            if found is None and id(eager) not in walked and not isinstance(eager, PLAIN):
                walked.add(id(eager))
                one, other = self._eager.entries[id(eager)], self._ours.entries[id(ours)]
                found = _of_entries(path, one, other) or self._of_tensors(path, one, other)
                waiting.extend(
                    (path + step, value, there)
                    for (step, value), (_, there) in zip(one.inside, other.inside, strict=False)
                )
            if found is not None and not found.is_of_numbers:
                return found
            numbers = numbers or found
        return numbers

    def _paired(self, path: str, eager: Any, ours: Any) -> Difference | None:
        """Compare what two things are: the same plain value, the same object, or new ones that only occur together."""
        if isinstance(eager, PLAIN) or isinstance(ours, PLAIN):
            same = type(eager) is type(ours) and (eager == ours or (eager != eager and ours != ours))  # noqa: PLR0124 - NaN
            return None if same else Difference(path, f"is {_short(ours)}, eager PyTorch's is {_short(eager)}")
        if isinstance(eager, IMMUTABLE) and isinstance(ours, IMMUTABLE):
            return None
        if id(eager) in self._before.entries or id(ours) in self._before.entries:
            if eager is ours:
                return None
            return Difference(path, f"is another object ({_short(ours)}) than eager PyTorch's ({_short(eager)})")
        other, back = self._others.setdefault(id(eager), ours), self._eagers.setdefault(id(ours), eager)
        if other is ours and back is eager:
            return None
        return Difference(path, "is one object in two places for one of both, two objects for the other")

    def _of_tensors(self, path: str, one: Entry, other: Entry) -> Difference | None:
        eager, ours = one.held, other.held
        if not isinstance(eager, TensorContent) or not isinstance(ours, TensorContent):
            return None
        for left, right, name in zip(_form(eager), _form(ours), FORM, strict=True):
            if left != right:
                return Difference(path, f"has {name} {right}, eager PyTorch's {left}")
        if self._memories.setdefault(eager.storage, ours.storage) != ours.storage:
            return Difference(path, "does not lie in the memory that eager PyTorch's lies in")
        if self._memories_back.setdefault(ours.storage, eager.storage) != eager.storage:
            return Difference(path, "lies in memory of something else, eager PyTorch's does not")
        scale = self._scales.get(_family(path) or "", 0.0)
        return number_difference(path, eager.elements, ours.elements, self._bound, scale)


def _family(path: str) -> str | None:
    """What a tensor is one of many of: a gradient, an entry of an optimizer's state."""
    if path.endswith(".grad"):
        return ".grad"
    return re.sub(r"\[key \d+\]", "", path) if ".state[key " in path else None


FORM = ("dtype", "shape", "strides", "layout", "device", "requires_grad", "a history", "attributes")


def _form(content: TensorContent) -> tuple[Any, ...]:
    memory = content.memory
    strides = memory.stride() if memory.layout is torch.strided else None
    facts = (memory.dtype, tuple(memory.shape), strides, memory.layout, memory.device)
    return (*facts, content.requires_grad, content.history is not None, [*content.attributes])


def _of_entries(path: str, one: Entry, other: Entry) -> Difference | None:
    """Compare types, how many things are inside and under which names, and what is held that is not followed."""
    kinds = [_type_name(type(entry.thing)) for entry in (one, other)]
    if kinds[0] != kinds[1]:
        return Difference(path, f"is a {kinds[1]}, eager PyTorch's a {kinds[0]}")
    steps = [[step for step, _ in entry.inside] for entry in (one, other)]
    if steps[0] != steps[1]:
        return Difference(path, f"holds {_listed(steps[1])}, eager PyTorch's {_listed(steps[0])}")
    if one.kind is None or one.inside or isinstance(one.held, TensorContent):
        return None
    same = _plainly_equal(one.held, other.held)
    return None if same else Difference(path, f"holds {_short(other.held)}, eager PyTorch's {_short(one.held)}")


def _plainly_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if type(one).__name__ == "ndarray":
        return bool(one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes())
    if isinstance(one, (set, frozenset)):
        # Members that are new objects on either side are never equal: there are as many of them.
        return len(one) == len(other) and len(one - other) == len(other - one) and not _plain(one ^ other)
    if isinstance(one, tuple) and any(type(part).__name__ == "ndarray" for part in one):
        return len(one) == len(other) and all(map(_plainly_equal, one, other))
    return bool(one == other)


def _plain(members: Any) -> list[Any]:
    return [member for member in members if isinstance(member, PLAIN)]


def number_difference(
    path: str, eager: torch.Tensor | None, ours: torch.Tensor | None, bound: Bound, scale: float = 0.0
) -> Difference | None:
    """Compare the elements of two tensors of one form."""
    if eager is None or ours is None or same_elements(eager, ours):
        return None
    if eager.is_sparse:
        eager, ours = eager.to_dense(), ours.to_dense()
    if bound.allows(path, eager, ours, scale):
        return None
    differs = ~((eager == ours) | ((eager != eager) & (ours != ours))).flatten()  # noqa: PLR0124 - NaN
    far = (eager.flatten().double() - ours.flatten().double()).abs() if not eager.is_complex() else differs.double()
    place = int(far.nan_to_num(torch.inf).where(differs, -1.0).argmax())
    index = tuple(int(part) for part in torch.unravel_index(torch.tensor(place), eager.shape))
    numbers = f"{ours.flatten()[place].item()!r}, eager PyTorch's {eager.flatten()[place].item()!r}"
    text = f"differs in {int(differs.sum())} of {differs.numel()} elements; that at {list(index)} is {numbers}"
    return Difference(path, text, eager, ours)


def gradient_difference(eager: Gradients, ours: Gradients, bound: Bound) -> Difference | None:
    """Compare gradients of the same tensors, on the scale of the largest of them."""
    scale = max(map(largest, eager.values()), default=0.0)
    numbers: Difference | None = None
    for path, one in eager.items():
        other, place = ours.get(path), f"the gradient of {path}"
        if (one is None) != (other is None):
            return Difference(place, f"is {'not ' if other is None else ''}there, eager PyTorch's is the other way")
        if one is None or other is None:
            continue
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            text = f"is {other.dtype} {tuple(other.shape)}, eager PyTorch's {one.dtype} {tuple(one.shape)}"
            return Difference(place, text)
        numbers = numbers or number_difference(place, one, other, bound, scale)
    return numbers


def largest(tensor: torch.Tensor | None) -> float:
    """Give the size of the largest finite number of a tensor."""
    if tensor is None or not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    sizes = (tensor.to_dense() if tensor.is_sparse else tensor).detach().abs().double()
    sizes = sizes[sizes.isfinite()]
    return float(sizes.max()) if sizes.numel() else 0.0


def movements(eager: Snapshot, moved: Snapshot) -> dict[str, float]:
    """Give how far tensors of one snapshot are from those in the same places of another."""
    there = {entry.path: entry.held for entry in moved.entries.values() if isinstance(entry.held, TensorContent)}
    found: dict[str, float] = {}
    for entry in eager.entries.values():
        other = there.get(entry.path)
        if isinstance(entry.held, TensorContent) and other is not None:
            found[entry.path] = movement(entry.held.elements, other.elements)
    return found


def movement(one: torch.Tensor | None, other: torch.Tensor | None) -> float:
    """Give the largest distance between elements of two tensors; 0 where they have no numbers to compare."""
    if one is None or other is None or one.shape != other.shape or not one.numel():
        return 0.0
    if not (one.is_floating_point() or one.is_complex()) or one.is_sparse:
        return 0.0
    apart = (one - other).abs().double()
    apart = apart[apart.isfinite()]
    return float(apart.max()) if apart.numel() else 0.0


def _type_name(kind: type) -> str:
    return "Tensor" if kind is torch.Tensor else kind.__qualname__


def _listed(steps: Sequence[str]) -> str:
    named = ", ".join(step.strip() or "a class" for step in steps[:8])
    return f"{len(steps)} things ({named}{', ...' if len(steps) > 8 else ''})" if steps else "nothing"


def _short(thing: Any) -> str:
    if isinstance(thing, torch.Tensor):
        return f"a tensor of {tuple(thing.shape)}"
    text = repr(thing)
    return text if len(text) <= 80 else f"{text[:77]}..."
