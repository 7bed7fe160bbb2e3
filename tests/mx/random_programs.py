"""Draw programs of `nd`: arithmetic, in-place writes, parts that share memory, `record` and `backward`.

The real MXNet and weft.mx must print the same for each; imports neither, so that both can read it. What MXNet leaves
undefined is not drawn: a write to what was recorded before its backward, and into what a failure spoilt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

FIXTURE = "random_programs.json.gz"
IN_CI = 300
Shape = tuple[int, ...]

UNARY = "abs square tanh sigmoid relu sin cos exp negative floor ceil sign arctan round rint fix trunc softsign".split()  # noqa: SIM905
BINARY = ("+", "-", "*")
COMPARISONS = (">", "<", ">=", "<=", "==", "!=")
REDUCTIONS = ("sum", "mean", "max", "min", "prod", "norm", "nansum")
SHAPES: tuple[Shape, ...] = ((2, 3), (3,), (2, 1), (1, 3), (4, 3), (2, 3, 2), (1,), (6,))


@dataclass
class Program:
    """A program as it grows: its lines, and the sizes and types of its arrays."""

    chance: random.Random
    lines: list[str] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    roots: dict[str, str] = field(default_factory=dict)  # whose memory a part may share
    count: int = 0
    frozen: set[str] = field(default_factory=set)  # recorded, and not written until the backward
    stale: set[str] = field(default_factory=set)  # of a graph that was used up, maybe in part: not recorded again
    indent: str = ""

    def say(self, line: str) -> None:
        """Add a line."""
        self.lines.append(self.indent + line)

    def new(self, shape: Shape, dtype: str = "float32", source: str | None = None) -> str:
        """Name a new array, which may be a part of another one."""
        name = f"a{self.count}"
        self.roots[name] = self.roots[source] if source else name
        self.count += 1
        self.shapes[name], self.types[name] = shape, dtype
        return name

    def any(self, dtype: str | None = None) -> str:
        """Pick an array."""
        known = [name for name in self.shapes if not (self.indent and name in self.stale)]
        names = [name for name in known if dtype is None or self.types[name] == dtype]
        return self.chance.choice(names or known)

    def writable(self) -> str | None:
        """Pick an array that may be written."""
        names = [name for name in self.shapes if name not in self.frozen]
        return self.chance.choice(names) if names else None

    def apart(self, target: str) -> list[str]:
        """List what shares no memory with an array, and the array: MXNet reads parts that it is just writing."""
        return [name for name in self.shapes if name == target or self.roots[name] != self.roots[target]]

    def number(self) -> str:
        """Pick a number."""
        return self.chance.choice(("2", "0.5", "-1", "3", "1.5", "0"))


def broadcast(one: Shape, other: Shape) -> Shape | None:
    """The sizes of what two arrays give, if they go together; MXNet wants as many dimensions."""
    if len(one) != len(other):
        return None
    if any(a != b and 1 not in (a, b) for a, b in zip(one, other, strict=True)):
        return None
    return tuple(max(a, b) for a, b in zip(one, other, strict=True))


def make(p: Program) -> None:
    """A new array."""
    shape = p.chance.choice(SHAPES)
    size = 1
    for length in shape:
        size *= length
    dtype = p.chance.choices(("float32", "float64", "int32"), (8, 1, 1))[0]
    start = p.chance.choice(("-1.5", "0", "0.25", "-3"))
    name = p.new(shape, dtype)
    p.say(f"{name} = (nd.arange({size}) / 4 + {start}).reshape({shape}).astype('{dtype}')")


def unary(p: Program) -> None:
    """One operator of one array."""
    source = p.any("float32")
    if p.types[source] != "float32":
        return
    name = p.new(p.shapes[source])
    p.say(f"{name} = nd.{p.chance.choice(UNARY)}({source})")


def binary(p: Program) -> None:
    """One operator of two arrays, also such as do not go together."""
    one, other = p.any(), p.any()
    shape = broadcast(p.shapes[one], p.shapes[other])
    sign = p.chance.choice(BINARY if p.indent else BINARY + COMPARISONS)
    if shape is None or p.types[one] != p.types[other]:
        if not p.indent:
            p.say(f"attempt(lambda: {one} {sign} {other})")
        return
    name = p.new(shape, p.types[one])
    p.say(f"{name} = {one} {sign} {other}")


def scalar(p: Program) -> None:
    """An array and a number."""
    source, number = p.any("float32"), p.number()
    if p.types[source] != "float32":
        return
    name = p.new(p.shapes[source], p.types[source])
    sign = p.chance.choice(BINARY)
    p.say(f"{name} = {source} {sign} {number}" if p.chance.random() < 0.7 else f"{name} = {number} {sign} {source}")


def reduce(p: Program) -> None:
    """A reduction over all axes or one."""
    source = p.any("float32")
    shape, function = p.shapes[source], p.chance.choice(REDUCTIONS)
    if p.types[source] != "float32" or (p.indent and function in ("prod", "norm", "mean")):
        return  # at 0 two of these have gradients that are NaN in MXNet, and the third divides what `add` has kept
    axis = p.chance.choice((None, *range(len(shape))))
    keep = p.chance.random() < 0.5
    if function == "norm" and axis is None:
        keep = False
    if axis is None:
        name, given = p.new((1,) * len(shape) if keep and function != "norm" else (1,)), f", keepdims={keep}"
    else:
        left = tuple((1 if place == axis else size) for place, size in enumerate(shape) if keep or place != axis)
        name, given = p.new(left or (1,)), f", axis={axis}, keepdims={keep}"
    p.say(f"{name} = nd.{function}({source}{'' if function == 'norm' and axis is None else given})")


def part(p: Program) -> None:
    """A part of an array, which shares its memory where it lies in one piece."""
    source = p.any()
    shape = p.shapes[source]
    texts: list[str] = []
    left: list[int] = []
    for size in shape[: p.chance.randint(1, len(shape))]:
        kind = p.chance.choice(("number", "slice", "all", "step"))
        if kind == "number":
            texts.append(str(p.chance.randrange(-size, size)))
        elif kind == "slice":
            begin = p.chance.randrange(size)
            end = p.chance.randint(begin + 1, size)
            texts.append(f"{begin}:{end}")
            left.append(end - begin)
        elif kind == "step":
            texts.append(p.chance.choice(("::2", "::-1")))
            left.append((size + 1) // 2 if texts[-1] == "::2" else size)
        else:
            texts.append(":")
            left.append(size)
    name = p.new((*left, *shape[len(texts) :]) or (1,), p.types[source], source)
    p.say(f"{name} = {source}[{', '.join(texts)}]")


def reshape(p: Program) -> None:
    """The same elements with other sizes."""
    source = p.any()
    size = 1
    for length in p.shapes[source]:
        size *= length
    shape = p.chance.choice([shape for shape in ((size,), (1, size), (size, 1)) if shape != p.shapes[source]])
    name = p.new(shape, p.types[source], source)
    p.say(f"{name} = {source}.reshape({shape})")


def write(p: Program) -> None:
    """A write to all of an array or a part."""
    target = p.writable()
    if target is None or p.indent:
        return
    shape = p.shapes[target]
    place = p.chance.choice((":", str(p.chance.randrange(shape[0])), f"{p.chance.randrange(shape[0])}:", "::2"))
    others = [name for name in p.apart(target) if p.shapes[name] == shape and p.types[name] == p.types[target]]
    value = p.chance.choice(others) if place == ":" and others and p.chance.random() < 0.6 else p.number()
    if p.types[target] == "int32" and "." in value:
        value = "2"
    p.say(f"{target}[{place}] = {value}")


def in_place(p: Program) -> None:
    """`+=` and its like."""
    target = p.writable()
    if target is None or p.indent or p.types[target] != "float32":
        return
    others = [
        name
        for name in p.apart(target)
        if broadcast(p.shapes[name], p.shapes[target]) == p.shapes[target] and p.types[name] == "float32"
    ]
    value = p.chance.choice(others) if others and p.chance.random() < 0.5 else p.number()
    p.say(f"{target} {p.chance.choice(('+=', '-=', '*='))} {value}")


def into(p: Program) -> None:
    """An operator that writes into an array that is there."""
    target = p.writable()
    if target is None or p.indent or p.types[target] != "float32":
        return
    sources = [name for name in p.apart(target) if p.shapes[name] == p.shapes[target] and p.types[name] == "float32"]
    source = p.chance.choice(sources)
    if p.chance.random() < 0.5:
        p.say(f"nd.{p.chance.choice(UNARY)}({source}, out={target})")
    else:
        p.say(
            f"{source}.copyto({target})" if source != target else f"nd.elemwise_add({source}, {source}, out={target})"
        )


def select(p: Program) -> None:
    """Pick, order and join elements."""
    source = p.any("float32")
    shape = p.shapes[source]
    if p.types[source] != "float32":
        return
    kind = p.chance.choice(sorted(SELECTIONS))
    text, sizes, inside, dims = SELECTIONS[kind]
    if (inside or not p.indent) and len(shape) in dims:
        place = p.chance.randrange(shape[0])
        name = p.new(sizes(shape), source=source if kind == "T" else None)
        p.say(f"{name} = " + text.format(x=source, place=place))


ANY = (1, 2, 3)
# The text, the sizes of the result, whether MXNet has a gradient (also one that is added), and for how many dimensions.
SELECTIONS = {
    "T": ("{x}.T", lambda s: s[::-1], True, ANY),
    "argmax": ("{x}.argmax(axis=1)", lambda s: (s[0], *s[2:]), False, (2, 3)),
    "clip": ("nd.clip({x}, -0.5, 0.75)", lambda s: s, True, ANY),
    "concat": ("nd.concat({x}, {x}, dim=0)", lambda s: (2 * s[0], *s[1:]), True, ANY),
    "dot": ("nd.dot({x}, {x}, transpose_b=True)", lambda s: (s[0], s[0]), True, (2,)),
    "flip": ("nd.flip({x}, axis=0)", lambda s: s, False, ANY),
    "sort": ("nd.sort({x}, axis=0)", lambda s: s, False, ANY),
    "stack": ("nd.stack({x}, {x})", lambda s: (2, *s), True, ANY),
    "take": ("nd.take({x}, nd.array([{place}, 0]))", lambda s: (2, *s[1:]), True, ANY),
    "tile": ("nd.tile({x}, (1, 2))", lambda s: (s[0], 2 * s[1]), True, (2,)),
    "where": ("nd.where({x} > 0, {x}, {x} * 2)", lambda s: s, True, ANY),
}


INSIDE = (unary, unary, binary, binary, scalar, scalar, reduce, part, reshape, select)
OUTSIDE = (*INSIDE, make, write, write, in_place, in_place, into)


def recorded(p: Program) -> None:
    """Operators that are recorded, and their backward."""
    variables = [name for name in p.shapes if p.types[name] == "float32"]
    if not variables:
        return
    chosen = p.chance.sample(variables, min(len(variables), 2))
    request = p.chance.choice(("write", "write", "add"))
    for name in chosen:
        fresh = p.new(p.shapes[name])
        p.say(f"{fresh} = {name}.copy(); {fresh}.attach_grad('{request}')")
    fresh = [f"a{p.count - 1 - place}" for place in range(len(chosen))]
    before = set(p.shapes)
    p.frozen |= before
    for _ in range(2 if request == "add" else 1):
        p.say("with autograd.record():")
        p.indent = "    "
        head = p.chance.choice(fresh)
        for _ in range(p.chance.randint(2, 7)):
            p.chance.choice(INSIDE)(p)
        made = [name for name in p.shapes if name not in before and p.types[name] == "float32"]
        last = made[-1] if made else head
        loss = p.new((1,))
        p.say(f"{loss} = ({last} * 2).sum() + ({head} * {head}).sum()")
        p.indent = ""
        p.say(f"{loss}.backward()")
        p.say(f"show({', '.join(f'{name}.grad' for name in fresh)})")
        p.stale |= {name for name in p.shapes if name not in before}
    p.frozen.clear()


def program(number: int) -> str:
    """One program."""
    p = Program(random.Random(number))
    for _ in range(3):
        make(p)
    for _ in range(p.chance.randint(6, 16)):
        p.chance.choice(OUTSIDE)(p)
        if p.chance.random() < 0.15:
            recorded(p)
    p.say(f"show({', '.join(p.shapes)})")
    return "\n".join(p.lines)


def run(code: str, nd: object, autograd: object) -> list[object]:
    """What a program shows: lists of numbers with their sizes and types, and classes of errors."""
    found: list[object] = []

    def show(*arrays: object) -> None:
        for array in arrays:
            elements = array.asnumpy()
            found.append([list(array.shape), str(elements.dtype), [float(x) for x in elements.reshape(-1)]])

    def attempt(call: object) -> None:
        try:
            call()
            found.append("fine")
        except Exception as error:  # noqa: BLE001  # which one it is, is the answer
            found.append(type(error).__name__)

    try:
        exec(compile(code, "program", "exec"), {"nd": nd, "autograd": autograd, "show": show, "attempt": attempt})
    except Exception as error:  # noqa: BLE001
        found.append(type(error).__name__)
    return found
