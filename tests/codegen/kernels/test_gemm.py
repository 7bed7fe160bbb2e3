"""Products equal torch's at every size around the blocking, on every target, however the tiles are split."""

from dataclasses import replace

import pytest
import torch
from tests.codegen.kernel_cases import assert_as_exact_as_eager, assert_untouched, compiled, guarded, targets

from weft.codegen.kernels.gemm import emit_gemm
from weft.codegen.kernels.pack import emit_pack
from weft.codegen.llvm.module import Module
from weft.errors import InternalError
from weft.plan.kernels.expression import Instruction
from weft.plan.kernels.gemm import (
    Epilogue,
    EpilogueOperand,
    GemmKernel,
    GemmSchedule,
    Matrix,
    PackedMatrix,
    choose_dots,
    choose_groups,
    choose_schedule,
    copies_left,
    packed_size,
    packs_right,
    panels,
    reads_across,
)
from weft.plan.kernels.pack import PackKernel
from weft.target import Target

TARGETS = targets()
IDS = [target.name for target in TARGETS]
SIZES = [
    (1, 1, 1), (1, 17, 5), (2, 16, 16), (3, 15, 33), (5, 31, 17), (8, 64, 48), (13, 7, 65), (17, 33, 50),
    (31, 63, 15), (33, 2, 64), (64, 65, 63), (65, 1, 31), (0, 3, 5), (3, 0, 5), (3, 5, 0),
]  # fmt: skip
BIAS = EpilogueOperand((), 0, 1)
DTYPES = {"f32": torch.float32, "f64": torch.float64}


def product(size: tuple[int, int, int], schedule: GemmSchedule, **fields: object) -> GemmKernel:
    rows, inner, columns = size
    plain = {
        "name": "product",
        "element": "f32",
        "batch": (),
        "rows": rows,
        "columns": columns,
        "inner": inner,
        "left": Matrix((), inner, 1),
        "right": Matrix((), columns, 1),
        "out": Matrix((), columns, 1),
        "epilogue": Epilogue(),
        "schedule": schedule,
    }
    return GemmKernel(**{**plain, **fields})


def run(target: Target, kernel: GemmKernel, *tensors: torch.Tensor) -> None:
    call = compiled(target, lambda module: emit_gemm(module, kernel))
    call("product", *tensors, begin=0, end=kernel.tile_count)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_product_with_a_packed_weight_equals_linear(target: Target, size: tuple[int, int, int]) -> None:
    rows, inner, columns = size
    schedule = choose_schedule("f32", (rows, columns, inner), target)
    kernel = product(size, schedule, right=PackedMatrix(()), epilogue=Epilogue(bias=BIAS))
    pack = PackKernel(
        "pack", "f32", (), inner, columns, Matrix((), 1, inner), (), schedule.lanes, panels(columns, schedule)
    )
    x, weight, bias = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(columns)
    packed, whole_packed = guarded(packed_size(columns, inner, schedule))
    out, whole = guarded(rows, columns)
    call = compiled(target, lambda module: emit_gemm(module, kernel), lambda module: emit_pack(module, pack))
    call("pack", packed, weight, begin=0, end=pack.tile_count)
    call("product", out, x, packed, bias, begin=0, end=kernel.tile_count)
    linear = torch.nn.functional.linear
    assert_as_exact_as_eager(out, linear(x, weight, bias), linear(x.double(), weight.double(), bias.double()))
    assert_untouched(whole)
    assert_untouched(whole_packed)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_reads_operands_in_place_from_any_rows(target: Target, element: str, transposed: bool) -> None:
    size, dtype = (19, 37, 43), DTYPES[element]
    left = Matrix((), 1, 19) if transposed else Matrix((), 37, 1)
    kernel = product(size, choose_schedule(element, (19, 43, 37), target), element=element, left=left)
    x = torch.randn(37, 19, dtype=dtype).t() if transposed else torch.randn(19, 37, dtype=dtype)
    y = torch.randn(37, 43, dtype=dtype)
    out, whole = guarded(19, 43, dtype=dtype)
    run(target, kernel, out, x, y)
    torch.testing.assert_close(out, x @ y)
    assert_untouched(whole)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize(
    "size",
    [(1, 4, 2), (1, 64, 129), (2, 5, 16), (3, 33, 17), (4, 16, 31), (8, 300, 40), (1, 1100, 5), (0, 8, 8)],
    ids=str,
)
def test_columns_that_lie_apart_are_read_in_place(target: Target, element: str, size: tuple[int, int, int]) -> None:
    (rows, inner, columns), dtype = size, DTYPES[element]
    body = (Instruction("relu", (0,), element),)
    kernel = product(
        size,
        choose_dots(element, (rows, columns, inner), target),
        element=element,
        left=Matrix((), inner + 3, 1),
        right=Matrix((), 1, inner + 2),
        epilogue=Epilogue(bias=BIAS, body=body),
    )
    x = guarded(rows, inner + 3, dtype=dtype)[0].normal_()[:, :inner]
    y = guarded(columns, inner + 2, dtype=dtype)[0].normal_()[:, :inner]
    bias = torch.randn(columns, dtype=dtype)
    out, whole = guarded(rows, columns, dtype=dtype)
    call = compiled(target, lambda module: emit_gemm(module, kernel))
    for tile in reversed(range(kernel.tile_count)):
        call("product", out, x, y, bias, begin=tile, end=tile + 1)
    eager, exact = (x @ y.t() + bias).relu(), (x.double() @ y.double().t() + bias.double()).relu()
    assert_as_exact_as_eager(out, eager, exact)
    assert_untouched(whole)
    again = torch.empty_like(out)
    call("product", again, x, y, bias, begin=0, end=kernel.tile_count)
    assert torch.equal(out, again)


