"""The engine of the process."""

import sys

import pytest

from weft.config import overrides
from weft.engine import SWITCH_INTERVAL, Engine, SerialEngine, current_engine, make_engine


@pytest.fixture(autouse=True)
def switch_interval():
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("name, kind", [("async", Engine), ("serial", SerialEngine)])
def test_the_option_chooses_the_engine(name, kind):
    with overrides(engine=name), make_engine({"cpu": 1}) as engine:
        assert type(engine) is kind


def test_the_engine_of_the_process_is_made_once_and_again_after_it_was_closed():
    engine = current_engine(lambda: {"cpu": 1})
    assert current_engine(lambda: {"cpu": 1}) is engine
    engine.close()
    again = current_engine(lambda: {"cpu": 1})
    assert again is not engine
    again.close()


def test_the_engine_of_the_process_shortens_the_switch_interval_but_never_lengthens_it():
    current_engine(lambda: {"cpu": 1}).close()  # there may be one of another test
    sys.setswitchinterval(5e-3)
    current_engine(lambda: {"cpu": 1}).close()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)
    sys.setswitchinterval(1e-5)
    current_engine(lambda: {"cpu": 1}).close()
    assert sys.getswitchinterval() == pytest.approx(1e-5)
