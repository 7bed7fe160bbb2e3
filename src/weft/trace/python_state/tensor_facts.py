"""Answer what Python asks of tensors beside their elements, and remember the answer as what a program is for.

A stand-in has sizes, strides, a dtype and autograd. Where a tensor begins in its memory, how large that memory is,
whether it is a view, shared, or made in inference mode, and which attributes Python put on it, the real tensor tells.
Each answer that the user's code got holds for the program: a call with another one gets another program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, MappingProxyType
from typing import Any

import torch

from weft.owners import TORCH
from weft.trace.interception.capture import is_stand_in, outside_tracing, storage_key
from weft.trace.interception.refusals import refuse
from weft.trace.interception.user_lines import is_of_user, user_place
from weft.trace.python_state.containers import MISSING
from weft.trace.python_state.facts import brief, content
from weft.trace.python_state.locations import Slot

# Python functions of PyTorch between what is asked and who asks.
BETWEEN = tuple(
    f"{folder}{name}" for folder in TORCH for name in ("_tensor.py", "overrides.py", "nn/parameter.py", "storage.py")
)


@dataclass(frozen=True, slots=True, eq=False)
class Fact:
    """What may be asked: how it is called, and how a tensor tells it."""

    name: str
    find: Callable[[torch.Tensor], Any]


@dataclass(frozen=True, slots=True)
class SizeMark:
    """A dimension that torch._dynamo marked on a tensor: it varies, within a range, or it does not.

    `is_strict`: whoever marked it wants to know where it cannot vary.
    """

    dimension: int
    varies: bool
    least: int = 0
    most: int | None = None
    is_strict: bool = True


def size_marks(tensor: torch.Tensor) -> tuple[SizeMark, ...]:
    """The marks on a tensor; a dimension that is marked to vary does so, whatever else it is marked as."""
    own = vars(tensor)
    if "_has_dynamo_dim_marking" not in own:
        return ()
    ranges = {found.dim: (found.min, found.max) for found in own.get("_dynamo_dynamic_range", ())}
    ranges |= own.get("_dynamo_unbacked_bounds", {})
    found: dict[int, SizeMark] = {}
    for names, varies, is_strict in MARKS:
        for given in sorted({place for name in names for place in own.get(name, ())}):
            if -tensor.dim() <= given < tensor.dim():
                least, most = ranges.get(given, (None, None))
                mark = SizeMark(given % tensor.dim(), varies, least or 0, most, is_strict)
                found.setdefault(mark.dimension, mark)
    return tuple(found.values())


# The attributes of a tensor, what they say of dimensions, and how strictly: the first that names one counts.
MARKS = (
    (("_dynamo_dynamic_indices", "_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices"), True, True),
    (("_dynamo_weak_dynamic_indices",), True, False),
    (("_dynamo_static_indices",), False, False),
)


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A fact of an argument of each call, or of what is in a place, with the answer that the trace got."""

    fact: Fact
    argument: int | None
    slot: Slot | None
    path: str
    answer: Any

    def change(self, leaves: Sequence[Any]) -> str | None:
        """A sentence on what is different now, or nothing."""
        tensor = leaves[self.argument] if self.argument is not None else self.slot.get() if self.slot else None
        found = self.fact.find(tensor) if isinstance(tensor, torch.Tensor) else MISSING
        if found == self.answer:
            return None
        return f"{self.fact.name} of {self.path} was {brief(self.answer)}, is {brief(found)}"


class StorageFacts:
    """What code may ask of a tensor's memory while it is traced."""

    def __init__(self, storage: torch.UntypedStorage, item: int) -> None:
        self._storage = storage
        self._item = item

    def nbytes(self) -> int:
        """How many bytes there are."""
        return self._storage.nbytes()

    def size(self) -> int:
        """How many elements there are."""
        return self._storage.nbytes() // self._item

    __len__ = size

    def element_size(self) -> int:
        """How many bytes an element has."""
        return self._item

    def is_shared(self) -> bool:
        """Whether other processes may see it."""
        return self._storage.is_shared()

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self._storage.device

    def __getattr__(self, name: str) -> Any:
        refuse("address", user_place(), detail=name)

    def __getitem__(self, place: Any) -> Any:
        refuse("address", user_place())

    __setitem__ = __iter__ = __reduce_ex__ = __getitem__


