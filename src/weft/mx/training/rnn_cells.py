"""Compose recurrent networks of symbols, cell by cell, as before gluon."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.mx.arrays import nd
from weft.mx.arrays.ndarray import NDArray
from weft.mx.symbols import sym
from weft.mx.symbols.symbol import FRONTEND, Symbol
from weft.mx.training import initializer
from weft.mx.training.fused_weights import GATES, inputs_of, parts_of, size_of

Weights = dict[str, NDArray]
OF_MODIFIED = (
    "After applying modifier cells (e.g. SymbolDropoutCell) the base cell cannot be called directly. "
    "Call the modifier cell instead."
)


def compose_operator(operator: str, /, *inputs: Any, **given: Any) -> Any:
    """The symbol of an operator."""
    return FRONTEND.function(operator)(*inputs, **given)


def _split(sequence: Symbol, axis: int, length: int) -> list[Symbol]:
    return list(compose_operator("split", sequence, axis=axis, num_outputs=length, squeeze_axis=1))


def _as_steps(length: int, inputs: Any, layout: str) -> list[Symbol]:
    """A sequence as a list of its steps."""
    if isinstance(inputs, Symbol):
        if len(inputs.list_outputs()) != 1:
            raise AssertionError(
                "unroll doesn't allow grouped symbol as input. Please convert to list with list(inputs) first"
            )
        return _split(inputs, layout.find("T"), length)
    if inputs is None or len(inputs) != length:
        raise AssertionError(f"{length} steps were asked for, and {inputs and len(inputs)} are given")
    return list(inputs)


def _merged(outputs: Any, layout: str) -> Symbol:
    """A sequence as one symbol."""
    if isinstance(outputs, Symbol):
        return outputs
    axis = layout.find("T")
    found: Symbol = compose_operator(
        "Concat", *(compose_operator("expand_dims", each, axis=axis) for each in outputs), dim=axis
    )
    return found


def _in_form(outputs: Any, layout: str, merge: bool | None, length: int) -> Any:
    """A sequence as one symbol, as a list, or as it is."""
    if merge is None:
        return outputs
    return _merged(outputs, layout) if merge else _as_steps(length, outputs, layout)


class RNNParams:
    """The variables of cells, by their names: cells that share it share them."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._params: dict[str, Symbol] = {}

    def get(self, name: str, **given: Any) -> Symbol:
        """The variable of a name, which is made once."""
        full = self._prefix + name
        if full not in self._params:
            self._params[full] = sym.var(full, **given)
        return self._params[full]


