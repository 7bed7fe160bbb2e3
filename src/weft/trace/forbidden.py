"""Functions of PyTorch's Python interface that leave the world of tensors -> the refusal each gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from weft.trace.interception.capture import is_listing

FORBIDDEN: Mapping[Callable[..., Any], str] = MappingProxyType(
    {
        torch.Tensor.__bool__: "branch",
        torch.Tensor.item: "number",
        torch.Tensor.__int__: "number",
        torch.Tensor.__float__: "number",
        torch.Tensor.__complex__: "number",
        torch.Tensor.__index__: "number",
        torch.Tensor.tolist: "list",
        torch.Tensor.__format__: "text",
        torch.Tensor.numpy: "numpy",
        torch.Tensor.__array__: "numpy",
        torch.Tensor.data_ptr: "address",
        torch.Tensor.backward: "backward inside",
        torch.Tensor.grad.__get__: "gradient read",  # type: ignore[union-attr]
        torch.Tensor.data.__set__: "memory replaced",  # type: ignore[attr-defined]
        torch.Tensor.set_: "memory replaced",
    }
)


def kind_of_refusal(function: Callable[..., Any], arguments: Any = ()) -> str | None:
    """The refusal that a function gets, if any; also when somebody has wrapped it since this file was read."""
    kind = FORBIDDEN.get(getattr(function, "__wrapped__", function))
    if kind == "number" and is_listing():
        return "list"
    if kind == "text" and arguments and not arguments[1]:
        return None  # without a format, a stand-in shows its type and sizes
    return "memory replaced" if kind is None and puts_data(function) else kind


def puts_data(function: Callable[..., Any]) -> bool:
    """Whether a function assigns `.data`, also when somebody has wrapped it since this file was read."""
    name = getattr(function, "__name__", "")
    return name == "__set__" and function == torch.Tensor.data.__set__  # type: ignore[attr-defined]


# What is allowed after all of a tensor whose elements are the same at every run.
FROM_VALUES = frozenset({"branch", "number"})

# Operators that read values; reached when the Python function above them was not seen (inside composite operators).
VALUE_OPERATORS: Mapping[str, str] = MappingProxyType(
    {
        "aten._local_scalar_dense.default": "number",
        "aten.equal.default": "data-dependent value",
        "aten.is_nonzero.default": "branch",
    }
)
