"""Ctrl-C at any moment -> an exception at the end of a block, or of a part that may be cut short."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from weft.interrupts import SIGNALS, interrupts_after


@contextmanager
def handled(number: int, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_an_interrupt_waits_for_the_end_of_a_block() -> None:
    before, reached = [signal.getsignal(number) for number in SIGNALS], []
    with pytest.raises(KeyboardInterrupt), interrupts_after():  # noqa: PT012 - that the block goes on is tested
        signal.raise_signal(signal.SIGINT)
        reached.append(True)
    assert reached
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_it_waits_for_the_end_of_the_outermost_block() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_after():  # noqa: PT012 - that the block goes on is tested
        with interrupts_after():
            signal.raise_signal(signal.SIGINT)
        reached.append(True)
    assert reached


def test_a_part_that_may_be_cut_short_is_and_the_next_interrupt_waits() -> None:
    undone = []
    with pytest.raises(KeyboardInterrupt), interrupts_after() as whole:  # noqa: PT012 - that the block goes on is tested
        try:
            with whole.cut_short():
                signal.raise_signal(signal.SIGINT)
                undone.append("too late")
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
            undone.append("undone")
    assert undone == ["undone"]


def test_what_came_before_a_part_cuts_it_short() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_after() as whole:  # noqa: PT012 - that the block goes on is tested
        signal.raise_signal(signal.SIGINT)
        reached.append("before")
        with whole.cut_short():
            reached.append("within")
    assert reached == ["before"]


def test_behind_a_part_an_interrupt_waits_again() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_after() as whole:  # noqa: PT012 - that the block goes on is tested
        with whole.cut_short():
            reached.append("within")
        signal.raise_signal(signal.SIGINT)
        reached.append("behind")
    assert reached == ["within", "behind"]


def test_a_handler_that_raises_nothing_cuts_nothing_short() -> None:
    seen: list[int] = []
    with handled(signal.SIGINT, lambda number, frame: seen.append(number)), interrupts_after() as whole:
        with whole.cut_short():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            assert len(seen) == 2
        signal.raise_signal(signal.SIGINT)
        assert len(seen) == 2
    assert len(seen) == 3


def test_what_asks_a_process_to_end_waits_where_it_raises() -> None:
    def ended(number: int, frame: object) -> None:
        raise SystemExit(number)

    reached = []
    with handled(signal.SIGTERM, ended), pytest.raises(SystemExit), interrupts_after():  # noqa: PT012 - that the block goes on is tested
        signal.raise_signal(signal.SIGTERM)
        reached.append(True)
    assert reached


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    with handled(signal.SIGINT, signal.SIG_IGN), interrupts_after():
        signal.raise_signal(signal.SIGINT)


def test_other_threads_are_told_of_nothing_and_change_nothing() -> None:
    seen = []

    def run() -> None:
        with interrupts_after() as whole, whole.cut_short():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert seen == [before]
