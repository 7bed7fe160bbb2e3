"""One small Graph for every op: what the golden files in tests/golden/ir show."""

import torch

from weft.errors import UsageError
from weft.ir.graph import Graph, Result, Value
from weft.ir.ops import OPS, Op, build
from weft.ir.parser import parse_graph
from weft.ir.types import NumberType, TensorType, Type, contiguous

WINDOW = "kernel_size=[2, 2], stride=[2, 2], padding=[0, 0]"
MAX_WINDOW = f"{WINDOW}, dilation=[1, 1], ceil_mode=False"
MEAN_WINDOW = f"{WINDOW}, ceil_mode=False, count_include_pad=True, divisor_override=None"
CONVOLUTION = "stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1"

BODIES = {
    "constant": "() { %0: f32[3] = constant [0.1, -0.0, nan] return %0 }",
    "number": "(%n: int) { %0: float = number truediv(%n, 2) return %0 }",
    "scalar": "(%n: int) { %0: f16[] = scalar %n, dtype=f16 return %0 }",
    "library": "(%x: f32[2,3]) { %0: f32[3,2]{1,3} = library aten.permute.default(%x, [1, 0]) return %0 }",
    "update": "(%x: f32[2,3], %y: f32[3]) {"
    " %0: f32[2,3] = update aten.add_.Tensor(!0, %y, alpha=2) on !0 = %x via aten.select.int(_, 0, 1)"
    " write %x <- %0 return %x via aten.view.default(_, [6]) }",
    "item": "(%x: f32[4]) { %0: (f32[2], f32[2]) = library aten.split.Tensor(%x, 2)"
    " %1: f32[2] = item %0, index=1 return %1 }",
    "random_state": "() { %0: u8[5056] = random_state return %0 }",
    "set_random_state": "() { %0: u8[5056] = random_state %1: nothing = set_random_state %0 return }",
    "cast": "(%x: f32[3]) { %0: i32[3] = cast %x, dtype=i32 return %0 }",
    "iota": "() { %0: i64[2,3] = iota shape=[2, 3], dimension=1, dtype=i64 return %0 }",
    "argmax": "(%x: f32[2,3]) { %0: i64[2,1] = argmax %x, dimension=1, keep=True return %0 }",
    "argmin": "(%x: f32[2,3]) { %0: i64[] = argmin %x, dimension=None, keep=False return %0 }",
    "top_places": "(%x: f32[2,3]) { %0: i64[2,2] = top_places %x, count=2, largest=True, sorted=True return %0 }",
    "recurrent": "(%x: f32[3,2,12], %w: f32[12,4], %h: f32[2,4], %b: f32[4], %n: i32[]) {"
    ' %0: (f32[3,2,4], f32[2,4]) = recurrent %x, %w, %h, %b, %n, cell="gru", reverse=True'
    " %1: f32[2,4] = item %0, index=1 return %1 }",
    "any": "(%x: bool[2,3]) { %0: bool[2] = any %x, dimensions=[1], keep=False return %0 }",
    "all": "(%x: bool[2,3]) { %0: bool[] = all %x, dimensions=[0, 1], keep=False return %0 }",
    "reshape": "(%x: f32[2,3]) { %0: f32[3,2] = reshape %x, shape=[3, 2] return %0 }",
    "permute": "(%x: f32[2,3]) { %0: f32[3,2] = permute %x, order=[1, 0] return %0 }",
    "expand": "(%x: f32[3,1]) { %0: f32[2,3,2] = expand %x, shape=[2, 3, 2] return %0 }",
    "slice": "(%x: f32[2,5]) { %0: f32[1,2] = slice %x, start=[1, 0], stop=[2, 4], step=[1, 2] return %0 }",
    "pad": "(%x: f32[2,2]) { %0: f32[2,5] = pad %x, low=[0, 1], high=[0, 2], value=-1.0 return %0 }",
    "concat": "(%x: f32[2,1], %y: f32[2,2]) { %0: f32[2,3] = concat %x, %y, dimension=1 return %0 }",
    "reverse": "(%x: f32[2,3]) { %0: f32[2,3] = reverse %x, dimensions=[1] return %0 }",
    "gather": "(%x: f32[2,3], %i: i64[1,3]) { %0: f32[1,3] = gather %x, %i, dimension=0 return %0 }",
    "scatter": "(%x: f32[2,3], %i: i64[1,3], %s: f32[1,3]) {"
    " %0: f32[2,3] = scatter %x, %i, %s, dimension=0 return %0 }",
    **{
        name: "(%x: f32[2,3], %i: i64[1,3], %s: f32[1,3]) {"
        f" %0: f32[2,3] = {name} %x, %i, %s, dimension=0 return %0 }}"
        for name in ("scatter_add", "scatter_mul", "scatter_min", "scatter_max")
    },
    "take": "(%x: f32[2,3], %i: i64[2]) { %0: f32[2,2] = take %x, %i, dimension=1 return %0 }",
    "matmul": "(%x: f32[2,3], %y: f32[3,2]) { %0: f32[2,2] = matmul %x, %y return %0 }",
    "attention": "(%q: f32[2,3], %k: f32[2,3], %v: f32[2,1], %m: bool[2,2]) { %0: (f32[2,1], f32[2]) = attention"
    " %q, %k, %v, %m, scale=0.5, causal=True, zeros=True, hidden=-10.0"
    " %1: f32[2,1] = item %0, index=0 %2: f32[2] = item %0, index=1 return %1, %2 }",
    "attention_gradient": "(%g: f32[2,1], %q: f32[2,3], %k: f32[2,3], %v: f32[2,1], %l: f32[2], %w: f32[2]) {"
    " %0: (f32[2,3], f32[2,3], f32[2,1]) = attention_gradient %g, %q, %k, %v, %l, %w, scale=0.5, causal=False,"
    " zeros=False %1: f32[2,3] = item %0, index=0 %2: f32[2,1] = item %0, index=2 return %1, %2 }",
    "convolution": f"(%x: f32[1,1,3,3], %w: f32[1,1,3,3]) {{ %0: f32[1,1,3,3] = convolution %x, %w, {CONVOLUTION}"
    " return %0 }",
    "convolution_input_gradient": "(%g: f32[1,1,3,3], %w: f32[1,1,3,3]) {"
    f" %0: f32[1,1,3,3] = convolution_input_gradient %g, %w, shape=[1, 1, 3, 3], {CONVOLUTION} return %0 }}",
    "convolution_weight_gradient": "(%x: f32[1,1,3,3], %g: f32[1,1,3,3]) {"
    f" %0: f32[1,1,3,3] = convolution_weight_gradient %x, %g, shape=[1, 1, 3, 3], {CONVOLUTION} return %0 }}",
    "max_pool": f"(%x: f32[1,1,4,4]) {{ %0: (f32[1,1,2,2], i64[1,1,2,2]) = max_pool %x, {MAX_WINDOW}"
    " %1: f32[1,1,2,2] = item %0, index=0 %2: i64[1,1,2,2] = item %0, index=1 return %1, %2 }",
    "max_pool_gradient": "(%g: f32[1,1,2,2], %x: f32[1,1,4,4], %i: i64[1,1,2,2]) {"
    f" %0: f32[1,1,4,4] = max_pool_gradient %g, %x, %i, {MAX_WINDOW} return %0 }}",
    "average_pool": f"(%x: f32[1,1,4,4]) {{ %0: f32[1,1,2,2] = average_pool %x, {MEAN_WINDOW} return %0 }}",
    "average_pool_gradient": "(%g: f32[1,1,2,2], %x: f32[1,1,4,4]) {"
    f" %0: f32[1,1,4,4] = average_pool_gradient %g, %x, {MEAN_WINDOW} return %0 }}",
    **{
        name: f"(%x: f32[2,3]) {{ %0: f32[2,1] = {name} %x, dimensions=[1], keep=True return %0 }}"
        for name in ("sum", "prod", "min", "max")
    },
}


