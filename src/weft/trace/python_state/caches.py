"""Read what functions remember of their calls (`functools.lru_cache`), and forget what a trace has made them remember.

Eager runs such a function once for each of its arguments, with all that it does beside: it draws, counts, reads a
setting. A program that repeated this at each run would draw anew, so a trace that finds nothing remembered is given up;
Python makes the call, and the next one is traced, with what is remembered by then.

CPython tells nobody what is remembered, but the garbage collector: for each entry its key and its result, the one that
was asked for last at the end, and the dictionary in which keys are looked up. A cache without a limit has results in
that, one with a limit the links of a list.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from types import CodeType
from typing import Any

import torch

from weft.trace.python_state.containers import MISSING
from weft.trace.python_state.facts import UNTOUCHED, NameFact, Same, name_fact
from weft.trace.python_state.locations import Slot

CACHED = type(lru_cache(lambda: None))
METHODS = frozenset({"cache_clear", "cache_info"})  # what they do, or tell, no program repeats
MOST_KNOWN = 256  # results that are looked into, of functions that remember all
MOST_RECENT = 8  # the same of those that forget: what a trace has asked for it has asked for last


@cache
def _places() -> tuple[int, int]:
    """Where among what a cache refers to its dictionary is, from the end, and where its entries begin."""
    result, key = object(), ("a key of its own",)
    probe = lru_cache(lambda _: result)
    probe(key)
    found = gc.get_referents(probe)
    table = next(place for place, part in enumerate(found) if type(part) is dict and list(part) == [(key,)])
    return table - len(found), found.index((key,))


def table_of(cached: Any) -> dict[Any, Any]:
    """The dictionary in which a cache looks up its keys."""
    found: dict[Any, Any] = gc.get_referents(cached)[_places()[0]]
    return found


def has_limit(cached: Any) -> bool:
    """Whether a cache forgets what was not asked for of late."""
    return cached.cache_parameters()["maxsize"] is not None


def code_of_full(cached: Any) -> CodeType | None:
    """The code of a function that would forget something for what it is asked for next, if it is of Python."""
    info = cached.cache_info()
    return getattr(cached.__wrapped__, "__code__", None) if info.maxsize and info.currsize >= info.maxsize else None


def recent(cached: Any) -> dict[Any, Any]:
    """What a cache has been asked for of late, by key; of one without a limit all, unless that is much."""
    if has_limit(cached):
        return dict(_linked(cached)[-MOST_RECENT:])
    return dict(list(table_of(cached).items())[-MOST_KNOWN:])


def _linked(cached: Any) -> list[tuple[Any, Any]]:
    """The keys and results of a cache with a limit, the one that was asked for last at the end."""
    parts, (table, first) = gc.get_referents(cached), _places()
    links = parts[first:table]  # the key, the result and the type of each
    return list(zip(links[0::3], links[1::3], strict=False))


@dataclass(frozen=True, slots=True, eq=False)
class RememberedFact(NameFact):
    """What a cache with a limit remembers under a key: the link may hold another result when it is used again."""

    cached: Any = None
    result: Any = None

    def change(self) -> str | None:
        """A sentence on what is different now, or nothing."""
        # Named in full: a class with slots is made anew, and `super()` does not find it.
        sentence = NameFact.change(self)
        if sentence is not None:
            return sentence
        now = next((result for key, result in _linked(self.cached) if key is self.key or key == self.key), MISSING)
        return None if now is self.result else f"{self.path} is another one"


def remembered(cached: Any) -> Iterator[tuple[Slot, list[NameFact]]]:
    """The places of what a function remembers, with the facts that code relies on which finds it there."""
    table, path = table_of(cached), f"what {getattr(cached, '__name__', 'a function')} remembers"
    for key, result in recent(cached).items():
        if has_limit(cached):
            held = (result,)
            place = (table, key, path, table.get(key, MISSING))
            fact = RememberedFact(*place, Same(place[3]), False, False, UNTOUCHED, cached=cached, result=result)
            yield Slot(held, 0, path), [fact, name_fact((held, 0, path, result))]
        else:
            is_tensor = isinstance(result, torch.Tensor)  # which programs read where it is
            yield Slot(table, key, path), [] if is_tensor else [name_fact((table, key, path, result))]


class Memory:
    """What a function remembers before a trace."""

    def __init__(self, cached: Any) -> None:
        self.cached = cached
        self._misses = cached.cache_info().misses
        self._keys = frozenset(map(id, table_of(cached)))
        self._before = list(table_of(cached))  # so that no other key gets the identity of one

    def has_missed(self) -> bool:
        """Whether the function was asked for something that it did not remember."""
        return bool(self.cached.cache_info().misses != self._misses)

    def forget(self) -> bool:
        """Take out what has been put in since; whether the function was run for it."""
        if not (self.has_missed() and self.keeps):
            return False
        if not self._keys:
            self.cached.cache_clear()
            return True
        table = table_of(self.cached)
        # SAFETY: a link whose key is gone stays in the list of a cache with a limit, which lets it go when it is the
        # oldest. No link may be put back: it could be one that was let go.
        for key in [key for key in table if id(key) not in self._keys]:
            table.pop(key, None)
        return True

    def since(self) -> list[tuple[Any, Any]]:
        """What it remembers since, by what it was asked for."""
        found = _linked(self.cached) if has_limit(self.cached) else table_of(self.cached).items()
        return [(key, result) for key, result in found if id(key) not in self._keys]

    @property
    def keeps(self) -> bool:
        """Whether the function remembers anything at all."""
        return bool(self.cached.cache_parameters()["maxsize"] != 0)

    @property
    def name(self) -> str:
        """What the function is called."""
        return str(getattr(self.cached, "__name__", "a function"))
