"""Remember settings of the process that Python may have asked for while it was traced.

Functions that tell a setting are C, which no interceptor is shown. They are found by name in the code that was traced;
what they tell is compared at each call of a program whose code mentions them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from weft.trace.containers import Keys


def _backends() -> Any:
    from_table = (torch.backends.mkldnn, torch.backends.cudnn, torch.backends.opt_einsum)
    names = ("enabled", "deterministic", "benchmark", "allow_tf32", "strategy")
    return tuple((name, getattr(module, name, None)) for module in from_table for name in names)


# By the name that code mentions: what tells the setting.
SETTINGS: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {
        "are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled,
        "is_deterministic_algorithms_warn_only_enabled": torch.is_deterministic_algorithms_warn_only_enabled,
        "get_deterministic_debug_mode": torch.get_deterministic_debug_mode,
        "get_float32_matmul_precision": torch.get_float32_matmul_precision,
        "get_num_interop_threads": torch.get_num_interop_threads,
        "get_num_threads": torch.get_num_threads,
        "is_anomaly_enabled": torch.is_anomaly_enabled,
        "is_warn_always_enabled": torch.is_warn_always_enabled,
        "backends": _backends,
    }
)
# What code that mentions them has to be traced in: inference mode, which stand-ins are better without.
OF_INFERENCE = frozenset({"inference_mode", "is_inference_mode_enabled"})


@dataclass(frozen=True, slots=True, eq=False)
class SettingFact:
    """What a setting was."""

    name: str
    value: Any
    moves: bool = False

    def change(self) -> str | None:
        """A sentence on what is different now, or nothing."""
        now = SETTINGS[self.name]()
        return None if now == self.value else f"{self.name} gave {self.value!r}, gives {now!r}"

    def moved(self) -> Iterator[tuple[Any, Keys]]:
        """Places with other tensors: a setting has none."""
        return iter(())


def setting_facts(mentioned: set[str]) -> list[SettingFact]:
    """What the settings are now that code mentions."""
    return [SettingFact(name, tell()) for name, tell in SETTINGS.items() if name in mentioned]


def left_settings() -> tuple[Any, ...]:
    """The settings that a function may leave changed, and that a program would not change again."""
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def put_back(settings: tuple[Any, ...]) -> None:
    """Undo what a trace left."""
    grad, dtype, deterministic, warns = settings
    torch.set_grad_enabled(grad)
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic, warn_only=warns)
