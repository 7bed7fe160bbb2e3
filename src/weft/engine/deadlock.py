"""A task that waits for a task -> an error, if that one can only run after the first is done."""

from collections.abc import Iterable

from weft.engine.task import Task
from weft.engine.workers import Worker
from weft.errors import UsageError


def refuse_circular_wait(waiting: Task, target: Task, blocked: Iterable[Worker]) -> None:
    """Raise a UsageError if `target` comes after `waiting`; the caller holds the link lock with an empty inbox.

    A task comes after another if it uses the same variables later, or if its own body waits for it. That it stands
    behind it in a lane does not count: the order of lanes is loosened while a task waits.
    """
    after: dict[Task, list[Task]] = {}
    for worker in blocked:
        if worker.task is not None and worker.waits_for is not None:
            after.setdefault(worker.waits_for, []).append(worker.task)
    reached = {waiting}
    stack = [waiting]
    while stack:
        task = stack.pop()
        for later in (*(task.successors or ()), *after.get(task, ())):
            if later not in reached:
                reached.add(later)
                stack.append(later)
    if target in reached:
        raise UsageError(
            f"the task {waiting.title()} waits for {_name(waiting, target)}, which can only run after it",
            where=waiting.where(),
            why="both would wait for ever",
            fix="wait outside the task, or name what it needs in the reads of its push",
        )


def _name(waiting: Task, target: Task) -> str:
    return "itself" if target is waiting else f"the task {target.title()}"
