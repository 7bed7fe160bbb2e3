"""The operators of a recording, one after the other -> a path in a tree of all recordings, which tells what came next.

A point stands for an operator behind all those before it: its form, where it takes its tensors from, and so also how
everything looks that was taken or made on the way. Programs repeat themselves: what followed at a point the last time
is looked at first, and a call that is as expected needs no key to be found by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any

import torch

from weft.lazy_tensors.call import LITERALS, NUMBERS
from weft.lazy_tensors.learning import Form
from weft.lazy_tensors.plan import Plan, Step
from weft.lazy_tensors.table import NUMBERS_FREE
from weft.lazy_tensors.values import Look

MOST_STEPS = 1000  # of a recording
MOST_POINTS = 100_000
TINY = 16  # elements: a counter, say, which is brought up to date at once
# Of these an equal one is as good as the very same object; nothing equals one of them and is of its class but another.
COMPARED = frozenset((int, str, torch.dtype, torch.device))
NOT_EXPECTED = -1  # no modes are written so: the call is found the usual way


class Fresh:
    """A tensor that a recording takes for the first time at some point."""

    __slots__ = ("index", "look", "place", "position")

    def __init__(self, place: int, position: int, index: int, look: Look | None) -> None:
        self.place = place  # among the arguments
        self.position = position  # among the tensors
        self.index = index
        self.look = look


class Point:
    """One operator behind all those before it, and what follows."""

    __slots__ = (
        "_reached", "bytes", "code", "count", "first", "following", "form", "fresh", "function", "inputs", "likely",
        "look", "made", "may_be_tiny", "modes", "names", "parent", "place", "plans", "seconds", "takes", "wants",
    )  # fmt: skip

    def __init__(self, parent: Point | None, form: Form | None, takes: tuple[int, ...]) -> None:
        self.parent = parent
        self.form = form
        self.takes = takes
        self.following: dict[tuple[Form, tuple[int, ...]], Point] = {}
        self.likely: Point | None = None  # what followed last
        self.plans: dict[tuple[int, ...], Plan] = {}  # by the results that were held when a recording ended here
        self.count = self.first = self.made = self.bytes = self.inputs = 0
        self.seconds = 0.0
        if parent is not None and form is not None:
            self.count = parent.count + 1
            self.seconds = parent.seconds + form.seconds
            self.bytes = parent.bytes + form.bytes
            self.first = parent.made  # the number of its first new result
            self.made = self.first + form.made
            self.inputs = max(parent.inputs, 0, *(~take + 1 for take in takes if take < 0))
        self.function: Callable[..., Any] | None = None if form is None else form.function
        self.look = form.outputs[0].look if form is not None and form.plain else None
        self.modes = NOT_EXPECTED
        self.wants: tuple[Any, ...] = ()
        self.names: tuple[str, ...] = ()
        self.fresh: tuple[Fresh, ...] = ()
        self.may_be_tiny = False
        self.code: CodeType | None = None  # the user's that called it last
        self.place: tuple[CodeType | None, int] = (None, -1)
        self._reached: list[frozenset[int]] | None = None

    def after(self, form: Form, takes: tuple[int, ...]) -> Point:
        """The point of an operator behind this one."""
        found = self.following.get((form, takes))
        if found is None:
            found = self.following[form, takes] = Point(self, form, takes)
            _made.append(None)
        self.likely = found
        return found

    def expect(self, modes: int, args: Sequence[Any], kwargs: dict[str, Any], looks: Sequence[Look | None]) -> None:
        """Note what a call of this operator comes with; `looks` are those of the recording's inputs."""
        if self.modes != NOT_EXPECTED or self.count >= MOST_STEPS:  # what ends a recording goes the usual way
            return
        wants: list[Any] = []
        news: list[Fresh] = []
        position = 0
        for place, item in enumerate((*args, *kwargs.values())):
            want = _want(item, self.function in NUMBERS_FREE)
            if want is None:
                return
            if want is torch.Tensor:
                want = self.takes[position]
                if self._is_fresh(want) and all(other.index != want for other in news):
                    news.append(Fresh(place, position, want, looks[~want]))
                position += 1
            wants.append(want)
        self.wants, self.names, self.fresh = tuple(wants), tuple(kwargs), tuple(news)
        self.may_be_tiny = all(map(self._is_fresh, self.takes)) and all(
            new.look is not None and new.look.numel <= TINY for new in news
        )
        self.modes = modes

    def _is_fresh(self, take: int) -> bool:
        """Whether no operator before took this input."""
        # The recording may have it nevertheless: from a call that took it, and then went elsewhere.
        assert self.parent is not None
        return take < 0 and ~take >= self.parent.inputs

    def steps(self) -> list[Step]:
        """The operators up to here; made when asked for, as most recordings have the structure of an earlier one."""
        points: list[Point] = []
        point: Point | None = self
        while point is not None and point.form is not None:
            points.append(point)
            point = point.parent
        steps: list[Step] = []
        numbers = 0
        for point in reversed(points):
            form = point.form
            assert form is not None
            slots = tuple(range(numbers, numbers := numbers + form.number_count()))
            following = iter(range(point.first, point.made))
            makes = tuple(-1 if output.same >= 0 else next(following) for output in form.outputs)
            steps.append(Step(form, point.takes, slots, makes))
        return steps

    def reached(self, index: int) -> frozenset[int]:
        """The inputs, as steps take them, that a backward from a result gives gradients to."""
        if self._reached is None:
            self._reached = _reached(self.steps())
        return self._reached[index]


_NOTHING: frozenset[int] = frozenset()
# One for each point of the tree: appending is one step of the interpreter, adding to a number is not.
_made: list[None] = []
_root = [Point(None, None, ())]
_roots: dict[int, Point] = {}  # of settings that are not those in force
_settings = [0]


def root() -> Point:
    """The point before all operators."""
    if len(_made) > MOST_POINTS:
        _made.clear()
        _roots.clear()
        _root[0] = Point(None, None, ())  # programs that never repeat themselves leave nothing worth keeping
    return _root[0]


def follow_paths_of(settings: int) -> None:
    """Follow other paths from here on: under other settings the same operator may do something else."""
    _roots[_settings[0]] = _root[0]
    _settings[0] = settings
    _root[0] = _roots.get(settings) or Point(None, None, ())


def as_wanted(want: Any, kind: type, item: Any) -> bool:
    """Whether an argument that is neither a tensor nor a free number is the one expected."""
    return (
        want.__class__ is tuple
        and want[0] is kind
        and (want[1] is item or (kind in COMPARED and bool(want[1] == item)))
    )


def _want(item: Any, free: bool) -> Any:
    """What to compare an argument with: `torch.Tensor` for tensors, None where only the usual way can tell."""
    kind = item.__class__
    if isinstance(item, torch.Tensor):
        return torch.Tensor
    if kind in NUMBERS and free:
        return kind
    if kind in LITERALS or kind is float or (kind is tuple and all(entry.__class__ in LITERALS for entry in item)):
        return kind, item
    return None


def _reached(steps: Iterable[Step]) -> list[frozenset[int]]:
    found: list[frozenset[int]] = []
    for step in steps:
        for number, output in zip(step.makes, step.form.outputs, strict=True):
            if number < 0:
                continue  # what is changed in place keeps what it reached: others never join in through a write
            here = _NOTHING
            for take in (step.takes[place] for place in output.connected):
                more = found[take] if take >= 0 else frozenset((take,))
                here = here | more if here and not more <= here else here or more
            found.append(here)
    return found
