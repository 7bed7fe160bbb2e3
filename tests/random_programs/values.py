"""A seed -> a random program that looks at values: branches, loops, sizes and numbers that tensors decide.

Elements are multiples of powers of two, and few and small enough for every sum and product to be exact: whatever order
machine code computes in, it has eager's bits, and decides as eager does.
"""

import linecache
import random
import textwrap
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

ROWS, COLUMNS = 4, 6
LONGEST, DEEPEST = 5, 3
TENSORS = (
    "{a} + {b}", "{a} - {b}", "({a} * {b}).round().clamp(-8, 8)",
    "({a} * 0.5).clamp(-8, 8)", "torch.relu({a})", "{a}.abs()",
    "torch.maximum({a}, {b})", "torch.minimum({a}, 2 - {b})", "torch.where({a} > {b}, {a}, -{b})", "{a}.clone()",
    "{a}.sort(-1).values", "{a}.flip(0)", "{a} - {b}.amax(0)", "{a} + {b}.amin(1, keepdim=True)", "{a}.round() % 3",
    "torch.cat([{a}[2:], {b}[:2]])", "{a}.roll(1, 0)",
    "({a} > {b}) * 1.0", "{a}.cummax(0).values", "{a}.t().reshape(4, 6)",
    "{a}[{a}[:, 0].argsort()]", "{a}.masked_fill({b} > 1, 0.5)", "{a} + {b}[:, :1]", "{a}.clamp(-2, 2)",
)  # fmt: skip
FROM_FOUND = (
    "{a} + {b}[{b} > 0].sum().clamp(-8, 8)", "{a} + {b}[{b}[:, 0] > 0].sum(0).clamp(-8, 8)",
    "{a}.index_add(0, torch.where({b}[:, 1] > 0)[0], {b}[{b}[:, 1] > 0])",
    "{a} - {b}.unique().numel() * 0.25", "{a} + {b}.nonzero().sum() % 4",
    "{a} + torch.masked_select({b}, {b} < 1).amin()",
)  # fmt: skip
FROM_NUMBERS = (
    "{a} + {n}", "{a} * ({n} % 3)",
    "{a} - min({n}, 2)", "{a} + {b}[: {n} % 4 + 1].sum(0)", "{a}.clamp(-8, abs({n}) % 7 + 1)",
    "{a} + {b}[{n} % 4]", "{a} if {n} > 1 else {b}",
    "{a}.roll({n} % 6, 1)", "{a} + torch.arange({n} % 6 + 1).sum() % 3",
    "torch.cat([{a}[: {n} % 4], {b}[{n} % 4 :]])", "{a}.narrow(0, 0, {n} % 4 + 1).sum(0) + {b}",
)  # fmt: skip
NUMBERS = (
    "int({a}.sum())", "({a} > {b}).sum().item()",
    "int({a}[0, 0])", "{a}.argmax().item()", "int({a}.amax() - {a}.amin())",
    "({a}[0].round().long()).tolist()[2]", "len({a}[{a} > 1])", "int({a}.abs().sum() // 3)", "float({a}[1, 1])",
)  # fmt: skip
CONDITIONS = (
    "{a}.sum() > {b}.sum()", "({a} > 3).any()",
    "bool(({a} == {b}).all())", "{a}[0, 0] > {b}[1, 1]", "{a}.amax().item() > 2",
    "torch.equal({a}[0], {b}[0])", "not ({a} > -4).all()", "-3 < {a}.sum() < 9", "{a}[0].abs().sum() % 2 == 0",
    "({a}[0, :2] > 0).tolist()[1]", "{a}.mean() > 0.5 or {b}.mean() > 0.5",
)  # fmt: skip
OF_NUMBERS = ("{n} > 2", "{n} % 2 == 0", "{n} == 1", "0 <= {n} < 5", "{n} // 2 != 1")
WRITES = (
    "{a}.add_({b})", "{a}[0] = {b}[1]", "{a}[{b} > 0] = 1.5",
    "{a}[:, 1:3].mul_(0.5)", "{a}.clamp_(-4, 4)", "{a}.t()[2].sub_(1)",
    "{a}[1:].copy_({b}[:3])", "{a}.view(-1)[5] = 2",
    "{a} += {b}.sum(0).clamp(-2, 2)", "{a}.zero_()", "{a}[{b}[:, 0].argmax()] = -1",
)  # fmt: skip
RAISES = ('raise ValueError("as eager")', "{a} = {a} @ {b}", "{a} = {a}[9]", "assert {a}.numel() < 3, 'small'")
Statement = str | tuple[str, tuple["Statement", ...]]  # a line, or the head of a block and what is in it


