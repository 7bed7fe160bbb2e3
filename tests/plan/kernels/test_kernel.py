"""Sets of evenly spaced bytes: how they are written down, and which are known to share nothing."""

from hypothesis import given
from hypothesis import strategies as st

from weft.plan.check import overlap
from weft.plan.kernels.kernel import ByteBox, box, disjoint

STEPS = st.lists(st.tuples(st.integers(-12, 40), st.integers(1, 5)), max_size=3)
BOXES = st.builds(box, st.integers(500, 560), STEPS, st.sampled_from([1, 4]))


def test_items_side_by_side_are_one_item() -> None:
    assert box(2, [(8, 3), (1, 8)], 4) == ByteBox(8, 8 + 96, (), 96)


def test_strides_are_positive_and_sorted() -> None:
    assert box(10, [(-1, 4), (20, 2)], 4) == ByteBox(28, 28 + 80 + 16, ((80, 2),), 16)


def test_repeated_and_single_items_count_once() -> None:
    assert box(0, [(0, 7), (99, 1)], 4) == ByteBox(0, 4, (), 4)


def test_no_items_are_no_box() -> None:
    assert box(0, [(1, 0)], 4) is None


def test_columns_beside_each_other_share_nothing() -> None:
    left, right = box(0, [(100, 32), (1, 60)], 4), box(60, [(100, 32), (1, 40)], 4)
    assert left
    assert right
    assert disjoint(left, right)
    assert disjoint(right, left)


def test_columns_that_meet_are_not_disjoint() -> None:
    left, right = box(0, [(100, 32), (1, 61)], 4), box(60, [(100, 32), (1, 40)], 4)
    assert left
    assert right
    assert not disjoint(left, right)


@given(one=BOXES, other=BOXES)
def test_boxes_called_disjoint_share_no_byte(one: ByteBox, other: ByteBox) -> None:
    if disjoint(one, other):
        assert not overlap(one, other)
