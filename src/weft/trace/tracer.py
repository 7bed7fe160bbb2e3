"""Run a Python function on stand-ins, and record every operator that it runs, with what goes in and comes out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from weft.interrupts import interrupts_after
from weft.ir.graph import Place, Value, Write
from weft.ir.library import Call, is_random, name_of
from weft.ir.types import NOTHING, NumberType, contiguous
from weft.trace.answers import TraceConstants, find_answer
from weft.trace.counted_index import CountedIndex, Spot
from weft.trace.decisions import NumberRead
from weft.trace.expected import ExpectedAnswers
from weft.trace.gradient_sums import SUM, GradientSums
from weft.trace.interception.builtin_names import builtin_names, holds_identities
from weft.trace.interception.capture import (
    DATA_DEPENDENT,
    NO_SHAPE_RULE,
    PLAIN_TYPES,
    STAND_IN_ATTRIBUTES,
    Interception,
    Operator,
    dress,
    dress_result,
    has_symbols,
    is_stand_in,
    is_transformed,
    kind_of,
    lambda_text,
    lie_alike_today,
    outside_tracing,
    storage_key,
    tree_flatten,
    tree_map_only,
    without_functions,
)
from weft.trace.interception.checkpoints import checkpoints_as_autograd_sees
from weft.trace.interception.functions import (
    FROM_VALUES,
    VALUE_OPERATORS,
    kind_of_refusal,
    puts_data,
    raises_otherwise,
    stays,
    with_check,
)
from weft.trace.interception.modes import checkpoints_without_dynamo, next_autograd_number, running_autograd_number
from weft.trace.interception.printed import Printed, printing
from weft.trace.interception.refusals import refuse, refuse_unmaterialised, uncaught, unmaterialised
from weft.trace.interception.user_lines import user_place
from weft.trace.memory import TensorState
from weft.trace.packed import PackedSequences
from weft.trace.python_state.backward_code import OfCalls
from weft.trace.python_state.counters import Condition, NumberLeaf, composed, leaf_of_text, place_stand_in
from weft.trace.python_state.draws import Draw, DrawnSources
from weft.trace.python_state.effects import ArgumentCopies
from weft.trace.python_state.facts import left_settings, put_back
from weft.trace.python_state.given_objects import FlatArguments
from weft.trace.python_state.impurity import Refusing
from weft.trace.python_state.locations import Slot
from weft.trace.python_state.reachable import PythonState
from weft.trace.python_state.retracing import Noting
from weft.trace.python_state.sources import SOURCES, TAKEN
from weft.trace.python_state.tensor_facts import (
    ATTRIBUTES,
    TensorFacts,
    asked_by_user,
    has_lazy_bit,
    missing_attribute,
    resolved,
)
from weft.trace.python_state.trees import TakenApart
from weft.trace.random_state import NoDraws, OwnGenerators, RandomLedger
from weft.trace.read_values import ReadValues
from weft.trace.recorder import CallBuilder, Recorder
from weft.trace.replaced_memory import ReplacedMemory
from weft.trace.replacements import REPLACEMENTS, taken_whole, with_lengths_in_tensors
from weft.trace.request import Request
from weft.trace.results.corrections import CORRECTIONS, correct_strides
from weft.trace.results.dependent_sizes import UNSIZED, SizesOfConstants, unsized_types
from weft.trace.results.rehearsal import RULES_RAISE, as_kernel, result_of_kernel
from weft.trace.results.result_rules import row_by_rule, stays_in_place
from weft.trace.results.result_types import stand_ins
from weft.trace.results.symbol_rules import result_by_symbols
from weft.trace.size_symbols import TracedSize, size_symbols
from weft.trace.tensor_index import TensorIndex

NO_ELEMENTS = contiguous(torch.float32, (0,), torch.device("cpu"))


@dataclass(frozen=True, slots=True, eq=False)
class TracedInput:
    """A tensor that goes in: the real one, its value, its stand-in, the leaf that gets its gradient."""

    tensor: torch.Tensor
    value: Value
    stand_in: torch.Tensor
    leaf: torch.Tensor
    argument: int | None


@dataclass(frozen=True, slots=True, eq=False)
class TracedNumber:
    """A Python number that goes in: its value today, in the Graph, the symbol that stands for it, where it is.

    That is a position among the arguments, or a place that the function reaches by itself; or it is computed of such,
    or drawn, just before a run.
    """

    number: float
    value: Value
    symbol: Any
    stand_in: Any
    argument: int | None = None
    slot: Slot | None = None
    later: NumberLeaf | Draw | NumberRead | None = None


@dataclass(slots=True, eq=False)
class Trace:
    """What running a function once showed."""

    inputs: list[TracedInput] = field(default_factory=list)
    numbers: list[TracedNumber] = field(default_factory=list)
    sizes: list[TracedSize] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    leaves: list[Any] = field(default_factory=list)
    structure: Any = None
    writes: list[Write] = field(default_factory=list)
    depends_on_offsets: bool = False


class Tracer:
    """Runs a function under interception and keeps what is needed to trace its backward later."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.recorder = Recorder(self._adopt, self.place, self._results, request.most_operators)
        self.recorder.derive = self._derive
        self.interception = Interception(self, alike=bool(request.sizes.dimensions) and request.sizes_read is None)
        self.copies = ArgumentCopies((), {}, ((), ()), {})
        self.result: Any = None
        self.of_calls = OfCalls()
        self._captured: dict[int, TensorState] = {}
        self._places: dict[int, Place] = {}
        self._random: RandomLedger = NoDraws(self.recorder.emit)
        self._generators = OwnGenerators(())
        self._real_of: dict[int, torch.Tensor] = {}
        self.facts = TensorFacts(request.state.slot, partial(self.interception.empty, NO_ELEMENTS))
        self._known, self._in_backward = TraceConstants(), False
        self._sums: GradientSums | None = None
        self._unsized: set[int] = set()
        self._drawn = DrawnSources(request.state if request.draws else PythonState(), self._add_draw)
        self._written = None if request.draws_written is None else iter(request.draws_written)
        self._tensor_index = TensorIndex(self.recorder, lambda index: self._elements(index) is None)
        self._counted = CountedIndex(self.recorder, self, self._tensor_index, request.counted_index)
        self.memory = ReplacedMemory(self.recorder)
        self._known_sizes = SizesOfConstants(self._elements, self._constant, self.on_operator)
        self.handles = False  # an operator that may raise is called where the code would raise something else
        self.printed = Printed(request.decides, has_decided=request.prints_each_time)
        self.reads = ReadValues(self, request.reads, request.decided) if request.decides else None
        reads = self.reads if request.reads and request.finds_sizes else None
        self.sizes = size_symbols((self.interception, self.recorder), request.sizes, request.sizes_read, reads)
        self.trace = Trace(sizes=self.sizes.found)
        self._packed = PackedSequences(self.interception.empty, self._elements, self.reads, alone=request.alone)
        told = request.expected
        self.expected = ExpectedAnswers(self.recorder, told, self.place, self.printed) if told else None

    def run(self) -> Trace:
        """Run the function on stand-ins of its tensor arguments; its result is taken apart by `give`."""
        flat = FlatArguments(self.request.arguments, self.request.keywords, self.request.apart)
        self.sizes.start(leaves := flat.leaves)
        for position in sorted(self.request.numbers - self.request.sizes.dimensions.keys()):
            leaves[position] = self._add_number(leaves[position], position)  # before what a run reads
        for number, slot in enumerate(self.request.places):
            place_stand_in(slot, self._add_place(slot, f"place{number}"))
        self._stand_in_for(leaves)
        self.sizes.read()
        own = self.request.state.homes
        self.copies = ArgumentCopies(self.request.arguments, self.request.keywords, (leaves, flat.objects), own)
        self._random = (RandomLedger if self.request.draws else NoDraws)(self.recorder.emit, self.request.state.slots)
        self._generators, settings = OwnGenerators((*self.request.state.generators, *leaves)), left_settings()
        try:
            known = partial(holds_identities, self.request.state.containers.values())
            names = builtin_names(self.request.state.namespaces.values(), self.request.state.naming, known)
            sources, checkpoints = self._drawn.standing_in(), checkpoints_as_autograd_sees()
            with uncaught(), sources, self.interception, printing(self.printed), names, checkpoints:
                self.result = self.request.function(*self.copies.arguments, **self.copies.keywords)
            self._random.finish()
            self._drawn.finish()
        finally:
            with interrupts_after():  # whoever is interrupted goes on where the generators were before
                self._drawn.restore()
                if (left := left_settings()) != settings:
                    put_back(settings)
                self._random.restore()
                seeded = self.request.draws and self._generators.restore()
                self.interception.release()
        if seeded:
            refuse("generator", None)
        if left != settings:
            refuse("setting", None)
        self.trace.values = self.recorder.values
        self.trace.depends_on_offsets = self.recorder.depends_on_offsets
        return self.trace

    def _stand_in_for(self, leaves: list[Any]) -> None:
        """Put stand-ins in the place of arguments."""
        given: dict[int, torch.Tensor] = {}  # by identity: a tensor that is several arguments is one for Python too
        for position, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                if self.request.state.asks_identity and id(leaf) in self.request.state.slots:
                    self.facts.ask_identity(leaf, position, self._argument_name(position))
                    continue  # for Python it is the tensor that the function has
                if id(leaf) not in given:
                    given[id(leaf)] = self._add_input(leaf, position)
                leaves[position] = given[id(leaf)]
            elif isinstance(leaf, TAKEN):
                leaves[position] = Refusing(leaf)
            elif isinstance(leaf, SOURCES):
                leaves[position] = self._drawn.stand_in(leaf)
            elif position in self.request.sizes.dimensions:
                name = self._argument_name(position)
                size = self.sizes.of((leaf,), position, name)[0]  # the number itself goes in, too: a run looks at it
                leaves[position] = self._add_input_number(leaf, name, size, argument=position)

    def give(self, apart: TakenApart) -> None:
        """Take the result apart."""
        with self.interception:
            leaves, self.trace.structure = apart.flatten(self.result)
            self.trace.leaves = self._packed.themselves(None, leaves)
        self.result = None
        self.trace.leaves = [self.number_leaf(leaf, of_arguments=False) for leaf in self.trace.leaves]
        self._check_nothing_was_lost()

    def let_go(self, *, entirely: bool) -> None:
        """Forget real tensors: circles are found late. A backward, which keeps this object, needs the module's."""
        self.request = replace(self.request, arguments=(), keywords={})
        self.copies = ArgumentCopies((), {}, ((), ()), {})
        self._real_of.clear()
        self.facts.let_go()
        own = [] if entirely else self.trace.inputs
        self.trace.inputs = [item if item.argument is None else replace(item, tensor=item.stand_in) for item in own]

    @contextmanager
    def backward(self, roots: Sequence[torch.Tensor]) -> Iterator[None]:
        """While code of these tensors' backward runs: seeding and random operators are followed anew."""
        self._random, self._in_backward = self._random.successor(), True
        self._sums = GradientSums(self.recorder, roots)
        try:
            with self.interception, without_functions(), checkpoints_without_dynamo(), torch.enable_grad():
                yield
            self._random.finish()
        finally:
            self._sums = None
            self._random.restore()

    def _add_input(self, tensor: torch.Tensor, argument: int | None) -> torch.Tensor:
        if type(tensor) not in PLAIN_TYPES:
            refuse("subclass", None, detail=type(tensor).__name__)
        if tensor.layout is not torch.strided or tensor.is_quantized:
            refuse("layout", user_place() if argument is None else None)
        held = tensor
        if has_lazy_bit(tensor):
            with outside_tracing(), torch.enable_grad():
                held = resolved(tensor)
        sizes = {} if argument is None else self.sizes.of(held.shape, argument, self._argument_name(argument))
        stand_in, leaf = self.interception.stand_in(held, sizes)
        path = self.request.state.slot(tensor).path if argument is None else self._argument_name(argument)
        value = Value("input", (), kind_of(stand_in), name=path.replace(".", "_"))
        state = self.recorder.add_input(stand_in, value)
        if argument is None:
            self._captured[id(tensor)] = state
        self._real_of[id(stand_in)] = tensor
        self.facts.add(stand_in, tensor, argument, path)
        if argument is not None:
            self._dress(stand_in, tensor)
        self.trace.inputs.append(TracedInput(tensor, value, stand_in, leaf, argument))
        return stand_in

    def _dress(self, stand_in: torch.Tensor, tensor: torch.Tensor) -> None:
        # Weakly: autograd's graph keeps stand-ins where Python's collector of garbage cannot see that it does.
        known = weakref.ref(self.facts)

        def missing(asked: torch.Tensor, name: str) -> None:
            facts = known()
            if facts is not None and not name.startswith("__") and asked_by_user():
                facts.ask(missing_attribute(name), asked)

        def put(_: torch.Tensor, name: str) -> None:
            if asked_by_user():
                refuse("tensor attribute", user_place(), detail=name)

        if vars(tensor):
            self.facts.ask(ATTRIBUTES, stand_in)
        dress(stand_in, tensor, missing, put)

    def _add_number(self, number: float, argument: int) -> Any:
        number = number if type(number) is int else float(number)  # of NumPy's own, too
        stand_in, symbol = self.interception.symbol(number, f"number{argument}")
        return self._add_input_number(number, self._argument_name(argument), stand_in, symbol, argument=argument)

    def _add_place(self, slot: Slot, name: str) -> Any:
        number = slot.get()
        stand_in, symbol = self.interception.symbol(number, name)
        return self._add_input_number(number, slot.path.replace(".", "_"), stand_in, symbol, slot=slot)

    def _add_draw(self, draw: Draw, number: float) -> Any:
        return self.add_later(draw, number, draw.method) if self._written is None else next(self._written, number)

    def add_later(self, later: Draw | NumberRead, number: float, name: str, expression: Any = None) -> Any:
        """Add a number that is there just before a run, or in it; with an `expression`, it is computed of others."""
        symbol_of, own = self.interception.symbol, f"later{len(self.trace.numbers)}"
        stand_in, symbol = symbol_of(number, own) if expression is None else (None, expression)
        return self._add_input_number(number, name, stand_in, symbol, later=later)

    def _add_input_number(self, number: float, name: str, stand_in: Any, symbol: Any = None, **of: Any) -> Any:
        """A number that goes in; without a symbol, nothing is computed of it."""
        value = Value("input", (), NumberType(type(number).__name__), name=name)
        if symbol is not None:
            self.recorder.numbers[symbol] = value
        self.trace.numbers.append(TracedNumber(number, value, symbol, stand_in, **of))
        return stand_in

    def add_found(self, number: int, value: Value, size: Any, read: NumberRead) -> None:
        """Add a size that is found out in a run."""
        self.trace.numbers.append(TracedNumber(number, value, size.node.expr, size, later=read))

    def _check_draws(self) -> None:
        """Refuse a program for the very numbers that were drawn, and a path, which may be left once they are."""
        symbols, is_path = self.interception.relied_on(), self.reads is not None and bool(self.reads.decisions())
        for entry in self.trace.numbers:
            if isinstance(entry.later, Draw) and (is_path or entry.symbol in symbols):
                refuse("python draw", entry.later.place)

    def replaced_memory(self) -> list[tuple[int, torch.Tensor]]:
        """The inputs that are given other memory, by number, and tensors over that."""
        with self.interception:
            return self.memory.of_inputs(self.trace.inputs)

    @property
    def counted_index(self) -> frozenset[Spot]:
        """Where code has indexed by counted numbers."""
        return frozenset(self._counted.found)

    def is_counted(self, thing: Any) -> bool:
        """Whether a thing is made of numbers that code counts, or reads."""
        read = self.reads.leaf if self.reads is not None else self.of_places
        is_symbol = isinstance(thing, (torch.SymInt, torch.SymFloat))
        return is_symbol and bool(self.of_places(thing.node.expr) or read(thing.node.expr))

    def part(self, size: Any, whole: Any) -> Any:
        """The length of a part of a dimension, as a size that may vary; None where it may not."""
        return None if self.reads is None else self.reads.part(size, whole)

    def hide(self, tensor: torch.Tensor) -> None:
        """Know nothing of a tensor's elements, which are others at other runs."""
        self._known.hide(self.recorder.value_of(tensor))

    def lies(self, condition: Any) -> bool:
        """Whether a part lies within what it is a part of; the answer holds for the program."""
        return bool(condition) if self.reads is None else self.reads.lies(condition)

    def check(self, leaves: Iterable[Any]) -> None:
        """Refuse a program that leaves, as these, what no run could leave."""
        leaves = list(leaves)
        self._counted.check(leaves)
        self._check_attributes(leaves)
        self._tensor_index.check(leaves)
        self._check_draws()

    def _derive(self, number: torch.SymInt | torch.SymFloat) -> Value | None:
        """An input for what Python computes of numbers in places, beyond what the program itself does."""
        leaf = None if self._in_backward else self.of_places(number.node.expr)
        if leaf is None:
            if self.reads is not None and not self._in_backward:
                self.reads.compute(number.node.expr)
            return self.recorder.numbers.get(number.node.expr)
        found = leaf.value([entry.number for entry in self.trace.numbers])
        kind = "float" if isinstance(number, torch.SymFloat) else "int"
        value = Value("input", (), NumberType(kind), name="computed")
        self.recorder.numbers[number.node.expr] = value
        self.trace.numbers.append(TracedNumber(found, value, None, None, later=leaf))
        return value

    def _argument_name(self, argument: int) -> str:
        names = self.request.argument_names
        return names[argument] if argument < len(names) else f"arg{argument}"

    def relied_on(self) -> set[int]:
        """The positions of numbers whose value decided something: the program holds for this value alone."""
        symbols = self.interception.relied_on()
        return {
            entry.argument for entry in self.trace.numbers if entry.symbol in symbols and entry.argument is not None
        }

    def places_of_one_value(self) -> set[int]:
        """Which of the requested places, by number, decided something that holds for the number of today alone."""
        places = [entry for entry in self.trace.numbers if entry.slot is not None]
        return {number for number, entry in enumerate(places) if self.interception.has_one_value(entry.symbol)}

    def conditions(self) -> tuple[Condition, ...]:
        """What must hold of the numbers in places."""
        found = ((expression, self.of_places(expression)) for expression in self.interception.conditions())
        return tuple(Condition(leaf, str(expression)) for expression, leaf in found if leaf is not None)

    def number_leaf(self, leaf: Any, *, of_arguments: bool = True) -> Any:
        """A number that is left somewhere: what each run computes of its numbers, where that is possible."""
        if isinstance(leaf, (torch.SymInt, torch.SymFloat)):
            found = self.of_places(leaf.node.expr, of_arguments=of_arguments, of_sizes=True)
            found = self.reads.leaf(leaf.node.expr) if found is None and self.reads is not None else found
            if found is not None:
                return found
        return composed(leaf, partial(self.number_leaf, of_arguments=of_arguments))

    def of_places(self, expression: Any, *, of_arguments: bool = False, of_sizes: bool = False) -> NumberLeaf | None:
        """An expression of nothing but numbers that go in: from places, and from arguments and sizes if these count."""
        known = {
            entry.symbol: place
            for place, entry in enumerate(self.trace.numbers)
            if of_arguments or entry.slot or isinstance(entry.later, Draw)
        }
        if of_sizes:  # a run has them behind its numbers
            known |= {entry.symbol: place for place, entry in enumerate(self.sizes.found, len(self.trace.numbers))}
        symbols = sorted(expression.free_symbols, key=str)
        if not symbols or not all(symbol in known for symbol in symbols):
            return None
        return leaf_of_text(lambda_text(expression, symbols), tuple(known[symbol] for symbol in symbols))

    def _adopt(self, tensor: torch.Tensor) -> TensorState:
        """Make a real tensor that the function reached by itself an input of the program.

        A tensor that is an argument too, or two arguments, is an input each time: the next call may bring others.
        """
        if id(tensor) not in self._captured:
            if self._in_backward:
                refuse("late capture", self.place())
            self._random.refuse_moment(tensor)
            self._add_input(tensor, None)
        return self._captured[id(tensor)]

    def _check_nothing_was_lost(self) -> None:
        for entry in self.trace.inputs:
            if storage_key(entry.stand_in) not in self.recorder.memories:
                refuse("memory replaced", None)
            if entry.leaf.is_leaf and entry.leaf.grad is not None:
                refuse("backward inside", None)
            if kind_of(entry.stand_in) != entry.value.type and not lie_alike_today(entry.stand_in, entry.tensor):
                refuse("input reshaped in place", None)
        self._check_lazy_bits()
        for memory in self.recorder.memories.values():
            for state in memory.inputs if memory.version else ():
                real = self._real_of[id(state.tensor)]
                argument = next(entry.argument for entry in self.trace.inputs if entry.stand_in is state.tensor)
                if argument is None and not self.request.state.may_write(real):
                    refuse("captured write", memory.base.place)

    def _check_attributes(self, leaves: Iterable[Any]) -> None:
        """Refuse to leave tensors on which Python has put attributes: each run leaves others."""
        given = {id(entry.stand_in) for entry in self.trace.inputs}
        for leaf in leaves:
            if is_stand_in(leaf) and id(leaf) not in given:
                if "_is_param" in vars(leaf):
                    refuse("made subclass", self.recorder.value_of(leaf).place)
                put = [name for name in vars(leaf) if not name.startswith("_") and name not in STAND_IN_ATTRIBUTES]
                if put:
                    refuse("tensor attribute", self.recorder.value_of(leaf).place, detail=put[0])

    def _check_lazy_bits(self) -> None:
        """Refuse to write into, or to hand on, memory that holds other numbers than its tensor stands for."""
        flipped = {id(entry.stand_in): entry for entry in self.trace.inputs if has_lazy_bit(entry.tensor)}
        if not flipped:
            return
        real = {storage_key(entry.tensor) for entry in flipped.values()}
        for memory in self.recorder.memories.values():
            own = [state.tensor for state in memory.inputs]
            touches = any(id(tensor) in flipped or storage_key(self._real_of[id(tensor)]) in real for tensor in own)
            if memory.version and touches:
                refuse("lazy bit", memory.base.place)
        shown = {storage_key(entry.stand_in) for entry in flipped.values()}
        if any(isinstance(leaf, torch.Tensor) and storage_key(leaf) in shown for leaf in self.trace.leaves):
            refuse("lazy bit", None)

    # -- the Listener protocol ----------------------------------------------------------------------------------

    def on_function(self, function: Callable[..., Any], arguments: Any, keywords: Any) -> tuple[Any, Any, Any]:
        """Refuse what leaves the world of tensors; put stand-ins in the place of real tensors."""
        if self.facts.answers(function):
            return self.facts.answer, (function, *arguments), keywords
        unmoved = stays(function, arguments, keywords)
        if unmoved is not None:
            return unmoved, arguments, keywords
        if puts_data(function):
            arguments = self._stand_ins(arguments)
            return self.memory.replaced(arguments), arguments, keywords
        kind = kind_of_refusal(function, arguments)
        is_known = kind in FROM_VALUES and (find_answer() or self._elements(arguments[0]) is not None)
        if kind is not None and not is_known:
            asked = self.reads or self.expected
            if self._in_backward or asked is None or not asked.may_ask(function, arguments):
                refuse(kind, user_place())
            return asked.ask, (function, *arguments), keywords
        self.handles = self.handles or raises_otherwise(function, arguments)
        arguments, keywords = with_lengths_in_tensors(function, arguments, keywords)
        arguments, keywords = self._stand_ins(arguments), self._stand_ins(keywords)
        of_packed = self._packed.taken(function, arguments, keywords)
        if of_packed is not None:
            return of_packed, arguments, keywords
        arguments, keywords = self._packed.themselves(function, (arguments, keywords))
        if self._unsized and not self._unsized.isdisjoint(map(id, tree_flatten((arguments, keywords))[0])):
            refuse("data-dependent shape", user_place())
        if (reads := None if self._in_backward else self.reads) is not None:
            arguments = reads.in_slices(function, arguments, self._elements)
        counted = self._counted.replaced(function, arguments, keywords)
        counted = counted or self._tensor_index.replaced(function, arguments)
        if counted is None and reads is not None:
            counted = reads.replaced(function, arguments, self._elements)
        if counted is not None:
            return counted, arguments, keywords
        whole = taken_whole(function, arguments, keywords)
        return self.request.sized.taken((whole, with_check(whole)), arguments, keywords)

    def real_inputs(self) -> Mapping[Value, Any]:
        """What goes in, as this call has it."""
        tensors = {entry.value: resolved(entry.tensor) for entry in self.trace.inputs}
        return tensors | {entry.value: entry.number for entry in self.trace.numbers}

    def _elements(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The elements of a tensor that are the same at every run."""
        with outside_tracing():
            return self._known.elements(self.recorder.value_of(tensor))

    def constant(self, stand_in: torch.Tensor) -> torch.Tensor | None:
        """A real tensor in the place of a stand-in whose elements are the same at every run."""
        if stand_in.requires_grad or id(stand_in) not in self.recorder.states:
            return None
        return self._known.copy(self.recorder.value_of(stand_in))

    def _stand_ins(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            if is_stand_in(item) or type(item) not in PLAIN_TYPES or is_transformed(item):
                if unmaterialised(item):
                    raise refuse_unmaterialised(self.request.name)
                return item
            return (self._captured.get(id(item)) or self.recorder.state_of(item)).tensor
        if type(item) is Noting:
            item.looked_at = True  # PyTorch reads it without asking it
        if type(item) in (list, tuple, Noting):
            kind = list if type(item) is Noting else type(item)
            return kind(self._stand_ins(entry) for entry in item)
        return {name: self._stand_ins(entry) for name, entry in item.items()} if type(item) is dict else item

    def on_operator(self, operator: Operator, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Record an operator."""
        operator = REPLACEMENTS.get(name_of(operator), operator)
        target, place = name_of(operator), self.place()
        if self.request.finds_sizes and self.reads is not None and not self._in_backward:
            arguments = self.reads.with_sizes(target, arguments)
        if target in VALUE_OPERATORS:
            return self._read_value(operator, arguments)
        if target == "aten.lift_fresh.default" and not is_stand_in(arguments[0]):
            return self._constant(arguments[0])
        generator = keywords.get("generator")
        if not self._generators.may_draw(generator):
            refuse("generator", place)
        if target == SUM and self._sums is not None and self._sums.is_in_place(arguments, keywords):
            return self._sum_in_place(*arguments)
        random = self._random if is_random(target) and self._generators.is_default(generator) else None
        if random is not None:
            with outside_tracing():
                random.before_random_operator()
        try:
            result = self.recorder.record(operator, arguments, keywords, self._runner(operator, target))
        except DATA_DEPENDENT:
            return self._find_sizes(operator, arguments, keywords)
        except NO_SHAPE_RULE:
            refuse("no shape rule", place, detail=str(operator))
        if random is not None:
            with outside_tracing():
                random.after_random_operator()
        return result

    def _find_sizes(self, operator: Operator, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Record an operator whose results are as large as values say."""
        target = name_of(operator)
        with self.interception.plainly():
            as_kernel(operator, target, (arguments, keywords), None)  # it raises what the kernel does
        found = self._known_sizes.result(operator, arguments, keywords)
        if found is None and self.reads is not None and not self._in_backward:
            found = self.reads.find(operator, arguments, keywords)
        if found is None and target in UNSIZED:
            found = self._hand_out_unsized(target, operator, arguments, keywords)
        if found is None:
            refuse("data-dependent shape", self.place(), detail=str(operator))
        return found

    def _sum_in_place(self, first: torch.Tensor, second: torch.Tensor) -> Any:
        """Record a sum that lies in memory as its first tensor does."""
        copy = self.on_operator(torch.ops.aten.clone.default, (first,), {})
        return self.on_operator(torch.ops.aten.add_.Tensor, (copy, second), {})

    def _results(self, call: Call, builder: CallBuilder, run: Callable[[], Any]) -> Any:
        """Stand-ins for the results of a call: by their types where these are known."""
        if any(isinstance(operand.type, NumberType) for operand in builder.operands):
            return run()
        tensors = [state.tensor for state in builder.tensors]
        return self.request.result_types.results(call, tensors, self.interception, run)

    def _read_value(self, operator: Operator, arguments: tuple[Any, ...]) -> Any:
        """A tensor's elements become a Python value: possible only where they are the same at every run."""
        values = [self.recorder.value_of(argument) for argument in arguments]
        with outside_tracing():
            elements = [self._known.elements(value) for value in values]
            if all(known is not None for known in elements):
                return operator(*elements)
        found, asked = find_answer(), self.reads or self.expected
        if found is None and asked is not None and not self._in_backward:
            return asked.ask_by_operator(operator, values)
        if found is None:
            refuse(VALUE_OPERATORS[name_of(operator)], self.place(), detail=str(operator))
        answer, frame = found
        with self.interception.plainly():
            check = answer.check_of(frame, self.recorder.value_of)
        if check is not None:
            told = map(self.recorder.value_of, check.told)
            self.recorder.emit("library", (values[0], *told), NOTHING, call=check.call())
        return answer.answer

    def _hand_out_unsized(self, target: str, operator: Operator, arguments: Any, keywords: Any) -> Any:
        """Record an operator whose results have sizes that only a run knows: they can be returned, no more."""
        kinds = unsized_types(target, arguments[0])
        empty = [self.interception.empty(contiguous(kind.dtype, (0,), kind.device)) for kind in kinds]
        self._unsized.update(map(id, empty))
        return self.recorder.record_unsized(operator, arguments, keywords, list(zip(empty, kinds, strict=True)))

    def _runner(self, operator: Operator, target: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        def run(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            if self.recorder.varies and has_symbols((arguments, keywords)):
                with self.interception.plainly():
                    found = result_by_symbols(target, arguments, keywords, self.interception)
                # Kernels are asked in the trace beside.
                return self._by_rule(operator, target, arguments, keywords) if found is None else found
            with self.interception.plainly():
                row = row_by_rule(target, arguments, keywords)
                if row is None and stays_in_place(target, arguments, keywords):
                    return arguments[0]
            if row is not None:
                return stand_ins(row, arguments, self.interception)
            result = self._by_rule(operator, target, arguments, keywords)
            correct = CORRECTIONS.get(target)
            with self.interception.plainly():
                right = result if correct is None else correct(result, arguments)
                return as_kernel(
                    operator, target, (arguments, keywords), correct_strides(operator, right, arguments, keywords)
                )

        return run

    def _by_rule(self, operator: Operator, target: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """What PyTorch's rule says; where that refuses what the kernel takes, what the kernel says."""
        try:
            return self.interception.run(operator, arguments, keywords)
        except (*DATA_DEPENDENT, NO_SHAPE_RULE):
            raise
        except RULES_RAISE:
            if has_symbols((arguments, keywords)):
                raise  # the kernel would tell of the sizes of this call alone
            with self.interception.plainly():
                found = result_of_kernel(operator, target, (arguments, keywords))
                if found is None:
                    raise
                if any(getattr(leaf, "layout", torch.strided) is not torch.strided for leaf in tree_flatten(found)[0]):
                    refuse("layout", self.place())
                return tree_map_only(torch.Tensor, lambda real: self.interception.placeholder(kind_of(real)), found)

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """Data written in the program text (torch.tensor([1, 2])): a constant, in new memory at each run."""
        with outside_tracing():
            data = tensor.detach().clone()
        stand_in, _ = self.interception.stand_in(data)
        dress_result(stand_in)
        constant = self.recorder.emit("constant", (), kind_of(stand_in), tensor=data)
        self.recorder.add_result(stand_in, self.recorder.copy(constant))
        return stand_in

    def place(self) -> Place | None:
        """The user's line that runs, or in a backward the one that its operators come from."""
        if (number := running_autograd_number()) is not None:
            return self._places.get(number)
        if (place := user_place()) is not None:
            self._places[next_autograd_number() - 1] = place
        return place
