"""What kernels touch, against what their machine code does: nothing outside their boxes is read or written."""

import ctypes
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.plan.kernels.examples import EXAMPLES, file_of, finely

from weft.codegen.llvm.module import Module
from weft.codegen.objects.native import compile_native
from weft.codegen.plan_module import EMIT
from weft.ir.parser import parse_graph
from weft.plan.fuse.fuse import fuse
from weft.plan.kernels.kernel import ByteBox, Kernel, cut_range
from weft.plan.regions.attention import with_attentions
from weft.plan.regions.region import find_regions
from weft.target import host_target

CONVOLUTION = """graph m(%x: f32[2,{0},9,9], %w: f32[{1},{2},3,3]) {{
  %1: f32[2,{1},{5},{5}] = convolution %x, %w, stride=[{3}, {3}], padding=[{4}, {4}], dilation=[1, 1], groups={6}
  %2: f32[2,{1},{5},{5}] = relu %1
  return %2
}}"""
GRAPHS = {
    "product": """graph m(%x: f32[30,40], %w: f32[40,50], %b: f32[50], %r: f32[30,50]) {
  %1: f32[30,50] = matmul %x, %w
  %2: f32[1,50] = reshape %b, shape=[1, 50]
  %3: f32[30,50] = expand %2, shape=[30, 50]
  %4: f32[30,50] = add %1, %3
  %5: f32[30,50] = mul %4, %r
  return %5
}""",
    "batch": """graph m(%q: f32[2,3,20,8], %k: f32[2,3,8,20]) {
  %1: f32[2,3,20,20] = matmul %q, %k
  %2: f32[2,3,20,1] = max %1, dimensions=[3], keep=True
  %3: f32[2,3,20,20] = expand %2, shape=[2, 3, 20, 20]
  %4: f32[2,3,20,20] = sub %1, %3
  return %4
}""",
    "attention": """graph m(%q: f32[2,3,20,8], %k: f32[2,3,8,30], %v: f32[2,3,30,5], %m: f32[2,1,20,30]) {
  %0: f32[2,3,20,30] = expand %m, shape=[2, 3, 20, 30]
  %1: f32[2,3,20,30] = matmul %q, %k
  %2: f32[2,3,20,30] = add %1, %0
  %3: f32[2,3,20,1] = max %2, dimensions=[3], keep=True
  %4: f32[2,3,20,30] = expand %3, shape=[2, 3, 20, 30]
  %5: f32[2,3,20,30] = sub %2, %4
  %6: f32[2,3,20,30] = exp %5
  %7: f32[2,3,20,1] = sum %6, dimensions=[3], keep=True
  %8: f32[2,3,20,30] = expand %7, shape=[2, 3, 20, 30]
  %9: f32[2,3,20,30] = div %6, %8
  %10: f32[2,3,20,5] = matmul %9, %v
  return %10
}""",
    "loop": """graph m(%x: f32[40,50], %y: f32[50,40], %z: f32[50]) {
  %1: f32[40,50] = permute %y, order=[1, 0]
  %2: f32[40,50] = mul %x, %1
  %3: f32[1,50] = reshape %z, shape=[1, 50]
  %4: f32[40,50] = expand %3, shape=[40, 50]
  %5: f32[40,50] = add %2, %4
  return %5
}""",
    "slices": """graph m(%x: f32[6,20,30]) {
  %1: f32[3,7,20] = slice %x, start=[0, 3, 5], stop=[6, 17, 25], step=[2, 2, 1]
  %2: f32[3,7,20] = reverse %1, dimensions=[1]
  %3: f32[3,7,20] = neg %2
  return %3
}""",
    "sums along rows": """graph m(%x: f32[12,5,40]) {
  %1: f32[12,40] = sum %x, dimensions=[1], keep=False
  return %1
}""",
    "pool": """graph m(%x: f32[2,5,8,8]) {
  %1: f32[2,5,4,4] = average_pool %x, kernel_size=[2, 2], stride=[2, 2], padding=[0, 0], POOLING
  return %1
}""",
    "gradient of a pooling": """graph m(%g: f32[2,5,9,9], %x: f32[2,5,9,9]) {
  %1: f32[2,5,9,9] = average_pool_gradient %g, %x, kernel_size=[3, 3], stride=[1, 1], padding=[1, 1], POOLING
  return %1
}""",
    "gradient of a pooling, channels side by side": """graph m(%g: f32[3,21,4,4], %x: f32[3,21,9,9]) {
  %1: f32[3,21,9,9] = average_pool_gradient %g, %x, kernel_size=[3, 3], stride=[2, 2], padding=[0, 0], POOLING
  return %1
}""",
    "convolution": CONVOLUTION.format(5, 40, 5, 1, 1, 9, 1),
    "convolution without border": CONVOLUTION.format(16, 40, 16, 2, 0, 4, 1),
    "Winograd's way": CONVOLUTION.format(24, 40, 24, 1, 1, 9, 1),
    "groups": CONVOLUTION.format(6, 8, 3, 1, 1, 9, 2),
    "depthwise": CONVOLUTION.format(20, 20, 1, 2, 1, 5, 20),
}