@dataclass(frozen=True)
class ValuesProgram:
    """A program as text, and the seed of what it is called with."""

    seed: int
    body: tuple[Statement, ...]
    result: str

    @property
    def source(self) -> str:
        """Give the program as a Python function."""
        lines = "\n".join((*_lines(self.body), f"return {self.result}"))
        return f"def program(x, y):\n{textwrap.indent(lines, '    ')}\n"

    def function(self) -> Callable[..., Any]:
        """Compile the program; its lines are known to tracebacks."""
        filename = f"<values program {self.seed}: {zlib.crc32(self.source.encode()):x}>"
        linecache.cache[filename] = (len(self.source), None, self.source.splitlines(keepends=True), filename)
        namespace: dict[str, Any] = {"torch": torch}
        exec(compile(self.source, filename, "exec"), namespace)
        return namespace["program"]  # type: ignore[no-any-return]

    def arguments(self, call: int) -> tuple[torch.Tensor, ...]:
        """Make what a call of this number is given."""
        generator = torch.Generator().manual_seed(1000 * self.seed + call)
        return tuple(torch.randint(-8, 9, (ROWS, COLUMNS), generator=generator) / 2 for _ in range(2))


def _lines(body: Sequence[Statement]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, str):
            yield statement
            continue
        yield statement[0]
        yield from (f"    {line}" for line in _lines(statement[1]) or ())
        if not statement[1]:
            yield "    pass"


