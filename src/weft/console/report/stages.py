"""Load a program, show its stages as text, and export it: `weft show`, `weft export`."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from weft.api.export import export
from weft.api.hybridize import program
from weft.api.load_program import load_program
from weft.codegen.objects.compiler import assembly, optimized_text
from weft.codegen.plan_module import emit_plan
from weft.console.arguments import did_you_mean
from weft.console.outcome import Outcome
from weft.console.subject import call, load_subject
from weft.console.terminal import Progress
from weft.document.blocks import Document, Paragraph, facts
from weft.errors import ExecutionError, UnsupportedError, UsageError
from weft.files import FILE, FOLDER, what_is_there, write_atomically
from weft.plan.form.plan import Plan
from weft.programs.file import SUFFIX, ProgramFileError
from weft.programs.loaded import LoadedProgram
from weft.programs.program import Program
from weft.target import host_target

PICTURE, ENDING = "draw", ".svg"


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
        "import torch\nimport weft\nfrom weft.console.subject import load_subject\n\n"
        f"subject = load_subject({target!r}{given})\n"
        "with torch.set_grad_enabled(subject.trains):\n    program = weft.program(subject.thing, *subject.inputs)"
    )


def stage_text(program: Program | LoadedProgram, stage: str) -> str:
    """Give the text of a stage: `graph`, `plan`, `llvm` (after optimisation) or `asm`."""
    write = STAGES.get(stage)
    if write is None:
        raise UsageError(f"there is no stage {stage!r}", why="the stages are " + ", ".join(STAGES))
    return write(program).rstrip("\n")


def _graph(program: Program | LoadedProgram) -> str:
    return str(program)


def _plan(program: Program | LoadedProgram) -> str:
    return str(program.plan)


def _llvm(program: Program | LoadedProgram) -> str:
    target = host_target()
    texts = (optimized_text(emit_plan(plan, target).text, target) for plan in _needed(program))
    return "\n\n".join(f"; region {number}\n{text}" for number, text in enumerate(texts))


def _assembly(program: Program | LoadedProgram) -> str:
    target = host_target()
    texts = (assembly(emit_plan(plan, target).text, target) for plan in _needed(program))
    return "\n\n".join(f"# region {number}\n{text}" for number, text in enumerate(texts))


def _needed(program: Program | LoadedProgram) -> Sequence[Plan]:
    plans = program.plan.regions
    if not plans:
        raise UnsupportedError(
            f"{program.graph.name} has no machine code of Weft's own",
            why="everything in it runs by PyTorch's operators",
            fix="--stage plan shows which, in order",
        )
    return plans


STAGES: dict[str, Callable[[Program | LoadedProgram], str]] = {
    "graph": _graph,
    "plan": _plan,
    "llvm": _llvm,
    "asm": _assembly,
}


def show_call(given: Namespace) -> str:
    """Give the Python call that does the same."""
    loading = load_code(given.TARGET, given.input)
    if given.stage == PICTURE:
        return f"{loading}\nprogram.draw({given.output!r})"
    imports, text = "from weft.console.report.stages import stage_text\n", f"stage_text(program, {given.stage!r})"
    if given.output is None:
        return f"{imports}{loading}\nprint({text})"
    return (
        f"from pathlib import Path\n\n{imports}{loading}\n"
        f"Path({given.output!r}).write_text({text} + '\\n', encoding='utf-8')"
    )


def show_run(given: Namespace, progress: Progress) -> Outcome:
    """Show a stage, or write it to a file."""
    if given.stage == PICTURE and given.output is None:
        raise UsageError("a picture needs a file", fix="--output net.svg")
    if given.stage == PICTURE and Path(given.output).suffix != ENDING:
        raise UsageError(f"{given.output} does not end with {ENDING}", why="the picture is SVG", fix="--output net.svg")
    progress.stage(f"reading {given.TARGET}")
    program = program_of(given.TARGET, given.input)
    progress.stage(f"writing the stage {given.stage}")
    data = {"target": given.TARGET, "stage": given.stage, "graph": program.graph.name}
    if given.stage == PICTURE:
        program.draw(given.output)
        return Outcome(f"written: {given.output}", {**data, "written": given.output})
    text = stage_text(program, given.stage)
    if given.output is None:
        return Outcome(text, {**data, "text": text})
    write_atomically(Path(given.output), [text.encode("utf-8"), b"\n"])
    return Outcome(f"written: {given.output}", {**data, "written": given.output})


def export_call(given: Namespace) -> str:
    """Give the Python call that does the same."""
    return f"{load_code(given.TARGET, given.input)}\nprint(weft.export(program, {_folder(given)!r}))"


def export_run(given: Namespace, progress: Progress) -> Outcome:
    """Export a program."""
    folder = _folder(given)
    if what_is_there(Path(folder)) == FILE:
        raise UsageError(f"{folder} is a file", why="export writes a folder", fix="--to another name")
    progress.stage(f"reading {given.TARGET}")
    found = export(program_of(given.TARGET, given.input), folder)
    test = f"make -C {shlex.quote(folder)} test"
    verdict = (
        "compiled, called from C, and equal bit by bit"
        if found.checked
        else f"no C compiler is here: {test} links and compares it"
    )
    rows = facts([("folder", str(found.folder)), ("files", ", ".join(found.files)), ("checked", verdict)])
    data = {"folder": str(found.folder), "files": list(found.files), "checked": found.checked}
    return Outcome(Document((rows, Paragraph(f"try: {test}"))), data)


def _folder(given: Namespace) -> str:
    if given.to is None:
        raise UsageError("weft export needs a folder", fix="--to net")
    folder: str = given.to
    return folder
