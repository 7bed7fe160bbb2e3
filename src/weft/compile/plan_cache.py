"""Keep plans on disk, each under a digest of all that decides it.

An entry is named after all that decides a plan: the graph's text and constants, which inputs are weights, the machine,
and the sources of what plans. Where the user's source lies, and at which lines, decides nothing. Whatever an entry
holds that is not the plan asked for counts as absent.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from weft.codegen.objects.native import ObjectCache, code_version, known_digest
from weft.config import config
from weft.errors import UsageError
from weft.ir.graph import Graph, Value
from weft.ir.literals import bytes_of
from weft.ir.printer import constants_of, print_graph
from weft.ir.types import type_of
from weft.passes.within import Within
from weft.plan.extents.parts import VaryingSizes
from weft.plan.plan_record import places_of, read_planned, write_planned
from weft.plan.planned import PlannedGraph
from weft.plan.schedule.cost import MachineModel
from weft.target import Target

PLAN_FOLDER = "plans"
LARGEST_CACHE = 64 * 1024 * 1024
CANNOT_BE_KEPT = b"made in each process"
# What tracing and planning are made of beside the files that write machine code.
SOURCES = (
    "passes/**/*.py",
    "trace/**/*.py",
    "compile/pipeline.py",
    "compile/clock.py",
    "compile/plan_cache.py",
    "runtime/saved_strides.py",
)

log = logging.getLogger("weft.runtime")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a plan is made for: instructions, lanes, and how long things take."""

    target: Target
    lanes: int
    model: MachineModel


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What is to be planned: a graph, its inputs that change rarely, what ends its forward, and for what machine.

    `loose` are roots whose strides are free; `varying` says which sizes vary. `threads` are those of PyTorch's
    operators where the clock compares these with kernels; else 0.
    """

    graph: Graph
    weights: frozenset[Value]
    forward: Sequence[Value]
    loose: frozenset[Value]
    machine: Machine
    varying: VaryingSizes | None = None
    threads: int = 0


def kept_plan(question: Question, make: Callable[[bool], PlannedGraph]) -> PlannedGraph:
    """Give the plan from the disk cache, or what `make` gives, which is kept.

    It is told whether this is new here. A plan that cannot be kept is made in each process, of code that is known.
    """
    folder = config().cache_dir
    key = None if folder is None else _key(question)
    if folder is None or key is None:
        return make(folder is None)
    entries = _cache(folder)
    entry = entries.read(key)
    found = _read(entry, key, question)
    if found is None:
        found = make(entry is None)
        body = write_planned(found, question.graph)
        entries.write(key, key.encode() + (body or CANNOT_BE_KEPT))
    return found


def _read(entry: bytes | None, key: str, question: Question) -> PlannedGraph | None:
    # An entry that was moved to another's place is whole, and says whose it is.
    if entry is None or not entry.startswith(key.encode()) or entry == key.encode() + CANNOT_BE_KEPT:
        return None
    try:
        return read_planned(entry[len(key) :], question.graph, question.weights)
    except UsageError as error:
        log.info("the plan of %s in the cache is not used: %s", question.graph.name, error)
        return None


def _key(question: Question) -> str | None:
    """Name a plan by all that decides it; None where a graph has no text."""
    graph = question.graph
    position = {value: number for number, value in enumerate((*graph.inputs, *graph.values))}
    try:
        text = print_graph(graph, places=False)
    except UsageError:
        return None
    places = places_of(graph)
    constants = [(str(type_of(one)), hashlib.sha256(bytes_of(one)).hexdigest()) for one in constants_of(graph)]
    parts = (
        planning_version(),
        torch.__version__,
        torch.get_default_dtype(),
        text,
        constants,
        [places[value.place] for value in graph.values],  # which come from one line: all that an entry tells of lines
        sorted(position[value] for value in question.weights if value in position),
        [position[value] for value in question.forward],
        sorted(position[value] for value in question.loose),
        _varying_text(question, position),
        question.machine.target,
        question.machine.lanes,
        str(question.machine.model),
        question.threads,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _varying_text(question: Question, position: Mapping[Value, int]) -> str:
    varying = question.varying
    if varying is None:
        return ""
    names = {size: position[value] for value, size in varying.holders.items()}

    def named(within: Within) -> list[list[tuple[int, int | None]]]:
        return [[(one.largest, names.get(one.size) if one.size else None) for one in factors] for factors in within]

    held = sorted((position[value], names[size]) for value, size in varying.holders.items())
    places = (
        (position[value], named(within)) for some in (varying.within, varying.inputs) for value, within in some.items()
    )
    numbers = sorted((position[value], str(size)) for value, size in varying.numbers.items())
    sizes = sorted((position[value], str(size)) for value, size in varying.holders.items())
    dense = sorted((position[value], [*map(str, own)]) for value, own in varying.dense.items())
    return repr((held, len(varying.within), [*places], numbers, sizes, dense))


@cache
def planning_version() -> str:
    """Digest the sources of what traces, plans and writes code, as they are when this is first asked for."""
    return f"{code_version()} {known_digest(Path(__file__).parents[1], SOURCES)}"


@cache
def _cache(folder: Path) -> ObjectCache:
    return ObjectCache(folder / PLAN_FOLDER, LARGEST_CACHE)
