"""Compose recurrent networks of symbols, as before gluon, and keep their weights in files: `mx.rnn`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from weft.mx.symbols import sym
from weft.mx.symbols.symbol import Symbol
from weft.mx.training.rnn_cells import (
    BaseRNNCell,
    CellWithGates,
    FusedRNNCell,
    GatedStep,
    LongStep,
    RNNParams,
    SimpleStep,
    Weights,
    compose_operator,
)
from weft.mx.training.rnn_cells import SymbolBidirectionalCell as BidirectionalCell
from weft.mx.training.rnn_cells import SymbolDropoutCell as DropoutCell
from weft.mx.training.rnn_cells import SymbolGRUCell as GRUCell
from weft.mx.training.rnn_cells import SymbolLSTMCell as LSTMCell
from weft.mx.training.rnn_cells import SymbolModifierCell as ModifierCell
from weft.mx.training.rnn_cells import SymbolResidualCell as ResidualCell
from weft.mx.training.rnn_cells import SymbolRNNCell as RNNCell
from weft.mx.training.rnn_cells import SymbolSequentialRNNCell as SequentialRNNCell
from weft.mx.training.rnn_cells import SymbolZoneoutCell as ZoneoutCell
from weft.mx.training.saved_models import load_checkpoint, save_checkpoint
from weft.mx.training.sentences import BucketSentenceIter, encode_sentences

__all__ = [
    "BaseRNNCell",
    "BidirectionalCell",
    "BucketSentenceIter",
    "ConvGRUCell",
    "ConvLSTMCell",
    "ConvRNNCell",
    "DropoutCell",
    "FusedRNNCell",
    "GRUCell",
    "LSTMCell",
    "ModifierCell",
    "RNNCell",
    "RNNParams",
    "ResidualCell",
    "SequentialRNNCell",
    "ZoneoutCell",
    "do_rnn_checkpoint",
    "encode_sentences",
    "load_rnn_checkpoint",
    "save_rnn_checkpoint",
]

LEAKY = functools.partial(sym.LeakyReLU, act_type="leaky", slope=0.2)


class _OfImages(CellWithGates):
    """What cells share whose states are images: convolutions give the sums of all gates."""

    def __init__(
        self,
        input_shape: Any,
        num_hidden: int,
        h2h_kernel: tuple[int, int] = (3, 3),
        h2h_dilate: tuple[int, int] = (1, 1),
        i2h_kernel: tuple[int, int] = (3, 3),
        i2h_stride: tuple[int, int] = (1, 1),
        i2h_pad: tuple[int, int] = (1, 1),
        i2h_dilate: tuple[int, int] = (1, 1),
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        activation: Any = LEAKY,
        prefix: str | None = None,
        params: Any = None,
        conv_layout: str = "NCHW",
    ) -> None:
        super().__init__(f"{type(self).__name__.removesuffix('Cell')}_" if prefix is None else prefix, params)
        if not all(size % 2 for size in h2h_kernel):
            raise AssertionError(f"Only support odd number, get h2h_kernel= {h2h_kernel}")
        pad = tuple(step * (size - 1) // 2 for step, size in zip(h2h_dilate, h2h_kernel, strict=True))
        own: dict[str, Any] = {"kernel": i2h_kernel, "stride": i2h_stride, "pad": i2h_pad, "dilate": i2h_dilate}
        self._options: dict[str, dict[str, Any]] = {
            "i2h": own,
            "h2h": {"kernel": h2h_kernel, "dilate": h2h_dilate, "pad": pad, "stride": (1, 1)},
        }
        self._num_hidden, self._layout, self._activation = num_hidden, conv_layout, activation
        probe = compose_operator("Convolution", sym.var("data"), num_filter=num_hidden, layout=conv_layout, **own)
        self._state_sizes = (0, *probe.infer_shape(data=input_shape)[1][0][1:])
        self._weights(
            i2h_weight=i2h_weight_initializer,
            h2h_weight=h2h_weight_initializer,
            i2h_bias=i2h_bias_initializer,
            h2h_bias=h2h_bias_initializer,
        )

    @property
    def state_info(self) -> list[dict[str, Any]]:
        """The sizes of the states."""
        return [{"shape": self._state_sizes, "__layout__": self._layout} for _ in range(self._states)]

    def _sums(self, x: Symbol, state: Symbol, name: str) -> list[Any]:
        rows = self._num_hidden * len(self._gate_names)
        return [
            compose_operator(
                "Convolution",
                given,
                getattr(self, f"_{part}_weight"),
                getattr(self, f"_{part}_bias"),
                num_filter=rows,
                layout=self._layout,
                name=name + part,
                **self._options[part],
            )
            for part, given in (("i2h", x), ("h2h", state))
        ]

    def _axis(self) -> dict[str, int]:
        return {"axis": self._layout.find("C")}


class ConvRNNCell(_OfImages, SimpleStep):
    """A bent sum of convolutions of the input and of the state."""


class ConvLSTMCell(_OfImages, LongStep):
    """A cell with gates, and a second state, whose sums are convolutions."""


class ConvGRUCell(_OfImages, GatedStep):
    """A cell with gates whose sums are convolutions."""


def _each_cell(cells: Any) -> list[BaseRNNCell]:
    return [cells] if isinstance(cells, BaseRNNCell) else list(cells)


def save_rnn_checkpoint(cells: Any, prefix: str, epoch: int, symbol: Any, arg_params: Any, aux_params: Any) -> None:
    """Write a checkpoint with the weights of each gate by itself."""
    for cell in _each_cell(cells):
        arg_params = cell.unpack_weights(arg_params)
    save_checkpoint(prefix, epoch, symbol, arg_params, aux_params)


def load_rnn_checkpoint(cells: Any, prefix: str, epoch: int) -> tuple[Symbol, Weights, Weights]:
    """Read a checkpoint that has the weights of each gate by itself."""
    symbol, arg_params, aux_params = load_checkpoint(prefix, epoch)
    for cell in _each_cell(cells):
        arg_params = cell.pack_weights(arg_params)
    return symbol, arg_params, aux_params


def do_rnn_checkpoint(cells: Any, prefix: str, period: int = 1) -> Callable[..., None]:
    """Write such a checkpoint every so many epochs."""

    def callback(epoch: int, symbol: Any = None, arg_params: Any = None, aux_params: Any = None) -> None:
        if (epoch + 1) % max(period, 1) == 0:
            save_rnn_checkpoint(cells, prefix, epoch + 1, symbol, arg_params, aux_params)

    return callback
