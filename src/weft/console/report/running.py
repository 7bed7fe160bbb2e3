"""Run a saved program on files or random numbers, or a training run: `weft run`, `weft train`."""

from __future__ import annotations

import io
import re
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from weft.api.hybridize import hybridize
from weft.console.outcome import Outcome
from weft.console.report.stages import load
from weft.console.subject import call, is_model_file, load_subject
from weft.console.terminal import Progress
from weft.document.blocks import Code, Document, Heading, Paragraph, facts
from weft.errors import ExecutionError, UsageError, WeftError, counted
from weft.files import missing_file, open_regular, write_atomically
from weft.ir.types import NUMBER_KINDS, NumberType, TensorType
from weft.programs.file import LoadedProgram
from weft.programs.parts import ProgramParts
from weft.programs.structure import build
from weft.trace.interception.capture import tree_flatten
from weft.train.history import line_of
from weft.train.launch import train
from weft.train.processes.peers import PATIENCE
from weft.train.training_run import parsed_devices, parsed_values
from weft.underway import underway

NPY_START = b"\x93NUMPY"
SIZES = re.compile(r"\d+(,\d+)*(:\w+)?|scalar")  # what --input means for a target with source

CALLS = 5
MOST_ELEMENTS = 6


@dataclass(frozen=True, slots=True)
class RunResult:
    """The results of one call, as tensors in order, and the median time of a few more."""

    name: str
    arguments: tuple[str, ...]
    results: tuple[Any, ...]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Give it as data; of a result the type and some figures."""
        results = [{"type": describe(result), **_figures(result)} for result in self.results]
        return {"program": self.name, "arguments": list(self.arguments), "results": results, "seconds": self.seconds}

    def document(self) -> Document:
        """Give it to read."""
        rows = [(f"result {place}", describe(result)) for place, result in enumerate(self.results)]
        values = "\n".join(_beginning(result) for result in self.results)
        return Document(
            (
                Heading(f"{self.name}({', '.join(self.arguments)})"),
                facts(rows),
                Code(values),
                Paragraph(f"{self.seconds * 1e6:.1f} µs a call, the median of {CALLS}", "faint"),
            )
        )

    def __str__(self) -> str:
        return str(self.document())


def run_program(program: LoadedProgram, files: Sequence[str | Path] = ()) -> RunResult:
    """Call a saved program on arrays from .npy files, or on random numbers of the sizes it was made for."""
    torch.manual_seed(0)
    arguments, keywords = _arguments(program.parts, files)
    with torch.no_grad():
        try:
            found = program(*arguments, **keywords)
            underway(f"timing {program.graph.name}")
            times = [_timed(program, arguments, keywords) for _ in range(CALLS)]
        except WeftError:
            raise
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise ExecutionError(f"{program.graph.name} failed while it ran", why=str(error)) from error
    names = [*(name for name, _ in program.parts.arguments.positional), *keywords]
    shown = (f"{name}: {describe(value)}" for name, value in zip(names, [*arguments, *keywords.values()], strict=True))
    return RunResult(program.graph.name, tuple(shown), tuple(tree_flatten(found)[0]), median(times))


def run_model(target: str, inputs: Sequence[str] = ()) -> RunResult:
    """Call the network of a model file as a program, on arrays from .npy files or random numbers of given sizes."""
    files = [Path(text) for text in inputs if not SIZES.fullmatch(text)]
    if files and len(files) < len(inputs):
        raise UsageError("--input is given .npy files and sizes", fix="give one kind for all inputs")
    arrays = tuple(map(_read, files))
    subject = load_subject(target, ["scalar"] * len(arrays) if files else list(inputs))
    subject = replace(subject, inputs=arrays) if files else subject
    with torch.no_grad():
        call(subject)  # imperatively, so that an error of the inputs is the caller's to see
        network = hybridize(subject.thing)
        found = network(*subject.inputs)
        underway(f"timing {subject.name}")
        times = [_timed(network, subject.inputs, {}) for _ in range(CALLS)]
    shown = (f"{name}: {describe(value)}" for name, value in zip(subject.input_names, subject.inputs, strict=True))
    return RunResult(subject.name, tuple(shown), tuple(tree_flatten(found)[0]), median(times))


def save_results(ran: RunResult, path: Path) -> list[Path]:
    """Write results as .npy; several as NAME-0.npy, NAME-1.npy, ..."""
    arrays = [result for result in ran.results if isinstance(result, torch.Tensor)]
    alone = len(arrays) == 1
    paths = [path if alone else path.with_name(f"{path.stem}-{place}{path.suffix}") for place in range(len(arrays))]
    for each, array in zip(paths, arrays, strict=True):
        plain = array.float() if array.dtype is torch.bfloat16 else array
        content = io.BytesIO()
        np.save(content, plain.numpy(), allow_pickle=False)
        write_atomically(each, [content.getbuffer()])
    return paths


def describe(value: Any) -> str:
    """Say what a value is: the element type and sizes of a tensor, else the value."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
    return repr(value)


def _timed(program: Callable[..., Any], arguments: Sequence[Any], keywords: dict[str, Any]) -> float:
    start = time.perf_counter()
    program(*arguments, **keywords)
    return time.perf_counter() - start


