"""Collect reductions and the elementwise code around them into row kernels: all of it while a row is in the cache.

A group collects stages over the rows of one space. It stays open as long as what comes next reads its numbers, so that
a softmax or a norm is one kernel; it is emitted when another kernel reads what it stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from weft.ir.graph import Value
from weft.plan.form.plan import Location
from weft.plan.fuse.fusion import Fusion, dtype_of, tensor_type, view_of
from weft.plan.fuse.split_reductions import outputs_of, plan_stages
from weft.plan.kernels.expression import SHORT_FLOATS, explicit_rounding, with_strides
from weft.plan.kernels.reduce import Finish, Reduction, RowExpression, RowPass, Stage, Store
from weft.plan.regions.lazy import (
    BodyWriter,
    Computed,
    Lazy,
    Leaf,
    LeafSource,
    Node,
    Taken,
    Window,
    plain,
    read_from_memory,
    same_layout,
    walk,
)

Place = tuple[int, Window]


@dataclass(slots=True, eq=False)
class OpenStage:
    """A stage that may still grow: (kind, expression, number of the row) and (expression, where it goes)."""

    is_pass: bool
    numbers: list[tuple[str, Node, Scalar]] = field(default_factory=list)
    stores: list[tuple[Node, Leaf]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Scalar:
    """A number of each row, known after a stage; `memory` is where it is stored, if anybody needs it there."""

    group: Rows
    stage: int
    dtype: str
    memory: int = -1

    def settle(self) -> None:
        """Emit the group."""
        self.group.settle()

    def as_memory(self, leaf: Leaf) -> Leaf:
        """The leaf, read from memory."""
        self.group.store_scalar(self, leaf)
        return Leaf(LeafSource(self.memory), leaf.window, leaf.dtype)

    def take(self, lazy: Lazy, out: Leaf) -> bool:
        """Compute an expression of the row's numbers in the group's own kernel, if that can be."""
        return self.group.add_store(lazy, out)


class Rows:
    """A group of stages over the rows of one space."""

    def __init__(self, fusion: Fusion, shape: tuple[int, ...], reduced: frozenset[int]) -> None:
        self.fusion = fusion
        self.shape = shape
        self.reduced = reduced
        self.kept = [i for i in range(len(shape)) if i not in reduced]
        self.rows = tuple(shape[i] for i in self.kept)
        self.columns = tuple(shape[i] for i in sorted(reduced))
        self.stages: list[OpenStage] = []
        self.outputs: dict[Place, tuple[Leaf, Node, int]] = {}
        self.is_open = True

    def is_emitted(self) -> bool:
        """Whether the group takes no more: asked again after others were settled, which may need it."""
        return not self.is_open

    def home(self) -> Window:
        """How a row's number is seen by the whole space."""
        steps = iter(plain(self.rows).strides)
        return Window(self.shape, tuple(0 if i in self.reduced else next(steps) for i in range(len(self.shape))))

    def settle(self) -> None:
        """Emit the kernel."""
        if not self.is_open:
            return
        for _, lazy in self.fusion.live():
            for leaf in lazy.leaves():
                if isinstance(leaf.source.pending, Scalar) and leaf.source.pending.group is self:
                    self.store_scalar(leaf.source.pending, leaf)
        self.is_open = False
        _emit(self)

    # -- growing ------------------------------------------------------------------------------------------------

    def reduce(self, kind: str, node: Node, dtype: str) -> Scalar:
        """Add a reduction of an expression over the whole space."""
        node, index = self._place_in_pass(node)
        scalar = Scalar(self, index, dtype)
        self.stages[index].numbers.append((kind, node, scalar))
        return scalar

    def finish(self, lazy: Lazy) -> Scalar:
        """Add a computation with the row's numbers."""
        stage = OpenStage(False)
        self.stages.append(stage)
        scalar = Scalar(self, len(self.stages) - 1, lazy.dtype)
        stage.numbers.append(("", lazy.node, scalar))
        return scalar

    def store_scalar(self, scalar: Scalar, leaf: Leaf) -> None:
        """Store a number of the row for other kernels."""
        if scalar.memory < 0:
            out = self.fusion.plain_arena(self.rows, scalar.dtype)
            scalar.memory = out.source.buffer
            node = Leaf(LeafSource(pending=scalar), plain(self.rows), leaf.dtype)
            self._add_output(OpenStage(False), node, out)

    def add_store(self, lazy: Lazy, out: Leaf) -> bool:
        """Add a stage that stores an expression: of the whole space, or one number a row."""
        if not self.is_open or self._stores_index_of(lazy):
            return False
        lazy = self.others_in_memory(lazy)
        if self.is_emitted():
            return False  # as what else is read had to be computed of its numbers
        if lazy.shape == self.shape and self.fits(lazy):
            node, index = self._place_in_pass(lazy.node)
            self._add_output(self.stages[index], node, out)
            return True
        small, target = self.row_shaped(lazy), out.window.reshaped(self.rows)
        if small is None or target is None:
            return False
        self._add_output(OpenStage(False), small.node, replace(out, window=target))
        return True

    def _add_output(self, stage: OpenStage, node: Node, out: Leaf) -> None:
        assert self.is_open, "what is added to a group that is emitted would be computed nowhere"
        if stage not in self.stages:
            self.stages.append(stage)
        stage.stores.append((node, out))
        self.outputs[_place(out)] = (out, node, self.stages.index(stage))
        owners = self.fusion.assembly.owners.get(out.source.buffer, ())
        if self not in owners:
            self.fusion.assembly.owners[out.source.buffer] = (*owners, self)

    # -- what fits ----------------------------------------------------------------------------------------------

    def fits(self, lazy: Lazy) -> bool:
        """Whether an expression over the whole space reads this group's numbers and outputs as its rows have them."""
        home = self.home()
        for leaf in lazy.leaves():
            pending = leaf.source.pending
            if isinstance(pending, Scalar) and pending.group is self:
                if not same_layout(leaf.window, home):
                    return False
            elif self._writes(leaf.source.buffer) and not self._reads_own_output(leaf):
                return False
        return True

    def _stores_index_of(self, lazy: Lazy) -> bool:
        """Whether an expression reads a table of this group's numbers, or at places that are its numbers."""
        taken = (node for node in walk(lazy.node) if isinstance(node, Taken))
        read = (leaf for node in taken for leaf in (node.table, *walk(node.index)) if isinstance(leaf, Leaf))
        return any(self._writes(leaf.source.buffer) for leaf in read)

    def _writes(self, buffer: int) -> bool:
        return any(written == buffer for written, _ in self.outputs)

    def _reads_own_output(self, leaf: Leaf) -> bool:
        found = self.outputs.get(_place(leaf))
        return found is not None and self.stages[found[2]].is_pass and leaf.dtype == found[0].dtype

    def row_shaped(self, lazy: Lazy) -> Lazy | None:
        """An expression that has one number a row, seen in the shape of the rows; None if it is not one."""
        if Window(lazy.shape, lazy.shape).size != plain(self.rows).size:
            return None
        seen = lazy.viewed(lambda window: window.reshaped(self.rows), self.rows)
        if seen is None:
            return None
        for leaf in seen.leaves():
            pending = leaf.source.pending
            own = isinstance(pending, Scalar) and pending.group is self
            if (own and not same_layout(leaf.window, plain(self.rows))) or self._writes(leaf.source.buffer):
                return None
        return seen

    def _is_own(self, leaf: Leaf) -> bool:
        return isinstance(leaf.source.pending, Scalar) and leaf.source.pending.group is self

    def others_in_memory(self, lazy: Lazy) -> Lazy:
        """An expression without tables, with what is not this group's own in memory; that may close the group."""
        foreign = [leaf for leaf in lazy.leaves() if leaf.source.pending is not None and not self._is_own(leaf)]
        lazy = self.fusion.assembly.without_tables(read_from_memory(lazy, foreign))
        for leaf in lazy.leaves():
            for owner in self.fusion.assembly.owners.get(leaf.source.buffer, ()):
                if owner is not self:
                    owner.settle()
        return lazy

    def _place_in_pass(self, node: Node) -> tuple[Node, int]:
        """The pass that an expression can be computed in, and the expression with what that pass stores written out."""
        inlined = self._inlined(node)
        early, late = self._first_pass(inlined), self._first_pass(node)
        if early < late and early < len(self.stages) and self._stores_what(node, early):
            return inlined, early
        if late == len(self.stages):
            self.stages.append(OpenStage(True))
        return node, late

    def _stores_what(self, node: Node, stage: int) -> bool:
        leaves = [leaf for leaf in walk(node) if isinstance(leaf, Leaf) and _place(leaf) in self.outputs]
        return all(self.outputs[_place(leaf)][2] == stage for leaf in leaves)

    def _inlined(self, node: Node) -> Node:
        lazy = Lazy(self.shape, node)
        stored = [leaf for leaf in lazy.leaves() if _place(leaf) in self.outputs]
        return lazy.replaced({id(leaf): self.outputs[_place(leaf)][1] for leaf in stored}).node if stored else node

    def _first_pass(self, node: Node) -> int:
        """The first pass after everything that an expression needs from this group."""
        after = -1
        for leaf in walk(node):
            if isinstance(leaf, Leaf):
                if isinstance(leaf.source.pending, Scalar):
                    after = max(after, leaf.source.pending.stage)
                elif _place(leaf) in self.outputs:
                    after = max(after, self.outputs[_place(leaf)][2])
        return next((i for i, stage in enumerate(self.stages) if i > after and stage.is_pass), len(self.stages))


