"""Write the Python function that runs a LibraryPlan, one line a call.

Generated text is the shortest way from a plan to operators: no loop, no lookup, and the failing line says which
operator failed, so that an exception gets the user's line.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType, MappingProxyType
from typing import Any

import torch

from weft.codegen.torch_functions import below_autograd
from weft.errors import source_line
from weft.ir.generator import generator_state
from weft.ir.graph import Value
from weft.ir.interpreter import evaluate
from weft.ir.library import Argument, Call, Hole, Operand, ViewStep, WrittenArgument, flat_results, resolve
from weft.ir.types import NumberType, TensorType, UnsizedType
from weft.plan.library_plan import LibraryPlan, LibraryStep

FILENAME = "<weft program>"
Run = Callable[..., tuple[Any, ...]]
Native = Callable[..., tuple[torch.Tensor, ...]]
TYPES = {"int": ("q", torch.int64), "float": ("d", torch.float64)}  # of an array, and of PyTorch, by kind of number


class LibraryExecutable:
    """Runs a plan: takes the inputs in order, gives the outputs in order."""

    def __init__(
        self,
        plan: LibraryPlan,
        natives: Sequence[Native] = (),
        operators: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        """With `operators`, what runs in the place of some of PyTorch's."""
        self.plan = plan
        self.natives = tuple(natives)
        self._writer = _Writer(plan, self.natives, operators)
        self.source = self._writer.source()
        code: CodeType = compile(self.source, FILENAME, "exec")
        exec(code, self._writer.names)
        self._run: Run = self._writer.names["run"]

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run the plan."""
        try:
            # Operators may look at the grad mode (oneDNN keeps a workspace for training), so it stays as it is; what
            # must not happen is that they record themselves for autograd.
            with below_autograd():
                return self._run(*inputs)
        except Exception as error:
            self._explain(error)
            raise

    def _explain(self, error: Exception) -> None:
        """Add the user's line to an operator's exception."""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == FILENAME:
                place = self._writer.places.get(trace.tb_lineno)
                if place is not None and hasattr(error, "add_note"):
                    error.add_note(f"  where {source_line(place.filename, place.line)}")
                return
            trace = trace.tb_next


class _Writer:
    """Writes the text of a plan's function."""

    def __init__(
        self, plan: LibraryPlan, natives: Sequence[Native], operators: Mapping[str, Callable[..., Any]]
    ) -> None:
        self.plan = plan
        self.natives = natives
        self.operators = operators
        self.names: dict[str, Any] = {"own": _own_copy, "flat": flat_results, "pick": _pick}
        self.variables: dict[Value, str] = {value: f"i{index}" for index, value in enumerate(plan.inputs)}
        self.places: dict[int, Any] = {}
        self.lines: list[str] = []
        self.numbers_together = numbers_together(plan)

    def source(self) -> str:
        """The whole text."""
        self.lines.append(f"def run({', '.join(self.variables.values())}):")
        self.variables |= {step.value: f"v{index}" for index, step in enumerate(self.plan.steps)}
        for step in self.plan.steps:
            for line in EMIT.get(step.value.op, _emit_small)(self, step):
                self.lines.append("    " + line)
                self.places[len(self.lines)] = step.value.place
            dying = [self.variables[value] for value in step.dying]
            if dying:
                self.lines.append(f"    del {', '.join(dying)}")
        outputs = "".join(f"{self.variables[value]}, " for value in self.plan.outputs)
        self.lines.append(f"    return ({outputs})")
        return "\n".join(self.lines)

    def constant(self, value: Any) -> str:
        """A name for a Python object."""
        if isinstance(value, (int, str, bool, type(None))):
            return repr(value)
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def operator(self, target: str) -> str:
        """A name for an operator."""
        name = target.replace(".", "_")
        self.names[name] = self.operators.get(target) or resolve(target)
        return name

    def call(self, target: str, arguments: Any, keywords: Any, fill: Callable[[Argument], str | None]) -> str:
        """The text of a call; `fill` gives the text of arguments that are not literals."""
        parts = [self._argument(argument, fill) for argument in arguments]
        parts += [f"{name}={self._argument(argument, fill)}" for name, argument in keywords]
        return f"{self.operator(target)}({', '.join(parts)})"

    def _argument(self, argument: Argument, fill: Callable[[Argument], str | None]) -> str:
        if isinstance(argument, tuple):
            return "[" + ", ".join(self._argument(item, fill) for item in argument) + "]"
        return fill(argument) or self.constant(argument)

    def view(self, base: str, step: ViewStep, names: Sequence[str]) -> str:
        """The text of a view step taken of a variable; numbers among its arguments are variables."""

        def fill(item: Argument) -> str | None:
            if isinstance(item, Operand):
                return names[item.index]
            return base if isinstance(item, Hole) else None

        text = self.call(step.target, step.arguments, step.keywords, fill)
        return text if step.item is None else f"{text}[{step.item}]"


def _emit_library(writer: _Writer, step: LibraryStep) -> list[str]:
    value = step.value
    call: Call = value.attributes["call"]
    names = [writer.variables[operand] for operand in value.operands]
    text = writer.call(
        call.target,
        call.arguments,
        call.keywords,
        lambda item: names[item.index] if isinstance(item, Operand) else None,
    )
    if not isinstance(value.type, TensorType | UnsizedType):
        text = f"flat({text})"
    return [f"{writer.variables[value]} = {text}"]


