"""Keep the model of this machine on disk: measured while it is quiet, and again where it has changed.

What other programs do meanwhile makes a measurement slow, never fast. So of several measurements the fastest numbers
count, and one beside others is told from one alone: this process got less of the processor than the clock went on, or
was put off its cores. It serves for a minute, so that processes which start together do not measure each other, and is
then measured again. See docs/decisions/0067-lanes-by-the-clock.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import threading
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from time import perf_counter, process_time, time

from weft.config import config
from weft.errors import UsageError
from weft.plan.schedule.cost import MEASURED, MachineModel, default_model, parse_model
from weft.runtime.measure import TIMES, get_block, has_block, largest_size, measure_machine, quick_look
from weft.target import CGROUP_LIMIT, Target, host_target

if os.name == "posix":
    import resource

VERSION = 6  # of what is measured, and how
FOLDER = "machine"
MOST_ATTEMPTS = 3  # at a measurement that nothing else disturbs
LEAST_SHARE = 0.9  # of a core, while a thread of ours computes without a pause
MOST_SWITCHES = 60.0  # a second, at which others took a core from us; and so many in all
FEW_SWITCHES = 3
DISTURBED_SERVES = 60.0  # seconds
CHECKED_AFTER = 24 * 3600.0
ALIKE = 0.25  # of a number: machines that differ by less are the same
PROCESSOR, MACHINE = Path("/proc/cpuinfo"), Path("/etc/machine-id")
NAME = "model name"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A model of this machine, whether nothing disturbed its measurement, and when it was measured and compared."""

    model: MachineModel
    quiet: bool
    measured: float
    checked: float

    def __str__(self) -> str:
        head = f"quiet {int(self.quiet)}\nmeasured {self.measured:.0f}\nchecked {self.checked:.0f}"
        return f"{head}\n{self.model}"


class Watch:
    """Tells whether others used the cores from when it is made."""

    def __init__(self) -> None:
        self._before = _numbers()

    def was_quiet(self) -> bool:
        """Whether this process had a core to itself, and was not put off it."""
        clock, processor, switches = (now - then for now, then in zip(_numbers(), self._before, strict=True))
        return processor >= LEAST_SHARE * clock and switches <= max(FEW_SWITCHES, MOST_SWITCHES * clock)


def _numbers() -> tuple[float, float, float]:
    """Give the clock, the processor time of this process, and how often others took a core from it."""
    # Where the system does not tell, the clocks alone do.
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if os.name == "posix" else 0
    return perf_counter(), process_time(), switches


def machine_model(target: Target) -> MachineModel:
    """Give the model of this machine: from memory, from disk, or measured now; of another machine, a guess."""
    if target != host_target():
        return default_model(target)
    return machine_measurement(target).model


def machine_measurement(target: Target) -> Measurement:
    """Give the measurement of this machine that counts in this process."""
    # Who measures waits for nobody who takes this lock; two at once would measure each other.
    with _lock:
        return _known(target, config().cache_dir)


def measure_now(target: Target) -> Measurement:
    """Measure this machine, and keep nothing."""
    with _lock:
        return _measured(target, None)


def renew(target: Target) -> Measurement:
    """Measure this machine anew, whatever was kept, and keep that."""
    with _lock:
        found = _measured(target, None)
        folder = config().cache_dir
        if folder is not None:
            _write(_path(folder, target), str(found))
        _known.cache_clear()
        return found


def is_measured(target: Target) -> bool:
    """Tell whether a model of a machine is on disk."""
    folder = config().cache_dir
    return folder is not None and _path(folder, target).exists()


def get_memory() -> None:
    """Get the memory in which this machine will be measured: beside what its caller's other threads do until then."""
    target = host_target()
    size = largest_size(target)
    # Who waits here is about to measure, and would have to get it himself; whoever has measured needs none.
    with _lock:
        if not (has_block(size) or _known.cache_info().currsize or is_measured(target)):
            get_block(size)


_lock = threading.Lock()
_latest: dict[Target, Measurement] = {}  # that this process has made


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603  # a forked child must not inherit a lock that nobody will release
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