def reduce_rows(fusion: Fusion, value: Value) -> Lazy:
    """A reduction: one more stage of the open group over the same rows, or the first of a new one."""
    lazy, shape = fusion.operand(value), tensor_type(value).shape
    reduced = _dimensions(value, len(lazy.shape))
    if not reduced and value.op not in ("argmax", "argmin"):
        return lazy
    group = _group_for(fusion, lazy, reduced)
    lazy = group.others_in_memory(lazy)
    while not group.is_open:  # the expression reads at indices that the group stores
        group = _group_for(fusion, lazy, reduced)
        lazy = group.others_in_memory(lazy)
    node, dtype = lazy.node, dtype_of(value)
    wide = "f32" if dtype in SHORT_FLOATS else dtype
    if node.dtype in SHORT_FLOATS:
        node = Computed("cast", (node,), "f32")
    scalar = group.reduce(value.op, node, wide)
    window = plain(group.rows).reshaped(shape)
    assert window is not None
    leaf: Node = Leaf(LeafSource(pending=scalar), window, wide)
    return Lazy(shape, leaf if wide == dtype else Computed("cast", (leaf,), dtype))


def _group_for(fusion: Fusion, lazy: Lazy, reduced: frozenset[int]) -> Rows:
    for leaf in lazy.leaves():
        pending = leaf.source.pending
        own = (pending.group,) if isinstance(pending, Scalar) else fusion.assembly.owners.get(leaf.source.buffer, ())
        for group in own:
            if isinstance(group, Rows) and _joins(group, lazy, reduced):
                return group
    buffers = {leaf.source.buffer for leaf in lazy.leaves() if leaf.source.pending is None}
    # What was emitted meanwhile is met no more, or a long program would look at all its groups for each new one.
    groups = [known for known in fusion.open_groups if isinstance(known, Rows) and known.is_open]
    for known in groups:
        if _joins(known, lazy, reduced) and _reads(known) & buffers:
            return known
    new = Rows(fusion, lazy.shape, reduced)
    fusion.open_groups = [*groups, new]
    return new


