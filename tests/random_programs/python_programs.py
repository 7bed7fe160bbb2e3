"""A seed -> a random Python program around random operators, as text, and smaller ones that are still programs."""

from __future__ import annotations

import itertools
import linecache
import random
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.random_programs.python_pieces import Piece, pieces
from tests.ways import Work

DEEPEST = 2
CALLS = 4
COUNTER = itertools.count()

EXPRESSIONS = (
    "torch.tanh(h)",
    "h * 0.5 + 1",
    "F.relu(h) - 0.1",
    "h - h.mean()",
    "torch.cat([h[:1], h[1:]])",
    "F.softmax(h, -1)",
    "h.sort(-1).values",
    "h.cumsum(0)",
    "h @ torch.eye(4)",
    "F.layer_norm(h, (4,))",
    "torch.where(h > 0, h, -h)",
    "h.t().contiguous().t()",
    "h.flip(0)",
    "torch.stack([h, h * 2]).mean(0)",
    "h.clamp(-1, 1)",
    "h.clone().add_(1)",
    "(h.abs() + 1).sqrt()",
    "torch.sigmoid(h * 2)",
    "h.double().exp().clamp(max=5).float()",
    "F.gelu(h)",
    "h + h.amax(1, keepdim=True)",
    "torch.addmm(h, h, torch.ones(4, 4), alpha=0.1)",
    "h.reshape(-1).view(h.shape)",
    "torch.einsum('ij,kj->ik', h, torch.eye(4))",
    "h.roll(1, 1)",
    "F.pad(h, (1, 1))[:, 1:-1] * 1.5",
    "h / (h.norm() + 1)",
    "torch.lerp(h, torch.zeros_like(h), 0.25)",
    "h.masked_fill(h > 1, 1.0)",
    "h.t().matmul(h).sum(0) * 0.05 + h",
)
STARTS = ("x * 1.0", "x", "torch.tanh(x)", "x + y", "x.clone()")
ENDS = ("h, out", "{'h': h, 'out': out}", "Result(h, out)", "[h, *out]", "h")
VALUES = {  # of each call
    "scale": ("0.5", "0.5, 0.5, 2.0, 0.5", "0.1, 0.2, 0.3, 0.4", "1, 1.0, True, 2"),
    "k": ("2", "2, 2, 3, 2", "1, 2, 3, 4", "2, 2, 5, 3"),
    "flag": ("True", "True, True, False, True", "False, True, False, True", "None, 1, 0, True"),
    "mode": ("'a'", "'a', 'a', 'b', 'a'", "'b', 'c', 'a', 'a'"),
    "rows": ("2", "2, 2, 3, 2", "2, 1, 2, 5", "3"),
    "x": (
        "torch.randn(rows, 4)",
        "torch.randn(rows, 4)",
        "torch.randn(rows, 4, requires_grad=True)",
        "nn.Parameter(torch.randn(rows, 4))",
        "torch.randn(4, rows).t()",
    ),
    "y": (
        "torch.randn(rows, 4)",
        "torch.randn(rows, 4)",
        "x",
        "x if number < 2 else torch.randn(rows, 4)",
        "torch.randn(rows, 1, 4)[:, 0]",
    ),
}
HEAD = """\
from tests.random_programs.prelude import *

torch.manual_seed({seed})
Result = collections.namedtuple("Result", "h out")
"""


@dataclass(frozen=True)
class Chosen:
    """A piece in a program, with the number and expressions that fill its holes, and pieces inside."""

    piece: Piece
    number: int
    expressions: tuple[str, ...]
    blocks: tuple[tuple[Chosen, ...], ...]
    shared: bool

    def filled(self, part: str, owner: str) -> str:
        """Give one of its texts without holes."""
        expressions = iter(self.expressions)
        text = self.piece.text(part).replace("$self", owner)
        text = re.sub(r"\$e\b", lambda _: next(expressions), text)
        lines: list[str] = []
        blocks = iter(self.blocks)
        for line in text.replace("$n", str(self.number)).splitlines():
            if line.strip() == "$block":
                indent = line[: len(line) - len(line.lstrip())]
                lines.append(textwrap.indent(body_of(next(blocks), owner) or "pass", indent))
            else:
                lines.append(line)
        return "\n".join(lines)

    def all(self) -> Iterator[Chosen]:
        """Give itself and all pieces inside."""
        yield self
        for block in self.blocks:
            for chosen in block:
                yield from chosen.all()