def test_only_few_rows_are_worth_reading_columns_in_place() -> None:
    across, beside = Matrix((), 1, 64), Matrix((), 64, 1)
    assert [reads_across((rows, 100, 64), beside, across) for rows in (1, 8, 9)] == [True, True, False]
    assert not reads_across((1, 100, 64), beside, beside)
    assert not reads_across((2, 100, 64), across, across)


@pytest.mark.parametrize("rows_outside", [False, True])
@pytest.mark.parametrize("parts_inside", [False, True])
@pytest.mark.parametrize("unroll, chains", [(1, 1), (2, 2), (4, 2), (6, 3)])
def test_parts_of_the_sum_add_up(rows_outside: bool, parts_inside: bool, unroll: int, chains: int) -> None:
    target = TARGETS[0]
    schedule = replace(
        choose_schedule("f32", (20, 70, 103), target),
        block_rows=3,
        block_vectors=2,
        inner_block=16,
        rows_outside=rows_outside,
        unroll=unroll,
        chains=chains,
        parts_inside=parts_inside,
    )
    x, y, bias = torch.randn(20, 103), torch.randn(103, 70), torch.randn(70)
    kernel = product((20, 103, 70), schedule, epilogue=Epilogue(bias=BIAS, body=(Instruction("relu", (0,), "f32"),)))
    out, _ = guarded(20, 70)
    run(target, kernel, out, x, y, bias)
    torch.testing.assert_close(out, (x @ y + bias).relu())


@pytest.mark.parametrize("inner_block, endings", [(32, (2, 2)), (16, (3, 2))])
@pytest.mark.parametrize("ends", [True, False])
def test_parts_that_end_alike_share_their_code(inner_block: int, endings: tuple[int, int], ends: bool) -> None:
    target = TARGETS[0]
    chosen = choose_schedule("f32", (4, 16, 64), target)
    schedule = replace(
        chosen, block_rows=4, block_vectors=1, inner_block=inner_block, unroll=1, chains=1, parts_inside=False
    )
    epilogue = Epilogue(bias=BIAS, body=(Instruction("relu", (0,), "f32"),) if ends else ())
    kernel = product((4, 64, 16), schedule, epilogue=epilogue)
    module = Module(target)
    emit_gemm(module, kernel)
    assert str(module).count("\nend") == endings[0 if ends else 1]
    x, y, bias = torch.randn(4, 64), torch.randn(64, 16), torch.randn(16)
    out, _ = guarded(4, 16)
    run(target, kernel, out, x, y, bias)
    torch.testing.assert_close(out, (x @ y + bias).relu() if ends else x @ y + bias)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_parts_inside_a_block_give_the_bits_of_parts_outside(target: Target) -> None:
    chosen = choose_schedule("f32", (8, 50, 100), target)
    schedule = replace(chosen, block_rows=8, block_vectors=1, inner_block=32, unroll=1, chains=1, parts_inside=True)
    x, y = torch.randn(8, 100), torch.randn(100, 50)
    inside, outside = guarded(8, 50)[0], guarded(8, 50)[0]
    run(target, product((8, 100, 50), schedule), inside, x, y)
    run(target, product((8, 100, 50), replace(schedule, parts_inside=False)), outside, x, y)
    assert torch.equal(inside, outside)


