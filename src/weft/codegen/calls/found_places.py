"""Count the elements of a mask that are set, and write down where they are, in the order of memory.

`void count_places(mask*, i64 elements, out*)` counts. `void write_places(mask*, i64 elements, i64 count, out*)` writes
their places; `void write_rows_and_columns(mask*, i64 rows, i64 columns, i64 count, out*)` all rows, then all columns.
No step depends on a guess of what the next element is: each is written, and the next one goes over it if it is not set.
"""

from weft.codegen.llvm.module import FunctionWriter, Module, Register, constant, constants, vector
from weft.target import Target

COUNT, PLACES, ROWS = "count_places", "write_places", "write_rows_and_columns"
WORD = 8  # elements that are looked at together: where none is set, all are left out


def found_places_module(target: Target) -> str:
    """Write the module."""
    module = Module(target)
    _write_count(module.function(COUNT, ["ptr", "i64", "ptr"]), target.lanes(64))
    _write_places(module.function(PLACES, ["ptr", "i64", "i64", "ptr"]))
    _write_rows(module.function(ROWS, ["ptr", "i64", "i64", "i64", "ptr"]))
    return str(module)


def _write_count(f: FunctionWriter, lanes: int) -> None:
    mask, elements, out = f.parameters
    blocks, _ = f.divide(elements, lanes)
    kind = vector("i8", lanes)
    with f.loop(0, blocks, carried=[constants("i64", [0] * lanes)]) as loop:
        read = f.emit(kind, f"load {kind}, {f.offset(mask, 'i8', f.multiply(loop.index, lanes))}, align 1")
        is_set = f.compare("icmp ne", read, constants("i8", [0] * lanes))
        loop.carry(f.binary("add", loop.carried[0], f.convert("zext", is_set, "i64")))
    count = f.integer(0)
    for lane in range(lanes):
        count = f.add(count, f.extract(loop.carried[0], lane))
    with f.loop(f.multiply(blocks, lanes), elements, carried=[count]) as rest:
        rest.carry(f.add(rest.carried[0], _is_set(f, mask, rest.index)))
    f.store(rest.carried[0], out)


def _write_places(f: FunctionWriter) -> None:
    mask, elements, count, out = f.parameters
    _scan(_Found(f, count, [out]), mask, elements, f.integer(0))


def _write_rows(f: FunctionWriter) -> None:
    mask, rows, columns, count, out = f.parameters
    found = _Found(f, count, [out, f.offset(out, "i64", count)])
    with f.loop(0, rows, carried=[f.integer(0)]) as loop:
        begin = f.offset(mask, "i8", f.binary("mul", loop.index, columns))
        loop.carry(_scan(found, begin, columns, loop.carried[0], loop.index))


class _Found:
    """Where found places go: behind each other, and what comes after the last one nowhere."""

    def __init__(self, f: FunctionWriter, count: Register, outs: list[Register]) -> None:
        self.f, self._count, self._outs, self._nowhere = f, count, outs, f.stack("i64")

    def write(self, number: Register, *places: Register) -> None:
        """Write the place of what may be the next one that is set."""
        f = self.f
        fits = f.compare("icmp slt", number, self._count)
        for out, place in zip(self._outs, places, strict=True):
            f.store(place, f.select(fits, f.offset(out, "i64", number), self._nowhere))


def _scan(found: _Found, mask: Register, elements: Register, number: Register, *row: Register) -> Register:
    """Write down what is set among elements; gives how many were written before the next ones."""
    f = found.f
    words, _ = f.divide(elements, WORD)
    with f.loop(0, words, carried=[number]) as loop:
        first = f.multiply(loop.index, WORD)
        word = f.emit("i64", f"load i64, {f.offset(mask, 'i8', first)}, align 1")

        def some(first: Register = first, number: Register = loop.carried[0]) -> list[Register]:
            for step in range(WORD):
                place = f.add(first, step)
                found.write(number, *row, place)
                number = f.add(number, _is_set(f, mask, place))
            return [number]

        def none(number: Register = loop.carried[0]) -> list[Register]:
            return [number]

        loop.carry(*f.either(f.compare("icmp eq", word, f.integer(0)), none, some))
    with f.loop(f.multiply(words, WORD), elements, carried=[loop.carried[0]]) as rest:
        found.write(rest.carried[0], *row, rest.index)
        rest.carry(f.add(rest.carried[0], _is_set(f, mask, rest.index)))
    return rest.carried[0]


def _is_set(f: FunctionWriter, mask: Register, place: Register) -> Register:
    byte = f.load("i8", f.offset(mask, "i8", place))
    return f.convert("zext", f.compare("icmp ne", byte, constant("i8", 0)), "i64")
