"""The order of pushes -> which task waits for which, by what they read and write.

The rules: writes to one variable happen in the order pushed; a read sees the last write pushed before it, and is
finished before the next write starts; reads between two writes may run together. A task that names a variable as
both read and written changes it in place. Every wait points from a later push to an earlier one, so there is no
cycle. Plain functions without a lock: the caller holds the engine's link lock, or is alone.
"""

from weft.engine.task import FEWEST_READERS_TO_PRUNE, Task, Var


def link(task: Task) -> None:
    """Make a newly pushed task wait for those it must come after; `task.pending` becomes their number.

    A task may be counted twice for one predecessor: it is then also told twice that it is done.
    """
    pending = 0
    for variable in task.reads:
        writer = variable.writer
        if writer is not None and not writer.done:
            pending += _follow(writer, task)
        readers = variable.readers
        readers.append(task)
        if len(readers) > variable.crowd:
            forget_done_readers(variable)
    for variable in task.writes:
        readers = variable.readers
        if readers:
            for reader in readers:
                if not reader.done and reader is not task:
                    pending += _follow(reader, task)
            variable.readers = []
        else:
            # Where there were readers they waited for this writer already, and so does the task through them.
            writer = variable.writer
            if writer is not None and not writer.done and writer is not task:
                pending += _follow(writer, task)
        variable.writer = task
    task.pending = pending


def _follow(earlier: Task, later: Task) -> int:
    abandon = earlier.lane.abandon
    if abandon is not None:
        abandon(earlier)
        return 0
    # `done` may become True at any moment, but `earlier` is retired under the lock we hold, hence after this.
    if earlier.successors is None:
        earlier.successors = [later]
    else:
        earlier.successors.append(later)
    return 1


def forget_done_readers(variable: Var) -> None:
    """Drop readers that are done, so that a variable read for ever and never written keeps few of them."""
    variable.readers = [reader for reader in variable.readers if not reader.done]
    # Doubling the mark makes the cost of looking a constant for each reader, however many are in flight.
    variable.crowd = max(FEWEST_READERS_TO_PRUNE, 2 * len(variable.readers))


def retire(task: Task) -> None:
    """Tell those that wait for a task that it is done, and let go of everything it held."""
    successors = task.successors
    if successors is not None:
        for later in successors:
            later.pending -= 1
            if not later.pending:
                later.lane.now_ready(later)
        task.successors = None
    # Variables keep their last writer: it must keep nothing, neither the callable's memory nor other variables.
    task.call = None
    task.reads = task.writes = ()


def predecessors(task: Task) -> set[Task]:
    """Find the tasks, done or not, whose results or variables a task is about to be linked behind."""
    found = {variable.writer for variable in (*task.reads, *task.writes)}
    for variable in task.writes:
        found.update(variable.readers)
    found.discard(task)
    return {earlier for earlier in found if earlier is not None}
