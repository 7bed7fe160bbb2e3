"""A plan without lanes -> the same plan with its calls in an order that keeps little memory in use.

An order goes back from each result: what a call needs is computed just before it, one operand's whole past after the
other's, so that little of one waits in memory while another is made. Which operand is first decides the rest; a few
ways are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from weft.plan.form.dependencies import Footprints, predecessors
from weft.plan.form.plan import Plan
from weft.plan.memory.arena import live_bytes


def frugal_order(plan: Plan) -> Plan:
    """Put calls into the order found that has least memory in use at once; into their own if that is as good."""
    before = predecessors(Footprints(plan))
    return min((plan, *(_ordered(plan, order) for order in _orders(before))), key=live_bytes)


def _ordered(plan: Plan, order: Sequence[int]) -> Plan:
    return replace(plan, calls=tuple(plan.calls[number] for number in order))


def _orders(before: list[list[int]]) -> Iterator[list[int]]:
    """Give orders in which what a call needs comes before it: operands as they come, and those of long pasts first."""
    depth = [0] * len(before)
    for number, needed in enumerate(before):
        depth[number] = 1 + max((depth[one] for one in needed), default=0)
    yield _backwards(before)
    yield _backwards([sorted(needed, key=lambda one: (-depth[one], one)) for needed in before])


def _backwards(before: list[list[int]]) -> list[int]:
    """Follow what calls need, from those that nobody needs, and give each call after all that it needs."""
    needed = {one for those in before for one in those}
    order: list[int] = []
    met = [False] * len(before)
    for last in (number for number in range(len(before)) if number not in needed):
        met[last] = True
        path = [(last, iter(before[last]))]
        while path:
            number, rest = path[-1]
            following = next((one for one in rest if not met[one]), None)
            if following is None:
                order.append(number)
                path.pop()
            else:
                met[following] = True
                path.append((following, iter(before[following])))
    return order
