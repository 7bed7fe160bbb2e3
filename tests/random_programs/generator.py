"""A seed -> a random imperative program that eager PyTorch accepts."""

import linecache
import random
import textwrap
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  as every program of its users names it
from tests.random_programs.steps import KINDS, STATEMENTS

PYTHON_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"n": 2, "scale": 0.5, "flag": True, "mode": "sum"},
    {"n": 3, "scale": 1.25, "flag": False, "mode": "cos"},
)
"""The Python values of the first calls and of a later one, which must not meet the first program's branches."""

FIRST_INPUTS = (
    "torch.randn(3, 4)",
    "torch.randn(4)",
    "torch.randn(4, 3).t()",
    "torch.randn(2, 3, 4)",
    "torch.randn(3, 8)[:, ::2]",
    "torch.randn(3, 4, dtype=torch.float64)",
    "torch.randn(3, 4).to(torch.bfloat16)",
    "torch.randn(3, 4).half()",
    "torch.randint(-5, 5, (3, 4))",
    "torch.randint(0, 3, (4,), dtype=torch.int32)",
    "torch.randn(3, 4) > 0",
    "torch.randn(3, 4, dtype=torch.complex64)",
    "torch.tensor(1.5)",
    "torch.tensor(3)",
    "torch.randn(0, 4)",
    "torch.randn(1, 4)",
    "torch.randn(4, 4)",
    "torch.tensor([0.0, -0.0, float('nan'), float('inf')])",
)
LATER_INPUTS = ("{a}", "{a}[:1]", "{a}.t()", "{a}.view(-1)", "{a}.flatten()[1:]")
"""Inputs that alias earlier ones."""

NAMES = ("x", "y", "z", "w")


@dataclass(frozen=True)
class RandomProgram:
    """A program as text: inputs, statements and what it returns."""

    seed: int
    inputs: tuple[tuple[str, str], ...]
    steps: tuple[str, ...]
    result: str

    @property
    def source(self) -> str:
        """Give the program as a Python function."""
        names = ", ".join(name for name, _ in self.inputs)
        body = textwrap.indent("\n".join((*self.steps, f"return {self.result}")), "    ")
        return f"def program({names}, *, n, scale, flag, mode):\n{body}\n"

    def function(self) -> Callable[..., Any]:
        """Compile the program; its lines are known to tracebacks."""
        filename = f"<random program {self.seed}: {zlib.crc32(self.source.encode()):x}>"
        linecache.cache[filename] = (len(self.source), None, self.source.splitlines(keepends=True), filename)
        namespace: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(self.source, filename, "exec"), namespace)
        return namespace["program"]  # type: ignore[no-any-return]

    def arguments(self) -> tuple[torch.Tensor, ...]:
        """Make the program's inputs, the same ones every time."""
        torch.manual_seed(self.seed)
        namespace: dict[str, Any] = {"torch": torch}
        for name, text in self.inputs:
            namespace[name] = eval(text, namespace)
        return tuple(namespace[name] for name, _ in self.inputs)


def random_program(seed: int) -> RandomProgram:
    """Generate the program of a seed: two to fourteen statements that eager runs with both sets of Python values."""
    choose = random.Random(seed)
    while True:
        program = _attempt(seed, choose)
        if program is not None and accepted(program):
            return program


def accepted(program: RandomProgram) -> bool:
    """Say whether eager runs the program to its end with every set of Python values, and no input changes its form.

    Changing the sizes or strides of an argument is the one thing of imperative PyTorch that a program refuses.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return all(_keeps_forms(program, values) for values in PYTHON_ARGUMENTS)
    except Exception:  # noqa: BLE001  whatever eager refuses is not a program
        return False


def _keeps_forms(program: RandomProgram, values: dict[str, Any]) -> bool:
    arguments = program.arguments()
    before = [(tensor.shape, tensor.stride()) for tensor in arguments]
    program.function()(*arguments, **values)
    return before == [(tensor.shape, tensor.stride()) for tensor in arguments]


def _attempt(seed: int, choose: random.Random) -> RandomProgram | None:
    """Draw one program statement by statement, each tried at once on real tensors."""
    inputs = _draw_inputs(choose)
    program = RandomProgram(seed, inputs, (), "None")
    try:
        worlds = [
            {"torch": torch, "F": F, **values, **dict(zip(dict(inputs), program.arguments(), strict=True))}
            for values in PYTHON_ARGUMENTS
        ]
    except (RuntimeError, IndexError):
        return None
    steps: list[str] = []
    wanted = choose.randint(2, 14)
    for attempt in range(wanted * 6):
        if len(steps) == wanted:
            break
        step = _draw_step(choose, worlds[0], f"t{attempt}")
        if _runs(step, worlds):
            steps.append(step)
    return RandomProgram(seed, inputs, tuple(steps), _draw_result(choose, worlds[0]))


def _draw_inputs(choose: random.Random) -> tuple[tuple[str, str], ...]:
    inputs = [(NAMES[0], choose.choice(FIRST_INPUTS))]
    for name in NAMES[1 : choose.randint(1, len(NAMES))]:
        aliased = choose.random() < 0.25
        text = choose.choice(LATER_INPUTS).format(a=inputs[0][0]) if aliased else choose.choice(FIRST_INPUTS)
        inputs.append((name, text))
    return tuple(inputs)


def _draw_step(choose: random.Random, world: dict[str, Any], new: str) -> str:
    kind = choose.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
    form = choose.choice(KINDS[kind][1])
    names = tensor_names(world)
    text = form.format(new=new, a=choose.choice(names), b=choose.choice(names))
    return text if kind in STATEMENTS else f"{new} = {text}"


def _runs(step: str, worlds: list[dict[str, Any]]) -> bool:
    """Run a statement in every world; where one refuses it, the names it made are forgotten again."""
    before = [dict(world) for world in worlds]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for world in worlds:
                exec(step, world)
                _bounded(world)
    except Exception:  # noqa: BLE001  whatever eager refuses is not drawn
        for world, old in zip(worlds, before, strict=True):
            world.clear()
            world.update(old)
        return False
    return True


def _bounded(world: dict[str, Any]) -> None:
    if any(world[name].numel() > 4096 for name in tensor_names(world)):
        raise ValueError("too large")


def _draw_result(choose: random.Random, world: dict[str, Any]) -> str:
    names = tensor_names(world)
    latest = names[-1]
    one, two, three = (choose.choice(names) for _ in range(3))
    return choose.choice(
        (
            latest,
            f"{latest}, {one}",
            f"[{latest}, {one}, {two}]",
            f"{{'first': {latest}, 'rest': [{one}, ({two}, {three})]}}",
            f"({latest}, n, None, mode)",
            f"{{'same': ({one}, {one}), 'view': {latest}[None]}}",
            f"{latest}.sum(), {{'n': n}}",
        )
    )


def tensor_names(world: dict[str, Any]) -> list[str]:
    """List the names of a program's tensors, in the order they were made."""
    return [name for name, value in world.items() if isinstance(value, torch.Tensor)]
