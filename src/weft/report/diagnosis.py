"""This machine, and maybe a model -> what is well, what is not, and what to do about it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from weft.api.hybrid import checked, hybridize, program
from weft.api.steps.step import Step
from weft.compile.pipeline import compile_graph
from weft.config import config
from weft.counted import counted
from weft.document import Block, Document, Heading, Paragraph, Span, Table, facts
from weft.errors import MismatchError, UnsupportedError
from weft.ir.calls import Call
from weft.plan.schedule.machine_model import MachineModel
from weft.report.environment import bytes_text, environment, processor_facts
from weft.report.obstacles import obstacles
from weft.runtime.measure import machine_model, measure_machine
from weft.target import host_target


@dataclass(frozen=True, slots=True)
class Check:
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

    checks: tuple[Check, ...]
    machine: MachineModel
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
            "machine": asdict(self.machine),
            "model": model,
            "environment": environment().as_dict(),
        }

    def document(self) -> Document:
        """Give it to read."""
        rows = tuple((_mark(check.well), check.name, check.found) for check in self.checks)
        blocks: list[Block] = [Table((), rows)]
        if self.model is None:
            blocks += [Heading("this machine"), facts([*processor_facts(host_target()), *_rates(self.machine)])]
        else:
            blocks += _model_blocks(self.model)
        return Document(tuple(blocks))

    def __str__(self) -> str:
        return str(self.document())


def diagnose(thing: Callable[..., Any] | None = None, *inputs: Any, check: bool = False) -> Diagnosis:
    """Look at this installation and, if one is given, at a model with its inputs.

    To `check` a model is to call it by eager PyTorch too, and to compare all that both give and change. A step trains.
    """
    checks = tuple(look() for look in CHECKS)
    if check and thing is not None:
        checks = (*checks, _answers(thing, inputs))
    model = None if thing is None else _examine(thing, inputs)
    # What is measured is kept in the cache, so a cache that is not well is left alone.
    find = machine_model if all(found.well for found in checks) else measure_machine
    return Diagnosis(checks, find(host_target()), model)


def _versions() -> Check:
    found = environment()
    names = ("torch", "llvmlite", "numpy")
    listed = ", ".join(f"{name} {found.packages[name]}" for name in names)
    return Check("versions", True, f"weft {found.weft}, python {found.python.split()[0]}, {listed}")


def _compiler() -> Check:
    """Compile something small and compare: LLVM, loading and calling machine code all have to work for that."""
    given = torch.linspace(-2, 2, 37)
    with torch.no_grad():
        found = hybridize(lambda x: (x * 3 + 1).relu())(given)
    well = torch.equal(found, (given * 3 + 1).relu())
    return Check("compiler", well, "a program compiled here gives the right answer" if well else "a WRONG answer")


def _cache() -> Check:
    folder = config().cache_dir
    if folder is None:
        return Check("cache", True, "none: everything is compiled anew in each process")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Check("cache", False, f"cannot be written ({error.strerror}): set WEFT_CACHE_DIR to a folder of yours")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Check("cache", True, f"compiled code is kept on disk, {bytes_text(size)}")


def _threads() -> Check:
    cores, wanted = host_target().cores, config().threads
    if wanted > cores:
        return Check("cores", False, f"WEFT_THREADS is {wanted}, and this process may use {cores}: lower it")
    return Check("cores", True, f"{wanted or cores} of {cores}")


def _answers(thing: Callable[..., Any], inputs: tuple[Any, ...]) -> Check:
    """Call a model in both ways, twice without gradients and twice with them; the first call of each traces."""
    modes = (True, True) if isinstance(thing, Step) else (False, False, True, True)
    hybrid = checked(thing, len(modes))
    try:
        for mode in modes:
            with torch.set_grad_enabled(mode):
                hybrid(*inputs)
    except MismatchError as error:
        return Check("answers", False, str(error))
    except UnsupportedError:
        return Check("answers", True, "not compared: it does not run as a program")
    return Check("answers", True, f"{counted(len(modes), 'call')} gave and changed what eager PyTorch does")


CHECKS: tuple[Callable[[], Check], ...] = (_versions, _compiler, _cache, _threads)


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


def _mark(well: bool) -> Span:
    return Span("✓", "good") if well else Span("✗", "bad")
