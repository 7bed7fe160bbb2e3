"""Define the kernel of a matrix product with its epilogue, and choose how it runs on a target.

The product is out[b, r, c] = epilogue(sum over i of left[b, r, i] * right[b, i, c] + bias). Vectors run along the
columns, so the output's column stride is 1; a product with the other layout is the product of the transposes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, prod

from weft.errors import InternalError
from weft.plan.kernels.expression import BLOCK_CYCLES, DTYPE_BYTES, SHORT_OPS, Instruction, body_cycles, dot_cycles
from weft.plan.kernels.kernel import Boxes, ByteBox, Kernel, Range, Sizes, box, by, cut_range
from weft.plan.kernels.walk import Blocks, Walk, cut
from weft.target import Target

# What a product or convolution does to a result while it is still in a register: a small elementwise expression.


# A body of few ops of an instruction or two is repeated for every vector of a register block.
LONGEST_REPEATED_BODY = 6


@dataclass(frozen=True)
class EpilogueOperand:
    """A tensor that an epilogue reads, by its strides in elements; a stride of 0 repeats what it reads.

    Without a dtype it has the kernel's element type.
    """

    batch: tuple[int, ...]
    row: int
    column: int
    dtype: str = ""


@dataclass(frozen=True)
class Epilogue:
    """A body over the sum (value 0) and the operands (the values from 1 on); its last value is stored.

    `bias` is added to the sum: it is where the sum starts. A kernel takes the bias, if there is one, and then the
    operands. The bias has the kernel's element type. What the body reads and stores may be of a shorter float.
    """

    bias: EpilogueOperand | None = None
    operands: tuple[EpilogueOperand, ...] = ()
    body: tuple[Instruction, ...] = ()

    @property
    def inputs(self) -> tuple[EpilogueOperand, ...]:
        """Give the tensors the kernel takes for it, in argument order."""
        return (*((self.bias,) if self.bias else ()), *self.operands)

    def stored_bytes(self, element: str) -> int:
        """Count the bytes of a number that is stored, in a kernel of this element type."""
        return DTYPE_BYTES[self.stored(element)]

    def stored(self, element: str) -> str:
        """Give the dtype of what is stored, in a kernel of this element type."""
        return self.body[-1].dtype if self.body else element

    def dtypes(self, element: str) -> tuple[str, ...]:
        """Give the dtype of each input, in a kernel of this element type."""
        return tuple(operand.dtype or element for operand in self.inputs)

    def operand_stored_alike(self, number: int, element: str) -> EpilogueOperand | None:
        """Give an input by its number, if there is one and what is stored is of its dtype."""
        if not 0 <= number < len(self.inputs) or self.stored(element) != self.dtypes(element)[number]:
            return None
        return replace(self.inputs[number], dtype="")

    @property
    def is_long(self) -> bool:
        """Tell whether the body is so long that its code should not be repeated for every row of a block."""
        computed = sum(step.op != "constant" for step in self.body)
        return computed > LONGEST_REPEATED_BODY or any(step.op not in SHORT_OPS for step in self.body)


ELEMENT_BITS = {"f32": 32, "f64": 64, "i32": 32}


@dataclass(frozen=True)
class Matrix:
    """Where a batch of matrices lies: strides in elements, one per batch dimension, then of rows and columns."""

    batch: tuple[int, ...]
    row: int
    column: int


@dataclass(frozen=True)
class PackedMatrix:
    """A right operand as a packing kernel leaves it: one panel after the other, each panel row after row.

    A panel is as many columns as a register block is wide, filled up with zeros to whole vectors. In groups, a column
    has so many numbers of the sum side by side, and the last row of a panel is filled up too.
    """

    batch: tuple[int, ...]


@dataclass(frozen=True)
class GemmSchedule:
    """How a product is computed.

    A register block is `block_rows` by `block_vectors` vectors of `lanes` numbers, or a little less at the edge.
    `inner_block` numbers of the sum are done before the next register block, partial sums waiting in the output; with
    `parts_inside` a register block does all such parts itself, and their total stays in its registers.
    A tile is `tile_row_blocks` by `tile_panels` register blocks; `rows_outside` visits all panels for a row block
    before the next row block. `unroll` steps of the sum are done per turn of the innermost loop, in `chains` separate
    sums. With `along_sum`, vectors run along the sum, where numbers of both operands lie side by side: a turn is one
    vector of each of `lanes` columns. A step multiplies `group` numbers of the sum that lie side by side: blocks, parts
    and turns count such steps.
    """

    lanes: int
    block_rows: int
    block_vectors: int
    inner_block: int
    tile_row_blocks: int
    tile_panels: int
    rows_outside: bool
    unroll: int = 1
    chains: int = 1
    along_sum: bool = False
    parts_inside: bool = False
    group: int = 1


@dataclass(frozen=True)
class GemmKernel(Kernel):
    """One product, or a batch of equal ones; arguments are out, left, right, the epilogue's inputs, begin, end.

    `element` is the type of the sums. An operand is of that too, or of the shorter `left_element` or `right_element`.
    """

    name: str
    element: str
    batch: tuple[int, ...]
    rows: int
    columns: int
    inner: int
    left: Matrix
    right: Matrix | PackedMatrix
    out: Matrix
    epilogue: Epilogue
    schedule: GemmSchedule
    accumulate: bool = False
    left_element: str = ""
    right_element: str = ""
    ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        group = self.schedule.group
        if group > 1 and (self.left.column != 1 or not isinstance(self.right, PackedMatrix)):
            fact = f"the kernel {self.name} multiplies {group} numbers at once"
            raise InternalError(fact, why="they must lie side by side in both operands")
        if self.out.column != 1 and self.columns > 1:
            fact = f"the kernel {self.name} writes columns {self.out.column} apart"
            raise InternalError(fact, why="its vectors run along the columns, which must be side by side")
        if self.epilogue.stored(self.element) != self.element and (self.accumulate or self.walk.parts.count > 1):
            fact = f"the kernel {self.name} stores {self.epilogue.stored(self.element)} in parts"
            raise InternalError(fact, why=f"the sums of its parts are {self.element}")

    @property
    def operands(self) -> tuple[str, str]:
        """Give the element types of both operands."""
        return self.left_element or self.element, self.right_element or self.element

    @property
    def steps(self) -> int:
        """Count the steps of the sum of which all numbers exist."""
        return self.inner // self.schedule.group

    @property
    def parts(self) -> Blocks:
        """Cut the turns of the loop over the sum into parts, each added up alone."""
        return cut(self.steps // self.schedule.unroll, self.most_turns)

    @property
    def most_turns(self) -> int:
        """Count the turns that a part has at most."""
        return max(self.schedule.inner_block // self.schedule.unroll, 1)

    @property
    def walk(self) -> Walk:
        """Give the blocks and tiles; `steps % unroll` steps of the sum, and a last few numbers, follow its turns."""
        schedule, parts = self.schedule, self.parts
        return Walk(
            matrices=prod(self.batch),
            lines=1,
            row_blocks=cut(self.rows, schedule.block_rows),
            panels=panels(self.columns, schedule),
            columns=self.columns,
            lanes=schedule.lanes,
            parts=cut(parts.total, max(parts.total, 1)) if schedule.parts_inside else parts,
            part_step=schedule.unroll,
            tile_row_blocks=schedule.tile_row_blocks,
            tile_panels=schedule.tile_panels,
            rows_outside=schedule.rows_outside,
        )

    @property
    def tile_count(self) -> int:
        """Count the tiles; any split of them over calls gives the same bits."""
        return self.walk.tile_count

    @property
    def tile_sizes(self) -> tuple[Sizes, Sizes]:
        """Give the rows of tiles above each other and the vectors of those side by side."""
        return self.walk.tile_sizes

    @property
    def cycles(self) -> float:
        """Estimate the cycles of its register blocks, or of its dots."""
        epilogue = body_cycles(self.epilogue.body)
        if self.schedule.along_sum:
            panel = dot_cycles(self.inner, self.schedule.lanes) + BLOCK_CYCLES + epilogue
            return self.walk.matrices * self.rows * self.walk.panels.count * panel
        return self.walk.cycles(-(-self.inner // self.schedule.group), epilogue)

    @property
    def summary(self) -> str:
        """Say the batch, rows, columns and steps of the sum, and the types of operands that are not those of sums."""
        given = "" if self.operands == (self.element, self.element) else f" of {' and '.join(self.operands)}"
        return by(*self.batch, self.rows, self.columns, self.inner) + given

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give the rows and columns written, what of both operands they are made of, and the epilogue's operands there.

        A packed operand may be read anywhere.
        """
        part = self.walk.covered(begin, end)
        rows, columns, inner = part.rows, part.columns, (0, self.inner)
        left, right_bytes = (DTYPE_BYTES[dtype] for dtype in self.operands)

        def matrix(where: Matrix | EpilogueOperand, sides: tuple[Range, Range], item: int) -> ByteBox | None:
            offset, steps = cut_range(self.batch, where.batch, *part.matrices) if self.batch else (0, [])
            for stride, (first, last) in zip((where.row, where.column), sides, strict=True):
                offset += first * stride
                steps = [*steps, (stride, last - first)]
            return box(offset, steps, item)

        right = None if isinstance(self.right, PackedMatrix) else matrix(self.right, (inner, columns), right_bytes)
        return (
            matrix(self.out, (rows, columns), self.epilogue.stored_bytes(self.element)),
            matrix(self.left, (rows, inner), left),
            right,
            *(
                matrix(line, (rows, columns), DTYPE_BYTES[dtype])
                for line, dtype in zip(self.epilogue.inputs, self.epilogue.dtypes(self.element), strict=True)
            ),
        )

    def renamed(self, name: str) -> GemmKernel:
        """Give the same kernel under another name."""
        return replace(self, name=name)

    def written_over(self, output: int, read: int, target: Target) -> GemmKernel | None:
        """Give the same kernel for an epilogue's operand that lies as the output, unless partial sums wait there."""
        operand = self.epilogue.operand_stored_alike(read - 2, self.element)
        if operand is None or self.accumulate or self.walk.parts.count > 1:
            return None
        return self if operand == EpilogueOperand(self.out.batch, self.out.row, self.out.column) else None


