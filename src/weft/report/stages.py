"""A program -> its text at one stage of compilation: graph, plan, LLVM or assembly."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.api.programs.loaded import LoadedProgram
from weft.api.programs.program import Program
from weft.codegen.objects.compiler import assembly, optimized_text
from weft.codegen.plan_module import emit_plan
from weft.errors import UnsupportedError, UsageError
from weft.ir.printer import print_graph
from weft.plan.form.plan import Plan
from weft.target import host_target


def stage_text(program: Program | LoadedProgram, stage: str) -> str:
    """Give the text of a stage: `graph`, `plan`, `llvm` (after optimisation) or `asm`."""
    write = STAGES.get(stage)
    if write is None:
        raise UsageError(f"there is no stage {stage!r}", why="the stages are " + ", ".join(STAGES))
    return write(program).rstrip("\n")


def _graph(program: Program | LoadedProgram) -> str:
    return str(program) if isinstance(program, Program) else print_graph(program.graph, short_places=True)


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
