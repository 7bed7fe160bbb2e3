"""Describe calls of PyTorch operators as immutable data, and ask what may be done with them: share, drop, reorder.

Nearly everything is read from the operator's own schema and tags. The tables name what schemas do not say.

A call keeps the nesting of its arguments (lists, keywords) and points to tensor values by position: `Operand(i)` stands
for the i-th operand of the value that carries the call, `Written(k)` for its k-th written argument (see `Update` rules
in ops.py), `HOLE` for the tensor that a view step is applied to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from weft.errors import UsageError


@dataclass(frozen=True, slots=True)
class Operand:
    """Stands for the operand at this position."""

    index: int


@dataclass(frozen=True, slots=True)
class WrittenArgument:
    """Stands for the written argument at this position of `Call.written`."""

    index: int


@dataclass(frozen=True, slots=True)
class Hole:
    """Stands for the tensor that a view step is applied to."""


HOLE = Hole()
Literal = Any  # int, float, bool, complex, str, None, dtype, device, layout, memory format; tuples of arguments
Argument = Any  # Literal | Operand | WrittenArgument | Hole


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view operator on the way from a tensor to a view of it; `item` picks from operators with several results."""

    target: str
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...] = ()
    item: int | None = None


Path = tuple[ViewStep, ...]


@dataclass(frozen=True, slots=True)
class WrittenPlace:
    """Where a writing operator writes: the view at `path` of the operand at position `base`."""

    base: int
    path: Path = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one operator overload, by its name such as `aten.add.Tensor`."""

    target: str
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...] = ()
    written: tuple[WrittenPlace, ...] = ()


def map_arguments(argument: Argument, change: Callable[[Argument], Any]) -> Any:
    """Rebuild nested tuples of arguments with `change` applied to every leaf."""
    if isinstance(argument, tuple):
        return tuple(map_arguments(item, change) for item in argument)
    return change(argument)


def flat_results(result: Any) -> list[Any]:
    """An operator's results in order: nested lists opened, absent ones kept as None."""
    if isinstance(result, (list, tuple)):
        return [leaf for item in result for leaf in flat_results(item)]
    return [result]


UNDECLARED_VIEWS = frozenset(
    {"aten._unsafe_view", "aten.unsafe_split", "aten.unsafe_split_with_sizes", "aten.unsafe_chunk", "aten.dropout"}
    | {"aten.feature_dropout", "aten.alpha_dropout", "aten.feature_alpha_dropout", "aten.broadcast_tensors"}
    | {"aten.meshgrid", "aten.atleast_1d", "aten.atleast_2d", "aten.atleast_3d", "aten.conj_physical"}
)
"""Operators whose result may be, or lie inside, an argument although their schema declares no alias."""

RUNNING = ("running_mean", "running_var")
UNDECLARED_WRITES: dict[str, tuple[str, ...]] = {
    "aten.native_batch_norm": RUNNING,
    "aten.cudnn_batch_norm": RUNNING,
    "aten.miopen_batch_norm": RUNNING,
    "aten.batch_norm": RUNNING,
    "aten.instance_norm": RUNNING,
    "aten._batch_norm_impl_index": RUNNING,
}
"""Arguments that an operator writes although its schema does not say so."""

UNINITIALISED = frozenset(
    f"{space}.{operator}"
    for space in ("aten", "prims")
    for operator in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
) | {"aten.empty_quantized", "aten._empty_affine_quantized", "aten._empty_per_channel_affine_quantized", "aten.resize"}
"""Operators whose result holds whatever was in memory: equal calls give unequal elements."""