def test_any_split_of_the_tiles_gives_the_same_bits() -> None:
    target = TARGETS[0]
    schedule = replace(
        choose_schedule("f32", (50, 200, 100), target), block_rows=4, tile_row_blocks=3, tile_panels=1, inner_block=40
    )
    kernel = product((50, 100, 200), schedule)
    x, y = torch.randn(50, 100), torch.randn(100, 200)
    call = compiled(target, lambda module: emit_gemm(module, kernel))
    together, apart = torch.empty(50, 200), torch.empty(50, 200)
    call("product", together, x, y, begin=0, end=kernel.tile_count)
    for tile in reversed(range(kernel.tile_count)):
        call("product", apart, x, y, begin=tile, end=tile + 1)
    assert kernel.tile_count > 8
    assert torch.equal(together, apart)


def test_a_batch_repeats_an_operand_whose_stride_is_0() -> None:
    target = TARGETS[0]
    schedule = choose_schedule("f32", (5, 20, 9), target)
    kernel = product(
        (5, 9, 20),
        schedule,
        batch=(2, 3),
        left=Matrix((3 * 45, 45), 9, 1),
        right=Matrix((0, 180), 20, 1),
        out=Matrix((300, 100), 20, 1),
    )
    x, y = torch.randn(2, 3, 5, 9), torch.randn(3, 9, 20)
    out, whole = guarded(2, 3, 5, 20)
    run(target, kernel, out, x, y)
    torch.testing.assert_close(out, x @ y)
    assert_untouched(whole)


def test_accumulation_adds_to_what_is_there_before_the_epilogue() -> None:
    target = TARGETS[0]
    kernel = product(
        (7, 11, 21),
        choose_schedule("f32", (7, 21, 11), target),
        accumulate=True,
        epilogue=Epilogue(body=(Instruction("add", (0, 0), "f32"),)),
    )
    x, y, out = torch.randn(7, 11), torch.randn(11, 21), torch.randn(7, 21)
    expected = (out + x @ y) * 2
    run(target, kernel, out, x, y)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_an_epilogue_reads_residuals_and_columns_with_their_strides(target: Target) -> None:
    epilogue = Epilogue(
        operands=(EpilogueOperand((), 45, 1), EpilogueOperand((), 1, 0), EpilogueOperand((), 1, 7)),
        body=(
            Instruction("add", (0, 1), "f32"),
            Instruction("mul", (4, 2), "f32"),
            Instruction("constant", (), "f32", (0.5,)),
            Instruction("sub", (5, 3), "f32"),
            Instruction("mul", (7, 6), "f32"),
            Instruction("tanh", (8,), "f32"),
        ),
    )
    kernel = product((7, 11, 37), choose_schedule("f32", (7, 37, 11), target), epilogue=epilogue)
    x, y = torch.randn(7, 11), torch.randn(11, 37)
    residual, scale, other = torch.randn(7, 45)[:, :37], torch.randn(7, 1), torch.randn(37, 7).t()
    out, whole = guarded(7, 37)
    run(target, kernel, out, x, y, residual, scale, other)
    torch.testing.assert_close(out, (((x @ y + residual) * scale - other) * 0.5).tanh())
    assert_untouched(whole)


SHORT = {"bf16": torch.bfloat16, "f16": torch.float16}


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("casts", [("bf16", "f32"), ("f16", "f32"), ("f32", "bf16", "f32")], ids="-".join)
@pytest.mark.parametrize("across", [True, False])
def test_a_weight_is_converted_as_it_is_packed(target: Target, casts: tuple[str, ...], across: bool) -> None:
    rows, inner, columns = 5, 37, 53
    schedule = choose_schedule("f32", (rows, columns, inner), target, in_parts=False)
    kernel = product((rows, inner, columns), schedule, right=PackedMatrix(()))
    source = Matrix((), 1, inner) if across else Matrix((), columns, 1)
    pack = PackKernel(
        "pack", "f32", (), inner, columns, source, (), schedule.lanes, panels(columns, schedule), casts=casts
    )
    dtypes = {**SHORT, **DTYPES}
    x, weight = torch.randn(rows, inner), torch.randn(columns * inner).to(dtypes[casts[0]])
    packed, whole_packed = guarded(packed_size(columns, inner, schedule))
    out, whole = guarded(rows, columns)
    call = compiled(target, lambda module: emit_gemm(module, kernel), lambda module: emit_pack(module, pack))
    call("pack", packed, weight, begin=0, end=pack.tile_count)
    call("product", out, x, packed, begin=0, end=kernel.tile_count)
    wide = weight
    for dtype in casts[1:]:
        wide = wide.to(dtypes[dtype])
    right = wide.view(columns, inner).t() if across else wide.view(inner, columns)
    assert_as_exact_as_eager(out, x @ right, x.double() @ right.double())
    assert_untouched(whole)
    assert_untouched(whole_packed)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("short", SHORT)
