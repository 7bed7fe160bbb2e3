"""Draw numbers from Python's and NumPy's generators anew at each run, in the order of the code.

While code is traced, another object stands in the places of each generator that it has: what it draws are inputs of the
program, which each run draws from the generator itself. A number that decides something, an array, and whatever else is
asked of a generator are refused: each run would need another program.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import numpy as np
import torch

from weft.ir.graph import Place
from weft.trace.interception.refusals import refuse
from weft.trace.interception.user_lines import user_place
from weft.trace.python_state.reachable import Location

# What gives one number: a Python int or float, where it is asked for no array.
_NAMES = """
    random uniform gauss normalvariate lognormvariate expovariate betavariate gammavariate triangular vonmisesvariate
    paretovariate weibullvariate randint randrange getrandbits normal standard_normal exponential standard_exponential
    gamma standard_gamma beta lognormal laplace logistic gumbel rayleigh rand randn random_sample ranf
"""
NUMBERS = frozenset(_NAMES.split())


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """A number that each run draws: from which generator, and how."""

    source: Any
    method: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    place: Place | None

    def value(self, _numbers: Sequence[Any] = ()) -> Any:
        """Draw it."""
        return self.drawn_from(self.source)

    def drawn_from(self, source: Any) -> Any:
        """The same from another generator."""
        return getattr(source, self.method)(*self.arguments, **self.keywords)


def state_of(source: Any) -> Any:
    """The state of a generator of random numbers."""
    if isinstance(source, random.Random):
        return source.getstate()
    if isinstance(source, np.random.RandomState):
        return source.get_state(legacy=False)
    return source.bit_generator.state if isinstance(source, np.random.Generator) else source.state


def set_state(source: Any, state: Any) -> None:
    """Let a generator go on from a state."""
    if isinstance(source, random.Random):
        source.setstate(state)
    elif isinstance(source, np.random.RandomState):
        source.set_state(state)
    elif isinstance(source, np.random.Generator):
        source.bit_generator.state = state
    else:
        source.state = state


class DrawnFrom:
    """Stands for a generator while code is traced, for one that draws numbers; `drawn` makes inputs of them.

    What it gives meanwhile a copy of the generator has drawn. Other threads are given what the generator itself gives.
    """

    def __init__(self, source: Any, drawn: Callable[[Draw, Any], Any]) -> None:
        self._source = source
        self._drawn = drawn
        self._before = state_of(source)
        self._last = pickle.dumps(self._before)
        self._copy = copy.deepcopy(source)
        self._thread = get_ident()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__dict__["_source"])

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if get_ident() != own["_thread"]:
            return getattr(own["_source"], name)
        if name not in NUMBERS or not hasattr(own["_source"], name):
            refuse("python draw", user_place(), detail=name)

        def draw(*arguments: Any, **keywords: Any) -> Any:
            place = user_place()
            self.check(place)
            named = dict(zip(keywords, _fixed(keywords.values()), strict=True))
            found = Draw(self._source, name, _fixed(arguments), named, place)
            number = found.drawn_from(self._copy)
            if type(number) not in (int, float):
                refuse("python draw", place, detail=name)
            return self._drawn(found, number)

        return draw

    def check(self, place: Place | None) -> None:
        """Refuse what others have drawn from the generator meanwhile, by a way that is not followed."""
        if pickle.dumps(state_of(self._source)) != self._last:
            refuse("python draw", place)

    def restore(self) -> None:
        """Leave the generator as tracing found it."""
        set_state(self._source, self._before)


def _fixed(given: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments of a draw as they are at each run: a number that stands for others is tied to its value."""
    return tuple(
        int(one) if isinstance(one, torch.SymInt) else float(one) if isinstance(one, torch.SymFloat) else one
        for one in given
    )


class DrawnSources:
    """Stand-ins for all generators that code reaches by places that can hold another object."""

    def __init__(
        self, sources: Iterable[Any], places: Callable[[Any], Sequence[Location]], drawn: Callable[[Draw, Any], Any]
    ) -> None:
        known = [one for one in sources if not isinstance(one, (random.SystemRandom, np.random.BitGenerator))]
        self._stand_ins = {id(one): (one, DrawnFrom(one, drawn)) for one in known}
        self._places = [(place, one, stand_in) for one, stand_in in self._stand_ins.values() for place in places(one)]

    def stand_in(self, thing: Any) -> Any:
        """What stands for an argument, if it is such a generator."""
        found = self._stand_ins.get(id(thing))
        return thing if found is None else found[1]

    def put(self) -> None:
        """Put them where the generators are."""
        for place, _, stand_in in self._places:
            if not isinstance(place.container, tuple):
                place.put(stand_in)

    def take_back(self) -> None:
        """Put the generators back where they were."""
        for place, source, _ in self._places:
            if not isinstance(place.container, tuple):
                place.put(source)

    def finish(self) -> None:
        """Refuse draws that were not followed."""
        for _, stand_in in self._stand_ins.values():
            stand_in.check(None)

    def restore(self) -> None:
        """Leave the generators as tracing found them."""
        for _, stand_in in self._stand_ins.values():
            stand_in.restore()


def is_drawn_from(thing: Any) -> bool:
    """Whether a thing stands for a generator while code is traced."""
    return type(thing) is DrawnFrom
