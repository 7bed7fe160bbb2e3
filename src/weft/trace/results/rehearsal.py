"""Run an operator once on real tensors where its dtypes are new: its kernel may refuse what its shape rule lets pass.

PyTorch's rules for stand-ins know sizes, but not all that a processor's kernels check: whether dtypes may be mixed,
whether there is a kernel for integers at all, whether a number fits, whether memory that is written overlaps. What a
kernel says of one combination of dtypes holds for every call of it, so it is asked once. Single floats, of which
programs are made, are taken as checked; but not where something has no elements, of which kernels refuse some sizes
(an image without rows has no other size) and rules none.

What a kernel raises on zeros, on ones and on halves is what it raises on anything.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # documented, and not in its list of names

from weft.ir.generator import generator_state
from weft.ir.library import is_random, is_uninitialised, resolve, written_arguments
from weft.ir.types import row_major
from weft.trace.interception.capture import (
    Operator,
    hint_of,
    is_stand_in,
    outside_tracing,
    storage_key,
    tree_flatten,
    tree_map_only,
)
from weft.trace.results.unchecked_lengths import goes_beyond

Key = tuple[Any, ...]

LARGEST = 1 << 18  # elements of arguments that are made as they are: larger ones are made small, or repeat one element
SMALL = 127  # fits into every dtype of numbers
FILLS = ((0, 0), (1, 1), (0.5, 0))  # for floats, for integers: 0 is a place in everything that has places
REFUSALS = (RuntimeError, IndexError, TypeError, ValueError)  # what operators raise
RULES_RAISE = (*REFUSALS, ArithmeticError, AssertionError, LookupError, AttributeError)  # rules are Python's code
SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
# No kernels of these take floats, though their rules may.
WHOLE_NUMBERS = ("aten.bitwise_", "aten.__", "aten.gcd", "aten.lcm")
# Their rules do not look at the place that is given.
UNCHECKED_PLACES = ("aten.select_scatter.", "aten.slice_scatter.")
# What they are given is memory that another operator laid out for them, in a way of their own: zeros would break them.
OPAQUE = (
    "aten.mkldnn_",
    "aten._mkldnn_",
    "aten.cudnn_",
    "aten._cudnn_",
    "aten.miopen_",
    "aten.fbgemm_",
    "aten._nnpack_",
)
# Not tagged as such by PyTorch.
POINTWISE = frozenset({"aten.copy_.default", "aten.fill_.Scalar", "aten._to_copy.default", "aten.masked_fill_.Scalar"})
SINGLE, PLACES, TRUTH = torch.float32, torch.int64, torch.bool
# Usual operators that take single floats with something else.
USUAL: Mapping[str, tuple[torch.dtype, ...]] = MappingProxyType(
    {
        "aten.embedding.default": (SINGLE, PLACES),
        "aten.embedding_dense_backward.default": (SINGLE, PLACES),
        "aten.nll_loss_forward.default": (SINGLE, PLACES),
        "aten.nll_loss_backward.default": (SINGLE, SINGLE, PLACES, SINGLE),
        "aten.max_pool2d_with_indices_backward.default": (SINGLE, SINGLE, PLACES),
        "aten.gather.default": (SINGLE, PLACES),
        "aten.index_select.default": (SINGLE, PLACES),
        "aten.index.Tensor": (SINGLE, PLACES),
        "aten.scatter_add.default": (SINGLE, PLACES, SINGLE),
        "aten.masked_fill.Scalar": (SINGLE, TRUTH),
        "aten.where.self": (TRUTH, SINGLE, SINGLE),
        "aten.where.ScalarOther": (TRUTH, SINGLE),
        "aten.where.ScalarSelf": (TRUTH, SINGLE),
    }
)

# Combinations that a kernel took as its rule does: facts of PyTorch, so threads may add to them in any order.
_checked: set[Key] = set()


def as_kernel(operator: Operator, target: str, given: tuple[tuple[Any, ...], dict[str, Any]], result: Any) -> Any:
    """Give the result of a call as its kernel gives it; raise what the kernel raises on all tensors of such dtypes."""
    tensors = tensors_of(given)
    if not _is_possible(target, tensors) or goes_beyond(target, given[0]):
        return result
    key = _combination(target, given, tensors, is_empty=any(map(_is_empty, tensors_of(result))))
    if key is None or key in _checked:
        return result
    rehearsal = _Rehearsal(operator, target, given, tensors)
    found = rehearsal.run()
    right = result if found is None or not rehearsal.is_whole else _like(found, result, given)
    if right is result and not target.startswith(UNCHECKED_PLACES):
        _checked.add(key)
    return right


def result_of_kernel(operator: Operator, target: str, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """Give what a kernel gives where its rule has refused: real tensors; None where there is no telling."""
    rehearsal = _Rehearsal(operator, target, given, tensors_of(given))
    if not _is_possible(target, rehearsal.tensors) or not rehearsal.is_whole or written_arguments(target):
        return None
    if goes_beyond(target, given[0]):
        return None
    found = rehearsal.run()
    made = {storage_key(tensor) for tensor in tensors_of(found)}
    return None if made & rehearsal.memories else found


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """List the tensors among arguments or results."""
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _is_possible(target: str, tensors: list[torch.Tensor]) -> bool:
    """Whether an operator is PyTorch's own, on the processor, on plain tensors."""
    plain = all(tensor.device.type == "cpu" and tensor.layout is torch.strided for tensor in tensors)
    return plain and target.startswith("aten.") and not target.startswith(OPAQUE) and not is_uninitialised(target)


