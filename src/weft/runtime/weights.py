"""Keep the packed form of each weight, made again when the weight has changed, shared by all programs.

What has changed is seen by the tensor's identity, address and version, and where others can write to its memory, by its
bytes. See docs/decisions/0030-packed-weights.md.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from weft.codegen.torch_functions import version_of
from weft.devices import cpu_count
from weft.runtime.arena import ArenaBlock
from weft.runtime.content import content_hash, held_memory
from weft.runtime.watch import Changes, has_other_writers, is_of_file_alone, retire, watch
from weft.worker_threads import WorkerThreads

Pack = Callable[[Sequence[int]], None]
WORTH_THREADS = 4 * 1024 * 1024  # bytes to be packed, which take some milliseconds
CALM_LOOKS = 32  # in which a file's weight has not changed, before its version alone is trusted
LEAST_MAPPED = 256 * 1024  # bytes that are worth pages of their own
address_of = torch.Tensor.data_ptr
log = logging.getLogger("weft.runtime")

# Held while a weight is looked at and packed. What runs inside is native code that waits for nobody, and the ends of
# tensors, which take no lock: so it cannot deadlock.
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603  # a forked child must not inherit a lock that nobody will release
    _lock = threading.RLock()
    for one in list(_packed_weights.values()):
        one.begun = None  # by a thread that the child does not have


os.register_at_fork(after_in_child=_renew_lock)


class Weight:
    """One tensor that is packed; `stamp` grows when its elements may have changed.

    `is_doubtful` while others can write to its memory without its version: then its bytes are compared at every look.
    Memory of a file is trusted once it has stayed as it was for long: it stays foreign forever, and comparing a large
    model's takes longer than running it.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.reference = weakref.ref(tensor, self._ended)
        self.identity = id(tensor)
        self.facts: tuple[int, int, int] = (0, -1, -1)
        self._memory = 0  # whose aliases it is told of
        self.stamp = 0
        self.is_doubtful = False
        self.packed: weakref.WeakSet[PackedWeight] = weakref.WeakSet()
        self._content = 0
        self._calm = 0
        self._alias_taken = True

    def look(self, tensor: torch.Tensor) -> int:
        """Give the stamp of the tensor as it is now."""
        # The mark goes before anything is looked at: an alias taken from here on is looked at the next time.
        alias_taken, self._alias_taken = self._alias_taken, False
        facts = _facts(tensor)
        self._follow(facts[0])
        if self.is_doubtful or alias_taken or facts != self.facts:
            self.stamp += self._has_changed(tensor, facts)
        self.facts = facts
        return self.stamp

    def follow(self, tensor: torch.Tensor) -> None:
        """Be told from now on when the tensor leaves its memory and comes back to it, or others may write there."""
        self._follow(_facts(tensor)[0])

    def _follow(self, memory: int) -> None:
        if memory == self._memory:
            return
        # Whoever knows the tensor by its former memory would not be told that it came back there with other elements.
        if self._memory:
            Changes.happened()
            retire(self._memory, self)
        watch(memory, self)
        self._memory = memory

    def alias_taken(self) -> None:
        """Note that somebody may write without the version."""
        self._alias_taken = True
        Changes.happened()

    def _has_changed(self, tensor: torch.Tensor, facts: tuple[int, int, int]) -> bool:
        was_doubtful = self.is_doubtful
        # Asked before the bytes are read: an alias that writes and ends meanwhile leaves doubt for the next look.
        self.is_doubtful = has_other_writers(tensor) and not (self._calm >= CALM_LOOKS and is_of_file_alone(tensor))
        if not (was_doubtful or self.is_doubtful):
            return True
        before, self._content = self._content, content_hash(tensor)
        if not was_doubtful:
            log.info("weft: a weight of sizes %s is shared: its bytes are compared at every call", tuple(tensor.shape))
        is_same = was_doubtful and facts == self.facts and before == self._content
        self._calm = self._calm + 1 if is_same else 0
        return not is_same

    def _ended(self, _: object) -> None:
        Changes.happened()
        retire(self._memory, self)
        if _weights.get(self.identity) is self:
            del _weights[self.identity]
        for packed in list(self.packed):
            packed.forget()


