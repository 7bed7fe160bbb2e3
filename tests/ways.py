"""A function that makes a thing and its calls -> whether every way to run it does what eager PyTorch does.

    def make():
        def function(x, seen):
            seen.append(x)
            return torch.cat(seen)

        seen = []
        return Work(function, [((torch.ones(2), seen), {})] * 3)

    assert_every_way(make)

`make` is called once a side, and must make all anew: functions with their closures, arguments, modules. After each call
everything is compared that can be reached from the thing, its arguments, `watched` and the result (tests/worlds.py),
three random streams, gradients, and exceptions. A WeftError that is not ours (not InternalError) is a refusal: it is
given back, and must have left everything as it was before the call.
"""

from __future__ import annotations

import contextlib
import logging
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tests.conformance.contestants import lazy_throughout
from tests.conformance.play import run_backward
from tests.worlds import Worlds
from torch import nn
from torch.utils import _pytree as pytree

import weft
from weft.config import overrides
from weft.errors import ExecutionError, InternalError, WeftError

CALLS = 3
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _nothing(number: int) -> None:
    """Change nothing before a call."""


@dataclass(frozen=True)
class Work:
    """A function or module, the arguments of each call, and whatever else it may change.

    Calls may share objects, as callers share a cache. `around` is in force around each call, `before` is called with
    its number, and `backward` sends a cotangent back from its result.
    """

    thing: Callable[..., Any]
    calls: Sequence[Arguments]
    watched: Any = None
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    backward: bool = False
    before: Callable[[int], Any] = _nothing

    @classmethod
    def repeated(cls, thing: Callable[..., Any], *arguments: Any, calls: int = CALLS, **keywords: Any) -> Work:
        """The same objects at each call."""
        return cls(thing, [(arguments, keywords)] * calls)


Make = Callable[[], Work]


@dataclass
class Left:
    """What a call left: its result or exception, and the states of the random streams."""

    result: Any = None
    error: Exception | None = None
    streams: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Way:
    """One way to run a thing: what stands in its place, and what is in force around all calls."""

    stand_in: Callable[[Callable[..., Any]], Callable[..., Any]]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    exact: bool = False  # bit by bit: PyTorch's own operators run
    loop: bool = False  # what is compared is a training loop around the thing


class Refused(Exception):  # noqa: N818 - a finding, not an error
    """A way that refused the work, rightly or not: `error` says why."""

    def __init__(self, error: WeftError) -> None:
        super().__init__(str(error))
        self.error = error


