"""Attention kernels equal softmax(scores) times values as exactly as promised, however their tiles are split."""

from dataclasses import dataclass

import pytest
import torch
from tests.codegen.kernel_cases import assert_as_exact_as_eager, assert_untouched, compiled, guarded, targets

from weft.codegen.kernels.attention import emit_attention
from weft.plan.kernels.attention import AttentionKernel, AttentionSizes, choose_attention
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.gemm import Matrix, choose_dots, choose_schedule
from weft.target import Target

TARGETS = targets()
IDS = [target.name for target in TARGETS]
DTYPES = {"f32": torch.float32, "f64": torch.float64}


@dataclass(frozen=True)
class Case:
    """What a test attends: sizes, and what is done to the scores."""

    rows: int
    keys: int
    element: str = "f32"
    inner: int = 24
    columns: int = 40
    masked: bool = False
    causal: bool = False
    keeps_numbers: bool = False
    across: bool = False  # keys lie row after row, as they are given


def kernel_of(target: Target, case: Case) -> AttentionKernel:
    """The kernel of two matrices whose keys are side by side."""
    sizes = AttentionSizes(case.element, (2,), case.rows, case.keys, case.inner, case.columns)
    choose = choose_dots if case.across else choose_schedule
    scores = choose(case.element, (case.rows, case.keys, case.inner), target)
    schedule = choose_attention(sizes, scores, target, causal=case.causal)
    assert schedule is not None
    inputs = (View("bool", (case.rows * case.keys, case.keys, 1)),) if case.masked else ()
    body: tuple[Instruction, ...] = ()
    if case.masked:
        lowest = Instruction("constant", (), case.element, (-float("inf"),))
        body = (lowest, Instruction("select", (1, 2, 0), case.element))
    if case.causal:
        body = (
            Instruction("iota", (), "i64", (0, 0, 1, 0)),
            Instruction("iota", (), "i64", (0, 1, 0, 0)),
            Instruction("gt", (1, 2), "bool"),
            Instruction("constant", (), case.element, (-float("inf"),)),
            Instruction("select", (3, 4, 0), case.element),
        )
    return AttentionKernel(
        name="attention",
        sizes=sizes,
        query=Matrix((case.rows * case.inner,), case.inner, 1),
        key=Matrix((case.inner * case.keys,), *((1, case.inner) if case.across else (case.keys, 1))),
        value=Matrix((case.keys * case.columns,), case.columns, 1),
        out=Matrix((case.rows * case.columns,), case.columns, 1),
        inputs=inputs,
        body=body,
        schedule=schedule,
        masked_gives_zeros=case.masked,
        keeps_numbers=case.keeps_numbers,
    )


