"""Record seeding while Python is traced, so that every run seeds the same, or refuse it.

Stand-ins draw no numbers, so that after tracing a random operator the generator would stand where it stood before. The
ledger therefore sets it by hand, at the beginning and once per random operator: every moment of the program gets a
state of its own. A state that the ledger has seen is a moment of the program (fork_rng, checkpointing) and becomes a
value saved there; one that a seed gives was set by one, and becomes a constant. Any other was kept somewhere, where
another one may be at the next call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.ir.graph import Value
from weft.ir.types import NOTHING, contiguous
from weft.trace.interception.capture import generator_key
from weft.trace.interception.refusals import refuse
from weft.trace.interception.user_lines import user_place
from weft.trace.python_state.locations import Slot

Emit = Callable[..., Value]
BYTES_OF_SEED = 8  # with which a state begins
_SEEDS = count(1 << 50)  # far from those that people seed with: a state seen before would be no constant


class OwnGenerators:
    """Watches the generators that are not the CPU's default one, those of GPUs too, while Python is traced."""

    def __init__(self, things: Iterable[Any]) -> None:
        """Watch those among `things` that are generators."""
        on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        watched = (*(thing for thing in things if isinstance(thing, torch.Generator)), *on_gpus)
        self._before = {generator_key(generator): (generator, generator.get_state()) for generator in watched}

    def may_draw(self, generator: torch.Generator | None) -> bool:
        """Whether a program can draw from it at every run: it is the default one, or there was one before tracing."""
        return generator is None or self.is_default(generator) or generator_key(generator) in self._before

    @staticmethod
    def is_default(generator: torch.Generator | None) -> bool:
        """Whether it is the one that the ledger follows: the CPU's default one."""
        return generator is None or generator_key(generator) == generator_key(torch.default_generator)

    def restore(self) -> bool:
        """Leave them as tracing found them; says whether any had been seeded or set."""
        changed = [entry for entry in self._before.values() if not torch.equal(entry[0].get_state(), entry[1])]
        for generator, state in changed:
            generator.set_state(state)
        return bool(changed)


class RandomLedger:
    """Follows the default CPU generator through one trace."""

    def __init__(self, emit: Emit, places: Mapping[int, Slot] = MappingProxyType({})) -> None:
        """`places` are those of tensors that the code may reach: some may be states."""
        self._emit = emit
        self._places = places
        self._before = torch.get_rng_state()
        self._moments: dict[bytes, Value] = {}
        self._type = contiguous(torch.uint8, tuple(self._before.shape))
        # Where a call begins is no seed, though that of this call may be where one leads.
        self.after_random_operator()

    def successor(self) -> RandomLedger:
        """Follows code that runs later, at a moment that no value of this program is, but may go back to those."""
        found = RandomLedger(self._emit, self._places)
        found._moments = dict(self._moments)
        return found

    def before_random_operator(self) -> None:
        """Record that the generator was set, if it was, before an operator draws from it."""
        self._catch_up()
        self._save_current()

    def after_random_operator(self) -> None:
        """Give the moment after an operator a state of its own, another one each time that code has gone back."""
        torch.set_rng_state(torch.Generator().manual_seed(next(_SEEDS)).get_state())
        self._current = _fingerprint(torch.get_rng_state())

    def finish(self) -> None:
        """Record a seed that nothing has drawn from yet."""
        self._catch_up()

    def refuse_moment(self, tensor: torch.Tensor) -> None:
        """Refuse a state of the generator that code does anything else with than to set it again."""
        if _is_state(tensor, self._before) and _fingerprint(tensor) in {self._current, *self._moments}:
            refuse("random state", user_place())

    def restore(self) -> None:
        """Leave the generator as tracing found it."""
        torch.set_rng_state(self._before)

    def _save_current(self) -> None:
        if self._current not in self._moments:
            self._moments[self._current] = self._emit("random_state", (), self._type)

    def _catch_up(self) -> None:
        state = torch.get_rng_state()
        now = _fingerprint(state)
        if now == self._current:
            return
        if now not in self._moments and now[:BYTES_OF_SEED] == self._current[:BYTES_OF_SEED]:
            # Another thread has drawn meanwhile: code that is traced gives each moment a seed of its own.
            torch.set_rng_state(torch.Generator().manual_seed(_seed_of(now)).get_state())
            return
        self._save_current()
        known = self._moments.get(now)
        if known is None and not self._is_seeded(state):
            refuse("random state", user_place())
        value = known or self._emit("constant", (), self._type, tensor=state)
        self._moments[now] = value
        self._emit("set_random_state", (value,), NOTHING)
        self._current = now

    def _is_seeded(self, state: torch.Tensor) -> bool:
        """Whether a seed gives this state, and no tensor that the code may reach has it."""
        seed = _seed_of(_fingerprint(state))
        held = (slot.get() for slot in self._places.values())
        kept = any(_is_state(tensor, state) and torch.equal(tensor, state) for tensor in held)
        return not kept and torch.equal(state, torch.Generator().manual_seed(seed).get_state())


class NoDraws(RandomLedger):
    """In the place of a ledger where other threads draw meanwhile: the generator is left alone, nothing may draw."""

    def __init__(self, emit: Emit, _: Mapping[int, Slot] = MappingProxyType({})) -> None:
        self._emit = emit

    def successor(self) -> NoDraws:
        """Code that runs later may draw no more than this."""
        return self

    def before_random_operator(self) -> None:
        """Refuse it: what it draws now would be missing elsewhere."""
        raise UnsupportedError("random numbers are drawn where a program is traced beside other work")

    def after_random_operator(self) -> None:
        """There is none."""

    def finish(self) -> None:
        """There is nothing to record."""

    def refuse_moment(self, tensor: torch.Tensor) -> None:
        """There is none."""

    def restore(self) -> None:
        """It is as others left it."""


def _is_state(thing: object, state: torch.Tensor) -> bool:
    return type(thing) is torch.Tensor and thing.dtype == state.dtype and thing.shape == state.shape


def _seed_of(state: bytes) -> int:
    return int.from_bytes(state[:BYTES_OF_SEED], sys.byteorder)


def _fingerprint(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()
