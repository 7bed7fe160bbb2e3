"""Random numbers that traced Python code draws by itself, from `random` or NumPy -> a refusal that names the line.

They would be the same at every run. Whether any were drawn is seen by the generators' states; since other threads draw
too, what is seen is looked for in this thread, by tracing once more under a profiler.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from weft.ir.graph import Place
from weft.trace.interception.places import user_place
from weft.trace.interception.refusals import refuse

Found = TypeVar("Found")


def without_draws(sources: Sequence[Any], trace: Callable[[], Found]) -> Found:
    """Give what tracing gives, or refuse if it draws, also from generators of its own that it reaches: `sources`."""
    before = _states()
    own = [(source, _state_of(source)) for source in sources if not isinstance(source, random.SystemRandom)]
    found = trace()
    if any(pickle.dumps(_state_of(source)) != pickle.dumps(state) for source, state in own):
        _refuse_own(own, trace)
    if _same(before, _states()):
        return found
    look = _Look()
    profiler = sys.getprofile()
    sys.setprofile(look)
    try:
        found = trace()
    finally:
        sys.setprofile(profiler)
    if look.places:
        random.setstate(before[0])
        np.random.set_state(before[1])
        refuse("python draw", look.places[0])
    return found


def _refuse_own(own: Sequence[tuple[Any, Any]], trace: Callable[[], object]) -> None:
    """Refuse draws from generators of the function's own, which are put back; traces once more for the line."""
    places: list[Place | None] = []
    now = [pickle.dumps(_state_of(source)) for source, _ in own]

    def look(_frame: FrameType, _event: str, _called: Any) -> None:
        if not places and [pickle.dumps(_state_of(source)) for source, _ in own] != now:
            places.append(user_place())

    profiler = sys.getprofile()
    sys.setprofile(look)
    try:
        trace()
    finally:
        sys.setprofile(profiler)
        for source, state in own:
            _set_state(source, state)
    refuse("python draw", places[0] if places else None)


def _state_of(source: Any) -> Any:
    """The state of a generator of random numbers."""
    if isinstance(source, random.Random):
        return source.getstate()
    if isinstance(source, np.random.RandomState):
        return source.get_state(legacy=False)
    return source.bit_generator.state if isinstance(source, np.random.Generator) else source.state


def _set_state(source: Any, state: Any) -> None:
    if isinstance(source, random.Random):
        source.setstate(state)
    elif isinstance(source, np.random.RandomState):
        source.set_state(state)
    elif isinstance(source, np.random.Generator):
        source.bit_generator.state = state
    else:
        source.state = state


class _Look:
    """A profiler that notes the lines that draw.

    It sees the calls of Python's generators. It is not told of NumPy's: their state at the next event has changed.
    """

    def __init__(self) -> None:
        self.places: list[Place | None] = []
        self._numpy = np.random.get_state()

    def __call__(self, _frame: FrameType, event: str, called: Any) -> None:
        state = np.random.get_state()
        if not _same_numpy(self._numpy, state):
            self._numpy = state
            self.places.append(user_place())
        elif event == "c_call" and isinstance(getattr(called, "__self__", None), random.Random):
            self.places.append(user_place())


def _states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return one[0] == other[0] and _same_numpy(one[1], other[1])


def _same_numpy(one: Any, other: Any) -> bool:
    (_, key, *rest), (_, other_key, *other_rest) = one, other
    return rest == other_rest and bool(np.array_equal(key, other_key))
