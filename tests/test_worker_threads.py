"""Calls find a thread, or the caller's own where the interpreter ends."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from weft.worker_threads import WorkerThreads, in_a_thread, is_ending


def _refused(*_: object, **__: object) -> None:
    raise RuntimeError("cannot schedule new futures after interpreter shutdown")


def test_calls_run_in_other_threads() -> None:
    with WorkerThreads(1) as pool:
        assert pool.submit(threading.get_ident).result() != threading.get_ident()


def test_while_the_interpreter_ends_the_caller_runs_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadPoolExecutor, "submit", _refused)
    with WorkerThreads(1) as pool:
        assert pool.submit(threading.get_ident).result() == threading.get_ident()
        failed = pool.submit(int, "none")
    with pytest.raises(ValueError, match="none"):
        failed.result()


def test_a_pool_that_is_closed_takes_no_more_calls() -> None:
    pool = WorkerThreads(1)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(int)


def test_a_call_in_a_thread_of_its_own_gives_what_it_found_or_raises() -> None:
    assert in_a_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        in_a_thread(lambda: 1 // 0)


def test_nothing_ends_while_the_main_thread_runs() -> None:
    assert not is_ending()