def _combination(
    target: str, given: tuple[tuple[Any, ...], dict[str, Any]], tensors: list[torch.Tensor], *, is_empty: bool
) -> Key | None:
    """Say all of a call that checks look at; None where it is known to pass them: never where something is empty."""
    names, numbers = _parameters(target)
    named = [*zip(names, given[0], strict=False), *given[1].items()]
    writes = written_arguments(target)
    written = [tensor for name, value in named if name in writes for tensor in tensors_of(value)]
    overlaps = any(map(_overlaps, written))
    shares = bool(written) and len({storage_key(tensor) for tensor in tensors}) < len(tensors)
    rare = any(name in numbers and isinstance(value, bool | complex) for name, value in named)
    is_empty = is_empty or any(map(_is_empty, tensors))
    if not (overlaps or shares or rare or is_empty) and _is_usual(target, tuple(tensor.dtype for tensor in tensors)):
        return None
    words = tuple((name, _word(value, is_number=name in numbers)) for name, value in named)
    windows = tuple((storage_key(tensor), tensor.storage_offset(), tensor.stride()) for tensor in tensors)
    seen = windows if shares else overlaps
    if is_empty:  # what is refused then is a matter of sizes
        return target, words, tuple(map(_size_word, tree_flatten(given)[0])), torch.get_default_dtype(), seen
    return target, words, torch.get_default_dtype(), seen


def _is_usual(target: str, dtypes: tuple[torch.dtype, ...]) -> bool:
    is_rare = target.startswith((*WHOLE_NUMBERS, *UNCHECKED_PLACES))
    single = bool(dtypes) and all(dtype is SINGLE for dtype in dtypes) and not is_rare
    return single or USUAL.get(target) == dtypes


