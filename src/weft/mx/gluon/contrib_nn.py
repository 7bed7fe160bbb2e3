"""Blocks side by side, tables of rows, and larger images from channels: `gluon.contrib.nn`."""

from __future__ import annotations

import math
from typing import Any

from weft.mx.arrays import nd
from weft.mx.gluon.block import Block, HybridBlock
from weft.mx.gluon.nn import BatchNorm, HybridSequential, Sequential

__all__ = [
    "Concurrent",
    "HybridConcurrent",
    "Identity",
    "PixelShuffle1D",
    "PixelShuffle2D",
    "PixelShuffle3D",
    "SparseEmbedding",
    "SyncBatchNorm",
]


class Concurrent(Sequential):
    """Blocks side by side: their outputs are joined."""

    def __init__(self, axis: int = -1, **given: Any) -> None:
        super().__init__(**given)
        self.axis = axis

    def forward(self, x: Any) -> Any:
        """Run them."""
        return nd.concat(*[block(x) for block in self._children.values()], dim=self.axis)


class HybridConcurrent(HybridSequential):
    """Hybrid blocks side by side: their outputs are joined."""

    def __init__(self, axis: int = -1, **given: Any) -> None:
        super().__init__(**given)
        self.axis = axis

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Run them."""
        return F.concat(*[block(x) for block in self._children.values()], dim=self.axis)


class Identity(HybridBlock):
    """What goes in comes out."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: ARG002
        """Give it back."""
        return x


class SparseEmbedding(Block):
    """Rows of a table that is stored by rows: those that a batch looks up are all that an update changes."""

    def __init__(
        self, input_dim: int, output_dim: int, dtype: Any = "float32", weight_initializer: Any = None, **given: Any
    ) -> None:
        super().__init__(**given)
        self._given = {"input_dim": input_dim, "output_dim": output_dim, "dtype": dtype, "sparse_grad": True}
        self.weight = self.params.get(
            "weight", shape=(input_dim, output_dim), init=weight_initializer, dtype=dtype, stype="row_sparse",
            grad_stype="row_sparse",
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        """Compute it."""
        return nd.Embedding(x, self.weight.row_sparse_data(x), name="fwd", **self._given)

    def __repr__(self) -> str:
        return f"SparseEmbedding({self._given['input_dim']} -> {self._given['output_dim']}, {self._given['dtype']})"


class SyncBatchNorm(BatchNorm):
    """Batch norm: on one device, where all of a batch is, there is nothing to synchronise."""

    def __init__(self, in_channels: int = 0, num_devices: int | None = None, **given: Any) -> None:
        super().__init__(in_channels=in_channels, **given)
        del self._given["axis"]
        self._given |= {"ndev": num_devices or 1, "key": repr(self.prefix)}

    def hybrid_forward(self, F: Any, x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any) -> Any:
        """Compute it."""
        return F.contrib.SyncBatchNorm(x, gamma, beta, running_mean, running_var, name="fwd", **self._given)


class _PixelShuffle(HybridBlock):
    """What shufflings of channels into pixels share."""

    dims = 0

    def __init__(self, factor: Any) -> None:
        super().__init__()
        self._factors = (factor,) * self.dims if isinstance(factor, int) else tuple(factor)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it: an axis of each factor goes behind the axis that it enlarges."""
        count = self.dims
        x = F.reshape(x, (0, -4, -1, math.prod(self._factors), *[0] * count))
        for place, factor in enumerate(self._factors[:-1]):
            x = F.reshape(x, (*[0] * (2 + place), -4, factor, -1, *[0] * count))
        order = [0, 1]
        for place in range(count):
            order += [2 + count + place, 2 + place]
        return F.reshape(F.transpose(x, tuple(order)), (0, 0, *[-3] * count))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._factors[0] if self.dims == 1 else self._factors})"


class PixelShuffle1D(_PixelShuffle):
    """Let channels be parts of a longer axis."""

    dims = 1


class PixelShuffle2D(_PixelShuffle):
    """Let channels be pixels of larger images."""

    dims = 2


class PixelShuffle3D(_PixelShuffle):
    """Let channels be voxels of larger volumes."""

    dims = 3
