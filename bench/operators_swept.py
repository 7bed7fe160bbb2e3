"""List calls of PyTorch's operators at two sizes: the samples of its operator database, small and of about a megabyte.

Its samples are made of a few lengths that stand in its modules (S, M, L); with larger ones the very same samples are
large.
"""

from __future__ import annotations

import random
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.opinfo import core, definitions
from torch.testing._internal.opinfo.core import OpInfo, ReductionOpInfo, UnaryUfuncInfo
from torch.utils import _pytree as pytree

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LENGTHS = {"small": {}, "large": {"S": 64, "M": 96, "L": 512}}
MOST_SCALARS = 8  # kinds of samples without dimensions
REPEATED = (UnaryUfuncInfo, ReductionOpInfo)
LEAST_BYTES, MOST_BYTES = 1 << 18, 1 << 23  # of a large sample's tensors
# Not measured: they look at values, wait, or give what nobody has written.
LEFT_OUT = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of an operator: its name in the database, and what it is given."""

    name: str
    dtype: str
    size: str
    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        shapes = [tuple(leaf.shape) for leaf in pytree.tree_leaves((self.args, self.kwargs)) if is_tensor(leaf)]
        return f"{self.name} {self.dtype} {self.size} {self.number} {shapes[:3]}"


def is_tensor(leaf: object) -> bool:
    """Tell a tensor from everything else."""
    return isinstance(leaf, torch.Tensor)


def entries() -> list[OpInfo]:
    """List the entries of the database that compute, by name."""
    kept = [entry for entry in database.op_db if entry.name not in LEFT_OUT]
    return sorted(kept, key=lambda entry: entry.full_name)


def calls(entry: OpInfo, dtype: str, size: str, most: int) -> list[OperatorCall]:
    """Give some calls of an entry: the first samples, those of other numbers of tensors or dimensions first."""
    if not entry.supports_dtype(DTYPES[dtype], "cpu"):
        return []
    seed = zlib.crc32(entry.full_name.encode())
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    found: dict[object, OperatorCall] = {}
    with warnings.catch_warnings(), _lengths(size):
        warnings.simplefilter("ignore")
        samples = entry.sample_inputs("cpu", DTYPES[dtype], requires_grad=False)
        for number, sample in enumerate(samples):
            args = (sample.input, *sample.args)
            leaves = [leaf for leaf in pytree.tree_leaves((args, sample.kwargs)) if is_tensor(leaf)]
            taken = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
            if size == "large" and not LEAST_BYTES <= taken <= MOST_BYTES:
                continue
            if not leaves or taken > MOST_BYTES:
                continue
            kind = tuple((leaf.ndim, leaf.is_contiguous()) for leaf in leaves)
            found.setdefault(kind, OperatorCall(entry.full_name, dtype, size, number, entry.op, args, sample.kwargs))
            if len(found) == most:
                break
    if size == "large" and not found and isinstance(entry, REPEATED):
        small = map(_repeated, calls(entry, dtype, "small", most + MOST_SCALARS))
        return [large for large in small if large is not None][:most]
    return list(found.values())


def _repeated(call: OperatorCall) -> OperatorCall | None:
    """The same call of more rows, where it is given one tensor alone and any number of rows will do."""
    given, *rest = call.args
    if not isinstance(given, torch.Tensor) or not given.ndim or not given.numel() or any(map(is_tensor, rest)):
        return None
    times = -(-(LEAST_BYTES * 4) // (given.numel() * given.element_size()))
    many = given.repeat(times, *(1,) * (given.ndim - 1))
    return replace(call, size="large", args=(many, *rest))


@contextmanager
def _lengths(size: str) -> Iterator[None]:
    """Give the modules that make samples other lengths for a while."""
    modules = [database, core, *(getattr(definitions, name) for name in dir(definitions) if name[0] != "_")]
    before = [
        (module, name, getattr(module, name))
        for module in modules
        for name in ("S", "M", "L", "XS")
        if isinstance(getattr(module, name, None), int)
    ]
    for module, name, length in before:
        setattr(module, name, LENGTHS[size].get(name, length))
    try:
        yield
    finally:
        for module, name, length in before:
            setattr(module, name, length)
