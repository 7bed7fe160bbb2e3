"""Compute calls on packed sequences on the padded batch that was packed, whose sizes are known while tracing.

A packed batch has as many rows as its sequences have steps together, which only a run knows. Recurrent layers compute
the same of the padded one: nothing behind the end of a sequence reaches what is before it, and a direction that begins
at the end is computed on sequences that are turned round, each by itself. So what stands for a packed batch has no
elements; layers take and give it, and it can be padded again.

Where values may decide, whatever else touches it is given the rows themselves: those before the ends, whose places an
operator finds. What is computed of them is put back to these places. Else it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.errors import UnsupportedError
from weft.ir.graph import Place
from weft.ir.types import TensorType, contiguous
from weft.trace.interception.capture import hint_of, outside_tracing, pack_padded, pad_packed, tree_map_only
from weft.trace.interception.modes import open_blocks
from weft.trace.interception.refusals import refuse
from weft.trace.interception.user_lines import user_place
from weft.trace.python_state.tensor_facts import asked_by_user
from weft.trace.read_values import ReadValues
from weft.trace.replacements import taken_whole

LIBRARY = torch.library.Library("weft", "FRAGMENT")
LIBRARY.define("packed_lengths(Tensor lengths, SymInt steps, SymInt batch) -> Tensor")
LIBRARY.define("check_longest(Tensor lengths, SymInt steps) -> ()")
CELLS = {torch.lstm: "lstm", torch.gru: "gru", torch.rnn_tanh: "rnn_tanh", torch.rnn_relu: "rnn_relu"}
# What may be asked of what stands for a packed batch: it answers as a packed batch would.
ASKED = (Tensor.dim, Tensor.dtype.__get__, Tensor.device.__get__)  # type: ignore[attr-defined]


class Longest(int):
    """How many steps there may be at most, where PyTorch asks for those of the longest sequence."""

    steps: Any

    def __gt__(self, other: Any) -> Any:
        return self.steps > other if isinstance(other, torch.SymInt) else int(self) > other


def longest_of(steps: Any) -> Longest:
    """So many steps, which may vary."""
    found = Longest(hint_of(steps))
    found.steps = steps
    return found


class Packed(NamedTuple):
    """A padded batch [steps, batch, ...] with zeros behind the ends, and how long its sequences are.

    `exact` says that the longest one is known to have as many steps.
    """

    rows: Tensor
    lengths: Tensor
    exact: bool

    def before_end(self) -> Tensor:
        """Whether a step of a sequence is before its end: [steps, batch]."""
        return torch.arange(self.rows.shape[0], device=self.rows.device).unsqueeze(1) < self.lengths

    def filled(self, rows: Tensor, value: float) -> Tensor:
        """Other rows, with a value behind the ends."""
        before = self.before_end().view(*rows.shape[:2], *[1] * (rows.dim() - 2))
        return torch.where(before, rows, torch.full((), value, dtype=rows.dtype, device=rows.device))

    def turned(self, rows: Tensor) -> Tensor:
        """Rows of each sequence in the other order; behind the ends they are anything."""
        steps = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
        return self._taken(rows, (self.lengths - 1 - steps).clamp(min=0))

    def last(self, rows: Tensor) -> Tensor:
        """The last row of each sequence: [batch, ...]."""
        return self._taken(rows, (self.lengths - 1).unsqueeze(0)).squeeze(0)

    def _taken(self, rows: Tensor, steps: Tensor) -> Tensor:
        places = steps.view(*steps.shape, *[1] * (rows.dim() - 2))
        return rows.gather(0, places.expand(*steps.shape, *rows.shape[2:]))


class PackedSequences:
    """The packed sequences of one trace, by what stands for them."""

    def __init__(
        self,
        empty: Callable[[TensorType], Tensor],
        elements: Callable[[Tensor], Tensor | None],
        reads: ReadValues | None,
        *,
        alone: bool,
    ) -> None:
        self._empty = empty
        self._alone = alone  # each run fails that the program is not for; else something else runs it
        self._reads = reads  # values of this call
        self._elements = elements  # of a tensor, where they are the same at every run
        self._of: dict[int, Packed] = {}
        self._sizes: dict[int, Packed] = {}  # by what stands for the numbers of sequences that are not at their end
        self._held: list[Tensor] = []
        self._places: dict[int, Tensor] = {}  # by lengths: of rows before the ends, among all
        self._longest: dict[int, Any] = {}  # by lengths
        self._themselves: dict[int, Tensor] = {}  # by what stands for them: tensors that code was given
        self.place: Place | None = None  # where a batch was packed last

    def __contains__(self, thing: Any) -> bool:
        """Whether something stands for a packed batch, or for its sizes."""
        return id(thing) in self._of or id(thing) in self._sizes

    def taken(self, function: Callable[..., Any], arguments: Sequence[Any], keywords: Any) -> Callable[..., Any] | None:
        """What to call in the place of a function of PyTorch, if it is one that knows packed sequences."""
        if keywords or not arguments:
            return None
        if function == pack_padded and _can_pack(*arguments):
            return self._pack
        first = arguments[0]
        if id(first) in self._sizes:
            return self._asked_of_sizes(function, arguments)
        if id(first) in self._of and (function in ASKED or (function is Tensor.size and arguments[1:] == (-1,))):
            return function
        if len(arguments) == 1 or id(arguments[1]) not in self._sizes:
            return None
        if function == pad_packed:
            return self._pad
        cell = CELLS.get(function)
        return partial(self._layers, function) if cell and _is_covered(cell, arguments) else None

    def themselves(self, function: Callable[..., Any] | None, given: Any) -> Any:
        """What a function is given, or what is left, with the tensors that packed batches are."""
        return tree_map_only(torch.Tensor, partial(self._itself, function), given) if self._held else given

    def _itself(self, function: Callable[..., Any] | None, thing: Tensor) -> Tensor:
        """In the place of what stands for a packed batch, or its sizes, the tensor that this is."""
        if thing not in self:
            return thing
        if self._reads is None or function in CELLS:
            refuse("packed sequence", user_place() or self.place)
        if id(thing) not in self._themselves:
            packed = self._of.get(id(thing))
            if packed is None:
                packed = self._sizes[id(thing)]
                found = packed.before_end().sum(1)[: self._steps(packed)]
            else:
                found = packed.rows.flatten(0, 1).index_select(0, self._places_of(packed))
            self._themselves[id(thing)] = found
        return self._themselves[id(thing)]

    def _places_of(self, packed: Packed) -> Tensor:
        """Where the rows before the ends are, in the order in which they are packed."""
        if id(packed.lengths) not in self._places:
            self._places[id(packed.lengths)] = packed.before_end().reshape(-1).nonzero().squeeze(1)
        return self._places[id(packed.lengths)]

    def _steps(self, packed: Packed) -> Any:
        """How many steps the longest sequence has."""
        if packed.exact:
            return packed.rows.shape[0]
        if id(packed.lengths) not in self._longest:
            assert self._reads is not None
            self._longest[id(packed.lengths)] = self._reads.ask(Tensor.item, packed.lengths.max())
        return self._longest[id(packed.lengths)]

    def _packed(self, data: Tensor, sizes: Tensor) -> Packed:
        """The batch that is packed in rows, which stand for themselves, or are stood for."""
        data = self._themselves.get(id(data), data)
        if id(data) in self._of:
            return self._of[id(data)]
        packed = self._sizes[id(sizes)]
        steps, batch = packed.rows.shape[:2]
        rows = data.new_zeros((steps * batch, *data.shape[1:]))
        rows = rows.index_copy(0, self._places_of(packed), data)
        return packed._replace(rows=rows.reshape(steps, batch, *data.shape[1:]))

    def _asked_of_sizes(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[..., Any] | None:
        packed = self._sizes[id(arguments[0])]
        if function in ASKED:
            return function
        if function is Tensor.size and arguments[1:] == (0,) and not asked_by_user():
            return lambda *_: longest_of(packed.rows.shape[0])
        if function is Tensor.__getitem__ and arguments[1:] == (0,):
            return lambda *_: torch.tensor(packed.rows.shape[1])  # no sequence is empty
        return None

    def _pack(self, given: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        self.place = user_place()
        rows = given.transpose(0, 1) if batch_first else given
        known = self._elements(lengths)
        if known is not None:
            with outside_tracing():
                _refuse_as_pytorch(known, *rows.shape[:2])
                longest = int(known.max())
            rows = rows[:longest]
        else:
            lengths = torch.ops.weft.packed_lengths(lengths, *rows.shape[:2])
        packed = Packed(rows, lengths, known is not None)
        packed = packed._replace(rows=packed.filled(rows, 0.0))
        sizes = self._empty(contiguous(torch.int64, (rows.shape[0],), rows.device))
        self._sizes[id(sizes)] = packed
        self._held.append(sizes)
        return self._stand_in(packed), sizes

    def _stand_in(self, packed: Packed) -> Tensor:
        found = self._empty(contiguous(packed.rows.dtype, (0, *packed.rows.shape[2:]), packed.rows.device))
        self._of[id(found)] = packed
        self._held.append(found)
        return found

    def _pad(self, data: Tensor, sizes: Tensor, batch_first: bool, value: float, total: int) -> tuple[Tensor, Tensor]:
        packed = self._packed(data, sizes)
        steps = packed.rows.shape[0]
        rows = packed.filled(packed.rows, value).contiguous()
        if type(total) is not Longest:
            if total > steps:
                rows = torch.cat((rows, rows.new_full((total - steps, *rows.shape[1:]), value)))
        elif self._reads is not None:
            rows = rows[: self._steps(packed)]
        elif not packed.exact:
            if not self._alone:
                refuse("packed sequence", user_place())
            torch.ops.weft.check_longest(packed.lengths, steps)
        return rows.transpose(0, 1) if batch_first else rows, packed.lengths.clone()

    def _layers(self, function: Callable[..., Any], data: Tensor, sizes: Tensor, first: Any, *options: Any) -> Any:
        packed = self._packed(data, sizes)
        parameters, has_biases, layers, _dropout, _train, both = options
        is_lstm = function is torch.lstm
        states = [state.unbind(0) for state in (first if is_lstm else (first,))]
        directions = layers * (1 + both)
        count = len(parameters) // directions
        last: list[tuple[Tensor, ...]] = []
        for _ in range(layers):
            outputs = []
            for reverse in (False, True)[: 1 + both]:
                number = len(last)
                weights = parameters[number * count : (number + 1) * count]
                begin = tuple(state[number].unsqueeze(0) for state in states)
                turned = packed._replace(rows=packed.turned(packed.rows)) if reverse else packed
                found, *ends = _direction(function, turned, begin, weights, has_biases)
                outputs.append(packed.filled(packed.turned(found) if reverse else found, 0.0))
                last.append(tuple(ends))
            packed = packed._replace(rows=torch.cat(outputs, -1) if both else outputs[0])
        return self._stand_in(packed), *map(torch.stack, zip(*last, strict=True))


def _direction(
    function: Callable[..., Any],
    packed: Packed,
    begin: tuple[Tensor, ...],
    weights: Sequence[Tensor],
    has_biases: bool,
) -> tuple[Tensor, ...]:
    """One layer in one direction: its outputs, and the last state of each sequence."""
    is_lstm = function is torch.lstm
    call = (packed.rows, begin if is_lstm else begin[0], [*weights], has_biases, 1, 0.0, False, False, False)
    outputs = taken_whole(function, call, {})(*call)[0]
    if not is_lstm:
        return outputs, packed.last(outputs)
    return outputs, packed.last(outputs), _last_cells(packed, outputs, begin, weights, has_biases)


def _last_cells(
    packed: Packed, outputs: Tensor, begin: tuple[Tensor, ...], weights: Sequence[Tensor], has_biases: bool
) -> Tensor:
    """The cells of an LSTM at the end of each sequence, which it tells of the last step alone.

    They are made again of what its gates saw: of what a step has added so much is left as all later ones have kept,

        c = f[1] f[2] ... f[n] c[0] + sum over t of f[t + 1] ... f[n] i[t] g[t],

    and these products are sums of logarithms, from the end on, so that what is left of much is as exact as ever. Where
    nobody asks for them they are no part of the program.
    """
    rows = packed.rows
    biases = weights[2:4] if has_biases else (None, None)
    before = torch.cat((begin[0], outputs[:-1]))
    linear = torch.nn.functional.linear
    gates = linear(rows, weights[0], biases[0]) + linear(before, weights[1], biases[1])
    given, forget, new, _ = gates.chunk(4, -1)
    added = packed.filled(given.sigmoid() * new.tanh(), 0.0)
    kept = packed.filled(torch.nn.functional.logsigmoid(forget), 0.0).flip(0).cumsum(0).flip(0)
    later = torch.cat((kept[1:], torch.zeros_like(kept[:1])))
    return kept[0].exp() * begin[1][0] + (later.exp() * added).sum(0)


def _can_pack(given: Any, lengths: Any, batch_first: Any) -> bool:
    """Whether a batch is packed as usual; what PyTorch refuses, it refuses in its own words."""
    if not isinstance(given, Tensor) or not isinstance(lengths, Tensor) or type(batch_first) is not bool:
        return False
    if given.dim() < 2 or given.numel() == 0 or given.device.type != "cpu" or lengths.device.type != "cpu":
        return False
    return lengths.dtype is torch.int64 and tuple(lengths.shape) == (given.shape[0 if batch_first else 1],)


def _is_covered(cell: str, arguments: Sequence[Any]) -> bool:
    """Whether a call is one that gives the same on padded batches: nothing is drawn between layers, nothing cast."""
    if len(arguments) != 9 or torch.is_autocast_enabled("cpu") or open_blocks():
        return False
    data, _sizes, first, _parameters, _has_biases, layers, dropout, train, _both = arguments
    if dropout and train and layers > 1:
        return False
    states = first if cell == "lstm" else (first,)
    return data.dim() == 2 and all(isinstance(state, Tensor) and state.dim() == 3 for state in states)


def _refuse_as_pytorch(lengths: Tensor, steps: int, batch: int) -> None:
    """Raise what PyTorch raises where it refuses to pack, or layers refuse what they read, in its own words."""
    data, sizes = pack_padded(torch.empty((steps, batch, 1)), lengths, False)
    data.narrow(0, int(sizes[:-1].sum()), int(sizes[-1]))


def _packed_lengths(lengths: Tensor, steps: int, batch: int) -> Tensor:
    _refuse_as_pytorch(lengths, steps, batch)
    return lengths.clone()


def _check_longest(lengths: Tensor, steps: int) -> None:
    if int(lengths.max()) != steps:
        raise UnsupportedError(
            f"a packed batch is padded to {steps} steps, but its longest sequence has {int(lengths.max())}",
            why="a program's sizes are fixed when it is traced, and how many steps there are depends on the lengths",
            fix="cut the batch at its longest sequence before the call, as collating usually does, or pass "
            "total_length=x.shape[1] to pad_packed_sequence",
        )


def _longest_of_nothing(*given: Any) -> None:
    del given


def _lengths_of_nothing(lengths: Tensor, *_: int) -> Tensor:
    return torch.empty_like(lengths, memory_format=torch.contiguous_format)


LIBRARY.impl("packed_lengths", _packed_lengths, "CPU")
LIBRARY.impl("packed_lengths", _lengths_of_nothing, "Meta")
LIBRARY.impl("check_longest", _check_longest, "CPU")
LIBRARY.impl("check_longest", _longest_of_nothing, "Meta")
