"""Names of PyTorch operators such as aten.add.Tensor -> the overloads, and what their schemas say of effects."""

from __future__ import annotations

import functools
import re

import torch

from weft.errors import UnsupportedError

TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){2}", re.ASCII)


@functools.cache
def overload(target: str) -> torch._ops.OpOverload:
    """Find an operator overload by name; only operators registered with PyTorch are found."""
    found: object = None
    if TARGET.fullmatch(target) and "__" not in target.split(".")[0]:
        namespace, operator, variant = target.split(".")
        packets = getattr(torch.ops, namespace)
        if isinstance(packets, torch._ops._OpNamespace):
            found = getattr(getattr(packets, operator, None), variant, None)
    if not isinstance(found, torch._ops.OpOverload):
        raise UnsupportedError(
            f"PyTorch has no operator {target}",
            why=f"it is not registered in this process (PyTorch {torch.__version__})",
            fix="import the package that registers it, or use the PyTorch version that the program was made with",
        )
    return found


def exists(target: str) -> bool:
    """Whether an operator of this name is registered."""
    try:
        overload(target)
    except UnsupportedError:
        return False
    return True


def effect_of_target(target: str) -> str | None:
    """What calling an operator does besides giving results: "random", "order", or nothing (None).

    An operator that draws from a generator is random. One that gives no results and writes nothing, such as an
    assertion, is called for what else it does. An unknown operator must keep its place.
    """
    if not exists(target):
        return "order"
    operator = overload(target)
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return "random"
    return None if operator._schema.returns or operator._schema.is_mutable else "order"


def written_results(target: str) -> tuple[bool, ...]:
    """For each result of an operator, whether it is one of the arguments it writes."""
    returns = overload(target)._schema.returns
    return tuple(result.alias_info is not None and result.alias_info.is_write for result in returns)