class BaseRNNCell:
    """One step of a recurrent network."""

    _gate_names: Sequence[str] = ()
    _num_hidden = 0

    def __init__(self, prefix: str = "", params: RNNParams | None = None) -> None:
        self._own_params = params is None
        self._prefix = prefix
        self._params = RNNParams(prefix) if params is None else params
        self._modified = False
        self._cells: list[BaseRNNCell] = []
        self.reset()

    def reset(self) -> None:
        """Begin a new sequence."""
        self._init_counter = self._counter = -1
        for cell in self._cells:
            cell.reset()

    def __call__(self, inputs: Symbol, states: Any) -> Any:
        """Run one step: gives the output, and the states after it."""
        raise NotImplementedError

    @property
    def params(self) -> RNNParams:
        """The variables, which may be given to another cell."""
        self._own_params = False
        return self._params

    @property
    def state_info(self) -> list[dict[str, Any]]:
        """The sizes of the states."""
        return [info for cell in self._cells for info in cell.state_info]

    @property
    def state_shape(self) -> list[Any]:
        """The sizes alone."""
        return [info["shape"] for info in self.state_info]

    def _next_name(self) -> str:
        self._counter += 1
        return f"{self._prefix}t{self._counter}_"

    def begin_state(self, func: Callable[..., Any] = sym.zeros, **given: Any) -> list[Any]:
        """States to begin with."""
        if self._modified:
            raise AssertionError(OF_MODIFIED)
        if self._cells:
            return [state for cell in self._cells for state in cell.begin_state(func=func, **given)]
        states = []
        for info in self.state_info:
            self._init_counter += 1
            states.append(func(name=f"{self._prefix}begin_state_{self._init_counter}", **{**given, **info}))
        return states

    def unpack_weights(self, args: Mapping[str, NDArray]) -> Weights:
        """The weights of each gate by itself."""
        found = dict(args)
        for cell in self._cells:
            found = cell.unpack_weights(found)
        rows = self._num_hidden
        for part in ("i2h", "h2h") if self._gate_names else ():
            for kind in ("weight", "bias"):
                whole = found.pop(f"{self._prefix}{part}_{kind}")
                for place, gate in enumerate(self._gate_names):
                    found[f"{self._prefix}{part}{gate}_{kind}"] = whole[place * rows : (place + 1) * rows].copy()
        return found

    def pack_weights(self, args: Mapping[str, NDArray]) -> Weights:
        """The weights of all gates in one array."""
        found = dict(args)
        for cell in self._cells:
            found = cell.pack_weights(found)
        for part in ("i2h", "h2h") if self._gate_names else ():
            for kind in ("weight", "bias"):
                each = [found.pop(f"{self._prefix}{part}{gate}_{kind}") for gate in self._gate_names]
                found[f"{self._prefix}{part}_{kind}"] = nd.concatenate(each)
        return found

    def unroll(
        self, length: int, inputs: Any, begin_state: Any = None, layout: str = "NTC", merge_outputs: bool | None = None
    ) -> tuple[Any, Any]:
        """Run a sequence step by step: gives the outputs, joined or as a list, and the last states."""
        self.reset()
        steps = _as_steps(length, inputs, layout)
        states = self.begin_state() if begin_state is None else begin_state
        outputs = []
        for step in steps:
            output, states = self(step, states)
            outputs.append(output)
        return _in_form(outputs, layout, merge_outputs, length), states


def _bent(x: Symbol, activation: Any, **given: Any) -> Any:
    return (
        compose_operator("Activation", x, act_type=activation, **given)
        if isinstance(activation, str)
        else activation(x, **given)
    )


class CellWithGates(BaseRNNCell):
    """What cells with weights share: sums of all gates, of the input and of the first state."""

    _states = 1
    _joint = ""  # between the name of a step and that of its sums

    def _weights(self, **begins: Any) -> None:
        """Make the variables, in an order that decides which comes first among the arguments."""
        for part in ("i2h", "h2h"):
            for kind in ("weight", "bias"):
                name = f"{part}_{kind}"
                setattr(self, f"_{name}", self.params.get(name, init=begins.get(name)))

    @property
    def state_info(self) -> list[dict[str, Any]]:
        """The sizes of the states."""
        return [{"shape": (0, self._num_hidden), "__layout__": "NC"} for _ in range(self._states)]

    def _sums(self, x: Symbol, state: Symbol, name: str) -> list[Any]:
        rows = self._num_hidden * len(self._gate_names)
        return [
            compose_operator(
                "FullyConnected",
                given,
                getattr(self, f"_{part}_weight"),
                getattr(self, f"_{part}_bias"),
                num_hidden=rows,
                name=f"{name}{self._joint}{part}",
            )
            for part, given in (("i2h", x), ("h2h", state))
        ]

    def _axis(self) -> dict[str, int]:
        """Where gates are cut, if not where an operator does by itself."""
        return {}


class SimpleStep(CellWithGates):
    """A bent sum of the input and the state."""

    _gate_names = ("",)
    _activation: Any = "tanh"

    def __call__(self, inputs: Symbol, states: Any) -> Any:
        """Run one step."""
        name = self._next_name()
        from_input, from_state = self._sums(inputs, states[0], name)
        output = _bent(from_input + from_state, self._activation, name=f"{name}out")
        return output, [output]


