"""Write a network as a torch.nn.Module that needs no `mx`: layers of torch.nn, and torch's functions between them."""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from weft.errors import UnsupportedError, UsageError
from weft.mx.arrays.ndarray import NDArray, zeros
from weft.mx.gluon.block import HybridBlock, SymbolBlock
from weft.mx.symbols import sym
from weft.mx.symbols.symbol import Entry, Symbol, SymbolNode

Writes = Callable[["_Writer", SymbolNode, Any], Any]
WRITES: dict[str, Writes] = {}


def _writes(*names: str) -> Callable[[Writes], Writes]:
    def note(function: Writes) -> Writes:
        WRITES.update(dict.fromkeys(names, function))
        return function

    return note


class _Writer:
    """A torch.fx graph that grows operator by operator."""

    def __init__(self, arrays: dict[str, Tensor], inputs: Sequence[str], kinds: Any) -> None:
        self.root = nn.Module()
        self.graph = fx.Graph()
        self._arrays = arrays
        self._kinds = kinds
        self._parameters: dict[str, nn.Parameter] = {}
        self._values: dict[Entry, Any] = {}
        self._places = {name: self.graph.placeholder(name) for name in inputs}

    def shape(self, entry: Entry) -> tuple[int, ...]:
        """The sizes of an input, where the network is given arrays like the examples."""
        found: tuple[int, ...] = self._kinds[entry][0]
        return found

    def parameter(self, entry: Entry) -> nn.Parameter:
        """A parameter, shared by all that use it."""
        name = entry[0].name
        if entry[0].row is not None or name not in self._arrays:
            raise UnsupportedError(f"{name} is computed where to_torch needs a parameter")
        if name not in self._parameters:
            given = self._arrays[name]
            self._parameters[name] = nn.Parameter(given, requires_grad=given.is_floating_point())
        return self._parameters[name]

    def value(self, entry: Entry) -> Any:
        """What an input of an operator is in the graph."""
        node, _ = entry
        if entry in self._values:
            return self._values[entry]
        if node.row is not None:
            raise UnsupportedError(f"to_torch cannot give that output of {node.name}")
        if node.name in self._places:
            return self._places[node.name]
        if not hasattr(self.root, node.name):
            self.root.register_parameter(node.name, self.parameter(entry))
        found = self._values[entry] = self.graph.get_attr(node.name)
        return found

    def module(self, node: SymbolNode, module: nn.Module, *inputs: Any) -> Any:
        """Call a layer of torch.nn that is named as the operator."""
        self.root.add_module(node.name, module)
        return self.graph.call_module(node.name, inputs)

    def call(self, function: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        """Call a function of torch."""
        return self.graph.call_function(function, inputs, options)

    def write(self, node: SymbolNode) -> None:
        """Write one operator."""
        assert node.row is not None
        rule = WRITES.get(node.row.name)
        if rule is None:
            raise UnsupportedError(
                f"to_torch does not know the operator {node.row.name} ({node.name})",
                fix="run the network with weft.mx, or write this part by hand",
            )
        found = rule(self, node, node.p)
        for place in range(node.output_count()):
            self._values[node, place] = found[place] if isinstance(found, (list, tuple)) else found


def _give(module: nn.Module, writer: _Writer, node: SymbolNode, **places: int) -> nn.Module:
    """Let parameters of a layer be those of the operator, which stand at these places among its inputs."""
    for name, place in places.items():
        setattr(module, name, writer.parameter(node.inputs[place]))
    return module


@_writes("FullyConnected")
def _linear(writer: _Writer, node: SymbolNode, p: Any) -> Any:
    x = writer.value(node.inputs[0])
    if p.flatten:
        x = writer.call(torch.flatten, x, 1)
    weight = writer.parameter(node.inputs[1])
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=not p.no_bias, device="meta")
    return writer.module(node, _give(layer, writer, node, weight=1, **({} if p.no_bias else {"bias": 2})), x)


CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def _or(given: Sequence[int], count: int, otherwise: int) -> tuple[int, ...]:
    return tuple(given) if given else (otherwise,) * count


@_writes("Convolution", "Deconvolution")
def _convolution(writer: _Writer, node: SymbolNode, p: Any) -> Any:
    assert node.row is not None
    count, across = len(p.kernel), node.row.name == "Deconvolution"
    if p.layout is not None and p.layout.endswith("C"):
        raise UnsupportedError(f"to_torch writes {node.name} only with channels first")
    weight = writer.parameter(node.inputs[1])
    width = weight.shape[0] if across else weight.shape[1] * p.num_group
    options: dict[str, Any] = {
        "kernel_size": tuple(p.kernel), "stride": _or(p.stride, count, 1), "padding": _or(p.pad, count, 0),
        "dilation": _or(p.dilate, count, 1), "groups": p.num_group, "bias": not p.no_bias, "device": "meta",
    }  # fmt: skip
    if across:
        if p.target_shape:
            raise UnsupportedError(f"to_torch cannot write {node.name}, which has a target_shape")
        options["output_padding"] = _or(p.adj, count, 0)
    layer = (TRANSPOSED if across else CONVS)[count](width, p.num_filter, **options)
    given = _give(layer, writer, node, weight=1, **({} if p.no_bias else {"bias": 2}))
    return writer.module(node, given, writer.value(node.inputs[0]))


NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


@_writes("BatchNorm")
def _batch_norm(writer: _Writer, node: SymbolNode, p: Any) -> Any:
    if p.axis != 1 or p.output_mean_var:
        raise UnsupportedError(f"to_torch writes {node.name} only along axis 1, with one output")
    gamma, beta, mean, var = (writer.parameter(entry).detach() for entry in node.inputs[1:5])
    layer = NORMS[len(writer.shape(node.inputs[0]))](gamma.shape[0], p.eps, 1 - p.momentum)
    layer.weight = nn.Parameter(torch.ones_like(gamma) if p.fix_gamma else gamma, requires_grad=not p.fix_gamma)
    layer.bias = nn.Parameter(beta)
    layer.running_mean, layer.running_var = mean.clone(), var.clone()
    return writer.module(node, layer, writer.value(node.inputs[0]))


@_writes("LayerNorm")
def _layer_norm(writer: _Writer, node: SymbolNode, p: Any) -> Any:
    shape = writer.shape(node.inputs[0])
    if p.axis % len(shape) != len(shape) - 1 or p.output_mean_var:
        raise UnsupportedError(f"to_torch writes {node.name} only along the last axis, with one output")
    layer = nn.LayerNorm(shape[-1], p.eps, device="meta")
    return writer.module(node, _give(layer, writer, node, weight=1, bias=2), writer.value(node.inputs[0]))


@_writes("Embedding")
def _embedding(writer: _Writer, node: SymbolNode, p: Any) -> Any:
    layer = nn.Embedding(p.input_dim, p.output_dim, device="meta")
    places = writer.graph.call_method("long", (writer.value(node.inputs[0]),))
    return writer.module(node, _give(layer, writer, node, weight=1), places)


POOLS: dict[str, dict[int, Callable[..., nn.Module]]] = {
    "max": {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d},
    "avg": {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d},
}
WHOLE: dict[str, dict[int, Callable[..., nn.Module]]] = {
    "max": {1: nn.AdaptiveMaxPool1d, 2: nn.AdaptiveMaxPool2d, 3: nn.AdaptiveMaxPool3d},
    "avg": {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d},
}


