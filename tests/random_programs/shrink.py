"""A failing program -> a smaller one that still fails."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.random_programs.generator import PYTHON_ARGUMENTS, RandomProgram, accepted


def shrink(program: RandomProgram, fails: Callable[[RandomProgram], bool]) -> RandomProgram:
    """Delete statements, inputs and results as long as the program still fails."""
    progress = True
    while progress:
        progress = False
        for smaller in simpler(program):
            if accepted(smaller) and fails(smaller):
                program, progress = smaller, True
                break
    return program


def simpler(program: RandomProgram) -> Iterator[RandomProgram]:
    """Give every program that is one deletion away, the largest deletions first."""
    count = len(program.steps)
    size = count
    while size >= 1:
        for start in range(0, count, size):
            yield replace(program, steps=program.steps[:start] + program.steps[start + size :])
        size //= 2
    names = [name for name, _ in program.inputs]
    defined = [*names, *(step.split(" = ")[0] for step in program.steps if step.split(" = ")[0].isidentifier())]
    for result in ("None", *defined):
        if len(result) < len(program.result):
            yield replace(program, result=result)
    for place in range(1, len(names)):
        yield replace(program, inputs=program.inputs[:place] + program.inputs[place + 1 :])


def reproduction(program: RandomProgram) -> str:
    """Give a script that shows the failure."""
    inputs = "\n".join(f"{name} = {text}" for name, text in program.inputs)
    names = ", ".join(name for name, _ in program.inputs)
    calls = "\n".join(
        f"print(program({names}, **{values!r}), hybrid({names}, **{values!r}))" for values in PYTHON_ARGUMENTS
    )
    return (
        "import torch, weft\nimport torch.nn.functional as F\n\n"
        f"{program.source}\n"
        f"torch.manual_seed({program.seed})\n{inputs}\n"
        f"hybrid = weft.hybridize(program)\n# each call on fresh inputs\n{calls}\n"
    )
