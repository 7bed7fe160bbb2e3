"""A layer of a GRU or of a plain RNN, and its gradient -> one cell a step, as of an LSTM.

Gates stand in PyTorch's order: reset, update, new.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from weft.trace.lift.arguments import Arguments, Results, Rules
from weft.trace.lift.expression import Expression
from weft.trace.lift.recurrent import Layer, hidden_before, in_stretches, rows
from weft.trace.lift.recurrent_layer import BACKWARD, FORWARD, GATES, KEPT

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


def layer_of(arguments: Arguments) -> CellLayer:
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
    layer = layer_of(arguments)
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


def recurrent_layer_gradient(arguments: Arguments) -> Results:
    """Gradients of inputs, first state, weights and biases: through time, then one product for each weight."""
    layer = layer_of(arguments)
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
