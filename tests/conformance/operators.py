"""PyTorch's operator database -> the sections over operators."""

import dataclasses
import functools
import random
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from tests.conformance.cases import Contestant, Outcome, Player, Rule, Section, Start, Trial
from tests.conformance.fresh import fresh, moved_by_a_bit
from tests.conformance.play import Call, play
from tests.conformance.tables import IRREPRODUCIBLE, UNINITIALISED
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

SEEDS_ITSELF = "wrapper_set_seed"  # the database's wrapper for operators whose samples seed inside the call


def by_name() -> dict[str, OpInfo]:
    """Map full names to entries, in the order of names."""
    return {entry.full_name: entry for entry in sorted(database.op_db, key=lambda entry: entry.full_name)}


@functools.cache
def operators() -> dict[str, OpInfo]:
    """List the entries, once a process."""
    return by_name()


def seed_everything(name: str) -> None:
    """Make the samples of an entry the same in every process and every order."""
    seed = zlib.crc32(name.encode())
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def names(wanted: Callable[[OpInfo], bool]) -> list[str]:
    """Name the entries a section runs."""
    return [name for name, entry in operators().items() if wanted(entry)]


def sample_list(name: str, generate: Callable[[OpInfo], Iterable[Any]]) -> list[Any]:
    """Generate all samples of an entry from its own seed."""
    seed_everything(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(generate(operators()[name]))


def float32_samples(name: str) -> list[SampleInput]:
    """Generate an entry's float32 samples."""
    return sample_list(name, lambda entry: entry.sample_inputs("cpu", torch.float32, requires_grad=False))


def gradient_samples(name: str) -> list[SampleInput]:
    """Generate an entry's float64 samples that require gradients."""
    return sample_list(name, lambda entry: entry.sample_inputs("cpu", torch.float64, requires_grad=True))


def sample_trial(operator: Callable[..., Any], sample: SampleInput, rule: Rule, *, backward: bool = False) -> Trial:
    """Make the trial of one sample of one operator."""

    def start(operands: tuple[Any, ...], contestant: Contestant) -> Player:
        def call(*args: Any, **kwargs: Any) -> Any:
            return operator(*args, **kwargs)

        function = contestant(call)

        def player(_number: int) -> Outcome:
            args, kwargs = fresh(operands)
            process = sample.output_process_fn_grad if backward else None
            return play(Call(function, args, kwargs, backward=backward, process=process))

        return player

    operands = ((sample.input, *sample.args), sample.kwargs)

    def other_start(contestant: Contestant) -> Player:
        return start(in_dtype(operands, torch.float32 if backward else torch.float64), contestant)

    started = functools.partial(start, operands)
    if backward:
        return Trial(started, rule, narrow_start=other_start)

    def neighbour(seed: int) -> tuple[Start, Start]:
        moved = moved_by_a_bit(operands, seed)
        return functools.partial(start, moved), functools.partial(start, in_dtype(moved, torch.float64))

    return Trial(started, rule, exact_start=other_start, neighbour=neighbour)


def in_dtype(operands: Any, dtype: torch.dtype) -> Any:
    """Convert the float32 and float64 tensors of a sample, for the answer in that precision."""
    converted: dict[int, Any] = {}  # what is given twice stays one tensor

    def convert(leaf: Any) -> Any:
        if not (isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float32, torch.float64)):
            return leaf
        if id(leaf) not in converted:
            converted[id(leaf)] = leaf.detach().to(dtype).requires_grad_(leaf.requires_grad)
        return converted[id(leaf)]

    return pytree.tree_map(convert, operands)


def value_rule(name: str, rule: Rule = Rule.BOUND) -> Rule:
    """Tell how an entry's values can be compared, which by default is by this rule."""
    operator = operators()[name].name
    if operator in IRREPRODUCIBLE:
        return Rule.CLOSE
    return Rule.SHAPE if operator in UNINITIALISED else rule


def value_trials(
    name: str, pick: Callable[[OpInfo], Callable[..., Any] | None], rule: Rule = Rule.BOUND
) -> list[Trial]:
    """Make the float32 trials of one form of an operator: function, method or in-place method."""
    operator = pick(operators()[name])
    assert operator is not None
    return [sample_trial(operator, sample, value_rule(name, rule)) for sample in float32_samples(name)]


