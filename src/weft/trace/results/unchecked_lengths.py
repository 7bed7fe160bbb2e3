"""Tell calls of kernels that would read or write beyond tensors: PyTorch's attention checks no lengths.

It goes by how many keys there are, whatever there is of values. Code gives as many of both. In a trace they differ
where their sizes vary each by itself, as those of two caches: such a kernel must not run there, neither to say how its
results lie nor what it refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from weft.trace.interception.capture import hint_of

# Where keys stand among arguments; values stand behind them.
KEYS: Mapping[str, int] = MappingProxyType(
    {
        "aten._scaled_dot_product_flash_attention_for_cpu.default": 1,
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": 2,
    }
)


def goes_beyond(target: str, arguments: Sequence[Any]) -> bool:
    """Whether a kernel would read or write what is none of its tensors'."""
    place = KEYS.get(target)
    if place is None or len(arguments) < place + 2:
        return False  # all that PyTorch calls itself are given by position
    keys, values = (hint_of(tensor.shape[-2]) for tensor in arguments[place : place + 2])
    return bool(keys != values)
