"""Compile ahead what calls like some examples need, so that nothing is compiled while a server answers.

Each example is called in every mode that a server may call in, often enough for all that is made late: native entries,
the forward that packs parameters once no backward follows. What the calls changed is put back. Calls of other
signatures are Python's from then on: a program that is made while a request waits costs more than it saves there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import islice, product
from typing import Any

import torch
from torch import nn

from weft.api.checks.check import Streams
from weft.api.checks.snapshot import Snapshot
from weft.api.explain import Explanation, explain
from weft.api.hybrid import Hybrid, ModuleForward
from weft.api.step import Step
from weft.api.tops import tops_between
from weft.errors import UsageError
from weft.runtime.differentiable import MOST_UNANSWERED
from weft.trace.interception.capture import tree_flatten, tree_unflatten
from weft.trace.python_state.given_objects import FlatCall
from weft.trace.size_ties import SizeSpot, shape_of
from weft.tracebacks import shows_less

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
MOST_BETWEEN = 64  # calls of sizes between those of examples
CALLS = MOST_UNANSWERED + 4  # of each example in each mode: after so many all is made that is made late
Mode = Callable[[], AbstractContextManager[Any]]
# In which a server may call; in the first also with tensors that were made in it.
MODES: tuple[Mode, ...] = (torch.inference_mode, torch.no_grad, nullcontext)


@shows_less
def prepare(thing: Callable[..., Any], *examples: Any, sizes: Mapping[Any, Any] | None = None) -> Explanation:
    """Compile all that calls like the examples need, and return when it is done; a server does so before it listens.

    An example is the one argument of a call, a tuple of all of them, or a dictionary of arguments by name. Examples
    that differ in sizes give programs for all sizes between them, and so does `sizes`, which names sizes that vary and
    their ranges as in `weft.hybridize`: `weft.prepare(net, x, sizes={"x": {1: ("length", 1, 512)}})`. They are called
    in this thread, with gradients, without, and in inference mode; what that changes (counters, running averages,
    random streams) is put back. From then on nothing is compiled in a call: other signatures are run by Python, and
    `weft.explain` counts them. Gives what `weft.explain(thing)` says. Backwards are compiled by the first backward.
    """
    if not examples:
        raise UsageError(
            "weft.prepare has no example", fix="give an argument like those of calls: weft.prepare(net, x)"
        )
    hybrids = _hybrids(thing)
    if sizes is not None:
        whole = _whole(thing)
        if whole is None:
            raise UsageError(
                "sizes of parts",
                why="sizes= names arguments of the whole",
                fix="hybridize the whole, or each part with sizes=",
            )
        whole.declare(sizes)
    calls = [_arguments(example) for example in examples]
    roots = {"thing": thing, **{f"example {number}": example for number, example in enumerate(examples)}}
    before, streams = Snapshot(roots), Streams()
    try:
        with ExitStack() as stack:
            for hybrid in hybrids:
                stack.enter_context(hybrid.rare.preparing())
            with torch.inference_mode():
                made_inside = [_copied(call) for call in calls]
            for mode, given in ((torch.inference_mode, made_inside), *((mode, calls) for mode in MODES)):
                _call_all(thing, given, mode)
    finally:
        before.put_back()
        streams.put_back()
    for hybrid in hybrids:
        if not hybrid.programs and not [*hybrid.varying]:
            hybrid.rare.open()  # it is part of another, or was not called
    return _explained(hybrids)


def _hybrids(thing: Any) -> list[Hybrid]:
    """What is hybridized of a thing."""
    if isinstance(thing, Step):
        raise UsageError(
            "weft.prepare is given a step",
            why="a step trains: to call it ahead would change the model",
            fix="its first calls compile it; prepare the network for calls without training",
        )
    found = [*_found(thing)]
    if found:
        return found
    name = type(thing).__name__ if isinstance(thing, nn.Module) else getattr(thing, "__name__", repr(thing))
    raise UsageError(
        f"nothing of {name} is hybridized",
        why="it has no programs to compile",
        fix="weft.hybridize it, then prepare it",
    )


def _found(thing: Any) -> Iterator[Hybrid]:
    if isinstance(thing, Hybrid):
        yield thing
    elif isinstance(thing, nn.Module):
        forwards = (module.__dict__.get("forward") for module in thing.modules())
        yield from (forward for forward in forwards if isinstance(forward, ModuleForward))


def _arguments(example: Any) -> Call:
    """The arguments of the call that an example stands for."""
    if isinstance(example, tuple):
        return example, {}
    if isinstance(example, dict) and all(isinstance(name, str) for name in example):
        return (), example
    return (example,), {}


def _call_all(thing: Callable[..., Any], calls: Sequence[Call], mode: Mode) -> None:
    """Make calls in a mode, often enough, and those of sizes between theirs."""
    for arguments, keywords in calls:
        for _ in range(CALLS):
            with mode():
                thing(*arguments, **keywords)
    with mode():
        between = _between(thing, calls)
        repeats = CALLS if torch.is_grad_enabled() else 1  # several sizes have one program
    for arguments, keywords in between:
        for _ in range(repeats):
            with mode():
                thing(*arguments, **keywords)


def _copied(call: Call) -> Call:
    """The same call with tensors that are made now."""
    leaves, structure = tree_flatten(call)
    leaves = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    found: Call = tree_unflatten(leaves, structure)
    return found


def _whole(thing: Any) -> Hybrid | None:
    """What runs the programs of a thing as a whole, if it is hybridized, and not only parts of it."""
    found = thing if isinstance(thing, Hybrid) else thing.__dict__.get("forward")
    return found if isinstance(found, Hybrid) else None


def _between(thing: Any, calls: Sequence[Call]) -> list[Call]:
    """Calls of sizes between those of examples, or in the ranges of `sizes`, the largest first.

    They are made of an example, in steps so close that each size has a program that computes little more.
    """
    hybrid = _whole(thing)
    if hybrid is None:
        return []
    made: list[Call] = []
    flat = [hybrid.flat_call(arguments, dict(keywords)) for arguments, keywords in calls]
    for call in flat:
        found = hybrid.varying_program(call)
        if found is None or found.range.ties:
            continue
        alike = [other for other in flat if other.structure == call.structure]
        declared = hybrid._sizes_of(call).free
        steps = []
        for place, at in found.places:
            there = [shape_of(other.leaves[place])[at] for other in alike]
            size = declared.get((place, at))
            least, most = (min(there), max(there)) if size is None or size.most is None else (size.least, size.most)
            steps.append([*tops_between(least, most), *([1] if least <= 1 < most else ())])
        chosen = (dict(zip(found.places, sizes, strict=True)) for sizes in islice(product(*steps), MOST_BETWEEN))
        made += [_resized(call, sizes, found.range.alike) for sizes in chosen]
    return made


def _resized(call: FlatCall, sizes: Mapping[SizeSpot, int], alike: Sequence[Sequence[SizeSpot]]) -> Call:
    """The arguments of a call in other sizes: cut, or repeated; some sizes are the same in several places."""
    leaves = list(call.leaves)
    for spot, size in sizes.items():
        for place, at in next((group for group in alike if spot in group), (spot,)):
            given = leaves[place]
            with torch.inference_mode(given.is_inference()), torch.no_grad():
                places = torch.arange(size, device=given.device) % given.shape[at]
                leaves[place] = given.index_select(at, places)
            leaves[place].requires_grad_(given.requires_grad)
    arguments, keywords = tree_unflatten(leaves, call.structure)
    return arguments, keywords


def _explained(hybrids: list[Hybrid]) -> Explanation:
    return Explanation("\n".join(explain(hybrid) for hybrid in hybrids if hybrid.traces or hybrid.refused))