class _Draw:
    """A program while it is drawn."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.tensors = ["x", "y"]
        self.numbers: list[str] = []
        self.own = ["t0"]  # may be written without a change of arguments
        self.count = 0
        self.writes_arguments = self.choose.random() < 0.25

    def fill(self, text: str) -> str:
        names = {"a": self.choose.choice(self.tensors[-4:]), "b": self.choose.choice(self.tensors)}
        return text.format(**names, n=self.choose.choice(self.numbers or ["1"]))

    def condition(self) -> str:
        of_numbers = self.numbers and self.choose.random() < 0.3
        return self.fill(self.choose.choice(OF_NUMBERS if of_numbers else CONDITIONS))

    def write(self) -> str:
        written = self.choose.choice(["x", "y"] if self.writes_arguments and self.choose.random() < 0.5 else self.own)
        return self.choose.choice(WRITES).format(a=written, b=self.choose.choice(self.tensors))

    def expression(self) -> str:
        drawn = self.choose.random()
        rows = FROM_FOUND if drawn < 0.12 else FROM_NUMBERS if self.numbers and drawn < 0.4 else TENSORS
        return self.fill(self.choose.choice(rows))

    def block(self, depth: int) -> tuple[Statement, ...]:
        found: list[Statement] = []
        for _ in range(self.choose.randint(1, LONGEST)):
            found += self.statement(depth)
        return tuple(found)

    def inner(self, depth: int) -> tuple[Statement, ...]:
        """A block whose names are not known behind it, as it may not run; known names may have changed."""
        before = list(self.tensors), list(self.numbers), list(self.own)
        found = self.block(depth + 1)
        changed = self.choose.choice(self.own)
        self.tensors, self.numbers, self.own = before
        return found if changed not in self.own else (*found, f"{changed} = {self.expression()}")

    def statement(self, depth: int) -> list[Statement]:
        drawn = self.choose.random()
        if depth < DEEPEST and drawn < 0.17:
            condition = self.condition()
            branches: list[Statement] = [(f"if {condition}:", self.inner(depth))]
            if self.choose.random() < 0.6:
                branches.append(("else:", self.inner(depth)))
            return branches
        if depth < DEEPEST and drawn < 0.25:
            return self.loop(depth)
        if drawn < 0.33:
            self.count += 1
            text = self.fill(self.choose.choice(NUMBERS))
            self.numbers.append(f"n{self.count}")
            return [f"n{self.count} = {text}"]
        if drawn < 0.48:
            return [self.write()]
        if drawn < 0.51:
            text = self.choose.choice(RAISES).format(a=self.choose.choice(self.own), b=self.choose.choice(self.tensors))
            raising: Statement = (f"if {self.condition()}:", (text,))
            if self.choose.random() < 0.5:
                return [raising]
            return [("try:", (raising,)), ("except (ValueError, RuntimeError):", (self.write(),))]
        if drawn < 0.55:
            view = self.choose.choice(("{a}[:]", "{a}.view(4, 6)", "{a}.t().t()", "{a}.detach()"))
            text = view.format(a=self.choose.choice(self.own))
        elif drawn < 0.58:
            return [f"if {self.condition()}:", (f"    return {self.choose.choice(self.tensors)} + 1")]
        else:
            text = self.expression()
        self.count += 1
        name = self.choose.choice(self.own) if self.choose.random() < 0.3 else f"t{self.count}"
        if name not in self.tensors:
            self.tensors.append(name)
            self.own.append(name)
        return [f"{name} = {text}"]

    def loop(self, depth: int) -> list[Statement]:
        rounds, name = self.choose.randint(2, 6), self.choose.choice(self.own)
        change = f"{name} = {name}.clamp(-8, 8) - 1"
        if self.choose.random() < 0.5:
            self.count += 1
            counter = f"k{self.count}"
            body = (f"{counter} += 1", change, *self.inner(depth))
            head = f"while {counter} < {rounds} and {name}.sum() > -40:"
            return [f"{counter} = 0", (head, body), f"{name} = {name} + {counter}"]
        last: Statement = (f"if {self.condition()}:", (self.choose.choice(("break", "continue")),))
        return [(f"for _ in range({rounds}):", (change, last, *self.inner(depth)))]


def values_program(seed: int) -> ValuesProgram:
    """Generate the program of a seed, one that is not the same for all values."""
    draw = _Draw(seed)
    body: list[Statement] = ["t0 = x * 1"]
    draw.tensors.append("t0")
    while len(body) < 6:
        body += draw.statement(0)
    body += [f"if {draw.condition()}:", f"    t0 = {draw.expression()}"]
    results = [draw.tensors[-1], "t0", *draw.numbers[-1:]]
    return ValuesProgram(seed, tuple(body), f"({', '.join(results)},)")


def shrunk(program: ValuesProgram, fails: Callable[[ValuesProgram], bool]) -> ValuesProgram:
    """Delete statements as long as the program still fails."""
    progress = True
    while progress:
        progress = False
        for smaller in _simpler(program.body):
            other = replace(program, body=smaller)
            if _compiles(other) and fails(other):
                program, progress = other, True
                break
    return program


def _compiles(program: ValuesProgram) -> bool:
    try:
        compile(program.source, "", "exec")
    except SyntaxError:
        return False
    return True


def _simpler(body: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    for place, statement in enumerate(body):
        before, after = body[:place], body[place + 1 :]
        yield (*before, *after)
        if not isinstance(statement, str):
            yield (*before, *statement[1], *after)
            for inner in _simpler(statement[1]):
                yield (*before, (statement[0], inner), *after)