def _arguments(parts: ProgramParts, files: Sequence[str | Path]) -> tuple[list[Any], dict[str, Any]]:
    """The call that the program was made for, with tensors from files or random ones in it."""
    owned = {entry.input for entry in parts.state}
    places = [place for place in range(len(parts.graph.inputs)) if place not in owned]
    if files and len(files) != len(places):
        names = ", ".join(parts.graph.inputs[place].name for place in places)
        raise UsageError(f"{counted(len(files), 'file')} as input; the program takes {len(places)} ({names})")
    values: list[Any] = [None] * len(parts.graph.inputs)
    for number, place in enumerate(places):
        kind = parts.graph.inputs[place].type
        values[place] = _read(Path(files[number])) if files else _random(kind)
    positional = [build(node, values) for _, node in parts.arguments.positional]
    return positional, {name: build(node, values) for name, node in parts.arguments.keywords}


def _random(kind: Any) -> Any:
    if isinstance(kind, NumberType):
        return NUMBER_KINDS[kind.kind](1)
    if not isinstance(kind, TensorType):
        raise UsageError(f"no random value can be made for {kind}")
    given = torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype, device=kind.device)
    return given.normal_() if kind.dtype.is_floating_point or kind.dtype.is_complex else given.random_(0, 2)


def _read(path: Path) -> torch.Tensor:
    """Read an array; pickles, which could run anything, are refused."""
    try:
        with open_regular(path) as file:
            if file.read(len(NPY_START)) != NPY_START:  # NumPy would take it for a pickle, and advise to run that
                raise ExecutionError(f"{path} cannot be read as an .npy file", why="it does not begin as one")
            file.seek(0)
            return torch.from_numpy(np.load(file, allow_pickle=False))
    except FileNotFoundError as error:
        if SIZES.fullmatch(str(path)):
            raise UsageError(
                f"a saved program takes .npy files, not the sizes {path}",
                why="its sizes are those that it was made for",
                fix="leave --input out: it runs on random numbers of its own sizes",
            ) from error
        raise missing_file(path, [".npy"]) from error
    except (ValueError, OSError, EOFError, TypeError) as error:
        raise ExecutionError(f"{path} cannot be read as an .npy file", why=str(error)) from error


def _figures(result: Any) -> dict[str, Any]:
    if not isinstance(result, torch.Tensor) or not result.numel() or result.dtype.is_complex:
        return {}
    plain = result.double()
    return {"least": plain.min().item(), "mean": plain.mean().item(), "greatest": plain.max().item()}


def _beginning(result: Any) -> str:
    if not isinstance(result, torch.Tensor):
        return repr(result)
    elements = result.flatten()[:MOST_ELEMENTS].tolist()
    shown = ", ".join(f"{element:.6g}" if isinstance(element, float) else str(element) for element in elements)
    return f"[{shown}{', ...' if result.numel() > MOST_ELEMENTS else ''}]"


def run_call(given: Namespace) -> str:
    """Give the Python call that does the same."""
    files = f", {given.input!r}" if given.input else ""
    runner, opened, needs = "run_program", f"weft.load_program({given.FILE!r})", "import weft\n"
    if is_model_file(given.FILE):
        runner, opened, needs = "run_model", repr(given.FILE), ""
    call = f"{runner}({opened}{files})"
    imports = f"from pathlib import Path\n\n{needs}from weft.console.report.running import {runner}, save_results\n"
    if given.output is None:
        return f"{needs}from weft.console.report.running import {runner}\n\nprint({call})"
    return f"{imports}\nran = {call}\nprint(ran)\nsave_results(ran, Path({given.output!r}))"


def run_run(given: Namespace, progress: Progress) -> Outcome:
    """Run a program, and keep its results where that is asked for."""
    ran = _ran(given, progress)
    document, data = ran.document(), ran.as_dict()
    if given.output is None:
        return Outcome(document, data)
    progress.stage(f"writing {given.output}")
    written = [str(path) for path in save_results(ran, Path(given.output))]
    document = Document((*document.blocks, Paragraph("written: " + ", ".join(written))))
    return Outcome(document, {**data, "written": written})


def _ran(given: Namespace, progress: Progress) -> RunResult:
    progress.stage(f"reading {given.FILE}")
    if is_model_file(given.FILE):
        return run_model(given.FILE, given.input)
    program = load(given.FILE)
    progress.stage(f"running {given.FILE}")
    return run_program(program, given.input)


def train_call(given: Namespace) -> str:
    """Give the Python call that does the same."""
    words = "".join(f", {name}={value!r}" for name, value in _order(given).items())
    return f"from weft.train.launch import train\n\nprint(train({given.TARGET!r}{words}))"


def train_run(given: Namespace, progress: Progress) -> Outcome:
    """Train, and show the history."""
    progress.end()  # training tells how it goes by itself
    history = train(given.TARGET, **_order(given))
    return Outcome(history.document(), {"history": list(history), "last": line_of(history[-1]) if history else None})


def _order(given: Namespace) -> dict[str, Any]:
    """What is not as usual."""
    found = {
        "devices": parsed_devices(given.devices),
        "epochs": given.epochs,
        "resume": given.resume,
        "checkpoints": given.checkpoints,
        "processes": given.processes,
        "patience": given.patience,
        "values": parsed_values([*given.set, *(["synthetic=true"] if given.synthetic else [])]),
    }
    usual = {"devices": "all", "epochs": 1, "processes": 1, "patience": PATIENCE, "values": {}}
    return {name: value for name, value in found.items() if value != usual.get(name)}
