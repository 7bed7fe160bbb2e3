"""Run the graphs that Dynamo finds: `torch.compile(net, backend="weft")`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from weft.api.declared_sizes import DeclaredSize, SizeRow
from weft.api.hybrid_function import HybridFunction
from weft.api.hybrid_options import HybridOptions
from weft.errors import UsageError
from weft.trace.interception.checkpoints import checkpoint_as_eager
from weft.trace.interception.modes import hide_from_dynamo, is_option_of_inductor, symbolic_sizes

# What runs or makes programs. A hybridized function itself Dynamo looks into.
MACHINERY = tuple(
    f"weft.{name}" for name in ("codegen", "compile", "guards", "ir", "passes", "plan", "programs", "runtime", "trace")
)
# What PyTorch's own compiler is told to try; Weft needs none of them.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite")
OPTIONS = ("check", "precision")


def backend(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """What Dynamo calls with each graph it captured; the program is traced when the graph is first run.

    Sizes that Dynamo left open vary in one program. `options` may be `precision` and `check` of `weft.hybridize`;
    modes and options of PyTorch's own compiler change nothing.
    """
    own = _own_options(mode, options or {})
    hide_from_dynamo(MACHINERY)
    numbers = _numbers_in_tensors(module)
    checkpoint_as_eager(module)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    shown = [node.meta.get("example_value", given) for node, given in zip(placeholders, example_inputs, strict=True)]
    found = HybridOptions(fallback="eager", sizes=tuple(_rows(shown, numbers)), **own)
    assert module.code  # Dynamo writes it, and with it forward and the names of arguments, when it is first asked for
    hybrid = HybridFunction(module.forward, found)
    return _with_numbers(hybrid, numbers) if numbers else hybrid


def _own_options(mode: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    if mode is not None and mode not in MODES:
        raise UsageError(f"mode is {mode!r}", why=f"torch.compile knows {', '.join(MODES)}", fix="leave it out")
    for name in options:
        if name not in OPTIONS and not is_option_of_inductor(name):
            raise UsageError(
                f"torch.compile has no option {name!r} for Weft",
                why=f"it has {' and '.join(OPTIONS)}; those of PyTorch's own compiler are taken, and change nothing",
                fix='options={"precision": "bfloat16"}',
            )
    return {name: value for name, value in options.items() if name in OPTIONS}


def _rows(shown: Sequence[Any], numbers: Sequence[int]) -> Iterator[SizeRow]:
    """The sizes that Dynamo left open: those of one symbol have one name."""
    for index, given in enumerate(shown):
        for dimension, (name, least, most) in symbolic_sizes(given).items() if index not in numbers else ():
            yield SizeRow((index,), dimension, DeclaredSize(name, least, most, is_strict=False))


def _numbers_in_tensors(module: torch.fx.GraphModule) -> list[int]:
    """Let a graph take numbers as such that Dynamo hands over in tensors, as it does with floats that may change."""
    found = []
    graph = module.graph
    for index, node in enumerate([node for node in graph.nodes if node.op == "placeholder"]):
        users = [*node.users]
        if users and all(user.op == "call_method" and user.target == "item" and not user.kwargs for user in users):
            found.append(index)
            for user in users:
                user.replace_all_uses_with(node)
                graph.erase_node(user)
    if found:
        module.recompile()
    return found


def _with_numbers(hybrid: HybridFunction, numbers: Sequence[int]) -> Callable[..., Any]:
    """Give a graph the numbers that are in tensors."""

    def run(*arguments: Any) -> Any:
        given = [*arguments]
        for index in numbers:
            given[index] = given[index].item()
        return hybrid(*given)

    return run
