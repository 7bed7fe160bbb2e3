"""A model in any wrapper -> its tensors under the names that they have without one.

Wrappers are known by their class, not by the name of the child they hold: a model may well have a child called
`module`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from weft.errors import UsageError

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
