"""Random Python programs as text, for comparing what they do before and after they are optimised."""

import random

PREAMBLE = """
class Loud:
    def __init__(self, name): self.name = name
    def __repr__(self): return self.name
    def __add__(self, other): print("add", self, other); return Loud(f"({self}+{other!r})")
    def __radd__(self, other): print("radd", self, other); return Loud(f"({other!r}+{self})")
    def __mul__(self, other): print("mul", self, other); return Loud(f"{self}*{other!r}")
    def __lt__(self, other): print("lt", self, other); return Loud(f"{self}<{other!r}")
    def __neg__(self): print("neg", self); return Loud(f"-{self}")
    def __bool__(self): print("bool", self); return len(self.name) % 2 == 0
    def __call__(self, *given): print("call", self, given); return given
def noisy(value, other=None):
    print("noisy", value, other)
    return value
def bump():
    global z
    z = z + 1
    return z
x = 3
y = Loud("y")
z = 10
"""
CONSTANTS = ("0", "1", "2", "3", "-0.0", "2.5", "1e308", "'s'", "True", "None", "(1, 2)", "-2", "()")
BINARY = ("+", "+", "+", "-", "*", "/", "//", "%", "&")
TERNARY = ("({} if {} else {})", "({} and {} or {})", "({} < {} < {})", "({}, {}, {})", "[{}, {}, {}]")
UNARY = (
    "(not {})", "(-{})", "(+{})", "noisy({})", "noisy(1, {})", "({}).name", "({} is None)", "({} is not True)",
    "abs({})", "({} ** 2)", "(2 ** {})", "({})[0]", "(1, 2)[{}]", "({})(1)", "(lambda a: {})(1)",
    "[{} for a in (1, 2)]", "f'{{x}}' + {}", "print({})",
)  # fmt: skip
LEAVES = ("bump()", "z", "y", "noisy(x)", "noisy(y)", "missing")
STATEMENTS = (
    "print({})",
    "print({})",
    "print({})",
    "w = {}",
    "x = {}",
    "for w in (1, 2):\n    print({})",
    "if {}:\n    w = 1",
    "del x\nprint({})",
    "try:\n    print({})\nexcept TypeError as w:\n    print(w)",
    "def local(a, x=2):\n    z = {}\n    return z\nprint(local(y))",
    "class Local:\n    x = 5\n    w = {}\nprint(Local().w)",
    "f0 = noisy\nprint({})",
    "(v := {})",
    "w = z = {}",
)


class Writer:
    """Writes one random program; the same seed gives the same text."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.functions = []

    def expression(self, names, depth=3):
        choice = self.random.random
        if depth == 0 or choice() < 0.2:
            return self.random.choice([*names, *names, *CONSTANTS])
        if self.functions and choice() < 0.4:
            return self.call(names, depth)
        kind = choice()
        if kind < 0.5:
            left, right = self.expression(names, depth - 1), self.expression(names, depth - 1)
            return f"({left} {self.random.choice(BINARY)} {right})"
        if kind < 0.65:
            form = self.random.choice(TERNARY)
            return form.format(*(self.expression(names, depth - 1) for _ in range(3)))
        if kind < 0.85:
            return self.random.choice(UNARY).format(self.expression(names, depth - 1))
        return self.random.choice(LEAVES)

    def call(self, names, depth):
        name, parameters, required = self.random.choice(self.functions)
        count = self.random.randint(required, len(parameters)) + (self.random.random() < 0.05)
        arguments = [self.expression(names, self.random.randint(0, depth - 1)) for _ in range(count)]
        positional = self.random.randint(0, count)
        rest = list(range(positional, min(count, len(parameters))))
        self.random.shuffle(rest)
        return f"{name}({', '.join(arguments[:positional] + [f'{parameters[i]}={arguments[i]}' for i in rest])})"

    def arithmetic(self, names, depth):
        """An expression that a call may be replaced by, or a call of such a function."""
        if depth == 0 or not names:
            return self.random.choice([*names, *names, *names, *CONSTANTS])
        if self.functions and self.random.random() < 0.3:
            name, parameters, _ = self.random.choice(self.functions)
            return f"{name}({', '.join(self.random.choice(names) for _ in parameters)})"
        left, right = self.arithmetic(names, depth - 1), self.arithmetic(names, depth - 1)
        return f"({left} {self.random.choice(BINARY)} {right})"

    def straight_line(self, name):
        """A function of arithmetic on its parameters."""
        parameters = self.random.sample("abc", self.random.randint(1, 3))
        names, lines = list(parameters), []
        for target in self.random.sample(["e", "g", "a"], self.random.choice((0, 0, 1, 2))):
            lines.append(f"    {target} = {self.arithmetic(names, 1)}\n")
            names.append(target)
        lines.append(f"    return {self.arithmetic(names, self.random.randint(0, 2))}\n")
        self.functions.append((name, parameters, len(parameters)))
        return f"def {name}({', '.join(parameters)}):\n{''.join(lines)}"

    def function(self, name):
        if self.random.random() < 0.6:
            return self.straight_line(name)
        parameters = self.random.sample("abc", self.random.randint(0, 3))
        required = self.random.randint(0, len(parameters))
        defaults = [f"{parameter}={self.random.choice(CONSTANTS)}" for parameter in parameters[required:]]
        names = [*parameters, *parameters, self.random.choice("xyz")]
        lines = []
        for _ in range(self.random.choice((0, 0, 1, 2, 3))):
            target = self.random.choice(["e", "g", "e", "x", "a"])
            lines.append(f"    {target} = {self.expression(names, 2)}\n")
            names += [target, target]
        lines.append(f"    return {self.expression(names, self.random.randint(1, 3))}\n")
        self.functions.append((name, parameters, required))
        return f"def {name}({', '.join([*parameters[:required], *defaults])}):\n{''.join(lines)}"

    def program(self):
        definitions = [self.function(f"f{index}") for index in range(self.random.randint(1, 4))]
        if self.random.random() < 0.3:
            self.random.shuffle(definitions)
        names = ["x", "x", "y", "y", "z", self.random.choice(("w", "x"))]
        statements = [
            self.random.choice(STATEMENTS).format(self.expression(names)) + "\n"
            for _ in range(self.random.randint(1, 4))
        ]
        if self.random.random() < 0.2:
            statements.insert(self.random.randint(0, len(statements)), definitions.pop())
        ending = self.expression(names) + "\n" if self.random.random() < 0.6 else ""
        return PREAMBLE + "".join([*definitions, *statements, ending])