def kernels_of(text: str) -> list[Kernel]:
    text = text.replace("POOLING", "ceil_mode=False, count_include_pad=True, divisor_override=None")
    graph = with_attentions(parse_graph(text), host_target())
    (region,) = find_regions(graph, frozenset(value for value in graph.inputs if value.name == "w"))
    return [finely(call.kernel) for call in fuse(region, host_target()).plan.calls]


def inside(found: ByteBox | None, size: int) -> NDArray[np.bool_]:
    """Mark the numbers of a buffer that a box covers."""
    if found is None:
        return np.ones(size, bool)
    starts = np.array([found.low])
    for stride, count in found.steps:
        starts = (starts[:, None] + stride * np.arange(count)).ravel()
    marked = np.zeros(size, bool)
    for start in starts:
        marked[start // 4 : (start + found.item) // 4] = True
    return marked


class MachineCode:
    """A kernel's function, and memory for its arguments: a view that runs backwards lies before its argument."""

    def __init__(self, kernel: Kernel) -> None:
        module = Module(host_target())
        EMIT[type(kernel)](module, kernel)
        self.library = compile_native(str(module), host_target())
        whole = kernel.boxes(0, kernel.tile_count)
        self.starts = [min(one.low, 0) // 4 if one else 0 for one in whole]
        self.sizes = [one.high // 4 - start if one else 1 << 16 for one, start in zip(whole, self.starts, strict=True)]
        kinds = [*[ctypes.c_void_p] * len(whole), ctypes.c_int64, ctypes.c_int64]
        self.function = ctypes.CFUNCTYPE(None, *kinds)(self.library.address(kernel.name))

    def numbers(self) -> list[NDArray[np.float32]]:
        made = np.random.default_rng(0)
        return [made.standard_normal(size).astype(np.float32) for size in self.sizes]

    def run(self, arguments: Sequence[NDArray[np.float32]], begin: int, end: int) -> None:
        places = (argument.ctypes.data - 4 * start for argument, start in zip(arguments, self.starts, strict=True))
        self.function(*places, begin, end)


def touches_only_its_boxes(kernel: Kernel, outputs: int = 1) -> None:
    code, tiles = MachineCode(kernel), kernel.tile_count
    starts, sizes, run = code.starts, code.sizes, code.run
    given = code.numbers()
    wanted = [argument.copy() for argument in given]
    run(wanted, 0, tiles)
    ranges = {(begin, end) for begin in range(0, tiles, max(1, tiles // 5)) for end in (begin + 1, begin + 4, tiles)}
    for begin, end in sorted((begin, min(end, tiles)) for begin, end in ranges):
        found = kernel.boxes(begin, end)
        marks = [
            inside(one and one.moved(-4 * start), size) for one, start, size in zip(found, starts, sizes, strict=True)
        ]
        mine = [np.where(mark, argument, np.float32(np.nan)) for mark, argument in zip(marks, given, strict=True)]
        for number in range(outputs):
            mine[number] = np.full(sizes[number], 12345.0, np.float32)
        run(mine, begin, end)
        for number in range(outputs):
            written = mine[number] != 12345.0
            assert written.any()
            where = f"{file_of(type(kernel))}: tiles [{begin}, {end})"
            assert not (written & ~marks[number]).any(), f"{where} write outside their box"
            assert np.array_equal(mine[number][written], wanted[number][written]), f"{where} read outside theirs"


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_touch_only_what_their_boxes_say(name: str) -> None:
    for kernel in kernels_of(GRAPHS[name]):
        touches_only_its_boxes(kernel)


# Kinds that read or write places, which random numbers are not; and how many arguments those write that write several.
OF_PLACES = {"CheckKernel", "ScatterKernel", "TopKernel"}
WRITES = {"AttentionKernel": 3, "AttentionGradientKernel": 3, "RecurrentKernel": 2}


@pytest.mark.parametrize("kind", sorted(EXAMPLES.keys() - OF_PLACES))
def test_a_kernel_of_each_kind_touches_only_what_its_boxes_say(kind: str) -> None:
    kernel = finely(EXAMPLES[kind]())
    touches_only_its_boxes(kernel, WRITES.get(kind, 1))


@pytest.mark.parametrize("kind", sorted(EXAMPLES.keys() - OF_PLACES))
def test_what_may_be_written_over_an_argument_gives_the_same_there(kind: str) -> None:
    example = EXAMPLES[kind]()
    for read in range(len(example.boxes(0, example.tile_count)) - WRITES.get(kind, 1)):
        over = example.written_over(0, read, host_target())
        if over is None:
            continue
        kernel = finely(over)
        code, place = MachineCode(kernel), read + WRITES.get(kind, 1)
        apart, shared = code.numbers(), code.numbers()
        shared[0] = shared[place]
        for tile in range(kernel.tile_count):
            code.run(apart, tile, tile + 1)
            code.run(shared, tile, tile + 1)
        marks = inside(kernel.boxes(0, kernel.tile_count)[0], code.sizes[0])
        assert np.array_equal(apart[0][marks], shared[0][marks]), (
            f"{file_of(type(kernel))}: `written_over` argument {read}, the result is another"
        )


def test_a_cut_within_one_row_is_exact() -> None:
    assert cut_range((3, 10), (100, 1), 12, 17) == (102, [(1, 5)])


def test_a_cut_across_rows_takes_whole_rows() -> None:
    assert cut_range((3, 10), (100, 1), 12, 27) == (100, [(100, 2), (1, 10)])
