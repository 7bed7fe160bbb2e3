"""What a run needs is what is known to be needed now, however often it was asked for before."""

from tests.plan.plan_runner import TARGET

from weft.plan.form.dependencies import Footprints
from weft.plan.form.plan import Buffer, KernelCall, Location, Plan
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.loop import LoopExpression, plan_loop
from weft.plan.schedule.cost import default_model
from weft.plan.schedule.lanes import CallCosts, Needs, Timetable

COUNT = 4096


def chain() -> Plan:
    """Two calls that read an input, and one that reads what the first one writes."""
    view = (View("f32", (1,)),)
    kernel = plan_loop(LoopExpression("n", (COUNT,), view, view, (Instruction("neg", (0,), "f32"),), (1,)), TARGET)
    places = [(2, 0), (3, 0), (1, 2)]
    calls = tuple(KernelCall(kernel, (Location(out),), (Location(source),)) for out, source in places)
    kinds = (("input", 0), ("output", 0), ("arena", 0), ("output", 1))
    return Plan(tuple(Buffer(kind, index, 4 * COUNT) for kind, index in kinds), calls)


def table_of(plan: Plan, ahead: int = 0) -> Timetable:
    footprints = Footprints(plan)
    return Timetable(footprints, CallCosts(footprints, default_model(TARGET)), 2, ahead)


def test_what_a_run_needs_is_found_again_once_somebody_touched_its_bytes() -> None:
    plan = chain()
    table = table_of(plan)
    tiles = plan.calls[0].kernel.tile_count
    assert table.needs(2, 0, tiles) == table.needs(1, 0, tiles) == Needs((0, 0), (0, 0))
    table.put(0, [(1, 0, tiles)])
    assert table.needs(2, 0, tiles) == Needs((0, 1), (0, 4 * COUNT))
    assert table.needs(1, 0, tiles) == Needs((0, 0), (0, 0))


def test_what_is_known_does_not_keep_a_lane_from_staying_near_the_others() -> None:
    plan = chain()
    table = table_of(plan, ahead=1)
    tiles = plan.calls[0].kernel.tile_count
    assert table.needs(1, 0, tiles).counts == (0, 0)
    table.put(0, [(1, 0, tiles)])
    assert table.needs(1, 0, tiles).counts == (0, 1)
