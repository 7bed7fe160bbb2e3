"""Random task graphs, run on any engine, with a result that tells the order of everything that matters."""

from dataclasses import dataclass
from random import Random

from weft.engine import BaseEngine, Engine, Placement, SerialEngine, Var


@dataclass(frozen=True)
class GraphTask:
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: str
    priority: int
    fails: bool


def random_graph(random: Random, lanes: int, failing: float = 0.0) -> list[GraphTask]:
    variables = random.randint(1, 8)
    devices = ["cpu", "copy", *(f"cpu:{index}" for index in range(lanes))]
    tasks = []
    for _ in range(random.randint(1, 24)):
        reads = random.choices(range(variables), k=random.randint(0, 3))
        writes = random.choices(range(variables), k=random.randint(0, 2))
        priority = random.choice((0, 0, 0, 1, -1))
        tasks.append(
            GraphTask(tuple(reads), tuple(writes), random.choice(devices), priority, random.random() < failing)
        )
    return tasks


def run_graph(engine: BaseEngine, graph: list[GraphTask]) -> tuple[list[object], dict[int, object], list[int | None]]:
    """Give the final value of each variable, what each task saw, and which failure poisons each variable."""
    count = 1 + max((index for task in graph for index in (*task.reads, *task.writes)), default=0)
    variables = [Var(str(index)) for index in range(count)]
    values: list[object] = [None] * count
    seen: dict[int, object] = {}
    for number, task in enumerate(graph):

        def body(number: int = number, task: GraphTask = task) -> None:
            before = tuple(values[index] for index in task.reads)
            seen[number] = before
            if task.fails:
                raise ZeroDivisionError(number)
            for index in task.writes:
                values[index] = (number, hash(before))

        reads = [variables[index] for index in task.reads]
        writes = [variables[index] for index in task.writes]
        try:
            engine.push(body, reads, writes, Placement(task.device, task.priority))
        except RuntimeError:
            assert task.fails  # the serial engine raises at the push
    engine.finish_all()
    failures = [engine.failures.first_of([variable]) for variable in variables]
    poison = [None if failure is None else failure.error.args[0] for failure in failures]
    for variable in variables:
        engine.failures.heal([variable])
    engine.failures.known.clear()
    return values, seen, poison


def disagreement(engine: BaseEngine, oracle: BaseEngine, graph: list[GraphTask]) -> str:
    """Compare two engines on a graph; an empty text when they agree."""
    found, wanted = run_graph(engine, graph), run_graph(oracle, graph)
    return "" if found == wanted else f"{graph}\n found {found}\nwanted {wanted}"


def sweep(graphs: int, lanes: int, seed: int) -> str:
    """Compare the threaded with the serial engine on many graphs; an empty text when they agree on all."""
    random = Random(seed)
    with Engine({"cpu": lanes, "copy": 1}) as engine, SerialEngine() as oracle:
        for _ in range(graphs):
            graph = random_graph(random, lanes, failing=random.choice((0.0, 0.15)))
            difference = disagreement(engine, oracle, graph)
            if difference:
                return difference
    return ""
