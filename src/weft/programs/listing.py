"""Print a program: what runs in machine code, what by PyTorch's operators and why, and how each region is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weft.compile.lifted_sizes import lifted_for_all_sizes
from weft.compile.pipeline import lifted
from weft.config import config
from weft.errors import counted, short_path
from weft.ir.graph import Graph, Place, Value
from weft.ir.library import Call
from weft.ir.printer import print_graph
from weft.ir.size_text import largest_sizes
from weft.plan.form.plan import Plan
from weft.plan.library_plan import LibraryPlan
from weft.plan.plan_text import plan_text
from weft.runtime.machine import machine_model
from weft.target import host_target
from weft.trace.lift.lift import refusals

OPERATORS = ("library", "update")
MOST_LINES = 12  # of operators that PyTorch runs: what is more is counted


@dataclass(frozen=True, slots=True, repr=False)
class ProgramPlan:
    """The plans of a program's forward: `regions` run in machine code, `library` says what runs in which order."""

    regions: tuple[Plan, ...]
    library: LibraryPlan

    def __repr__(self) -> str:
        kernels = sum(len(plan.calls) for plan in self.regions)
        return f"<plan: {counted(kernels, 'kernel')} in {counted(len(self.regions), 'region')}; print it to see them>"

    def __str__(self) -> str:
        model = machine_model(host_target())
        parts = [f"region {number}\n{plan_text(plan, model)}" for number, plan in enumerate(self.regions)]
        calls = [step for step in self.library.steps if step.value.op in OPERATORS]
        if calls or not parts:
            parts.append(f"library plan, one call after another\n{self.library}")
        return "\n\n".join(parts)


def listing(graph: Graph, why_not: str | None = None, *, short_places: bool = False) -> str:
    """Give what is computed in small ops, as far as they are in machine code, under a few lines about the rest.

    The lines are comments: the text parses back as a Graph, but for file names that `short_places` shortens. `why_not`
    says why nothing is in machine code.
    """
    if config().codegen != "native":
        why_not = f"WEFT_CODEGEN is {config().codegen}"
    if why_not:
        return f"# PyTorch runs all operators: {why_not}\n{print_graph(graph, short_places=short_places)}"
    small = lifted_for_all_sizes(graph).graph if largest_sizes(graph.inputs) else lifted(graph)
    whole = [value for value in graph.values if value.op in OPERATORS]
    left = [value for value in small.values if value.op in OPERATORS]
    why = {id(value.attributes["call"]): reason for value, reason in refusals(graph).items()}
    native = len(whole) - sum(id(value.attributes["call"]) in why for value in left)
    lines = [f"# {_share(native, len(whole), bool(left))}", *(f"#   {line}" for line in _reasons(left, why))]
    return "\n".join([*lines, print_graph(small, short_places=short_places)])


def _share(native: int, whole: int, is_more: bool) -> str:
    if not whole:
        return "no operators: everything is known or given"
    share = f"{'all' if native == whole else native} of {counted(whole, 'operator')} in machine code"
    return f"{share}; PyTorch runs" if is_more else share


def _reasons(left: list[Value], why: Mapping[int, str]) -> Iterator[str]:
    """What PyTorch's operators compute, each kind of call once, and why; `why` has the reasons by the calls' ids."""
    found: dict[tuple[str, str], list[Place | None]] = {}
    for value in left:
        call: Call = value.attributes["call"]
        # What is no call of the user's a rule has added.
        reason = why.get(id(call), "it checks data that machine code relies on")
        found.setdefault((call.target, reason), []).append(value.place)
    for (target, reason), places in list(found.items())[:MOST_LINES]:
        times = f", {len(places)} times" if len(places) > 1 else ""
        where = f" ({short_path(places[0].filename)}:{places[0].line})" if places[0] is not None else ""
        yield f"{target}{times}: {reason}{where}"
    if len(found) > MOST_LINES:
        yield f"and {counted(len(found) - MOST_LINES, 'other')}"
