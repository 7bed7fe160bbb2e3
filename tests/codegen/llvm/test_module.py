"""Behaviour of the writer of LLVM text."""

import ctypes
import struct

import pytest

from weft.codegen.llvm.module import (
    FunctionWriter,
    Module,
    bits_of,
    constant,
    constants,
    element_of,
    integer_like,
    lanes_of,
    literal,
    mangled,
    vector,
    with_element,
)
from weft.codegen.objects.native import compile_native
from weft.target import host_target


def run(module: Module, *arguments: int) -> int:
    """Call a function that stores one i64 to its first argument."""
    library = compile_native(str(module), host_target(), use_cache=False)
    result = ctypes.c_int64(-1)
    kinds = [ctypes.c_void_p, *[ctypes.c_int64] * len(arguments)]
    ctypes.CFUNCTYPE(None, *kinds)(library.address("f"))(ctypes.addressof(result), *arguments)
    return result.value


def writer(arguments: int) -> tuple[Module, FunctionWriter]:
    module = Module(host_target())
    return module, module.function("f", ["ptr noalias", *["i64"] * arguments])


def test_types_are_read_from_their_text() -> None:
    assert vector("float", 16) == "<16 x float>"
    assert vector("float", 1) == "float"
    assert (element_of("<8 x i1>"), lanes_of("<8 x i1>"), bits_of("<8 x double>")) == ("i1", 8, 64)
    assert integer_like("<4 x half>") == "<4 x i16>"
    assert with_element("<4 x half>", "ptr") == "<4 x ptr>"
    assert (mangled("<16 x float>"), mangled("i64"), mangled("<2 x ptr>")) == ("v16f32", "i64", "v2p0")


@pytest.mark.parametrize("value", [0.1, -0.0, 1e-45, 3.4e38, float("inf"), 1 / 3])
def test_literals_of_float_are_the_nearest_float(value: float) -> None:
    nearest = struct.unpack("<f", struct.pack("<f", value))[0]
    assert struct.unpack("<d", struct.pack("<Q", int(literal("float", value), 16)))[0] == nearest


def test_a_float_too_large_becomes_an_infinity() -> None:
    assert literal("float", -1e300) == literal("float", float("-inf"))


def test_constants_fill_every_lane() -> None:
    assert str(constant("<4 x i32>", 7)) == "<4 x i32> splat (i32 7)"
    assert str(constants("i64", [1, 2])) == "<2 x i64> <i64 1, i64 2>"


@pytest.mark.parametrize("count", [0, 1, 10])
def test_a_loop_carries_values(count: int) -> None:
    module, f = writer(1)
    with f.loop(0, f.parameters[1], carried=[f.integer(5)]) as loop:
        loop.carry(f.add(loop.carried[0], loop.index))
    f.store(loop.carried[0], f.parameters[0])
    assert run(module, count) == 5 + sum(range(count))


def test_loops_nest_and_step() -> None:
    module, f = writer(0)
    with f.loop(0, 10, 3, carried=[f.integer(0)]) as outer:
        with f.loop(0, 4, carried=outer.carried) as inner:
            inner.carry(f.add(inner.carried[0], f.add(outer.index, inner.index)))
        outer.carry(*inner.carried)
    f.store(outer.carried[0], f.parameters[0])
    assert run(module) == sum(i + j for i in range(0, 10, 3) for j in range(4))


@pytest.mark.parametrize("choice", [0, 1])
def test_either_gives_the_registers_of_the_piece_that_ran(choice: int) -> None:
    module, f = writer(1)
    chosen = f.compare("icmp ne", f.parameters[1], f.integer(0))
    (result,) = f.either(chosen, lambda: [f.add(f.parameters[1], 10)], lambda: [f.integer(20)])
    with f.only_if(chosen):
        result = f.add(result, 0)
    f.store(result, f.parameters[0])
    assert run(module, choice) == (11 if choice else 20)


def test_scratch_memory_keeps_what_is_stored() -> None:
    module, f = writer(1)
    memory = f.scratch("i64", 4)
    f.store(f.parameters[1], f.offset(memory, "i64", 3))
    f.store(f.load("i64", f.offset(memory, "i64", 3)), f.parameters[0])
    assert run(module, 42) == 42


def test_a_function_of_the_process_is_called_through_a_pointer() -> None:
    module, f = writer(1)
    f.store(f.imported("labs", "i64", f.parameters[1]), f.parameters[0])
    assert "@import.labs" in str(module)
    assert run(module, -7) == 7


def test_a_table_is_written_once() -> None:
    module, f = writer(1)
    first, second = (module.table("i64", [3, 5, 8]) for _ in range(2))
    assert first == second
    f.store(f.load("i64", f.offset(first, "i64", f.parameters[1])), f.parameters[0])
    assert run(module, 2) == 8


def written(f: FunctionWriter, instruction: str) -> int:
    return str(f).count(f" = {instruction} ")


def test_what_has_run_is_not_written_again() -> None:
    module, f = writer(1)
    first = f.multiply(f.parameters[1], 3)
    with f.loop(0, 2, carried=[f.integer(0)]) as loop:
        loop.carry(f.add(loop.carried[0], f.multiply(f.parameters[1], 3)))
    total = f.add(loop.carried[0], f.multiply(f.parameters[1], 3))
    f.store(total, f.parameters[0])
    assert written(f, "mul") == 1
    assert run(module, 5) == 3 * (5 * 3)
    assert first.name in str(f)


@pytest.mark.parametrize("choice", [0, 1])
def test_what_only_a_branch_has_run_is_written_again_after_it(choice: int) -> None:
    module, f = writer(1)
    chosen = f.compare("icmp ne", f.parameters[1], f.integer(0))
    with f.only_if(chosen):
        f.store(f.multiply(f.parameters[1], 7), f.parameters[0])
    (picked,) = f.either(
        chosen, lambda: [f.multiply(f.parameters[1], 7)], lambda: [f.add(f.multiply(f.parameters[1], 7), 4)]
    )
    f.store(f.add(picked, f.multiply(f.parameters[1], 7)), f.parameters[0])
    assert written(f, "mul") == 4
    assert run(module, choice) == (14 if choice else 4)


def test_a_block_that_many_lead_to_knows_nothing_of_its_scope() -> None:
    module, f = writer(1)
    outer = f.multiply(f.parameters[1], 3)
    with f.only_if(f.compare("icmp sgt", f.parameters[1], f.integer(0))):
        far, near = f.label("far"), f.label("near")
        f.branch_if(f.compare("icmp sgt", f.parameters[1], f.integer(9)), far, near)
        f.begin_block(near)
        f.store(f.multiply(f.parameters[1], 5), f.parameters[0])
        f.branch(far)
        f.begin_block(far)
        f.store(f.add(f.multiply(f.parameters[1], 5), f.multiply(f.parameters[1], 3)), f.parameters[0])
    assert outer.name in str(f)
    assert written(f, "mul") == 3
    assert run(module, 10) == 80


def test_memory_is_read_again() -> None:
    module, f = writer(1)
    place = f.scratch("i64", 1)
    f.store(f.parameters[1], place)
    first = f.load("i64", place)
    f.store(f.add(first, 1), place)
    f.store(f.add(first, f.load("i64", place)), f.parameters[0])
    assert run(module, 20) == 41
