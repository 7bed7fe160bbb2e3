"""Write tasks as they ran as a Chrome trace, with a track per lane, arrows for dependencies, and one line of verdict.

Open the file in https://ui.perfetto.dev or chrome://tracing.
"""

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from weft.engine.task import Task, predecessors
from weft.errors import ExecutionError, counted
from weft.files import write_whole

PROCESS = 1
NANOSECONDS = 1000.0  # in a microsecond, the unit of Chrome traces


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One run of a task: where, and from when to when in nanoseconds."""

    number: int
    name: str
    lane: str
    start: int
    end: int
    where: str | None


class Timeline:
    """The record of one stretch of time; `close` writes it, as does the end of a `with` block or of the engine."""

    def __init__(
        self,
        path: str | Path,
        settle: Callable[[], None],
        on_close: Callable[[], None],
        clock: Callable[[], int],
    ) -> None:
        self.path = Path(path).absolute()  # the program may be in another folder when the file is written
        self.verdict = ""
        self.clock = clock
        self._settle = settle
        self._on_close = on_close
        # Workers only append to the list and set new keys of the dict, each one operation of the interpreter.
        self._spans: list[TaskRun] = []
        self._earlier: dict[int, tuple[int, ...]] = {}

    def __repr__(self) -> str:
        told = self.verdict.removeprefix("weft: ") or f"recording, {counted(len(self._spans), 'task')} so far"
        return f"<timeline in {self.path}: {told}>"

    def linked(self, task: Task) -> None:
        """Note what a task comes after; called under the link lock just before the task is linked."""
        self._earlier[task.number] = tuple(earlier.number for earlier in predecessors(task))

    def ran(self, task: Task, lane: str, start: int) -> None:
        """Note that a task ran on a lane from `start` until now."""
        self._spans.append(TaskRun(task.number, task.title(), lane, start, self.clock(), task.where()))

    def close(self) -> None:
        """Wait for what is queued, print the verdict and write the trace, compressed if its name ends with .gz.

        A second call does nothing.
        """
        if self.verdict:
            return
        self._settle()
        self._on_close()
        spans = sorted(self._spans, key=lambda span: span.number)
        self.verdict = verdict(spans, self._earlier)
        print(self.verdict, file=sys.stderr)  # noqa: T201  # a trace ends with its summary
        self._write({"traceEvents": list(self._events(spans)), "displayTimeUnit": "ns"})

    def _write(self, document: dict[str, object]) -> None:
        text = json.dumps(document).encode("utf-8")
        try:
            write_whole(self.path, [gzip.compress(text) if self.path.suffix == ".gz" else text])
        except OSError as error:
            raise ExecutionError(
                f"the timeline could not be written to {self.path}", why=error.strerror or str(error)
            ) from error

    def _events(self, spans: list[TaskRun]) -> Iterator[dict[str, object]]:
        tracks = {lane: track for track, lane in enumerate(sorted({span.lane for span in spans}))}
        for lane, track in tracks.items():
            yield {"ph": "M", "name": "thread_name", "pid": PROCESS, "tid": track, "args": {"name": lane}}
        by_number = {span.number: span for span in spans}
        for span in spans:
            place: dict[str, object] = {"pid": PROCESS, "tid": tracks[span.lane]}
            length = (span.end - span.start) / NANOSECONDS
            arguments = {"task": span.number, "pushed at": span.where}
            slice_ = {"ph": "X", "name": span.name, "ts": span.start / NANOSECONDS, "dur": length, "args": arguments}
            yield place | slice_
            for number in self._earlier.get(span.number, ()):
                earlier = by_number.get(number)
                if earlier is not None:
                    yield from _arrow(earlier, span, tracks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _arrow(earlier: TaskRun, later: TaskRun, tracks: dict[str, int]) -> Iterator[dict[str, object]]:
    # An arrow hangs on the slice that contains its time, and a slice does not contain its own end.
    inside = max(earlier.start, earlier.end - 1) / NANOSECONDS
    common = {"name": "dependency", "cat": "dependency", "id": f"{earlier.number}-{later.number}", "pid": PROCESS}
    yield common | {"ph": "s", "ts": inside, "tid": tracks[earlier.lane]}
    yield common | {"ph": "f", "bp": "e", "ts": later.start / NANOSECONDS, "tid": tracks[later.lane]}


def verdict(spans: list[TaskRun], earlier: dict[int, tuple[int, ...]]) -> str:
    """Say in one line how busy each lane was, how much ran at once, and how long the longest chain is."""
    if not spans:
        return "weft: no task ran"
    busy: dict[str, int] = defaultdict(int)
    for span in spans:
        busy[span.lane] += span.end - span.start
    whole = max(1, max(span.end for span in spans) - min(span.start for span in spans))
    shares = ", ".join(f"{lane} {percent(time, whole)} busy" for lane, time in sorted(busy.items()))
    overlap = sum(busy.values()) / max(1, covered(spans))
    length, tasks = longest_chain(spans, earlier)
    return (
        f"weft: {counted(len(spans), 'task')} in {whole / 1e6:.3f} ms: {shares}; {overlap:.2f} lanes at once; "
        f"longest chain {counted(tasks, 'task')}, {length / 1e6:.3f} ms, {percent(length, whole)} of the time"
    )


def percent(part: int, whole: int) -> str:
    """Write a share of a whole."""
    return f"{100 * part / whole:.0f} %"


def covered(spans: list[TaskRun]) -> int:
    """Measure the time during which at least one task ran."""
    total = 0
    reached = min(span.start for span in spans)
    for span in sorted(spans, key=lambda span: span.start):
        total += max(0, span.end - max(reached, span.start))
        reached = max(reached, span.end)
    return total


def longest_chain(spans: list[TaskRun], earlier: dict[int, tuple[int, ...]]) -> tuple[int, int]:
    """Find the dependent tasks that take the longest together: their time and their number."""
    chains: dict[int, tuple[int, int]] = {}
    for span in spans:  # in the order pushed, so that what a task depends on comes before it
        before = max((chains[number] for number in earlier.get(span.number, ()) if number in chains), default=(0, 0))
        chains[span.number] = (before[0] + span.end - span.start, before[1] + 1)
    return max(chains.values())
