"""The target says what this processor can do, and can be restricted or replaced by another."""

import os
import platform
from pathlib import Path

import pytest
from llvmlite import binding as llvm

from weft import target
from weft.config import overrides
from weft.errors import UsageError
from weft.target import LEVELS, Target, architecture, cross_target, host_target

ON_X86 = platform.machine() in {"x86_64", "AMD64"}
only_x86 = pytest.mark.skipif(not ON_X86, reason="levels above generic exist on x86-64 only")


def host() -> Target:
    """This machine with all it can do, also where the tests run under WEFT_TARGET."""
    with overrides(target="native"):
        return host_target()


def levels_of_this_machine() -> list[str]:
    rows = LEVELS[architecture(host().triple)]
    return [level for level, row in rows.items() if all(host().has(feature) for feature in row.needs)]


def test_the_host_is_described_completely() -> None:
    machine = host()
    assert machine.name == "native"
    assert machine.vector_bytes in {16, 32, 64}
    assert 0 < machine.l1_bytes <= machine.l2_bytes
    assert machine.l3_bytes > 0
    assert 1 <= machine.cores <= (os.cpu_count() or 1)


def test_the_host_is_asked_once() -> None:
    assert host_target() is host_target()


@pytest.mark.parametrize(("level", "floats", "doubles"), [("avx512", 16, 8), ("avx2", 8, 4), ("generic", 4, 2)])
def test_lanes_follow_from_the_vector_width(level: str, floats: int, doubles: int) -> None:
    machine = cross_target("x86_64", level)
    assert machine.lanes(32) == floats
    assert machine.lanes(64) == doubles
    assert machine.lanes(8) == 4 * floats


def test_a_vector_of_odd_elements_is_an_error() -> None:
    with pytest.raises(UsageError, match="no vector element has 24 bits"):
        host().lanes(24)


@only_x86
def test_a_masked_machine_keeps_its_caches_and_cores_but_loses_instructions() -> None:
    generic = host().masked("generic")
    assert generic.vector_bytes == 16
    assert not generic.has("avx2")
    assert (generic.l1_bytes, generic.cores, generic.triple) == (host().l1_bytes, host().cores, host().triple)


def test_native_is_no_mask() -> None:
    assert host().masked("native") is host()


def test_masking_twice_cannot_give_back_what_was_taken() -> None:
    with pytest.raises(UsageError, match=r"cannot run avx512 code\n  why   it lacks .*avx512f"):
        cross_target("x86_64", "avx2").masked("avx512")


def test_a_level_of_another_architecture_is_an_error() -> None:
    with pytest.raises(UsageError, match="'avx2' does not exist on aarch64"):
        cross_target("aarch64").masked("avx2")


def test_the_option_masks_the_host() -> None:
    with overrides(target="generic"):
        assert host_target().name == "generic"
    with overrides(target="native"):
        assert host_target().name == "native"


def test_another_architecture_has_its_own_vectors() -> None:
    arm = cross_target("aarch64")
    assert arm.triple.startswith("aarch64")
    assert arm.has("neon")
    assert arm.lanes(32) == 4


def test_an_architecture_we_cannot_compile_for_is_an_error() -> None:
    with pytest.raises(UsageError, match="cannot compile for riscv64"):
        cross_target("riscv64")


@pytest.mark.parametrize("level", ["native", *levels_of_this_machine()])
def test_llvm_accepts_the_cpu_and_features_of_every_level_without_a_word(level: str, capfd) -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = host().masked(level)
    vector = f"<{machine.lanes(32)} x float>"
    text = f"define {vector} @add({vector} %x, {vector} %y) {{ %z = fadd {vector} %x, %y ret {vector} %z }}"
    tool = llvm.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.cpu, features=machine.feature_string
    )
    assembly = tool.emit_assembly(llvm.parse_assembly(text.replace("%z ret", "%z\nret").replace("{ ", "{\n")))
    assert "add" in assembly
    if ON_X86:
        assert {64: "zmm", 32: "ymm", 16: "xmm"}[machine.vector_bytes] in assembly
    assert capfd.readouterr().err == ""


def test_the_kernels_cache_sizes_are_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        0: ("1", "Data", "48K"),
        1: ("1", "Instruction", "64K"),
        2: ("2", "Unified", "2M"),
        3: ("3", "Unified", "9"),
    }
    for number, row in rows.items():
        index = tmp_path / "cpu0" / "cache" / f"index{number}"
        index.mkdir(parents=True)
        for name, text in zip(("level", "type", "size"), row, strict=True):
            (index / name).write_text(text + "\n", encoding="ascii")
    monkeypatch.setattr(target, "CPU_FOLDER", tmp_path)
    assert [target.cache_bytes(level) for level in (1, 2, 3)] == [48 * 1024, 2 * 1024 * 1024, 9]


def test_without_any_source_the_cache_sizes_are_cautious_guesses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "CPU_FOLDER", tmp_path)
    monkeypatch.setattr(target, "CACHE_SYSCONF", dict.fromkeys((1, 2, 3), "SC_NO_SUCH_NAME"))
    assert [target.cache_bytes(level) for level in (1, 2, 3)] == list(target.CACHE_SIZES.values())


@pytest.mark.parametrize(("limit", "cores"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 8), ("", 8)])
def test_a_containers_share_of_the_processor_counts(
    limit: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(limit, encoding="ascii")
    monkeypatch.setattr(target, "CGROUP_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert target.usable_cores() == cores
