"""PyTorch's operator database x pairs of dtypes for tensor arguments -> the section over dtypes.

Each operator has one small sample. Its first tensor is cast to one of twelve dtypes, its second to another one, so most
calls are such as eager refuses, or answers in a dtype that only its promotion tells.
"""

import functools
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from tests.conformance.cases import Contestant, Outcome, Player, Section, Trial
from tests.conformance.fresh import fresh
from tests.conformance.operators import names, operators, sample_list, value_rule
from tests.conformance.play import Call, play
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

REAL_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX_DTYPES = (torch.complex64, torch.complex128)
WHOLE_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
DTYPES = (*REAL_DTYPES, *COMPLEX_DTYPES, *WHOLE_DTYPES)
WIDEST = dict.fromkeys(REAL_DTYPES, torch.float64) | dict.fromkeys(COMPLEX_DTYPES, torch.complex128)
LARGEST_SAMPLE = 4096  # elements

Operands = tuple[tuple[Any, ...], dict[str, Any]]


def tensors_of(sample: SampleInput) -> list[torch.Tensor]:
    """List the tensor arguments of a sample, in order, lists opened."""
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


@functools.cache
def sample_of(name: str) -> SampleInput:
    """Choose an operator's sample: with two tensors if it has one, of few elements but not none."""
    entry = operators()[name]
    supported = entry.supported_dtypes("cpu")
    dtype = next((dtype for dtype in (torch.float32, *DTYPES) if dtype in supported), torch.float32)
    samples = sample_list(name, lambda entry: entry.sample_inputs("cpu", dtype, requires_grad=False))

    def rank(sample: SampleInput) -> tuple[bool, bool, bool]:
        found = tensors_of(sample)
        sizes = [tensor.numel() for tensor in found]
        plain = all(tensor.layout is torch.strided and tensor.dim() for tensor in found)
        return (not found or min(sizes) == 0 or max(sizes) > LARGEST_SAMPLE, len(found) < 2, not plain)

    return min(samples, key=rank)


def cast(sample: SampleInput, dtypes: Sequence[torch.dtype]) -> Operands:
    """Cast the first tensors of a sample."""
    waiting = list(dtypes)

    def leaf(given: Any) -> Any:
        if not isinstance(given, torch.Tensor) or not waiting:
            return given
        dtype = waiting.pop(0)
        if given.layout is not torch.strided or given.dtype is dtype:
            return given.detach()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a complex number loses its imaginary part
            return given.detach().to(dtype)

    return pytree.tree_map(leaf, ((sample.input, *sample.args), sample.kwargs))


def widened(operands: Operands) -> Operands:
    """Give the floating tensors their longest dtype, for the answer in that precision."""

    def leaf(given: Any) -> Any:
        return given.to(WIDEST[given.dtype]) if isinstance(given, torch.Tensor) and given.dtype in WIDEST else given

    return pytree.tree_map(leaf, operands)


def trial(name: str, dtypes: Sequence[torch.dtype]) -> Trial:
    """Make the trial of an operator with its first tensors in these dtypes."""
    operator = operators()[name].op

    def start(operands: Operands, contestant: Contestant) -> Player:
        def call(*args: Any, **kwargs: Any) -> Any:
            return operator(*args, **kwargs)

        function = contestant(call)

        def player(_number: int) -> Outcome:
            args, kwargs = fresh(operands)
            return play(Call(function, args, kwargs))

        return player

    def given(contestant: Contestant) -> Player:
        return start(cast(sample_of(name), dtypes), contestant)

    def wide(contestant: Contestant) -> Player:
        return start(widened(cast(sample_of(name), dtypes)), contestant)

    short = [dtype for dtype in dtypes if dtype.itemsize <= 2 and dtype.is_floating_point]
    return Trial(given, value_rule(name), calls=1, exact_start=wide, precision=short[0] if short else None)


def trials(name: str) -> list[Trial]:
    """Make the trials of an operator: in all dtypes, or in all pairs of them."""
    count = min(2, len(tensors_of(sample_of(name))))
    return [trial(name, dtypes) for dtypes in itertools.product(DTYPES, repeat=count)]


def title_of(index: int, count: int) -> str:
    """Name the dtypes of a trial."""
    chosen = list(itertools.product(DTYPES, repeat=count))[index]
    return " ".join(str(dtype).removeprefix("torch.") for dtype in chosen)


def sections() -> Sequence[Section]:
    """List the section over dtypes."""

    def takes_tensors(entry: OpInfo) -> bool:
        return bool(entry.supported_dtypes("cpu"))

    return (
        Section(
            "dtypes",
            "every operator on all pairs of 12 dtypes",
            functools.partial(names, takes_tensors),
            trials,
            codegens=("library", "native"),
        ),
    )
