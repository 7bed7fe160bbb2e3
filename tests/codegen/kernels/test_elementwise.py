"""The table of emit rules: complete, strict about short floats, and free of calls that LLVM makes up."""

import pytest
import torch

from weft.codegen.kernels.elementwise import EMIT, Typed, emit_op
from weft.codegen.kernels.reduce import REDUCERS
from weft.codegen.llvm.module import Module, Register, constant, vector
from weft.codegen.objects.compiler import object_code
from weft.codegen.objects.native import read_object_file
from weft.codegen.vecmath.functions import FUNCTIONS
from weft.errors import InternalError, UsageError
from weft.ir.graph import Value
from weft.ir.ops import OPS, PLACE, SPREAD, build
from weft.ir.types import contiguous
from weft.target import Target, cross_target, host_target

TARGETS = {
    "native": host_target(),
    "avx2": cross_target("x86_64", "avx2"),
    "generic": cross_target("x86_64"),
    "aarch64": cross_target("aarch64"),
}


DTYPES = {"f32": torch.float32, "f64": torch.float64}
ATTRIBUTES = {"cast": {"dtype": torch.float32}}


def emitted(target: Target, dtype: str, element: str, lanes: int) -> bytes:
    """Compile one function with every op that has a meaning for a dtype."""
    module = Module(target)
    f = module.function("everything", ["ptr noalias", "ptr noalias"])
    kind = vector(element, lanes)
    x = Typed(f.load(kind, f.parameters[1]), dtype)
    y = Typed(f.load(kind, f.offset(f.parameters[1], element, lanes)), dtype)
    place = 0
    for op in EMIT:
        kinds = [DTYPES[dtype]] * OPS[op].arity
        if op == "select":
            kinds[0] = torch.bool
        try:
            build(op, *(Value("input", (), contiguous(kind, (2,))) for kind in kinds), **ATTRIBUTES.get(op, {}))
        except UsageError:
            continue  # it has no meaning for this dtype
        operands = [x, y][: OPS[op].arity]
        if op == "select":
            operands = [Typed(constant(vector("i1", lanes), 1), "bool"), x, y]
        result = emit_op(f, op, operands, dtype)
        stored = f.convert("zext", result, "i8") if "i1>" in result.kind or result.kind == "i1" else result
        f.store(stored, f.offset(f.parameters[0], "i8", 64 * place))
        place += 2
    return object_code(str(module), target)


def test_every_elementwise_op_of_the_graph_has_a_rule() -> None:
    missing = {name for name, op in OPS.items() if op.elementwise} - set(EMIT)
    assert not missing, f"src/weft/codegen/kernels/elementwise.py: EMIT has no row for {missing}"


def test_every_rule_is_of_an_op_of_the_graph() -> None:
    unknown = set(EMIT) - set(OPS)
    assert not unknown, f"src/weft/ir/ops.py: OPS has no row for {unknown}"


def test_every_function_has_a_rule_for_both_floats() -> None:
    lacking = {name for name, rules in FUNCTIONS.items() if set(rules) != {"float", "double"}}
    assert not lacking, f"src/weft/codegen/vecmath/functions.py: FUNCTIONS lacks a type of {lacking}"


def test_every_reduction_of_the_graph_has_a_reducer() -> None:
    missing = {name for name, op in OPS.items() if op.attributes in (SPREAD, PLACE)} - set(REDUCERS)
    assert not missing, f"src/weft/codegen/kernels/reduce.py: REDUCERS has no row for {missing}"


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype, element", [("f32", "float"), ("f64", "double")])
def test_no_op_needs_a_call_that_llvm_makes_up(name: str, dtype: str, element: str) -> None:
    target = TARGETS[name]
    for lanes in (1, target.vector_bytes // 4):
        assert read_object_file(emitted(target, dtype, element, lanes)).outside_calls == set()


def test_an_unknown_op_is_an_error() -> None:
    f = Module(host_target()).function("kernel", [])
    with pytest.raises(InternalError, match="no rule emits the op gamma"):
        emit_op(f, "gamma", [Typed(Register("float", "1.0"), "f32")], "f32")


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_computing_on_short_floats_is_an_error(dtype: str) -> None:
    f = Module(host_target()).function("kernel", [])
    x = Typed(Register("i16", "1"), dtype)
    with pytest.raises(InternalError, match="must be cast to f32 before"):
        emit_op(f, "add", [x, x], dtype)
