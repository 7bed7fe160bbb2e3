"""Sizes of a product and a target -> the GemmSchedule that should be fastest there.

The constants were measured on cores with two 512-bit multiply-adds and two loads a cycle; narrower cores order the
register blocks alike.
"""

from functools import lru_cache
from math import gcd

from weft.plan.kernels.blocks import cut
from weft.plan.kernels.cycles import BLOCK_CYCLES, dot_cycles
from weft.plan.kernels.gemm import ELEMENT_BITS, GemmSchedule, Matrix
from weft.target import Target

WIDE_BYTES = 64  # processors with vectors this wide, and those that are not x86, have 32 vector registers
SPARE_EIGHTH = 8  # a part of the registers is for the numbers of rows; with fewer, LLVM keeps sums in memory
MOST_ROWS, MOST_VECTORS = 10, 8
FUSED_IN_FLIGHT = 8  # multiply-adds that must not wait for each other to keep two units busy
STEP_CYCLES = 0.4  # per step, the turn of the loop
ROW_CYCLES, VECTOR_CYCLES = 0.13, 0.3  # per number and per vector loaded, although loads have units of their own
FEW_ROWS = 15  # up to which eager's vectors run along the sum: its chains are a vector's lanes shorter
# Steps in one chain of additions by whether rows are few, and whether weights fill the second cache, so that shorter
# chains cost time: longer ones round worse than what eager does.
LONGEST_SUM = {(False, False): 256, (False, True): 512, (True, False): 32, (True, True): 128}
TILE_CYCLES = 16_000.0  # a tile this long hides what handing it to a lane costs
BYTES_A_CYCLE = 16  # of weights that come from the second cache or farther
LEAST_COPIED = 32 * 1024  # numbers of a left operand worth copying, and columns that share the copy
LEAST_COPY_COLUMNS, LEAST_PACK_ROWS, MANY_ROWS = 128, 64, 257  # with many rows, panels are always worth their packing
FAR_BYTES = 1024  # from one row of a right operand to the next
# What lies so far apart shares a place of the nearest cache: rows with so few places there must be packed.
SAME_PLACE_BYTES, FEW_PLACES = 4096, 8
SIZES_KNOWN = 1024  # sizes of products whose register blocks are kept: a step of a recurrent layer is like the next
MOST_DOT_ROWS, LEAST_DOT = 8, 4  # rows, and numbers of a sum, for which vectors run along the sum
TILES_PER_CORE = 4  # of a product whose panels do not fit the caches
LEAST_TILE_ROWS = 200  # rows that share one pass over a panel where the panels do not fit the caches


