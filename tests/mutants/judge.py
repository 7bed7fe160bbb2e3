"""Judge a mutant: put it into a copy of the project, and run the tests that execute it until one fails.

Each run of pytest is a fork of this process, which has imported PyTorch but nothing of the project, so that it begins
at once. Its caches on disk are its own: what is kept there is named by digests of the sources, but not of all of them.
"""

from __future__ import annotations

import compileall
import contextlib
import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.mutants.areas import Area
from tests.mutants.operators import Mutant
from tests.mutants.reach import record

FIRST_TESTS = 30
# A test that takes longer than this is no test to judge mutants by, and what hangs hangs for much longer.
LONGEST_TEST = 15.0
# So many files of the source do fixtures of every test execute.
MOST_OF_FIXTURES = 6
MOST_SECONDS_OF_TESTS = 60.0
MOST_SECONDS_OF_OTHERS = 25.0
TIMEOUT = 60
LONGEST_RUN = 600
PLUGINS_OFF = ("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist")
# Asserts as they are: rewriting them takes longer than most tests, and nobody reads what a mutant's test would say.
OPTIONS = ("-q", "-x", "--assert=plain", *PLUGINS_OFF, f"--timeout={TIMEOUT}")
ALL_PASSED, NONE_RAN = 0, 5
OURS = {"weft", "tests", "__main__"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: which test killed it, or how many it survived."""

    mutant: Mutant
    killed_by: str | None
    tests: int
    difference: str

    @property
    def name(self) -> str:
        """Say where a mutant is."""
        return f"{self.mutant.path}:{self.mutant.first_line} {self.mutant.function} ({self.mutant.kind})"


@dataclass(eq=False)  # pytest keeps plugins in sets
class Chosen:
    """A pytest plugin: run these tests only, in this order; remember which of them failed."""

    tests: Sequence[str]
    note: Path
    ran: int = 0
    order: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.order = {name: number for number, name in enumerate(self.tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the chosen tests."""
        items[:] = sorted((one for one in items if one.nodeid in self.order), key=lambda one: self.order[one.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure where the parent reads it."""
        if report.failed:
            self.note.write_text(report.nodeid, encoding="utf-8")


class Judge:
    """A copy of the project as it is now, the tests of an area, and what they execute.

    Nothing else is read from here on: the checkout may be worked on meanwhile.
    """

    def __init__(self, root: Path, area: Area, kept: Path) -> None:
        self.root, self.area, self.kept = root, area, kept
        self.copy = Path(tempfile.mkdtemp(prefix="weft-mutants-"))
        copy_project(root, self.copy)
        for folder in ("src", "tests"):
            compileall.compile_dir(self.copy / folder, quiet=2)
        self.reach: dict[str, dict[str, Any]] = {}

    def close(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self.copy, ignore_errors=True)

    def sources(self) -> list[str]:
        """List the files of the area."""
        base = self.copy / "src" / "weft"
        found = {path for pattern in self.area.sources for path in base.glob(pattern)}
        return sorted(str(path.relative_to(self.copy)) for path in found)

    def learn(self, say: Callable[[str], None]) -> None:
        """Record what each test file of the area executes; files that were recorded as they are now are read."""
        base = self.copy / "tests"
        files = sorted({path for pattern in self.area.tests for path in base.glob(pattern)})
        self.kept.mkdir(parents=True, exist_ok=True)
        for file in files:
            name = str(file.relative_to(self.copy))
            digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
            place = self.kept / f"{name.replace('/', '.')}-{digest}.json"
            if not place.exists():
                start = time.monotonic()
                arguments = [name, "-m", "not slow", *(option for option in OPTIONS if option != "-x")]
                child = partial(record, arguments, self.copy / "src" / "weft", place)
                code, output = self.fork(child, LONGEST_RUN * 3)
                how = output.strip()[-200:] if code else "passed"
                say(f"recorded {name} in {time.monotonic() - start:.0f} s: {how}")
            if place.exists():
                self.reach.update(json.loads(place.read_text(encoding="utf-8")))

    def import_libraries(self) -> None:
        """Import here what the tests import of others, so that forks need not."""
        names = self.copy / "modules.txt"

        def child() -> int:
            pytest.main(["tests/ir/test_printer.py", *OPTIONS])
            names.write_text("\n".join(sys.modules), encoding="utf-8")
            return 0

        self.fork(child, LONGEST_RUN)
        for name in names.read_text(encoding="utf-8").split():
            if name.partition(".")[0] not in OURS and name not in sys.modules:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)

    def tests_for(self, mutant: Mutant) -> list[str]:
        """List the tests for a mutant: those that ran its line, then its function, then a few of its file.

        What runs once in a process, as a table does, was noted for the first test alone. Quickest first.
        """
        lines = set(range(mutant.first_line, mutant.last_line + 1))
        ranked: list[tuple[int, float, str]] = []
        for name, test in self.reach.items():
            found = test["reached"].get(mutant.path)
            elsewhere = len(test["reached"]) <= MOST_OF_FIXTURES  # it runs what it tests in a process of its own
            if (found is None and not elsewhere) or test["seconds"] > LONGEST_TEST:
                continue
            ran = (found or {}).get(mutant.function)
            near = 2 if ran is None else 1 if lines.isdisjoint(ran) else 0
            ranked.append((near, test["seconds"], name))
        chosen, left = [], [MOST_SECONDS_OF_TESTS, MOST_SECONDS_OF_TESTS, MOST_SECONDS_OF_OTHERS]
        for near, seconds, name in sorted(ranked):
            left[near] -= seconds
            if left[near] > 0:
                chosen.append(name)
        return chosen

    def judge(self, mutant: Mutant) -> Verdict:
        """Run the tests that execute a mutant until one fails."""
        source = (self.copy / mutant.path).read_bytes()
        tests = self.tests_for(mutant)
        with self.applied(mutant, source):
            for some in (tests[:FIRST_TESTS], tests[FIRST_TESTS:]):
                killer = self.run(some) if some else None
                if killer is not None:
                    return Verdict(mutant, killer, len(tests), mutant.difference(source))
        return Verdict(mutant, None, len(tests), mutant.difference(source))

    @contextlib.contextmanager
    def applied(self, mutant: Mutant, source: bytes) -> Iterator[None]:
        """Let the copy have a mutant in it."""
        place = self.copy / mutant.path
        place.write_bytes(mutant.apply(source))
        _forget_compiled(place)
        try:
            yield
        finally:
            place.write_bytes(source)
            _forget_compiled(place)

    def run(self, tests: Sequence[str]) -> str | None:
        """Run tests in the copy, give what failed, None where nothing did."""
        note = self.copy / "failed.txt"
        note.unlink(missing_ok=True)
        files = list(dict.fromkeys(name.split("::")[0] for name in tests))

        def child() -> int:
            sys.dont_write_bytecode = True
            return int(pytest.main([*files, *OPTIONS], plugins=[Chosen(tests, note)]))

        code, output = self.fork(child, LONGEST_RUN)
        if code in {ALL_PASSED, NONE_RAN}:
            return None
        if note.exists():
            return note.read_text(encoding="utf-8")
        return f"pytest ended with {code}: {output[-300:]}"

    def fork(self, child: Callable[[], int], longest: float) -> tuple[int | str, str]:
        """Run a function in a process of its own in the copy; give its exit code, and what it printed."""
        output = self.copy / "output.txt"
        process = os.fork()
        if process == 0:
            self._become(output, child)
        deadline = time.monotonic() + longest
        while True:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                code: int | str = os.waitstatus_to_exitcode(status)
                break
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
                code = "a timeout"
                break
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)  # what the tests started and left behind
        return code, output.read_text(encoding="utf-8", errors="replace")

    def _become(self, output: Path, child: Callable[[], int]) -> None:
        code = 70
        try:
            os.setsid()
            os.chdir(self.copy)
            cache = self.copy / "cache"
            shutil.rmtree(cache, ignore_errors=True)
            environment = {"PYTHONPATH": f"{self.copy}/src", "WEFT_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
            os.environ.update(environment)
            checkout = str(self.root)
            sys.path[:] = [f"{self.copy}/src", str(self.copy)] + [one for one in sys.path if not _is_in(one, checkout)]
            for name in [one for one in sys.modules if one == "tests" or one.startswith("tests.")]:
                del sys.modules[name]  # the copy's own, for the tests there
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for number in (1, 2):
                os.dup2(file, number)
            code = child()
        except BaseException as error:  # noqa: BLE001 - the child must end here, whatever happened
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)


def _is_in(path: str, checkout: str) -> bool:
    return path in {"", checkout, f"{checkout}/src"}


def _forget_compiled(place: Path) -> None:
    # Python tells whether compiled code is that of a file by its size and the second of its change: too coarse here.
    for file in (place.parent / "__pycache__").glob(f"{place.stem}.*.pyc"):
        file.unlink()


def copy_project(root: Path, copy: Path) -> None:
    """Copy the files that git knows or does not ignore."""
    listing = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in names:
        if name and (root / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name)
