"""`python -m tests.train.failing [100] [both|launcher|torchrun] [SEED]`: ranks and parents fail; all others say so."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.train import failing_run

IN_TIME = 2.0  # seconds
LONGEST = 90.0
MARK = "FAILING_RUN"  # in the environment of every process of a run: its folder
ENDED = 10.0  # seconds after the run itself in which the last of its processes must have gone
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
WAYS = ("launcher", "torchrun")
PARENTS = 8  # one run in so many: not a rank ends but the process that started all
LINES = {"hang": "time.sleep(1000)", "spin": "", "fail": "raise ValueError", "kill": "", "stop": "", "leave": ""}


def command(how: str, processes: int, words: list[str]) -> list[str]:
    """Give the command that starts a run."""
    if how == "torchrun":
        agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        return [*agent, "-m", "weft.train", *words]
    return [sys.executable, "-m", "weft.train", "--processes", str(processes), *words]


def start(folder: Path, way: str, processes: int, **values: Any) -> subprocess.Popen[str]:
    """Start a run in which one rank fails."""
    words = [f"{failing_run.__file__}:run", "--epochs", "3", "--patience", "1"]
    for name, value in {"folder": str(folder), **values}.items():
        words += ["--set", f"{name}={json.dumps(value)}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", MARK: str(folder)}
    return subprocess.Popen(
        command(way, processes, words), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def states() -> dict[int, tuple[str, int]]:
    """Give the state and the parent of every process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(folder.name)] = (fields[0], int(fields[1]))
    return found


def ranks_of(parent: int) -> list[int]:
    """Find the processes that a process has started, those of its own."""
    return [number for number, (state, its) in states().items() if its == parent and state != "Z"]


def processes_of(folder: Path) -> list[int]:
    """Find the processes of a run by the mark that all of them inherit."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for number, (state, _) in states().items():
        try:
            environment = Path(f"/proc/{number}/environ").read_bytes()
        except OSError:  # it has ended, or is another user's
            continue
        if state != "Z" and mark in environment.split(b"\0"):
            found.append(number)
    return found


def end_of_all(folder: Path, seconds: float) -> list[int]:
    """Wait until no process of a run is left, so long at most; gives those that are."""
    limit = time.monotonic() + seconds
    while (left := processes_of(folder)) and time.monotonic() < limit:
        time.sleep(0.02)
    return left


def said_by(process: subprocess.Popen[str], folder: Path) -> str:
    """Wait for a run, and give what it printed; one that does not end is ended, and is a fault."""
    try:
        return process.communicate(timeout=LONGEST)[0]
    except subprocess.TimeoutExpired as error:
        for number in processes_of(folder):
            os.kill(number, signal.SIGKILL)
        raise AssertionError(f"the run goes on after {LONGEST:.0f} s: {process.communicate()[0]}") from error


def fail_once(way: str, processes: int, values: dict[str, Any]) -> float:
    """Have one rank fail; gives the seconds until the last of the others said so."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        process = start(folder, way, processes, **values)
        said = said_by(process, folder)
        assert process.returncode != 0, said
        assert not end_of_all(folder, ENDED), (values, said)
        assert (folder / "failed").exists(), (values, said)
        failed = float((folder / "failed").read_text())
        told = [told_to(rank, folder, said) for rank in range(processes) if rank != values["rank"]]
        for each in told:
            assert f"rank {values['rank']} of {processes} failed in step" in each["text"], (values, each["text"])
            assert "failing_run.py:" in each["text"], (values, each["text"])
            assert LINES[values["how"]] in each["text"], (values, each["text"])
    return max(each["time"] for each in told) - failed


def told_to(rank: int, folder: Path, said: str) -> Any:
    """Give what a rank wrote down when it was told of the failure."""
    file = folder / f"told-{rank}.json"
    assert file.exists(), (rank, said)
    return json.loads(file.read_text())


def random_values(source: random.Random, processes: int) -> dict[str, Any]:
    """Choose who fails, how, when and where."""
    return {
        "how": source.choice(sorted(failing_run.FAILURES)),
        "rank": source.randrange(processes),
        "step": source.randrange(1, 3 * failing_run.STEPS),
        "place": source.choice(["loss", "data", "callback"]),
    }


def end_parent(way: str, processes: int, number: signal.Signals) -> float:
    """End the parent of a run that goes on; gives the seconds until none of its processes is left."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        values = {"how": "hang", "rank": 0, "step": 3, "patience": 100.0}
        process = start(folder, way, processes, **values)
        limit = time.monotonic() + LONGEST
        while not (folder / "failed").exists() and time.monotonic() < limit:
            time.sleep(0.05)
        ranks = ranks_of(process.pid)
        assert len(ranks) == processes, ranks
        started = time.monotonic()
        process.send_signal(number)
        said_by(process, folder)
        assert not end_of_all(folder, ENDED), (way, number)
        return time.monotonic() - started


def end_parent_at_once(processes: int) -> float:
    """End the parent of a run whose processes still import PyTorch; gives the seconds until none of them is left."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        process = start(folder, "launcher", processes, how="hang", rank=0, step=3, patience=100.0)
        limit = time.monotonic() + LONGEST
        while len(ranks_of(process.pid)) < processes and time.monotonic() < limit:
            time.sleep(0.005)
        started = time.monotonic()
        process.kill()
        said_by(process, folder)
        assert not end_of_all(folder, LONGEST)
        return time.monotonic() - started


def once(source: random.Random, ways: Sequence[str]) -> tuple[str, str, float]:
    """End one run at random; gives what was done, all of it in words, and the seconds it took."""
    way, processes = source.choice(ways), source.choice([2, 3, 4])
    if source.randrange(PARENTS) == 0:
        number = source.choice(SIGNALS)
        kind, words = f"{number.name} to the {way}", f"{processes} processes by {way}, {number.name} to their parent"
        return kind, words, end_parent(way, processes, number)
    values = random_values(source, processes)
    seconds = fail_once(way, processes, values)
    words = f"{processes} processes by {way}, {values}"
    assert seconds < IN_TIME, f"{words}: the last rank said so after {seconds:.2f} s"
    return f"{values['how']} under the {way}", words, seconds


def main(count: int, way: str, seed: int) -> None:
    """Fail so many times; says every fault, and ends with the counts."""
    source, kinds, times, faults = random.Random(seed), Counter[str](), list[float](), 0
    for number in range(1, count + 1):
        try:
            kind, words, seconds = once(source, WAYS if way == "both" else [way])
        except AssertionError as fault:
            faults += 1
            print(f"{number}: FAULT {fault}", flush=True)
            continue
        kinds[kind] += 1
        if " to the " not in kind:
            times.append(seconds)
        print(f"{number}: {words}: {seconds:.2f} s", flush=True)
    for kind, found in sorted(kinds.items()):
        print(f"{found:4} {kind}")
    if times:
        print(f"ranks said so after {statistics.median(times):.2f} s, {max(times):.2f} s at most")
    print(f"{count} failures with seed {seed}, {faults} faults")
    sys.exit(faults > 0)


if __name__ == "__main__":
    given = [*sys.argv[1:], *["100", "both", "0"][len(sys.argv) - 1 :]]
    main(int(given[0]), given[1], int(given[2]))
