"""Loop and branch over arrays by Python, as `nd.contrib` does: `foreach`, `while_loop`, `cond`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.mx.arrays.invoke import invoke_one
from weft.mx.arrays.ndarray import NDArray, zeros


def _flat(given: Any, what: str) -> list[NDArray]:
    """The arrays of nested lists."""
    if isinstance(given, NDArray):
        return [given]
    if not isinstance(given, (list, tuple)):
        raise AssertionError(  # noqa: TRY004  # MXNet's
            f"{what} must be (nested) list of NDArray, but got {given} of type {type(given)}"
        )
    return [array for entry in given for array in _flat(entry, what)]


def _like(form: Any, arrays: list[NDArray]) -> Any:
    """Arrays in the form of nested lists; takes them from the front."""
    return arrays.pop(0) if isinstance(form, NDArray) else [_like(entry, arrays) for entry in form]


def _stacked(form: Any, steps: list[list[NDArray]]) -> Any:
    return _like(form, [invoke_one("stack", *each, num_args=len(each)) for each in zip(*steps, strict=True)])


def foreach(body: Callable[..., Any], data: Any, init_states: Any) -> tuple[Any, Any]:
    """Call `body(slice, states)` for each entry of the first axis: gives its outputs, stacked, and the last states."""
    lines, states = _flat(data, "foreach input"), init_states
    _flat(init_states, "foreach states")
    steps, form = [], None
    for place in range(lines[0].shape[0]):
        form, states = body(_like(data, [line[place] for line in lines]), states)
        steps.append(_flat(form, "foreach output"))
        _flat(states, "foreach states")
    return (_stacked(form, steps) if steps else []), states


def while_loop(
    cond: Callable[..., Any], func: Callable[..., Any], loop_vars: Any, max_iterations: int | None = None
) -> tuple[Any, Any]:
    """Call `func` while `cond` holds: gives its outputs, stacked and filled up with zeros, and the last variables."""
    if max_iterations is None:
        raise ValueError("max_iterations should be specified")
    if max_iterations < 0:
        raise ValueError("max_iterations should be non-negative")
    variables = list(loop_vars) if isinstance(loop_vars, (list, tuple)) else [loop_vars]
    if not variables:
        raise ValueError("loop_vars should contain at least one element")
    steps: list[list[NDArray]] = []
    form: Any = []
    while len(steps) < max_iterations and bool(cond(*variables)):
        form, after = func(*variables)
        after = list(after) if isinstance(after, (list, tuple)) else [after]
        if len(after) != len(variables):
            raise ValueError("The length of new_loop_vars should be consistent with the length of loop_vars")
        steps.append(_flat(form, "while_loop output"))
        variables = after
    made = []
    for each in zip(*steps, strict=True):
        rest = [zeros(each[0].shape, each[0].context, each[0].dtype)] * (max_iterations - len(each))
        made.append(invoke_one("stack", *each, *rest, num_args=max_iterations))
    outputs = _like(form, list(made)) if made else []
    alone = not isinstance(loop_vars, (list, tuple))
    return outputs, variables[0] if alone else variables


def cond(pred: NDArray, then_func: Callable[[], Any], else_func: Callable[[], Any]) -> Any:
    """Call one of two functions, by what an array of one element says: waits for it."""
    return then_func() if bool(pred) else else_func()


def isfinite(data: NDArray) -> NDArray:
    """1 where an element is a number that is not infinite."""
    number = invoke_one("_equal", data, data)
    return number * invoke_one("_not_equal_scalar", invoke_one("abs", data), scalar=float("inf"))


def isinf(data: NDArray) -> NDArray:
    """1 where an element is infinite."""
    return invoke_one("_equal_scalar", invoke_one("abs", data), scalar=float("inf"))


def isnan(data: NDArray) -> NDArray:
    """1 where an element is no number."""
    return invoke_one("_not_equal", data, data)


FUNCTIONS = {
    "foreach": foreach,
    "while_loop": while_loop,
    "cond": cond,
    "isfinite": isfinite,
    "isinf": isinf,
    "isnan": isnan,
}
