"""Write one function of Python that gives all numbers that are made of sizes: calls of ever new sizes wait for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.ir.extents import Polynomial
from weft.ir.graph import Value
from weft.ir.library import Argument, Operand
from weft.ir.ops import NUMBER_OPERATORS

FILENAME = "<weft sizes>"


class SizeArithmetic:
    """Writes what sizes are made of as texts of Python, each computed once however often it is asked for.

    The function that it ends as takes the sizes that it was begun with, in order; each may be known as several values.
    """

    def __init__(self, *sizes: Sequence[Value]) -> None:
        self._values = {size: f"s{place}" for some in sizes for place, size in enumerate(some)}
        self._arguments = ", ".join(f"s{place}" for place in range(len(sizes[0])))
        self._polynomials: dict[Polynomial, str] = {}
        self._names: dict[str, Any] = {}
        self._lines: list[str] = []

    def size(self, size: Polynomial) -> str:
        """The text of a size."""
        if size not in self._polynomials:
            text = size.written(self.value)
            self._polynomials[size] = text if text.isalnum() else self.kept(text)
        return self._polynomials[size]

    def value(self, value: Value) -> str:
        """The text of a value that is a size, or that has been computed of sizes."""
        return self._values[value]

    def compute(self, value: Value, rule: Callable[..., Any]) -> None:
        """Compute a value of the values that it is made of: arithmetic as Python does it, all else by its rule."""
        operands = [self._values[operand] for operand in value.operands]
        if value.op == "number":
            function = NUMBER_OPERATORS[value.attributes["operator"]].function
            operands = [self._argument(argument, operands) for argument in value.attributes["arguments"]]
        else:
            function = rule
        self._values[value] = self.kept(self.called(function, *operands))

    def called(self, function: Callable[..., Any], *texts: str) -> str:
        """The text of a call of a function."""
        return f"{self._named(function)}({', '.join(texts)})"

    def function(self, result: str) -> Callable[..., Any]:
        """The function that gives what a text says."""
        source = f"def numbers({self._arguments}):\n" + "".join(f"    {line}\n" for line in self._lines)
        names = dict(self._names)
        exec(compile(f"{source}    return {result}\n", FILENAME, "exec"), names)
        found: Callable[..., Any] = names["numbers"]
        return found

    def _argument(self, argument: Argument, operands: Sequence[str]) -> str:
        return operands[argument.index] if isinstance(argument, Operand) else self._named(argument)

    def kept(self, text: str) -> str:
        """The text of what another text computes, once."""
        name = f"n{len(self._lines)}"
        self._lines.append(f"{name} = {text}")
        return name

    def _named(self, thing: Any) -> str:
        name = f"k{len(self._names)}"
        self._names[name] = thing
        return name


def row_of(texts: Sequence[str]) -> str:
    """The text of a tuple."""
    return "(" + "".join(f"{text}, " for text in texts) + ")"
