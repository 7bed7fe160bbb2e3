"""The text of a plan's module: which functions it has, and where a frame keeps what they need."""

from dataclasses import dataclass, replace

import pytest
from tests.runtime.plans import TARGET, chain_plan, linear_plan, loop

from weft.codegen import plan_module
from weft.codegen.llvm.module import Module
from weft.codegen.objects.compiler import object_code
from weft.codegen.packing import packing_chains
from weft.codegen.plan_module import KernelFunctions, KernelParts, description_of, emit_plan
from weft.codegen.threads.layout import ARENA_ALIGNMENT, MOST_LANES, TABLE_OFFSET, frame_of
from weft.errors import InternalError
from weft.plan.form.plan import Buffer, KernelCall, Location, Plan
from weft.plan.kernels.expression import Instruction
from weft.target import cross_target


def test_equal_kernels_are_one_function() -> None:
    text = emit_plan(chain_plan(100, "exp", "neg", "exp"), TARGET).text
    assert text.count("define void @loop_") == 2
    assert text.count("call void @loop_0.0(") == 2


def test_kernels_that_differ_only_in_the_sign_of_zero_are_two_functions() -> None:
    functions = KernelFunctions(Module(TARGET))
    kernel = loop("loop", "neg", 10)
    zeros = [
        replace(kernel, body=(Instruction("constant", (), "f32", (zero,)), *kernel.body), results=(1,))
        for zero in (0.0, -0.0)
    ]
    assert len({functions.name(zero) for zero in zeros}) == 2


def test_the_modules_of_kernels_are_the_same_in_whatever_order_these_are_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_module, "LEAST_PART", 10)
    plan = chain_plan(100, "exp", "neg", "sin", "exp")
    turned = replace(plan, calls=plan.calls[::-1])
    texts = [list(KernelParts(one, TARGET).texts()) for one in (plan, turned)]
    assert len(texts[0]) == 3
    assert texts[0] == texts[1]


def test_parts_are_of_a_plan_with_their_kernels_and_of_no_other() -> None:
    plan = chain_plan(100, "exp", "neg")
    parts = KernelParts(plan, TARGET)
    assert parts.are_of(replace(plan, calls=plan.calls[::-1]))
    assert not parts.are_of(replace(plan, calls=plan.calls[:1]))
    assert not parts.are_of(chain_plan(100, "exp", "neg"))


def test_a_plan_without_lanes_has_no_lane_functions() -> None:
    text = emit_plan(chain_plan(100, "exp"), TARGET).text
    assert "@serial(" in text
    assert "@lane_0" not in text


def test_a_plan_with_lanes_has_them_and_the_serial_function() -> None:
    text = emit_plan(chain_plan(4000, "exp", "neg", lanes=2), TARGET).text
    assert all(f"define void @{name}(ptr %a0)" in text for name in ("serial", "lane_0", "lane_1"))


def test_lanes_compile_for_another_processor() -> None:
    target = cross_target("aarch64")
    assert object_code(emit_plan(chain_plan(4000, "exp", "neg", lanes=2), target).text, target)


def test_a_plan_with_more_lanes_than_a_frame_has_flags_is_an_error() -> None:
    with pytest.raises(InternalError, match="lanes"):
        emit_plan(chain_plan(100, "exp", lanes=MOST_LANES + 1), TARGET)


def test_a_kernel_of_an_unknown_class_is_an_error() -> None:
    with pytest.raises(InternalError, match="class _Strange"):
        KernelFunctions(Module(TARGET)).name(_Strange("strange"))


@dataclass(frozen=True)
class _Strange:
    name: str

    def renamed(self, name: str) -> "_Strange":
        return _Strange(name)


def test_the_table_has_inputs_outputs_packed_buffers_and_constants_in_this_order() -> None:
    buffers = (Buffer("constant", 0, 4), Buffer("packed", 0, 4), Buffer("output", 0, 4), Buffer("input", 0, 4))
    frame = frame_of(Plan(buffers, ()))
    assert [frame.slot_offset(number) - TABLE_OFFSET for number in (3, 2, 1, 0)] == [0, 8, 16, 24]


def test_the_arena_follows_the_table_on_a_page_of_its_own() -> None:
    plan = chain_plan(100, "exp", "neg")
    frame = frame_of(plan)
    assert frame.arena_offset % ARENA_ALIGNMENT == 0
    assert frame.bytes == frame.arena_offset + plan.arena_bytes


def test_packings_that_share_nothing_are_chains_of_their_own() -> None:
    plan = linear_plan(1, 8, 8)
    (first,) = plan.packing
    second = replace(first, writes=(Location(5),), reads=(Location(2),))
    chains = packing_chains(replace(plan, buffers=(*plan.buffers, Buffer("packed", 1, 64)), packing=(first, second)))
    assert [(chain.sources, chain.packed) for chain in chains] == [((1,), (4,)), ((2,), (5,))]


def test_packings_in_stages_are_one_chain_with_scratch() -> None:
    plan = linear_plan(1, 8, 8)
    (pack,) = plan.packing
    stages = (
        KernelCall(loop("stage", "neg", 64), (Location(5),), (Location(1),)),
        replace(pack, reads=(Location(5),)),
    )
    (chain,) = packing_chains(replace(plan, buffers=(*plan.buffers, Buffer("arena", 0, 256)), packing=stages))
    assert (chain.sources, chain.packed, chain.scratch) == ((1,), (4,), (5,))


def test_chains_that_compute_the_same_have_equal_texts_whatever_their_names() -> None:
    texts = {packing_chains(linear_plan(1, 8, 8, name))[0].text for name in ("product", "another")}
    assert len(texts) == 1
    assert packing_chains(linear_plan(1, 8, 16))[0].text not in texts


def test_a_description_tells_plans_and_options_apart() -> None:
    plans = [chain_plan(100, "exp"), chain_plan(101, "exp"), chain_plan(100, "neg"), chain_plan(100, "exp", lanes=2)]
    found = {
        description_of(plan, lasting, clocked=clocked)
        for plan in plans
        for lasting in ((), (0,))
        for clocked in (False, True)
    }
    assert len(found) == 4 * len(plans)
    assert description_of(chain_plan(100, "exp")) in found