def _joins(group: Rows, lazy: Lazy, reduced: frozenset[int]) -> bool:
    return group.is_open and (group.shape, group.reduced) == (lazy.shape, reduced) and group.fits(lazy)


def _reads(group: Rows) -> set[int]:
    nodes = [node for stage in group.stages for _, node, _ in stage.numbers]
    return {leaf.source.buffer for node in nodes for leaf in walk(node) if isinstance(leaf, Leaf)} - {-1}


def is_of_rows(lazy: Lazy) -> bool:
    """Whether an expression is one number a row, of such that are not in memory: it is cheap to write out again."""
    pending = [leaf.source.pending for leaf in lazy.leaves() if leaf.source.pending is not None]
    return bool(pending) and all(isinstance(one, Scalar) and _is_smaller(lazy, one.group) for one in pending)


def _is_smaller(lazy: Lazy, group: Rows) -> bool:
    return plain(lazy.shape).size < plain(group.shape).size


def settle_scalars(lazy: Lazy, shape: tuple[int, ...]) -> Lazy:
    """Before one number a row is repeated over the row: compute it once a row, not once an element."""
    if not isinstance(lazy.node, Computed) or Window(shape, shape).size <= Window(lazy.shape, lazy.shape).size:
        return lazy
    for leaf in lazy.leaves():
        pending = leaf.source.pending
        if isinstance(pending, Scalar) and pending.group.is_open:
            seen = pending.group.row_shaped(pending.group.others_in_memory(lazy))
            if seen is not None and pending.group.is_open:
                scalar = pending.group.finish(seen)
                window = plain(pending.group.rows).reshaped(lazy.shape)
                assert window is not None
                return Lazy(lazy.shape, Leaf(LeafSource(pending=scalar), window, lazy.dtype))
    return lazy


