"""A seed -> a random program of tensors whose dimensions have names, so that they fit each other in many ways.

What is recognised as one kernel (a softmax times values, a product and what follows it, a norm) has siblings that only
look like it: another batch, another order of dimensions, one more reader. Names make such programs fit by construction:
a product sums over any name that both tensors have, and all other names become batch, rows or columns.
"""

import random
from math import prod

from tests.random_programs.generator import RandomProgram

SIZES = (1, 1, 2, 3, 5, 8, 8, 9, 12, 16, 17, 20, 32, 33, 48, 64, 65)
NAMES = "abcde"
MOST_ELEMENTS, MOST_MULTIPLIED = 1 << 15, 1 << 20
LONGEST = 8  # statements
ARGUMENTS = {"n": 2, "scale": 0.5, "flag": True, "mode": "sum"}
LAYOUTS = ("torch.randn({plain})",) * 4 + (
    "torch.randn({turned}).transpose(-1, 0)",
    "torch.randn({longer})[..., ::2]",
    "torch.randn({plain})[..., :1].expand({plain})",
)
BENDS = (
    "{x}.relu()", "F.gelu({x})", "{x}.tanh()", "{x}.sigmoid()", "{x} * 0.125", "-{x}", "1 - {x}", "{x}.clamp(-1, 1)",
    "{x}.square()", "{x}.clone()", "{x}.contiguous()", "{x}.clamp(max=3).exp()", "{x}.cos()",
)  # fmt: skip
PAIRS = (
    "{x} + {y}", "{x} * {y}", "{x} - {y}", "torch.maximum({x}, {y})", "{x} / (1 + {y}.abs())", "{x} * {y}.sigmoid()",
    "torch.where({x} > 0, {y}, 0.5)", "torch.lerp({x}, {y}, 0.3)", "({x} - {y}).square()", "({x} + {y}) * {y}",
)  # fmt: skip
SHARES = (
    "{x}.softmax({i})", "{x}.softmax({i})", "{x}.softmax({i})", "{x}.log_softmax({i}).exp()", "(-{x}).softmax({i})",
    "({x} - {x}.amax({i}, keepdim=True)).exp() / ({x} - {x}.amax({i}, keepdim=True)).exp().sum({i}, keepdim=True)",
    "({x} - {x}.logsumexp({i}, keepdim=True)).exp()", "{x}.sigmoid() / {x}.sigmoid().sum({i}, keepdim=True)",
    "torch.where(({x} == -float('inf')).all({i}, keepdim=True), 0.0, {x}.softmax({i}))", "{x}.softmax({i}) * ({x} > 0)",
)  # fmt: skip
SUMS = ("sum", "mean", "amax", "amin", "logsumexp")
NORMS = ("{x} - {x}.mean({i}, keepdim=True)", "{x} * ({x}.square().mean({i}, keepdim=True) + 1e-5).rsqrt()")
FILLS = ("-float('inf')", "-float('inf')", "-1e9", "0.0")


class DoesNotFitError(Exception):
    """A statement that was drawn fits no tensor at hand."""


