"""Run recurrent layers over sequences, whole ones as one operator or step by step as cells: `gluon.rnn`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.mx.arrays import nd
from weft.mx.arrays.ndarray import NDArray
from weft.mx.gluon.block import Block, HybridBlock
from weft.mx.gluon.parameter import shown_size
from weft.mx.operators.layers import GATES
from weft.mx.symbols import sym
from weft.mx.symbols.symbol import Symbol

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BidirectionalCell",
    "DropoutCell",
    "GRUCell",
    "HybridRecurrentCell",
    "HybridSequentialRNNCell",
    "LSTMCell",
    "ModifierCell",
    "RNNCell",
    "RecurrentCell",
    "ResidualCell",
    "SequentialRNNCell",
    "ZoneoutCell",
]


def _functions_of(thing: Any) -> Any:
    """The functions for what is given: `nd` for arrays, `sym` for symbols."""
    while isinstance(thing, (list, tuple)):
        thing = thing[0]
    return sym if isinstance(thing, Symbol) else nd


def _begin(cell: Any, batch_size: int, func: Any, given: dict[str, Any]) -> list[Any]:
    made = []
    for place, info in enumerate(cell.state_info(batch_size)):
        facts = {**given, "shape": info["shape"]}
        if func is sym.zeros or func is sym.ones:
            facts["name"] = cell._state_name(place)
        made.append(func(**facts))
    return made


PARTS = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")


def make_weights(
    block: Any, prefix: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], inits: Sequence[Any], **given: Any
) -> None:
    """Give a block the parameters of a step whose weights, of inputs and of states, have these shapes."""
    biases = tuple(shape[:1] for shape in shapes)
    for part, shape, init in zip(PARTS, (*shapes, *biases), inits, strict=True):
        made = block.params.get(prefix + part, shape=shape, init=init, allow_deferred_init=True, **given)
        setattr(block, prefix + part, made)


@dataclass(frozen=True)
class _OfLSTM:
    """What an LSTM alone takes."""

    projection_size: int | None = None
    h2r_weight_initializer: Any = None
    state_clip_min: float | None = None
    state_clip_max: float | None = None
    state_clip_nan: bool = False


NOTHING_MORE = _OfLSTM()


class _Layer(HybridBlock):
    """What recurrent layers share: parameters of all layers and directions, and one operator that runs them."""

    mode = ""

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        layout: str = "TNC",
        dropout: float = 0,
        bidirectional: bool = False,
        input_size: int = 0,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        dtype: Any = "float32",
        use_sequence_length: bool = False,
        more: _OfLSTM = NOTHING_MORE,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self._use_sequence_length, self._more = use_sequence_length, more
        if layout not in ("TNC", "NTC"):
            raise AssertionError(f"Invalid layout {layout}; must be one of ['TNC' or 'NTC']")
        self._hidden_size, self._num_layers, self._layout = hidden_size, num_layers, layout
        self._dropout, self._dir, self._input_size, self._dtype = dropout, 1 + bidirectional, input_size, dtype
        inits = (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        width = input_size
        for layer in range(num_layers):
            for direction in "lr"[: self._dir]:
                rows = GATES[self.mode] * hidden_size
                name = f"{direction}{layer}_"
                make_weights(self, name, ((rows, width), (rows, self._output_size())), inits, dtype=dtype)
                if more.projection_size:
                    shape = (more.projection_size, hidden_size)
                    initializer = more.h2r_weight_initializer
                    made = self.params.get(name + "h2r_weight", shape=shape, init=initializer, dtype=dtype)
                    setattr(self, name + "h2r_weight", made)
            width = self._output_size() * self._dir

    def _output_size(self) -> int:
        return self._more.projection_size or self._hidden_size

    def __repr__(self) -> str:
        width = self._reg_params["l0_i2h_weight"].shape[1]  # type: ignore[index]
        text = f"{type(self).__name__}({shown_size(width)} -> {self._hidden_size}, {self._layout}"
        text += f", num_layers={self._num_layers}" if self._num_layers != 1 else ""
        text += f", dropout={self._dropout}" if self._dropout != 0 else ""
        return text + (", bidirectional" if self._dir == 2 else "") + ")"

    def _name_in_file(self, name: str) -> str:
        """Files name the weights as those of the cells that do the same."""
        place, _, part = name.partition("_")
        return f"_unfused.{place[1:]}.{place[0] + '_cell.' if self._dir == 2 else ''}{part}"

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """The sizes of the states."""
        widths = [self._output_size(), self._hidden_size][: 2 if self.mode == "lstm" else 1]
        count = self._num_layers * self._dir
        return [{"shape": (count, batch_size, width), "__layout__": "LNC", "dtype": self._dtype} for width in widths]

    def _state_name(self, place: int) -> str:
        return f"{self.prefix}h0_{place}"

    def begin_state(self, batch_size: int = 0, func: Any = nd.zeros, **given: Any) -> list[Any]:
        """States to begin with."""
        return _begin(self, batch_size, func, {"dtype": self._dtype, **given})

    def __call__(self, inputs: Any, states: Any = None, sequence_length: Any = None) -> Any:
        """Run the layer: gives outputs, and the last states where first ones are given.

        With `use_sequence_length`, outputs after the end of a sequence are 0; without, MXNet does not look at lengths.
        """
        if self._use_sequence_length and sequence_length is None:
            raise ValueError(f"{type(self).__name__}(use_sequence_length=True) is called with sequence_length")
        first = states
        if states is None:
            if isinstance(inputs, Symbol):
                first = self.begin_state(0, func=sym.zeros)
            else:
                first = self.begin_state(inputs.shape[self._layout.find("N")], ctx=inputs.context, dtype=inputs.dtype)
        first = [first] if isinstance(first, (NDArray, Symbol)) else list(first)
        if isinstance(inputs, NDArray):
            for state, info in zip(first, self.state_info(inputs.shape[self._layout.find("N")]), strict=False):
                if state.shape != info["shape"]:
                    raise ValueError(f"Invalid recurrent state shape. Expecting {info['shape']}, got {state.shape}.")
        lengths = (sequence_length,) if self._use_sequence_length else ()
        outputs, last = super().__call__(inputs, first, *lengths)
        return outputs if states is None else (outputs, last)

    def hybrid_forward(self, F: Any, x: Any, states: Any, *lengths: Any, **parameters: Any) -> Any:
        """Compute it."""
        parts = ("i2h", "h2h", "h2r") if self._more.projection_size else ("i2h", "h2h")
        if self._layout == "NTC":
            x = F.swapaxes(x, dim1=0, dim2=1)
        lines = [
            F.reshape(parameters[f"{direction}{layer}_{part}_{kind}"], shape=(-1,))
            for kind in ("weight", "bias")
            for layer in range(self._num_layers)
            for direction in "lr"[: self._dir]
            for part in parts
            if (part, kind) != ("h2r", "bias")
        ]
        found = F.RNN(
            x,
            F.op._rnn_param_concat(*lines, dim=0),
            *states,
            *lengths,
            use_sequence_length=self._use_sequence_length,
            projection_size=self._more.projection_size,
            lstm_state_clip_min=self._more.state_clip_min,
            lstm_state_clip_max=self._more.state_clip_max,
            lstm_state_clip_nan=self._more.state_clip_nan,
            state_size=self._hidden_size,
            num_layers=self._num_layers,
            bidirectional=self._dir == 2,
            p=self._dropout,
            state_outputs=True,
            mode=self.mode,
        )
        outputs = F.swapaxes(found[0], dim1=0, dim2=1) if self._layout == "NTC" else found[0]
        return outputs, [found[place] for place in range(1, len(states) + 1)]


class RNN(_Layer):
    """Layers whose state is bent sums of inputs and states."""

    def __init__(
        self, hidden_size: int, num_layers: int = 1, activation: str = "relu", *places: Any, **given: Any
    ) -> None:
        self.mode = f"rnn_{activation}"
        super().__init__(hidden_size, num_layers, *places, **given)


class LSTM(_Layer):
    """Layers with gates and a second state; their outputs may be projected, and the second states clipped."""

    mode = "lstm"

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        layout: str = "TNC",
        dropout: float = 0,
        bidirectional: bool = False,
        input_size: int = 0,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        projection_size: int | None = None,
        h2r_weight_initializer: Any = None,
        state_clip_min: float | None = None,
        state_clip_max: float | None = None,
        state_clip_nan: bool = False,
        dtype: Any = "float32",
        **given: Any,
    ) -> None:
        super().__init__(
            hidden_size,
            num_layers,
            layout,
            dropout,
            bidirectional,
            input_size,
            i2h_weight_initializer,
            h2h_weight_initializer,
            i2h_bias_initializer,
            h2h_bias_initializer,
            dtype,
            more=_OfLSTM(projection_size, h2r_weight_initializer, state_clip_min, state_clip_max, state_clip_nan),
            **given,
        )


class GRU(_Layer):
    """Layers with gates."""

    mode = "gru"


class RecurrentCell(Block):
    """One step of a recurrent layer."""

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        super().__init__(prefix, params)
        self._counter = -1
        self._begins = -1

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown()})"

    def _shown(self) -> str:
        return ""

    def _cells(self) -> list[Any]:
        return [child for child in self._children.values() if isinstance(child, RecurrentCell)]

    def reset(self) -> None:
        """Begin a new sequence."""
        self._counter = self._begins = -1
        for cell in self._cells():
            cell.reset()

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """The sizes of the states."""
        return [info for cell in self._cells() for info in cell.state_info(batch_size)]

    def _state_name(self, place: int) -> str:
        return f"{self.prefix}begin_state_{place}"

    def begin_state(self, batch_size: int = 0, func: Any = nd.zeros, **given: Any) -> list[Any]:
        """States to begin with."""
        return _begin(self, batch_size, func, given)

    def _begun(self, given: Any, first: Any) -> Any:
        if given is not None:
            return given
        if isinstance(first, NDArray):
            return self.begin_state(first.shape[0], ctx=first.context, dtype=first.dtype)
        return self.begin_state(0, func=sym.zeros)

    def __call__(self, inputs: Any, states: Any) -> Any:
        """Run one step: gives the output, and the states after it."""
        self._counter += 1
        return super().__call__(inputs, states)

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: Any = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Any = None,
    ) -> tuple[Any, Any]:
        """Run a sequence step by step: gives the outputs, joined or as a list, and the last states."""
        self.reset()
        F, axis = _functions_of(inputs), layout.find("T")
        sequence = Steps(F, steps_of(F, inputs, length, axis), layout, merge_outputs, valid_length)
        return self._unrolled(sequence, self._begun(begin_state, sequence.steps[0]))

    def _unrolled(self, sequence: Steps, states: Any) -> tuple[Any, Any]:
        """Run a sequence that begins with these states."""
        outputs, history = [], []
        for step in sequence.steps:
            output, states = self(step, states)
            outputs.append(output)
            history.append(states)
        valid_length, F = sequence.valid_length, sequence.F
        if valid_length is None:
            return sequence.joined(outputs), states
        states = [_last_valid(F, list(lines), valid_length) for lines in zip(*history, strict=True)]
        masked = F.SequenceMask(
            F.stack(*outputs, axis=sequence.axis), valid_length, use_sequence_length=True, axis=sequence.axis
        )
        if sequence.merge_outputs is not False:
            return masked, states
        return steps_of(F, masked, len(outputs), sequence.axis), states


@dataclass(frozen=True)
class Steps:
    """A sequence as its steps, and in which form outputs are wanted."""

    F: Any
    steps: list[Any]
    layout: str
    merge_outputs: bool | None
    valid_length: Any

    @property
    def axis(self) -> int:
        """Which axis counts steps."""
        return self.layout.find("T")

    def joined(self, outputs: list[Any]) -> Any:
        """Outputs in the form that is wanted: a list, if none is."""
        return self.F.stack(*outputs, axis=self.axis) if self.merge_outputs else outputs

    def through(self, cell: Any, steps: Any, states: list[Any], merge: bool | None) -> tuple[Any, Any]:
        """What another cell gives of such a sequence."""
        found: tuple[Any, Any] = cell.unroll(len(self.steps), steps, states, self.layout, merge, self.valid_length)
        return found


def steps_of(F: Any, inputs: Any, length: int, axis: int) -> list[Any]:
    """A sequence as a list of its steps."""
    if isinstance(inputs, (list, tuple)):
        if len(inputs) != length:
            raise AssertionError(f"{length} steps were asked for, and {len(inputs)} are given")
        return list(inputs)
    if isinstance(inputs, NDArray) and inputs.shape[axis] != length:
        raise AssertionError(f"{length} steps were asked for, and {inputs.shape[axis]} are given")
    found = F.split(inputs, axis=axis, num_outputs=length, squeeze_axis=1)
    return [found] if length == 1 else list(found if F is nd else [found[place] for place in range(length)])


def _last_valid(F: Any, states: list[Any], valid_length: Any) -> Any:
    return F.SequenceLast(F.stack(*states, axis=0), valid_length, use_sequence_length=True, axis=0)


class HybridRecurrentCell(RecurrentCell, HybridBlock):
    """A cell that can be hybridized."""

    def forward(self, inputs: Any, states: Any) -> Any:
        """Run one step."""
        return HybridBlock.forward(self, inputs, states)


class GatedCell(HybridRecurrentCell):
    """What cells with weights share: products of inputs and of the first state with weights of all gates."""

    gates = 1
    kind = ""
    states = 1
    channels = 1  # which axis is cut into gates
    _activation: Any = "tanh"
    _recurrent_activation: Any = "sigmoid"

    def __init__(
        self,
        hidden_size: int,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        super().__init__(prefix, params)
        self._hidden_size = hidden_size
        inits = (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        rows = self.gates * hidden_size
        make_weights(self, "", ((rows, input_size), (rows, hidden_size)), inits)

    def _alias(self) -> str:
        return self.kind

    def _shown(self) -> str:
        rows, width = self._reg_params["i2h_weight"].shape or (0, 0)
        return f"{shown_size(width)} -> {rows}"

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """The sizes of the states."""
        return [{"shape": (batch_size, self._hidden_size), "__layout__": "NC"} for _ in range(self.states)]

    def hybrid_forward(self, F: Any, x: Any, states: Any, **weights: Any) -> Any:
        """Compute it."""
        from_input, from_state = (
            self._sums(F, part, given, weights[f"{part}_weight"], weights[f"{part}_bias"])
            for part, given in (("i2h", x), ("h2h", states[0]))
        )
        return self._step(F, from_input, from_state, states)

    def _sums(self, F: Any, part: str, given: Any, weight: Any, bias: Any) -> Any:
        """What goes into all gates of one part: of the input, or of the state."""
        rows = self.gates * self._hidden_size
        return F.FullyConnected(given, weight, bias, num_hidden=rows, name=f"t{self._counter}_{part}")

    def _step(self, F: Any, from_input: Any, from_state: Any, states: Any) -> Any:
        raise NotImplementedError


class RNNCell(GatedCell):
    """A bent sum of the input and the state."""

    kind = "rnn"

    def __init__(self, hidden_size: int, activation: Any = "tanh", *places: Any, **given: Any) -> None:
        super().__init__(hidden_size, *places, **given)
        self._activation = activation

    def _shown(self) -> str:
        return f"{super()._shown()}, {self._activation}"

    def _step(self, F: Any, from_input: Any, from_state: Any, states: Any) -> Any:  # noqa: ARG002
        output = bent(F, from_input + from_state, self._activation, f"t{self._counter}_out")
        return output, [output]


def bent(F: Any, x: Any, activation: Any, name: str | None = None) -> Any:
    if isinstance(activation, str):
        return F.Activation(x, act_type=activation, name=name)
    return activation(x)


class LSTMCell(GatedCell):
    """A cell with an input, a forget and an output gate, and a second state."""

    kind, gates, states = "lstm", 4, 2

    def __init__(
        self,
        hidden_size: int,
        *places: Any,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        **given: Any,
    ) -> None:
        super().__init__(hidden_size, *places, **given)
        self._activation, self._recurrent_activation = activation, recurrent_activation

    def _step(self, F: Any, from_input: Any, from_state: Any, states: Any) -> Any:
        step = f"t{self._counter}_"
        cut = F.SliceChannel(from_input + from_state, num_outputs=4, name=step + "slice", axis=self.channels)
        entry, forget, out = (bent(F, cut[place], self._recurrent_activation) for place in (0, 1, 3))
        cell = forget * states[1] + entry * bent(F, cut[2], self._activation)
        output = out * bent(F, cell, self._activation)
        return output, [output, cell]


class GRUCell(GatedCell):
    """A cell with a reset and an update gate."""

    kind, gates = "gru", 3

    def _step(self, F: Any, from_input: Any, from_state: Any, states: Any) -> Any:
        x, h = (F.SliceChannel(sums, num_outputs=3, axis=self.channels) for sums in (from_input, from_state))
        reset, update = (bent(F, x[place] + h[place], self._recurrent_activation) for place in (0, 1))
        new = bent(F, x[2] + reset * h[2], self._activation)
        output = (1.0 - update) * new + update * states[0]
        return output, [output]


class SequentialRNNCell(RecurrentCell):
    """Cells one above the other."""

    def __repr__(self) -> str:
        lines = "\n".join(f"({place}): {cell!r}" for place, cell in self._children.items())
        return f"{type(self).__name__}(\n{lines}\n)"

    def add(self, cell: Any) -> None:
        """Put a cell on top."""
        self.register_child(cell)

    def __len__(self) -> int:
        return len(self._children)

    def __getitem__(self, place: int) -> Any:
        return list(self._children.values())[place]

    def _parts(self, states: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
        found, place = [], 0
        for cell in self._cells():
            count = len(cell.state_info())
            found.append((cell, list(states[place : place + count])))
            place += count
        return found

    def __call__(self, inputs: Any, states: Any) -> Any:
        """Run one step of all cells."""
        self._counter += 1
        after: list[Any] = []
        for cell, own in self._parts(states):
            inputs, own = cell(inputs, own)
            after += own
        return inputs, after

    def _unrolled(self, sequence: Steps, states: Any) -> tuple[Any, Any]:
        """Run a sequence through one cell after the other."""
        parts = self._parts(states)
        found: Any = sequence.steps
        after: list[Any] = []
        for place, (cell, own) in enumerate(parts):
            merge = sequence.merge_outputs if place == len(parts) - 1 else None
            found, own = sequence.through(cell, found, own, merge)
            after += own
        return found, after


class HybridSequentialRNNCell(SequentialRNNCell, HybridRecurrentCell):
    """Cells one above the other, which can be hybridized."""


class DropoutCell(HybridRecurrentCell):
    """While training, 0 in the place of a share of the inputs."""

    def __init__(self, rate: float, axes: Any = (), prefix: str | None = None, params: Any = None) -> None:
        super().__init__(prefix, params)
        self._rate, self._axes = rate, axes

    def _alias(self) -> str:
        return "dropout"

    def _shown(self) -> str:
        return f"rate={self._rate}, axes={self._axes}"

    def hybrid_forward(self, F: Any, x: Any, states: Any) -> Any:
        """Compute it."""
        return (F.Dropout(x, p=self._rate, axes=self._axes) if self._rate > 0 else x), states

    def forward(self, inputs: Any, states: Any) -> Any:
        """Run one step: it has no states, whose place a program would need."""
        return self.hybrid_forward(_functions_of(inputs), inputs, states)


class ModifierCell(HybridRecurrentCell):
    """A cell that changes what another one does."""

    kind = "modifier"

    def __init__(self, base_cell: Any) -> None:
        super().__init__(base_cell.prefix + self.kind, base_cell.params)
        self.base_cell = base_cell

    def _shown(self) -> str:
        return repr(self.base_cell)

    def begin_state(self, batch_size: int = 0, func: Any = nd.zeros, **given: Any) -> list[Any]:
        """States to begin with: those of the other cell."""
        found: list[Any] = self.base_cell.begin_state(batch_size, func, **given)
        return found

    def forward(self, inputs: Any, states: Any) -> Any:
        """Run one step."""
        return self.hybrid_forward(_functions_of(inputs), inputs, states)


class ZoneoutCell(ModifierCell):
    """While training, outputs and states that stay what they were, by chance."""

    kind = "zoneout"

    def __init__(self, base_cell: Any, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0) -> None:
        super().__init__(base_cell)
        self._shares = zoneout_outputs, zoneout_states
        self._before: Any = None

    def _shown(self) -> str:
        return f"p_out={self._shares[0]}, p_state={self._shares[1]}, {self.base_cell!r}"

    def reset(self) -> None:
        """Begin a new sequence."""
        super().reset()
        self._before = None

    def hybrid_forward(self, F: Any, x: Any, states: Any) -> Any:
        """Compute it."""
        output, after = self.base_cell(x, states)
        before = F.zeros_like(output) if self._before is None else self._before

        def chosen(share: float, new: Any, old: Any) -> Any:
            return F.where(F.Dropout(F.ones_like(new), p=share), new, old) if share else new

        output = chosen(self._shares[0], output, before)
        self._before = output
        return output, [chosen(self._shares[1], new, old) for new, old in zip(after, states, strict=True)]


class ResidualCell(ModifierCell):
    """The sum of the input and of what another cell gives."""

    kind = "residualcell"

    def hybrid_forward(self, F: Any, x: Any, states: Any) -> Any:
        """Compute it."""
        output, after = self.base_cell(x, states)
        return F.elemwise_add(output, x), after


class BidirectionalCell(HybridRecurrentCell):
    """Two cells, of which one reads the sequence from its end: it can only be unrolled."""

    def __init__(self, l_cell: Any, r_cell: Any, output_prefix: str = "bi_") -> None:
        super().__init__("", None)
        self._output_prefix = output_prefix
        self.register_child(l_cell, "l_cell")
        self.register_child(r_cell, "r_cell")

    def _shown(self) -> str:
        forward, backward = self._cells()
        return f"forward={forward!r}, backward={backward!r}"

    def __call__(self, inputs: Any, states: Any) -> Any:
        """Refuse: one step is not enough."""
        raise NotImplementedError("Bidirectional cannot be stepped. Please use unroll")

    def _unrolled(self, sequence: Steps, states: Any) -> tuple[Any, Any]:
        """Run a sequence in both directions: outputs are joined along channels."""
        F, valid_length = sequence.F, sequence.valid_length
        forward, backward = self._cells()
        count = len(forward.state_info())
        one, one_after = sequence.through(forward, sequence.steps, list(states[:count]), False)
        turned = _turned(F, sequence.steps, valid_length)
        other, other_after = sequence.through(backward, turned, list(states[count:]), False)
        pairs = zip(one, _turned(F, other, valid_length), strict=True)
        outputs = [F.concat(*pair, dim=1, name=f"{self._output_prefix}t{place}") for place, pair in enumerate(pairs)]
        return sequence.joined(outputs), [*one_after, *other_after]


def _turned(F: Any, steps: Sequence[Any], valid_length: Any) -> list[Any]:
    """The steps from the last to the first; with lengths, each sequence up to its end."""
    if valid_length is None:
        return list(reversed(steps))
    line = F.SequenceReverse(F.stack(*steps, axis=0), valid_length, use_sequence_length=True)
    return steps_of(F, line, len(steps), 0)