def _dimensions(value: Value, rank: int) -> frozenset[int]:
    if "dimensions" in value.attributes:
        return frozenset(value.attributes["dimensions"])
    dimension = value.attributes["dimension"]
    return frozenset(range(rank)) if dimension is None else frozenset({dimension})


def _emit(group: Rows) -> None:
    """Write a group's stages as one kernel."""
    assembly = group.fusion.assembly
    order = [*group.kept, *sorted(group.reduced)]
    inputs: list[Leaf] = []
    outputs = [out for out, _, _ in group.outputs.values()]
    places = {place: index for index, place in enumerate(group.outputs)}
    scalars = [scalar for stage in group.stages for _, _, scalar in stage.numbers]
    for stage in group.stages:
        for node in _nodes(stage):
            for leaf in walk(node):
                if isinstance(leaf, Leaf) and _is_input(leaf, places) and _find(inputs, _spread(group, leaf)) is None:
                    inputs.append(_spread(group, leaf))
    dtypes = [leaf.dtype for leaf in (*inputs, *outputs)]

    def number_of(leaf: Leaf) -> int:
        if isinstance(leaf.source.pending, Scalar):
            return len(inputs) + len(outputs) + scalars.index(leaf.source.pending)
        if _place(leaf) in places:
            return len(inputs) + places[_place(leaf)]
        found = _find(inputs, _spread(group, leaf))
        assert found is not None
        return found

    stages: list[Stage] = []
    known = 0
    for stage in group.stages:
        before = [*dtypes, *(scalar.dtype for scalar in scalars[:known])]
        writer = BodyWriter(number_of, len(before))
        results = [writer.write(node) for node in _nodes(stage)]
        placed = [with_strides(line, lambda steps: _spread_steps(group, steps, order)) for line in writer.body]
        body, renumbered = explicit_rounding(before, placed, results)
        count = len(stage.numbers)
        stores = tuple(
            Store(places[_place(out)], number)
            for (_, out), number in zip(stage.stores, renumbered[count:], strict=True)
        )
        if stage.is_pass:
            reductions = tuple(
                Reduction(kind, number) for (kind, _, _), number in zip(stage.numbers, renumbered[:count], strict=True)
            )
            stages.append(RowPass(body, reductions, stores))
        else:
            stages.append(Finish(body, renumbered[:count], stores))
        known += count
    views = [view_of(_spread(group, leaf).window.permuted(order), leaf.dtype) for leaf in (*outputs, *inputs)]
    expression = RowExpression(
        assembly.name("rows"), group.rows, group.columns,
        tuple(views[: len(outputs)]), tuple(views[len(outputs) :]), tuple(stages),
    )  # fmt: skip
    made = plan_stages(expression, assembly.target)
    scratch = [Location(assembly.buffer("arena", piece.elements, piece.dtype)) for piece in made.scratch]
    places_of = [*map(assembly.location, outputs), *map(assembly.location, inputs), *scratch]
    for call in made.calls:
        arguments = [places_of[number] for number in call.buffers]
        written = outputs_of(call.kernel)
        assembly.call(call.kernel, tuple(arguments[:written]), tuple(arguments[written:]))


def _nodes(stage: OpenStage) -> list[Node]:
    return [*(node for _, node, _ in stage.numbers), *(node for node, _ in stage.stores)]


def _is_input(leaf: Leaf, places: dict[Place, int]) -> bool:
    return leaf.source.pending is None and _place(leaf) not in places


def _place(leaf: Leaf) -> Place:
    return leaf.source.buffer, leaf.window


def _spread(group: Rows, leaf: Leaf) -> Leaf:
    """A leaf in the shape of the whole space: one that has a number a row repeats it along the columns."""
    if leaf.window.shape == group.shape:
        return leaf
    steps = iter(leaf.window.strides)
    strides = tuple(0 if i in group.reduced else next(steps) for i in range(len(group.shape)))
    return replace(leaf, window=Window(group.shape, strides, leaf.window.offset))


def _spread_steps(group: Rows, steps: tuple[int, ...], order: Sequence[int]) -> tuple[int, ...]:
    """Steps of positions as kernels count them: those of rows, then those of columns, which a row's number has not."""
    whole = len(steps) == len(order)
    return tuple(steps[dimension] for dimension in order) if whole else (*steps, *(0 for _ in group.columns))


def _find(leaves: Sequence[Leaf], wanted: Leaf) -> int | None:
    for index, leaf in enumerate(leaves):
        if (leaf.source.buffer, leaf.window, leaf.dtype) == (wanted.source.buffer, wanted.window, wanted.dtype):
            return index
    return None
