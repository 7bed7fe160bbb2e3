"""List the passes in their order, and send a Graph through them.

The pipeline alone times, logs and verifies; a pass is a function from Graph to Graph that gives back the very same
Graph where it finds nothing to do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from weft.errors import InternalError, UsageError
from weft.ir.graph import Graph, Value
from weft.ir.verifier import verify
from weft.passes.fold import fold_constants
from weft.passes.redundancy import narrow, remove_dead_code, share_common_subexpressions
from weft.passes.simplify import simplify

logger = logging.getLogger("weft.passes")

Observe = Callable[[str, Graph], None]


@dataclass(frozen=True)
class Pass:
    """One pass; what later stages rely on is `required` and cannot be switched off."""

    name: str
    function: Callable[[Graph], Graph]
    required: bool = False


@dataclass(frozen=True)
class Before:
    """A place in the order: the first pass runs before the second, for a reason."""

    first: str
    second: str
    reason: str


PASSES = (
    Pass("fold", fold_constants),
    Pass("simplify", simplify),
    Pass("cse", share_common_subexpressions),
    Pass("dead_code", remove_dead_code, required=True),
    Pass("narrow", narrow),
)

ORDER = (
    Before("fold", "simplify", "laws such as x * 1 look for constants, and folding finds more of them"),
    Before("simplify", "cse", "simplified expressions are equal more often"),
    Before("fold", "cse", "folded constants are compared by content"),
    Before("simplify", "dead_code", "what a law has bypassed is needed no longer"),
    Before("cse", "dead_code", "what a shared value stood for is needed no longer"),
    Before("dead_code", "narrow", "only when unread results are gone is it known which ones are read"),
    Before("fold", "dead_code", "what a constant was folded from is needed no longer"),
)


def check_order(passes: Iterable[Pass], order: Iterable[Before]) -> None:
    """Raise InternalError if the passes break the order, or the order names a pass that is not there."""
    position = {one.name: index for index, one in enumerate(passes)}
    for row in order:
        for name in (row.first, row.second):
            if name not in position:
                raise InternalError(f"the order of passes names {name}, and there is no such pass")
        if position[row.first] >= position[row.second]:
            raise InternalError(f"pass {row.first} must run before {row.second}", why=row.reason)


check_order(PASSES, ORDER)


def run_pipeline(
    graph: Graph, *, disabled: Collection[str] = (), observe: Observe | None = None, checked: bool = True
) -> Graph:
    """Send a Graph through every pass that is not disabled.

    `observe` is called with each pass's name and the Graph it gave. With `checked` the verifier runs on the Graph
    given and after every pass that changed it; without, nothing is verified, which makes compiling a little faster.
    """
    check_disabled(disabled)
    selected = [one for one in PASSES if one.name not in disabled]
    sound: set[Value] = set()
    if checked:
        verify(graph, sound)
    for one in selected:
        start = time.perf_counter()
        result = one.function(graph)
        milliseconds = (time.perf_counter() - start) * 1e3
        logger.debug(
            "%s: %s %.2f ms, %d values to %d", graph.name, one.name, milliseconds, len(graph.values), len(result.values)
        )
        if checked and result is not graph:
            check_result(one, result, sound)
        graph = result
        if observe is not None:
            observe(one.name, graph)
    return graph


def check_disabled(names: Collection[str]) -> None:
    """Raise UsageError for the name of a pass that does not exist or cannot be disabled."""
    optional = [one.name for one in PASSES if not one.required]
    for name in names:
        if name not in optional:
            raise UsageError(
                f"pass {name} cannot be disabled",
                why="later stages rely on it" if any(one.name == name for one in PASSES) else "there is no such pass",
                fix="the passes that can be disabled are " + ", ".join(optional),
            )


def check_result(one: Pass, graph: Graph, sound: set[Value] | None = None) -> None:
    """Raise InternalError, naming the pass, if the Graph it gave is not valid."""
    try:
        verify(graph, sound)
    except InternalError as error:
        raise InternalError(f"pass {one.name} gave an invalid Graph", why=str(error)) from error
