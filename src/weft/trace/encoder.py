"""Trace `nn.TransformerEncoder` as eager PyTorch computes it where that takes its short cut through nested tensors.

With a padding mask on the right, in evaluation and without gradients, eager packs rows that are not padded, and gives
zeros for the others. Code that is intercepted does not get that way, and would give other numbers there. Whether all
padding is on the right is known by the elements: the program decides it at each run. Its layers, and attentions, take
short cuts of their own.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from weft.trace.fast_attention import ATTENTION, DEVICES, LAYER, attention_forward, layer_forward
from weft.trace.interception.modes import has_function_modes

FORWARD = nn.TransformerEncoder.forward


def encoder_forward(
    self: nn.TransformerEncoder,
    src: torch.Tensor,
    mask: torch.Tensor | None = None,
    src_key_padding_mask: torch.Tensor | None = None,
    is_causal: bool | None = None,
) -> torch.Tensor:
    """What stands in the place of an encoder's forward while it is traced."""
    if src_key_padding_mask is None or not has_function_modes() or not _packs_rows(self, src, mask):
        return FORWARD(self, src, mask, src_key_padding_mask, is_causal)
    plain = copy.copy(self)
    plain.__dict__["_modules"] = {**self._modules, "norm": None}  # which comes behind the zeros
    plain.__dict__.pop("forward", None)
    plain.use_nested_tensor = False
    output = FORWARD(plain, src, mask, src_key_padding_mask, is_causal)
    padded = src_key_padding_mask != 0
    if getattr(self, "mask_check", True):
        padded = padded & (padded[:, 1:] | ~padded[:, :-1]).all()
    output = torch.where(padded.unsqueeze(2), torch.zeros((), dtype=output.dtype, device=output.device), output)
    return output if self.norm is None else self.norm(output)


def _packs_rows(encoder: nn.TransformerEncoder, src: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Whether eager packs the rows of this encoder, if all padding is on the right."""
    first: Any = encoder.layers[0]
    usual = (
        torch.backends.mha.get_fastpath_enabled()
        and getattr(encoder, "use_nested_tensor", False)
        and not first.training
        and src.dim() == 3
        and mask is None
        and not torch.is_autocast_enabled()
        and src.device.type in DEVICES
    )
    if not usual or not torch.is_grad_enabled():
        return bool(usual)
    attention = first.self_attn
    layers = (attention.out_proj, first.norm1, first.norm2, first.linear1, first.linear2)
    own = (entry for layer in layers for entry in (layer.weight, layer.bias))
    return not any(tensor.requires_grad for tensor in (src, attention.in_proj_weight, attention.in_proj_bias, *own))


Forward = Callable[..., Any]
_TRANSFORMER, _ATTENTION = nn.modules.transformer, nn.modules.activation
# Modules with short cuts: their forward, what stands in its place, and the file whose names it uses.
SHORT_CUTS: Mapping[type[nn.Module], tuple[Forward, Forward, ModuleType]] = MappingProxyType(
    {
        nn.TransformerEncoder: (FORWARD, encoder_forward, _TRANSFORMER),
        nn.TransformerEncoderLayer: (LAYER, layer_forward, _TRANSFORMER),
        nn.MultiheadAttention: (ATTENTION, attention_forward, _ATTENTION),
    }
)


class ForwardByShortCut:
    """A module's forward while it is traced; by its class it is told from one that somebody put there."""

    def __init__(self, module: nn.Module, forward: Forward) -> None:
        self.module = module
        self.forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what eager does."""
        return self.forward(self.module, *args, **kwargs)


def _by_short_cut(module: nn.Module) -> Forward | None:
    """What stands in the place of a module's own forward while it is traced; None for modules without short cuts."""
    rows = (row for kind, row in SHORT_CUTS.items() if isinstance(module, kind))
    return next((new for old, new, _ in rows if type(module).forward is old), None)


def replace_forward() -> None:
    """Let such modules in lazy code, too, compute what eager does: their forward asks whether it is intercepted.

    TorchScript reads the source of the forward that was there, and looks for its names beside the function.
    """
    for kind, (old, new, file) in SHORT_CUTS.items():
        if kind.forward is old:
            names = {**vars(file), **new.__globals__}
            found = FunctionType(new.__code__, names, "forward", new.__defaults__)
            kind.forward = functools.wraps(old)(found)


@contextmanager
def as_eager_computes(modules: Iterable[nn.Module]) -> Iterator[None]:
    """While this is open modules with short cuts among these are traced as eager computes them.

    Other threads may call them meanwhile: what they run is the same where nothing is traced.
    """
    with ExitStack() as stack:
        for module in modules:
            forward = None if "forward" in module.__dict__ else _by_short_cut(module)
            if forward is not None:
                module.__dict__["forward"] = ForwardByShortCut(module, forward)
                stack.callback(module.__dict__.pop, "forward", None)
        yield


def traced_form(function: Callable[..., Any]) -> Callable[..., Any]:
    """What to trace in the place of a function: the own forward of a module with a short cut has another form."""
    owner = getattr(function, "__self__", None)
    for old, new, _ in SHORT_CUTS.values():
        if isinstance(owner, nn.Module) and getattr(function, "__func__", None) is old:
            return MethodType(new, owner)
    return function
