"""A task that waits for a task -> an error, if that one can only run after the first is done."""

from collections.abc import Iterable
from itertools import pairwise

from weft.engine.lanes import Lane
from weft.engine.task import Task
from weft.engine.workers import Worker
from weft.errors import UsageError


def refuse_circular_wait(waiting: Task, target: Task, blocked: Iterable[Worker], lanes: Iterable[Lane]) -> None:
    """Raise a UsageError if `target` comes after `waiting`; the caller holds the link lock with an empty inbox.

    A task comes after another if it uses the same variables later, if it stands behind it in a lane, or if its own
    body waits for it.
    """
    after: dict[Task, list[Task]] = {}
    for worker in blocked:
        if worker.task is not None and worker.waits_for is not None:
            after.setdefault(worker.waits_for, []).append(worker.task)
    for lane in lanes:
        for _, tasks in lane.deques:
            queued = list(tasks)
            for earlier, later in pairwise(queued):
                after.setdefault(earlier, []).append(later)
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
