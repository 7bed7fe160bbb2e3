"""Modules become machine code in Weft's own way, and whoever else uses LLVM in the process notices nothing of it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from weft.codegen.llvm.module import Module
from weft.codegen.objects import compiler, native
from weft.codegen.objects.compiler import object_code, object_codes, optimized, target_machine
from weft.codegen.objects.native import compile_native
from weft.devices import cores
from weft.target import Target, host_target


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


def test_modules_after_one_another_share_a_description_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    text, made = str(module()), []
    make = compiler.target_machine
    monkeypatch.setattr(compiler, "_idle", {})
    monkeypatch.setattr(compiler, "target_machine", lambda target: made.append(target) or make(target))
    codes = {object_code(text, host_target()) for _ in range(3)}
    assert len(codes) == 1
    assert made == [host_target()]


def test_whoever_waits_for_a_single_module_compiles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    by: list[int] = []
    monkeypatch.setattr(
        native, "object_code", lambda text, target: by.append(threading.get_ident()) or object_code(text, target)
    )
    assert compile_native(module(), host_target(), use_cache=False).names
    assert by == [threading.get_ident()]


def test_a_text_is_compiled_while_the_next_one_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, own = threading.Event(), threading.get_ident()
    compiled: list[int] = []

    def code_of(text: str, _: Any) -> bytes:
        begun.set()
        compiled.append(threading.get_ident())
        return text.encode()

    def written() -> Iterator[str]:
        yield "first"
        assert begun.wait(timeout=60)
        yield "second"
        yield "third"

    monkeypatch.setattr(compiler, "object_code", code_of)
    with cores(2):
        assert object_codes(written(), host_target()) == (b"first", b"second", b"third")
    assert compiled[0] != own
    begun.clear()
    compiled.clear()
    with cores(1):
        assert object_codes(iter(["a", "b"]), host_target()) == (b"a", b"b")
    assert compiled == [own, own]


def test_of_a_module_that_cannot_be_written_nothing_more_is_compiled() -> None:
    def written() -> Iterator[str]:
        yield str(module())
        raise RuntimeError("no kernel")

    with cores(2), pytest.raises(RuntimeError, match="no kernel"):
        object_codes(written(), host_target())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weft compiler")]


def test_threads_take_short_turns_only_while_something_is_compiled() -> None:
    before, seen = sys.getswitchinterval(), []

    def written() -> Iterator[str]:
        seen.append(sys.getswitchinterval())
        yield str(module())

    with cores(2):
        object_codes(written(), host_target())
    assert seen == [pytest.approx(min(compiler.SWITCH_INTERVAL, before))]
    assert sys.getswitchinterval() == before


def test_a_module_ends_before_its_context_whoever_looks_at_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def watched(text: str, machine: Any) -> Any:
        made.append(optimized(text, machine))
        return made[-1]

    monkeypatch.setattr(compiler, "optimized", watched)
    for make in (compiler.object_code, compiler.assembly, compiler.optimized_text):
        assert make(module(), host_target())
    assert [each.closed for each in made] == [True, True, True]


def test_who_waits_for_all_modules_compiles_the_longest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, own = threading.Event(), threading.Event(), list[str]()

    def code(text: str, _: Target) -> bytes:
        if threading.current_thread() is threading.main_thread():
            own.append(text)
            if len(own) == 3:
                go_on.set()
        else:
            begun.set()
            assert go_on.wait(timeout=60)
        return text.encode()

    monkeypatch.setattr(compiler, "object_code", code)
    with cores(2):
        compilation = compiler.Compilation(host_target())
    for text in ("first", "c", "longest", "long"):
        compilation.add(text)
        assert begun.wait(timeout=60)
    assert compilation.finish() == (b"first", b"c", b"longest", b"long")
    assert own == ["longest", "long", "c"]
