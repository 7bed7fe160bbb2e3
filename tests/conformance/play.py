"""A callable and its arguments -> the outcome of one call."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tests.conformance.cases import Outcome
from tests.conformance.fresh import tensors

SEED = 1234
COTANGENT_SEED = 99


@dataclass(frozen=True)
class Call:
    """One call about to be made; `state` is what a module owns, `process` picks what of the result goes backward."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: tuple[torch.Tensor, ...] = ()
    backward: bool = False
    process: Callable[[Any], Any] | None = None


def play(call: Call) -> Outcome:
    """Make the call from the fixed seed, with gradients if asked; an exception is an outcome like any other."""
    arguments = tensors((call.args, call.kwargs))
    torch.manual_seed(SEED)
    error, result = None, None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = call.function(*call.args, **call.kwargs)
            if call.backward:
                run_backward(call.process(result) if call.process else result)
        except Exception as raised:  # noqa: BLE001  whatever eager raises is what the contestant must raise
            error = raised
    sources = (*arguments, *call.state) if call.backward else ()
    return Outcome(
        error=error,
        result=result,
        arguments=arguments,
        state=call.state,
        gradients=tuple(source.grad if source.is_leaf else None for source in sources),
        random_state=torch.get_rng_state(),
    )


def run_backward(result: Any) -> None:
    """Send a fixed random cotangent back from every tensor of the result that has a gradient."""
    outputs = [tensor for tensor in tensors(result) if tensor.requires_grad]
    if not outputs:
        return
    generator = torch.Generator().manual_seed(COTANGENT_SEED)
    cotangents = [torch.randn(output.shape, dtype=output.dtype, generator=generator) for output in outputs]
    torch.autograd.backward(outputs, cotangents)
