"""Lift layers of an LSTM, a GRU or a plain RNN, with their gradients, to one cell a step.

Gates stand in PyTorch's order: input, forget, cell, output. What is the same for all steps is one product.

PyTorch takes such a layer apart into fifteen operators a step, whoever records it. `weft.recurrent_layer` and its
backward are recorded in their place: they compute with those operators, in that order, so that results have their
bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import ceil, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from weft.ir.extents import Extent
from weft.ir.recurrent import GATES, LEAST_STATE
from weft.trace.lift.arguments import Arguments, Results, Rules
from weft.trace.lift.expression import Expression, several

FORWARD = "weft.recurrent_layer.default"
BACKWARD = "weft.recurrent_layer_backward.default"
OPERANDS = "Tensor input, Tensor first, Tensor weight, Tensor inner, Tensor? bias, Tensor? inner_bias"
LIBRARY = torch.library.Library("weft", "FRAGMENT")
LIBRARY.define(f"recurrent_layer({OPERANDS}, str cell, bool reverse) -> (Tensor, Tensor, Tensor)")
LIBRARY.define(
    f"recurrent_layer_backward(Tensor? gradient, Tensor? last_gradient, {OPERANDS}, Tensor output, Tensor gates, "
    "str cell, bool reverse) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)

CellFunction = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
"""From what a step's input and the state before it give to the gates, and that state: the next state, and the gates."""


