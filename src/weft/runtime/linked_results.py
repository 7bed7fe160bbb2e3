"""Tie results of a program to those of its results that they are computed from, as autograd's graph has them in eager.

A linked result has a node of its own, tied to its sources, to inputs that it is computed from by other ways, and to the
node of the program. While nobody asks for a source's gradient it hands its tangent to the program's node, whose one
backward computes all at once. Else its own backward gives the gradients of its sources, and what hooks make of them
goes on from there. See docs/decisions/0083-linked-results.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import Any
from weakref import ref

import torch

from weft.errors import UnsupportedError
from weft.runtime.differentiable import DifferentiableExecutable, Unpacked
from weft.runtime.differentiable_backward import BackwardRuns, saved_by, without_autocast
from weft.trace.interception.modes import (
    autocast_now,
    backward_visits,
    graph_is_retained,
    node_of_leaf,
    number_of_backward,
)
from weft.trace.linked_results import Link

# A backward of all that there is comes by this leaf, and one of chosen tensors does not. Its node is kept, as a new one
# for each call would take time.
BY_THE_WAY = torch.zeros((), requires_grad=True)
BY_THE_WAY_NODE = node_of_leaf(BY_THE_WAY)
SECOND_TIME = (
    "Trying to backward through the graph a second time: a program has freed what it had saved. Specify "
    "retain_graph=True if you need to backward through the graph a second time."
)
OF_THE_COUNT = 2  # references to a tensor that counting them takes


@dataclass(frozen=True, slots=True, eq=False)
class LinkBackward:
    """A link with its backwards. `replay` gives the root from a program's inputs and the sources, by operators."""

    link: Link
    runs: BackwardRuns
    replay: Callable[..., Sequence[Any]] | None = None


class ResultLinks:
    """The links of one program."""

    def __init__(self, executable: DifferentiableExecutable, links: Sequence[LinkBackward]) -> None:
        executable.tie_apart([entry.link.result for entry in links])
        count = Counter(number for entry in links for number in entry.link.watched)
        self._links = [_ResultLink(executable, entry, count) for entry in links]

    def connect(
        self, made: list[Any], inputs: Sequence[Any], place: Callable[[int], int], result: Callable[[int], Any]
    ) -> None:
        """Replace what a forward has made by what is tied; `place` says where that is of which a result is made."""
        call = Unpacked()
        above: list[_Owned] = []
        for entry in self._links:
            link = entry.link
            at = place(link.result)
            root = made[at]
            watched = tuple([result(number) for number in link.watched])
            owned = _Owned(entry, call, root.grad_fn, watched, tuple([above[number] for number in link.upstream]))
            shown = [inputs[number] for number in link.inputs]
            # The same memory, tied otherwise.
            made[at] = _tie(owned, (root.detach(),), root, *watched[: len(link.sources)], *shown, BY_THE_WAY)
            above.append(owned)


class _ResultLink:
    def __init__(self, executable: DifferentiableExecutable, entry: LinkBackward, count: Counter[int]) -> None:
        self.link = link = entry.link
        self._executable = executable
        self._runs, self._replay = entry.runs, entry.replay
        self.is_grouped = bool(executable.groups)
        self.references = [count[number] + OF_THE_COUNT for number in link.watched]  # where a user has none
        self.is_read = link.is_read and self._replay is None
        self._nothing = (None,) * (len(link.sources) + len(link.inputs) + 1)

    def backward(self, context: Any, tangent: torch.Tensor | None) -> tuple[Any, ...]:
        """What goes to the program's node, to the sources, and to inputs."""
        owned = context.owned
        if owned is None:
            raise RuntimeError(SECOND_TIME)
        again = torch.is_grad_enabled()
        found: Sequence[torch.Tensor | None] | None = None
        if tangent is not None and self._is_asked(owned, again):
            self._executable.answered()
            found = self._again(context, tangent) if again else self._once(context, tangent)
        if not graph_is_retained():
            context.owned = None
        return (None, None, tangent, *self._nothing) if found is None else (None, None, None, *found, None)

    def _once(self, context: Any, tangent: torch.Tensor) -> Sequence[torch.Tensor | None]:
        """The gradients of the sources, and of inputs by ways around them."""
        owned = context.owned
        return self._runs.run(owned.saved(), owned.node.saved_types, [tangent], autocast_now())

    def _again(self, context: Any, tangent: torch.Tensor) -> Sequence[torch.Tensor | None]:
        """The same as gradients that can be differentiated."""
        owned, numbers = context.owned, self.link.inputs
        sources = owned.watched[: len(self.link.sources)]
        if self._replay is None:
            wanted = [*sources, *(owned.program.inputs[number] for number in numbers), *context.saved_tensors]
            return self._runs.run_again(owned.saved(), owned.node.saved_types, wanted, [tangent])
        given = self._executable.given_to(owned.program)
        if given is None or _are_seen(_all_below(owned)):
            raise _again_by_operators()
        # Of views alone a gradient is asked: beside them this backward would come to sources, and call their hooks.
        with torch.enable_grad():
            sources = [source.view_as(source) for source in sources]
            for number in numbers:
                given[number] = given[number].view_as(given[number])
            with without_autocast():
                (root,) = self._replay(given, sources)
        wanted = [*sources, *(given[number] for number in numbers)]
        return torch.autograd.grad(root, wanted, tangent, create_graph=True, allow_unused=True)

    def _is_asked(self, owned: _Owned, again: bool) -> bool:
        """Whether somebody may ask for the gradient of a result below."""
        number = number_of_backward() if owned.upstream else -1
        below = _all_below(owned, number)
        if _are_seen(below):
            return True
        if again or not backward_visits(BY_THE_WAY_NODE):
            # What cannot be told apart is refused where somebody does ask, not where somebody may.
            return not self.link.is_passed_twice and any(one.is_kept() for one in _all_below(owned))
        for one in below:
            one.quiet = number
        return False


