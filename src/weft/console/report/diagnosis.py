"""Diagnose this machine, and every place of a model that is in the way of a program: `weft doctor`.

A trace ends at the first such place. So the model also runs imperatively once, watched, which shows every place that
leaves the world of tensors; and the modules inside of one that cannot be traced are traced alone, which shows the rest.
"""

from __future__ import annotations

import contextlib
import tempfile
import traceback
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from weft.api.hybridize import checked, hybridize, program
from weft.api.step import Step
from weft.compile.pipeline import compile_graph
from weft.config import config
from weft.console.outcome import CLAIM_FAILED, OK, UNSUPPORTED, Outcome
from weft.console.report.environment import bytes_text, environment, processor_facts
from weft.console.subject import call, load_subject
from weft.console.terminal import Progress
from weft.document.blocks import Block, Document, Heading, Paragraph, StyledText, Table, facts
from weft.errors import MismatchError, UnsupportedError, counted
from weft.ir.graph import Place
from weft.ir.library import Call
from weft.owners import Owner, owner_of
from weft.plan.schedule.cost import MachineModel
from weft.runtime.machine import Measurement, machine_measurement, measure_now, renew
from weft.target import host_target
from weft.trace.interception.functions import kind_of_refusal
from weft.trace.interception.refusals import refusal

# Their results are as large as the values of a tensor say.
DYNAMIC = frozenset(
    {
        torch.nonzero,
        torch.Tensor.nonzero,
        torch.argwhere,
        torch.masked_select,
        torch.Tensor.masked_select,
        torch.unique,
        torch.Tensor.unique,
        torch.bincount,
        torch.Tensor.bincount,
    }
)
Calls = dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]]


def obstacles(thing: Callable[..., Any], inputs: tuple[Any, ...]) -> list[UnsupportedError]:
    """List what is in the way, each place once; none if the model can be traced as it is."""
    if isinstance(thing, Step):
        whole = _refusal_of(thing, inputs, {})  # it needs gradients, and cannot run imperatively
        return [] if whole is None else [whole]
    with torch.no_grad():
        whole = _refusal_of(thing, inputs, {})
        if whole is None:
            return []
        watch = _Watch()
        calls: Calls = {}
        with _recorded(thing, calls), watch:
            thing(*inputs)
        found = [whole, *watch.found.values()]
        if isinstance(thing, nn.Module):
            found += [error for child in thing.children() for error in _inside(child, calls)]
    # By place and kind: a trace may name the operator too, so it says more and comes first.
    return list({(error.where, error.fix): error for error in reversed(found)}.values())[::-1]


class _Watch(TorchFunctionMode):
    """Notes where functions are called that no program can hold, and lets them run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, str, int], UnsupportedError] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kind = kind_of_refusal(func) or ("data-dependent shape" if _is_dynamic(func, args) else None)
        place = _place() if kind is not None else None
        if kind is not None and place is not None:
            key = (kind, place.filename, place.line)
            self.found.setdefault(key, refusal(kind, place))
        return func(*args, **(kwargs or {}))


def _is_dynamic(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    if function is torch.Tensor.__getitem__:
        indices = arguments[1] if isinstance(arguments[1], tuple) else arguments[1:2]
        return any(isinstance(index, torch.Tensor) and index.dtype is torch.bool for index in indices)
    return function in DYNAMIC or (function is torch.where and len(arguments) == 1)


def _place() -> Place | None:
    """The innermost line that is neither PyTorch's nor this file's."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename != __file__ and owner_of(frame.filename) is not Owner.TORCH:
            return Place(frame.filename, frame.lineno or 1, frame.name)
    return None