class LongStep(CellWithGates):
    """Input, forget and output gates, and a second state."""

    _gate_names = ("_i", "_f", "_c", "_o")
    _states = 2
    _activation: Any = "tanh"

    def __call__(self, inputs: Symbol, states: Any) -> Any:
        """Run one step."""
        name = self._next_name()
        from_input, from_state = self._sums(inputs, states[0], name)
        cut = compose_operator(
            "SliceChannel", from_input + from_state, num_outputs=4, name=f"{name}slice", **self._axis()
        )
        entry, forget = (_bent(cut[place], "sigmoid", name=name + letter) for place, letter in ((0, "i"), (1, "f")))
        new = _bent(cut[2], self._activation, name=f"{name}c")
        out = _bent(cut[3], "sigmoid", name=f"{name}o")
        cell = compose_operator("_plus", forget * states[1], entry * new, name=f"{name}state")
        output = compose_operator("_mul", out, _bent(cell, self._activation), name=f"{name}out")
        return output, [output, cell]


class GatedStep(CellWithGates):
    """Reset and update gates."""

    _gate_names = ("_r", "_z", "_o")
    _activation: Any = "tanh"
    _joint = "_"

    def __call__(self, inputs: Symbol, states: Any) -> Any:
        """Run one step."""
        name = self._next_name()
        sums = zip(("i2h", "h2h"), self._sums(inputs, states[0], name), strict=True)
        x, h = (
            compose_operator("SliceChannel", each, num_outputs=3, name=f"{name}_{part}_slice") for part, each in sums
        )
        reset = _bent(x[0] + h[0], "sigmoid", name=f"{name}_r_act")
        update = _bent(x[1] + h[1], "sigmoid", name=f"{name}_z_act")
        new = _bent(x[2] + reset * h[2], self._activation, name=f"{name}_h_act")
        output = compose_operator("_plus", (1.0 - update) * new, update * states[0], name=f"{name}out")
        return output, [output]


class SymbolRNNCell(SimpleStep):
    """A bent sum of the input and the state."""

    def __init__(self, num_hidden: int, activation: Any = "tanh", prefix: str = "rnn_", params: Any = None) -> None:
        super().__init__(prefix, params)
        self._num_hidden, self._activation = num_hidden, activation
        self._weights()


class SymbolLSTMCell(LongStep):
    """A cell with gates and a second state."""

    def __init__(self, num_hidden: int, prefix: str = "lstm_", params: Any = None, forget_bias: float = 1.0) -> None:
        super().__init__(prefix, params)
        self._num_hidden = num_hidden
        self._weights(i2h_bias=initializer.LSTMBias(forget_bias=forget_bias))


class SymbolGRUCell(GatedStep):
    """A cell with gates."""

    def __init__(self, num_hidden: int, prefix: str = "gru_", params: Any = None) -> None:
        super().__init__(prefix, params)
        self._num_hidden = num_hidden
        self._weights()