def expected(
    case: Case, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    scores = query @ key
    if case.masked:
        scores = scores.masked_fill(mask, -torch.inf)
    if case.causal:
        scores = scores.masked_fill(torch.ones(case.rows, case.keys, dtype=torch.bool).triu(1), -torch.inf)
    shares = torch.softmax(scores, -1)
    if case.masked:
        shares = shares.masked_fill(mask.all(-1, keepdim=True), 0.0)
    return shares @ value


def check(target: Target, case: Case) -> None:
    torch.manual_seed(case.rows + case.keys)
    dtype = DTYPES[case.element]
    query, key = torch.randn(2, case.rows, case.inner, dtype=dtype), torch.randn(2, case.inner, case.keys, dtype=dtype)
    value, mask = torch.randn(2, case.keys, case.columns, dtype=dtype), torch.rand(2, case.rows, case.keys) < 0.3
    mask[0, case.rows // 2] = True
    kernel = kernel_of(target, case)
    out, whole = guarded(2, case.rows, case.columns, dtype=dtype)
    numbers = [guarded(2, case.rows, dtype=dtype) for _ in range(2 * case.keeps_numbers)]
    call = compiled(target, lambda module: emit_attention(module, kernel))
    given = key.mT.contiguous() if case.across else key
    tensors = [out, *(number for number, _ in numbers), query, given, value, *([mask] if case.masked else [])]
    for tile in reversed(range(kernel.tile_count)):
        call("attention", *tensors, begin=tile, end=tile + 1)
    eager = expected(case, query, key, value, mask)
    exact = expected(case, query.double(), key.double(), value.double(), mask)
    assert_as_exact_as_eager(out, eager, exact)
    assert_untouched(whole)
    for _, around in numbers:
        assert_untouched(around)
    if case.keeps_numbers:
        highest, total = (number for number, _ in numbers)
        torch.testing.assert_close(total.log() + highest, torch.logsumexp(query @ key, -1))
    again = torch.empty_like(out)
    call("attention", again, *tensors[1:], begin=0, end=kernel.tile_count)
    assert torch.equal(out, again)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("rows", [15, 16, 17, 65])
def test_sizes_around_a_block_are_as_exact_as_eager(target: Target, element: str, rows: int) -> None:
    check(target, Case(rows, rows + 1, element))


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("keys", [1, 16, 63, 64, 130])
def test_masked_scores_do_not_count_and_rows_of_them_give_zeros(target: Target, keys: int) -> None:
    check(target, Case(33, keys, masked=True))


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("sizes", [(63, 63), (65, 65), (70, 200), (200, 130), (129, 192)], ids=str)
def test_keys_behind_a_row_do_not_count(target: Target, sizes: tuple[int, int]) -> None:
    check(target, Case(*sizes, causal=True))


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("sizes", [(1, 8), (1, 129), (2, 64), (3, 17), (5, 300), (8, 31)], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_few_rows_read_keys_where_they_are(target: Target, element: str, sizes: tuple[int, int], masked: bool) -> None:
    check(target, Case(*sizes, element, masked=masked, across=True))


def test_the_highest_score_and_the_sum_of_each_row_are_kept() -> None:
    check(TARGETS[0], Case(40, 50, keeps_numbers=True))


def test_one_column_and_one_number_of_a_query_are_enough() -> None:
    check(TARGETS[0], Case(20, 30, inner=1, columns=1))


def test_what_is_no_number_stays_in_its_row() -> None:
    case = Case(20, 30)
    kernel = kernel_of(TARGETS[0], case)
    query, key, value = torch.randn(2, 20, 24), torch.randn(2, 24, 30), torch.randn(2, 30, 40)
    query[0, 3, 2], query[1, 5, 0] = torch.nan, torch.inf
    out = torch.empty(2, 20, 40)
    compiled(TARGETS[0], lambda module: emit_attention(module, kernel))(
        "attention", out, query, key, value, begin=0, end=kernel.tile_count
    )
    torch.testing.assert_close(out, torch.softmax(query @ key, -1) @ value, equal_nan=True)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_shares_that_are_no_normal_numbers_are_zeros_as_in_fused_attention(target: Target) -> None:
    case = Case(20, 30)
    kernel = kernel_of(target, case)
    query, key, value = torch.zeros(2, 20, 24), torch.zeros(2, 24, 30), torch.randn(2, 30, 40)
    query[:, :, 0], key[:, 0] = 1.0, torch.tensor([0.0, -86.0, -88.0, -100.0, -103.0, -torch.inf] * 5)
    value[:, 2::6], value[:, 3::6] = 1e38, -1e38
    out = torch.empty(2, 20, 40)
    compiled(target, lambda module: emit_attention(module, kernel))(
        "attention", out, query, key, value, begin=0, end=kernel.tile_count
    )
    torch.testing.assert_close(out, value[:, ::6].mean(1, keepdim=True).expand(2, 20, 40))


def test_a_batch_of_nothing_has_no_tiles() -> None:
    assert kernel_of(TARGETS[0], Case(20, 30)).tile_count == 2
    sizes = AttentionSizes("f32", (0, 3), 20, 30, 8, 8)
    schedule = choose_attention(sizes, choose_schedule("f32", (20, 30, 8), TARGETS[0]), TARGETS[0], causal=False)
    assert schedule is not None
    empty = AttentionKernel(
        "attention", sizes, Matrix((0, 160), 8, 1), Matrix((0, 240), 30, 1), Matrix((0, 240), 8, 1),
        Matrix((0, 160), 8, 1), (), (), schedule,
    )  # fmt: skip
    assert empty.tile_count == 0
    compiled(TARGETS[0], lambda module: emit_attention(module, empty))


@pytest.mark.parametrize("keys", [64, 2048, 16384])
def test_scores_find_room_on_the_stack(keys: int) -> None:
    sizes = AttentionSizes("f32", (4,), keys, keys, 64, 64)
    scores = choose_schedule("f32", (keys, keys, 64), TARGETS[0])
    schedule = choose_attention(sizes, scores, TARGETS[0], causal=True)
    assert schedule is not None
    kernel = AttentionKernel(
        "attention", sizes, Matrix((0,), 64, 1), Matrix((0,), keys, 1), Matrix((0,), 64, 1), Matrix((0,), 64, 1),
        (), (), schedule,
    )  # fmt: skip
    assert kernel.stack_bytes <= 512 * 1024
