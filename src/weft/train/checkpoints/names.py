"""Name the tensors of a model without its wrappers, and pair them with those of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from weft.errors import CheckpointError, UsageError, counted

# A class, by its name, because importing some of them takes seconds -> the child that it wraps.
WRAPPERS = {
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "_fsdp_wrapped_module",
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.CheckpointWrapper": "_checkpoint_wrapped_module",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.OffloadWrapper": "_checkpoint_wrapped_module",
    "weft.train.devices.data_parallel.DataParallel": "module",
}
WRAPPED = frozenset(WRAPPERS.values())
MOST_SHOWN = 20
DEEPEST_NESTING = 4  # wrappers around wrappers that a file's names may show


def wrapped_child(module: nn.Module) -> str | None:
    """Give the name of the child that a module merely wraps; None for an ordinary module."""
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(module).__mro__)
    return next((WRAPPERS[name] for name in names if name in WRAPPERS), None)


def unwrapped(module: nn.Module) -> nn.Module:
    """Give the module inside of any number of wrappers."""
    child = wrapped_child(module)
    return module if child is None else unwrapped(module.get_submodule(child))


def canonical_names(net: nn.Module) -> dict[str, str]:
    """Give, for each key of `net.state_dict()`, the name it has without wrappers."""
    prefixes = dict(_prefixes(net, "", ""))
    names: dict[str, str] = {}
    owners: dict[str, str] = {}
    for key in net.state_dict(keep_vars=True):
        prefix = _longest_prefix(key, prefixes)
        name = prefixes[prefix] + key[len(prefix) :]
        if name in owners:
            raise UsageError(
                f"{owners[name]} and {key} of {type(net).__name__} have one name without wrappers: {name}",
                why="a wrapper has a child of its own that is called like one of what it wraps",
                fix="add children to the model, not to its wrapper",
            )
        owners[name] = key
        names[key] = name
    return names


def _prefixes(module: nn.Module, actual: str, canonical: str) -> Iterator[tuple[str, str]]:
    """List where the keys of each module begin, with wrappers and without."""
    yield actual, canonical
    inner = wrapped_child(module)
    for name, child in module._modules.items():
        if child is not None:
            step = "" if name == inner else f"{name}."
            yield from _prefixes(child, f"{actual}{name}.", canonical + step)


def _longest_prefix(key: str, prefixes: dict[str, Any]) -> str:
    end = len(key)
    while (end := key.rfind(".", 0, end)) >= 0:
        if key[: end + 1] in prefixes:
            return key[: end + 1]
    return ""


def without_wrappers(name: str) -> str:
    """Take everything that looks like a wrapper out of a name from a file, where no classes are known."""
    return ".".join(part for part in name.split(".") if part not in WRAPPED)


@dataclass(frozen=True)
class MatchReport:
    """What was found where: names in the model (without wrappers), and in the file where they differ."""

    matched: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()  # in the file, in the model
    missing: tuple[str, ...] = ()  # in the model only
    unexpected: tuple[str, ...] = ()  # in the file only
    shape: tuple[str, ...] = ()  # a sentence for each tensor that has another shape or kind of elements

    @property
    def complete(self) -> bool:
        """Whether every tensor of the one side has its place on the other."""
        return not (self.missing or self.unexpected or self.shape)

    def __str__(self) -> str:
        rows: tuple[tuple[str, tuple[str, ...]], ...] = (
            ("matched", (counted(len(self.matched), "tensor"),)),
            ("renamed", tuple(f"{old} -> {new}" for old, new in self.renamed)),
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("shape", self.shape),
        )
        return "\n".join(f"{title + ':':<12}{_listed(items)}" for title, items in rows if items)


class ModelMismatchError(CheckpointError):
    """A checkpoint that is whole but of another model; `report` says how they differ."""

    report: MatchReport


def match(
    stored: Mapping[str, torch.Tensor], wanted: Mapping[str, Any], sides: tuple[str, str] = ("the file", "the model")
) -> tuple[dict[str, str], MatchReport]:
    """Find the name in the file for each name in the model; every way of naming is tried, the simplest first.

    A way of naming counts only if it brings all names together: a part would be a guess. `sides` is what the report
    calls the two.
    """
    ways = list(_ways(stored, wanted))
    pairs = next((way for way in ways if len(way) == len(stored) == len(wanted)), None)
    if pairs is None:
        pairs = max(ways, key=len)
    misfits = {name: _misfit(stored[source], wanted[name], sides) for name, source in pairs.items()}
    found = {name: source for name, source in pairs.items() if not misfits[name]}
    used = set(pairs.values())
    report = MatchReport(
        matched=tuple(found),
        renamed=tuple((source, name) for name, source in found.items() if source != name),
        missing=tuple(name for name in wanted if name not in pairs),
        unexpected=tuple(source for source in stored if source not in used),
        shape=tuple(f"{name}: {misfit}" for name, misfit in misfits.items() if misfit),
    )
    return found, report


def mismatch(file: str, report: MatchReport) -> ModelMismatchError:
    """Make the error for a file that does not fit a model."""
    error = ModelMismatchError(
        f"{file} does not fit the model: nothing was loaded",
        why=str(report),
        fix="build the model that was saved; weft.load(path, net, partial=True) loads what fits, and says what",
    )
    error.report = report
    return error


def _ways(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Give pairings, name in the model -> name in the file, one for each way in which files are named."""
    for depth in range(DEEPEST_NESTING):
        yield _pairs(stored, wanted, partial(_without_leading, depth))
    yield _pairs(stored, wanted, without_wrappers)
    yield _pairs(stored, wanted, without_wrappers, without_wrappers)
    heads = {name.partition(".")[0] for name in stored}
    if len(heads) == 1:  # what was saved held the model as its only part with tensors, as trainers of others do
        yield _pairs(stored, wanted, lambda name: name.partition(".")[2])


