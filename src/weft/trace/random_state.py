"""Record seeding while Python is traced, so that every run seeds the same, or refuse it.

Stand-ins draw no numbers, so that after tracing a random operator the generator would stand where it stood before. The
ledger therefore sets it by hand, once per random operator, and at the beginning where a call finds it as a seed leaves
it: every moment of the program gets a state of its own. A state that the ledger has seen is a moment of the program
(fork_rng, checkpointing) and becomes a value saved there; one that a seed gives was set by one, and becomes a constant.
Any other was kept somewhere, where another one may be at the next call; or another thread has drawn meanwhile, which is
told by the seed that a state begins with. No state is given twice to other threads: whoever draws beside a trace draws
other numbers than anybody else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from threading import RLock
from types import MappingProxyType
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.ir.generator import generator_state, swap_generator_state
from weft.ir.graph import Value
from weft.ir.types import NOTHING, contiguous
from weft.trace.interception.capture import generator_key
from weft.trace.interception.refusals import refuse
from weft.trace.interception.user_lines import user_place
from weft.trace.python_state.locations import Slot

Emit = Callable[..., Value]
BYTES_OF_SEED = 8  # with which a state begins
OWN_SEEDS = range(1 << 50, 1 << 51)  # far from those that people seed with: a state seen before would be no constant
_SEEDS = count(OWN_SEEDS.start)
_STANDING: set[int] = set()  # the seeds of where the traces stand that go on now


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


# On the other side: a trace of another thread that sets the generator or puts it back; it waits for nothing meanwhile.
_setting = RLock()


class _Outside:
    """Where the default generator stands for all but the traces that go on now, in whichever threads."""

    def __init__(self) -> None:
        self.state = torch.empty(0, dtype=torch.uint8)
        self.returns = 0  # times that the end of a trace has put it back

    def has_seed_of(self, state: bytes) -> bool:
        """Whether a state may be where others have drawn to from here."""
        return _have_one_seed(_fingerprint(self.state), state)

    def put_back(self) -> None:
        """Let the generator stand there, or where another thread has drawn to since another trace put it back."""
        self.returns += 1
        put_back = self.state
        _note_outside(swap_generator_state(put_back))
        if self.state is not put_back:
            torch.set_rng_state(self.state)


_OUTSIDE = _Outside()


class RandomLedger:
    """Follows the default CPU generator through one trace."""

    def __init__(self, emit: Emit, places: Mapping[int, Slot] = MappingProxyType({})) -> None:
        """`places` are those of tensors that the code may reach: some may be states."""
        self._emit = emit
        self._places = places
        state = generator_state()
        self._current = _fingerprint(state)
        is_in_trace = _STANDING and _seed_of(self._current) in OWN_SEEDS  # of another thread
        if not is_in_trace:
            _OUTSIDE.state = state
        self._returns = _OUTSIDE.returns
        self._moments: dict[bytes, Value] = {}
        self._type = contiguous(torch.uint8, tuple(state.shape))
        self._has_set = False
        if _is_where_a_seed_leads(state):  # one that code sets may lead there, too
            self.after_random_operator()

    def successor(self) -> RandomLedger:
        """Follows code that runs later, at a moment that no value of this program is, but may go back to those."""
        found = RandomLedger(self._emit, self._places)
        found._moments = dict(self._moments)
        found.after_random_operator()
        return found

    def before_random_operator(self) -> None:
        """Record that the generator was set, if it was, before an operator draws from it."""
        self._catch_up()
        self._save_current()

    def after_random_operator(self) -> None:
        """Give the moment after an operator a state of its own, another one each time that code has gone back."""
        self._leave()
        seed = next(_SEEDS)
        state = torch.Generator().manual_seed(seed).get_state()
        self._current, self._has_set = _fingerprint(state), True
        with _setting:
            _STANDING.add(seed)
            _note_outside(swap_generator_state(state))

    def finish(self) -> None:
        """Record a seed that nothing has drawn from yet."""
        self._catch_up()

    def refuse_moment(self, tensor: torch.Tensor) -> None:
        """Refuse a state of the generator that code does anything else with than to set it again."""
        if _is_state(tensor, _OUTSIDE.state) and _fingerprint(tensor) in {self._current, *self._moments}:
            refuse("random state", user_place())

    def restore(self) -> None:
        """Leave the generator as tracing found it; what other threads have drawn since stays drawn."""
        with _setting:
            state = generator_state()
            now = _fingerprint(state)
            is_left = not self._has_set or (now not in self._moments and not _is_where_a_seed_leads(state))
            if is_left and _OUTSIDE.has_seed_of(now):
                _OUTSIDE.state = state
            else:
                _OUTSIDE.put_back()
        self._leave()

    def _leave(self) -> None:
        if self._has_set:  # else the moment is another trace's, or none's
            _STANDING.discard(_seed_of(self._current))

    def _save_current(self) -> None:
        if self._current not in self._moments:
            self._moments[self._current] = self._emit("random_state", (), self._type)

    def _catch_up(self) -> None:
        state = generator_state()
        now = _fingerprint(state)
        if now == self._current:
            return
        if self._is_of_another_thread(state, now):
            return
        self._save_current()
        known = self._moments.get(now)
        if known is None and not self._is_seeded(state):
            refuse("random state", user_place())
        value = known or self._emit("constant", (), self._type, tensor=state)
        self._moments[now] = value
        self._emit("set_random_state", (value,), NOTHING)
        self._current = now

    def _is_of_another_thread(self, state: torch.Tensor, now: bytes) -> bool:
        """Whether another thread has drawn, or follows code as this one does; if so, this goes on from its moment."""
        drawn = _have_one_seed(now, self._current)
        returned = self._returns != _OUTSIDE.returns and now == _fingerprint(_OUTSIDE.state)
        self._returns = _OUTSIDE.returns
        put_back = returned or (_OUTSIDE.has_seed_of(now) and not _is_where_a_seed_leads(state))
        is_other = drawn or put_back or _seed_of(now) in OWN_SEEDS
        if (now in self._moments and not returned) or not is_other or self._is_kept(state):
            return False
        current = torch.Generator().manual_seed(_seed_of(self._current)).get_state()
        is_seeded = _fingerprint(current) == self._current
        if not (drawn and is_seeded):
            _note_outside(state)
        if is_seeded and _seed_of(self._current) in OWN_SEEDS:
            self._stand_elsewhere()
        elif is_seeded:
            torch.set_rng_state(current)
        elif drawn:  # it is as others leave it
            if self._current in self._moments:
                self._moments[now] = self._moments[self._current]
            self._current = now
        return True

    def _stand_elsewhere(self) -> None:
        """Let the moment have another state: others may have drawn from this one, and would draw the same again."""
        self._save_current()
        value = self._moments[self._current]
        self.after_random_operator()
        self._moments[self._current] = value

    def _is_kept(self, state: torch.Tensor) -> bool:
        """Whether a tensor that the code may reach is this state."""
        held = (slot.get() for slot in self._places.values())
        return any(_is_state(tensor, state) and torch.equal(tensor, state) for tensor in held)

    def _is_seeded(self, state: torch.Tensor) -> bool:
        """Whether a seed gives this state, and no tensor that the code may reach has it."""
        return not self._is_kept(state) and _is_where_a_seed_leads(state)


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


def _have_one_seed(one: bytes, other: bytes) -> bool:
    return one[:BYTES_OF_SEED] == other[:BYTES_OF_SEED]


def _note_outside(state: torch.Tensor) -> None:
    """Note where others have drawn to, if it is that; code may seed as others did, and stands where the seed leads."""
    if _OUTSIDE.has_seed_of(_fingerprint(state)) and not _is_where_a_seed_leads(state):
        _OUTSIDE.state = state


def _is_where_a_seed_leads(state: torch.Tensor) -> bool:
    seed = _seed_of(_fingerprint(state))
    return torch.equal(state, torch.Generator().manual_seed(seed).get_state())


def _fingerprint(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()