def _facts(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Where a tensor's memory begins, where the tensor does, and its version."""
    address = address_of(tensor)
    version = 0 if tensor.is_inference() else version_of(tensor)
    return address - int(tensor.storage_offset()) * tensor.element_size(), address, version


_weights: dict[int, Weight] = {}


def weight_of(tensor: torch.Tensor) -> Weight:
    """Give the record of a tensor."""
    weight = _weights.get(id(tensor))
    if weight is None or weight.reference() is not tensor:
        weight = _weights[id(tensor)] = Weight(tensor)
    return weight


class PackedForm:
    """Packed buffers with what one state of a weight gave; nothing writes to them while somebody holds this object."""

    __slots__ = ("addresses", "buffers", "spare")

    def __init__(self, buffers: tuple[torch.Tensor, ...], spare: list[tuple[torch.Tensor, ...]]) -> None:
        self.buffers = buffers
        self.spare = spare
        self.addresses = tuple(map(address_of, buffers))

    def __del__(self) -> None:
        # The last call that read these buffers is over: the next packing may write to them. One spare is enough.
        if not self.spare:
            self.spare.append(self.buffers)


@dataclass(frozen=True)
class Packing:
    """How something is packed: text that is equal where this is, bytes of the packed buffers and of scratch, the code.

    The code takes addresses of the sources, then of the packed buffers, then of scratch.
    """

    text: str
    packed: tuple[int, ...]
    scratch: tuple[int, ...]
    code: Pack


class PackedWeight:
    """What one packing makes of some weights; programs share it."""

    def __init__(self, packing: Packing, weights: tuple[Weight, ...]) -> None:
        self.packing = packing
        self.weights = weights
        self._seen: tuple[int, ...] = ()
        self._stamps: tuple[int, ...] = ()
        self.begun: tuple[tuple[int, ...], Future[PackedForm]] | None = None
        self._packed: PackedForm | None = None
        self._spare: list[tuple[torch.Tensor, ...]] = []
        for weight in weights:
            weight.packed.add(self)

    def look(self, tensors: Sequence[torch.Tensor]) -> PackedForm | None:
        """Give the packed form of the weights as they are now; None where they have to be packed."""
        # Looked at before they are packed: a write meanwhile is then seen by the next look.
        self._seen = tuple(weight.look(tensor) for weight, tensor in zip(self.weights, tensors, strict=True))
        return self._packed if self._seen == self._stamps else None

    def pack(self, tensors: Sequence[torch.Tensor]) -> PackedForm:
        """Pack the weights as they were last looked at."""
        return self._now(self._pack(tensors))

    def begin(self, tensors: Sequence[torch.Tensor], pool: WorkerThreads) -> None:
        """Let a thread pack the weights as they were last looked at."""
        self.begun = self._seen, pool.submit(self._pack, tensors)

    def is_begun(self) -> bool:
        """Tell whether a thread packs, or has packed, the weights as they were last looked at; it begins no more."""
        if self.begun is None:
            return False
        stamps, packed = self.begun
        if packed.cancel() or stamps != self._seen:
            self.begun = None
        return self.begun is not None

    def finish(self) -> PackedForm:
        """Wait for what is begun."""
        assert self.begun is not None
        (_, packed), self.begun = self.begun, None
        return self._now(packed.result())

    def forget(self) -> None:
        """Drop the packed form; calls that read it hold it themselves."""
        self._packed = self.begun = None
        self._spare.clear()

    def _now(self, packed: PackedForm) -> PackedForm:
        self._packed, self._stamps = packed, self._seen
        return packed

    def _pack(self, tensors: Sequence[torch.Tensor]) -> PackedForm:
        try:
            buffers = self._spare.pop()  # in one step: another thread may still pack what was written since
        except IndexError:
            buffers = tuple(map(_buffer, self.packing.packed))
        scratch = tuple(map(_buffer, self.packing.scratch))
        held = [held_memory(tensor) for tensor in tensors]
        sources = [address for address, _ in held]
        # SAFETY: the sources are held; the buffers are as large as the packing says and
        # nobody reads them: they are new, or their last reader is gone.
        self.packing.code([*sources, *map(address_of, buffers), *map(address_of, scratch)])
        return PackedForm(buffers, self._spare)


_packed_weights: weakref.WeakValueDictionary[tuple[str, tuple[int, ...]], PackedWeight] = weakref.WeakValueDictionary()


def follow(tensors: Iterable[torch.Tensor]) -> None:
    """Count from now on, as a change, whatever facts that are taken of these tensors would not show."""
    with _lock:
        for tensor in tensors:
            weight_of(tensor).follow(tensor)


def packed_weight(packing: Packing, tensors: Sequence[torch.Tensor]) -> PackedWeight:
    """Give what all programs share that pack these tensors in this way."""
    with _lock:
        weights = tuple(map(weight_of, tensors))
        key = packing.text, tuple(map(id, tensors))
        found = _packed_weights.get(key)
        # An identity may be used again once its tensor has ended; then the records are not the same.
        if found is None or any(mine is not theirs for mine, theirs in zip(found.weights, weights, strict=True)):
            found = _packed_weights[key] = PackedWeight(packing, weights)
        return found


def current_forms(packed: Sequence[PackedWeight], tensors: Sequence[Sequence[torch.Tensor]]) -> list[PackedForm]:
    """Give the packed forms of weights as they are now; all cores pack those that are not."""
    with _lock:
        pairs = dict(zip(packed, tensors, strict=True))
        forms = {one: one.look(mine) for one, mine in pairs.items()}
        stale = _largest_first(one for one, form in forms.items() if form is None)
        begun = [one for one in stale if one.is_begun()]
        rest = [one for one in stale if one.begun is None]
        if len(rest) < 2 or not _worth_threads(rest):
            made = [one.pack(pairs[one]) for one in rest]
        else:
            # Each thread packs weights of its own and takes no lock: this one, which holds it, waits for them.
            with WorkerThreads(cpu_count(), thread_name_prefix="weft packing") as pool:
                made = list(pool.map(lambda one: one.pack(pairs[one]), rest))
        found = forms | dict(zip(rest, made, strict=True)) | {one: one.finish() for one in begun}
        return [form for one in packed if (form := found[one]) is not None]


def begin_packing(packings: Sequence[tuple[Packing, Sequence[torch.Tensor]]]) -> list[PackedWeight]:
    """Let another core begin to pack weights as they are now, where that is worth it, until a call needs them.

    It is for whoever keeps what this gives until then.
    """
    with _lock:
        pairs = {packed_weight(packing, tensors): tensors for packing, tensors in packings}
        stale = _largest_first(one for one, mine in pairs.items() if one.look(mine) is None and one.begun is None)
        if _worth_threads(stale):
            pool = WorkerThreads(1, thread_name_prefix="weft packing ahead")
            for one in stale:
                one.begin(pairs[one], pool)
            pool.shutdown(wait=False)  # its thread ends when all of this is packed
        return list(pairs)


def _largest_first(packed: Iterable[PackedWeight]) -> list[PackedWeight]:
    """Sort them so that no thread is left with a large one at the end."""
    return sorted(packed, key=lambda one: -sum(one.packing.packed))


def _worth_threads(packed: Sequence[PackedWeight]) -> bool:
    return cpu_count() > 1 and sum(sum(one.packing.packed) for one in packed) >= WORTH_THREADS


def _buffer(size: int) -> torch.Tensor:
    # A page that is touched for the first time costs as much as packing what it holds: large ones are fewer.
    memory = ArenaBlock(size).memory if size >= LEAST_MAPPED else None
    return torch.empty(size, dtype=torch.uint8) if memory is None else torch.frombuffer(memory, dtype=torch.uint8)