def _emit_update(writer: _Writer, step: LibraryStep) -> list[str]:
    value = step.value
    call: Call = value.attributes["call"]
    name = writer.variables[value]
    names = [writer.variables[operand] for operand in value.operands]
    lines: list[str] = []
    bases = {place.base: f"{name}_b{place.base}" for place in call.written}
    for position, base in bases.items():
        source = names[position]
        lines.append(f"{base} = {source if position in step.in_place else f'own({source})'}")
    for index, place in enumerate(call.written):
        text = bases[place.base]
        for view in place.path:
            text = writer.view(text, view, names)
        lines.append(f"{name}_w{index} = {text}")

    def fill(item: Argument) -> str | None:
        if isinstance(item, WrittenArgument):
            return f"{name}_w{item.index}"
        return names[item.index] if isinstance(item, Operand) else None

    written = [f"{name}_w{index}" for index in range(len(call.written))]
    text = writer.call(call.target, call.arguments, call.keywords, fill)
    ends = ", ".join(bases.values())
    single = isinstance(value.type, TensorType | UnsizedType)
    lines.append(f"{name}_r = {text}")
    lines.append(f"{name} = pick({name}_r, ({', '.join(written)},), ({ends},))" + ("[0]" if single else ""))
    lines.append(f"del {', '.join([*bases.values(), *written, name + '_r'])}")
    return lines


def _emit_native(writer: _Writer, step: LibraryStep) -> list[str]:
    region = writer.constant(writer.natives[step.value.attributes["region"]])
    operands = ", ".join(writer.variables[operand] for operand in step.value.operands)
    return [f"{writer.variables[step.value]} = {region}({operands})"]


def _emit_item(writer: _Writer, step: LibraryStep) -> list[str]:
    operand = writer.variables[step.value.operands[0]]
    return [f"{writer.variables[step.value]} = {operand}[{step.value.attributes['index']}]"]


def _emit_constant(writer: _Writer, step: LibraryStep) -> list[str]:
    return [f"{writer.variables[step.value]} = {writer.constant(step.value.attributes['tensor'])}"]


def _emit_random_state(writer: _Writer, step: LibraryStep) -> list[str]:
    return [f"{writer.variables[step.value]} = {writer.constant(generator_state)}()"]


def _emit_set_random_state(writer: _Writer, step: LibraryStep) -> list[str]:
    operand = writer.variables[step.value.operands[0]]
    return [f"{writer.constant(torch.set_rng_state)}({operand})", f"{writer.variables[step.value]} = None"]


def _emit_small(writer: _Writer, step: LibraryStep) -> list[str]:
    """A small op: the interpreter's rule for it, which is PyTorch's function of that name."""
    value = step.value
    rule = writer.constant(partial(evaluate, value))
    operands = ", ".join(writer.variables[operand] for operand in value.operands)
    return [f"{writer.variables[value]} = {rule}([{operands}])"]


def _emit_scalar(writer: _Writer, step: LibraryStep) -> list[str]:
    together = writer.numbers_together.get(step.value)
    if together is None:
        return _emit_small(writer, step)
    if step.value is not together.values[0]:
        return []  # with the first
    make = writer.constant(partial(number_tensors, together.kind, together.dtype))
    numbers = ", ".join(writer.variables[value.operands[0]] for value in together.values)
    return [f"{', '.join(writer.variables[value] for value in together.values)}, = {make}(({numbers},))"]


EMIT: dict[str, Callable[[_Writer, LibraryStep], list[str]]] = {
    "library": _emit_library,
    "update": _emit_update,
    "item": _emit_item,
    "native": _emit_native,
    "scalar": _emit_scalar,
    "constant": _emit_constant,
    "random_state": _emit_random_state,
    "set_random_state": _emit_set_random_state,
}


def _own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same sizes, strides and gaps."""
    if tensor.is_contiguous():
        return tensor.clone()
    copy = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)


def _pick(result: Any, written: tuple[torch.Tensor, ...], ends: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    """A writing operator's own results, then the new state of what it wrote."""
    fresh = [leaf for leaf in flat_results(result) if not any(leaf is tensor for tensor in written)]
    return (*fresh, *ends)


def number_tensors(kind: str, dtype: torch.dtype, numbers: Sequence[float]) -> tuple[torch.Tensor, ...]:
    """Give each number of a kind as a tensor of floats; one beyond the dtype's range is infinite, as in operators."""
    code, given = TYPES[kind]
    return torch.frombuffer(array(code, numbers), dtype=given).double().to(dtype).unbind()


@dataclass(frozen=True, slots=True)
class Together:
    """Values that are made of numbers of one kind, into tensors of one dtype, by the first of them."""

    kind: str
    dtype: torch.dtype
    values: tuple[Value, ...]


def numbers_together(plan: LibraryPlan) -> dict[Value, Together]:
    """Find numbers that are made into tensors at once.

    They share memory, so only machine code may see them, which neither hands them out nor writes to them.
    """
    seen = {operand for step in plan.steps if step.value.op != "native" for operand in step.value.operands}
    seen.update(plan.outputs)
    alike: dict[tuple[str, torch.dtype], list[Value]] = {}
    for step in plan.steps:
        kind = None if step.value in seen else _kind_and_dtype(step.value)
        if kind is not None:
            alike.setdefault(kind, []).append(step.value)
    found = [Together(*kind, tuple(values)) for kind, values in alike.items()]
    return {value: together for together in found for value in together.values}


def _kind_and_dtype(value: Value) -> tuple[str, torch.dtype] | None:
    """What a number and the tensor made of it are; None for what is made in another way."""
    if value.op != "scalar" or not isinstance(value.type, TensorType) or value.type.device.type != "cpu":
        return None
    given, dtype = value.operands[0], value.attributes["dtype"]
    if given.op != "input" or not isinstance(given.type, NumberType) or given.type.kind not in TYPES:
        return None
    return (given.type.kind, dtype) if dtype.is_floating_point else None
