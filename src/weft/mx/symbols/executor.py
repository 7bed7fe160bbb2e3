"""Bind a symbol to arrays: `simple_bind`, `bind`, `eval` and what they give."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.mx.arrays.gradients import backward
from weft.mx.arrays.ndarray import NDArray, zeros
from weft.mx.arrays.tape import Variable, modes
from weft.mx.base.context import Context, current_context
from weft.mx.base.errors import MXNetError
from weft.mx.symbols.graph import GraphFunction
from weft.mx.symbols.symbol import BODIES, STORAGE_TYPES, Symbol, SymbolNode


class Executor:
    """A symbol with the arrays that its variables are."""

    def __init__(self, symbol: Symbol, arrays: tuple[dict[str, NDArray], ...], requests: Mapping[str, str]) -> None:
        self.symbol = symbol
        self.arg_dict, self.grad_dict, self.aux_dict = arrays
        self._requests = requests
        self._names = symbol.list_inputs()
        twice = sorted({name for name in self._names if self._names.count(name) > 1})
        if twice:
            raise MXNetError(f"several variables are named {twice[0]}: which array one is, cannot be said")
        self._function = GraphFunction(symbol, self._names)
        self._recorded: list[NDArray] = []
        self.outputs: list[NDArray] = []
        self._monitor: tuple[Callable[[str, NDArray], Any], Symbol, GraphFunction] | None = None

    @property
    def arg_arrays(self) -> list[NDArray]:
        """The arrays of the arguments."""
        return list(self.arg_dict.values())

    @property
    def grad_arrays(self) -> list[NDArray | None]:
        """Where gradients are written, for each argument."""
        return [self.grad_dict.get(name) for name in self.arg_dict]

    @property
    def aux_arrays(self) -> list[NDArray]:
        """The arrays of the auxiliary states."""
        return list(self.aux_dict.values())

    @property
    def output_dict(self) -> dict[str, NDArray]:
        """The outputs by their names."""
        return dict(zip(self.symbol.list_outputs(), self.outputs, strict=True))

    def forward(self, is_train: bool = False, **given: Any) -> list[NDArray]:
        """Compute the outputs."""
        for name, value in given.items():
            if name not in self.arg_dict:
                raise TypeError(f"Unknown argument {name}")
            if not isinstance(value, (NDArray, np.ndarray)):
                raise ValueError("only accept keyword argument of NDArrays and numpy.ndarray")  # noqa: TRY004  # MXNet's
            array = self.arg_dict[name]
            if array.shape != value.shape:
                raise ValueError(f"Shape not match! Argument {name}, need: {array.shape}, received: {value.shape}")
            array[:] = value
        values = {**self.arg_dict, **self.aux_dict}
        inputs = [values[name].detach() for name in self._names]
        for name, array in zip(self._names, inputs, strict=True):
            request = self._requests.get(name, "null")
            if is_train and name in self.grad_dict and request != "null":
                array.variable = Variable(self.grad_dict[name], request)
        before = modes.recording, modes.training
        modes.recording, modes.training = bool(is_train), bool(is_train)
        try:
            self.outputs = self._function.call("executor", inputs)
            if self._monitor is not None:
                modes.recording = False
                callback, watched, function = self._monitor
                for name, array in zip(watched.list_outputs(), function.call("monitor", inputs), strict=True):
                    callback(name, array)
        finally:
            modes.recording, modes.training = before
        self._recorded = self.outputs if is_train else []
        return self.outputs

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:  # noqa: ARG002
        """Write the gradients of the arguments."""
        if not self._recorded:
            raise MXNetError("backward needs a forward(is_train=True) before it")
        given = [out_grads] if isinstance(out_grads, NDArray) else out_grads
        heads = [head for head in self._recorded if head.entry is not None]
        if heads:
            backward(heads, given)
        self._recorded = []

    def debug_str(self) -> str:
        """The operators with their inputs and parameters, as text."""
        return debug_text(self.symbol)

    def set_monitor_callback(self, callback: Callable[[str, NDArray], Any], monitor_all: bool = False) -> None:
        """Have a function see the outputs of all operators: each forward computes them once more for it."""
        entries = self.symbol.get_internals().entries
        watched = Symbol([entry for entry in entries if monitor_all or entry[0].row is not None])
        self._monitor = callback, watched, GraphFunction(watched, self._names)

    def reshape(self, partial_shaping: bool = False, allow_up_sizing: bool = False, **shapes: Any) -> Executor:
        """The same for inputs of other sizes; arrays whose sizes stay are the same."""
        _ = partial_shaping
        for name, shape in shapes.items():
            if not allow_up_sizing and math.prod(shape) > math.prod(self.arg_dict[name].shape):
                raise MXNetError(
                    f"New shape of arg: {name} is larger than original: begin with the large one, or allow_up_sizing"
                )
        context = next(iter(self.arg_dict.values())).context
        requests = {name: self._requests[name] if name in self.grad_dict else "null" for name in self.arg_dict}
        made = simple_bind(self.symbol, context, requests, None, **shapes)
        for part in ("arg_dict", "grad_dict", "aux_dict"):
            ours, theirs = getattr(made, part), getattr(self, part)
            ours.update({name: theirs[name] for name in ours if theirs[name].shape == ours[name].shape})
        return made

    def copy_params_from(
        self,
        arg_params: Mapping[str, NDArray],
        aux_params: Mapping[str, NDArray] | None = None,
        allow_extra_params: bool = False,
    ) -> None:
        """Copy arrays into those of the arguments and auxiliary states."""
        for names, arrays in ((self.arg_dict, arg_params), (self.aux_dict, aux_params or {})):
            for name, array in arrays.items():
                if name in names:
                    array.astype(names[name].dtype).copyto(names[name])
                elif not allow_extra_params:
                    raise ValueError(f'Find name "{name}" that is not in the arguments')


def simple_bind(
    symbol: Symbol,
    ctx: Context | None = None,
    grad_req: Any = "write",
    type_dict: Mapping[str, Any] | None = None,
    **shapes: Any,
) -> Executor:
    """Make the arrays of all variables, of the sizes that follow from some."""
    try:
        return _simply_bound(symbol, ctx or current_context(), grad_req, type_dict, shapes)
    except MXNetError as error:  # MXNet's class and text
        shown = "".join(f"{name}: {shape}\n" for name, shape in shapes.items())
        raise RuntimeError(f"simple_bind error. Arguments:\n{shown}{error}") from error


def _simply_bound(
    symbol: Symbol, context: Context, grad_req: Any, type_dict: Mapping[str, Any] | None, shapes: Mapping[str, Any]
) -> Executor:
    arguments, auxiliary = symbol.variables()
    known = {node.name for node in (*arguments, *auxiliary)}  # MXNet takes no notice of others
    found = symbol._infer({name: shape for name, shape in shapes.items() if name in known}, type_dict)
    unknown = [node.name for node in (*arguments, *auxiliary) if 0 in found.get((node, 0), ((0,), None))[0]]
    if unknown:
        raise MXNetError(
            "InferShape pass cannot decide shapes for the following arguments (-1 means unknown dimensions). Please "
            f"consider providing them as inputs:\n{''.join(f'{name}: None, ' for name in unknown)}"
        )
    requests = _requests(grad_req, [node.name for node in arguments])
    made = [{node.name: zeros(*_kind(found, node, context)) for node in part} for part in (arguments, auxiliary)]
    grads = {name: zeros(x.shape, context, x.dtype, "default" if x.stype == "csr" else x.stype)
             for name, x in made[0].items() if requests[name] != "null"}  # fmt: skip
    return Executor(symbol, (made[0], grads, made[1]), requests)


def _kind(found: Any, node: SymbolNode, context: Context) -> tuple[Any, Context, Any, str]:
    shape, dtype = found[node, 0]
    return shape, context, dtype, STORAGE_TYPES[int(node.attributes.get("__storage_type__", 0))]


def _requests(given: Any, names: Sequence[str]) -> dict[str, str]:
    if isinstance(given, str):
        return dict.fromkeys(names, given)
    if isinstance(given, Mapping):
        return {name: given.get(name, "null") for name in names}
    return dict(zip(names, given, strict=True))


def _named(given: Any, names: Sequence[str], what: str, *, partly: bool = False) -> dict[str, NDArray]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        missing = [name for name in names if name not in given]
        if missing and not partly:
            raise ValueError(f"key `{missing[0]}` is missing in `{what}`")
        return {name: given[name] for name in names if name in given}
    if len(given) != len(names):
        raise ValueError(f"Length of {what} does not match the number of arguments")
    return {name: array for name, array in zip(names, given, strict=True) if array is not None}


def bind(
    symbol: Symbol,
    ctx: Context | None = None,
    args: Any = None,
    args_grad: Any = None,
    grad_req: Any = "write",
    aux_states: Any = None,
    **_given: Any,
) -> Executor:
    """Bind a symbol to arrays that are there."""
    _ = ctx
    names = symbol.list_arguments()
    aux = _named(aux_states, symbol.list_auxiliary_states(), "aux_states")
    arrays = (_named(args, names, "args"), _named(args_grad, names, "args_grad", partly=True), aux)
    return Executor(symbol, arrays, _requests(grad_req, names))


def evaluate(symbol: Symbol, ctx: Context | None = None, **given: NDArray) -> list[NDArray]:
    """Compute a symbol with these arrays."""
    return bind(symbol, ctx, given).forward()


def debug_text(symbol: Symbol) -> str:
    """The operators with their inputs and parameters, as text."""
    lines = [f"\toutput[{place}]={node.name}({number})" for place, (node, number) in enumerate(symbol.entries)]
    lines = ["Symbol Outputs:", *lines] if len(lines) > 1 or symbol.entries[0][0].row is not None else []
    written: dict[SymbolNode, int] = {}
    for node in symbol.nodes():
        if node.row is None:
            lines.append(f"Variable:{node.name}")
            continue
        lines += ["-" * 20, f"Op:{node.row.name}, Name={node.name}", *(["Inputs:"] if node.inputs else [])]
        for place, (source, number) in enumerate(node.inputs):
            written[source] = written.get(source, 0) + (place in node.row.rule.aux)
            version = f" version={written[source]}" if source.row is None else ""
            lines.append(f"\targ[{place}]={source.name}({number}){version}")
        texts = sorted({**node.texts, **node.attributes}.items())
        lines += [*(["Attrs:"] if texts else []), *(f"\t{key}={text}" for key, text in texts if key != BODIES)]
    return "\n".join([*lines, ""])


METHODS = {"simple_bind": simple_bind, "bind": bind, "eval": evaluate, "debug_str": debug_text}
for _name, _function in METHODS.items():
    setattr(Symbol, _name, _function)
