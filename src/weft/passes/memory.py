"""A Graph -> which values may share memory that the caller sees: what limits every replacement of one value by another.

Values are pure, so equal values may stand for each other anywhere, except in what is handed out: two results that are
separate memory in eager PyTorch must stay separate, and a result that is new memory must not become an input or a
constant of the program. Values that may be views of one another form a group; two groups may become one as long as the
caller sees into at most one of them.

as_strided counts from the start of an operand's memory, which no type tells: groups that it looks into are rigid, and
no value of theirs is replaced.
"""

from __future__ import annotations

from weft.ir.graph import Graph, Value
from weft.ir.sharing import looked_into, sources


class Groups:
    """The groups of values that may share memory, kept up to date while a pass replaces values."""

    def __init__(self, graph: Graph) -> None:
        constants = (value for value in graph.values if value.op == "constant")
        self._leader: dict[Value, Value] = {value: value for value in (*graph.inputs, *graph.values)}
        self._results = set(graph.roots())
        self._outliving = {*graph.inputs, *constants}  # these two sets hold single values,
        self._seen_groups = set(self._results)  # and the next three leaders of groups
        self._outliving_groups = set(self._outliving)
        self._rigid_groups = set(looked_into(graph))
        for value in graph.values:
            for source in sources(value):
                self._join(value, source)

    def is_seen(self, value: Value) -> bool:
        """Whether the caller may come to see the memory of this value."""
        return self._find(value) in self._seen_groups

    def rename(self, old: Value, new: Value) -> None:
        """Let a new value take the place of an old one that it was rebuilt from."""
        self._leader.setdefault(new, new)
        self._join(old, new)
        for members in (self._results, self._outliving):
            if old in members:
                members.add(new)

    def may_replace(self, value: Value, replacement: Value) -> bool:
        """Whether the caller could not see a difference if `replacement`, old or new, stood for `value`."""
        group, others = self._find(value), self._origin_groups(replacement)
        if not self._rigid_groups.isdisjoint({group, *others}):
            return False
        if replacement in self._leader:
            if value in self._results and (replacement in self._results or replacement in self._outliving):
                return False
        elif replacement.op == "constant" and group in self._seen_groups:
            return False
        return all(self._may_join(group, other) for other in others - {group})

    def replace(self, value: Value, replacement: Value) -> None:
        """Let `replacement` stand for `value`, as `may_replace` allows."""
        for other in self._origin_groups(replacement):
            self._join(value, other)
        if replacement.op == "constant" and replacement not in self._leader:
            self._outliving.add(replacement)
            self._outliving_groups.add(self._find(value))
        self.rename(value, replacement)

    def _origin_groups(self, value: Value) -> set[Value]:
        return {self._find(origin) for origin in self._origins(value)}

    def _origins(self, value: Value) -> tuple[Value, ...]:
        """The values already in groups whose memory this one, perhaps not in a group yet, may share."""
        if value in self._leader:
            return (value,)
        return tuple(origin for source in sources(value) for origin in self._origins(source))

    def _may_join(self, one: Value, other: Value) -> bool:
        one_seen, other_seen = one in self._seen_groups, other in self._seen_groups
        if one_seen and other_seen:
            return False
        hidden = other if one_seen else one
        return not (one_seen or other_seen) or hidden not in self._outliving_groups

    def _find(self, value: Value) -> Value:
        leader = value
        while (above := self._leader[leader]) is not leader:
            leader = above
        while value is not leader:  # later look-ups take one step
            self._leader[value], value = leader, self._leader[value]
        return leader

    def _join(self, one: Value, other: Value) -> None:
        upper, lower = self._find(one), self._find(other)
        if upper is lower:
            return
        self._leader[lower] = upper
        for groups in (self._seen_groups, self._outliving_groups, self._rigid_groups):
            if lower in groups:
                groups.add(upper)