EFFECTFUL_SPACES = frozenset(
    {"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "_dtensor", "profiler"}
)
"""Namespaces whose operators talk to other processes or to a profiler: every call counts, in its order."""

EFFECTFUL = frozenset(
    {"aten._functional_assert_async", "aten._functional_assert_scalar", "aten._functional_sym_constrain_range"}
    | {"aten._functional_sym_constrain_range_for_size", "aten._make_dep_token", "aten.record_stream", "aten.set_data"}
    | {"weft.packed_lengths"}
)
"""Operators with a result that are called for what they check or set."""


DIVISIONS = frozenset(f"aten.{operator}" for operator in ("floor_divide", "remainder", "fmod"))
"""Operators that refuse to divide integers by zero."""

AT_PLACES = frozenset(f"aten.{operator}" for operator in ("gather", "scatter", "scatter_add", "scatter_reduce"))
"""Operators that are given a tensor, a dimension and an index, and refuse the same places in it with the same error."""

REFUSING = (
    AT_PLACES
    | frozenset(
        f"aten.{operator}"
        for operator in (
            *("embedding", "_embedding_bag", "_embedding_bag_forward_only", "index", "index_put", "put", "take"),
            *("index_select", "index_add", "index_copy", "index_fill", "index_reduce"),
            *("nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss", "multilabel_margin_loss_forward"),
            *("binary_cross_entropy", "_ctc_loss", "masked_scatter", "max_unpool2d", "max_unpool3d", "histc"),
            *("_linalg_eigh", "_linalg_svd", "linalg_eig"),
        )
    )
    | {"weft.ctc_loss"}
)
"""Operators that refuse an index, a class, a probability, a length or a range that there is not, or NaN."""


@cache
def resolve(target: str) -> torch._ops.OpOverload:
    """Find the operator overload that a name such as `aten.add.Tensor` means."""
    space, operator, overload = split(target)
    packet = getattr(getattr(torch.ops, space), operator, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        raise UsageError(
            f"there is no operator {space}::{operator}",
            why=f"{target} is called, and this PyTorch ({torch.__version__}) has no such operator",
            fix="import the package that defines it, or use the PyTorch version the program was made with",
        )
    if overload not in packet.overloads():
        raise UsageError(
            f"{space}::{operator} has no overload {overload}",
            why=f"its overloads in this PyTorch ({torch.__version__}) are {', '.join(packet.overloads())}",
            fix="name one of these",
        )
    found: torch._ops.OpOverload = getattr(packet, overload)
    return found


def split(target: str) -> tuple[str, str, str]:
    """Take a name such as `aten.add.Tensor` apart: namespace, operator, overload."""
    space, _, rest = target.partition(".")
    operator, _, overload = rest.rpartition(".")
    if not (space and operator and overload):
        raise UsageError(
            f"{target!r} does not name an operator overload",
            why="a name has three parts: namespace, operator and overload",
            fix="write it as in aten.add.Tensor or aten.relu.default",
        )
    return space, operator, overload


def name_of(operator: torch._ops.OpOverload) -> str:
    """Give the name that `resolve` finds this overload by."""
    space, _, name = operator._schema.name.partition("::")
    return f"{space}.{name}.{operator._overloadname}"


def packet_name(target: str) -> str:
    """Leave out the overload: `aten.add.Tensor` is one of `aten.add`."""
    space, operator, _ = split(target)
    return f"{space}.{operator}"


@cache
def is_random(target: str) -> bool:
    """Whether a call may draw from a random generator: it is neither shared, dropped nor moved past another one."""
    operator = resolve(target)
    takes_generator = any(str(argument.type) == "Optional[Generator]" for argument in operator._schema.arguments)
    return takes_generator or torch.Tag.nondeterministic_seeded in operator.tags


@cache
def written_arguments(target: str) -> tuple[str, ...]:
    """The names of the arguments whose memory a call changes."""
    declared = tuple(
        argument.name
        for argument in resolve(target)._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    return declared or UNDECLARED_WRITES.get(packet_name(target), ())


@cache
def has_effect(target: str) -> bool:
    """Whether a call does something beside giving results and changing its written arguments.

    Such calls stay, once each, in their order. Random operators count: they advance their generator.
    """
    space, _, _ = split(target)
    returns_nothing = not resolve(target)._schema.returns and not written_arguments(target)
    return is_random(target) or returns_nothing or space in EFFECTFUL_SPACES or packet_name(target) in EFFECTFUL


@cache
def may_refuse(target: str, *, of_floats: bool) -> bool:
    """Whether a call may raise because of data: then it stays when nobody uses its result, as it does in eager code."""
    packet = packet_name(target).removesuffix("_")
    divides = packet in DIVISIONS or (packet == "aten.div" and target.endswith("_mode"))
    return packet in REFUSING or (divides and not of_floats)


@cache
def is_view(target: str) -> bool:
    """Whether a result may share memory with an argument that the call does not write."""
    declared = any(
        result.alias_info is not None and not result.alias_info.is_write for result in resolve(target)._schema.returns
    )
    return declared or packet_name(target) in UNDECLARED_VIEWS


@cache
def is_fresh(target: str) -> bool:
    """Whether every result is in memory that nothing else refers to."""
    returns = resolve(target)._schema.returns
    return bool(returns) and not is_view(target) and all(result.alias_info is None for result in returns)


@cache
def is_uninitialised(target: str) -> bool:
    """Whether the result holds whatever was in memory before."""
    return packet_name(target) in UNINITIALISED
