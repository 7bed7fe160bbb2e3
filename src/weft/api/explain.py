"""Explain the programs of a hybridized module or function, and why each was made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from weft.api.hybrid import Hybrid
from weft.api.hybridize import hybrid_of
from weft.errors import counted
from weft.runtime.lane_choice import seconds_text
from weft.trace.signature import Key, leaf_text
from weft.tracebacks import shows_less


class Explanation(str):
    """Text that shows itself as it is, also at the interactive prompt."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@shows_less
def explain(thing: Callable[..., Any]) -> Explanation:
    """The programs of a hybridized module or function, and what changed each time one more was needed."""
    hybrid = hybrid_of(thing)
    if hybrid is not thing and (not isinstance(thing, nn.Module) or thing.__dict__.get("forward") is not hybrid):
        return Explanation("\n".join(_not_hybridized(thing, hybrid.name)))
    programs = [(key, guarded) for key, group in hybrid.programs.items() for guarded in group]
    varying = [*hybrid.varying.with_structures()]
    made = counted(len(programs), "program")
    if varying and not programs:  # where it is told which sizes vary there need be no program of one size
        made = f"{counted(len(varying), 'program')} for many sizes"
    lines = [f"{hybrid.name}: {made}, {hybrid.traces} traced"]
    if not hybrid.traces and hybrid.imperative is None and not hybrid.refused:
        return Explanation(f"{hybrid.name}: no programs yet; the first call makes one")
    if hybrid.imperative is not None:
        lines += ["runs imperatively, because", *("  " + line for line in hybrid.imperative.splitlines())]
    for error in hybrid.refused.errors():
        lines += ["  runs by Python at each call, because", *("    " + line for line in str(error).splitlines())]
    for number, (key, guarded) in enumerate(programs, 1):
        lines.append(f"  program {number}: {_signature(key, hybrid.leaf_names(key[0]))}")
        lines.append(f"    {guarded.program.summary()}")
        if guarded.paths is not None:
            lines.append(f"    taken {counted(guarded.paths.taken(guarded), 'time')} by native code")
        lines += [f"    {choice}" for choice in guarded.program.lane_choices]
        if guarded.program.clocked is not None:
            kernels, operators = map(seconds_text, guarded.program.clocked)
            lines.append(f"    by the clock PyTorch's operators take {operators}, kernels {kernels}: operators run")
        lines += [f"    float32: {_named(weight(), hybrid.root)}: {why}" for weight, why in guarded.program.full]
    lines += [f"  for sizes {sizes.describe(hybrid.leaf_names(structure))}" for structure, sizes in varying]
    lines += [f"  {sentence}" for sentence in (*hybrid.varying.fixed, *hybrid.varying.refusals)]
    if hybrid.rare.calls:
        why = (
            "their signatures not having been prepared"
            if hybrid.rare.is_closed
            else "their signatures having come too rarely"
        )
        lines.append(f"  {counted(hybrid.rare.calls, 'call')} ran imperatively, {why}")
    if hybrid.misses:
        lines.append("  traced again because")
        lines += [f"    {sentence}" for sentence in hybrid.misses]
    return Explanation("\n".join(lines))


def _named(weight: Any, root: Any) -> str:
    """What a weight is called in a module, else what it looks like."""
    parameters = root.named_parameters() if isinstance(root, nn.Module) else ()
    found = next((name for name, parameter in parameters if parameter is weight), None)
    return found or ("a weight" if weight is None else f"a weight of {list(weight.shape)}")


def _not_hybridized(thing: Callable[..., Any], name: str) -> list[str]:
    """Say so, and explain those of a module's parts that are."""
    lines = [f"{name} is not hybridized: weft.hybridize makes its calls programs"]
    for path, part in thing.named_modules() if isinstance(thing, nn.Module) else ():
        if isinstance(part.__dict__.get("forward"), Hybrid):
            lines += [f"  {path}:", *(f"    {line}" for line in explain(part).splitlines())]
    return lines


def _signature(key: Key, names: list[str]) -> str:
    parts = (f"{name}: {leaf_text(leaf)}" for name, leaf in zip(names, key[1], strict=True))
    modes = "with gradients" if key[2][0] else "no gradients"
    return f"({', '.join(parts)}) {modes}"