@_writes("Pooling")
def _pooling(writer: _Writer, node: SymbolNode, p: Any) -> Any:
    count = len(writer.shape(node.inputs[0])) - 2
    if p.pool_type not in POOLS or (p.layout is not None and p.layout.endswith("C")):
        raise UnsupportedError(f"to_torch writes {node.name} only as max or avg pooling, with channels first")
    x = writer.value(node.inputs[0])
    if p.global_pool:
        return writer.module(node, WHOLE[p.pool_type][count](1), x)
    full, pad = p.pooling_convention == "full", _or(p.pad, count, 0)
    if p.pooling_convention == "same" or (full and p.pool_type == "avg" and any(pad)):
        raise UnsupportedError(f"to_torch cannot write the pooling_convention {p.pooling_convention} of {node.name}")
    options: dict[str, Any] = {"stride": _or(p.stride, count, 1), "padding": pad, "ceil_mode": full}
    if p.pool_type == "avg":
        options["count_include_pad"] = p.count_include_pad is not False
    return writer.module(node, POOLS[p.pool_type][count](tuple(p.kernel), **options), x)


BENDS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "softrelu": nn.Softplus,
    "softsign": nn.Softsign,
}


@_writes("Activation")
def _activation(writer: _Writer, node: SymbolNode, p: Any) -> Any:
    return writer.module(node, BENDS[p.act_type](), writer.value(node.inputs[0]))


@_writes("LeakyReLU")
def _leaky(writer: _Writer, node: SymbolNode, p: Any) -> Any:
    x = writer.value(node.inputs[0])
    layers: dict[str, Callable[[], nn.Module]] = {
        "leaky": lambda: nn.LeakyReLU(p.slope),
        "elu": lambda: nn.ELU(p.slope),
        "selu": nn.SELU,
        "gelu": nn.GELU,
        "rrelu": lambda: nn.RReLU(p.lower_bound, p.upper_bound),
    }
    if p.act_type == "prelu":
        return writer.module(node, _give(nn.PReLU(), writer, node, weight=1), x)
    return writer.module(node, layers[p.act_type](), x)


@_writes("Dropout")
def _dropout(writer: _Writer, node: SymbolNode, p: Any) -> Any:
    if p.axes or p.mode == "always":
        raise UnsupportedError(f"to_torch writes {node.name} only for all elements, in training")
    return writer.module(node, nn.Dropout(p.p), writer.value(node.inputs[0]))


@_writes("Reshape")
def _reshape(writer: _Writer, node: SymbolNode, p: Any) -> Any:
    if p.reverse or any(code < -1 for code in p.shape):
        raise UnsupportedError(f"to_torch cannot write the shape {p.shape} of {node.name}")
    x = writer.value(node.inputs[0])
    sizes = [writer.graph.call_method("size", (x, axis)) if code == 0 else code for axis, code in enumerate(p.shape)]
    return writer.graph.call_method("reshape", (x, *sizes))


@_writes("SliceChannel")
def _split(writer: _Writer, node: SymbolNode, p: Any) -> Any:
    parts = writer.call(torch.chunk, writer.value(node.inputs[0]), p.num_outputs, p.axis)
    found = [writer.call(python.getitem, parts, place) for place in range(p.num_outputs)]
    return [writer.call(torch.squeeze, part, p.axis) for part in found] if p.squeeze_axis else found


@_writes("Concat", "stack")
def _joined(writer: _Writer, node: SymbolNode, p: Any) -> Any:
    assert node.row is not None
    parts = [writer.value(entry) for entry in node.inputs]
    if node.row.name == "stack":
        return writer.call(torch.stack, parts, p.axis)
    return writer.call(torch.cat, parts, p.dim)


@_writes("SoftmaxOutput")
def _softmax_output(writer: _Writer, node: SymbolNode, p: Any) -> Any:
    return writer.call(torch.softmax, writer.value(node.inputs[0]), 1 if p.multi_output else -1)


PAIRS: dict[str, Callable[..., Any]] = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
WITH_NUMBER: dict[str, Callable[..., Any]] = {
    "plus": torch.add,
    "minus": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "power": torch.pow,
}
Options = Callable[[Any], tuple[Any, ...]]


def _nothing(_p: Any) -> tuple[Any, ...]:
    return ()


def _number(p: Any) -> tuple[Any, ...]:
    return (p.scalar,)