def _memory(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage().nbytes(), tensor.is_shared()


OFFSET = Fact("storage_offset()", lambda tensor: tensor.storage_offset())
MEMORY = Fact("the memory", _memory)
IS_VIEW = Fact("_is_view()", lambda tensor: tensor._is_view())
ATTRIBUTES = Fact("attributes", lambda tensor: content(tensor.__dict__))


def missing_attribute(name: str) -> Fact:
    """Whether a tensor has an attribute of Python's."""
    return Fact(f"attribute {name}", lambda tensor: tensor.__dict__.get(name, MISSING) is MISSING)


# Facts that are answered as they are, whatever asks.
PLAIN: Mapping[Callable[..., Any], Fact] = MappingProxyType(
    {
        torch.Tensor._is_view: IS_VIEW,
        torch.Tensor.is_shared: Fact("is_shared()", lambda tensor: tensor.is_shared()),
        torch.Tensor.is_pinned: Fact("is_pinned()", lambda tensor: tensor.is_pinned()),
        torch.Tensor.is_inference: Fact("is_inference()", lambda tensor: tensor.is_inference()),
        torch.Tensor.is_conj: Fact("is_conj()", lambda tensor: tensor.is_conj()),
        torch.Tensor.is_neg: Fact("is_neg()", lambda tensor: tensor.is_neg()),
        torch.Tensor.output_nr.__get__: Fact("output_nr", lambda tensor: tensor.output_nr),  # type: ignore[attr-defined]
        torch.Tensor.retains_grad.__get__: Fact("retains_grad", lambda tensor: tensor.retains_grad),  # type: ignore[attr-defined]
    }
)


def has_lazy_bit(tensor: torch.Tensor) -> bool:
    """Whether memory holds other numbers than the tensor stands for: their conjugates, or of the other sign."""
    return tensor.is_conj() or tensor.is_neg()


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers that a tensor stands for, as kernels read them."""
    return tensor.resolve_conj().resolve_neg()


STORAGES = (torch.Tensor.untyped_storage, torch.Tensor.storage, torch.Tensor._typed_storage)
BASE = torch.Tensor._base.__get__  # type: ignore[union-attr]
FUNCTION = torch.Tensor.grad_fn.__get__  # type: ignore[union-attr]
VERSION = torch.Tensor._version.__get__  # type: ignore[attr-defined]
HOOKS = torch.Tensor._backward_hooks.__get__  # type: ignore[union-attr]
OTHERS = frozenset({*STORAGES, torch.Tensor.storage_offset, BASE, FUNCTION, VERSION, HOOKS, torch.Tensor.is_set_to})
FACTS = frozenset({*PLAIN, *OTHERS})


class TensorFacts:
    """Answers for one trace."""

    def __init__(self, slot: Callable[[torch.Tensor], Slot], foreign: Callable[[], torch.Tensor]) -> None:
        self._slot = slot
        self._foreign = foreign
        self._inputs: dict[int, tuple[torch.Tensor, torch.Tensor, int | None, str]] = {}
        self._of_memory: dict[int, int] = {}  # by memory: the identity of the first stand-in of it
        self._asked: dict[tuple[str, int], Asked] = {}
        self._bases: dict[int, torch.Tensor] = {}
        self.depends_on_sharing = False

    def add(self, stand_in: torch.Tensor, real: torch.Tensor, argument: int | None, path: str) -> None:
        """Remember what a stand-in is of."""
        self._inputs[id(stand_in)] = (stand_in, real, argument, path)
        self._of_memory.setdefault(storage_key(stand_in), id(stand_in))

    @property
    def asked(self) -> tuple[Asked, ...]:
        """All that was asked."""
        return tuple(self._asked.values())

    def let_go(self) -> None:
        """Forget real tensors."""
        self._inputs.clear()
        self._bases.clear()

    def answers(self, function: Callable[..., Any]) -> bool:
        """Whether a function asks for such a fact, on behalf of the user's code."""
        return function in FACTS and asked_by_user()

    def answer(self, function: Callable[..., Any], tensor: torch.Tensor, *others: Any) -> Any:
        """What the real tensor would say."""
        del others
        known = self._inputs.get(id(tensor))
        real = known[1] if known is not None else None if is_stand_in(tensor) else tensor
        if function == VERSION and (real is not None or self._window_of(tensor) is not None):
            refuse("version", user_place())
        if function == torch.Tensor.is_set_to:
            refuse("address", user_place())
        if real is None:
            return self._of_intermediate(function, tensor)
        if function in PLAIN:
            return self.ask(PLAIN[function], tensor)
        if function in STORAGES:
            return self._storage(function, tensor, real)
        if function == torch.Tensor.storage_offset:
            return self.ask(OFFSET, tensor)
        with outside_tracing():
            found = function(real)
        if function == BASE:
            return self._base(tensor, found)
        self.ask(Fact(function.__self__.__name__, lambda one: type(function(one)).__name__), tensor)  # type: ignore[attr-defined]
        return found

    def ask(self, fact: Fact, tensor: torch.Tensor) -> Any:
        """Ask for a fact of an input, or of a tensor that the function reaches by itself."""
        _, real, argument, path = self._inputs.get(id(tensor)) or (tensor, tensor, None, "")
        with outside_tracing():
            found = fact.find(real)
        slot = None
        if argument is None:
            slot = self._slot(real)
            path = slot.path
        self._asked.setdefault((fact.name, id(real)), Asked(fact, argument, slot, path, found))
        return found

    def ask_identity(self, tensor: torch.Tensor, argument: int, path: str) -> None:
        """Remember that an argument is a tensor that the function also reaches by itself."""
        fact = Fact("identity", _nothing)
        self._asked[f"identity {argument}", id(tensor)] = IsOwn(fact, argument, self._slot(tensor), path, answer=True)

    def _window_of(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The stand-in whose memory an intermediate tensor looks into, and what it is of; None of new memory."""
        known = self._inputs.get(self._of_memory.get(storage_key(tensor), 0))
        return None if known is None else (known[0], known[1])

    def _of_intermediate(self, function: Callable[..., Any], tensor: torch.Tensor) -> Any:
        window = self._window_of(tensor)
        with outside_tracing():
            if window is None or function not in (*STORAGES, torch.Tensor.storage_offset, BASE):
                return function(tensor)
        stand_in, real = window
        if function in STORAGES:
            return self._storage(function, stand_in, real)
        if function == BASE:
            if self.ask(IS_VIEW, stand_in):
                with outside_tracing():
                    base = real._base
                return self._base(stand_in, base)
            with outside_tracing():
                return tensor._base
        moved = self.ask(OFFSET, stand_in)
        with outside_tracing():
            return moved + tensor.storage_offset() - stand_in.storage_offset()

    def _storage(self, function: Callable[..., Any], tensor: torch.Tensor, real: torch.Tensor) -> StorageFacts:
        self.ask(MEMORY, tensor)
        with outside_tracing():
            storage = real.untyped_storage()
        return StorageFacts(storage, 1 if function == torch.Tensor.untyped_storage else real.element_size())

    def _base(self, tensor: torch.Tensor, base: torch.Tensor | None) -> torch.Tensor | None:
        """What a view is of: an input, or a tensor that nothing can be done with but to see that it is there."""
        self.ask(IS_VIEW, tensor)
        if base is None:
            return None
        stand_in = next((entry[0] for entry in self._inputs.values() if entry[1] is base), None)
        others = [(entry[2], entry[1]) for entry in self._inputs.values() if entry[2] is not None]
        self._among(tensor, base, others)
        if stand_in is not None:
            return stand_in
        return self._bases.setdefault(id(base), self._foreign())

    def _among(
        self, tensor: torch.Tensor, base: torch.Tensor, others: Sequence[tuple[int | None, torch.Tensor]]
    ) -> None:
        """Whether other tensors that the program is given are the base is asked with it."""
        known = self._inputs.get(id(tensor))
        if known is None or known[2] is None:
            return
        for argument, other in others:
            if argument is not None:
                self._asked.setdefault(
                    (f"base {argument}", id(known[1])),
                    IsBase(Fact("_base", _nothing), known[2], None, known[3], other is base, argument),
                )


def _nothing(tensor: torch.Tensor) -> None:
    del tensor


@dataclass(frozen=True, slots=True, eq=False)
class IsBase(Asked):
    """Whether one argument is the base of another one."""

    other: int

    def change(self, leaves: Sequence[Any]) -> str | None:
        """A sentence on what is different now, or nothing."""
        assert self.argument is not None
        if (leaves[self.argument]._base is leaves[self.other]) == self.answer:
            return None
        return f"{self.path} is a view of another tensor"


@dataclass(frozen=True, slots=True, eq=False)
class IsOwn(Asked):
    """An argument was the very tensor that the function finds in a place of its own."""

    def change(self, leaves: Sequence[Any]) -> str | None:
        """A sentence on what is different now, or nothing."""
        assert self.argument is not None
        assert self.slot is not None
        if leaves[self.argument] is self.slot.get():
            return None
        return f"{self.path} was {self.slot.path}, is another tensor"


def asked_by_user() -> bool:
    """Whether the user's code asks, and not PyTorch for its own purposes."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not is_of_user(frame):
        filename = frame.f_code.co_filename
        if filename.startswith(TORCH) and not filename.startswith(BETWEEN):
            return False
        frame = frame.f_back
    return frame is not None
