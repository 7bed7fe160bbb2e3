"""`python -m tests.train.failing [100] [launcher|torchrun]`: ranks fail at random; every other rank says so in time."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.train import failing_run

IN_TIME = 2.0  # seconds
LONGEST = 90.0
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
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(way, processes, words), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ranks_of(parent: int) -> list[int]:
    """Find the processes that a process has started, those of its own."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def fail_once(way: str, processes: int, values: dict[str, Any]) -> float:
    """Have one rank fail; gives the seconds until the last of the others said so."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with start(folder, way, processes, **values) as process:
            said, _ = process.communicate(timeout=LONGEST)
        assert process.returncode != 0, said
        assert (folder / "failed").exists(), (values, said)
        failed = float((folder / "failed").read_text())
        others = [rank for rank in range(processes) if rank != values["rank"]]
        told = {}
        for rank in others:
            file = folder / f"told-{rank}.json"
            assert file.exists(), (rank, values, said)
            told[rank] = json.loads(file.read_text())
            text = told[rank]["text"]
            assert f"rank {values['rank']} of {processes} failed in step" in text, (values, text)
            assert "failing_run.py:" in text, (values, text)
            assert LINES[values["how"]] in text, (values, text)
    return max(each["time"] for each in told.values()) - failed


def random_values(source: random.Random, processes: int) -> dict[str, Any]:
    """Choose who fails, how, when and where."""
    return {
        "how": source.choice(sorted(failing_run.FAILURES)),
        "rank": source.randrange(processes),
        "step": source.randrange(1, 3 * failing_run.STEPS),
        "place": source.choice(["loss", "data", "callback"]),
    }


def main(count: int, way: str, seed: int) -> None:
    """Fail so many times."""
    source, times = random.Random(seed), []
    for number in range(count):
        processes = source.choice([2, 3, 4])
        values = random_values(source, processes)
        times.append(fail_once(way, processes, values))
        print(f"{number + 1}: {processes} processes by {way}, {values}: {times[-1]:.2f} s", flush=True)
        assert times[-1] < IN_TIME, values
    print(f"{count} failures, the others said so after {sorted(times)[count // 2]:.2f} s, {max(times):.2f} s at most")


def end_parent(way: str, number: signal.Signals) -> float:
    """End the parent of a run that goes on; gives the seconds until none of its processes is left."""
    with tempfile.TemporaryDirectory() as place:
        values = {"how": "hang", "rank": 0, "step": 3, "patience": 100.0}
        process = start(Path(place), way, 2, **values)
        limit = time.monotonic() + LONGEST
        while not (Path(place) / "failed").exists() and time.monotonic() < limit:
            time.sleep(0.05)
        ranks = ranks_of(process.pid)
        assert len(ranks) == 2
        started = time.monotonic()
        process.send_signal(number)
        process.communicate(timeout=LONGEST)
        while [rank for rank in ranks if Path(f"/proc/{rank}").exists()] and time.monotonic() < started + 30:
            time.sleep(0.02)
        assert not [rank for rank in ranks if Path(f"/proc/{rank}").exists()]
        return time.monotonic() - started


if __name__ == "__main__":
    words = sys.argv[1:]
    main(int(words[0]) if words else 100, words[1] if len(words) > 1 else "launcher", int((words[2:] or [0])[0]))
