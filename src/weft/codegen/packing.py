"""Group the packing calls of a plan into chains: what is packed together, and again when a source has changed."""

from dataclasses import dataclass

from weft.plan.form.plan import KernelCall, Plan

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class PackingChain:
    """Calls that fill packed buffers from sources, which are inputs or constants, in order.

    The chain's function takes a table of base addresses: of the sources, then of the packed buffers, then of buffers
    that are only used meanwhile; `scratch` gives their sizes. `text` is equal for chains that compute the same.
    """

    calls: tuple[KernelCall, ...]
    sources: tuple[int, ...]
    packed: tuple[int, ...]
    scratch: tuple[int, ...]
    text: str

    @property
    def table(self) -> tuple[int, ...]:
        """Give the buffers in the order of the table."""
        return (*self.sources, *self.packed, *self.scratch)


def packing_chains(plan: Plan) -> tuple[PackingChain, ...]:
    """Group the packing calls of a plan by the buffers they write and hand on."""
    group_of: dict[int, list[KernelCall]] = {}  # by a buffer that a packing call writes
    groups: dict[int, list[KernelCall]] = {}  # by identity, in the order of their last call
    for call in plan.packing:
        before = {id(group_of[place.buffer]) for place in call.arguments if place.buffer in group_of}
        group = [member for key in list(groups) if key in before for member in groups.pop(key)] + [call]
        groups[id(group)] = group
        group_of.update((place.buffer, group) for member in group for place in member.writes)
    return tuple(_chain(plan, tuple(group)) for group in groups.values())


def _chain(plan: Plan, calls: tuple[KernelCall, ...]) -> PackingChain:
    writes = dict.fromkeys(place.buffer for call in calls for place in call.writes)
    sources = tuple(dict.fromkeys(place.buffer for call in calls for place in call.reads if place.buffer not in writes))
    packed = tuple(buffer for buffer in writes if plan.buffers[buffer].kind == "packed")
    scratch = tuple(buffer for buffer in writes if plan.buffers[buffer].kind != "packed")
    numbers = {buffer: number for number, buffer in enumerate((*sources, *packed, *scratch))}
    lines = [
        (call.kernel.renamed(""), [(numbers[place.buffer], place.offset) for place in call.arguments]) for call in calls
    ]
    sizes = [plan.buffers[buffer].bytes for buffer in (*packed, *scratch)]
    return PackingChain(calls, sources, packed, scratch, repr((lines, len(sources), sizes)))
