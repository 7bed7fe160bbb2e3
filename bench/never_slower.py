"""Time operators and models by eager PyTorch and by Weft, in turn: no program may be slower.

`python -m bench.never_slower [--dtype float32] [--size small large] [--only NAME] [--models]` prints the calls that
take longer than eager's by more than 3 % and 2 us, worst first, and fails if there are any. With `--models` the
subjects are the networks and functions of the benchmarks that are evaluated, in each dtype, also under autocast.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import weft
from bench.models.subject import Subject
from bench.operators_swept import DTYPES, LENGTHS, calls, entries
from bench.workloads import FAMILIES, NAMED, WORKLOADS

PART, SECONDS = 0.03, 2e-6
WARM_UP = 200
BATCH_SECONDS = 2e-4
ROUNDS, MOST_SECONDS = 40, 0.25


@dataclass(frozen=True, slots=True)
class Timed:
    """One subject: the shortest times in microseconds."""

    subject: str
    eager: float
    weft: float
    runs: str = ""

    @property
    def slower(self) -> bool:
        """Whether Weft takes longer by more than is allowed."""
        return self.weft > self.eager * (1 + PART) and self.weft > self.eager + 1e6 * SECONDS

    @property
    def ratio(self) -> float:
        """Eager's time over Weft's."""
        return self.eager / self.weft


def time_both(eager: Callable[[], object], compiled: Callable[[], object]) -> tuple[float, float]:
    """Give the shortest seconds of a call of each, measured in turn; ends early where the second is clearly faster."""
    start = time.perf_counter()
    eager()
    once = time.perf_counter() - start
    for _ in range(WARM_UP if once < 1e-4 else 60 if once < 2e-3 else 30):
        compiled()
    for _ in range(3):
        eager()
    counts = [max(1, round(BATCH_SECONDS / max(_batch(each, 1), 1e-7))) for each in (eager, compiled)]
    best = [1e9, 1e9]
    end = time.perf_counter() + MOST_SECONDS
    for number in range(ROUNDS):
        for which, each in enumerate((eager, compiled)):
            best[which] = min(best[which], _batch(each, counts[which]))
        if (number > 6 and best[1] < 0.95 * best[0]) or time.perf_counter() > end:
            break
    return best[0], best[1]


def _batch(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def timed(subject: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Timed | None:
    """Time a function; None for what neither runs."""

    def plain(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = weft.hybridize(plain)
        try:
            plain(*args, **kwargs)
        except Exception:  # noqa: BLE001 - a sample that this PyTorch refuses
            return None
        eager, ours = time_both(lambda: plain(*args, **kwargs), lambda: compiled(*args, **kwargs))
        return Timed(subject, 1e6 * eager, 1e6 * ours)


def operator_times(dtype: str, size: str, most: int, only: Sequence[str], part: tuple[int, int]) -> Iterator[Timed]:
    """Time the operators of the database."""
    for number, entry in enumerate(entries()):
        if number % part[1] != part[0] or (only and not any(entry.full_name.startswith(name) for name in only)):
            continue
        try:
            found = calls(entry, dtype, size, most)
        except Exception as error:  # noqa: BLE001 - the database's own
            print("no samples:", entry.full_name, dtype, type(error).__name__, file=sys.stderr)
            continue
        for call in found:
            try:
                one = timed(str(call), call.function, call.args, call.kwargs)
            except Exception as error:  # noqa: BLE001 - it is told
                print("not timed:", call, type(error).__name__, str(error)[:100], file=sys.stderr)
                continue
            if one is not None:
                yield one


def model_times(dtype: str, only: Sequence[str]) -> Iterator[Timed]:
    """Time the models of the benchmarks: converted to a dtype, and, where that is shorter, under autocast too."""
    for workload in WORKLOADS:
        if workload.group not in (NAMED, FAMILIES) or (only and not any(map(workload.name.startswith, only))):
            continue
        subject = workload.subject()
        if dtype != "float32":
            with torch.autocast("cpu", DTYPES[dtype]):
                one = timed(f"{workload.name} autocast {dtype}", subject.thing, subject.inputs, {})
            if one is not None:
                yield one
            if not isinstance(subject.thing, torch.nn.Module):
                continue
            subject = in_dtype(subject, DTYPES[dtype])
        one = timed(f"{workload.name} {dtype}", subject.thing, subject.inputs, {})
        if one is not None:
            yield one


def in_dtype(subject: Subject, dtype: torch.dtype) -> Subject:
    """Convert a module and what it is given."""
    assert isinstance(subject.thing, torch.nn.Module)
    inputs = (one.to(dtype) if one.is_floating_point() else one for one in subject.inputs)
    return Subject(subject.thing.to(dtype), tuple(inputs))


def main(arguments: Sequence[str] | None = None) -> int:
    """Time, print what is slower, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", nargs="*", choices=DTYPES, default=["float32"])
    parser.add_argument("--size", nargs="*", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--part", default="0/1", help="I/N: every N-th operator, beginning with the I-th")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worst", type=int, default=50)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    part = tuple(map(int, options.part.split("/")))
    found = [
        one
        for dtype in options.dtype
        for size in (() if options.models else options.size)
        for one in operator_times(dtype, size, options.samples, options.only, (part[0], part[1]))
    ]
    if options.models:
        found = [one for dtype in options.dtype for one in model_times(dtype, options.only)]
    slower = sorted((one for one in found if one.slower), key=lambda one: one.ratio)
    for one in slower[: options.worst]:
        print(f"{one.ratio:5.2f} {one.eager:9.1f} {one.weft:9.1f} us  {one.subject}  {one.runs}")
    print(f"{len(slower)} of {len(found)} slower than eager")
    if options.output:
        options.output.write_text(json.dumps([asdict(one) for one in found]))
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
