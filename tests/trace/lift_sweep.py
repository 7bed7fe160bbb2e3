"""PyTorch's operator database -> lifting of each entry; `python -m tests.trace.lift_sweep` runs all of it."""

import argparse
import collections
import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.conformance.fresh import fresh as fresh_arguments
from tests.conformance.operators import operators, sample_list
from tests.conformance.tables import IRREPRODUCIBLE, UNINITIALISED
from tests.trace.lift_checks import Checked, check, exact_results, fresh, inputs_of, traced_call
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils import _pytree as pytree

from weft.errors import WeftError
from weft.ir.interpreter import interpret
from weft.ir.types import DTYPES_BY_NAME
from weft.trace.traced import Traced

DTYPES = {name: DTYPES_BY_NAME[name] for name in ("f32", "f64", "f16", "bf16", "i64", "i32", "u8", "bool")}
WIDENED = (torch.float32, torch.bfloat16, torch.float16)

UNTRACEABLE = (
    *(WeftError, RuntimeError, AttributeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError),
)
"""What is raised by samples that cannot be traced, or that the interpreter cannot run as they were traced."""


@dataclass
class Entry:
    """What became of the samples of one operator."""

    name: str
    traced: int = 0
    lifted: int = 0
    remaining: collections.Counter[str] = field(default_factory=collections.Counter)
    problems: list[str] = field(default_factory=list)


def samples_of(name: str, dtype: torch.dtype, most: int, *, gradients: bool) -> list[SampleInput]:
    """Generate the first samples of an entry."""
    return sample_list(name, lambda entry: list(entry.sample_inputs("cpu", dtype, requires_grad=gradients))[:most])


def widened(tree: Any) -> Any:
    """The same sample in float64, for the exact answer."""

    def widen(leaf: Any) -> Any:
        if leaf in WIDENED:
            return torch.float64
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.dtype in WIDENED else leaf

    return pytree.tree_map(lambda leaf: leaf if isinstance(leaf, str | float | int) else widen(leaf), tree)


def exact(function: Callable[..., Any], traced: Traced, arguments: tuple[Any, ...], keywords: Any) -> list[Any] | None:
    """The results in float64, or None where PyTorch has none."""
    try:
        return exact_results(traced, function(*widened(arguments), **widened(keywords)))
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None


def checked_forward(function: Callable[..., Any], sample: SampleInput) -> Checked | None:
    """Check one sample without gradients; None if it cannot be traced or run."""
    arguments, keywords = (sample.input, *sample.args), sample.kwargs
    with torch.no_grad():
        try:
            traced = traced_call(function, *fresh_arguments(arguments), **fresh_arguments(keywords))
            interpret(traced.graph, fresh(inputs_of(traced)))
        except UNTRACEABLE:
            return None
        known = exact(function, traced, fresh_arguments(arguments), fresh_arguments(keywords))
        return check(traced.graph, inputs_of(traced), known)


def checked_backward(function: Callable[..., Any], sample: SampleInput) -> Checked | None:
    """Check the backward of one sample; None if there is none."""
    arguments, keywords = fresh_arguments((sample.input, *sample.args)), fresh_arguments(sample.kwargs)
    try:
        traced = traced_call(function, *arguments, **keywords)
        if traced.gradient is None:
            return None
        backward = traced.gradient.backward(tuple(root.type for root in traced.gradient.roots))
        results = interpret(traced.gradient.graph, fresh(inputs_of(traced)))
        saved = results[len(traced.graph.results) :]
        tangents = [
            torch.randn(root.type.shape, dtype=root.type.dtype).as_strided(root.type.shape, root.type.strides)
            for root in traced.gradient.roots
        ]
        inputs = [*(saved[at] for at in traced.gradient.saved_positions(backward)), *tangents]
        interpret(backward.graph, fresh(inputs))
    except UNTRACEABLE:
        return None
    return check(backward.graph, inputs)


def sweep(names: list[str], dtype: torch.dtype, most: int = 8, *, backward: bool = False) -> Iterator[Entry]:
    """Check the first samples of each entry."""
    for name in names:
        operator = operators()[name]
        if not operator.supports_dtype(dtype, "cpu") or operator.name in (*IRREPRODUCIBLE, *UNINITIALISED):
            continue
        entry = Entry(name)
        checker = functools.partial(checked_backward if backward else checked_forward, operator.op)
        for index, sample in enumerate(samples_of(name, dtype, most, gradients=backward)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    found = checker(sample)
                except Exception as error:  # noqa: BLE001  whatever lifting raises is a finding
                    entry.problems.append(f"sample {index}: raised {error!r}")
                    continue
            if found is not None:
                entry.traced += 1
                entry.lifted += not found.remaining
                entry.remaining.update(set(found.remaining))
                entry.problems += [f"sample {index}: {problem}" for problem in found.problems]
        yield entry


def main() -> None:
    """Print what is wrong, what stays library, and the share of entries that are lifted completely."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="f32", choices=DTYPES)
    parser.add_argument("--most", type=int, default=8)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    total: collections.Counter[str] = collections.Counter()
    left: collections.Counter[str] = collections.Counter()
    names = given.names or list(operators())
    for entry in sweep(names, DTYPES[given.dtype], given.most, backward=given.backward):
        if not entry.traced and not entry.problems:
            continue
        total.update(entries=1, samples=entry.traced, lifted=entry.lifted, whole=entry.lifted == entry.traced)
        left.update(entry.remaining.keys())
        for problem in entry.problems[:3]:
            print(entry.name, problem, flush=True)
    print("stays library:", dict(left.most_common()))
    print(f"{total['whole']} of {total['entries']} entries, {total['lifted']} of {total['samples']} samples lifted")


if __name__ == "__main__":
    main()