class Trained(nn.Module):
    """A thing as a module of one more parameter, so that there is something to train."""

    def __init__(self, thing: Callable[..., Any]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.thing = thing

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Scale the sum of all floating results."""
        result = self.thing(*arguments, **keywords)
        leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        sums = [leaf.sum() for leaf in leaves if leaf.is_floating_point() and leaf.numel()]
        return sum(sums, torch.zeros(())) * self.scale


def hybridized(thing: Callable[..., Any]) -> Callable[..., Any]:
    """Weft's programs."""
    return weft.hybridize(thing)


def lazily(thing: Callable[..., Any]) -> Callable[..., Any]:
    """Lazy code."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            with weft.lazy():
                return thing(*arguments, **keywords)
        except ExecutionError as error:
            raise error.__cause__ or error from None

    return call


def by_dynamo(backend: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Graphs that Dynamo found."""
    return lambda thing: torch.compile(thing, backend=backend)


def eager_loop(thing: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's usual training loop."""
    net = Trained(thing)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    trained = [one for group in optimizer.param_groups for one in group["params"]]

    def call(*arguments: Any, **keywords: Any) -> Any:
        with torch.enable_grad():
            optimizer.zero_grad()
            loss = net(*arguments, **keywords)
            loss.backward(inputs=[one for one in trained if one.requires_grad])  # as a step does: of nothing else
            optimizer.step()
        return loss.detach()

    return call


def stepped(thing: Callable[..., Any]) -> Callable[..., Any]:
    """A training step as one program."""
    net = Trained(thing)
    return weft.step(net, None, torch.optim.SGD(net.parameters(), 0.01))


@contextlib.contextmanager
def fresh_dynamo() -> Iterator[None]:
    """Let no compiled code be left over, before or after."""
    torch.compiler.reset()
    fakes = logging.getLogger("torch._subclasses.fake_tensor")  # tells of every error that a program means to raise
    level = fakes.level
    fakes.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        fakes.setLevel(level)
        torch.compiler.reset()


def library() -> AbstractContextManager[Any]:
    """Let programs be PyTorch's operators."""
    return overrides(codegen="library")


WAYS: dict[str, Way] = {
    "hybridize": Way(hybridized),
    "library": Way(hybridized, library, exact=True),
    "lazy": Way(lazily, lazy_throughout),
    "step": Way(stepped, loop=True),
    "dynamo": Way(by_dynamo("weft"), fresh_dynamo),
}
"""Every way that Weft offers, by name. Not all mean something for all work: `step` needs a loss."""

QUICK = ("hybridize", "library", "lazy", "step")
"""Those that cost milliseconds; Dynamo takes seconds."""

DYNAMO_ALONE = Way(by_dynamo("eager"), fresh_dynamo)


def assert_every_way(make: Make, *ways: str, refused: Sequence[str] = ()) -> dict[str, WeftError]:
    """Assert that ways (all but Dynamo, if none is named) do what eager does; gives the errors of those that refuse.

    Only the ways in `refused` may refuse, and must.
    """
    refusals: dict[str, WeftError] = {}
    for name in ways or QUICK:
        found: Refused | str | None
        try:
            found = difference(make, name)
        except Refused as refusal:
            found, refusals[name] = refusal, refusal.error
        assert found is None or name in refusals, f"{name}: {found}"
        assert (name in refusals) == (name in refused), (
            f"{name} refuses: {found}" if found else f"{name} does not refuse"
        )
    return refusals


def difference(make: Make, name: str) -> str | None:
    """What one way does otherwise than eager, None if nothing; raises Refused where it refuses."""
    way = WAYS[name]
    found = _difference(make, way)
    if found is not None and name == "dynamo" and _difference(make, DYNAMO_ALONE) is not None:
        return None  # Dynamo's own doing
    return found


def _difference(make: Make, way: Way) -> str | None:
    eager, ours = made(make), made(make)
    worlds = Worlds(exact=way.exact)
    if (text := worlds.difference("before", _world(eager), _world(ours))) is not None:
        return f"the two sides begin differently: {text}"
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(way.around())
        first = eager_loop(eager.thing) if way.loop else eager.thing
        second = way.stand_in(ours.thing)
        for number in range(len(eager.calls)):
            expected = played(eager, first, number)
            actual = played(ours, second, number)
            where = f"call {number + 1}:"
            if refusal := refusal_of(actual.error):
                _check_untouched(make, way, number, ours)
                raise Refused(refusal)
            text = error_difference(expected.error, actual.error)
            text = text or worlds.difference("result", expected.result, actual.result)
            text = text or worlds.difference("after", _world(eager), _world(ours))
            text = text or Worlds(exact=True).difference("random streams", expected.streams, actual.streams)
            if text is not None:
                return f"{where} {text}"
    return None


def made(make: Make) -> Work:
    """Make work, with the same random numbers each time."""
    seed(0)
    return make()


def played(work: Work, stand_in: Callable[..., Any], number: int) -> Left:
    """Make a call from fixed seeds."""
    arguments, keywords = work.calls[number]
    work.before(number)
    seed(number)
    left = Left()
    try:
        with work.around():
            left.result = stand_in(*arguments, **keywords)
            if work.backward:
                run_backward(left.result)
    except Exception as error:  # noqa: BLE001 - whatever eager raises is what must be raised
        left.error = error
    left.streams = [torch.get_rng_state(), str(np.random.get_state(legacy=False)), random.getstate()]
    return left


def seed(number: int) -> None:
    """Begin each call with the same random numbers on both sides."""
    torch.manual_seed(number + 7)
    np.random.seed(number + 7)
    random.seed(number + 7)


def refusal_of(error: BaseException | None) -> WeftError | None:
    """The WeftError that an exception is, or that Dynamo wrapped; none that is Weft's own fault."""
    while error is not None:
        if isinstance(error, WeftError):
            return None if isinstance(error, InternalError) else error
        error = error.__cause__
    return None


def error_difference(expected: Exception | None, actual: Exception | None) -> str | None:
    """Say in what two exceptions differ: class, or first line."""
    if expected is None and actual is None:
        return None
    if expected is None or actual is None or type(expected).__qualname__ != type(actual).__qualname__:
        return f"raised {_line(actual)}, eager {_line(expected)}"
    first, second = (str(error).strip().splitlines()[:1] for error in (expected, actual))
    return None if first == second else f"raised {_line(actual)}, eager {_line(expected)}"


def _check_untouched(make: Make, way: Way, number: int, ours: Work) -> None:
    """Assert that a refused call left everything as it was before it."""
    before = made(make)
    call = eager_loop(before.thing) if way.loop else before.thing
    for earlier in range(number):
        played(before, call, earlier)
    before.before(number)
    text = Worlds(exact=way.exact).difference("after a refusal", _world(before), _world(ours))
    assert text is None, f"call {number + 1}: {text}"


def _world(work: Work) -> tuple[Any, ...]:
    return work.thing, [list(call) for call in work.calls], work.watched


def _line(error: BaseException | None) -> str:
    return "nothing" if error is None else f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
