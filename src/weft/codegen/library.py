"""A LibraryPlan -> a Python function that runs it, one line a call.

Generated text is the shortest way from a plan to operators: no loop, no lookup, and the failing line says which
operator failed, so that an exception gets the user's line.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from weft.codegen.numbers import number_tensors, numbers_together
from weft.errors import source_line
from weft.ir.calls import Argument, Call, Hole, Operand, ViewStep, WrittenArgument, flat_results
from weft.ir.graph import Value
from weft.ir.interpreter import evaluate
from weft.ir.library import resolve
from weft.ir.types import TensorType
from weft.plan.library_plan import LibraryPlan, Step

FILENAME = "<weft program>"
Run = Callable[..., tuple[Any, ...]]
Native = Callable[..., tuple[torch.Tensor, ...]]


class LibraryExecutable:
    """Runs a plan: takes the inputs in order, gives the outputs in order."""

    def __init__(self, plan: LibraryPlan, natives: Sequence[Native] = ()) -> None:
        self.plan = plan
        self.natives = tuple(natives)
        self._writer = _Writer(plan, self.natives)
        self.source = self._writer.source()
        code: CodeType = compile(self.source, FILENAME, "exec")
        exec(code, self._writer.names)
        self._run: Run = self._writer.names["run"]

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run the plan."""
        try:
            # Operators may look at the grad mode (oneDNN keeps a workspace for training), so it stays as it is; what
            # must not happen is that they record themselves for autograd.
            with torch._C._AutoDispatchBelowAutograd():
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

    def __init__(self, plan: LibraryPlan, natives: Sequence[Native] = ()) -> None:
        self.plan = plan
        self.natives = natives
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
        self.names[name] = resolve(target)
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

    def view(self, base: str, step: ViewStep) -> str:
        """The text of a view step taken of a variable."""
        text = self.call(
            step.target, step.arguments, step.keywords, lambda item: base if isinstance(item, Hole) else None
        )
        return text if step.item is None else f"{text}[{step.item}]"


def _emit_library(writer: _Writer, step: Step) -> list[str]:
    value = step.value
    call: Call = value.attributes["call"]
    names = [writer.variables[operand] for operand in value.operands]
    text = writer.call(
        call.target,
        call.arguments,
        call.keywords,
        lambda item: names[item.index] if isinstance(item, Operand) else None,
    )
    if not isinstance(value.type, TensorType):
        text = f"flat({text})"
    return [f"{writer.variables[value]} = {text}"]


def _emit_update(writer: _Writer, step: Step) -> list[str]:
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
            text = writer.view(text, view)
        lines.append(f"{name}_w{index} = {text}")

    def fill(item: Argument) -> str | None:
        if isinstance(item, WrittenArgument):
            return f"{name}_w{item.index}"
        return names[item.index] if isinstance(item, Operand) else None

    written = [f"{name}_w{index}" for index in range(len(call.written))]
    text = writer.call(call.target, call.arguments, call.keywords, fill)
    ends = ", ".join(bases.values())
    single = isinstance(value.type, TensorType)
    lines.append(f"{name}_r = {text}")
    lines.append(f"{name} = pick({name}_r, ({', '.join(written)},), ({ends},))" + ("[0]" if single else ""))
    lines.append(f"del {', '.join([*bases.values(), *written, name + '_r'])}")
    return lines


def _emit_native(writer: _Writer, step: Step) -> list[str]:
    region = writer.constant(writer.natives[step.value.attributes["region"]])
    operands = ", ".join(writer.variables[operand] for operand in step.value.operands)
    return [f"{writer.variables[step.value]} = {region}({operands})"]


def _emit_item(writer: _Writer, step: Step) -> list[str]:
    operand = writer.variables[step.value.operands[0]]
    return [f"{writer.variables[step.value]} = {operand}[{step.value.attributes['index']}]"]


def _emit_constant(writer: _Writer, step: Step) -> list[str]:
    return [f"{writer.variables[step.value]} = {writer.constant(step.value.attributes['tensor'])}"]


def _emit_random_state(writer: _Writer, step: Step) -> list[str]:
    return [f"{writer.variables[step.value]} = {writer.constant(torch.get_rng_state)}()"]


def _emit_set_random_state(writer: _Writer, step: Step) -> list[str]:
    operand = writer.variables[step.value.operands[0]]
    return [f"{writer.constant(torch.set_rng_state)}({operand})", f"{writer.variables[step.value]} = None"]


def _emit_small(writer: _Writer, step: Step) -> list[str]:
    """A small op: the interpreter's rule for it, which is PyTorch's function of that name."""
    value = step.value
    rule = writer.constant(partial(evaluate, value))
    operands = ", ".join(writer.variables[operand] for operand in value.operands)
    return [f"{writer.variables[value]} = {rule}([{operands}])"]


def _emit_scalar(writer: _Writer, step: Step) -> list[str]:
    together = writer.numbers_together.get(step.value)
    if together is None:
        return _emit_small(writer, step)
    if step.value is not together.values[0]:
        return []  # with the first
    make = writer.constant(partial(number_tensors, together.kind, together.dtype))
    numbers = ", ".join(writer.variables[value.operands[0]] for value in together.values)
    return [f"{', '.join(writer.variables[value] for value in together.values)}, = {make}(({numbers},))"]