def example(op: str) -> Graph:
    """A Graph in which an op is the last value (or the last but for the items of it)."""
    if op in BODIES:
        return parse_graph(f"graph {op}{BODIES[op]}")
    return elementwise_example(OPS[op])


def elementwise_example(row: Op) -> Graph:
    dtypes = [(torch.float32,) * 3, (torch.int32,) * 3, (torch.bool, torch.float32, torch.float32)]
    for chosen in dtypes:
        operands = [
            Value("input", (), contiguous(dtype, (5,)), name=name)
            for name, dtype in zip("xyz"[: row.arity], chosen, strict=False)
        ]
        try:
            value = build(row.name, *operands)
        except UsageError:
            continue
        return Graph(row.name, tuple(operands), (value,), (Result(value),))
    raise AssertionError(f"no operands fit {row.name}")


def sample_inputs(graph: Graph) -> list[object]:
    """The same inputs every time, valid as indices where they are int64."""
    return [sample(declared.type, position) for position, declared in enumerate(graph.inputs)]


def sample(declared: Type, position: int) -> object:
    if isinstance(declared, NumberType):
        return {"int": 3, "float": 1.5, "bool": True, "complex": 1j}[declared.kind]
    assert isinstance(declared, TensorType)
    numbers = torch.arange(declared.size, dtype=torch.float64)
    if declared.dtype is torch.int64:
        numbers = (numbers + position) % 2
    elif declared.dtype is torch.bool:
        numbers = numbers % 2
    elif declared.dtype is torch.int32:
        numbers = numbers + 1 + position
    else:
        numbers = numbers / 2 - 1.0 + position
    return numbers.to(declared.dtype).reshape(declared.shape)