class _Owned:
    """What the node of a linked result has: the program's node, its sources, and what the nodes of these have.

    Where results are grouped, the `node` below it is that of its group, which has what the program's has saved.
    """

    __slots__ = ("_call", "link", "node", "program", "quiet", "upstream", "watched")

    def __init__(
        self,
        link: _ResultLink,
        call: Unpacked,
        node: Any,
        watched: tuple[torch.Tensor, ...],
        upstream: tuple[_Owned, ...],
    ) -> None:
        self.link, self._call, self.node, self.watched, self.upstream = link, call, node, watched, upstream
        self.program = node.program if link.is_grouped else node
        self.quiet = -1  # the number of a backward in which nobody asks for anything below

    def is_kept(self) -> bool:
        """Whether one of them may be in somebody's hands."""
        return any(getrefcount(one) > most for one, most in zip(self.watched, self.link.references, strict=True))

    def saved(self) -> Sequence[Any]:
        """What the node of the program has saved, unpacked once in each backward: a checkpoint gives it once."""
        call, number = self._call, number_of_backward()
        if call.number != number:
            call.number, call.saved = number, saved_by(self.node)
            self.node.unpacked = ref(call)  # weakly: results are among what is saved, and hold the node
        return call.saved


def _all_below(start: _Owned, number: int | None = None) -> Sequence[_Owned]:
    """What this node and all upstream of it have, but for those that are quiet in a backward."""
    if not start.upstream:
        return (start,)
    found: dict[_Owned, None] = {}
    waiting = [start]
    while waiting:
        owned = waiting.pop()
        if owned not in found and owned.quiet != number:
            found[owned] = None
            waiting += owned.upstream
    return tuple(found)


def _are_seen(below: Sequence[_Owned]) -> bool:
    """Whether somebody sees the gradient of a source, or of what it is a view of."""
    for owned in below:
        for result in owned.watched:
            if result._backward_hooks or result.retains_grad:
                return True
    return False


class _LinkedResult(torch.autograd.Function):
    """The node of a result that is computed from others."""

    @staticmethod
    def forward(context: Any, owned: _Owned, made: tuple[torch.Tensor], *shown: Any) -> torch.Tensor:
        del shown  # what is given as it is would be looked at as an input
        context.owned, context.link = owned, owned.link
        context.set_materialize_grads(False)
        if owned.link.is_read:
            context.save_for_backward(*made)
        return made[0]

    @staticmethod
    def backward(context: Any, *tangents: Any) -> tuple[Any, ...]:
        return context.link.backward(context, *tangents)  # type: ignore[no-any-return]


# The same as _LinkedResult.apply: the program's node has been made, so that this is in no transform of functorch.
_tie: Callable[..., torch.Tensor] = super(torch.autograd.Function, _LinkedResult).apply


def _again_by_operators() -> UnsupportedError:
    return UnsupportedError(
        "a gradient is differentiated again that goes through a result which another one is computed from",
        why="a program for many sizes is computed anew for that; hooks of results would not see all of it, and what "
        "it was given may not be written meanwhile",
        fix="call torch.autograd.grad inside the hybridized function, or run it imperatively there "
        "(weft.hybridize(net, False))",
    )