# Operators that are one function: what it is given besides the inputs.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Options]] = {
    **{f"elemwise_{name}": (function, _nothing) for name, function in PAIRS.items()},
    **{f"broadcast_{name}": (function, _nothing) for name, function in PAIRS.items()},
    **{f"_{name}_scalar": (function, _number) for name, function in WITH_NUMBER.items()},
    **{name: (getattr(torch, name), _nothing) for name in ("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "abs")},
    "_rminus_scalar": (torch.rsub, _number),
    "Flatten": (torch.flatten, lambda _: (1,)),
    "clip": (torch.clamp, lambda p: (p.a_min, p.a_max)),
    "softmax": (torch.softmax, lambda p: (p.axis,)),
    "log_softmax": (torch.log_softmax, lambda p: (p.axis,)),
    "expand_dims": (torch.unsqueeze, lambda p: (p.axis,)),
    "SwapAxis": (torch.transpose, lambda p: (p.dim1, p.dim2)),
    "transpose": (torch.permute, lambda p: (tuple(p.axes),)),
    "mean": (torch.mean, lambda p: (p.axis, p.keepdims)),
    "sum": (torch.sum, lambda p: (p.axis, p.keepdims)),
    "_copy": (torch.clone, _nothing),
    "LRN": (functional.local_response_norm, lambda p: (p.nsize, p.alpha, p.beta, p.knorm)),
}  # fmt: skip


def _by_function(writer: _Writer, node: SymbolNode, p: Any) -> Any:
    assert node.row is not None
    function, options = FUNCTIONS[node.row.name]
    if getattr(p, "exclude", False) or (node.row.name in ("mean", "sum") and p.axis is None):
        raise UnsupportedError(f"to_torch cannot write the axes of {node.name}")
    if getattr(p, "temperature", None) is not None or getattr(p, "use_length", False):
        raise UnsupportedError(f"to_torch cannot write the options of {node.name}")
    return writer.call(function, *[writer.value(entry) for entry in node.inputs], *options(p))


WRITES.update(dict.fromkeys(FUNCTIONS, _by_function))


def to_torch(block: HybridBlock, *examples: Any) -> fx.GraphModule:
    """The network as a torch module with a copy of the parameters; `examples` are arrays, or sizes, of its inputs.

    In training it behaves as torch's layers do: a running variance is then that of samples, where MXNet's is not.
    """
    if not isinstance(block, HybridBlock):
        raise UsageError("to_torch takes a HybridBlock: what runs Python code has no graph")
    if not examples:
        raise UsageError(
            "to_torch needs an array, or the sizes, of each input", fix="weft.mx.to_torch(net, (1, 3, 224, 224))"
        )
    shapes = [tuple(given.shape) if isinstance(given, NDArray) else tuple(given) for given in examples]
    if isinstance(block, SymbolBlock):
        inputs, out = block._symbols
        names = [symbol.entries[0][0].name for symbol in inputs]
    else:
        names = ["data"] if len(shapes) == 1 else [f"data{place}" for place in range(len(shapes))]
        found = block(*[sym.var(name) for name in names])
        out = found if isinstance(found, Symbol) else sym.Group(list(found))
    if any(parameter._deferred is not None for parameter in block.collect_params().values()):
        block._finish_deferred([zeros(shape) for shape in shapes])
    arrays = {name: parameter._reduce().asnumpy() for name, parameter in block.collect_params().items()}
    tensors = {name: torch.from_numpy(elements) for name, elements in arrays.items()}
    known = {name: elements.shape for name, elements in arrays.items() if name in set(out.list_inputs())}
    writer = _Writer(tensors, names, out._infer({**dict(zip(names, shapes, strict=True)), **known}))
    for node in out.nodes():
        if node.row is not None:
            writer.write(node)
    values = [writer.value(entry) for entry in out.entries]
    writer.graph.output(values[0] if len(values) == 1 else tuple(values))
    writer.graph.lint()
    return fx.GraphModule(writer.root, writer.graph, type(block).__name__)
