"""Derive the coefficients in weft.codegen.vecmath.core by the Remez exchange in many digits.

Run as a program, it writes the table; test_vecmath_tables.py compares that with the module.
"""

# ruff: noqa: E501 - a row of a table reads best on one line

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mpmath
from mpmath import mpf

DIGITS = 110
ROUNDS = 14
Function = Callable[[mpf], mpf]
NEAR_ZERO = mpf(10) ** -25

HEADER = """# fmt: off
POLYNOMIALS: dict[tuple[str, str], tuple[float, ...]] = {"""


@dataclass(frozen=True)
class Row:
    """One polynomial: its name, the function it is near to, the interval, the degree, what errors are multiplied by."""

    name: str
    element: str
    comment: str
    function: Function
    interval: tuple[object, object]
    degree: int
    weight: Function = lambda _: mpf(1)


def limit(function: Function, at_zero: object) -> Function:
    return lambda x: mpf(at_zero) if abs(x) < NEAR_ZERO else function(x)


def odd_rest(function: Function, at_zero: object) -> Function:
    """Give (function(x) - x) / x^3 as a function of x^2."""
    return limit(lambda z: (function(mpmath.sqrt(z)) - mpmath.sqrt(z)) / mpmath.sqrt(z) ** 3, at_zero)


def log_ratio(s: mpf) -> mpf:
    return mpmath.log((1 + s) / (1 - s))


def erfcx_scaled(t: mpf) -> mpf:
    x = 4 * (1 + t) / (1 - t)
    return mpmath.exp(x * x) * mpmath.erfc(x) * (1 + 2 * x)


def rows() -> list[Row]:
    log2, pi, exp = mpmath.log(2), mpmath.pi, mpmath.exp
    half = log2 / 2 * mpf("1.002")
    root = mpmath.sqrt(mpf(0.5))
    near_one = (root - 1 - mpf("0.0005"), 2 * root - 1 + mpf("0.0005"))
    eighth = (0, (pi / 4) ** 2 * mpf("1.002"))
    exp_rest = limit(lambda r: (exp(r) - 1 - r) / r**2, mpf(1) / 2)
    exp2_rest = limit(lambda r: (mpf(2) ** r - 1) / r, log2)
    sine, cosine = (
        odd_rest(mpmath.sin, -mpf(1) / 6),
        limit(lambda z: (mpmath.cos(mpmath.sqrt(z)) - 1 + z / 2) / z**2, mpf(1) / 24),
    )
    tangent, quarter = odd_rest(mpmath.tanh, -mpf(1) / 3), (0, ((log2 / 4 + mpf("0.09")) * mpf("1.002")) ** 2)
    slope = 2 / mpmath.sqrt(pi)
    erf_rest = limit(lambda x: (-mpmath.log(mpmath.erfc(x)) / x - slope) / x, 2 / pi)

    def erf_weight(x: mpf) -> mpf:
        if x < mpf(10) ** -9:
            return mpf("1e-9")
        return x * x * mpmath.erfc(x) / mpmath.erf(x) + mpf("1e-7")

    same = "the same"
    erf_comment = "(-log(1 - erf(x)) / x - 2 / sqrt(pi)) / x, x <= 3.95, weighted by what an error does to erf(x)"
    log_comment = "(log(1 + f) - f + f^2 / 2) / f^3, 1 + f within a factor of sqrt(2) of 1"
    log_ratio_comment = "(log((1 + s) / (1 - s)) - 2 s) / s^3 in z = s^2, s = f / (2 + f), f as above"
    return [
        Row("exp", "float", "(e^r - 1 - r) / r^2, |r| <= log(2) / 2", exp_rest, (-half, half), 4),
        Row("exp", "double", same, exp_rest, (-half, half), 9),
        Row("exp2", "float", "(2^r - 1) / r, |r| <= 1/2", exp2_rest, (-0.5, 0.5), 5),
        Row("exp2", "double", same, exp2_rest, (-0.5, 0.5), 11),
        Row("log", "float", log_comment, limit(lambda f: (mpmath.log(1 + f) - f + f * f / 2) / f**3, mpf(1) / 3), near_one, 8),
        Row(
            "log",
            "double",
            log_ratio_comment,
            limit(lambda z: (log_ratio(mpmath.sqrt(z)) - 2 * mpmath.sqrt(z)) / mpmath.sqrt(z) ** 3, mpf(2) / 3),
            (0, 0.0298),
            6,
        ),
        Row(
            "log2",
            "float",
            "(log2(1 + f) - f / log(2)) / f^2, f as above",
            limit(lambda f: (mpmath.log(1 + f) - f) / log2 / f**2, -1 / (2 * log2)),
            near_one,
            8,
        ),
        Row("tanh", "float", "(tanh(x) - x) / x^3 in z = x^2, x <= log(2) / 4 + 0.09", tangent, quarter, 2),
        Row("tanh", "double", same, tangent, quarter, 6),
        Row("erf", "float", erf_comment, erf_rest, (0, mpf("3.95")), 7, erf_weight),
        Row("erf", "double", same, erf_rest, (0, mpf("3.95")), 7, erf_weight),
        Row("sin", "float", "(sin(x) - x) / x^3 in z = x^2, x <= pi / 4", sine, eighth, 2),
        Row("cos", "float", "(cos(x) - 1 + z / 2) / z^2 in z = x^2, x <= pi / 4", cosine, eighth, 2),
        Row("sin", "double", "the same as for float", sine, eighth, 6),
        Row("cos", "double", "the same as for float", cosine, eighth, 6),
        Row("atan", "double", "(atan(x) - x) / x^3 in z = x^2, x <= 1", odd_rest(mpmath.atan, -mpf(1) / 3), (0, 1), 11),
        Row("asin", "double", "(asin(x) - x) / x^3 in z = x^2, x <= 1/2", odd_rest(mpmath.asin, mpf(1) / 6), (0, 0.2501), 7),
        Row(
            "erfcx",
            "double",
            "e^(x^2) (1 - erf(x)) (1 + 2 x) in t = (x - 4) / (x + 4), t <= 0.6",
            erfcx_scaled,
            (-1, mpf("0.6")),
            15,
        ),
    ]  # fmt: skip