EMIT: dict[str, Callable[[_Writer, Step], list[str]]] = {
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


# How often a tensor was written, without the Python property around it: it is asked at every call.
version_of: Callable[[torch.Tensor], int] = torch._C.TensorBase._version.__get__  # type: ignore[attr-defined]


def storage_owners(tensor: torch.Tensor) -> int:
    """Count who holds a tensor's memory: the tensor itself, views, aliases, arrays of other libraries."""
    storage = tensor.untyped_storage()
    # One of the owners is `storage`, here.
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each tensor to another one: in one call, as PyTorch hands over the interpreter's lock in each."""
    torch._foreach_copy_(list(targets), list(sources))


# Optimizers with `fused=True` write parameters by these, and the parameters' versions stay as they were.
FUSED_UPDATES = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")


def wrap_fused_updates(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put what `wrap` gives in the place of each function that updates the parameters in its first argument."""
    for name in FUSED_UPDATES:
        setattr(torch, name, wrap(getattr(torch, name)))


ANY_BIT, BYTE = (1 << 64) - 1, 0xFF
TRACER: int = torch._C._dispatch_key_parse("Tracer").value  # not a name of the enumeration
# What tells a thread's modes: library, function, the number it takes, the bits of its answer that count.
MODE_FUNCTIONS = (
    ("libc10", "_ZN3c108GradMode10is_enabledEv", 0, BYTE),
    ("libc10", "_ZN3c1013InferenceMode10is_enabledEv", 0, BYTE),
    ("libc10", "_ZN3c1031get_default_dtype_as_scalartypeEv", 0, BYTE),
    ("libc10", "_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb", 0, BYTE),
    ("libtorch_cpu", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", 0, ANY_BIT),
    ("libtorch_cpu", "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", 0, BYTE),  # 0: CPU
    ("libtorch_cpu", "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", 1, BYTE),  # 1: CUDA
    (
        "libc10",
        "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
        torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode.value,
        BYTE,
    ),
    # torch.jit.trace
    ("libc10", "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE", TRACER, BYTE),
)
TENSOR_FUNCTIONS = (
    ("libtorch_cpu", "aoti_torch_empty_strided"),
    ("libtorch_cpu", "aoti_torch_delete_tensor_object"),
    ("libtorch_python", "_Z16THPVariable_WrapRKN2at10TensorBaseE"),
)
# What tells what lazy code asks of its thread, as (library, function, the number it takes): flags; then whether
# functions are intercepted, by how many modes, and the default type.
THREAD_FUNCTIONS = (
    *((library, name, number) for library, name, number, _ in (*MODE_FUNCTIONS[:2], MODE_FUNCTIONS[3])),
    *((library, name, number) for library, name, number, _ in (MODE_FUNCTIONS[5], MODE_FUNCTIONS[7])),
    ("libtorch_cpu", "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv", 0),
    *((library, name, number) for library, name, number, _ in (MODE_FUNCTIONS[4], MODE_FUNCTIONS[2])),
)
COPY_FUNCTIONS = (
    ("libtorch_cpu", "aoti_torch__reinterpret_tensor"),
    ("libtorch_python", "_Z16THPVariable_WrapRKN2at10TensorBaseEP11_typeobject"),
    ("libtorch_cpu", "aoti_torch_delete_tensor_object"),
)


def thread_functions() -> tuple[tuple[int, int], ...] | None:
    """Give (address, number) of the functions that tell what lazy code asks of its thread; None if one is missing."""
    places = [_exported(library, name) for library, name, _ in THREAD_FUNCTIONS]
    numbers = (number for *_, number in THREAD_FUNCTIONS)
    return (
        None if None in places else tuple((place or 0, number) for place, number in zip(places, numbers, strict=True))
    )


def copy_functions() -> tuple[int, int, int] | None:
    """Give the addresses of: make a tensor of another's memory, make an object of a class of it, delete its handle."""
    copy, wrap, delete = (_exported(library, name) for library, name in COPY_FUNCTIONS)
    return None if copy is None or wrap is None or delete is None else (copy, wrap, delete)


def dispatch_keys(tensor: torch.Tensor) -> int:
    """Give the set of a tensor's dispatch keys as the word that the tensor has it in."""
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def mode_functions() -> tuple[tuple[int, int, int], ...] | None:
    """Give (address, number, bits) of the functions that tell a thread's modes; None if this PyTorch lacks one."""
    places = [_exported(library, name) for library, name, *_ in MODE_FUNCTIONS]
    if None in places:
        return None
    rows = zip(places, MODE_FUNCTIONS, strict=True)
    return tuple((place or 0, number, bits) for place, (_, _, number, bits) in rows)


def tensor_functions() -> tuple[int, int, int] | None:
    """Give the addresses of: make a tensor, delete its handle, make Python's object of it; None if one is missing."""
    empty, delete, wrap = (_exported(library, name) for library, name in TENSOR_FUNCTIONS)
    return None if empty is None or delete is None or wrap is None else (empty, delete, wrap)


def _exported(library: str, name: str) -> int | None:
    file = Path(torch.__file__).parent / "lib" / f"{library}.so"
    try:
        # Loaded long ago: this only finds it again.
        return ctypes.cast(getattr(ctypes.CDLL(str(file)), name), ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None
