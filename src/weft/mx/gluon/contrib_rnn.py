"""Cells with convolutions, with projected states, and with one dropout mask a sequence: `gluon.contrib.rnn`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.mx.arrays.ndarray import NDArray
from weft.mx.gluon.parameter import shown_size
from weft.mx.gluon.rnn import (
    BidirectionalCell,
    GatedCell,
    GRUCell,
    HybridRecurrentCell,
    LSTMCell,
    ModifierCell,
    RNNCell,
    Steps,
    make_weights,
    steps_of,
)
from weft.mx.symbols.symbol import Symbol

__all__ = ["LSTMPCell", "VariationalDropoutCell"]  # and those with convolutions, which are made in a loop

LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


class _ConvolutionCell(GatedCell):
    """What cells with convolutions share: they stand in the place of products with weights."""

    dims = 0

    def __init__(
        self,
        input_shape: tuple[int, ...],
        hidden_channels: int,
        i2h_kernel: Any,
        h2h_kernel: Any,
        i2h_pad: Any = 0,
        i2h_dilate: Any = 1,
        h2h_dilate: Any = 1,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        conv_layout: str | None = None,
        activation: Any = "tanh",
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        HybridRecurrentCell.__init__(self, prefix, params)
        self._hidden_channels, self._activation = hidden_channels, activation
        self._layout = conv_layout or LAYOUTS[self.dims]
        self.channels = self._layout.find("C")
        kernel, pad, dilate, state_kernel, state_dilate = (
            self._one_each(given) for given in (i2h_kernel, i2h_pad, i2h_dilate, h2h_kernel, h2h_dilate)
        )
        if any(size % 2 == 0 for size in state_kernel):
            raise AssertionError(f"Only support odd number, get h2h_kernel= {h2h_kernel}")
        state_pad = tuple(step * (size - 1) // 2 for step, size in zip(state_dilate, state_kernel, strict=True))
        self._convolutions: dict[str, dict[str, Any]] = {
            "i2h": {"kernel": kernel, "pad": pad, "dilate": dilate},
            "h2h": {"kernel": state_kernel, "pad": state_pad, "dilate": state_dilate},
        }
        sizes = list(input_shape)
        width = sizes.pop(self.channels - 1)
        out = [size and size + 2 * p - d * (k - 1) for size, k, p, d in zip(sizes, kernel, pad, dilate, strict=True)]
        self._state_shape = self._with_channels(tuple(out), hidden_channels)
        rows = self.gates * hidden_channels
        shapes = (
            (rows, *self._with_channels(kernel, width)),
            (rows, *self._with_channels(state_kernel, hidden_channels)),
        )
        inits = (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        make_weights(self, "", shapes, inits)

    def _one_each(self, given: Any) -> tuple[int, ...]:
        if isinstance(given, int):
            return (given,) * self.dims
        if len(given) != self.dims:
            raise AssertionError(
                f"For {self.dims}D convolution, the convolution settings can only be either int or list/tuple of "
                f"length {self.dims}"
            )
        return tuple(given)

    def _with_channels(self, sizes: tuple[int, ...], width: int) -> tuple[int, ...]:
        return (width, *sizes) if self.channels == 1 else (*sizes, width)

    def _shown(self) -> str:
        shape = self._reg_params["i2h_weight"].shape or (0, 0)
        width = shape[1 if self.channels == 1 else -1]
        return f"{shown_size(width)} -> {shape[0]}, {self._activation}, {self._layout}"

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """The sizes of the states."""
        return [{"shape": (batch_size, *self._state_shape), "__layout__": self._layout} for _ in range(self.states)]

    def _sums(self, F: Any, part: str, given: Any, weight: Any, bias: Any) -> Any:
        return F.Convolution(
            given,
            weight,
            bias,
            num_filter=self.gates * self._hidden_channels,
            stride=(1,) * self.dims,
            layout=self._layout,
            name=f"t{self._counter}_{part}",
            **self._convolutions[part],
        )


if TYPE_CHECKING:  # the classes that are made in a loop

    def __getattr__(name: str) -> Any: ...


for _dims in (1, 2, 3):
    for _plain in (RNNCell, LSTMCell, GRUCell):
        _name = f"Conv{_dims}D{_plain.__name__}"
        globals()[_name] = type(
            _name,
            (_ConvolutionCell,),
            {
                "__doc__": f"{_name}: the step of {_plain.__name__}, with convolutions in the place of products.",
                "__module__": __name__,
                "_step": _plain._step,
                "dims": _dims,
                "gates": _plain.gates,
                "kind": f"conv_{_plain.kind}",
                "states": _plain.states,
            },
        )
        __all__ += [_name]  # noqa: PLE0604  # the names are made in a loop


class LSTMPCell(LSTMCell):
    """An LSTM cell whose first state, and output, is a product of what it would be with fewer rows."""

    kind = "lstmp"

    def __init__(
        self,
        hidden_size: int,
        projection_size: int,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        h2r_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        HybridRecurrentCell.__init__(self, prefix, params)
        self._hidden_size, self._projection_size = hidden_size, projection_size
        rows = self.gates * hidden_size
        inits = (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        make_weights(self, "", ((rows, input_size), (rows, projection_size)), inits)
        self.h2r_weight = self.params.get(
            "h2r_weight", shape=(projection_size, hidden_size), init=h2r_weight_initializer, allow_deferred_init=True
        )

    def _shown(self) -> str:
        return f"{super()._shown()} -> {self._projection_size}"

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """The sizes of the states."""
        widths = self._projection_size, self._hidden_size
        return [{"shape": (batch_size, width), "__layout__": "NC"} for width in widths]

    def hybrid_forward(self, F: Any, x: Any, states: Any, **weights: Any) -> Any:
        """Compute it."""
        projection = weights.pop("h2r_weight")
        hidden, (_, cell) = super().hybrid_forward(F, x, states, **weights)
        name = f"t{self._counter}_out"
        output = F.FullyConnected(hidden, projection, num_hidden=self._projection_size, no_bias=True, name=name)
        return output, [output, cell]


class VariationalDropoutCell(ModifierCell):
    """A cell of whose inputs, states and outputs the same elements are dropped in all steps of a sequence."""

    kind = "vardrop"

    def __init__(
        self, base_cell: Any, drop_inputs: float = 0.0, drop_states: float = 0.0, drop_outputs: float = 0.0
    ) -> None:
        if drop_states and isinstance(base_cell, BidirectionalCell):
            raise AssertionError(
                "BidirectionalCell doesn't support variational state dropout. Please add VariationalDropoutCell to the "
                "cells underneath instead."
            )
        super().__init__(base_cell)
        self.drop_inputs, self.drop_states, self.drop_outputs = drop_inputs, drop_states, drop_outputs
        self._masks: dict[str, Any] = {}

    def _shown(self) -> str:
        return f"p_out = {self.drop_outputs}, p_state = {self.drop_states}"

    def reset(self) -> None:
        """Begin a new sequence, with other masks."""
        super().reset()
        self._masks = {}

    def _masked(self, F: Any, part: str, given: Any, share: float) -> Any:
        if not share:
            return given
        if part not in self._masks:
            self._masks[part] = F.Dropout(F.ones_like(given), p=share)
        return given * self._masks[part]

    def hybrid_forward(self, F: Any, x: Any, states: Any) -> Any:
        """Compute it."""
        first, *others = states
        first = self._masked(F, "states", first, self.drop_states)
        output, after = self.base_cell(self._masked(F, "inputs", x, self.drop_inputs), [first, *others])
        return self._masked(F, "outputs", output, self.drop_outputs), after

    def _unrolled(self, sequence: Steps, states: Any) -> tuple[Any, Any]:
        """Run a sequence; where states are whole, the other cell runs it at once."""
        if self.drop_states:
            return super()._unrolled(sequence, states)
        F, axis, length = sequence.F, sequence.axis, len(sequence.steps)
        steps: Any = F.stack(*sequence.steps, axis=axis)
        if self.drop_inputs:
            steps = F.Dropout(steps, p=self.drop_inputs, axes=(axis,))
        found, after = sequence.through(self.base_cell, steps, states, True)
        if self.drop_outputs:
            found = F.Dropout(found, p=self.drop_outputs, axes=(axis,))
        if sequence.merge_outputs is False:
            return steps_of(F, found, length, axis), after
        assert isinstance(found, (NDArray, Symbol))
        return found, after
