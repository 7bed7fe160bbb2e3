"""Behaviour of cutting a module into parts that are compiled at the same time."""

import ctypes

import pytest

from weft.codegen import plan_module
from weft.codegen.kernels.pack import emit_pack
from weft.codegen.llvm.module import Module, constant
from weft.codegen.objects.compiler import object_codes
from weft.codegen.objects.native import load_objects
from weft.codegen.plan_module import Group, ModuleParts
from weft.plan.kernels.gemm import Matrix
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.walk import Blocks
from weft.target import host_target

KERNELS = 5


def written() -> tuple[Module, list[Group]]:
    """A module whose `all` lets each kernel put a number of a table of its own in its place; a helper finds it."""
    module = Module(host_target())
    caller = module.function("all", ["ptr"])
    groups = []
    for number in range(KERNELS):
        kernel, helper = module.function(f"kernel{number}", ["ptr"]), module.function(f"helper{number}", ["ptr"])
        kernel.call(helper.name, kernel.parameters)
        table = module.table("double", [float(number) + 0.5])
        helper.store(helper.load("double", table), helper.offset(helper.parameters[0], "double", number))
        caller.call(kernel.name, caller.parameters)
        groups.append([kernel, helper])
    caller.store(constant("double", -1.0), caller.offset(caller.parameters[0], "double", KERNELS))
    return module, groups


def parts_of(module: Module, groups: list[Group], least: int) -> list[str]:
    """The texts of the parts, each of at least so many letters but the last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "LEAST_PART", least)
        parts = ModuleParts(module)
        return [*(text for group in groups for text in parts.add(group)), *parts.rest()]


def letters(group: Group) -> int:
    return sum(len(str(function)) for function in group)


def for_parts(count: int) -> int:
    """The letters that let so many parts come of the groups, and the one with what calls them."""
    _, groups = written()
    return min(map(letters, groups)) * KERNELS // count


@pytest.mark.parametrize(("count", "least"), [(1, 100_000), (2, for_parts(2)), (KERNELS + 1, 10)])
def test_parts_loaded_together_do_what_the_whole_does(count: int, least: int) -> None:
    parts = parts_of(*written(), least)
    assert count == len(parts) or count == 2 < len(parts) <= KERNELS
    library = load_objects(object_codes(parts, host_target()), host_target())
    found = (ctypes.c_double * (KERNELS + 1))()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("all"))(ctypes.addressof(found))
    assert list(found) == [0.5, 1.5, 2.5, 3.5, 4.5, -1.0]


def test_a_part_has_the_tables_that_its_functions_read_and_no_others() -> None:
    parts = parts_of(*written(), for_parts(2))
    assert len(parts) > 1
    for number in range(KERNELS):
        assert sum(f"@table{number} = " in part for part in parts) == 1


def test_what_is_small_stays_whole() -> None:
    module, groups = written()
    (only,) = parts_of(module, groups, 100_000)
    assert "far" not in only
    assert sorted(only.splitlines()) == sorted(str(module).splitlines())


def test_a_part_is_given_when_its_functions_are_written() -> None:
    module, groups = written()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "LEAST_PART", letters(groups[0]) + letters(groups[1]))
        parts = ModuleParts(module)
        given = [len(list(parts.add(group))) for group in groups]
    assert given == [0, 1, 0, 1, 0]


def test_every_function_is_in_exactly_one_part() -> None:
    module, groups = written()
    text = "\n".join(parts_of(module, groups, for_parts(3)))
    for function in module.functions:
        assert text.count(f"define void @{function.name}(") == 1


def test_a_long_caller_is_a_part_of_its_own_and_calls_even_its_neighbours_through_pointers() -> None:
    module, groups = written()
    caller = module.functions[0]
    first, *_, last = parts_of(module, groups[:1], len(str(caller)))
    assert "define void @all(" in first
    assert "@import.kernel1" in first
    assert "call void @kernel" not in first
    assert "define void @all(" not in last
    assert "define void @kernel1(" in last


def test_a_part_has_equal_internal_functions_once() -> None:
    module = Module(host_target())
    groups: list[Group] = []
    for number, value in enumerate((1.5, 2.5, 1.5)):
        kernel = module.function(f"kernel{number}", ["ptr"])
        inner = module.inner_function(f"kernel{number}.inner", ["ptr"])
        inner.store(constant("double", value), inner.parameters[0])
        to = kernel.offset(kernel.parameters[0], "double", number)
        kernel.emit_void(f"call void @kernel{number}.inner({to})")
        groups.append([kernel, inner])
    (part,) = parts_of(module, groups, 100_000)
    assert [part.count(f"@kernel{number}.inner(") for number in range(3)] == [3, 2, 0]
    library = load_objects(object_codes([part], host_target()), host_target())
    found = (ctypes.c_double * 3)()
    for number in range(3):
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address(f"kernel{number}"))(ctypes.addressof(found))
    assert list(found) == [1.5, 2.5, 1.5]
    assert str(module).count("define internal") == 2


def test_packings_from_different_strides_transpose_by_one_function() -> None:
    module = Module(host_target())
    for name, inner in (("pack_1", 64), ("pack_2", 128)):
        emit_pack(module, PackKernel(name, "f32", (), inner, 32, Matrix((), 1, inner), (), 16, Blocks(2, 1, 0)))
    assert str(module).count("define internal") == 2  # which packs panels, and which transposes for it
