"""Things are counted in words."""

from __future__ import annotations

from weft.counted import counted


def test_one_thing_is_not_many() -> None:
    assert [counted(number, "stop") for number in (0, 1, 2)] == ["0 stops", "1 stop", "2 stops"]
