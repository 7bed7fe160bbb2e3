"""Tasks that are machine code."""

import ctypes
import threading

import pytest

from weft.engine import Engine, NativeTask, Var
from weft.engine.task import SIGNATURE
from weft.errors import ExecutionError


def test_a_native_task_gets_its_argument_and_keeps_its_owner():
    cell = ctypes.c_int(0)

    @SIGNATURE
    def add_one(address):
        ctypes.c_int.from_address(address).value += 1
        return 0

    address = ctypes.cast(add_one, ctypes.c_void_p).value
    with Engine() as engine:
        x = Var("x")
        for _ in range(3):
            engine.push(NativeTask(address, ctypes.addressof(cell), keep=(add_one, cell)), writes=[x])
        engine.wait(x)
    assert cell.value == 3


def test_a_status_other_than_zero_is_a_failure():
    code = SIGNATURE(lambda argument: 7)
    address = ctypes.cast(code, ctypes.c_void_p).value
    with Engine() as engine:
        x = Var("x")
        engine.push(NativeTask(address, keep=code, name="kernel"), writes=[x])
        with pytest.raises(ExecutionError, match=r"(?s)task kernel failed.*error code 7"):
            engine.wait(x)


def test_native_tasks_run_together_without_the_interpreters_lock():
    library = ctypes.CDLL(None)
    read, write = library.read, library.write
    assert read
    assert write
    both = threading.Barrier(2, timeout=20)
    code = SIGNATURE(lambda argument: 0 if both.wait() >= 0 else 1)
    address = ctypes.cast(code, ctypes.c_void_p).value
    with Engine({"cpu": 2}) as engine:
        engine.push(NativeTask(address, keep=code))
        engine.push(NativeTask(address, keep=code))
        engine.waitall()
