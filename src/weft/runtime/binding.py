"""The weights that a program was last called with -> their packed forms, and whether they are still current."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from weft.runtime.watch import Changes
from weft.runtime.weights import Packing, address_of, packed_weight, version_of

PackingOf = tuple[Packing, Sequence[torch.Tensor]]
_numbers = itertools.count(1)


class Binding:
    """Packed forms of weights in one state, with the facts by which it is known; `number` is no other binding's."""

    __slots__ = (
        "_addresses",
        "_changes",
        "_identities",
        "_is_doubtful",
        "_versions",
        "addresses",
        "number",
        "packed",
        "shared",
    )

    def __init__(self, weights: Sequence[torch.Tensor], packings: Sequence[PackingOf]) -> None:
        self.number = next(_numbers)
        # The facts are taken before packing: what is written meanwhile is seen by the next call.
        self._changes = Changes.count
        self._identities = list(map(id, weights))
        self._addresses = list(map(address_of, weights))
        self._versions = [0 if weight.is_inference() else version_of(weight) for weight in weights]
        self.shared = [packed_weight(packing, tensors) for packing, tensors in packings]
        self.packed = [one.current(tensors) for one, (_, tensors) in zip(self.shared, packings, strict=True)]
        self._is_doubtful = any(weight.is_doubtful for one in self.shared for weight in one.weights)
        self.addresses = [address for one in self.packed for address in one.addresses]

    def is_current(self, weights: Sequence[torch.Tensor]) -> bool:
        """Tell whether these are the weights of this binding, unchanged."""
        # An identity stands for its tensor as long as no weight has ended since, which counts as a change.
        return (
            not self._is_doubtful
            and self._changes == Changes.count
            and self._identities == [*map(id, weights)]
            and self._versions == [*map(version_of, weights)]
            and self._addresses == [*map(address_of, weights)]
        )
