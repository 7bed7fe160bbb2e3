"""Random expressions over random layouts, compiled on a random level, against the same expression in eager PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.kernel_runner import DTYPES, LEVELS, NAMES, call_kernel, compile_kernel, split, target_of

from weft.codegen.kernels.loop import emit_loop
from weft.plan.kernels.expression import Instruction, View, explicit_rounding
from weft.plan.kernels.loop import LoopExpression, plan_loop

Function = Callable[..., torch.Tensor]
FLOAT_OPS: dict[str, tuple[int, Function]] = {
    "add": (2, torch.add), "sub": (2, torch.sub), "mul": (2, torch.mul), "div": (2, torch.div),
    "minimum": (2, torch.minimum), "maximum": (2, torch.maximum), "neg": (1, torch.neg), "abs": (1, torch.abs),
    "relu": (1, torch.relu), "floor": (1, torch.floor), "round": (1, torch.round), "reciprocal": (1, torch.reciprocal),
    "sign": (1, torch.sign),
}  # fmt: skip
SMOOTH_OPS: dict[str, tuple[int, Function]] = {
    "tanh": (1, torch.tanh), "sigmoid": (1, torch.sigmoid), "erf": (1, torch.erf), "sin": (1, torch.sin),
    "cos": (1, torch.cos), "atan": (1, torch.atan), "add": (2, torch.add), "sub": (2, torch.sub),
    "maximum": (2, torch.maximum),
}  # fmt: skip
INTEGER_OPS: dict[str, tuple[int, Function]] = {
    "add": (2, torch.add), "sub": (2, torch.sub), "mul": (2, torch.mul), "minimum": (2, torch.minimum),
    "maximum": (2, torch.maximum), "neg": (1, torch.neg), "bitwise_and": (2, torch.bitwise_and),
    "bitwise_xor": (2, torch.bitwise_xor), "bitwise_not": (1, torch.bitwise_not),
}  # fmt: skip
COMPARISONS: dict[str, Function] = {"eq": torch.eq, "lt": torch.lt, "ge": torch.ge, "ne": torch.ne}
SIZES = st.sampled_from([1, 2, 3, 5, 15, 16, 17, 33, 64, 65])
SPECIAL = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 0.5, 1e-40, 2.5])


@dataclass
class Tree:
    """An expression while it is drawn: the kernel's body, and what eager PyTorch makes of every value."""

    inputs: list[torch.Tensor]
    body: list[Instruction]
    values: list[torch.Tensor]


def drawn_tensor(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, *, special: bool) -> torch.Tensor:
    """A tensor that broadcasts to a shape, with any order of dimensions in memory, perhaps with gaps."""
    sizes = tuple(1 if draw(st.integers(0, 4)) == 0 else size for size in shape)
    order = draw(st.permutations(range(len(shape))))
    gap = draw(st.sampled_from([1, 1, 1, 2]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    stored = [sizes[dim] for dim in order]
    stored[-1] *= gap
    x = torch.randn(stored, generator=generator) * 4
    if special and dtype.is_floating_point:
        spots = torch.rand(stored, generator=generator) < 0.1
        x[spots] = SPECIAL[torch.randint(0, len(SPECIAL), (int(spots.sum()),), generator=generator)]
    back = [order.index(dim) for dim in range(len(shape))]
    return (x * 50 if not dtype.is_floating_point else x).to(dtype)[..., ::gap].permute(back)


def drawn_tree(draw: st.DrawFn, dtype: str, ops: dict[str, tuple[int, Function]], *, choices: bool) -> Tree:
    shape = tuple(draw(st.lists(SIZES, min_size=1, max_size=3)))
    inputs = [drawn_tensor(draw, shape, DTYPES[dtype], special=choices) for _ in range(draw(st.integers(1, 3)))]
    tree = Tree(inputs, [], [tensor.expand(shape) for tensor in inputs])
    for _ in range(draw(st.integers(1, 8))):
        typed = [number for number, value in enumerate(tree.values) if value.dtype == DTYPES[dtype]]
        pick = st.sampled_from(typed)
        if choices and draw(st.integers(0, 3)) == 0:
            op = draw(st.sampled_from(sorted(COMPARISONS)))
            pair = (draw(pick), draw(pick))
            tree.body.append(Instruction(op, pair, "bool"))
            tree.values.append(COMPARISONS[op](*(tree.values[number] for number in pair)))
            chosen = (len(tree.values) - 1, draw(pick), draw(pick))
            tree.body.append(Instruction("select", chosen, dtype))
            tree.values.append(torch.where(*(tree.values[number] for number in chosen)))
            continue
        op = draw(st.sampled_from(sorted(ops)))
        arity, function = ops[op]
        operands = tuple(draw(pick) for _ in range(arity))
        tree.body.append(Instruction(op, operands, dtype))
        tree.values.append(function(*(tree.values[number] for number in operands)))
    return tree


def computed(tree: Tree, level: str, parts: int) -> list[torch.Tensor]:
    """Compute the last value, and the first made, by one kernel with two outputs."""
    results = [len(tree.inputs), len(tree.values) - 1]
    outputs = [torch.zeros_like(tree.values[number], memory_format=torch.contiguous_format) for number in results]
    shape = tuple(tree.values[-1].shape)
    body, numbers = explicit_rounding([NAMES[tensor.dtype] for tensor in tree.inputs], tree.body, results)
    views = [View(NAMES[x.dtype], x.expand(shape).stride(), x.storage_offset()) for x in (*outputs, *tree.inputs)]
    expression = LoopExpression("tree", shape, tuple(views[:2]), tuple(views[2:]), body, numbers)
    kernel = plan_loop(expression, target_of(level))
    library = compile_kernel(emit_loop, kernel, target_of(level))
    call_kernel(library, kernel.name, [*outputs, *tree.inputs], split(kernel.tile_count, parts))
    return outputs


def check(draw: st.DrawFn, dtype: str, ops: dict[str, tuple[int, Function]]) -> None:
    tree = drawn_tree(draw, dtype, ops, choices=ops is not SMOOTH_OPS)
    outputs = computed(tree, draw(st.sampled_from(LEVELS)), draw(st.integers(1, 3)))
    for got, expected in zip(outputs, (tree.values[len(tree.inputs)], tree.values[-1]), strict=True):
        if ops is SMOOTH_OPS:
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        else:
            torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def examples(count: int) -> settings:
    return settings(
        max_examples=count, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
    )


@examples(25)
@given(st.data())
def test_exact_expressions_of_floats_equal_eager(data: st.DataObject) -> None:
    check(data.draw, data.draw(st.sampled_from(["f32", "f64", "f16", "bf16"])), FLOAT_OPS)


@examples(25)
@given(st.data())
def test_expressions_of_integers_equal_eager(data: st.DataObject) -> None:
    check(data.draw, data.draw(st.sampled_from(["i8", "i16", "i32", "i64", "u8"])), INTEGER_OPS)


@examples(20)
@given(st.data())
def test_smooth_expressions_are_close_to_eager(data: st.DataObject) -> None:
    check(data.draw, "f32", SMOOTH_OPS)


@pytest.mark.slow
@examples(400)
@given(st.data())
def test_many_expressions_equal_eager(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8"]))
    check(data.draw, dtype, FLOAT_OPS if DTYPES[dtype].is_floating_point else INTEGER_OPS)
