"""The last calls that came with plain tensors -> whether this one may run the same program, at little cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from weft.api.guarded import Guarded
from weft.runtime.back_off import BackOff
from weft.runtime.whole_call import Whole, identities, refuse_all
from weft.trace.interception.capture import traced_elsewhere
from weft.trace.interception.modes import forward_levels, has_function_modes
from weft.trace.python_state.trees import containers_of
from weft.trace.signature import autocast_key, same_tensors

PLAIN_ARGUMENTS = (torch.Tensor, torch.nn.Parameter)
CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device)
CONTAINERS = (tuple, list)
MOST_QUICK_CALLS = 4  # kinds of calls that may take turns: to compare with each takes a microsecond or two
MOST_PAIRED = 3  # tensors of which each two are compared
MISSED = object()  # what a call gives that is like none of them


class QuickCall:
    """What a call must look like to run this program without a key being made of it."""

    def __init__(self, guarded: Guarded, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.guarded = guarded
        self._names = tuple(keywords)
        given = (*arguments, *keywords.values())
        self._count = len(given)
        self._nesting = _nesting(given) if _has_containers(given) else None
        self._has_lists = len(_lists(given)) > 1  # which are all different ones
        leaves = _leaves(given)
        tensors = {place: leaf for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
        self._looks = tuple((place, _look(tensor)) for place, tensor in tensors.items())
        few = len(tensors) <= MOST_PAIRED
        self._pairs = identities([*tensors.values()], [*tensors]) if few else ()
        self._same = None if few else same_tensors(leaves)
        self._constants = tuple((place, leaf) for place, leaf in enumerate(leaves) if place not in tensors)
        self._modes = _modes()
        self._attempts = BackOff()
        self.whole: Whole = refuse_all  # the built-in function for such calls, if there is one

    @property
    def is_plain(self) -> bool:
        """Whether such a call has nothing but tensors, by position."""
        return not self._names and not self._constants and self._nesting is None

    def leaves(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...] | None:
        """The arguments and what is in them in one row, if names, containers and what is no tensor are the same."""
        if keywords or self._names:
            if tuple(keywords) != self._names:
                return None
            arguments = (*arguments, *keywords.values())
        if len(arguments) != self._count:
            return None
        if self._nesting is not None:
            if _nesting(arguments) != self._nesting or (self._has_lists and not _are_different(_lists(arguments))):
                return None
            arguments = tuple(_leaves(arguments))
        for place, constant in self._constants:
            if arguments[place] is not constant:
                return None
        return arguments

    def run_whole(self, leaves: tuple[Any, ...]) -> Any:
        """What the built-in function gives, if there is one for such calls; else False."""
        return False if self.whole is refuse_all else self.whole(*[leaves[place] for place, _ in self._looks])

    def try_whole(self, leaves: tuple[Any, ...]) -> None:
        """Find what may stand for such calls from now on: at some calls, ever fewer, as it is costly to make."""
        if autocast_key() is not None:
            self.whole = refuse_all  # it asks the thread's modes one by one, and not which dtype autocast casts to
            return
        places = [place for place, _ in self._looks]
        found = (
            self.guarded.whole_call([leaves[place] for place in places], places) if self._attempts.is_due() else None
        )
        self.whole = found or refuse_all

    def inputs(self, leaves: tuple[Any, ...]) -> list[Any] | None:
        """The program's inputs, if it may run."""
        if _modes() != self._modes or traced_elsewhere(()) or forward_levels():
            return None
        for place, look in self._looks:
            leaf = leaves[place]
            if type(leaf) not in PLAIN_ARGUMENTS or _look(leaf) != look:
                return None
        if self._same is not None and same_tensors(leaves) != self._same:
            return None
        for place, other, same in self._pairs:
            if (leaves[place] is leaves[other]) is not same:
                return None
        return self.guarded.ready(leaves)


class QuickCalls:
    """The last few kinds of calls, the latest first; any thread may run and add them."""

    def __init__(self) -> None:
        self.whole: Whole = refuse_all  # what may stand for a call like the latest
        self._kept: tuple[QuickCall, ...] = ()

    def run(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """What the program of a call like this one gives, or MISSED."""
        likely = [(quick, leaves) for quick in self._kept if (leaves := quick.leaves(arguments, keywords)) is not None]
        for quick, leaves in likely:
            result = quick.run_whole(leaves)
            if result is not False:
                self._put_first(quick)
                return result
        for quick, leaves in likely:
            inputs = quick.inputs(leaves)
            if inputs is not None:
                program = quick.guarded.program
                result = (
                    program.run(inputs)
                    if not program.needs_containers
                    else program.run(inputs, containers_of(arguments, keywords))
                )
                quick.try_whole(leaves)
                self._put_first(quick)
                return result
        return MISSED

    def add(self, guarded: Guarded, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Keep the quick form of a call, if it has one; from now on that stands for its program."""
        self.whole = refuse_all
        found = quick_call(guarded, arguments, keywords)
        if found is not None:
            self._put_first(found)

    def _put_first(self, quick: QuickCall) -> None:
        if not self._kept or quick is not self._kept[0]:
            others = (other for other in self._kept if other.guarded is not quick.guarded)
            self._kept = (quick, *others)[:MOST_QUICK_CALLS]
        self.whole = quick.whole if quick.is_plain else refuse_all


def quick_call(guarded: Guarded, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> QuickCall | None:
    """The quick form of a call, if it has one: dense tensors, constants, tuples and lists of them, in usual modes."""
    given = (*arguments, *keywords.values())
    if has_function_modes() or not all(map(_is_quick, _leaves(given))) or not _are_different(_lists(given)):
        return None
    return QuickCall(guarded, arguments, keywords)


def _has_containers(things: Iterable[Any]) -> bool:
    return any(type(thing) in CONTAINERS for thing in things)


def _leaves(things: Iterable[Any]) -> list[Any]:
    """What is in containers of one another, in the order of PyTorch's own trees."""
    found: list[Any] = []
    for thing in things:
        if type(thing) in CONTAINERS:
            found += _leaves(thing)
        else:
            found.append(thing)
    return found


def _nesting(things: Iterable[Any]) -> list[Any]:
    """Which containers hold which: of each its type and what is inside, and nothing of what is none."""
    return [(type(thing), _nesting(thing)) if type(thing) in CONTAINERS else None for thing in things]


def _lists(things: Iterable[Any]) -> list[Any]:
    """The lists among containers of one another."""
    found: list[Any] = []
    for thing in things:
        if type(thing) in CONTAINERS:
            found += [thing] if type(thing) is list else []
            found += _lists(thing)
    return found


def _are_different(lists: list[Any]) -> bool:
    return len({*map(id, lists)}) == len(lists)


def _is_quick(leaf: Any) -> bool:
    if type(leaf) not in PLAIN_ARGUMENTS:
        return type(leaf) in CONSTANTS
    return not leaf.dtype.is_complex and not leaf.is_neg()


def _look(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Everything about a plain tensor that a program depends on, apart from its elements."""
    grad = tensor.requires_grad
    kind = (type(tensor), tensor.is_neg(), tensor.dtype, tensor.device, tensor.layout, tensor.is_inference())
    return (*kind, tensor.shape, tensor.stride(), grad, grad and tensor.is_leaf)


def _modes() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast_key(),
        torch.get_default_dtype(),
        has_function_modes(),
    )
