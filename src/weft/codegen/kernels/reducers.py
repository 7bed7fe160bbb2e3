"""Give each kind of reduction what it starts from and how two partial results become one: a table with a row per kind.

A partial result is one register, or for argmax and argmin two: the extreme and its place. All rules work on vectors,
lane by lane, and give the same bits in whatever number of lanes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.codegen.kernels.elementwise import Typed, emit_op
from weft.codegen.llvm.dtypes import HELD, dtype_constant
from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register, bits_of, constant, lanes_of, vector

Partial = tuple[Register, ...]
LAST_PLACE = 2**62


@dataclass(frozen=True, slots=True)
class Reducer:
    """One kind: the number it starts from, the op that joins two partial results, and whether long chains lose bits."""

    start: Callable[[str], float]
    op: str
    cascades: bool = False
    places: bool = False

    def identity(self, dtype: str, lanes: int) -> Partial:
        """Give the partial result of nothing."""
        like = vector("i64", lanes)
        value = dtype_constant(dtype, self.start(dtype), like)
        return (value, constant(like, LAST_PLACE)) if self.places else (value,)

    def join(self, f: FunctionWriter, dtype: str, x: Partial, y: Partial) -> Partial:
        """Make one partial result of two."""
        if not self.places:
            return (emit_op(f, self.op, [Typed(x[0], dtype), Typed(y[0], dtype)], dtype),)
        better = self._is_better(f, dtype, y, x)
        return tuple(f.select(better, new, old) for new, old in zip(y, x, strict=True))

    def gather_lanes(self, f: FunctionWriter, dtype: str, partial: Partial) -> Partial:
        """Make one scalar partial result of the lanes of a vector, by halves."""
        lanes = lanes_of(partial[0].kind)
        while lanes > 1:
            lanes //= 2
            halves = [
                [f.shuffle(x, x, [lane + first for lane in range(lanes)]) for x in partial] for first in (0, lanes)
            ]
            partial = self.join(f, dtype, tuple(halves[0]), tuple(halves[1]))
        return partial

    def _is_better(self, f: FunctionWriter, dtype: str, x: Partial, y: Partial) -> Register:
        operands = [Typed(x[0], dtype), Typed(y[0], dtype)]
        better = emit_op(f, self.op, operands, "bool")
        equal = emit_op(f, "eq", operands, "bool")
        if HELD[dtype].kind == "float":
            no_number = [f.compare("fcmp uno", value, value) for value in (x[0], y[0])]
            known = f.binary("xor", no_number[1], constant(no_number[1].kind, 1))
            better = f.binary("or", better, f.binary("and", no_number[0], known))
            equal = f.binary("or", equal, f.binary("and", *no_number))
        earlier = f.compare("icmp slt", x[1], y[1])
        return f.binary("or", better, f.binary("and", equal, earlier))


def lowest(dtype: str) -> float:
    """Give what is below every number of a dtype."""
    return _limit(dtype, highest=False)


def highest(dtype: str) -> float:
    """Give what is above every number of a dtype."""
    return _limit(dtype, highest=True)


def _limit(dtype: str, *, highest: bool) -> float:
    held = HELD[dtype]
    if held.kind == "float":
        return float("inf") if highest else -float("inf")
    bits = bits_of(held.element)
    if held.kind == "signed":
        return (1 << (bits - 1)) - 1 if highest else -(1 << (bits - 1))
    return (1 << bits) - 1 if highest else 0


REDUCERS = {
    "sum": Reducer(lambda _: 0, "add", cascades=True),
    "prod": Reducer(lambda _: 1, "mul"),
    "max": Reducer(lowest, "maximum"),
    "min": Reducer(highest, "minimum"),
    "any": Reducer(lambda _: 0, "logical_or"),
    "all": Reducer(lambda _: 1, "logical_and"),
    "argmax": Reducer(lowest, "gt", places=True),
    "argmin": Reducer(highest, "lt", places=True),
}


def masked_partial(f: FunctionWriter, mask: Register | None, partial: Partial, identity: Partial) -> Partial:
    """Replace the lanes that do not exist by the partial result of nothing."""
    if mask is None:
        return partial
    return tuple(f.select(mask, x, nothing) for x, nothing in zip(partial, identity, strict=True))


def joined(f: FunctionWriter, reducer: Reducer, dtype: str, partials: Sequence[Partial]) -> Partial:
    """Make one partial result of several, by pairs."""
    found = list(partials)
    while len(found) > 1:
        pairs = [reducer.join(f, dtype, *found[i : i + 2]) for i in range(0, len(found) - 1, 2)]
        found = pairs + found[len(found) & ~1 :]
    return found[0]
