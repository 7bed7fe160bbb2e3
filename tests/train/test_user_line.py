"""The user's line that a thread is in, or that the thread it waits for is in."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from weft.train.processes.rank_watch import HELPERS, line_of_thread


@pytest.mark.parametrize("users, expected", [(True, "go.wait(10)"), (False, "return line_of_thread(own)")])
def test_a_helper_outside_the_users_code_leaves_the_line_of_who_waits(users: bool, expected: str) -> None:
    ready, go = threading.Event(), threading.Event()

    def work() -> bool:
        return ready.set() or go.wait(10)  # one line, so that it does not matter how far the helper is

    if not users:
        ready.set()  # the helper runs Python's own code only
    line = line_with_helper(work if users else go.wait, ready, go)
    assert "test_user_line.py" in line
    assert expected in line


def line_with_helper(work: Callable[[], object], ready: threading.Event, go: threading.Event) -> str:
    own = threading.get_ident()
    helper = threading.Thread(target=work)
    helper.start()
    assert ready.wait(10)
    HELPERS[own] = helper.ident or 0
    try:
        return line_of_thread(own) or ""
    finally:
        HELPERS.pop(own)
        go.set()
        helper.join()


class Held:
    """Something that a thread computes with."""


def test_asking_for_a_line_keeps_nothing_that_threads_compute_with() -> None:
    own, ready, go = threading.get_ident(), threading.Event(), threading.Event()
    kept: list[weakref.ref[Held]] = []

    def work() -> None:
        held = Held()
        kept.append(weakref.ref(held))
        ready.set()
        go.wait(10)

    gc.disable()  # it would only find later what is in a circle
    try:
        helper = threading.Thread(target=work)
        helper.start()
        assert ready.wait(10)
        line_of_thread(own)
        line_of_thread(helper.ident or 0)
        go.set()
        helper.join()
        assert kept[0]() is None
    finally:
        gc.enable()
