"""Code that a process shares is compiled once, ahead where a thread can do it, and a fork waits for that thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from weft.codegen.llvm.module import Module
from weft.compile.ahead import begin_process
from weft.devices import cores
from weft.errors import InternalError
from weft.runtime import shared_code
from weft.runtime.shared_code import Ahead, Text, shared_library
from weft.target import Target


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ahead]:
    """What begins as in a new process."""
    found = Ahead()
    monkeypatch.setattr(shared_code, "ahead", found)
    monkeypatch.setattr("weft.compile.ahead.ahead", found)
    yield found
    found.finish()


@pytest.fixture
def written() -> Iterator[tuple[Text, list[int]]]:
    """A library's text, and which threads have written it."""
    threads: list[int] = []

    def text(target: Target) -> str:
        threads.append(threading.get_ident())
        module = Module(target)
        module.function("nothing", ["ptr"])
        return str(module)

    yield text, threads
    shared_code._libraries.pop(text, None)


def test_what_is_compiled_ahead_is_there_when_it_is_needed(ahead: Ahead, written: tuple[Text, list[int]]) -> None:
    text, threads = written
    ahead.begin(lambda: [text])
    assert shared_library(text).address("nothing")
    ahead.begin(lambda: pytest.fail("begun again"))
    ahead.finish()
    assert len(threads) == 1
    assert "nothing" in shared_library(text).names


def test_an_error_ahead_is_met_again_by_whoever_needs_the_code(ahead: Ahead) -> None:
    def broken(_: Target) -> str:
        raise InternalError("no such text")

    ahead.begin(lambda: [broken])
    ahead.finish()
    with pytest.raises(InternalError, match="no such text"):
        shared_library(broken)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_waits_until_nothing_is_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[bool] = []
    go_on, begun = threading.Event(), threading.Event()

    def texts() -> Iterator[Text]:
        begun.set()
        assert go_on.wait(timeout=60)
        waited.append(True)
        return iter(())

    monkeypatch.setattr(shared_code.ahead, "_thread", None)
    shared_code.ahead.begin(texts)
    assert begun.wait(timeout=60)
    threading.Timer(0.0, go_on.set).start()
    child = os.fork()
    if child == 0:
        os._exit(0 if waited else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_libraries_of_every_program_are_compiled_ahead(ahead: Ahead, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    monkeypatch.setattr(shared_code, "shared_library", lambda text: found.append(text.__name__))
    with cores(2):
        begin_process()
    ahead.finish()
    assert found[-2:] == ["worker_module", "python_calls"]


def test_while_it_is_paused_nothing_is_compiled_ahead(ahead: Ahead, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()
    found: list[Text] = []

    def compiled(text: Text) -> None:
        begun.set()
        assert go_on.wait(timeout=60)
        found.append(text)

    def first(_: Target) -> str: ...

    def second(_: Target) -> str: ...

    def pause() -> None:
        with ahead.paused():
            seen.append(list(found))
            assert not done.wait(timeout=0.05)
            seen.append(list(found))

    seen: list[list[Text]] = []
    monkeypatch.setattr(shared_code, "shared_library", compiled)
    ahead.begin(lambda: [first, second])
    assert begun.wait(timeout=60)
    pausing = threading.Thread(target=pause)
    pausing.start()
    while ahead._may_go_on.is_set():  # the pause waits for what has been begun
        pass
    go_on.set()
    pausing.join()
    assert seen == [[first], [first]]
    ahead.finish()
    assert found == [first, second]