@dataclass(frozen=True)
class PythonProgram:
    """A random program: a function or a module's forward, made of pieces, and what its calls are given."""

    seed: int
    chosen: tuple[Chosen, ...]
    values: dict[str, str] = field(default_factory=dict)
    is_module: bool = True
    backward: bool = False
    start: str = STARTS[0]
    end: str = ENDS[0]
    calls: int = CALLS

    @property
    def source(self) -> str:
        """Give the program as the text of a Python module with a function `work`."""
        every = [one for top in self.chosen for one in top.all()]
        owner = "self" if self.is_module else "owner"
        given = [(parameter, value, one) for one in every for parameter, value in _given(one)]
        parameters = ", ".join(["x", "y", "scale", "k", "flag", "mode", *(name for name, _, _ in given)])
        body = f"h = {self.start}\nout = []\n{body_of(self.chosen, owner)}\nreturn {self.end}"
        inits = "\n".join(one.filled("init", "self") for one in every if one.piece.text("init"))
        base = "nn.Module" if self.is_module else "object"
        init = f"super().__init__()\n{inits}"
        parts = [HEAD.format(seed=self.seed), *(one.filled("top", owner) for one in every if one.piece.text("top"))]
        parts.append(f"class Owner({base}):\n{_indented(f'def __init__(self):{_nested(init)}')}")
        if self.is_module:
            parts[-1] += f"\n\n{_indented(f'def forward(self, {parameters}):{_nested(body)}')}"
            parts.append("owner = Owner()\nprogram = owner")
        else:
            parts.append("owner = Owner()")
            parts.append(f"def program({parameters}):{_nested(body)}")
        parts.append(self._before(every, owner))
        parts.append(self._work(given, every))
        return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"

    def _before(self, every: Sequence[Chosen], owner: str) -> str:
        text = "\n".join(one.filled("before", owner) for one in every if one.piece.text("before")) or "pass"
        names = sorted(set(re.findall(r"^\s*(\w+) = ", text, flags=re.MULTILINE)))
        declared = f"global {', '.join(names)}\n" if names else ""
        return f"def before(number):{_nested(declared + text)}"

    def _work(self, given: Sequence[tuple[str, str, Chosen]], every: Sequence[Chosen]) -> str:
        shared = "\n".join(f"{name} = {value}" for name, value, one in given if one.shared and "number" not in value)
        fresh = "\n".join(f"{name} = {value}" for name, value, one in given if not one.shared or "number" in value)
        arguments = ", ".join(["x", "y", "scale", "k", "flag", "mode", *(name for name, _, _ in given)])
        rows = [_values(self.values["rows"])]
        numbers = "".join(f"{name} = {_values(self.values[name])}[number]\n" for name in ("scale", "k", "flag", "mode"))
        one_call = (
            f"rows = {rows[0]}[number]\n{numbers}x = {self.values['x']}\ny = {self.values['y']}\n{fresh}\n"
            f"calls.append((({arguments}), {{}}))"
        )
        contexts = [one.filled("around", "owner") for one in every if one.piece.text("around")]
        around = (
            "stack = ExitStack()\n" + "".join(f"stack.enter_context({text})\n" for text in contexts) + "return stack"
        )
        body = (
            f"torch.manual_seed({self.seed + 1})\ncalls = []\n{shared}\nfor number in range({self.calls}):"
            f"{_nested(one_call)}\n"
            f"return Work(program, calls, around=around, backward={self.backward}, before=before)"
        )
        return f"def around():{_nested(around)}\n\n\ndef work():{_nested(body)}"

    def make(self) -> Callable[[], Work]:
        """Give what makes the program anew each time, in a module of its own, so that errors have lines."""
        source = self.source

        def work() -> Work:
            name = f"program_{self.seed}_{next(COUNTER)}"
            filename = f"<{name}>"
            linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
            module = types.ModuleType(name)
            sys.modules[name] = module  # where dataclasses look for it
            try:
                exec(compile(source, filename, "exec"), module.__dict__)
            finally:
                del sys.modules[name]
            found: Work = module.__dict__["work"]()
            return replace(found, watched=module)

        return work


