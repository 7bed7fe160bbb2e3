"""Behaviour of cutting a module into parts that are compiled at the same time."""

import ctypes

import pytest

from weft.codegen import module_parts
from weft.codegen.compiler import object_codes
from weft.codegen.module import Module
from weft.codegen.module_parts import Group
from weft.codegen.native import load_objects
from weft.codegen.register import constant
from weft.target import host_target

KERNELS = 5


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_parts, "LEAST_PART", 10)


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


@pytest.mark.parametrize("most", [1, 2, 3, 50])
def test_parts_loaded_together_do_what_the_whole_does(most: int) -> None:
    parts = module_parts.module_parts(*written(), most)
    assert len(parts) == min(most, len("".join(parts)), len(parts))
    library = load_objects(object_codes(parts, host_target()), host_target())
    found = (ctypes.c_double * (KERNELS + 1))()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("all"))(ctypes.addressof(found))
    assert list(found) == [0.5, 1.5, 2.5, 3.5, 4.5, -1.0]


def test_a_part_has_the_tables_that_its_functions_read_and_no_others() -> None:
    first, second = module_parts.module_parts(*written(), 2)
    for number in range(KERNELS):
        assert (f"@table{number} = " in first) != (f"@table{number} = " in second)


def test_what_is_small_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_parts, "LEAST_PART", 100_000)
    module, groups = written()
    assert module_parts.module_parts(module, groups, 8) == (str(module),)


def test_every_function_is_in_exactly_one_part() -> None:
    module, groups = written()
    text = "\n".join(module_parts.module_parts(module, groups, 3))
    for function in module.functions:
        assert text.count(f"define void @{function.name}(") == 1
