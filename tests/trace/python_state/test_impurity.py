"""Whoever draws while code is traced is told apart: the code itself, or another thread."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

from weft.errors import UnsupportedError
from weft.trace.python_state.impurity import without_draws


def draw_beside() -> None:
    thread = threading.Thread(target=random.random)
    thread.start()
    thread.join()


def test_what_another_thread_draws_is_no_draw_of_the_code_and_stays_drawn() -> None:
    random.seed(3)
    assert without_draws((), lambda: [draw_beside(), 5][1]) == 5
    drawn = random.random()
    random.seed(3)
    assert drawn == [random.random() for _ in range(3)][-1]  # both traces drew beside


def test_numpys_state_is_not_read_at_each_call_where_only_pythons_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    get_state = np.random.get_state

    def reading(*arguments: Any, **keywords: Any) -> Any:
        reads.append(1)
        return get_state(*arguments, **keywords)

    monkeypatch.setattr(np.random, "get_state", reading)
    without_draws((), draw_beside)
    assert len(reads) < 5


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_code_that_draws_is_refused_and_what_it_drew_is_put_back(draw: Any) -> None:
    random.seed(3)
    np.random.seed(3)
    first = draw()
    random.seed(3)
    np.random.seed(3)
    with pytest.raises(UnsupportedError):
        without_draws((), draw)
    assert draw() == first