@pytest.mark.parametrize("size", [(1, 3, 17), (7, 33, 37), (20, 300, 64)], ids=str)
def test_an_epilogue_reads_and_stores_short_floats(target: Target, short: str, size: tuple[int, int, int]) -> None:
    (rows, inner, columns), dtype = size, SHORT[short]
    operands = (EpilogueOperand((), columns + 3, 1, short), EpilogueOperand((), 1, 0, short))
    body = (
        Instruction("cast", (1,), "f32"),
        Instruction("add", (0, 3), "f32"),
        Instruction("cast", (4,), short),
        Instruction("cast", (5,), "f32"),
        Instruction("cast", (2,), "f32"),
        Instruction("mul", (6, 7), "f32"),
        Instruction("cast", (8,), short),
    )
    schedule = choose_schedule("f32", (rows, columns, inner), target, in_parts=False)
    kernel = product(size, schedule, epilogue=Epilogue(bias=BIAS, operands=operands, body=body))
    x, y, bias = torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(columns)
    residual, scale = torch.randn(rows, columns + 3).to(dtype)[:, :columns], torch.randn(rows, 1).to(dtype)
    out, whole = guarded(rows, columns, dtype=dtype)
    call = compiled(target, lambda module: emit_gemm(module, kernel))
    for tile in reversed(range(kernel.tile_count)):
        call("product", out, x, y, bias, residual, scale, begin=tile, end=tile + 1)
    assert_untouched(whole)
    torch.testing.assert_close(out, ((x @ y + bias) + residual).to(dtype) * scale)


def test_what_is_stored_in_a_short_float_is_one_sum() -> None:
    schedule = choose_schedule("f32", (40, 64, 2000), TARGETS[0])
    with pytest.raises(InternalError, match="stores bf16 in parts"):
        product((40, 2000, 64), schedule, epilogue=Epilogue(body=(Instruction("cast", (0,), "bf16"),)))


