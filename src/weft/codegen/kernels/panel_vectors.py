"""Load and store rows of numbers as vectors of one element type and width, the last of a row perhaps in part."""

from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register, constant, constants, vector

ELEMENTS = {"f32": "float", "f64": "double", "bf16": "bfloat", "i64": "i64"}


class Vectors:
    """Loads, stores and arithmetic on vectors of `lanes` numbers; `count` says how many of them exist, if not all."""

    def __init__(self, writer: FunctionWriter, element: str, lanes: int) -> None:
        self.writer = writer
        self.dtype = element
        self.element = ELEMENTS[element]
        self.lanes = lanes
        self.kind = vector(self.element, lanes)
        self.zero = constant(self.kind, 0.0)

    def address(self, base: Register, index: Register | int) -> Register:
        """Give the address so many elements after a base."""
        return self.writer.offset(base, self.element, index)

    def moved(self, base: Register, *moves: tuple[Register, int]) -> Register:
        """Give the address after moves, each an index and its stride in elements."""
        for index, stride in moves:
            if stride:
                base = self.address(base, self.writer.multiply(index, stride))
        return base

    def load_splat(self, address: Register) -> Register:
        """Load one number into all lanes."""
        return self.writer.splat(self.writer.load(self.element, address), self.lanes)

    def load(self, address: Register, count: int | None = None) -> Register:
        """Load a vector, or its first `count` numbers and zeros."""
        if count is None or count == self.lanes:
            return self.writer.load(self.kind, address)
        return self.writer.masked_load(self.kind, address, self._mask(count))

    def load_apart(self, address: Register, stride: int, count: int | None = None) -> Register:
        """Load numbers a stride apart, or the first `count` and zeros; those past the count are not touched."""
        if stride == 0:
            return self.load_splat(address)
        if stride == 1:
            return self.load(address, count)
        value = self.zero
        for lane in range(self.lanes if count is None else count):
            number = self.writer.load(self.element, self.address(address, lane * stride))
            value = self.writer.insert(value, number, lane)
        return value

    def store(self, value: Register, address: Register, count: int | None = None) -> None:
        """Store a vector, or its first `count` numbers only."""
        if count is None or count == self.lanes:
            self.writer.store(value, address)
        else:
            self.writer.masked_store(value, address, self._mask(count))

    def store_apart(self, value: Register, address: Register, stride: int, count: int | None = None) -> None:
        """Store a vector, or its first `count` numbers, a stride apart."""
        if stride == 1:
            self.store(value, address, count)
            return
        for lane in range(self.lanes if count is None else count):
            self.writer.store(self.writer.extract(value, lane), self.address(address, lane * stride))

    def _mask(self, count: int) -> Register:
        return constants("i1", [lane < count for lane in range(self.lanes)])


def all_lanes(writer: FunctionWriter, vectors: list[Register], lanes: int) -> Register:
    """Add up the lanes of each of at most as many vectors as lanes; gives a vector whose first lanes are these sums.

    Halves of two vectors are added into one, again and again, so all lanes work to the end.
    """
    given, group = len(vectors), lanes
    vectors = vectors + [vectors[0]] * ((1 << (given - 1).bit_length()) - given)
    while len(vectors) > 1:
        half = group // 2
        low = [start + lane for start in range(0, 2 * lanes, group) for lane in range(half)]
        high = [place + half for place in low]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [writer.binary("fadd", writer.shuffle(x, y, low), writer.shuffle(x, y, high)) for x, y in pairs]
        group = half
    total, width = vectors[0], lanes
    while group > 1:
        half = group // 2
        low = [start + lane for start in range(0, width, group) for lane in range(half)]
        high = [place + half for place in low]
        total = writer.binary("fadd", writer.shuffle(total, total, low), writer.shuffle(total, total, high))
        group, width = half, width // 2
    if width == 1:
        return writer.splat(total, lanes)
    return writer.shuffle(total, total, [min(lane, width - 1) for lane in range(lanes)])