@cache
def _known(target: Target, folder: Path | None) -> Measurement:
    if folder is None:
        return _measured(target, None)
    path = _path(folder, target)
    kept = _read(path, target)
    found = _current(kept, target)
    if found != kept:
        _write(path, str(found))
    return found


def _current(kept: Measurement | None, target: Target) -> Measurement:
    """Give what a kept measurement is now: itself, compared again, or a new one."""
    now = time()
    if kept is None:  # in this folder; this process may know all the same
        found = _latest.get(target)
        return found if found is not None and _serves(found, now) else _measured(target, None)
    if not kept.quiet:
        return kept if _serves(kept, now) else _measured(target, kept.model)
    if 0 <= now - kept.checked < CHECKED_AFTER:
        return kept
    watch = Watch()
    seen = quick_look(target)
    quiet, ratios = watch.was_quiet(), [rate / getattr(kept.model, name) for name, rate in seen.items()]
    # Slower beside others says nothing; it is looked at again when the next process begins.
    if any(ratio > 1 + ALIKE or (quiet and ratio < 1 - ALIKE) for ratio in ratios):
        return _measured(target, None)
    return replace(kept, checked=now) if quiet else kept


def _serves(found: Measurement, now: float) -> bool:
    return found.quiet or 0 <= now - found.measured < DISTURBED_SERVES


def _measured(target: Target, before: MachineModel | None) -> Measurement:
    """Measure until nothing disturbs; the fastest of all attempts, and of what was known before, counts."""
    best = before
    for _ in range(MOST_ATTEMPTS):
        watch = Watch()
        found = measure_machine(target)
        quiet = watch.was_quiet()
        is_new = best is None or not _are_alike(found, best)
        if best is None or quiet:
            best = found
        elif is_new:
            best = fastest(found, best)
        # A machine that is slower than what was guessed of most is believed the second time.
        if not is_new or (quiet and not _is_odd(found, target)):
            break
    now = time()
    _latest[target] = Measurement(best or default_model(target), quiet, measured=now, checked=now)
    return _latest[target]


def _are_alike(one: MachineModel, other: MachineModel) -> bool:
    return all(abs(getattr(one, name) / getattr(other, name) - 1) <= ALIKE for name in MEASURED)


def _is_odd(model: MachineModel, target: Target) -> bool:
    """Tell whether a machine is slower than what was guessed, which is cautious."""
    guess = default_model(target)
    return model.wait > guess.wait or any(
        getattr(model, name) < getattr(guess, name) for name in ("multiply_adds", "transfer") if target.cores > 1
    )


def fastest(one: MachineModel, other: MachineModel) -> MachineModel:
    """Give the higher rates and the shorter times of two models of one machine."""
    names = [field.name for field in fields(MachineModel) if field.name in MEASURED]
    return replace(
        one,
        **{name: (min if name in TIMES else max)(getattr(one, name), getattr(other, name)) for name in names},
    )


def machine_key(target: Target) -> str:
    """Name a machine by its target, and by what tells it from another one of the same name."""
    return hashlib.sha256(repr((VERSION, target, machine_shape())).encode()).hexdigest()[:32]


def machine_shape() -> tuple[str, ...]:
    """Give the name of this host, its identity and its processor's, its cores, and the limit of its container."""
    processor = next((line for line in _text(PROCESSOR).splitlines() if line.startswith(NAME)), "")
    return (platform.node(), _text(MACHINE), processor, str(os.cpu_count()), _text(CGROUP_LIMIT))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _path(folder: Path, target: Target) -> Path:
    return folder / FOLDER / f"{machine_key(target)}.txt"


def _read(path: Path, target: Target) -> Measurement | None:
    """Read what was kept; None where nothing was, or it is damaged."""
    try:
        text = path.read_text(encoding="ascii")
        head = {name: float(value) for name, value in (line.split() for line in text.splitlines()[:3])}
        model = parse_model(text, target)
        return Measurement(model, bool(head["quiet"]), head["measured"], head["checked"])
    except (OSError, UnicodeError, UsageError, ValueError, KeyError):
        return None


def _write(path: Path, text: str) -> None:
    """Write a file so that nobody ever sees a part of it; where that cannot be, the next process measures again."""
    own = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(text, encoding="ascii")
        own.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # there may be no folder that it could be in
            own.unlink(missing_ok=True)
