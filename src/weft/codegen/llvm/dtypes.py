"""Names of dtypes -> how their numbers are held in registers and in memory, and constants of them.

f16 and bf16 are held as their 16 bits; nothing computes with them but `cast`. Truth is one bit in a register and a
byte in memory.
"""

import struct
from dataclasses import dataclass

from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register, constant, with_element


@dataclass(frozen=True, slots=True)
class Held:
    """How a dtype is held: its kind, the type of a register's element, the type of an element in memory."""

    kind: str  # "float", "short" (a float of 16 bits), "signed", "unsigned" or "truth"
    element: str
    stored: str


HELD = {
    "f32": Held("float", "float", "float"),
    "f64": Held("float", "double", "double"),
    "f16": Held("short", "i16", "i16"),
    "bf16": Held("short", "i16", "i16"),
    "i8": Held("signed", "i8", "i8"),
    "i16": Held("signed", "i16", "i16"),
    "i32": Held("signed", "i32", "i32"),
    "i64": Held("signed", "i64", "i64"),
    "u8": Held("unsigned", "i8", "i8"),
    "u16": Held("unsigned", "i16", "i16"),
    "u32": Held("unsigned", "i32", "i32"),
    "u64": Held("unsigned", "i64", "i64"),
    "bool": Held("truth", "i1", "i8"),
}


def from_memory(f: FunctionWriter, x: Register, dtype: str) -> Register:
    """Turn what was loaded into what registers hold."""
    return f.compare("icmp ne", x, constant(x.kind, 0)) if HELD[dtype].kind == "truth" else x


def to_memory(f: FunctionWriter, x: Register, dtype: str) -> Register:
    """Turn what registers hold into what is stored."""
    return f.convert("zext", x, "i8") if HELD[dtype].kind == "truth" else x


def dtype_constant(dtype: str, value: float, like: str) -> Register:
    """Make a constant of a dtype, in a register with as many lanes as the type `like`."""
    kind = with_element(like, HELD[dtype].element)
    if HELD[dtype].kind == "short":
        return constant(kind, short_float_bits(dtype, float(value)))
    return constant(kind, value)


def short_float_bits(dtype: str, value: float) -> int:
    """Give the bits of a number in f16 or bf16, rounded to the nearest, halves to even, by way of f32."""
    try:
        single = struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        single = 0x7F800000 if value > 0 else 0xFF800000
    if dtype == "f16":
        try:
            return int(struct.unpack("<H", struct.pack("<e", struct.unpack("<f", struct.pack("<I", single))[0]))[0])
        except OverflowError:
            return 0x7C00 if value > 0 else 0xFC00
    if single & 0x7FFFFFFF > 0x7F800000:
        return 0x7FC0
    return int((single + 0x7FFF + ((single >> 16) & 1)) >> 16)
