"""Bind a program to its lasting inputs: their addresses, and whether they are still current.

Lasting inputs are parameters and buffers: the same tensors at nearly every call, some of them packed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from weft.codegen.torch_functions import version_of
from weft.runtime.content import SameContent
from weft.runtime.fast_call import Fast, FastCall, FastProgram, refuse
from weft.runtime.memory_layout import EVERY_BIT, Row, object_layout, place_rows, tensor_layout, version_rows
from weft.runtime.watch import Changes
from weft.runtime.weights import Packing, address_of, current_forms, packed_weight, weight_of

PackingOf = tuple[Packing, Sequence[torch.Tensor]]


class Binding:
    """Lasting inputs in one state and the packed forms of some, with the facts by which this state is known.

    `written` are the positions of those whose elements matter; of the others only where they are. `words` is the part
    of a frame's table that lasts.
    """

    def __init__(
        self, lasting: Sequence[torch.Tensor], written: Collection[int], packings: Sequence[PackingOf], lanes: int = 1
    ) -> None:
        # The facts are taken before packing: what is written meanwhile is seen by the next call.
        self._changes = Changes.count()
        self._identities = list(map(id, lasting))
        self._facts = _Facts(lasting, written)
        rows = _rows(lasting, written)
        # Inference tensors have no version: their bytes tell.
        uncounted = [lasting[number] for number in sorted(written) if lasting[number].is_inference()]
        self.content = SameContent(uncounted, lanes) if uncounted else None
        self._records = [weight_of(tensor) for tensor in lasting]  # they tell when a tensor has ended
        self.shared = [packed_weight(packing, tensors) for packing, tensors in packings]
        self.packed = current_forms(self.shared, [tensors for _, tensors in packings])
        self.packed_addresses = [address for one in self.packed for address in one.addresses]
        compared = set(map(id, uncounted))
        weights = (weight for one in self.shared for weight in one.weights)
        self._is_doubtful = any(weight.is_doubtful and weight.identity not in compared for weight in weights)
        self.rows = rows
        self.words: tuple[int, ...] = ()
        self.fast: Fast = refuse
        self.program: FastProgram | None = None

    def make_fast(self, program: FastProgram, lasting: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Make the function that runs a program while this binding is current, where there can be one."""
        if object_layout() is not None and not self._is_doubtful:
            # A row for the count of changes comes first: an identity stands for its tensor only while it agrees.
            self._fast_call = FastCall(program, lasting, self.rows, self.words)
            self.fast, self.program = self._fast_call.call, program

    def is_current(self, lasting: Sequence[torch.Tensor]) -> bool:
        """Tell whether these are the tensors of this binding, unchanged."""
        # An identity stands for its tensor as long as none has ended since, which counts as a change.
        return (
            not self._is_doubtful
            and self._changes == Changes.count()
            and self._identities == [*map(id, lasting)]
            and self._facts.hold(lasting)
            and (self.content is None or self.content.holds())
        )


class _Facts:
    """Where tensors are and which version some of them have."""

    def __init__(self, tensors: Sequence[torch.Tensor], written: Collection[int]) -> None:
        self._addresses = list(map(address_of, tensors))
        self._written = [number for number in sorted(written) if not tensors[number].is_inference()]
        self._versions = [version_of(tensors[number]) for number in self._written]

    def hold(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Tell whether nothing has changed."""
        versions = [version_of(tensors[number]) for number in self._written]
        return self._versions == versions and self._addresses == list(map(address_of, tensors))


def _rows(lasting: Sequence[torch.Tensor], written: Collection[int]) -> list[Row]:
    """Give the words of memory that must not change while a binding is current."""
    layout, objects = tensor_layout(), object_layout()
    if layout is None or objects is None:
        return []
    rows = [Changes.row()]
    for tensor in lasting:
        # First that the object stands for the same tensor: two objects may have exchanged theirs.
        rows += [(id(tensor) + objects.tensor, EVERY_BIT, tensor._cdata), *place_rows(tensor, layout)]
    for number in written:
        if not lasting[number].is_inference():
            rows += version_rows(lasting[number], layout)
    return rows
