"""Where buffers are placed: those that may not share bytes are apart, and little is lost between them."""

import random

from weft.plan.memory.fit import Buffers, fit

SPANS = {0: (0, 3), 1: (1, 2), 2: (2, 5), 3: (3, 4), 4: (4, 6)}  # the first use of each, and the last


def of_spans(sizes: dict[int, int], spans: dict[int, tuple[int, int]]) -> Buffers:
    apart = {
        one: [other for other in spans if other != one and spans[other][0] <= last and first <= spans[other][1]]
        for one, (first, last) in spans.items()
    }
    return Buffers(sizes, apart)


def most_at_once(sizes: dict[int, int], spans: dict[int, tuple[int, int]]) -> int:
    end = max(last for _, last in spans.values())
    return max(sum(sizes[n] for n, (first, last) in spans.items() if first <= t <= last) for t in range(end + 1))


def test_a_buffer_that_reaches_too_high_is_placed_earlier_in_the_next_try() -> None:
    sizes = {0: 2, 1: 4, 2: 3, 3: 4, 4: 5}
    buffers = of_spans(sizes, SPANS)
    _, once = fit(buffers, [[1, 0, 2, 3, 4]], 10**9)
    offsets, total = fit(buffers, [[1, 0, 2, 3, 4]], most_at_once(sizes, SPANS))
    assert total < once
    assert total == most_at_once(sizes, SPANS)
    assert max(offset + sizes[number] for number, offset in offsets.items()) == total


def test_what_is_in_use_at_the_same_time_never_overlaps() -> None:
    lost = 0
    for seed in range(60):
        dice = random.Random(seed)
        sizes = {number: 64 * dice.randrange(1, 40) for number in range(dice.randrange(2, 30))}
        spans = {number: (first := dice.randrange(40), first + dice.randrange(8)) for number in sizes}
        buffers = of_spans(sizes, spans)
        offsets, total = fit(buffers, [sorted(sizes, key=lambda number: -sizes[number])], most_at_once(sizes, spans))
        for one, size in sizes.items():
            assert 0 <= offsets[one] <= total - size
            for other in buffers.apart[one]:
                assert offsets[one] + size <= offsets[other] or offsets[other] + sizes[other] <= offsets[one]
        lost += total > 1.02 * most_at_once(sizes, spans)
    assert lost < 12


def test_no_buffers_end_where_they_begin() -> None:
    assert fit(Buffers({}, {}), [[]], 0) == ({}, 0)