@contextlib.contextmanager
def _recorded(thing: Callable[..., Any], calls: Calls) -> Iterator[None]:
    """Note what every module inside is called with first."""

    def note(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        calls.setdefault(module, (arguments, keywords))

    modules = thing.modules() if isinstance(thing, nn.Module) else ()
    handles = [module.register_forward_pre_hook(note, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _inside(module: nn.Module, calls: Calls) -> list[UnsupportedError]:
    """What is in the way in a module and those inside of it; one that can be traced has nothing inside."""
    arguments, keywords = calls.get(module, ((), {}))
    if module in calls:
        error = _refusal_of(module, arguments, keywords)
        if error is None:
            return []
        return [error, *(each for child in module.children() for each in _inside(child, calls))]
    return [each for child in module.children() for each in _inside(child, calls)]


def _refusal_of(
    thing: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> UnsupportedError | None:
    try:
        program(thing, *arguments, **keywords)
    except UnsupportedError as error:
        return error
    return None


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One thing that was looked at: whether it is well, what was found, and what to do where it is not."""

    name: str
    well: bool
    found: str


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What a model becomes: its program in a line, operators without machine code, and what is in the way."""

    name: str
    summary: str | None
    operators: dict[str, int]
    obstacles: tuple[UnsupportedError, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks, the rates of this machine as the planner knows them, and the report on a model."""

    checks: tuple[DoctorCheck, ...]
    machine: Measurement
    model: ModelReport | None

    @property
    def well(self) -> bool:
        """Tell whether every check passed."""
        return all(check.well for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Give it as data."""
        checks = [{"name": check.name, "well": check.well, "found": check.found} for check in self.checks]
        model = None
        if self.model is not None:
            refused = [{"fact": error.fact, **dict(error.parts())} for error in self.model.obstacles]
            model = {
                "name": self.model.name,
                "summary": self.model.summary,
                "operators": self.model.operators,
                "obstacles": refused,
            }
        return {
            "checks": checks,
            "machine": asdict(self.machine.model),
            "model": model,
            "environment": environment().as_dict(),
        }

    def document(self) -> Document:
        """Give it to read."""
        rows = tuple((_mark(check.well), check.name, check.found) for check in self.checks)
        blocks: list[Block] = [Table((), rows)]
        if self.model is None:
            blocks += [
                Heading("this machine"),
                facts([*processor_facts(host_target()), *_rates(self.machine.model), *_when(self.machine)]),
            ]
        else:
            blocks += _model_blocks(self.model)
        return Document(tuple(blocks))

    def __str__(self) -> str:
        return str(self.document())


def diagnose(
    thing: Callable[..., Any] | None = None, *inputs: Any, check: bool = False, measure: bool = False
) -> Diagnosis:
    """Look at this installation and, if one is given, at a model with its inputs.

    To `check` a model is to call it by eager PyTorch too, and to compare all that both give and change. A step trains.
    With `measure` this machine is measured anew, whatever was kept.
    """
    checks = tuple(look() for look in CHECKS)
    if check and thing is not None:
        checks = (*checks, _answers(thing, inputs))
    model = None if thing is None else _examine(thing, inputs)
    # What is measured is kept in the cache, so a cache that is not well is left alone.
    keeps = all(found.well for found in checks)
    find = (renew if measure else machine_measurement) if keeps else measure_now
    return Diagnosis(checks, find(host_target()), model)


def _versions() -> DoctorCheck:
    found = environment()
    names = ("torch", "llvmlite", "numpy")
    listed = ", ".join(f"{name} {found.packages[name]}" for name in names)
    return DoctorCheck("versions", True, f"weft {found.weft}, python {found.python.split()[0]}, {listed}")


def _compiler() -> DoctorCheck:
    """Compile something small and compare: LLVM, loading and calling machine code all have to work for that."""
    given = torch.linspace(-2, 2, 37)

    def something_small(x: torch.Tensor) -> torch.Tensor:
        return (x * 3 + 1).relu()

    with torch.no_grad():
        found = hybridize(something_small)(given)
    well = torch.equal(found, (given * 3 + 1).relu())
    return DoctorCheck("compiler", well, "a program compiled here gives the right answer" if well else "a WRONG answer")


def _cache() -> DoctorCheck:
    folder = config().cache_dir
    if folder is None:
        return DoctorCheck("cache", True, "none: everything is compiled anew in each process")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return DoctorCheck(
            "cache", False, f"cannot be written ({error.strerror}): set WEFT_CACHE_DIR to a folder of yours"
        )
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return DoctorCheck("cache", True, f"compiled code is kept on disk, {bytes_text(size)}")


def _threads() -> DoctorCheck:
    cores, wanted = host_target().cores, config().threads
    if wanted > cores:
        return DoctorCheck("cores", False, f"WEFT_THREADS is {wanted}, and this process may use {cores}: lower it")
    return DoctorCheck("cores", True, f"{wanted or cores} of {cores}")


def _answers(thing: Callable[..., Any], inputs: tuple[Any, ...]) -> DoctorCheck:
    """Call a model in both ways, twice without gradients and twice with them; the first call of each traces."""
    modes = (True, True) if isinstance(thing, Step) else (False, False, True, True)
    hybrid = checked(thing, len(modes))
    try:
        for mode in modes:
            with torch.set_grad_enabled(mode):
                hybrid(*inputs)
    except MismatchError as error:
        return DoctorCheck("answers", False, str(error))
    except UnsupportedError:
        return DoctorCheck("answers", True, "not compared: it does not run as a program")
    return DoctorCheck("answers", True, f"{counted(len(modes), 'call')} gave and changed what eager PyTorch does")


CHECKS: tuple[Callable[[], DoctorCheck], ...] = (_versions, _compiler, _cache, _threads)


def _examine(thing: Callable[..., Any], inputs: tuple[Any, ...]) -> ModelReport:
    name = getattr(thing, "__name__", type(thing).__name__)
    refused = tuple(obstacles(thing, inputs))
    if refused:
        return ModelReport(name, None, {}, refused)
    with torch.set_grad_enabled(isinstance(thing, Step)):
        found = program(thing, *inputs)
    weights = frozenset(entry.value for entry in found.inputs if entry.argument is None)
    steps = compile_graph(found.graph, weights).executable.plan.steps
    calls = (step.value.attributes.get("call") for step in steps)
    return ModelReport(
        name, found.summary(), dict(Counter(call.target for call in calls if isinstance(call, Call))), ()
    )


def _model_blocks(model: ModelReport) -> list[Block]:
    if model.summary is not None:
        listed = ", ".join(f"{name} × {count}" for name, count in model.operators.items())
        told = f"By PyTorch's operators: {listed}." if listed else "All of it runs in machine code of Weft's own."
        return [Heading(f"{model.name} runs as a program"), Paragraph(model.summary), Paragraph(told)]
    blocks: list[Block] = [Heading(f"{model.name}: {counted(len(model.obstacles), 'place')} in the way")]
    for number, error in enumerate(model.obstacles, 1):
        blocks.append(Paragraph(f"{number}. {error.fact}", "bad"))
        blocks.append(facts((f"   {label}", text) for label, text in error.parts() if text))
    return blocks


def _rates(model: MachineModel) -> list[tuple[str, str]]:
    caches = f"{model.l1 / 1e9:.0f} / {model.l2 / 1e9:.0f} / {model.l3 / 1e9:.0f} GB/s from the caches"
    return [
        ("arithmetic", f"{2 * model.multiply_adds / 1e9:.0f} GFLOP/s a core in float32"),
        ("reading", f"{caches}, {model.memory / 1e9:.0f} from memory"),
        ("a wait", f"{model.wait * 1e9:.0f} ns from core to core"),
    ]


def _when(found: Measurement) -> list[tuple[str, str]]:
    """Say when that was measured, and whether beside others."""
    day = datetime.fromtimestamp(found.measured).astimezone().strftime("%d %B %Y, %H:%M")
    if found.quiet:
        return [("measured", f"{day}, with the cores to itself; anew by weft doctor --measure")]
    return [("measured", f"{day}, beside other work: the next process measures again, or weft doctor --measure")]


def _mark(well: bool) -> StyledText:
    return StyledText("✓", "good") if well else StyledText("✗", "bad")


def doctor_call(given: Namespace) -> str:
    """Give the Python call that does the same."""
    if given.TARGET is None:
        measure = "measure=True" if given.measure else ""
        return f"from weft.console.report.diagnosis import diagnose\n\nprint(diagnose({measure}))"
    sizes = f", {given.input!r}" if given.input else ""
    check = (", check=True" if given.check else "") + (", measure=True" if given.measure else "")
    return (
        "from weft.console.subject import load_subject\nfrom weft.console.report.diagnosis import diagnose\n\n"
        f"subject = load_subject({given.TARGET!r}{sizes})\nprint(diagnose(subject.thing, *subject.inputs{check}))"
    )


def doctor_run(given: Namespace, progress: Progress) -> Outcome:
    """Look at the machine, and at the model if one is named."""
    found: Diagnosis
    if given.TARGET is None:
        progress.stage("looking at this machine")
        found = diagnose(measure=given.measure)
    else:
        subject = load_subject(given.TARGET, given.input)
        call(subject)
        progress.stage("looking at this machine")
        found = subject.caller(
            partial(diagnose, check=given.check, measure=given.measure), subject.thing, *subject.inputs
        )
    return Outcome(found.document(), found.as_dict(), _status(found))


def _status(found: Diagnosis) -> int:
    if not found.well:
        return CLAIM_FAILED
    return UNSUPPORTED if found.model is not None and found.model.obstacles else OK
