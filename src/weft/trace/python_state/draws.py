"""Draw numbers from Python's and NumPy's generators anew at each run, in the order of the code.

While code is traced, another object stands in the places of each generator that it has: what it draws are inputs of the
program, which each run draws from the generator itself. A number that decides something, an array, and whatever else is
asked of a generator are refused: each run would need another program. The functions of the modules `random` and
`numpy.random`, which draw from generators of the process, are followed in the thread that traces.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock, get_ident, local
from types import ModuleType
from typing import Any

import numpy as np
import torch

from weft.ir.graph import Place
from weft.trace.interception.refusals import refuse
from weft.trace.interception.user_lines import user_place
from weft.trace.python_state.locations import Slot, standing_in
from weft.trace.python_state.reachable import PythonState
from weft.trace.python_state.sources import OF_PROCESS, SOURCES

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
        self._is_shared = source in OF_PROCESS  # others may draw from it meanwhile

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__dict__["_source"])

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if get_ident() != own["_thread"]:
            return getattr(own["_source"], name)
        if name not in NUMBERS or not hasattr(own["_source"], name):
            refuse("python draw", user_place(), detail=name)
        return partial(self._draw, name)

    def method(self, name: str) -> Callable[..., Any]:
        """Stands for a method of the generator."""

        def drawing(*arguments: Any, **keywords: Any) -> Any:
            return getattr(self, name)(*arguments, **keywords)

        return drawing

    def _draw(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        place = user_place()
        self.check(place)
        named = dict(zip(keywords, _fixed(keywords.values()), strict=True))
        found = Draw(self._source, name, _fixed(arguments), named, place)
        number = found.drawn_from(self._copy)
        if type(number) not in (int, float):
            refuse("python draw", place, detail=name)
        return self._drawn(found, number)

    def check(self, place: Place | None) -> None:
        """Refuse what others have drawn from the generator meanwhile, by a way that is not followed."""
        if not self._is_shared and pickle.dumps(state_of(self._source)) != self._last:
            refuse("python draw", place)

    def restore(self) -> None:
        """Leave the generator as tracing found it."""
        if not self._is_shared:
            set_state(self._source, self._before)


def _fixed(given: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments of a draw as they are at each run: a number that stands for others is tied to its value."""
    return tuple(
        int(one) if isinstance(one, torch.SymInt) else float(one) if isinstance(one, torch.SymFloat) else one
        for one in given
    )


class DrawnSources:
    """Stand-ins for all generators that code reaches by places that can hold another object, and for the process's."""

    def __init__(self, state: PythonState, drawn: Callable[[Draw, Any], Any]) -> None:
        bound = [(slot, method) for slot, method in state.bound if isinstance(method.__self__, SOURCES)]
        self._names = [
            (module, name)
            for module in (random, np.random)
            for name in sorted(state.mentioned)  # whatever else than to draw a number they are asked for is refused
            if getattr(vars(module).get(name), "__self__", None) in OF_PROCESS
        ]
        owners = [method.__self__ for _, method in bound]
        owners += [vars(module)[name].__self__ for module, name in self._names]
        self._stand_ins: dict[int, DrawnFrom] = {}
        for one in (*state.sources, *owners):
            if not isinstance(one, (random.SystemRandom, np.random.BitGenerator)) and id(one) not in self._stand_ins:
                with suppress(Exception):  # one that cannot be copied: what it draws is refused
                    self._stand_ins[id(one)] = DrawnFrom(one, drawn)
        self._entries: list[tuple[Slot, Any]] = [
            (place, self._stand_ins[id(one)])
            for one in {id(one): one for one in state.sources}.values()
            if id(one) in self._stand_ins
            for place in state.places.get(id(one), ())
        ]
        self._entries += [
            (slot, self._stand_ins[id(method.__self__)].method(method.__name__))
            for slot, method in bound
            if id(method.__self__) in self._stand_ins
        ]

    def stand_in(self, thing: Any) -> Any:
        """What stands for an argument, if it is such a generator."""
        return self._stand_ins.get(id(thing), thing)

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """While entered, they are where the generators are."""
        with standing_in(self._entries), following(self._names, self):
            yield

    def finish(self) -> None:
        """Refuse draws that were not followed."""
        for stand_in in self._stand_ins.values():
            stand_in.check(None)

    def restore(self) -> None:
        """Leave the generators as tracing found them."""
        for stand_in in self._stand_ins.values():
            stand_in.restore()


def is_drawn_from(thing: Any) -> bool:
    """Whether a thing stands for a generator while code is traced."""
    return type(thing) is DrawnFrom


_tracing = local()
_lock = Lock()
_in_use: dict[tuple[str, str], int] = {}  # how many traces follow a function that draws from the process's generators


class Followed:
    """Stands under the name of such a function: where a thread traces its trace draws, elsewhere the function does."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__name__, self.__self__ = function.__name__, function.__self__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Draw."""
        sources = getattr(_tracing, "sources", None)
        function = self.function
        if sources is not None:
            stand_in = sources.stand_in(function.__self__)
            function = stand_in.method(function.__name__) if is_drawn_from(stand_in) else function
        return function(*arguments, **keywords)


@contextmanager
def following(names: Sequence[tuple[ModuleType, str]], sources: DrawnSources) -> Iterator[None]:
    """While entered, these functions of Python modules are followed, in this thread by these sources."""
    before, _tracing.sources = getattr(_tracing, "sources", None), sources
    keys = [(module.__name__, name) for module, name in names]
    with _lock:
        for (module, name), key in zip(names, keys, strict=True):
            if not _in_use.setdefault(key, 0):
                setattr(module, name, Followed(vars(module)[name]))
            _in_use[key] += 1
    try:
        yield
    finally:
        _tracing.sources = before
        with _lock:
            for (module, name), key in zip(names, keys, strict=True):
                _in_use[key] -= 1
                if not _in_use[key]:
                    setattr(module, name, vars(module)[name].function)
