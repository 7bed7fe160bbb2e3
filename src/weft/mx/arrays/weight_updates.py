"""Call the updates of `nd.contrib` that take lists of weights, or the scale of gradients as a number or an array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.mx.arrays.frontend import Frontend
from weft.mx.arrays.ndarray import NDArray, array


def _scale(given: Any, like: NDArray) -> NDArray:
    """The scale of gradients as an array on the device of the weights."""
    if isinstance(given, NDArray):
        return given.as_in_context(like.context)
    return array([float(given)], like.context)


def update_functions(frontend: Frontend) -> dict[str, Callable[..., Any]]:
    """AdamW and LAMB of one weight and of many, by MXNet's names."""

    def adamw_update(
        weight: NDArray,
        grad: NDArray,
        mean: NDArray,
        var: NDArray,
        rescale_grad: Any,
        lr: float,
        eta: float,
        **given: Any,
    ) -> Any:
        arrays = (weight, grad, mean, var, _scale(rescale_grad, weight))
        return frontend.function("_adamw_update")(*arrays, lr=lr, eta=eta, **given)

    def mp_adamw_update(
        weight: NDArray, grad: NDArray, mean: NDArray, var: NDArray, weight32: NDArray, rescale_grad: Any, lr: float,
        eta: float, **given: Any,
    ) -> Any:  # fmt: skip
        arrays = (weight, grad, mean, var, weight32, _scale(rescale_grad, weight))
        return frontend.function("_mp_adamw_update")(*arrays, lr=lr, eta=eta, **given)

    def many_adamw(kind: str, lists: Sequence[Any], rescale_grad: Any, size: int, **given: Any) -> Any:
        flat = [each for one in zip(*lists, strict=True) for each in one]
        flat.append(_scale(rescale_grad, lists[0][0]))
        return frontend.function(kind)(*flat, num_weights=size or len(lists[0]), **given)

    def many_lamb(kind: str, lists: Sequence[Any], count: int, **given: Any) -> Any:
        flat = [each for one in zip(*lists, strict=True) for each in one]
        return frontend.function(kind)(*flat, num_tensors=count or len(lists[0]), **given)

    def multi_adamw_update(
        weights: Any, grads: Any, mean: Any, var: Any, rescale_grad: Any, lrs: Any, wds: Any, etas: Any,
        out: Any = None, name: str | None = None, size: int = 0, **given: Any,
    ) -> Any:  # fmt: skip
        given |= {"lrs": lrs, "wds": wds, "etas": etas, "out": out, "name": name}
        return many_adamw("_multi_adamw_update", (weights, grads, mean, var), rescale_grad, size, **given)

    def multi_mp_adamw_update(
        weights: Any, grads: Any, mean: Any, var: Any, weights32: Any, rescale_grad: Any, lrs: Any, wds: Any, etas: Any,
        out: Any = None, name: str | None = None, size: int = 0, **given: Any,
    ) -> Any:  # fmt: skip
        given |= {"lrs": lrs, "wds": wds, "etas": etas, "out": out, "name": name}
        return many_adamw("_multi_mp_adamw_update", (weights, grads, mean, var, weights32), rescale_grad, size, **given)

    def multi_lamb_update(
        weights: Any, grads: Any, mean: Any, var: Any, step_count: Any, lrs: Any, wds: Any, out: Any = None,
        num_tensors: int = 0, **given: Any,
    ) -> Any:  # fmt: skip
        given |= {"step_count": step_count, "learning_rates": lrs, "wds": wds, "out": out}
        return many_lamb("_multi_lamb_update", (weights, grads, mean, var), num_tensors, **given)

    def multi_mp_lamb_update(
        weights: Any, grads: Any, mean: Any, var: Any, weights32: Any, step_count: Any, lrs: Any, wds: Any,
        out: Any = None, num_tensors: int = 0, **given: Any,
    ) -> Any:  # fmt: skip
        given |= {"step_count": step_count, "learning_rates": lrs, "wds": wds, "out": out}
        return many_lamb("_multi_mp_lamb_update", (weights, grads, mean, var, weights32), num_tensors, **given)

    made = (adamw_update, mp_adamw_update, multi_adamw_update, multi_mp_adamw_update, multi_lamb_update,
            multi_mp_lamb_update)  # fmt: skip
    return {function.__name__: function for function in made}
