"""A word for a program, `file.py:name` or a `.weft` file -> the program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from weft.api.hybrid import program
from weft.api.programs.container import SUFFIX
from weft.api.programs.file import LoadedProgram, ProgramFileError, load_program
from weft.api.programs.program import Program
from weft.bench.subject import call, load_subject
from weft.cli.suggestion import did_you_mean
from weft.errors import ExecutionError, UsageError
from weft.regular_file import FILE, FOLDER, what_is_there


def program_of(target: str, sizes: Sequence[str]) -> Program | LoadedProgram:
    """Load a saved program, or trace the one that a module or function runs on such inputs."""
    if target.endswith(SUFFIX):
        if sizes:
            raise UsageError(f"{target} is a saved program: it has its sizes", fix="leave --input out")
        return load(target)
    subject = load_subject(target, sizes)
    with torch.set_grad_enabled(subject.trains):
        call(subject)
        found: Program = subject.caller(program, subject.thing, *subject.inputs)
        return found


def load(target: str) -> LoadedProgram:
    """Load a saved program; that a file is damaged is nobody's misuse, so it is an ExecutionError."""
    path = Path(target)
    if what_is_there(path) != FILE:
        near = [str(each) for each in path.parent.glob(f"*{SUFFIX}")] if what_is_there(path.parent) == FOLDER else []
        guess = did_you_mean(target, near)
        fix = guess or f"weft.program(net, x).save({Path(target).stem + SUFFIX!r}) writes one"
        raise UsageError(f"there is no saved program {target}", fix=fix)
    try:
        return load_program(path)
    except ProgramFileError as error:
        raise ExecutionError(error.fact, where=error.where, why=error.why, fix=error.fix) from error


def load_code(target: str, sizes: Sequence[str]) -> str:
    """Give the Python that loads the program."""
    if target.endswith(SUFFIX):
        return f"import weft\n\nprogram = weft.load_program({target!r})"
    given = f", {list(sizes)!r}" if sizes else ""
    return (
        "import torch\nimport weft\nfrom weft.bench.subject import load_subject\n\n"
        f"subject = load_subject({target!r}{given})\n"
        "with torch.set_grad_enabled(subject.trains):\n    program = weft.program(subject.thing, *subject.inputs)"
    )
