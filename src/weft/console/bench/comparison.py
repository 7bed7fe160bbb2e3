"""Compare a target with its rivals, times taken in turn, whether answers agree; show it with pictures: `weft bench`."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.api.hybridize import program
from weft.console.bench.harness import TurnLimits, interleave
from weft.console.bench.process import RivalProcess, RivalTask
from weft.console.bench.result import BenchComparison, BenchSettings, RivalTimes, error_of
from weft.console.bench.rivals import RIVALS
from weft.console.outcome import CLAIM_FAILED, OK, UNSUPPORTED, Outcome
from weft.console.report.environment import environment
from weft.console.subject import EAGER, HYBRID, STEP, Subject, call, load_subject
from weft.console.terminal import Progress
from weft.devices import cores, cpu_count
from weft.document.blocks import Block, Document, Heading, Paragraph, Table
from weft.document.html import page
from weft.errors import ExecutionError, UnsupportedError, UsageError
from weft.files import write_atomically
from weft.programs.picture import program_blocks
from weft.programs.program import Program


def compared_program(target: str, sizes: Sequence[str] = (), threads: int = 0) -> Program:
    """Make the program that `hybrid` or `step` runs, in this process, on so many threads (0: all cores)."""
    subject = load_subject(target, sizes)
    with torch.set_grad_enabled(subject.trains), cores(threads or cpu_count()):
        return program(subject.thing, *subject.inputs)


def portrait(found: BenchComparison, sizes: Sequence[str] = (), trace: Path | None = None) -> Document:
    """Give what was found, as a summary, pictures and tables, with the program's; `trace` gets the call's timeline."""
    first, *rest = found.document().blocks
    blocks: list[Block] = [first, *found.pictures(), *map(_without_bars, rest)]
    return Document((*blocks, *_program(found, sizes, trace)))


def _without_bars(block: Block) -> Block:
    """Leave out the bars made of letters, which a terminal needs and a page draws."""
    if not isinstance(block, Table):
        return block
    return Table(block.columns[:-1], tuple(row[:-1] for row in block.rows), block.right)


def _program(found: BenchComparison, sizes: Sequence[str], trace: Path | None) -> list[Block]:
    try:
        made = compared_program(found.target, sizes, found.threads)
    except UnsupportedError as error:
        return [Heading("The program"), Paragraph(f"There is none: {error}", "bad")]
    with cores(found.threads):
        timeline = made.timeline(trace)
    return [Heading("The program"), Paragraph(made.summary()), *program_blocks(made.plan.regions, timeline)]


def bench_call(given: Namespace) -> str:
    """Give the Python call that does the same."""
    sizes = f", {given.input!r}" if given.input else ""
    settings = settings_text(_settings(given))
    imports = ["from weft.console.bench.comparison import compare"]
    call = f"compare({given.TARGET!r}{sizes})"
    if settings != "BenchSettings()":
        imports.append("from weft.console.bench.result import BenchSettings")
        call = f"compare({given.TARGET!r}{sizes}, settings={settings})"
    written = (given.export_json, given.export_markdown, given.html, given.trace)
    if not any(written):
        return "\n".join([*imports, "", f"print({call})"])
    lines = [f"found = {call}", "print(found)"]
    if given.export_json is not None:
        lines.append(f"Path({given.export_json!r}).write_text(found.json() + '\\n', encoding='utf-8')")
    if given.export_markdown is not None:
        lines.append(f"Path({given.export_markdown!r}).write_text(found.markdown(), encoding='utf-8')")
    if given.html is not None or given.trace is not None:
        imports.insert(1, "from weft.console.bench.comparison import portrait")
        trace = f", trace=Path({given.trace!r})" if given.trace is not None else ""
        lines.append(f"shown = portrait(found{sizes}{trace})")
    if given.html is not None:
        imports.append("from weft.document.blocks import Document, Heading")
        imports.append("from weft.console.report.environment import environment")
        imports.append("from weft.document.html import page")
        lines.append("here = (Heading('This machine'), *environment().document().blocks)")
        lines.append(f"text = page({_title(given)!r}, Document((*shown.blocks, *here)))")
        lines.append(f"Path({given.html!r}).write_text(text, encoding='utf-8')")
    return "\n".join(["from pathlib import Path", "", *imports, "", *lines])


def bench_run(given: Namespace, progress: Progress) -> Outcome:
    """Measure, and write what is asked for."""
    found = compare(given.TARGET, given.input, _settings(given), progress.say)
    if given.export_json is not None:
        write_atomically(Path(given.export_json), [found.json().encode("utf-8"), b"\n"])
    if given.export_markdown is not None:
        write_atomically(Path(given.export_markdown), [found.markdown().encode("utf-8")])
    if given.html is not None or given.trace is not None:
        progress.say("looking at one call")
        shown = portrait(found, given.input, None if given.trace is None else Path(given.trace))
        if given.html is not None:
            here = (Heading("This machine"), *environment().document().blocks)
            text = page(_title(given), Document((*shown.blocks, *here)))
            write_atomically(Path(given.html), [text.encode("utf-8")])
    ran = any(entry.name in (HYBRID, STEP) for entry in found.entries)
    if ran:
        return Outcome(found.document(), found.as_dict(), OK if found.agrees else CLAIM_FAILED)
    asked = Paragraph(f"try: weft doctor {' '.join([given.TARGET, *(f'--input {each}' for each in given.input)])}")
    return Outcome(Document((*found.document().blocks, asked)), found.as_dict(), UNSUPPORTED)


def _title(given: Namespace) -> str:
    return f"{given.TARGET} beside its rivals"


def _settings(given: Namespace) -> BenchSettings:
    return BenchSettings(tuple(given.vs), given.threads or 0, given.warmup, given.runs)


Say = Callable[[str], None]
TURN_SECONDS = 0.01
TIMES_EAGER, FLOOR = 2.0, 1e-6
ROUNDING = 1e-3  # a relative error above it is none of rounding
WITHOUT_DOUBLE = 1e-4  # what float32 may differ by, where float64 cannot tell
UNABLE = {True: "it does not train", False: "it trains: name what weft.step(net, loss, optimizer) gives as the target"}


@dataclass(frozen=True, slots=True)
class _Started:
    process: RivalProcess
    first_call: float
    answers: list[np.ndarray]
    losses: tuple[float, ...]


def compare(
    target: str, sizes: Sequence[str] = (), settings: BenchSettings | None = None, say: Say = lambda _: None
) -> BenchComparison:
    """Time a module, a function or a step of `weft.step`, `file.py:name`, beside its rivals; `say` is told how it goes.

    Each rival has a process of its own, with the same weights and inputs. They are timed in turn, one turn a round.
    """
    chosen = settings or BenchSettings()
    names = {rival.name for rival in RIVALS}
    if unknown := sorted(set(chosen.against) - names):
        raise UsageError(f"there is no rival {unknown[0]!r}", why="the rivals are " + ", ".join(sorted(names)))
    subject = load_subject(target, sizes)
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as name:
        return _compare(target, tuple(sizes), (subject, chosen, say), Path(name))


def _compare(
    target: str, sizes: tuple[str, ...], given: tuple[Subject, BenchSettings, Say], folder: Path
) -> BenchComparison:
    subject, settings, say = given
    shared = folder / "shared.pt"
    module = subject.module
    state = {} if module is None else module.state_dict()
    torch.save({"state": state, "inputs": list(subject.inputs)}, shared)
    with torch.no_grad():
        call(subject)
    threads = settings.threads or cpu_count()
    started: dict[str, _Started] = {}
    skipped: dict[str, str] = {}
    try:
        for rival in RIVALS:
            if settings.against and rival.name not in (*settings.against, EAGER, subject.ours):
                continue
            if not rival.able(subject.thing):
                if rival.name in settings.against:
                    skipped[rival.name] = UNABLE[subject.trains]
                continue
            say(f"preparing {rival.name}")
            task = RivalTask(
                rival.name, target, sizes, threads, settings.warmup, str(shared), str(folder / f"{rival.name}.npz")
            )
            found = rival.missing() or _start(task, folder)
            if isinstance(found, str) and rival.name == EAGER:
                raise ExecutionError("eager PyTorch did not run in a process of its own", why=found)
            if isinstance(found, str):
                skipped[rival.name] = found
            else:
                started[rival.name] = found

        def told(done: int) -> None:
            if done * 10 // settings.runs > (done - 1) * 10 // settings.runs:
                say(f"round {done} of {settings.runs}")

        # As many rounds as asked for, settled or not.
        limits = TurnLimits(TURN_SECONDS, fewest_rounds=settings.runs, seconds=0.0)
        times = interleave([each.process for each in started.values()], limits, told=told).rounds
    finally:
        for rival_started in started.values():
            rival_started.process.close()
    return BenchComparison(target, threads, _entries(started, times, folder), skipped)


def _start(task: RivalTask, folder: Path) -> _Started | str:
    process = RivalProcess(task, folder)
    try:
        told = process.prepared()
    except ExecutionError as error:
        process.close()
        return " ".join(str(error).split())
    except BaseException:  # also Ctrl-C: no process may be left behind
        process.close()
        raise
    if "failed" in told:
        process.close()
        return str(told["failed"])
    return _Started(process, float(told["first_call"]), _arrays(Path(task.answers)), tuple(told["losses"]))


def _entries(started: dict[str, _Started], times: dict[str, list[float]], folder: Path) -> tuple[RivalTimes, ...]:
    truth, allowed = _reference(started[EAGER].answers, _arrays(folder / f"{EAGER}.npz.double.npz"))
    entries = []
    for name, found in started.items():
        error = error_of(found.answers, truth)
        entries.append(RivalTimes(name, tuple(times[name]), found.first_call, error, error <= allowed, found.losses))
    return tuple(entries)


def _reference(eager: list[np.ndarray], double: list[np.ndarray]) -> tuple[list[np.ndarray], float]:
    """Give what answers are compared with, and the error that is allowed.

    Float64 tells how far float32 may be off. Where eager itself is further from it than rounding explains (the model
    draws other random numbers, or branches), that would allow anything: then eager is what others are compared with.
    """
    error = error_of(eager, double) if double else float("inf")
    return (double, TIMES_EAGER * error + FLOOR) if error < ROUNDING else (eager, WITHOUT_DOUBLE)


def _arrays(path: Path) -> list[np.ndarray]:
    with np.load(path, allow_pickle=False) as block:
        return [block[name] for name in block.files]


def settings_text(settings: BenchSettings) -> str:
    """Write the settings that differ from the usual ones as Python."""
    usual: dict[str, Any] = {name: getattr(BenchSettings(), name) for name in BenchSettings.__slots__}
    changed = (
        f"{name}={getattr(settings, name)!r}" for name, value in usual.items() if getattr(settings, name) != value
    )
    return f"BenchSettings({', '.join(changed)})"