class FusedRNNCell(BaseRNNCell):
    """Layers that one operator runs: they can only be unrolled."""

    def __init__(
        self,
        num_hidden: int,
        num_layers: int = 1,
        mode: str = "lstm",
        bidirectional: bool = False,
        dropout: float = 0.0,
        get_next_state: bool = False,
        forget_bias: float = 1.0,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        super().__init__(f"{mode}_" if prefix is None else prefix, params)
        self._num_hidden, self._num_layers, self._mode = num_hidden, num_layers, mode
        self._directions, self._dropout, self._get_next_state = "lr"[: 1 + bidirectional], dropout, get_next_state
        begins = initializer.FusedRNN(None, num_hidden, num_layers, mode, bidirectional, forget_bias)
        self._parameter = self.params.get("parameters", init=begins)

    @property
    def state_info(self) -> list[dict[str, Any]]:
        """The sizes of the states."""
        shape = (len(self._directions) * self._num_layers, 0, self._num_hidden)
        return [{"shape": shape, "__layout__": "LNC"} for _ in range(1 + (self._mode == "lstm"))]

    def _form(self) -> tuple[str, int, int]:
        return self._mode, self._num_layers, self._num_hidden

    def unpack_weights(self, args: Mapping[str, NDArray]) -> Weights:
        """The weights of each gate by itself."""
        found = dict(args)
        array = found.pop(self._parameter.name)  # type: ignore[arg-type]  # a variable has a name
        inputs = inputs_of(array.size, *self._form(), self._directions)
        parts = parts_of(array, *self._form(), inputs, self._directions)
        return found | {self._prefix + name: part.copy() for name, part in parts.items()}

    def pack_weights(self, args: Mapping[str, NDArray]) -> Weights:
        """The weights of all layers in one array."""
        found = dict(args)
        first = found[f"{self._prefix}l0_i2h{GATES[self._mode][0]}_weight"]
        inputs = first.shape[1]
        array = nd.zeros((size_of(*self._form(), inputs, self._directions),), ctx=first.context, dtype=first.dtype)
        for name, part in parts_of(array, *self._form(), inputs, self._directions).items():
            part[:] = found.pop(self._prefix + name)
        return found | {str(self._parameter.name): array}

    def __call__(self, inputs: Symbol, states: Any) -> Any:
        """Refuse: the operator runs all steps."""
        raise NotImplementedError("FusedRNNCell cannot be stepped. Please use unroll")

    def unroll(
        self, length: int, inputs: Any, begin_state: Any = None, layout: str = "NTC", merge_outputs: bool | None = None
    ) -> tuple[Any, Any]:
        """Run a sequence: gives the outputs, joined or as a list, and the last states, if they are asked for."""
        self.reset()
        if layout not in ("NTC", "TNC"):
            raise AssertionError(f"Unsupported layout {layout}")
        line = _merged(inputs, layout)
        if layout == "NTC":
            warnings.warn("NTC layout detected. Consider using TNC for FusedRNNCell for faster speed", stacklevel=2)
            line = compose_operator("swapaxes", line, dim1=0, dim2=1)
        states = self.begin_state() if begin_state is None else begin_state
        found = compose_operator(
            "RNN",
            line,
            self._parameter,
            *states,
            state_size=self._num_hidden,
            num_layers=self._num_layers,
            bidirectional=len(self._directions) == 2,
            p=self._dropout,
            state_outputs=self._get_next_state,
            mode=self._mode,
            name=f"{self._prefix}rnn",
        )
        after = [found[place] for place in range(1, 1 + len(states))] if self._get_next_state else []
        for state in after:
            state._set_attr(__layout__="LNC")
        outputs = found[0] if self._get_next_state else found
        if layout == "NTC":
            outputs = compose_operator("swapaxes", outputs, dim1=0, dim2=1)
        return _in_form(outputs, layout, merge_outputs, length), after

    def unfuse(self) -> SymbolSequentialRNNCell:
        """The same as cells, one for each layer and direction."""
        kinds: dict[str, Callable[[str], BaseRNNCell]] = {
            "rnn_relu": lambda prefix: SymbolRNNCell(self._num_hidden, "relu", prefix),
            "rnn_tanh": lambda prefix: SymbolRNNCell(self._num_hidden, "tanh", prefix),
            "lstm": lambda prefix: SymbolLSTMCell(self._num_hidden, prefix),
            "gru": lambda prefix: SymbolGRUCell(self._num_hidden, prefix),
        }
        made, kind = SymbolSequentialRNNCell(), kinds[self._mode]
        for layer in range(self._num_layers):
            cells = [kind(f"{self._prefix}{direction}{layer}_") for direction in self._directions]
            prefix = f"{self._prefix}bi_l{layer}_"
            made.add(cells[0] if len(cells) == 1 else SymbolBidirectionalCell(cells[0], cells[1], output_prefix=prefix))
            if self._dropout > 0 and layer != self._num_layers - 1:
                made.add(SymbolDropoutCell(self._dropout, prefix=f"{self._prefix}_dropout{layer}_"))
        return made


class _OfCells(BaseRNNCell):
    """What cells made of cells share: variables are those of the parts, or given for all of them."""

    def __init__(self, params: Any) -> None:
        super().__init__("", params)
        self._gives_params = params is not None

    def _take(self, cell: BaseRNNCell) -> None:
        if self._gives_params:
            if not cell._own_params:
                raise AssertionError(
                    f"Either specify params for {type(self).__name__.removeprefix('Symbol')} or child cells, not both."
                )
            cell.params._params.update(self.params._params)
        self.params._params.update(cell.params._params)
        self._cells.append(cell)


class SymbolSequentialRNNCell(_OfCells):
    """Cells that run one after the other."""

    def __init__(self, params: Any = None) -> None:
        super().__init__(params)

    def add(self, cell: BaseRNNCell) -> None:
        """Put a cell on top."""
        self._take(cell)

    def __call__(self, inputs: Symbol, states: Any) -> Any:
        """Run one step."""
        self._counter += 1
        after, place = [], 0
        for cell in self._cells:
            count = len(cell.state_info)
            inputs, new = cell(inputs, states[place : place + count])
            place += count
            after += new
        return inputs, after

    def unroll(
        self, length: int, inputs: Any, begin_state: Any = None, layout: str = "NTC", merge_outputs: bool | None = None
    ) -> tuple[Any, Any]:
        """Run a sequence, cell by cell."""
        self.reset()
        states = self.begin_state() if begin_state is None else begin_state
        after: list[Any] = []
        place = 0
        for number, cell in enumerate(self._cells):
            count = len(cell.state_info)
            merge = merge_outputs if number == len(self._cells) - 1 else None
            inputs, new = cell.unroll(length, inputs, states[place : place + count], layout, merge)
            place += count
            after += new
        return inputs, after


class SymbolDropoutCell(BaseRNNCell):
    """Outputs of which some are 0, by chance, while training."""

    def __init__(self, dropout: float, prefix: str = "dropout_", params: Any = None) -> None:
        super().__init__(prefix, params)
        if not isinstance(dropout, (int, float)):
            raise AssertionError("dropout probability must be a number")  # noqa: TRY004  # MXNet's
        self.dropout = dropout

    def __call__(self, inputs: Symbol, states: Any) -> Any:
        """Run one step."""
        return (compose_operator("Dropout", inputs, p=self.dropout) if self.dropout > 0 else inputs), states

    def unroll(
        self, length: int, inputs: Any, begin_state: Any = None, layout: str = "NTC", merge_outputs: bool | None = None
    ) -> tuple[Any, Any]:
        """Run a sequence: one operator for all of it, where it is one symbol."""
        self.reset()
        given = _in_form(inputs, layout, merge_outputs, length)
        if isinstance(given, Symbol):
            output, states = self(given, [])
            return output, states
        return super().unroll(length, given, begin_state, layout, merge_outputs)


class SymbolModifierCell(BaseRNNCell):
    """A cell around another one, whose variables and states it has."""

    def __init__(self, base_cell: BaseRNNCell) -> None:
        super().__init__()
        base_cell._modified = True
        self.base_cell = base_cell

    @property
    def params(self) -> RNNParams:
        """The variables of the other cell."""
        self._own_params = False
        return self.base_cell.params

    @property
    def state_info(self) -> list[dict[str, Any]]:
        """The sizes of the other cell's states."""
        return self.base_cell.state_info

    def begin_state(self, func: Callable[..., Any] = sym.zeros, **given: Any) -> list[Any]:
        """States to begin with: those of the other cell."""
        if self._modified:
            raise AssertionError(OF_MODIFIED)
        func = given.pop("init_sym", func)
        self.base_cell._modified = False
        try:
            return self.base_cell.begin_state(func=func, **given)
        finally:
            self.base_cell._modified = True

    def unpack_weights(self, args: Mapping[str, NDArray]) -> Weights:
        """The weights of each gate of the other cell by itself."""
        return self.base_cell.unpack_weights(args)

    def pack_weights(self, args: Mapping[str, NDArray]) -> Weights:
        """The weights of all gates of the other cell in one array."""
        return self.base_cell.pack_weights(args)


class SymbolZoneoutCell(SymbolModifierCell):
    """While training, outputs and states that stay what they were, by chance."""

    def __init__(self, base_cell: BaseRNNCell, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0) -> None:
        for kind in (FusedRNNCell, SymbolBidirectionalCell):
            if isinstance(base_cell, kind):
                name = kind.__name__.removeprefix("Symbol")
                raise AssertionError(f"{name} doesn't support zoneout: it has no single steps")  # noqa: TRY004  # MXNet's
        super().__init__(base_cell)
        self.zoneout_outputs, self.zoneout_states = zoneout_outputs, zoneout_states
        self.prev_output: Any = None

    def reset(self) -> None:
        """Begin a new sequence."""
        super().reset()
        self.prev_output = None

    def __call__(self, inputs: Symbol, states: Any) -> Any:
        """Run one step."""
        output, after = self.base_cell(inputs, states)

        def chosen(share: float, new: Any, old: Any) -> Any:
            mask = compose_operator("Dropout", compose_operator("ones_like", new), p=share)
            return compose_operator("where", mask, new, old)

        before = sym.zeros((0, 0)) if self.prev_output is None else self.prev_output
        output = chosen(self.zoneout_outputs, output, before) if self.zoneout_outputs else output
        self.prev_output = output
        if self.zoneout_states:
            after = [chosen(self.zoneout_states, new, old) for new, old in zip(after, states, strict=True)]
        return output, after


def _with_input(output: Symbol, given: Symbol) -> Any:
    return compose_operator("elemwise_add", output, given, name=f"{output.name}_plus_residual")


class SymbolResidualCell(SymbolModifierCell):
    """The sum of the input and of what another cell gives."""

    def __call__(self, inputs: Symbol, states: Any) -> Any:
        """Run one step."""
        output, after = self.base_cell(inputs, states)
        return _with_input(output, inputs), after

    def unroll(
        self, length: int, inputs: Any, begin_state: Any = None, layout: str = "NTC", merge_outputs: bool | None = None
    ) -> tuple[Any, Any]:
        """Run a sequence."""
        self.reset()
        self.base_cell._modified = False
        try:
            outputs, states = self.base_cell.unroll(length, inputs, begin_state, layout, merge_outputs)
        finally:
            self.base_cell._modified = True
        merge = isinstance(outputs, Symbol) if merge_outputs is None else merge_outputs
        given = _in_form(inputs, layout, merge, length)
        if merge:
            return _with_input(outputs, given), states
        return [_with_input(output, each) for output, each in zip(outputs, given, strict=True)], states


class SymbolBidirectionalCell(_OfCells):
    """Two cells, of which one reads the sequence from its end: it can only be unrolled."""

    def __init__(
        self, l_cell: BaseRNNCell, r_cell: BaseRNNCell, params: Any = None, output_prefix: str = "bi_"
    ) -> None:
        super().__init__(params)
        self._output_prefix = output_prefix
        self._take(l_cell)
        self._take(r_cell)

    def __call__(self, inputs: Symbol, states: Any) -> Any:
        """Refuse: one step is not enough."""
        raise NotImplementedError("Bidirectional cannot be stepped. Please use unroll")

    def unroll(
        self, length: int, inputs: Any, begin_state: Any = None, layout: str = "NTC", merge_outputs: bool | None = None
    ) -> tuple[Any, Any]:
        """Run a sequence in both directions: outputs are joined along channels."""
        self.reset()
        steps = _as_steps(length, inputs, layout)
        states = self.begin_state() if begin_state is None else begin_state
        forward, backward = self._cells
        count = len(forward.state_info)
        one, one_after = forward.unroll(length, steps, states[:count], layout, merge_outputs)
        other, other_after = backward.unroll(length, steps[::-1], states[count:], layout, merge_outputs)
        both = isinstance(one, Symbol) and isinstance(other, Symbol)
        if both if merge_outputs is None else merge_outputs:
            turned = compose_operator("reverse", other, axis=layout.find("T"))
            return compose_operator("Concat", one, turned, dim=2, name=f"{self._output_prefix}out"), [
                one_after,
                other_after,
            ]
        pairs = zip(_as_steps(length, one, layout), _as_steps(length, other, layout)[::-1], strict=True)
        outputs = [
            compose_operator("Concat", *pair, dim=1, name=f"{self._output_prefix}t{place}")
            for place, pair in enumerate(pairs)
        ]
        return outputs, [one_after, other_after]
