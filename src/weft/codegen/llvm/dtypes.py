"""Hold numbers of each dtype in registers and in memory, make constants of them, and convert them as PyTorch does.

f16 and bf16 are held as their 16 bits; nothing computes with them but `cast`. Truth is one bit in a register and a
byte in memory. Floats to integers drop the fraction; what does not fit gives the smallest integer of 32 or 64 bits, cut
to the bits of the result. Integers wrap. Anything but zero is true, also what is not a number.
"""

import struct
from dataclasses import dataclass

from weft.codegen.llvm.module import FunctionWriter, Register, bits_of, constant, element_of, with_element


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


def cast(f: FunctionWriter, x: Register, source: str, result: str) -> Register:
    """Convert a register from one dtype to another."""
    if source == result:
        return x
    before, after = HELD[source], HELD[result]
    if after.kind == "truth":
        return _to_truth(f, x, source)
    if before.kind == "short":
        return cast(f, widen_short(f, x, source), "f32", result)
    if after.kind == "short":
        return narrow_short(f, cast(f, x, source, "f32"), result)
    if before.kind == "float":
        convert = _float_to_float if after.kind == "float" else _float_to_integer
        return convert(f, x, after.element)
    if after.kind == "float":
        return f.convert("sitofp" if before.kind == "signed" else "uitofp", x, after.element)
    return _resized(f, x, after.element, signed=before.kind == "signed")


def widen_short(f: FunctionWriter, x: Register, dtype: str) -> Register:
    """Convert the bits of f16 or bf16 to float."""
    if dtype == "bf16":
        wide = f.convert("zext", x, "i32")
        return f.bitcast(f.binary("shl", wide, constant(wide.kind, 16)), with_element(x.kind, "float"))
    if _converts_halves(f):
        return _widened(f, f.bitcast(x, with_element(x.kind, "half")), "float")
    return _half_to_float(f, x)


def narrow_short(f: FunctionWriter, x: Register, dtype: str) -> Register:
    """Round a float to f16 or bf16, to the nearest, halves to even; gives the bits."""
    if dtype == "bf16":
        return _float_to_bfloat(f, x)
    if _converts_halves(f):
        # The fence keeps LLVM from rounding a double that became a float at once: no function of any library does that.
        fenced = f.intrinsic("llvm.arithmetic.fence", x.kind, x)
        return f.bitcast(f.convert("fptrunc", fenced, "half"), with_element(x.kind, "i16"))
    return _float_to_half(f, x)


def _converts_halves(f: FunctionWriter) -> bool:
    return f.target.has("f16c") or f.target.triple.startswith("aarch64")


def _float_to_bfloat(f: FunctionWriter, x: Register) -> Register:
    # By hand, since the processor's own instruction takes numbers below the normal range for zero.
    raw = f.bitcast(x, with_element(x.kind, "i32"))
    upper = f.binary("lshr", raw, constant(raw.kind, 16))
    odd = f.binary("and", upper, constant(raw.kind, 1))
    raised = f.binary("add", f.binary("add", raw, constant(raw.kind, 0x7FFF)), odd)
    rounded = f.binary("lshr", raised, constant(raw.kind, 16))
    rounded = f.select(f.compare("fcmp uno", x, x), constant(raw.kind, 0x7FC0), rounded)
    return f.convert("trunc", rounded, "i16")


def _half_to_float(f: FunctionWriter, x: Register) -> Register:
    wide = f.convert("zext", x, "i32")
    sign = f.binary("shl", f.binary("and", wide, constant(wide.kind, 0x8000)), constant(wide.kind, 16))
    digits = f.binary("shl", f.binary("and", wide, constant(wide.kind, 0x7FFF)), constant(wide.kind, 13))
    # Digits in a float's place are too small by 2^112; the product also makes small halves right.
    size = f.bitcast(digits, with_element(x.kind, "float"))
    scaled = f.bitcast(f.binary("fmul", size, constant(size.kind, 2.0**112)), wide.kind)
    special = f.compare("icmp uge", digits, constant(wide.kind, 0x7C00 << 13))
    scaled = f.select(special, f.binary("or", digits, constant(wide.kind, 0x7F800000)), scaled)
    return f.bitcast(f.binary("or", scaled, sign), size.kind)


def _float_to_half(f: FunctionWriter, x: Register) -> Register:
    raw = f.bitcast(x, with_element(x.kind, "i32"))

    def number(value: int) -> Register:
        return constant(raw.kind, value)

    sign = f.binary("and", f.binary("lshr", raw, number(16)), number(0x8000))
    size = f.binary("and", raw, number(0x7FFFFFFF))
    odd = f.binary("and", f.binary("lshr", size, number(13)), number(1))
    normal = f.binary("add", f.binary("add", size, number(0xFFF - (112 << 23))), odd)
    normal = f.binary("lshr", normal, number(13))
    # Below the normal halves, adding 1/2 leaves the digits, rounded, at the end of the sum.
    shifted = f.binary("fadd", f.bitcast(size, x.kind), constant(x.kind, 0.5))
    small = f.binary("sub", f.bitcast(shifted, raw.kind), number(0x3F000000))
    result = f.select(f.compare("icmp ult", size, number(113 << 23)), small, normal)
    result = f.select(f.compare("icmp uge", size, number(0x477FF000)), number(0x7C00), result)
    result = f.select(f.compare("icmp ugt", size, number(0x7F800000)), number(0x7E00), result)
    return f.convert("trunc", f.binary("or", result, sign), "i16")


def _to_truth(f: FunctionWriter, x: Register, source: str) -> Register:
    held = HELD[source]
    if held.kind == "float":
        return f.compare("fcmp une", x, constant(x.kind, 0.0))
    kept = f.binary("and", x, constant(x.kind, 0x7FFF)) if held.kind == "short" else x
    return f.compare("icmp ne", kept, constant(x.kind, 0))


def _float_to_float(f: FunctionWriter, x: Register, element: str) -> Register:
    return _widened(f, x, element) if element == "double" else f.convert("fptrunc", x, element)


def _widened(f: FunctionWriter, x: Register, element: str) -> Register:
    # The fence keeps LLVM 22 from moving a choice between x and 0 to the narrow type, where it mistakes -0 for 0.
    wide = f.convert("fpext", x, element)
    return f.intrinsic("llvm.arithmetic.fence", wide.kind, wide)


def _float_to_integer(f: FunctionWriter, x: Register, element: str) -> Register:
    # By way of 32 bits where the result and a float's exact range allow: processors convert those best.
    through = "i32" if bits_of(element) <= 32 and element_of(x.kind) == "float" else "i64"
    limit = 2.0 ** (bits_of(through) - 1)
    inside = f.binary(
        "and",
        f.compare("fcmp oge", x, constant(x.kind, -limit)),
        f.compare("fcmp olt", x, constant(x.kind, limit)),
    )
    # LLVM leaves the conversion of what does not fit undefined.
    whole = f.convert("fptosi", f.select(inside, x, constant(x.kind, 0.0)), through)
    whole = f.select(inside, whole, constant(whole.kind, -int(limit)))
    return _resized(f, whole, element, signed=True)


def _resized(f: FunctionWriter, x: Register, element: str, *, signed: bool) -> Register:
    if bits_of(element) == bits_of(x.kind):
        return x
    if bits_of(element) < bits_of(x.kind):
        return f.convert("trunc", x, element)
    return f.convert("sext" if signed else "zext", x, element)
