"""Modules become machine code in Weft's own way, and whoever else uses LLVM in the process notices nothing of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from weft.codegen import compiler
from weft.codegen.compiler import object_code, object_codes, optimized, target_machine
from weft.codegen.module import Module
from weft.target import host_target


def module() -> Module:
    """A loop whose address is a product of its counter: what LLVM would otherwise make a pointer of its own of."""
    found = Module(host_target())
    writer = found.function("strided", ["ptr", "ptr", "i64"])
    out, source, count = writer.parameters
    with writer.loop(0, count) as loop:
        value = writer.load("float", writer.offset(source, "float", writer.multiply(loop.index, 100)))
        writer.store(value, writer.offset(out, "float", writer.multiply(loop.index, 36)))
    return found


def by_somebody_else() -> str:
    """Assembly of the loop, asked of LLVM directly."""
    machine = target_machine(host_target())
    return str(machine.emit_assembly(optimized(str(module()), machine)))


def test_addresses_in_loops_are_left_as_written_only_for_weft() -> None:
    before = by_somebody_else()
    machine = target_machine(host_target())
    ours = object_code(module(), host_target())
    theirs = machine.emit_object(optimized(str(module()), machine))
    assert ours != theirs
    assert by_somebody_else() == before


def test_threads_that_compile_at_the_same_time_get_the_same_code() -> None:
    text, target = str(module()), host_target()
    expected = object_code(text, target)
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.extend(object_codes([text] * 3, target))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 9


def test_a_module_ends_before_its_context_whoever_looks_at_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def watched(text: str, machine: Any) -> Any:
        made.append(optimized(text, machine))
        return made[-1]

    monkeypatch.setattr(compiler, "optimized", watched)
    for make in (compiler.object_code, compiler.assembly, compiler.optimized_text):
        assert make(module(), host_target())
    assert [each.closed for each in made] == [True, True, True]