def choose_schedule(element: str, sizes: tuple[int, int, int], target: Target) -> GemmSchedule:
    """Choose how a product of so many rows, columns and steps of the sum is computed."""
    rows, columns, inner = sizes
    lanes, number_bytes = target.lanes(ELEMENT_BITS[element]), ELEMENT_BITS[element] // 8
    vectors = -(-columns // lanes)
    shared = inner * columns * number_bytes > target.l2_bytes // 2
    by_panels = shared and rows <= LEAST_TILE_ROWS
    longest = LONGEST_SUM[rows <= FEW_ROWS, shared]
    registers, shares = vector_registers(target), target.cores if by_panels else 1
    # Blocks with room for totals are narrow: cores that multiply more, but shorter, vectors at once wait for loads.
    in_short_parts = rows <= FEW_ROWS and inner > longest and target.vector_bytes >= WIDE_BYTES
    widest = (target.l1_bytes // (max(inner, 1) * number_bytes) - MOST_ROWS) // lanes
    totals = totals_block((rows, vectors, inner), registers, shares, widest) if in_short_parts else None
    height, width = totals or register_block(rows, vectors, inner, registers, shares)
    chains = _chains(height * width, inner)
    part = max(1, min(inner, longest * chains))
    panel_bytes = part * width * lanes * number_bytes
    row_blocks, panels = cut(rows, height).count, cut(vectors, width).count
    if shared:
        most_panels = max(1, target.l2_bytes // 2 // panel_bytes)
        least_row_blocks = -(-LEAST_TILE_ROWS // height)
        tile_panels = _tile_panels(panels, most_panels, -(-row_blocks // least_row_blocks), target.cores)
        # Every tile reads its panels anew: no more tiles above each other than all cores need.
        tiles_down = -(-TILES_PER_CORE * target.cores // cut(panels, tile_panels).count)
        # As high as each other: lanes are given equally many.
        tile_row_blocks = cut(row_blocks, max(least_row_blocks, -(-row_blocks // tiles_down))).size
    else:
        cycles = step_cycles(height, width) * inner + BLOCK_CYCLES
        if row_blocks == 1:  # each number of a panel is used once: what takes time is to fetch it
            cycles = max(cycles, inner * width * lanes * number_bytes / BYTES_A_CYCLE)
        tile_row_blocks = cut(row_blocks, max(1, int(TILE_CYCLES / cycles))).size
        tile_panels = cut(panels, max(1, int(TILE_CYCLES / (cycles * tile_row_blocks)))).size
    return GemmSchedule(
        lanes=lanes,
        block_rows=height,
        block_vectors=width,
        inner_block=part,
        tile_row_blocks=tile_row_blocks,
        tile_panels=tile_panels,
        rows_outside=not _fits(inner if totals else part, (height, width), target, element),
        unroll=chains,
        chains=chains,
        parts_inside=totals is not None,
    )


def _fits(steps: int, block: tuple[int, int], target: Target, element: str) -> bool:
    """Tell whether so many steps of a panel and of a block's rows fit the nearest cache together."""
    (height, width), bits = block, ELEMENT_BITS[element]
    return steps * (width * target.lanes(bits) + height) * bits // 8 <= target.l1_bytes


def choose_dots(element: str, sizes: tuple[int, int, int], target: Target) -> GemmSchedule:
    """Choose how a product is computed with vectors along its sum, for `reads_across`."""
    rows, _, inner = sizes
    lanes = target.lanes(ELEMENT_BITS[element])
    cycles = max(rows, 1) * (dot_cycles(inner, lanes) + BLOCK_CYCLES)
    return GemmSchedule(
        lanes=lanes,
        block_rows=1,
        block_vectors=1,
        inner_block=min(inner, LONGEST_SUM[True, False] * lanes),
        tile_row_blocks=max(rows, 1),
        tile_panels=max(1, int(TILE_CYCLES / cycles)),
        rows_outside=False,
        unroll=lanes,
        along_sum=True,
    )


def _tile_panels(panels: int, most: int, most_down: int, cores: int) -> int:
    """Count the panels of a tile: at most so many, and fewer where few tiles above each other leave cores idle."""
    wanted = -(-TILES_PER_CORE * cores // max(most_down, 1))
    enough = max(1, min(cut(panels, most).size, panels // wanted))
    # What the busiest core gets is what counts.
    return min(
        range(-(-enough // 2), enough + 1),
        key=lambda size: (-(-most_down * -(-panels // size) // cores) * size, -size),
    )


def vector_registers(target: Target) -> int:
    """Count a target's vector registers."""
    return 32 if target.vector_bytes >= WIDE_BYTES or not target.triple.startswith("x86") else 16


@lru_cache(SIZES_KNOWN)
def register_block(rows: int, vectors: int, inner: int, registers: int, shares: int = 1) -> tuple[int, int]:
    """Choose the rows and vectors of a register block by estimated cycles over the whole product.

    The panels are to be shared out between so many cores: what the busiest one gets is what counts.
    """
    heights, widths, most = range(1, MOST_ROWS + 1), range(1, MOST_VECTORS + 1), registers - registers // SPARE_EIGHTH
    shapes = [(height, width) for height in heights for width in widths if height * width + width <= most]
    return _least_cycles(shapes, rows, vectors, inner, shares)


@lru_cache(SIZES_KNOWN)
def totals_block(sizes: tuple[int, int, int], registers: int, shares: int, widest: int) -> tuple[int, int] | None:
    """Choose a register block for sums in parts, with registers for the totals too, which never go through memory.

    Sizes are rows, vectors and steps of the sum. Blocks that lie above each other are wide, or they would wait for
    loads, but at most as the nearest cache holds a panel of all steps, or it would be fetched for each of them. None
    where no such block fits the registers.
    """
    rows, vectors, inner = sizes
    most = registers - registers // SPARE_EIGHTH
    shapes = [
        (height, width)
        for height in range(1, MOST_ROWS + 1)
        for width in range(1, MOST_VECTORS + 1)
        if height * width * (_chains(height * width, inner) + 1) + width <= most
        and (height >= rows or 1 < width <= widest)
    ]
    return _least_cycles(shapes, rows, vectors, inner, shares) if shapes else None


def _chains(sums: int, inner: int) -> int:
    """Count the separate sums that a turn of so many must alternate between."""
    return max(1, min(FUSED_IN_FLIGHT // max(sums, 1), inner))


def _least_cycles(shapes: list[tuple[int, int]], rows: int, vectors: int, inner: int, shares: int) -> tuple[int, int]:
    def cycles(shape: tuple[int, int]) -> float:
        panels = max(1, cut(vectors, shape[1]).count)
        return product_cycles(shape, rows, vectors, inner) * (-(-panels // shares) * shares / panels)

    return min(shapes, key=lambda shape: (cycles(shape), shape[0] * shape[1]))


def product_cycles(shape: tuple[int, int], rows: int, vectors: int, inner: int) -> float:
    """Estimate the cycles of a product in register blocks of a shape and their smaller neighbours."""
    row_blocks, panels = cut(rows, shape[0]), cut(vectors, shape[1])
    return sum(
        row_count * panel_count * (step_cycles(height, width) * inner + BLOCK_CYCLES)
        for height, row_count in ((row_blocks.size, row_blocks.large), (row_blocks.size - 1, row_blocks.small))
        for width, panel_count in ((panels.size, panels.large), (panels.size - 1, panels.small))
    )


def step_cycles(height: int, width: int) -> float:
    """Estimate the cycles of one step of the sum in one register block, of two multiply-adds or loads a cycle."""
    return max(height * width, height + width) / 2 + ROW_CYCLES * height + VECTOR_CYCLES * width + STEP_CYCLES


def copies_left(sizes: tuple[int, int, int], left: Matrix) -> bool:
    """Tell whether a left operand whose rows are not numbers side by side is better copied before the product."""
    rows, columns, inner = sizes
    return left.column != 1 and rows * inner >= LEAST_COPIED and columns >= LEAST_COPY_COLUMNS


def reads_across(sizes: tuple[int, int, int], left: Matrix, right: Matrix) -> bool:
    """Tell whether a right operand that lies column by column is better read so than packed: for few rows."""
    rows, columns, inner = sizes
    beside = left.column == 1 and right.row == 1 and right.column != 1
    return beside and 0 < rows <= MOST_DOT_ROWS and columns > 1 and inner >= LEAST_DOT


def packs_right(sizes: tuple[int, int, int], right: Matrix, element: str) -> bool:
    """Tell whether to pack a right operand that changes with every call; constant weights are packed anyway.

    Rows that lie far apart may share few places of the nearest cache; and a panel is read once for each block of rows.
    """
    rows, columns, inner = sizes
    if columns == 1 or rows * columns * inner == 0:
        return False
    apart = right.row * ELEMENT_BITS[element] // 8
    places = SAME_PLACE_BYTES // gcd(apart, SAME_PLACE_BYTES)
    least = LEAST_PACK_ROWS if places <= FEW_PLACES else MANY_ROWS
    return right.column != 1 or (apart >= FAR_BYTES and inner > 1 and rows >= least)
