"""Random Graphs of small ops -> the section that runs them in machine code beside the interpreter."""

from tests.conformance.cases import Contestant, Outcome, Player, Section, Trial
from tests.plan.compiled_regions import disagreements, random_graphs

from weft.ir.graph import Graph

GRAPHS = 10_000
GRAPHS_PER_ENTRY = 100


class DisagreementError(AssertionError):
    """Machine code gives another answer than the interpreter."""


def entries() -> list[str]:
    """Name the seeds."""
    return [f"seed {number:03d}" for number in range(GRAPHS // GRAPHS_PER_ENTRY)]


def trials(entry: str) -> list[Trial]:
    """Make the trials of the graphs of one seed."""
    found = random_graphs(int(entry.removeprefix("seed ")), GRAPHS_PER_ENTRY)
    return [graph_trial(graph, number) for number, graph in enumerate(found)]


def graph_trial(graph: Graph, number: int) -> Trial:
    """Make the trial of a graph; see `answers`."""

    def start(contestant: Contestant) -> Player:
        def nothing() -> None:
            return None

        is_eager = contestant(nothing) is nothing

        def player(_number: int) -> Outcome:
            texts = [] if is_eager else answers(graph, number)
            return Outcome(error=DisagreementError(texts[0]) if texts else None)

        return player

    return Trial(start, calls=1)


def answers(graph: Graph, number: int) -> list[str]:
    """Run a graph: in every other one inputs are weights, which kernels pack; in every third one outputs are loose."""
    return disagreements(graph, graph.inputs if number % 2 else (), number, loose=number % 3 == 0)


def sections() -> tuple[Section, ...]:
    """List the section over graphs."""
    title = f"{GRAPHS:,} random graphs of small ops against the interpreter"
    return (Section("graphs", title, entries, trials, codegens=("native",)),)