class _Draw:
    """A program while it is drawn."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.sizes = {name: self.choose.choice(SIZES) for name in NAMES}
        self.inputs: list[tuple[str, str]] = []
        self.steps: list[str] = []
        self.names: dict[str, str] = {}  # of each tensor's dimensions, by its own
        self.last = ""

    def shape(self, dims: str) -> tuple[int, ...]:
        return tuple(self.sizes[name] for name in dims)

    def input(self, dims: str) -> str:
        plain = self.shape(dims)
        if prod(plain) > MOST_ELEMENTS:
            raise DoesNotFitError
        turned = (plain[-1], *plain[1:-1], plain[0]) if len(plain) > 1 else plain
        text = self.choose.choice(LAYOUTS).format(plain=plain, turned=turned, longer=(*plain[:-1], 2 * plain[-1]))
        self.inputs.append((f"x{len(self.inputs)}", text))
        return self._known(self.inputs[-1][0], dims)

    def add(self, text: str, dims: str) -> str:
        if prod(self.shape(dims)) > MOST_ELEMENTS:
            raise DoesNotFitError
        self.steps.append(f"t{len(self.steps)} = {text}")
        self.last = self._known(f"t{len(self.steps) - 1}", dims)
        return self.last

    def _known(self, name: str, dims: str) -> str:
        self.names[name] = dims
        return name

    def pick(self, least: int = 0) -> str:
        fitting = [name for name, dims in self.names.items() if len(dims) >= least]
        if not fitting:
            raise DoesNotFitError
        return self.last if self.last in fitting and self.choose.random() < 0.65 else self.choose.choice(fitting)

    def seen(self, tensor: str, dims: str) -> str:
        """A tensor with these dimensions: its own in another order, others of size 1."""
        have = [name for name in dims if name in self.names[tensor]]
        order = [self.names[tensor].index(name) for name in have]
        text = tensor if order == sorted(order) else f"{tensor}.permute({order})"
        if any(name not in have for name in dims):
            text += f"[{', '.join(':' if name in have else 'None' for name in dims)}]"
        return text

    # -- statements ---------------------------------------------------------------------------------------------

    def product(self, left: str = "", right: str = "", over: str = "") -> None:
        left = left or self.pick(1)
        others = [name for name, dims in self.names.items() if set(dims) & set(self.names[left])]
        right = right or self.choose.choice(others)
        first, second = self.names[left], self.names[right]
        both = [name for name in first if name in second]
        if not both:
            raise DoesNotFitError
        over = over if over in both else self.choose.choice(both)
        own = [[name for name in dims if name not in both] for dims in (first, second)]
        row, column = (names[-1] if names and self.choose.random() < 0.9 else "?" for names in own)
        batch = "".join(name for name in dict.fromkeys(first + second) if name not in (over, row, column))
        if prod(self.shape("".join(dict.fromkeys(first + second)))) > MOST_MULTIPLIED:
            raise DoesNotFitError
        out = [*batch, *(name for name in (row, column) if name != "?")]
        if self.choose.random() < 0.3:
            self.add(f"torch.einsum('{first},{second}->{''.join(out)}', {left}, {right})", "".join(out))
            return
        text = f"({self.seen(left, batch + row + over)} @ {self.seen(right, batch + over + column)})"
        text += ".squeeze(-1)" * (column == "?") + f".squeeze({-2 + (column == '?')})" * (row == "?")
        self.add(text, "".join(out))

    def share(self) -> None:
        x = self.pick(1)
        count = len(self.names[x])
        dimension = self.choose.choice((count - 1, self.choose.randrange(count), -1))
        self.add(self.choose.choice(SHARES).format(x=x, i=dimension), self.names[x])

    def mask(self) -> None:
        x, fill = self.pick(1), self.choose.choice(FILLS)
        dims = self.names[x]
        if len(dims) > 1 and self.choose.random() < 0.5:
            one, other = sorted(self.choose.sample(range(len(dims)), 2))
            whole = f"torch.ones({self.shape(dims[one] + dims[other])}, dtype=torch.bool)"
            text = f"{whole}.{self.choose.choice(('tril', 'triu'))}({self.choose.choice((0, 1, -1))})"
            text += f"[{', '.join(':' if place in (one, other) else 'None' for place in range(len(dims)))}]"
        else:
            fitting = [name for name, own in self.names.items() if set(own) <= set(dims)]
            text = f"{self.seen(self.choose.choice(fitting), dims)} > {self.choose.choice((0.0, 0.5))}"
        self.add(f"{x}.masked_fill({text}, {fill})", dims)

    def sum(self) -> None:
        x = self.pick(1)
        dims = self.names[x]
        gone = sorted(self.choose.sample(range(len(dims)), min(len(dims), self.choose.choice((1, 1, 2)))))
        rest = "".join(name for place, name in enumerate(dims) if place not in gone)
        self.add(f"{x}.{self.choose.choice(SUMS)}({gone})", rest)

    def norm(self) -> None:
        x = self.pick(1)
        self.add(self.choose.choice(NORMS).format(x=x, i=self.choose.randrange(len(self.names[x]))), self.names[x])

    def pair(self) -> None:
        x, y = self.pick(), self.choose.choice(list(self.names))
        dims = "".join(dict.fromkeys(self.names[x] + self.names[y]))
        self.add(self.choose.choice(PAIRS).format(x=self.seen(x, dims), y=self.seen(y, dims)), dims)

    def bend(self) -> None:
        x = self.pick()
        self.add(self.choose.choice(BENDS).format(x=x), self.names[x])

    def turn(self) -> None:
        x = self.pick(2)
        dims = "".join(self.choose.sample(self.names[x], len(self.names[x])))
        self.add(self.choose.choice(("{}", "{}.contiguous()", "{}.flip(-1)")).format(self.seen(x, dims)), dims)

    def attention(self) -> None:
        """Scores, what may happen to them, shares, and a product with values: of each batch, or of each row too."""
        batch = "".join(self.choose.sample(NAMES, self.choose.choice((0, 1, 1, 2))))
        row, key, size = self.choose.sample([name for name in NAMES if name not in batch], 3)
        query, keys, value = (
            "".join(name for name in batch if self.choose.random() < 0.85) + own
            for own in (row + size, key + size, row * (self.choose.random() < 0.4) + key + size)
        )
        tensors = self.input(query), self.input(keys), self.input("".join(dict.fromkeys(value)))
        self.product(tensors[0], tensors[1], size)
        for kind in self.choose.choice(((), (), ("mask",), ("bend",), ("pair", "mask"))):
            getattr(self, kind)()
        self.share()
        self.product(self.last, tensors[2], key)


KINDS = {
    "product": 14, "share": 6, "mask": 4, "sum": 6, "norm": 3, "pair": 9, "bend": 7, "turn": 5, "attention": 12,
}  # fmt: skip


def program_of_dimensions(seed: int) -> RandomProgram:
    """Draw the program of a seed: eager runs it, and all sizes are at least 1."""
    draw = _Draw(seed)
    for _ in range(40):
        if len(draw.steps) >= draw.choose.randint(2, LONGEST):
            break
        before = draw.inputs.copy(), draw.steps.copy(), draw.names.copy(), draw.last
        try:
            if not draw.names or draw.choose.random() < 0.1:
                draw.input("".join(draw.choose.sample(NAMES, draw.choose.randint(1, 4))))
            getattr(draw, draw.choose.choices(list(KINDS), list(KINDS.values()))[0])()
        except DoesNotFitError:
            draw.inputs, draw.steps, draw.names, draw.last = before
    made = [step.split(" = ", 1)[0] for step in draw.steps]
    more = [name for name in made[:-1] if draw.choose.random() < 0.15]
    return RandomProgram(seed, tuple(draw.inputs), tuple(draw.steps), ", ".join([*made[-1:], *more, ""]) or "None")
