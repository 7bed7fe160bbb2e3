"""Make one native entry of all paths of a signature: it compares what they rely on, and walks their segments.

What all of them rely on must hold, so that no segment has to be left for a guard. Where native code knows no segment
that follows, all of the call is run again by Python, which knows every path, or traces one: segments write nothing.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.codegen.calls.native_call import CallWord, GuardWord
from weft.codegen.torch_functions import tensor_functions
from weft.guards.back_off import BackOff
from weft.guards.entry import MISSED, Entry, Ways, make_entry
from weft.guards.guarded import Guarded, TakenLeaves
from weft.guards.likeness import CallItems, Likeness, likeness_of
from weft.guards.words import Settled, Told
from weft.runtime.arena import block_pool
from weft.runtime.built_in import python_words, state_of, table_of
from weft.runtime.memory_layout import Row, grad_layout
from weft.runtime.path_graph import OtherOutcome, PathGraph
from weft.runtime.path_tree import PathTree, UnwalkableError, WalkedPath

MOST_BYTES = 1 << 24  # of a frame, which an entry keeps for itself
Finish = Callable[[Any, Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class Walked:
    """The path of a program, as native code walks it: what its results are put in, and what is made of these.

    `finish` makes what the call gives, of the results and the inputs.
    `counts` says whether numbers that were read are wanted, behind the inputs, or behind the results where it
    does not take inputs; `row_of_words` are words that say that it
    is current.
    """

    graph: PathGraph
    row: type | None
    finish: Finish | None
    counts: bool = False
    takes_inputs: bool = True
    row_of_words: tuple[Row, ...] = ()


class Strayed(OtherOutcome):
    """No path takes a call, nor is it worth one now: Python is to run it."""

    def __init__(self, paths: PathsOfCalls, path: PathGraph) -> None:
        super().__init__(path, 0, None, [], None)
        self.paths = paths


class PathsEntry:
    """The entry of calls whose values decide; made by `PathsOfCalls`."""

    def __init__(self, of: PathsOfCalls, likeness: Likeness) -> None:
        paths = of.paths
        self.guarded = of  # stands for all of the paths, where kinds of calls are told apart
        self.paths = tuple(paths)
        self._of = of
        self._strays = ctypes.c_uint64(0)  # native code counts them
        self._known_strays = 0
        self._leaves = tuple(dict.fromkeys(leaf for path in paths for leaf in path.arguments))
        apart = tuple(dict.fromkeys(leaf for path in paths for leaf in path.taken.apart))
        self._likeness = likeness
        self._told: list[Told | None] = [None]
        self._bound: list[Any] = [None]
        self._attempts = BackOff(first=1)
        self.tree: PathTree | None = None
        ways = Ways(self._told, self._run, self._check)
        self.entry: Entry = make_entry(likeness, TakenLeaves(self._leaves, (), apart), ways, self._bound)
        self.bind()

    @property
    def is_bound(self) -> bool:
        """Whether its calls are native from end to end."""
        return self._bound[0] is not None

    def bind(self) -> None:
        """Make the tree of what the paths are now."""
        settled = [path.settled_for_paths() for path in self.paths]
        known = [one for one in settled if one is not None]
        if len(known) < len(settled):
            self._told[0] = self._bound[0] = None
            return
        tensors = tuple(dict.fromkeys(tensor for one in known for tensor in one.tensors))
        try:
            state = self._tree_of(known, tensors)
        except UnwalkableError:
            self._bound[0] = None
            return
        if state is not None:
            self._told[0], self._bound[0] = state

    def _tree_of(self, settled: Sequence[Settled], tensors: tuple[torch.Tensor, ...]) -> tuple[Told, Any] | None:
        """Give what tells that all facts hold, and the bound program of the tree."""
        walked = [path.program.walked() for path in self.paths]
        if any(one is None for one in walked):
            raise UnwalkableError
        at = {id(tensor): place for place, tensor in enumerate(tensors, len(self._leaves))}
        leaf_at = {leaf: place for place, leaf in enumerate(self._leaves)}
        paths = []
        for path, one, facts in zip(self.paths, walked, settled, strict=True):
            assert one is not None
            own = (*(leaf_at[leaf] for leaf in path.arguments), *(at[id(tensor)] for tensor in facts.tensors))
            count = len(one.graph.root_places)
            finish = _finish(one, own, len(self._leaves) + len(tensors), count)
            paths.append(WalkedPath(one.graph, own, one.row, finish, one.counts))
        known = {place: tensor for tensor, place in zip(tensors, at.values(), strict=True)}
        tree = PathTree(paths, known, len(self._leaves) + len(tensors))
        told = _told(settled, tensors)
        current = [row for one in walked if one is not None for row in one.row_of_words]
        state = self._state(tree, told, current)
        if state is not None:
            self._of.count(self)
            self.tree = tree
        return None if state is None else (told, state)

    def _state(self, tree: PathTree, told: Told, current: Sequence[Row]) -> Any:
        functions = tensor_functions()
        if functions is None or grad_layout() is None:
            return None
        empty, delete, wrap = functions
        places = [self._likeness.leaves[leaf] for leaf in self._leaves]
        captured = told[1]
        tensors = tree.input_kinds()
        rooms = {
            CallWord.VALUES: (ctypes.c_uint64 * max(tree.place_count, 1))(),
            CallWord.HANDLES: (ctypes.c_uint64 * max(tree.place_count, 1))(),
        }
        made = (ctypes.c_uint64 * max(tree.most_given, 1))()
        shared = {
            **python_words(),
            **{name: ctypes.addressof(room) for name, room in rooms.items()},
            CallWord.EMPTY: empty,
            CallWord.DELETE: delete,
            CallWord.WRAP: wrap,
            CallWord.PLACE_COUNT: tree.place_count,
        }
        first = tree.first(shared, ctypes.addressof(made))
        if tree.frame_bytes > MOST_BYTES:
            raise UnwalkableError
        block = block_pool(tree.frame_bytes).take()
        changing = [
            (places[number] if number < len(places) else (len(places) - 1 - number) % (1 << 64), size)
            for number, size in enumerate(tensors)
        ]
        rows = [*tree.rows, *current]
        tables = {
            CallWord.ROWS: table_of(rows),
            CallWord.CHANGING: table_of(changing),
            CallWord.FRAME: ctypes.c_uint64(block.address),
        }
        words = {
            **shared,
            **{name: ctypes.addressof(table) for name, table in tables.items()},
            CallWord.ROW_COUNT: len(rows),
            CallWord.CHANGING_COUNT: len(changing),
            CallWord.FIRST: first,
            CallWord.TAKEN: ctypes.addressof(self._strays),
            CallWord.CAPTURED: id(captured),
            CallWord.FINISH: int(any(path.finish is not None for path in tree.paths)),
        }
        # SAFETY: who runs it holds this tuple, and the tuple the tables, rooms, frame, segments, code and tensors.
        return state_of(CallWord, words), (tables, rooms, made, block, tree, captured)

    def _run(self, inputs: Sequence[Any], containers: Sequence[Any] = ()) -> Any:
        """Run a call that native code does not finish: by the first path, which says what decides otherwise."""
        if self._of.has_grown(self):
            return MISSED
        strays, before = self._strays.value, self._known_strays
        self._known_strays = strays
        if strays == before:
            if self._attempts.is_due():
                self.bind()
        elif self.tree is not None and not self._of.deserves():
            raise Strayed(self._of, self.tree.paths[0].graph)
        path = self.paths[0]
        settled = path.settled_for_paths()
        if settled is None:
            return MISSED
        at = {id(tensor): place for place, tensor in enumerate(inputs) if place >= len(self._leaves)}
        if any(id(tensor) not in at for tensor in settled.tensors):
            return MISSED
        own = [inputs[self._leaves.index(leaf)] for leaf in path.arguments]
        own += [inputs[at[id(tensor)]] for tensor in settled.tensors]
        return path.program.run(path.with_numbers_to_read(own), containers)

    def _check(self, leaves: Sequence[Any], containers: Sequence[Any] = ()) -> Any:
        """Run a call of which words do not tell that facts hold."""
        path = self.paths[0]
        inputs = path.ready(leaves) if self._likeness.is_that_of(leaves) else None
        if self._attempts.is_due():
            self.bind()
        return MISSED if inputs is None else path.program.run(inputs, containers)


def _finish(walked: Walked, own: tuple[int, ...], inputs: int, made: int) -> Finish | None:
    """Give what makes of what a path has made, with the inputs of all paths, what a call gives."""
    finish = walked.finish
    if finish is None or not walked.takes_inputs or (own == tuple(range(inputs)) and not walked.counts):
        return finish
    fresh = made - sum(place < walked.graph.first_number for place in walked.graph.root_places)
    if not walked.counts:
        return lambda row, given: finish(row, [given[place] for place in own])
    return lambda row, given: finish(row[:fresh], [*(given[place] for place in own), *row[fresh:]])


def _told(settled: Sequence[Settled], tensors: tuple[torch.Tensor, ...]) -> Told:
    """Give what tells that the facts of all of them hold."""
    rows = list(dict.fromkeys(row for one in settled for row in one.words.rows()))
    foreign = sorted({address for one in settled for address in one.words.places()})
    tables, seen = (table_of(rows), table_of([(address,) for address in foreign])), ctypes.c_uint64(0)
    words = {
        GuardWord.ROWS: ctypes.addressof(tables[0]),
        GuardWord.ROW_COUNT: len(rows),
        GuardWord.FOREIGN: ctypes.addressof(tables[1]),
        GuardWord.FOREIGN_COUNT: len(foreign),
        GuardWord.SEEN: ctypes.addressof(seen),
    }
    return state_of(GuardWord, words), tensors, (settled, tables, seen)


class PathsOfCalls:
    """The paths of one signature, and the entry that calls of some of them share; callers hold the object's lock."""

    def __init__(self, key: Any, deserves: Callable[[], bool]) -> None:
        """`deserves` says whether a call of the signature that no path takes is worth another one."""
        self.key, self.deserves = key, deserves
        self.paths: list[Guarded[Any]] = []
        self._entry: PathsEntry | None = None
        self._attempts = BackOff(first=1)
        self._renewals = BackOff(first=1)
        self._taken: Counter[Guarded[Any]] = Counter()  # by trees that are no longer

    def count(self, entry: PathsEntry) -> None:
        """Keep how often paths were taken by an entry's tree, which is to be another one."""
        if entry.tree is not None:
            self._taken.update(dict(zip(entry.paths, entry.tree.counts(), strict=True)))

    def taken(self, path: Guarded[Any]) -> int:
        """How often native code has gone a path to its end."""
        found, entry = self._taken[path], self._entry
        if entry is not None and entry.tree is not None:
            found += dict(zip(entry.paths, entry.tree.counts(), strict=True)).get(path, 0)
        return found

    def taken_by_all(self) -> int:
        """How often native code has gone any path to its end."""
        return sum(map(self.taken, self.paths))

    @property
    def entry(self) -> PathsEntry | None:
        """The entry, if there is one of the paths of now."""
        return self._entry

    def add(self, path: Guarded[Any]) -> None:
        """Add a path; the entry is to be made anew."""
        if self._entry is not None:
            self.count(self._entry)
        self.paths.insert(0, path)
        self._attempts, self._renewals, self._entry = BackOff(first=1), BackOff(first=1), None

    def has_grown(self, entry: PathsEntry) -> bool:
        """Whether a call that leaves an entry is to look for one of more paths, which is there or may be made now."""
        if self._entry is not None:
            return self._entry is not entry
        if not self._renewals.is_due():
            return False
        self._attempts = BackOff(first=1)  # one back-off within another would hardly ever be due
        return True

    def known(self, arguments: Sequence[Any], keywords: dict[str, Any]) -> PathsEntry | None:
        """The entry for calls like this one; None where native code cannot walk the paths."""
        if self._entry is not None:
            if not self._entry.is_bound and self._attempts.is_due():
                self._entry.bind()
            return self._entry if self._entry.is_bound else None
        if not self._attempts.is_due() or any(path.program.walked() is None for path in self.paths):
            return None
        items = CallItems(arguments, keywords)
        likeness = likeness_of(items, offsets=any(path.offsets_matter for path in self.paths))
        owned = any(path.may_be_own(items.things) for path in self.paths)
        if likeness is None or not likeness.is_all_words or owned:
            return None
        made = PathsEntry(self, likeness)
        self._entry = made if made.is_bound else None
        return self._entry
