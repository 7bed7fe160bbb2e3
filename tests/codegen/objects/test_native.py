"""Behaviour of the compiler of module text, and of the object code kept on disk."""

import ctypes
import multiprocessing
import threading
from pathlib import Path

import pytest

from weft.codegen.objects import compiler, native
from weft.codegen.objects.native import SUFFIX, ObjectCache
from weft.config import overrides
from weft.errors import InternalError
from weft.target import cross_target, host_target

ADD_SEVEN = """
define i64 @add_seven(i64 %x) {
  %y = add i64 %x, 7
  ret i64 %y
}
declare double @exp(double)
define double @through_libm(double %x) {
  %y = call double @exp(double %x)
  ret double %y
}
"""


def call_add_seven(library: native.NativeLibrary, x: int) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.address("add_seven"))(x))


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "objects").glob(f"*{SUFFIX}"))


def build_and_call(folder: str, answers: "multiprocessing.Queue[int]") -> None:
    with overrides(cache_dir=Path(folder)):
        answers.put(call_add_seven(native.compile_native(ADD_SEVEN, host_target()), 35))


def test_compiled_text_runs() -> None:
    library = native.compile_native(ADD_SEVEN, host_target(), use_cache=False)
    assert call_add_seven(library, 35) == 42
    assert library.names == {"add_seven", "through_libm"}


def test_functions_of_the_mathematics_library_resolve() -> None:
    library = native.compile_native(ADD_SEVEN, host_target(), use_cache=False)
    call = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(library.address("through_libm"))
    assert call(0.0) == 1.0


def test_an_unknown_function_name_is_an_error() -> None:
    library = native.compile_native(ADD_SEVEN, host_target(), use_cache=False)
    with pytest.raises(InternalError, match="no native function is called 'nothing'"):
        library.address("nothing")


def test_text_that_llvm_rejects_is_an_internal_error() -> None:
    with pytest.raises(InternalError, match="LLVM rejects"):
        native.compile_native("define i64 @f() { ret i32 0 }", host_target(), use_cache=False)


def test_the_second_compilation_comes_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with overrides(cache_dir=tmp_path):
        first = native.compile_native(ADD_SEVEN, host_target())
        assert len(entries(tmp_path)) == 1
        monkeypatch.setattr(native, "object_codes", lambda *_: pytest.fail("compiled again"))
        second = native.compile_native(ADD_SEVEN, host_target())
    assert second.objects == first.objects
    assert call_add_seven(second, 1) == 8


@pytest.mark.parametrize("damage", [lambda b: b[:-5], lambda b: b[:60] + b"?" + b[61:], lambda b: b"", lambda b: b * 2])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: object) -> None:
    with overrides(cache_dir=tmp_path):
        native.compile_native(ADD_SEVEN, host_target())
        (path,) = entries(tmp_path)
        whole = path.read_bytes()
        path.write_bytes(damage(whole))  # type: ignore[operator]
        assert call_add_seven(native.compile_native(ADD_SEVEN, host_target()), 1) == 8
        assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("a file where the folder should be")
    with overrides(cache_dir=tmp_path):
        assert call_add_seven(native.compile_native(ADD_SEVEN, host_target()), 1) == 8


def test_the_cache_drops_its_oldest_entries_when_full(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, largest=1000)
    for number in range(6):
        cache.write(f"key{number}", bytes(300))
    cache.prune()
    kept = [path.name for path in tmp_path.iterdir()]
    assert len(kept) == 2
    assert cache.read("key0") is None


def test_the_key_depends_on_text_and_processor() -> None:
    host = host_target()
    keys = {native.cache_key(text, target) for text in ("a", "b") for target in (host, host.masked("generic"))}
    assert len(keys) == 4


def test_several_threads_compile_at_once() -> None:
    answers: list[int] = []

    def build(number: int) -> None:
        text = ADD_SEVEN.replace("i64 %x, 7", f"i64 %x, {number}")
        answers.append(call_add_seven(native.compile_native(text, host_target(), use_cache=False), 0))

    threads = [threading.Thread(target=build, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(answers) == list(range(8))


@pytest.mark.slow
def test_several_processes_share_one_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=build_and_call, args=(str(tmp_path), answers)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [answers.get(timeout=60) for _ in processes] == [42, 42, 42]
    for process in processes:
        process.join(60)
    assert len(entries(tmp_path)) == 1


def test_object_code_for_another_architecture() -> None:
    code = compiler.object_code(ADD_SEVEN, cross_target("aarch64"))
    assert code[:4] == b"\x7fELF"
    assert int.from_bytes(code[18:20], "little") == 183  # the ELF number of aarch64
    assert "add\tx0, x0, #7" in compiler.assembly(ADD_SEVEN, cross_target("aarch64"))


def described(description: str, text: str = ADD_SEVEN, number: int = 7) -> native.NativeLibrary:
    texts = (text.replace("i64 %x, 7", f"i64 %x, {number}"),)
    return native.compile_described(description, lambda: texts, host_target())


def test_what_is_described_alike_is_written_once(tmp_path: Path) -> None:
    def never() -> tuple[str, ...]:
        pytest.fail("written again")

    with overrides(cache_dir=tmp_path):
        first = described("a")
        second = native.compile_described("a", never, host_target())
    assert second.objects == first.objects
    assert call_add_seven(second, 1) == 8


def test_another_description_or_version_of_weft_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with overrides(cache_dir=tmp_path):
        assert call_add_seven(described("a"), 1) == 8
        assert call_add_seven(described("b", number=8), 1) == 9
        monkeypatch.setattr(native, "code_version", lambda: "another")
        assert call_add_seven(described("a", number=9), 1) == 10
    assert len(entries(tmp_path)) == 3


@pytest.mark.parametrize("damage", [lambda b: b[:-5], lambda b: b[:60] + b"?" + b[61:], lambda _: b"weft object 1\n"])
def test_a_damaged_entry_of_what_is_described_is_built_again(tmp_path: Path, damage: object) -> None:
    with overrides(cache_dir=tmp_path):
        described("a")
        (path,) = entries(tmp_path)
        whole = path.read_bytes()
        path.write_bytes(damage(whole))  # type: ignore[operator]
        assert call_add_seven(described("a"), 1) == 8
        assert path.read_bytes() == whole


def test_an_entry_of_several_modules_is_read_as_it_was_written(tmp_path: Path) -> None:
    texts = ("define void @one() { ret void }", "define void @two() { ret void }")
    with overrides(cache_dir=tmp_path):
        first = native.compile_described("both", lambda: texts, host_target())
        second = native.compile_described("both", lambda: (), host_target())
    assert first.names == second.names == {"one", "two"}
    assert second.objects == first.objects
    assert len(first.objects) == 2