def remez(row: Row) -> list[mpf]:
    """Exchange reference points until the weighted error is the same at all of them, with alternating sign."""
    low, high = (mpf(bound) for bound in row.interval)
    count = row.degree + 2
    middle, half = (low + high) / 2, (high - low) / 2
    points = [middle - half * mpmath.cos(mpmath.pi * (k + mpf(1) / 2) / count) for k in range(count)]
    grid = [middle - half * mpmath.cos(mpmath.pi * k / (24 * count)) for k in range(24 * count + 1)]
    coefficients: list[mpf] = []
    for _ in range(ROUNDS):
        coefficients = solved(row, points)
        errors = [(row.function(x) - mpmath.polyval(coefficients[::-1], x)) * row.weight(x) for x in grid]
        chosen = alternating(errors, count)
        if len(chosen) < count:
            break
        moved = [vertex(grid, errors, k) for k in chosen]
        done = max(abs(p - q) for p, q in zip(points, moved, strict=True)) < (high - low) * mpf(10) ** -9
        points = moved
        if done:
            break
    return coefficients


def solved(row: Row, points: Sequence[mpf]) -> list[mpf]:
    count = len(points)
    matrix, right = mpmath.matrix(count, count), mpmath.matrix(count, 1)
    for i, x in enumerate(points):
        for j in range(count - 1):
            matrix[i, j] = x**j
        matrix[i, count - 1] = (-1) ** i / row.weight(x)
        right[i] = row.function(x)
    return list(mpmath.lu_solve(matrix, right))[: count - 1]


def alternating(errors: Sequence[mpf], count: int) -> list[int]:
    """Choose the largest extrema whose signs alternate."""
    last = len(errors) - 1
    chosen: list[int] = []
    for k, error in enumerate(errors):
        sides = [errors[n] for n in (k - 1, k + 1) if 0 <= n <= last]
        if not all(abs(error) >= abs(side) or side * error < 0 for side in sides):
            continue
        if chosen and errors[chosen[-1]] * error > 0:
            if abs(error) > abs(errors[chosen[-1]]):
                chosen[-1] = k
        else:
            chosen.append(k)
    while len(chosen) > count:
        chosen.pop(0 if abs(errors[chosen[0]]) < abs(errors[chosen[-1]]) else -1)
    return chosen


def vertex(grid: Sequence[mpf], errors: Sequence[mpf], k: int) -> mpf:
    """Give the top of the parabola through an extremum and its neighbours."""
    if not 0 < k < len(grid) - 1:
        return grid[k]
    (a, b, c), (u, v, w) = grid[k - 1 : k + 2], errors[k - 1 : k + 2]
    below = (b - a) * (v - w) - (b - c) * (v - u)
    if not below:
        return b
    top = b - ((b - a) ** 2 * (v - w) - (b - c) ** 2 * (v - u)) / (2 * below)
    return top if a < top < c else b


def rounded(element: str, value: mpf) -> float:
    number = float(value)
    return struct.unpack("<f", struct.pack("<f", number))[0] if element == "float" else number


def wrapped(values: Sequence[float], indent: str, width: int) -> list[str]:
    lines, line = [], indent
    for value in values:
        if len(line) + len(f" {value!r},") > width:
            lines.append(line)
            line = indent
        line += f" {value!r},"
    return [*lines, line]


def turns() -> dict[str, list[float]]:
    """Give the tables of weft.codegen.vecmath.functions: (2^e 2/pi) mod 4 in three parts."""
    parts: dict[str, list[float]] = {"HIGH": [], "MIDDLE": [], "LOW": []}
    for exponent in range(-3, 105):
        rest = (mpf(2) ** exponent * 2 / mpmath.pi) % 4
        for name, digits in (("HIGH", 27), ("MIDDLE", 56)):
            part = mpmath.floor(rest * 2**digits) / 2**digits
            parts[name].append(float(part))
            rest -= part
        parts["LOW"].append(float(rest))
    return parts


def text() -> str:
    """Give the table in weft/codegen/vecmath/core.py."""
    with mpmath.workdps(DIGITS):
        lines = [HEADER]
        for row in rows():
            values = [rounded(row.element, value) for value in remez(row)]
            lines += [
                f"    # {row.comment}",
                f'    ("{row.name}", "{row.element}"): (',
                *wrapped(values, " " * 7, 110),
                "    ),",
            ]
        lines.append("}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(text(), end="")
