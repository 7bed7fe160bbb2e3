"""Spell LLVM values and types as text: a register is a type and a name, a vector type an element and a count."""

import struct
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

FLOATS = {"half": 16, "bfloat": 16, "float": 32, "double": 64}
MANGLED = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64", "ptr": "p0"}


class Register(NamedTuple):
    """An LLVM value: its type and its name or literal."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def vector(element: str, lanes: int) -> str:
    """Name the type of a vector; one lane is the scalar itself."""
    return f"<{lanes} x {element}>" if lanes > 1 else element


@cache
def element_of(kind: str) -> str:
    """Give the type of a vector's elements, or the scalar type itself."""
    return kind[1:-1].split(" x ")[1] if kind.startswith("<") else kind


@cache
def lanes_of(kind: str) -> int:
    """Count the elements of a vector type; a scalar has one."""
    return int(kind[1:].split(" x ", maxsplit=1)[0]) if kind.startswith("<") else 1


@cache
def bits_of(kind: str) -> int:
    """Count the bits of a type's element."""
    element = element_of(kind)
    return 64 if element == "ptr" else FLOATS.get(element) or int(element[1:])


def with_element(kind: str, element: str) -> str:
    """Give a type with as many lanes and another element."""
    return vector(element, lanes_of(kind))


def integer_like(kind: str) -> str:
    """Give the integer type with the lanes and bits of a type."""
    return with_element(kind, f"i{bits_of(kind)}")


@cache
def mangled(kind: str) -> str:
    """Spell a type as the names of LLVM's intrinsics do: v16f32."""
    element = element_of(kind)
    name = MANGLED.get(element, element)
    return f"v{lanes_of(kind)}{name}" if kind.startswith("<") else name


def literal(element: str, value: float) -> str:
    """Spell a number as LLVM reads it; a float is given by its bits, so nothing is lost."""
    if element == "i1":
        return "true" if value else "false"
    if element not in FLOATS:
        return str(int(value))
    if element == "float":
        value = round_to_float(value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def round_to_float(value: float) -> float:
    """Round a number to float32; what is too large becomes an infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def constant(kind: str, value: float) -> Register:
    """Make a constant; of a vector type, the same number in every lane."""
    text = literal(element_of(kind), value)
    return Register(kind, f"splat ({element_of(kind)} {text})" if kind.startswith("<") else text)


def constants(element: str, values: Sequence[float]) -> Register:
    """Make a vector constant with a number per lane."""
    listed = ", ".join(f"{element} {literal(element, value)}" for value in values)
    return Register(vector(element, len(values)), f"<{listed}>" if len(values) > 1 else literal(element, values[0]))
