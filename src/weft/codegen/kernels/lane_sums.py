"""Vectors -> the sum of each one's lanes, all of them in one vector."""

from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register


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