def panels(columns: int, schedule: GemmSchedule) -> Blocks:
    """Cut columns, counted in vectors, into panels."""
    return cut(-(-columns // schedule.lanes), schedule.block_vectors)


def packed_size(columns: int, inner: int, schedule: GemmSchedule) -> int:
    """Count the numbers of one packed matrix."""
    group = schedule.group
    return panels(columns, schedule).total * schedule.lanes * -(-inner // group) * group


# How a product should run on a target. The constants were measured on cores with two 512-bit multiply-adds and two
# loads a cycle; narrower cores order the register blocks alike.
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
MOST_CONVERTED_ROWS = 16  # for which panels of a shorter type, read in less time, are worth converting in registers
LEAST_COPY_COLUMNS, LEAST_PACK_ROWS, MANY_ROWS = 128, 64, 257  # with many rows, panels are always worth their packing
FAR_BYTES = 1024  # from one row of a right operand to the next
LINE_BYTES, LEAST_LINE_COLUMNS = 64, 32  # of a cache; fewer columns are few vectors
# What lies so far apart shares a place of the nearest cache: rows with so few places there must be packed.
SAME_PLACE_BYTES, FEW_PLACES = 4096, 8
SIZES_KNOWN = 1024  # sizes of products whose register blocks are kept: a step of a recurrent layer is like the next
MOST_DOT_ROWS, LEAST_DOT = 8, 4  # rows, and numbers of a sum, for which vectors run along the sum
TILES_PER_CORE = 4  # of a product whose panels do not fit the caches
LEAST_TILE_ROWS = 200  # rows that share one pass over a panel where the panels do not fit the caches


def choose_schedule(
    element: str, sizes: tuple[int, int, int], target: Target, *, in_parts: bool = True
) -> GemmSchedule:
    """Choose how a product of so many rows, columns and steps of the sum is computed.

    Without `in_parts` a sum is one chain: what is rounded to a shorter float in the end does not need better.
    """
    rows, columns, inner = sizes
    lanes, number_bytes = target.lanes(ELEMENT_BITS[element]), ELEMENT_BITS[element] // 8
    vectors = -(-columns // lanes)
    shared = inner * columns * number_bytes > target.l2_bytes // 2
    by_panels = shared and rows <= LEAST_TILE_ROWS
    longest = LONGEST_SUM[rows <= FEW_ROWS, shared] if in_parts else max(inner, 1)
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


def group_of(left: str, right: str, element: str, target: Target) -> int:
    """Count the numbers of a sum that a step multiplies, of operands of these types; the sum has its own."""
    if (left, right, element) == ("u8", "i8", "i32"):
        return 4
    return 2 if (left, right, element) == ("bf16", "bf16", "f32") and target.multiplies_pairs else 1


def choose_groups(element: str, sizes: tuple[int, int, int], group: int, target: Target) -> GemmSchedule:
    """Choose how a product is computed that multiplies so many numbers of the sum in a step."""
    rows, columns, inner = sizes
    chosen = choose_schedule(element, (rows, columns, -(-inner // group)), target, in_parts=False)
    # The last numbers may be no whole step: a turn has none of them.
    if inner // group < chosen.unroll:
        chosen = replace(chosen, unroll=1, chains=1)
    return replace(chosen, group=group)


def _fits(steps: int, block: tuple[int, int], target: Target, element: str) -> bool:
    """Tell whether so many steps of a panel and of a block's rows fit the nearest cache together."""
    (height, width), bits = block, ELEMENT_BITS[element]
    return steps * (width * target.lanes(bits) + height) * bits // 8 <= target.l1_bytes


def choose_dots(element: str, sizes: tuple[int, int, int], target: Target, *, in_parts: bool = True) -> GemmSchedule:
    """Choose how a product is computed with vectors along its sum, for `reads_across`."""
    rows, _, inner = sizes
    lanes = target.lanes(ELEMENT_BITS[element])
    cycles = max(rows, 1) * (dot_cycles(inner, lanes) + BLOCK_CYCLES)
    part = min(inner, LONGEST_SUM[True, False] * lanes) if in_parts else max(inner, 1)
    return GemmSchedule(
        lanes=lanes,
        block_rows=1,
        block_vectors=1,
        inner_block=part,
        tile_row_blocks=max(rows, 1),
        # Columns are read from their first number to the last before the next ones: memory is fetched ahead in order.
        tile_panels=1 if part < inner else max(1, int(TILE_CYCLES / cycles)),
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


def reads_across(sizes: tuple[int, int, int], left: Matrix, right: Matrix, most_rows: int = MOST_DOT_ROWS) -> bool:
    """Tell whether a right operand that lies column by column is better read so than packed: for few rows."""
    rows, columns, inner = sizes
    beside = left.column == 1 and right.row == 1 and right.column != 1
    return beside and 0 < rows <= most_rows and columns > 1 and inner >= LEAST_DOT


def packs_right(sizes: tuple[int, int, int], right: Matrix, element: str) -> bool:
    """Tell whether to pack a right operand that changes with every call; constant weights are packed anyway.

    Rows that lie far apart may share few places of the nearest cache; a panel is read once for each block of rows; and
    vectors of rows that do not begin where lines of a cache do are two lines each.
    """
    rows, columns, inner = sizes
    if columns == 1 or rows * columns * inner == 0:
        return False
    apart = right.row * ELEMENT_BITS[element] // 8
    if apart % LINE_BYTES and inner > 1 and rows >= LEAST_PACK_ROWS and columns >= LEAST_LINE_COLUMNS:
        return True
    places = SAME_PLACE_BYTES // gcd(apart, SAME_PLACE_BYTES)
    least = LEAST_PACK_ROWS if places <= FEW_PLACES else MANY_ROWS
    return right.column != 1 or (apart >= FAR_BYTES and inner > 1 and rows >= least)