def guard_trials(name: str) -> list[Trial]:
    """Make the float32 trials of an operator with one function for all of them."""
    operator = operators()[name].op
    functions: dict[Contestant, Callable[..., Any]] = {}

    def together(contestant: Contestant) -> Contestant:
        def shared(call: Callable[..., Any]) -> Callable[..., Any]:
            return functions.setdefault(contestant, contestant(call))

        return shared

    def trial(sample: SampleInput) -> Trial:
        alone = sample_trial(operator, sample, value_rule(name))
        return dataclasses.replace(alone, start=lambda contestant: alone.start(together(contestant)))

    return [trial(sample) for sample in float32_samples(name)]


def gradient_trials(name: str) -> list[Trial]:
    """Make the float64 trials with a backward pass."""
    operator = operators()[name].op
    rule = Rule.SHAPE if value_rule(name) is Rule.SHAPE else Rule.CLOSE
    return [sample_trial(operator, sample, rule, backward=True) for sample in gradient_samples(name)]


def error_trials(name: str) -> list[Trial]:
    """Make the trials of an entry's declared errors."""
    operator = operators()[name].op
    samples = sample_list(name, lambda entry: entry.error_inputs("cpu"))
    return [sample_trial(operator, error.sample_input, value_rule(name)) for error in samples]


def stream_trials(name: str) -> list[Trial]:
    """Make the trials of a random operator without the seeding inside, so that its own stream is compared."""
    operator = operators()[name].op

    def call(*args: Any, **kwargs: Any) -> Any:
        with seeding_outside():
            return operator(*args, **kwargs)

    return [sample_trial(call, sample, value_rule(name)) for sample in float32_samples(name)]


@contextmanager
def seeding_outside() -> Iterable[None]:
    """Take the database's own seeding out of its operators: the harness seeds before the call."""
    wrapper = getattr(database, SEEDS_ITSELF)
    setattr(database, SEEDS_ITSELF, lambda operator, *args, **kwargs: operator(*args, **kwargs))
    try:
        yield
    finally:
        setattr(database, SEEDS_ITSELF, wrapper)


def takes_float32(entry: OpInfo) -> bool:
    """Say whether the CPU has the operator in float32."""
    return bool(entry.supports_dtype(torch.float32, "cpu"))


def has_gradient(entry: OpInfo) -> bool:
    """Say whether the operator has float64 gradients on the CPU."""
    return bool(entry.supports_autograd) and torch.float64 in entry.supported_backward_dtypes("cpu")


def seeds_itself(entry: OpInfo) -> bool:
    """Say whether the entry's callable seeds the generator inside."""
    return SEEDS_ITSELF in getattr(getattr(entry.op, "__code__", None), "co_names", ())


def form_section(
    name: str, title: str, pick: Callable[[OpInfo], Callable[..., Any] | None], rule: Rule = Rule.BOUND
) -> Section:
    """Make the section of one form of the operators."""
    entries = functools.partial(names, lambda entry: takes_float32(entry) and pick(entry) is not None)
    return Section(name, title, entries, lambda entry: value_trials(entry, pick, rule))


def sections() -> Sequence[Section]:
    """List the sections over operators."""
    return (
        dataclasses.replace(
            form_section("values", "float32 samples of every operator", lambda entry: entry.op),
            codegens=("library", "native"),
        ),
        dataclasses.replace(
            form_section("methods", "the same samples through the tensor method", lambda entry: entry.method_variant),
            # The database has a quarter of the samples here, but all of those of `unique`, sizes of unknown results.
            most_unsupported=0.25,
        ),
        dataclasses.replace(
            form_section(
                "inplace",
                "the same samples through the in-place method",
                lambda entry: entry.inplace_variant,
                Rule.BITS,
            ),
            # Methods such as `unsqueeze_` and `t_` give an argument other sizes or strides: no program does that.
            most_unsupported=0.15,
            codegens=("library", "native"),
        ),
        Section(
            "guards",
            "the same samples, all through one function that must tell them apart",
            functools.partial(names, takes_float32),
            guard_trials,
        ),
        Section(
            "streams",
            "random operators, seeded outside the call",
            functools.partial(names, lambda entry: takes_float32(entry) and seeds_itself(entry)),
            stream_trials,
        ),
        Section(
            "gradients",
            "float64 samples, forward and backward",
            functools.partial(names, has_gradient),
            gradient_trials,
            codegens=("library", "native"),
        ),
        Section(
            "errors",
            "the database's declared error inputs",
            functools.partial(names, lambda entry: entry.error_inputs_func is not None),
            error_trials,
        ),
    )