@cache
def _parameters(target: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """Name an operator's parameters, and those that take numbers to compute with."""
    parameters = resolve(target)._schema.arguments
    numbers = (entry.name for entry in parameters if "number" in str(entry.type) or "Tensor" in str(entry.type))
    return tuple(entry.name for entry in parameters), frozenset(numbers)


def _word(value: Any, *, is_number: bool) -> Any:
    """Say of an argument what checks look at: of a tensor not its sizes, of a number to compute with what it is."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim(), value.numel() == 0
    if isinstance(value, list | tuple):
        words = [_word(entry, is_number=is_number) for entry in value]
        return tuple(words) if is_number else len(words)
    if isinstance(value, SYMBOLS):
        return type(value)
    if isinstance(value, torch.Generator):
        return torch.Generator
    if type(value) in (int, float) and (not is_number or 0 < value <= SMALL):
        # Modes of losses and the like are small numbers.
        return value if type(value) is int and not is_number and 0 <= value <= 2 else type(value)
    return type(value), repr(value)


def _is_empty(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no elements; sizes that vary are not asked, as to answer would fix them."""
    return any(type(size) is int and size == 0 for size in tensor.shape)


def _size_word(leaf: Any) -> Any:
    """Say of an argument what checks of sizes look at: of what varies only what it is."""
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape)
    return type(leaf) if isinstance(leaf, (*SYMBOLS, torch.Generator)) else repr(leaf)


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether several elements of a tensor are one place in memory, as those of an expanded one are."""
    return any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


class _Rehearsal:
    """One call of an operator on stand-ins, to be made on real tensors that look like them."""

    def __init__(
        self,
        operator: Operator,
        target: str,
        given: tuple[tuple[Any, ...], dict[str, Any]],
        tensors: list[torch.Tensor],
    ) -> None:
        self.operator = operator
        self.target = target
        self.given = given
        self.tensors = tensors
        self.is_whole = sum(tensor.numel() for tensor in tensors) <= LARGEST
        self.memories: set[int] = set()

    def run(self) -> Any:
        """Give what the kernel gives, None where its data decide; raise what it raises whatever they are."""
        first: Exception | None = None
        for floating, whole in FILLS:
            try:
                return self._run(floating, whole)
            except LinAlgError:
                return None
            except REFUSALS as error:
                first = first or error
                if (type(error), str(error)) != (type(first), str(first)):
                    return None
        assert first is not None
        raise first

    def _run(self, floating: float, whole: int) -> Any:
        with outside_tracing(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = self._real_tensors(floating, whole)
            arguments, keywords = tree_map_only(SYMBOLS, hint_of, self.given)
            arguments, keywords = tree_map_only(torch.Tensor, lambda tensor: made[id(tensor)], (arguments, keywords))
            self.memories = {storage_key(tensor) for tensor in made.values()}
            if not is_random(self.target):
                return self.operator(*arguments, **keywords)
            keywords = {name: None if name == "generator" else value for name, value in keywords.items()}
            state = generator_state()
            try:
                return self.operator(*arguments, **keywords)
            finally:
                torch.set_rng_state(state)

    def _real_tensors(self, floating: float, whole: int) -> dict[int, torch.Tensor]:
        memories: dict[int, torch.Tensor] = {}
        pointwise = torch.Tag.pointwise in self.operator.tags or self.target in POINTWISE
        writes = bool(written_arguments(self.target))

        def real(tensor: torch.Tensor) -> torch.Tensor:
            number = floating if tensor.dtype.is_floating_point or tensor.dtype.is_complex else whole
            if not self.is_whole and pointwise:
                return _shrunk(tensor).fill_(number)
            if not self.is_whole and not writes:
                return torch.full((1,) * tensor.dim(), number, dtype=tensor.dtype).expand(tensor.shape)
            if not is_stand_in(tensor) and not writes:
                return tensor
            memory = memories.get(storage_key(tensor))
            if memory is None:
                size = tensor.untyped_storage().nbytes()
                memory = memories[storage_key(tensor)] = torch.zeros(size, dtype=torch.uint8)
            window = tensor.storage_offset(), tensor.shape, tensor.stride()
            found = torch.empty(0, dtype=tensor.dtype).set_(memory.untyped_storage(), *window)
            return found.fill_(number) if number else found

        return {id(tensor): real(tensor) for tensor in self.tensors}


def _shrunk(tensor: torch.Tensor) -> torch.Tensor:
    """Make a tensor with as many dimensions, of at most two elements each; what is repeated stays so."""
    sizes = [min(size, 2) for size in tensor.shape]
    repeated = [size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)]
    own = [1 if again else size for size, again in zip(sizes, repeated, strict=True)]
    return torch.empty_strided(own, row_major(tuple(own)), dtype=tensor.dtype).expand(sizes)


def _like(found: Any, result: Any, given: Any) -> Any:
    """Give stand-ins that look as a kernel's results do: those of the rule where they do."""
    old, structure = tree_flatten(result)
    real, other = tree_flatten(found)
    if structure != other:
        return result
    memories = {storage_key(tensor) for tensor in tensors_of(given)}
    new = [_one_like(two, one, memories) for one, two in zip(old, real, strict=True)]
    return result if all(one is two for one, two in zip(old, new, strict=True)) else structure.unflatten(new)


def _one_like(found: Any, result: Any, memories: set[int]) -> Any:
    if not isinstance(result, torch.Tensor) or storage_key(result) in memories:
        return result
    if not isinstance(found, torch.Tensor):
        return found  # a gradient that was not asked for
    if _look(result) == _look(found):
        return result
    return result.new_empty_strided(found.shape, found.stride(), dtype=found.dtype)


def _look(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride()