def _gru(given: Tensor, inner: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    from_input, from_state = given.unsafe_chunk(3, 1), inner.unsafe_chunk(3, 1)
    kept = from_state[2].clone()
    # In place, as PyTorch's own: where a number lies in memory decides which of two ways its sigmoid is computed.
    reset = from_state[0].add_(from_input[0]).sigmoid_()
    update = from_state[1].add_(from_input[1]).sigmoid_()
    new = from_input[2].add(from_state[2].mul_(reset)).tanh_()
    return (hidden - new).mul_(update).add_(new), reset, update, new, kept


def _rnn_tanh(given: Tensor, inner: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    del hidden
    return (torch.tanh(inner.add_(given)),)


def _rnn_relu(given: Tensor, inner: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    del hidden
    return (torch.relu(inner.add_(given)),)


CELL_OF: dict[str, CellFunction] = {"gru": _gru, "rnn_tanh": _rnn_tanh, "rnn_relu": _rnn_relu}
KEPT = {"gru": 4, "rnn_tanh": 0, "rnn_relu": 0}
"""The same of what a step keeps for its gradient, beside the state."""


class Operands(NamedTuple):
    """What the operators take, in order."""

    input: Tensor
    first: Tensor
    weight: Tensor
    inner: Tensor
    bias: Tensor | None
    inner_bias: Tensor | None
    cell: str
    reverse: bool

    @property
    def order(self) -> range:
        """The steps as they follow each other."""
        steps = range(len(self.input))
        return steps[::-1] if self.reverse else steps


def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Give the states of all steps, the one that came last, and what the gradient needs beside them."""
    layer = Operands(*arguments)
    given = functional.linear(layer.input, layer.weight, layer.bias).unbind(0)
    hidden, outputs, kept = layer.first, list(given), list(given)
    for step in layer.order:
        inner = functional.linear(hidden, layer.inner, layer.inner_bias)
        hidden, *gates = CELL_OF[layer.cell](given[step], inner, hidden)
        outputs[step] = hidden
        kept[step] = torch.cat(gates, 1) if gates else hidden.new_empty((hidden.shape[0], 0))
    return torch.stack(outputs), hidden, torch.stack(kept)


def _look(*arguments: Any) -> tuple[Tensor, ...]:
    """Results without elements."""
    layer = Operands(*arguments)
    steps, batch, size = layer.input.shape[0], *layer.first.shape
    shapes = ((steps, batch, size), (batch, size), (steps, batch, KEPT[layer.cell] * size))
    return tuple(map(layer.input.new_empty, shapes))


Gradient = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, list[Tensor]]]
"""From the gradient of a state, the state, the one before, and what was kept: the gradients of what the input and the
state before gave to the gates, and that of the state before, as far as it does not come through the gates."""


def _gru_gradient(gradient: Tensor, after: Tensor, before: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    del after
    aten = torch.ops.aten
    reset, update, new, inner = kept.chunk(4, 1)
    straight = gradient * update
    to_new = aten.tanh_backward(gradient - straight, new)
    to_update = aten.sigmoid_backward(gradient * (before - new), update)
    to_reset = aten.sigmoid_backward(to_new * inner, reset)
    return torch.cat((to_reset, to_update, to_new), 1), torch.cat((to_reset, to_update, to_new * reset), 1), [straight]


def _tanh_gradient(
    gradient: Tensor, after: Tensor, before: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    del before, kept
    found = torch.ops.aten.tanh_backward(gradient, after)
    return found, found, []


def _relu_gradient(
    gradient: Tensor, after: Tensor, before: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    del before, kept
    found = torch.ops.aten.threshold_backward(gradient, after, 0)
    return found, found, []


GRADIENTS: dict[str, Gradient] = {"gru": _gru_gradient, "rnn_tanh": _tanh_gradient, "rnn_relu": _relu_gradient}


def backward(gradient: Tensor | None, last_gradient: Tensor | None, *arguments: Any) -> tuple[Tensor, ...]:
    """Give the gradients of the first six operands; sums of several are added up in autograd's order."""
    *operands, output, gates, cell, reverse = arguments
    layer = Operands._make((*operands, cell, reverse))
    parts = [] if last_gradient is None else [last_gradient]
    given = list(output)
    to_inner: list[Tensor] = []
    to_bias: list[Tensor] = []
    for place, step in reversed([*enumerate(layer.order)]):
        before = output[layer.order[place - 1]] if place else layer.first
        parts = parts if gradient is None else [gradient[step], *parts]
        given[step], inside, straight = GRADIENTS[cell](_sum(parts), output[step], before, gates[step])
        to_inner.append(inside.t().mm(before))
        to_bias.append(inside.sum(0))
        parts = [*straight, inside.mm(layer.inner)]
    flat, rows = torch.stack(given).flatten(0, 1), layer.input.flatten(0, 1)
    to_input = flat.mm(layer.weight).reshape(layer.input.shape)
    return to_input, _sum(parts), flat.t().mm(rows), _sum(to_inner), flat.sum(0), _sum(to_bias)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def _look_backward(_gradient: Tensor | None, _last_gradient: Tensor | None, *arguments: Any) -> tuple[Tensor, ...]:
    """Results without elements."""
    *operands, _output, _gates, cell, reverse = arguments
    layer = Operands._make((*operands, cell, reverse))
    rows = layer.weight.shape[:1]
    shapes = (layer.input.shape, layer.first.shape, layer.weight.shape, layer.inner.shape, rows, rows)
    return tuple(map(layer.input.new_empty, shapes))


LIBRARY.impl("recurrent_layer", forward, "CPU")
LIBRARY.impl("recurrent_layer", _look, "Meta")
LIBRARY.impl("recurrent_layer_backward", backward, "CPU")
LIBRARY.impl("recurrent_layer_backward", _look_backward, "Meta")


LSTM = 2
LSTM_GATES = GATES["lstm"]
# A stretch of steps has so many rows of its product, which loses next to nothing by being no larger.
LEAST_ROWS = 8


@dataclass(frozen=True)
class Layer:
    """The operands of one layer: inputs [steps, batch, features], weights, biases if any, the first state."""

    inputs: Expression
    weight: Expression
    inner: Expression
    bias: Expression | None
    hidden: Expression
    steps: range


@dataclass(frozen=True)
class LstmLayer(Layer):
    """A layer with cells: the first state of these too."""

    cell: Expression


@dataclass(frozen=True)
class Gates:
    """The gates of one step."""

    input: Expression
    forget: Expression
    cell: Expression
    output: Expression


@dataclass(frozen=True)
class Cell:
    """One step: its gates, the cell state before and after it, and the hidden state that it gives."""

    step: int
    gates: Gates
    before: Expression
    after: Expression
    hidden: Expression


def lstm_layer_of(arguments: Arguments, weights: tuple[str, ...], cell: str) -> LstmLayer:
    """Take the operands of one layer; with `reverse` it reads the steps from the last one on."""
    # Each call is one layer in one direction with steps in front, whatever the other arguments tell of the whole.
    covered = arguments.literal("mode") == LSTM and arguments.literal("batch_sizes") == ()
    arguments.require(covered, "of another kind of layer")
    names = ("input", *weights[:2], "hx_", cell)
    inputs, weight, inner, hidden, state = (entry.wide() for entry in arguments.tensors(*names))
    arguments.require(inputs.kind.size > 0, "of nothing")
    bias = None
    if arguments.literal("has_biases"):
        first, second = (entry.wide() for entry in arguments.tensors(*weights[2:]))
        bias = first + second
    steps = range(inputs.shape[0])
    shape = (inputs.shape[1], inner.shape[1])
    order = steps[::-1] if arguments.literal("reverse") else steps
    return LstmLayer(inputs, weight, inner, bias, hidden.reshape(shape), order, state.reshape(shape))


def rows(x: Expression) -> Expression:
    """Steps and batch as one dimension."""
    return x.reshape((x.shape[0] * x.shape[1], x.shape[2]))


def from_inputs(layer: Layer) -> Expression:
    """What the inputs of all steps add to the gates: [steps, batch, 4 * hidden]."""
    found = rows(layer.inputs).matmul(layer.weight.transpose(0, 1))
    found = found if layer.bias is None else found + layer.bias
    return found.reshape((*layer.inputs.shape[:2], layer.weight.shape[0]))


def in_stretches(layer: Layer) -> dict[int, Expression]:
    """What each step's input adds to its gates, from a product for every stretch of steps.

    Only the steps of a stretch wait for each other there, so another lane may begin with a layer while the one below is
    not at its end.
    """
    long = ceil(LEAST_ROWS / layer.inputs.shape[1])
    found: dict[int, Expression] = {}
    for begin in range(0, len(layer.steps), long):
        end = min(begin + long, len(layer.steps))
        given = from_inputs(replace(layer, inputs=layer.inputs.part(0, begin, end)))
        found |= {step: given.pick(0, step - begin) for step in range(begin, end)}
    return found


def gates_of(x: Expression) -> Gates:
    """Split a step's [batch, 4 * hidden] into gates."""
    size = x.shape[1] // LSTM_GATES
    first, forget, cell, output = (x.part(1, index * size, (index + 1) * size) for index in range(LSTM_GATES))
    return Gates(first.apply("sigmoid"), forget.apply("sigmoid"), cell.apply("tanh"), output.apply("sigmoid"))


def lstm_layer(arguments: Arguments) -> Results:
    """Outputs of all steps, the last hidden and cell state, and an empty workspace."""
    layer = lstm_layer_of(arguments, ("weight0", "weight1", "weight2", "weight3"), "cx_")
    if varies(layer):
        return states_of_lstm(arguments, layer)
    cells = cells_of(layer)
    outputs = {cell.step: cell.hidden.insert(0) for cell in cells}
    first, *others = (outputs[step] for step in sorted(outputs))
    shapes = [arguments.result(index).shape for index in range(LSTM_GATES)]
    workspace = arguments.full(0, arguments.result(3).dtype, shapes[3])
    return first.join(others, 0), cells[-1].hidden.reshape(shapes[1]), cells[-1].after.reshape(shapes[2]), workspace


def states_of_lstm(arguments: Arguments, layer: LstmLayer) -> Results:
    """The same of steps or rows that vary."""
    one_op_suffices(arguments, layer)
    states, hidden, cell = all_states(layer, "lstm", given_by_rows(layer), (layer.cell,))
    shapes = [arguments.result(index).shape for index in (1, 2)]
    return states, hidden.reshape(shapes[0]), cell.reshape(shapes[1]), None


def given_by_rows(layer: Layer) -> Expression:
    """What inputs give to the gates, computed row after row of the batch: of one that is shorter, the first steps."""
    turned = replace(layer, inputs=layer.inputs.transpose(0, 1))
    return from_inputs(turned).transpose(0, 1)


def one_op_suffices(arguments: Arguments, layer: Layer) -> None:
    """Check that steps which vary have an op: what a gradient needs of them it does not give."""
    is_plain = layer.hidden.dtype is torch.float32 and layer.hidden.shape[1] % LEAST_STATE == 0
    arguments.require(is_plain, "of another dtype or size of state, with steps that vary")
    arguments.require(len(arguments.declared) - 1 in arguments.unread, "with its gradient, of steps that vary")


def steps_are_known(arguments: Arguments, layer: Layer) -> None:
    """Check that steps do not vary: a gradient has ops for each of them."""
    arguments.require(not isinstance(layer.inputs.shape[0], Extent), "of steps that vary")


def varies(layer: Layer) -> bool:
    """Whether the number of steps or rows is known only when the program runs: then it is one op for all steps."""
    return any(isinstance(size, Extent) for size in layer.inputs.shape[:2])


def all_states(layer: Layer, cell: str, given: Expression, others: Sequence[Expression] = ()) -> tuple[Expression, ...]:
    """The states of all steps, the last one, and of an LSTM the last of its cells; of steps that vary."""
    reverse = layer.steps.step < 0
    states, last = several("recurrent", given, layer.inner, layer.hidden, *others, cell=cell, reverse=reverse)
    if cell != "lstm":
        return states, last, last
    end = states.shape[0]
    return states, states.pick(0, 0 if reverse else end - 1), last


def cells_of(layer: LstmLayer) -> list[Cell]:
    """The cells of a layer, one after the other."""
    given, inner = in_stretches(layer), layer.inner.transpose(0, 1)
    hidden, state = layer.hidden, layer.cell
    found = []
    for step in layer.steps:
        gates = gates_of(given[step] + hidden.matmul(inner))
        after = gates.forget * state + gates.input * gates.cell
        hidden = gates.output * after.apply("tanh")
        found.append(Cell(step, gates, state, after, hidden))
        state = after
    return found


def cells_again(layer: LstmLayer, before: Expression) -> list[Cell]:
    """The cells from the hidden states before them: what these give to all gates is one product."""
    shape = (*layer.inputs.shape[:2], layer.weight.shape[0])
    whole = from_inputs(layer) + rows(before).matmul(layer.inner.transpose(0, 1)).reshape(shape)
    state = layer.cell
    found = []
    for step in layer.steps:
        gates = gates_of(whole.pick(0, step))
        after = gates.forget * state + gates.input * gates.cell
        found.append(Cell(step, gates, state, after, gates.output * after.apply("tanh")))
        state = after
    return found


def lstm_layer_gradient(arguments: Arguments) -> Results:
    """The gradients for inputs, weights, biases and first states; without the forward, the gates are computed again."""
    layer = lstm_layer_of(arguments, ("weight1", "weight2", "weight3", "weight4"), "cx_tmp")
    steps_are_known(arguments, layer)
    before = hidden_before(arguments, layer)
    # In a graph with the forward its cells are there already: written the same way, they are the same values.
    found = cells_of(layer) if is_forward_here(arguments) else cells_again(layer, before)
    return through_time(arguments, layer, before, found)


def is_forward_here(arguments: Arguments) -> bool:
    """Tell whether the graph computes the layer's outputs itself."""
    return arguments.tensor("output").value.op != "input"


def hidden_before(arguments: Arguments, layer: Layer) -> Expression:
    """The hidden state that each step starts from: what the step before gave."""
    outputs, first = arguments.tensor("output").wide(), layer.hidden.insert(0)
    steps = outputs.shape[0]
    if layer.steps.step < 0:
        return outputs.part(0, 1, steps).join([first], 0) if steps > 1 else first
    return first.join([outputs.part(0, 0, steps - 1)], 0) if steps > 1 else first


def gate_gradients(one: Cell, hidden: Expression, cell: Expression) -> tuple[Expression, Expression]:
    """From the gradients of a step's hidden and cell state: those of its gates' inputs, and of the cell before."""
    gates, before, after = one.gates, one.before, one.after.apply("tanh")
    cell = cell + hidden * gates.output * (1 - after * after)
    parts = (
        cell * gates.cell * gates.input * (1 - gates.input),
        cell * before * gates.forget * (1 - gates.forget),
        cell * gates.input * (1 - gates.cell * gates.cell),
        hidden * after * gates.output * (1 - gates.output),
    )
    return parts[0].join(parts[1:], 1), cell * gates.forget


def through_time(arguments: Arguments, layer: Layer, before: Expression, cells: list[Cell]) -> Results:
    """Go through the steps backwards, then one product for each weight."""
    given = arguments.maybe("grad_output")
    hidden, cell = (final_gradient(arguments, layer, name) for name in ("grad_hy", "grad_cy"))
    found: dict[int, Expression] = {}
    for one in reversed(cells):
        hidden = hidden if given is None else hidden + given.wide().pick(0, one.step)
        gate, cell = gate_gradients(one, hidden, cell)
        found[one.step] = gate.insert(0)
        hidden = gate.matmul(layer.inner)
    first, *others = (found[step] for step in sorted(found))
    flat = rows(first.join(others, 0))
    turned = flat.transpose(0, 1)
    shapes = [arguments.result(index).shape for index in (0, 5, 6)]
    # PyTorch gives both biases the same gradient, zeros where there are none.
    bias = flat.sum((0,))
    return (
        flat.matmul(layer.weight).reshape(shapes[0]),
        turned.matmul(rows(layer.inputs)),
        turned.matmul(rows(before)),
        bias,
        bias,
        hidden.reshape(shapes[1]),
        cell.reshape(shapes[2]),
    )


def final_gradient(arguments: Arguments, layer: Layer, name: str) -> Expression:
    """The gradient of a last state, zeros if there is none."""
    given = arguments.maybe(name)
    shape = layer.hidden.shape
    return arguments.full(0, layer.hidden.dtype, shape) if given is None else given.wide().reshape(shape)


RECURRENT: Rules = {
    "aten.mkldnn_rnn_layer.default": lstm_layer,
    "aten.mkldnn_rnn_layer_backward.default": lstm_layer_gradient,
}

# Layers of a GRU or of a plain RNN. Gates stand in PyTorch's order: reset, update, new.

Inside = tuple[Expression, ...]


@dataclass(frozen=True)
class CellLayer(Layer):
    """A layer whose states meet a bias of their own."""

    name: str
    inner_bias: Expression | None

    def inside(self, hidden: Expression) -> Expression:
        """What a state gives to the gates of the step after it."""
        found = hidden.matmul(self.inner.transpose(0, 1))
        return found if self.inner_bias is None else found + self.inner_bias


def cell_layer_of(arguments: Arguments) -> CellLayer:
    """Take the operands of a layer."""
    name = arguments.literal("cell")
    arguments.require(name in CELLS_BY_NAME, "of another cell")
    inputs, hidden, weight, inner = (entry.wide() for entry in arguments.tensors("input", "first", "weight", "inner"))
    arguments.require(inputs.rank == 3 and hidden.rank == 2 and prod(inputs.shape) > 0, "of nothing")
    size = hidden.shape[1]
    fits = inner.shape == (GATES[name] * size, size) and weight.shape == (inner.shape[0], inputs.shape[2])
    arguments.require(fits and inputs.shape[1] == hidden.shape[0], "of sizes that do not fit")
    biases = [None if entry is None else entry.wide() for entry in map(arguments.maybe, ("bias", "inner_bias"))]
    steps = range(inputs.shape[0])
    order = steps[::-1] if arguments.literal("reverse") else steps
    return CellLayer(inputs, weight, inner, biases[0], hidden, order, name, biases[1])


def parts(x: Expression, count: int) -> list[Expression]:
    """Equal parts of the last dimension of [batch, count * size]."""
    size = x.shape[1] // count
    return [x.part(1, index * size, (index + 1) * size) for index in range(count)]


def joined(found: dict[int, Expression]) -> Expression:
    """What each step gave, in the order of steps."""
    first, *others = (found[step].insert(0) for step in sorted(found))
    return first.join(others, 0)


def gru(given: Expression, inside: Expression, hidden: Expression) -> Inside:
    """A step of a GRU: the state after it, and what its gradient needs."""
    from_input, from_state = parts(given, 3), parts(inside, 3)
    reset = (from_state[0] + from_input[0]).apply("sigmoid")
    update = (from_state[1] + from_input[1]).apply("sigmoid")
    new = (from_input[2] + from_state[2] * reset).apply("tanh")
    return (hidden - new) * update + new, reset, update, new, from_state[2]


def rnn_tanh(given: Expression, inside: Expression, hidden: Expression) -> Inside:
    """A step of a plain RNN."""
    del hidden
    return ((inside + given).apply("tanh"),)


def rnn_relu(given: Expression, inside: Expression, hidden: Expression) -> Inside:
    """A step of a plain RNN with another bend."""
    del hidden
    return ((inside + given).apply("relu"),)


def gru_gradient(gradient: Expression, after: Expression, before: Expression, kept: Expression | None) -> Inside:
    """A step back: gradients of what its input and its state gave to the gates, and what goes to the state itself."""
    del after
    assert kept is not None
    reset, update, new, inner = parts(kept, 4)
    straight = gradient * update
    to_new = (gradient - straight) * (1 - new * new)
    to_update = gradient * (before - new) * (update * (1 - update))
    to_reset = to_new * inner * (reset * (1 - reset))
    from_input = to_reset.join([to_update, to_new], 1)
    return from_input, to_reset.join([to_update, to_new * reset], 1), straight


def tanh_gradient(gradient: Expression, after: Expression, before: Expression, kept: Expression | None) -> Inside:
    """A step back through a plain RNN."""
    del before, kept
    found = gradient * (1 - after * after)
    return found, found


def relu_gradient(gradient: Expression, after: Expression, before: Expression, kept: Expression | None) -> Inside:
    """A step back through a plain RNN with another bend."""
    del before, kept
    found = after.apply("gt", 0).choose(gradient, 0)
    return found, found


Step = Callable[[Expression, Expression, Expression], Inside]
StepBack = Callable[[Expression, Expression, Expression, Expression | None], Inside]
CELLS_BY_NAME: dict[str, tuple[Step, StepBack]] = {
    "gru": (gru, gru_gradient),
    "rnn_tanh": (rnn_tanh, tanh_gradient),
    "rnn_relu": (rnn_relu, relu_gradient),
}


def recurrent_layer(arguments: Arguments) -> Results:
    """States of all steps, the last one, and what the gradient needs."""
    layer = cell_layer_of(arguments)
    if varies(layer):
        return states_of_cells(arguments, layer)
    run, given = CELLS_BY_NAME[layer.name][0], in_stretches(layer)
    hidden = layer.hidden
    outputs, kept = {}, {}
    for step in layer.steps:
        hidden, *gates = run(given[step], layer.inside(hidden), hidden)
        outputs[step] = hidden
        kept[step] = gates[0].join(gates[1:], 1) if gates else hidden
    if 2 in arguments.unread:
        return joined(outputs), hidden, None
    shape = arguments.result(2).shape
    return joined(outputs), hidden, joined(kept) if KEPT[layer.name] else arguments.full(0, hidden.dtype, shape)


def states_of_cells(arguments: Arguments, layer: CellLayer) -> Results:
    """The same of steps or rows that vary."""
    one_op_suffices(arguments, layer)
    size = layer.hidden.shape[1]
    zeros = arguments.full(0, layer.hidden.dtype, (size,))
    bias, given, others = layer.inner_bias, given_by_rows(layer), [zeros]
    if layer.name != "gru":
        others = []
    elif bias is not None:  # that of the new state is reset with what the state gives
        others, bias = [bias.part(0, 2 * size, 3 * size)], bias.part(0, 0, 2 * size).join([zeros], 0)
    states, last, _ = all_states(layer, layer.name, given if bias is None else given + bias, others)
    return states, last, None


def recurrent_layer_gradient(arguments: Arguments) -> Results:
    """Gradients of inputs, first state, weights and biases: through time, then one product for each weight."""
    layer = cell_layer_of(arguments)
    steps_are_known(arguments, layer)
    output, gates = (entry.wide() for entry in arguments.tensors("output", "gates"))
    before = hidden_before(arguments, layer)
    given, last = (None if entry is None else entry.wide() for entry in map(arguments.maybe, GIVEN))
    found: dict[int, Expression] = {}
    inside: dict[int, Expression] = {}
    terms = [] if last is None else [last]
    for step in reversed(layer.steps):
        terms = terms if given is None else [given.pick(0, step), *terms]
        kept = gates.pick(0, step) if KEPT[layer.name] else None
        gradient = total(terms)
        run = CELLS_BY_NAME[layer.name][1]
        found[step], inside[step], *straight = run(gradient, output.pick(0, step), before.pick(0, step), kept)
        terms = [*straight, inside[step].matmul(layer.inner)]
    flat, flat_inside = rows(joined(found)), rows(joined(inside))
    return (
        flat.matmul(layer.weight).reshape(layer.inputs.shape),
        total(terms),
        flat.transpose(0, 1).matmul(rows(layer.inputs)),
        flat_inside.transpose(0, 1).matmul(rows(before)),
        flat.sum((0,)),
        flat_inside.sum((0,)),
    )


GIVEN = ("gradient", "last_gradient")


def total(terms: list[Expression]) -> Expression:
    """The sum of terms, from the first on."""
    first, *others = terms
    for term in others:
        first = first + term
    return first


CELLS: Rules = {FORWARD: recurrent_layer, BACKWARD: recurrent_layer_gradient}
