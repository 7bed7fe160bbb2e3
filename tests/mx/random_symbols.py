"""Draw symbols: layers, arithmetic and views composed at random, with their sizes inferred and their gradients taken.

The real MXNet and weft.mx must write the same JSON, read each other's, and compute the same; imports neither.
"""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np

FIXTURE = "random_symbols.json.gz"
IN_CI = 120
SIGNS = ("+", "-", "*", "/")
ACTIVATIONS = ("relu", "sigmoid", "tanh", "softrelu", "softsign")
UNARY = "relu tanh sigmoid square abs exp negative cos".split()  # noqa: SIM905


class Drawing:
    """A symbol as it grows: values with their sizes."""

    def __init__(self, sym: Any, number: int) -> None:
        self.sym = sym
        self.chance = random.Random(number)
        self.values: list[tuple[Any, tuple[int, ...]]] = []
        self.inputs: dict[str, tuple[int, ...]] = {}
        self.named = 0

    def name(self) -> str | None:
        """A name for an operator, or none: then it gets one."""
        if self.chance.random() < 0.5:
            return None
        self.named += 1
        return f"op{self.named}"

    def data(self, shape: tuple[int, ...]) -> None:
        """A new variable."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = shape
        self.values.append((self.sym.var(name), shape))

    def pick(self, dims: int | None = None) -> tuple[Any, tuple[int, ...]] | None:
        """A value, late ones more often."""
        found = [value for value in self.values if dims is None or len(value[1]) == dims]
        return self.chance.choice(found[-4:]) if found else None

    def keep(self, value: Any, *shape: int) -> None:
        """Note what was made."""
        self.values.append((value, shape))


def fully_connected(d: Drawing) -> None:
    """A dense layer."""
    x = d.pick(2) or d.pick(4)
    if x:
        units = d.chance.randint(1, 5)
        made = d.sym.FullyConnected(x[0], num_hidden=units, no_bias=d.chance.random() < 0.3, name=d.name())
        d.keep(made, x[1][0], units)


def convolution(d: Drawing) -> None:
    """A convolution, grouped, dilated or strided."""
    if x := d.pick(4):
        kernel, pad, stride = d.chance.choice((1, 3)), d.chance.choice((0, 1)), d.chance.choice((1, 2))
        group = d.chance.choice((1, x[1][1]))
        filters = group * d.chance.randint(1, 2)
        sizes = [(size + 2 * pad - kernel) // stride + 1 for size in x[1][2:]]
        if min(size + 2 * pad for size in x[1][2:]) >= kernel:
            made = d.sym.Convolution(
                x[0],
                kernel=(kernel, kernel),
                num_filter=filters,
                pad=(pad, pad),
                stride=(stride, stride),
                num_group=group,
                no_bias=d.chance.random() < 0.5,
                name=d.name(),
            )
            d.keep(made, x[1][0], filters, *sizes)


def pooling(d: Drawing) -> None:
    """A pooling of windows, or of all."""
    if x := d.pick(4):
        kind = d.chance.choice(("max", "avg"))
        if d.chance.random() < 0.3:
            made = d.sym.Pooling(x[0], kernel=(1, 1), global_pool=True, pool_type=kind, name=d.name())
            d.keep(made, *x[1][:2], 1, 1)
        elif min(x[1][2:]) >= 2:
            made = d.sym.Pooling(x[0], kernel=(2, 2), stride=(2, 2), pool_type=kind, name=d.name())
            d.keep(made, *x[1][:2], *(size // 2 for size in x[1][2:]))


def norm(d: Drawing) -> None:
    """A normalisation."""
    x = d.pick()
    assert x
    kind = d.chance.choice(("BatchNorm", "LayerNorm", "L2Normalization", "InstanceNorm"))
    if kind == "BatchNorm" and len(x[1]) >= 2:
        made = d.sym.BatchNorm(x[0], fix_gamma=d.chance.random() < 0.5, eps=1e-3, name=d.name())
    elif kind == "LayerNorm":
        made = d.sym.LayerNorm(x[0], eps=1e-3, name=d.name())
    elif kind == "InstanceNorm" and len(x[1]) >= 3:
        made = d.sym.InstanceNorm(x[0], eps=1e-2, name=d.name())
    else:
        made = d.sym.L2Normalization(x[0], eps=1e-3, name=d.name())
    if kind in ("LayerNorm", "InstanceNorm") and x[1][-1] == 1:
        return  # the norm of one number is noise
    if kind == "BatchNorm" and int(np.prod(x[1])) // x[1][min(1, len(x[1]) - 1)] < 4:
        return
    d.keep(made, *x[1])


def bend(d: Drawing) -> None:
    """An activation."""
    x = d.pick()
    assert x
    kind = d.chance.choice(("Activation", "LeakyReLU", "unary", "clip", "softmax"))
    if kind == "Activation":
        made = d.sym.Activation(x[0], act_type=d.chance.choice(ACTIVATIONS), name=d.name())
    elif kind == "LeakyReLU":
        made = d.sym.LeakyReLU(x[0], act_type=d.chance.choice(("leaky", "elu", "gelu")), slope=0.1, name=d.name())
    elif kind == "clip":
        made = d.sym.clip(x[0], a_min=-1.0, a_max=1.5, name=d.name())
    elif kind == "softmax":
        made = d.sym.softmax(x[0], axis=-1, name=d.name())
    else:
        made = getattr(d.sym, d.chance.choice(UNARY))(x[0], name=d.name())
    d.keep(made, *x[1])


def arithmetic(d: Drawing) -> None:
    """A number, or two values of the same sizes."""
    x = d.pick()
    assert x
    others = [value for value in d.values if value[1] == x[1]]
    sign = d.chance.choice(SIGNS)
    number = d.chance.choice((2, 0.5, 3))
    if sign == "/" or d.chance.random() < 0.4:
        made = {"+": x[0] + number, "-": number - x[0], "*": x[0] * number, "/": x[0] / number}[sign]
    else:
        y = d.chance.choice(others)[0]
        made = {"+": lambda: x[0] + y, "-": lambda: x[0] - y, "*": lambda: x[0] * y}[sign]()
    d.keep(made, *x[1])


def view(d: Drawing) -> None:
    """Other sizes, or a part."""
    x = d.pick()
    assert x
    shape = x[1]
    kind = d.chance.choice(("flatten", "transpose", "slice", "split", "expand", "reshape", "concat", "swap"))
    if kind == "flatten":
        d.keep(d.sym.Flatten(x[0], name=d.name()), shape[0], int(np.prod(shape[1:])))
    elif kind == "transpose":
        d.keep(d.sym.transpose(x[0], name=d.name()), *shape[::-1])
    elif kind == "swap" and len(shape) > 1:
        d.keep(d.sym.SwapAxis(x[0], dim1=0, dim2=1, name=d.name()), shape[1], shape[0], *shape[2:])
    elif kind == "slice":
        axis = d.chance.randrange(len(shape))
        end = d.chance.randint(1, shape[axis])
        made = d.sym.slice_axis(x[0], axis=axis, begin=0, end=end, name=d.name())
        d.keep(made, *shape[:axis], end, *shape[axis + 1 :])
    elif kind == "split" and len(shape) > 1 and shape[1] % 2 == 0:
        both = d.sym.SliceChannel(x[0], num_outputs=2, axis=1, name=d.name())
        for place in range(2):
            d.keep(both[place], shape[0], shape[1] // 2, *shape[2:])
    elif kind == "expand" and len(shape) < 4:
        d.keep(d.sym.expand_dims(x[0], axis=1, name=d.name()), shape[0], 1, *shape[1:])
    elif kind == "reshape":
        d.keep(d.sym.Reshape(x[0], shape=(0, -1), name=d.name()), shape[0], int(np.prod(shape[1:])))
    elif kind == "concat":
        others = [value for value in d.values if len(value[1]) == len(shape) and value[1][1:] == shape[1:]]
        y = d.chance.choice(others)
        d.keep(d.sym.Concat(x[0], y[0], dim=0, name=d.name()), shape[0] + y[1][0], *shape[1:])


def reduce(d: Drawing) -> None:
    """A sum or a mean over an axis, or a product of matrices."""
    x = d.pick()
    assert x
    if len(x[1]) == 2 and d.chance.random() < 0.3:
        d.keep(d.sym.dot(x[0], x[0], transpose_b=True, name=d.name()), x[1][0], x[1][0])
    elif len(x[1]) > 1:
        axis = d.chance.randrange(len(x[1]))
        function = d.chance.choice(("sum", "mean"))
        made = getattr(d.sym, function)(x[0], axis=axis, keepdims=True, name=d.name())
        d.keep(made, *x[1][:axis], 1, *x[1][axis + 1 :])


RULES = (fully_connected, convolution, convolution, pooling, norm, bend, bend, arithmetic, arithmetic, view, reduce)


def draw(sym: Any, number: int) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """One symbol, and the sizes of its inputs."""
    d = Drawing(sym, number)
    d.data(d.chance.choice(((4, 3, 8, 8), (3, 4, 6, 5), (4, 6), (5, 3))))
    if d.chance.random() < 0.3:
        d.data(d.values[0][1])
    for _ in range(d.chance.randint(3, 12)):
        d.chance.choice(RULES)(d)
    heads = [d.values[-1][0]]
    if d.chance.random() < 0.3 and len(d.values) > 3:
        heads.append(d.values[-2][0])
    found = sym.Group(heads) if len(heads) > 1 else heads[0]
    inputs = set(found.list_inputs() if hasattr(found, "list_inputs") else found.list_arguments())
    return found, {name: shape for name, shape in d.inputs.items() if name in inputs}


def elements(name: str, shape: tuple[int, ...]) -> Any:
    """What a variable holds."""
    chance = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    found = chance.uniform(-0.5, 0.5, shape).astype(np.float32)
    return np.abs(found) + 0.5 if name.endswith("var") else found


def answer(mx: Any, symbol: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """What is inferred of a symbol, and what it computes: outputs, gradients, auxiliary states after a backward."""
    inferred = symbol.infer_shape(**shapes)
    executor = symbol.simple_bind(mx.cpu(), grad_req="write", **shapes)
    for table in (executor.arg_dict, executor.aux_dict):
        for name, array in table.items():
            array[:] = mx.nd.array(elements(name, array.shape))
    outputs = executor.forward(is_train=True)
    executor.backward([mx.nd.array(elements(f"head{place}", x.shape)) for place, x in enumerate(outputs)])
    return {
        "arguments": symbol.list_arguments(),
        "outputs": symbol.list_outputs(),
        "auxiliary": symbol.list_auxiliary_states(),
        "shapes": [[list(shape) for shape in part] for part in inferred],
        "values": [numbers(x) for x in executor.outputs],
        "gradients": {name: numbers(x) for name, x in sorted(executor.grad_dict.items()) if x is not None},
        "states": {name: numbers(x) for name, x in sorted(executor.aux_dict.items())},
    }


def numbers(array: Any) -> list[Any]:
    """Sizes, and a few figures that tell arrays apart."""
    found = array.asnumpy().astype(np.float64).reshape(-1)
    weights = np.cos(np.arange(found.size))
    return [list(array.shape), float(found.sum()), float(np.abs(found).sum()), float((found * weights).sum())]
