"""Lengths are cut into as few blocks as possible, as even as possible."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from weft.plan.kernels.walk import cut


@given(total=st.integers(0, 500), most=st.integers(1, 40))
def test_blocks_cover_a_length_evenly(total: int, most: int) -> None:
    blocks = cut(total, most)
    starts = [blocks.start(index) for index in range(blocks.count + 1)]
    lengths = [stop - start for start, stop in pairwise(starts)]
    assert starts[0] == 0
    assert starts[-1] == blocks.total == total
    assert len(lengths) == -(-total // most)
    assert all(0 < length <= most for length in lengths)
    assert set(lengths) == set(blocks.sizes)
    assert max(lengths, default=0) - min(lengths, default=0) <= 1
