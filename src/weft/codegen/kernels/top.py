"""Emit top-k: part a row's numbers and places by quickselect, then sort the first.

Contract of the emitted function: void name(out*, in*, begin, end) does the tiles [begin, end); out overlaps nothing.

Which of equal numbers are taken, and in which order, is not said by PyTorch's manual; it follows from the steps of the
C++ library's nth_element and sort that its operator calls. These are the same steps: the pivot is the median of the
second, the middle and the last; up to three are sorted by insertion, and so are the first in the end. Left out is what
that library does with rows on which quickselect takes long; there equal numbers may come in another order.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weft.codegen.llvm.dtypes import HELD, cast, from_memory
from weft.codegen.llvm.module import FunctionWriter, Module, Register
from weft.plan.kernels.expression import SHORT_FLOATS
from weft.plan.kernels.top import TopKernel

SORTED_BY_INSERTION = 3


def emit_top(module: Module, kernel: TopKernel) -> None:
    """Write the function of a kernel."""
    # SAFETY: noalias holds because the plan gives every buffer of a kernel bytes of its own.
    f = module.function(kernel.name, ["ptr noalias", "ptr noalias", "i64", "i64"])
    if kernel.tile_count:
        _TopWriter(f, kernel).write()


class _Counter:
    """A place that moves, in memory: LLVM makes registers of it."""

    def __init__(self, f: FunctionWriter) -> None:
        self._f = f
        self._memory = f.scratch("i64", 1)

    @property
    def now(self) -> Register:
        """Where it is."""
        return self._f.load("i64", self._memory)

    def move(self, to: Register | int) -> None:
        """Put it somewhere."""
        self._f.store(self._f.integer(to) if isinstance(to, int) else to, self._memory)

    def step(self, by: int) -> None:
        """Move it on."""
        self.move(self._f.add(self.now, by))


class _TopWriter:
    """Writes the loop over rows; `keys` and `places` hold one row's numbers and where they were."""

    def __init__(self, f: FunctionWriter, kernel: TopKernel) -> None:
        self.f = f
        self.kernel = kernel
        self.dtype = "f32" if kernel.dtype in SHORT_FLOATS else kernel.dtype
        self.element = HELD[self.dtype].element
        self.keys = f.scratch(self.element, kernel.extent)
        self.places = f.scratch("i64", kernel.extent)
        self.first, self.last, self.up, self.down = (_Counter(f) for _ in range(4))

    def write(self) -> None:
        """Write the loop over the rows of all tiles."""
        f, kernel = self.f, self.kernel
        out, source, begin, end = f.parameters
        stored = HELD[kernel.dtype].stored
        last = f.minimum(f.multiply(end, kernel.row_tile), f.integer(kernel.rows))
        with f.loop(f.multiply(begin, kernel.row_tile), last) as rows:
            row = f.offset(source, stored, f.multiply(rows.index, kernel.extent))
            with f.loop(0, kernel.extent) as columns:
                number = from_memory(f, f.load(stored, f.offset(row, stored, columns.index)), kernel.dtype)
                self._put(columns.index, (cast(f, number, kernel.dtype, self.dtype), columns.index))
            self._part()
            self._insert_all(self.first.now, self.last.now)
            if kernel.sorted:
                self._insert_all(f.integer(0), f.integer(kernel.count - 1))
            found = f.offset(out, "i64", f.multiply(rows.index, kernel.count))
            with f.loop(0, kernel.count) as columns:
                f.store(self._get(columns.index)[1], f.offset(found, "i64", columns.index))

    def _part(self) -> None:
        """Part the row again and again, until few are left around the last place that counts."""
        f, nth = self.f, self.f.integer(self.kernel.count - 1)
        self.first.move(0)
        self.last.move(self.kernel.extent)
        with self._while(lambda: f.compare("icmp sgt", self._length(), f.integer(SORTED_BY_INSERTION))):
            self._pivot_first()
            self._part_once()
            cut = self.up.now
            is_left = f.compare("icmp sle", cut, nth)
            first, last = f.select(is_left, cut, self.first.now), f.select(is_left, self.last.now, cut)
            self.first.move(first)
            self.last.move(last)

    def _length(self) -> Register:
        return self.f.binary("sub", self.last.now, self.first.now)

    def _pivot_first(self) -> None:
        """Exchange the first with the median of the second, the middle and the last."""
        f, first = self.f, self.first.now
        half = f.binary("lshr", self._length(), f.integer(1))
        a, b, c = f.add(first, 1), f.add(first, half), f.add(self.last.now, -1)
        keys = [self._get(place)[0] for place in (a, b, c)]
        ab, bc, ac = (self._is_before(keys[x], keys[y]) for x, y in ((0, 1), (1, 2), (0, 2)))
        rising = f.select(bc, b, f.select(ac, c, a))
        falling = f.select(ac, a, f.select(bc, c, b))
        self._exchange(first, f.select(ab, rising, falling))

    def _part_once(self) -> None:
        """Bring what is before the pivot, which is first, to the front; `up` ends where the rest begins."""
        f = self.f
        pivot = self._get(self.first.now)[0]
        self.up.move(f.add(self.first.now, 1))
        self.down.move(self.last.now)

        def meets() -> Register:
            with self._while(lambda: self._is_before(self._get(self.up.now)[0], pivot)):
                self.up.step(1)
            self.down.step(-1)
            with self._while(lambda: self._is_before(pivot, self._get(self.down.now)[0])):
                self.down.step(-1)
            return f.compare("icmp slt", self.up.now, self.down.now)

        with self._while(meets):
            self._exchange(self.up.now, self.down.now)
            self.up.step(1)

    def _insert_all(self, first: Register, last: Register) -> None:
        """Sort a part of the row by insertion; equal numbers keep their order."""
        f = self.f
        with f.loop(f.add(first, 1), last) as items:
            item = self._get(items.index)
            self.down.move(items.index)

            def is_after() -> Register:
                # At the first place there is none before: then it is compared with that one, and stays.
                before = f.maximum(f.add(self.down.now, -1), first)
                inside = f.compare("icmp sgt", self.down.now, first)
                return f.binary("and", inside, self._is_before(item[0], self._get(before)[0]))

            with self._while(is_after):
                self._put(self.down.now, self._get(f.add(self.down.now, -1)))
                self.down.step(-1)
            self._put(self.down.now, item)

    def _is_before(self, x: Register, y: Register) -> Register:
        """Whether a number comes before another: NaN is the largest."""
        f, largest = self.f, self.kernel.largest
        if HELD[self.dtype].kind != "float":
            sign = "s" if HELD[self.dtype].kind == "signed" else "u"
            return f.compare(f"icmp {sign}{'gt' if largest else 'lt'}", x, y)
        none, known = (x, y) if largest else (y, x)
        alone = f.binary("and", f.compare("fcmp uno", none, none), f.compare("fcmp ord", known, known))
        return f.binary("or", f.compare("fcmp ogt" if largest else "fcmp olt", x, y), alone)

    def _get(self, place: Register) -> tuple[Register, Register]:
        f = self.f
        return f.load(self.element, f.offset(self.keys, self.element, place)), f.load(
            "i64", f.offset(self.places, "i64", place)
        )

    def _put(self, place: Register, item: tuple[Register, Register]) -> None:
        self.f.store(item[0], self.f.offset(self.keys, self.element, place))
        self.f.store(item[1], self.f.offset(self.places, "i64", place))

    def _exchange(self, first: Register, second: Register) -> None:
        items = self._get(first), self._get(second)
        self._put(first, items[1])
        self._put(second, items[0])

    @contextmanager
    def _while(self, condition: Callable[[], Register]) -> Iterator[None]:
        """Repeat what is written inside for as long as a condition holds, which is written before it."""
        f = self.f
        again, body, after = f.label("again"), f.label("body"), f.label("done")
        f.branch(again)
        f.begin_block(again)
        f.branch_if(condition(), body, after)
        f.begin_block(body)
        yield
        f.branch(again)
        f.begin_block(after)