def _pairs(
    stored: Iterable[str],
    wanted: Iterable[str],
    in_file: Callable[[str], str],
    in_model: Callable[[str], str] = str,
) -> dict[str, str]:
    """Pair the names that become equal, unless two of one side become one."""
    sources = _unique(stored, in_file)
    targets = _unique(wanted, in_model)
    return {targets[name]: source for name, source in sources.items() if name in targets}


def _unique(names: Iterable[str], change: Callable[[str], str]) -> dict[str, str]:
    found: dict[str, str | None] = {}
    for name in names:
        changed = change(name)
        found[changed] = None if changed in found else name
    return {changed: name for changed, name in found.items() if name is not None}


def _without_leading(depth: int, name: str) -> str:
    """Take so many wrappers off the front of a name; a name without them stays as it is."""
    for _ in range(depth):
        head, dot, rest = name.partition(".")
        if not dot or head not in WRAPPED:
            return name
        name = rest
    return name


def _misfit(stored: Any, wanted: Any, sides: tuple[str, str]) -> str | None:
    """Say why a tensor of the file cannot be copied into one of the model; None if it can."""
    if not isinstance(stored, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        same = isinstance(stored, torch.Tensor) == isinstance(wanted, torch.Tensor)
        return None if same else "only one of the two is a tensor"
    if is_lazy(wanted):
        return None
    if stored.shape != wanted.shape:
        return f"{list(stored.shape)} in {sides[0]}, {list(wanted.shape)} in {sides[1]}"
    if _kind(stored.dtype) != _kind(wanted.dtype):
        return f"{stored.dtype} in {sides[0]}, {wanted.dtype} in {sides[1]}"
    return None


def _kind(dtype: torch.dtype) -> str:
    """Numbers of one kind differ in precision only: loading float32 into a model of bfloat16 is what a user means."""
    if dtype.is_complex:
        return "complex"
    return "floating" if dtype.is_floating_point else str(dtype)


def _listed(items: tuple[str, ...]) -> str:
    shown = "\n            ".join(items[:MOST_SHOWN])
    return shown if len(items) <= MOST_SHOWN else f"{shown}\n            and {len(items) - MOST_SHOWN} more"