GROUP_SIZES = [(1, 1, 1), (2, 4, 16), (3, 5, 33), (7, 64, 48), (17, 131, 70), (40, 259, 100), (5, 2, 20), (1, 515, 200)]


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("size", GROUP_SIZES, ids=str)
@pytest.mark.parametrize("across", [True, False])
def test_products_of_8_bits_are_exact(target: Target, size: tuple[int, int, int], across: bool) -> None:
    rows, inner, columns = size
    schedule = choose_groups("i32", (rows, columns, inner), 4, target)
    kernel = product(
        size, schedule, element="i32", left_element="u8", right_element="i8",
        left=Matrix((), inner + 1, 1), right=PackedMatrix(()), epilogue=Epilogue(bias=BIAS),
    )  # fmt: skip
    source = Matrix((), 1, inner) if across else Matrix((), columns, 1)
    pack = PackKernel("pack", "i8", (), inner, columns, source, (), schedule.lanes, panels(columns, schedule), group=4)
    x = torch.randint(0, 256, (rows, inner + 1), dtype=torch.uint8)
    weight = torch.randint(-128, 128, (columns, inner) if across else (inner, columns), dtype=torch.int8)
    bias = torch.randint(-(1 << 20), 1 << 20, (columns,), dtype=torch.int32)
    packed = torch.full((packed_size(columns, inner, schedule) + 64,), 77, dtype=torch.int8)
    out = torch.full((rows * columns + 16,), 123456789, dtype=torch.int32)
    call = compiled(target, lambda module: emit_gemm(module, kernel), lambda module: emit_pack(module, pack))
    call("pack", packed, weight, begin=0, end=pack.tile_count)
    for tile in reversed(range(kernel.tile_count)):
        call("product", out, x, packed, bias, begin=tile, end=tile + 1)
    right = weight.t() if across else weight
    assert torch.equal(out[: rows * columns].view(rows, columns), x[:, :inner].int() @ right.int() + bias)
    assert (out[rows * columns :] == 123456789).all()
    assert (packed[packed_size(columns, inner, schedule) :] == 77).all()


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("size", GROUP_SIZES, ids=str)
def test_products_of_pairs_of_bfloat16_are_as_exact_as_eagers(target: Target, size: tuple[int, int, int]) -> None:
    rows, inner, columns = size
    schedule = choose_groups("f32", (rows, columns, inner), 2, target)
    kernel = product(
        size, schedule, left_element="bf16", right_element="bf16", right=PackedMatrix(()),
        epilogue=Epilogue(body=(Instruction("cast", (0,), "bf16"),)),
    )  # fmt: skip
    pack = PackKernel(
        "pack", "bf16", (), inner, columns, Matrix((), 1, inner), (), schedule.lanes, panels(columns, schedule),
        casts=("f32", "bf16"), group=2,
    )  # fmt: skip
    x, weight = torch.randn(rows, inner, dtype=torch.bfloat16), torch.randn(columns, inner)
    packed = torch.full((packed_size(columns, inner, schedule),), torch.nan, dtype=torch.bfloat16)
    out, whole = guarded(rows, columns, dtype=torch.bfloat16)
    call = compiled(target, lambda module: emit_gemm(module, kernel), lambda module: emit_pack(module, pack))
    call("pack", packed, weight, begin=0, end=pack.tile_count)
    call("product", out, x, packed, begin=0, end=kernel.tile_count)
    short = weight.bfloat16()
    assert_as_exact_as_eager(out, x @ short.t(), x.double() @ short.double().t())
    assert_untouched(whole)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("short", [*SHORT, "i8"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_panel_of_a_shorter_type_is_converted_as_it_is_read(target: Target, short: str, rows: int) -> None:
    inner, columns, dtype = 61, 77, {**SHORT, "i8": torch.int8}[short]
    schedule = choose_schedule("f32", (rows, columns, inner), target)
    kernel = product((rows, inner, columns), schedule, right_element=short, right=PackedMatrix(()))
    pack = PackKernel(
        "pack", short, (), inner, columns, Matrix((), 1, inner), (), schedule.lanes, panels(columns, schedule)
    )
    x, weight = torch.randn(rows, inner), (torch.randn(columns, inner) * 40).to(dtype)
    packed = torch.zeros(packed_size(columns, inner, schedule), dtype=dtype)
    out, whole = guarded(rows, columns)
    call = compiled(target, lambda module: emit_gemm(module, kernel), lambda module: emit_pack(module, pack))
    call("pack", packed, weight, begin=0, end=pack.tile_count)
    call("product", out, x, packed, begin=0, end=kernel.tile_count)
    assert_as_exact_as_eager(out, x @ weight.float().t(), x.double() @ weight.double().t())
    assert_untouched(whole)


def test_the_processors_dot_products_multiply_groups() -> None:
    wide = [target for target in TARGETS if target.vector_bytes == 64]
    for target in wide:
        for left, right, group, element, name in (
            ("u8", "i8", 4, "i32", "vpdpbusd"), ("bf16", "bf16", 2, "f32", "dpbf16ps"),
        ):  # fmt: skip
            schedule = choose_groups(element, (8, 64, 64), group, target)
            kernel = product(
                (8, 64, 64), schedule, element=element, left_element=left, right_element=right, right=PackedMatrix(())
            )
            module = Module(target)
            emit_gemm(module, kernel)
            feature = {"vpdpbusd": "avx512vnni", "dpbf16ps": "avx512bf16"}[name]
            assert (name in str(module)) == target.has(feature)


def test_operands_are_copied_only_where_it_pays() -> None:
    rows, columns = Matrix((), 1000, 1), Matrix((), 1, 1000)
    assert [copies_left((1000, 1000, 1000), rows), packs_right((1000, 1000, 1000), rows, "f32")] == [False, True]
    assert [copies_left((1000, 1000, 1000), columns), packs_right((1000, 1000, 1000), columns, "f32")] == [True, True]
    assert [copies_left((32, 64, 64), columns), packs_right((32, 64, 64), rows, "f32")] == [False, False]


def test_few_rows_read_a_right_operand_in_place_unless_its_rows_share_few_places_of_a_cache() -> None:
    odd, even = Matrix((), 784, 1), Matrix((), 1024, 1)
    assert [packs_right((256, 784, 256), right, "f32") for right in (odd, even)] == [False, True]
    assert [packs_right((2048, 784, 256), right, "f32") for right in (odd, even)] == [True, True]
    assert [packs_right((32, 784, 256), right, "f32") for right in (odd, even)] == [False, False]