def _given(one: Chosen) -> list[tuple[str, str]]:
    return [
        (name.replace("$n", str(one.number)), value.replace("$n", str(one.number))) for name, value in one.piece.given
    ]


def _values(text: str) -> str:
    return f"({text})" if "," in text else f"({', '.join([text] * CALLS)})"


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ")


def _nested(text: str) -> str:
    return "\n" + _indented(text)


def body_of(block: Sequence[Chosen], owner: str) -> str:
    """Give the statements of some pieces."""
    return "\n".join(one.filled("body", owner) for one in block)


def python_program(seed: int) -> PythonProgram:
    """Make the random program of a seed."""
    draw = random.Random(f"python {seed}")
    numbers = itertools.count(1)
    chosen = tuple(_chosen(draw, numbers, 0) for _ in range(draw.randint(2, 4)))
    return PythonProgram(
        seed,
        chosen,
        {name: draw.choice(texts) for name, texts in VALUES.items()},
        is_module=draw.random() < 0.5,
        backward=draw.random() < 0.4,
        start=draw.choice(STARTS),
        end=draw.choice(ENDS),
    )


def _chosen(draw: random.Random, numbers: Iterator[int], depth: int) -> Chosen:
    every = [piece for piece in pieces().values() if depth < DEEPEST or not piece.blocks]
    piece = draw.choices(every, [one.weight for one in every])[0]
    number = next(numbers)
    expressions = tuple(draw.choice(EXPRESSIONS) for _ in range(piece.text("body").count("$e")))
    blocks = tuple(
        tuple(_chosen(draw, numbers, depth + 1) for _ in range(draw.randint(1, 2))) for _ in range(piece.blocks)
    )
    shared = "shared" in piece.flags or ("fresh" not in piece.flags and draw.random() < 0.7)
    return Chosen(piece, number, expressions, blocks, shared)


def of_piece(name: str, seed: int = 0) -> PythonProgram:
    """Make a program of one piece alone."""
    draw = random.Random(f"{name} {seed}")
    piece = pieces()[name]
    expressions = tuple(draw.choice(EXPRESSIONS) for _ in range(piece.text("body").count("$e")))
    shared = "fresh" not in piece.flags
    one = Chosen(piece, 1, expressions, ((),) * piece.blocks, shared)
    values = {name: texts[1] for name, texts in VALUES.items()}
    return PythonProgram(seed, (one,), values, is_module=bool(seed % 2))


def shrink(program: PythonProgram, fails: Callable[[PythonProgram], bool]) -> PythonProgram:
    """Delete and simplify as long as the program still fails."""
    progress = True
    while progress:
        progress = False
        for smaller in simpler(program):
            if fails(smaller):
                program, progress = smaller, True
                break
    return program


def simpler(program: PythonProgram) -> Iterator[PythonProgram]:
    """Give every program that is one step simpler."""
    for block in _without_one(program.chosen):
        yield replace(program, chosen=block)
    if program.calls > 1:
        yield replace(program, calls=program.calls - 1)
    for name, texts in VALUES.items():
        if program.values[name] != texts[0]:
            yield replace(program, values={**program.values, name: texts[0]})
    for name, plain in (("start", STARTS[0]), ("end", ENDS[0]), ("backward", False), ("is_module", False)):
        if getattr(program, name) != plain:
            yield replace(program, **{name: plain})
    for place, one in enumerate(program.chosen):
        for index, expression in enumerate(one.expressions):
            if expression != "(h * 2)":
                expressions = (*one.expressions[:index], "(h * 2)", *one.expressions[index + 1 :])
                other = replace(one, expressions=expressions)
                yield replace(program, chosen=(*program.chosen[:place], other, *program.chosen[place + 1 :]))


def _without_one(block: tuple[Chosen, ...]) -> Iterator[tuple[Chosen, ...]]:
    for place, one in enumerate(block):
        before, after = block[:place], block[place + 1 :]
        yield (*before, *after)
        for inside in one.blocks:
            if inside:
                yield (*before, *inside, *after)
        for index, inside in enumerate(one.blocks):
            for smaller in _without_one(inside):
                yield (*before, replace(one, blocks=(*one.blocks[:index], smaller, *one.blocks[index + 1 :])), *after)
