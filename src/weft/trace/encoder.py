"""Trace `nn.TransformerEncoder` as eager PyTorch computes it where that takes its short cut through nested tensors.

With a padding mask on the right, in evaluation and without gradients, eager packs rows that are not padded, and gives
zeros for the others. Code that is intercepted does not get that way, and would give other numbers there. Whether all
padding is on the right is known by the elements: the program decides it at each run.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType, MethodType
from typing import Any, TypeGuard

import torch
from torch import nn

from weft.trace.interception.modes import has_function_modes

FORWARD = nn.TransformerEncoder.forward
DEVICES = ("cpu", "cuda", "xpu")


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


class EncoderForward:
    """An encoder's forward while it is traced; by its class it is told from one that somebody put there."""

    def __init__(self, encoder: nn.TransformerEncoder) -> None:
        self.encoder = encoder

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute what eager does."""
        return encoder_forward(self.encoder, *args, **kwargs)


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


def is_encoder(module: nn.Module) -> TypeGuard[nn.TransformerEncoder]:
    """Whether a module runs PyTorch's own encoder."""
    return isinstance(module, nn.TransformerEncoder) and type(module).forward is FORWARD


def replace_forward() -> None:
    """Let encoders in lazy code, too, compute what eager does: their class's forward asks whether it is intercepted.

    TorchScript reads the source of the forward that was there, and looks for its names beside the function.
    """
    if nn.TransformerEncoder.forward is not FORWARD:
        return
    names = {**vars(nn.modules.transformer), **globals()}
    found = FunctionType(encoder_forward.__code__, names, "forward", encoder_forward.__defaults__)
    nn.TransformerEncoder.forward = functools.wraps(FORWARD)(found)  # type: ignore[method-assign]


@contextmanager
def as_eager_computes(modules: Iterable[nn.Module]) -> Iterator[None]:
    """While this is open the encoders among modules are traced as eager computes them.

    Other threads may call them meanwhile: what they run is the same where nothing is traced.
    """
    with ExitStack() as stack:
        for module in modules:
            if is_encoder(module) and "forward" not in module.__dict__:
                module.__dict__["forward"] = EncoderForward(module)
                stack.callback(module.__dict__.pop, "forward", None)
        yield


def traced_form(function: Callable[..., Any]) -> Callable[..., Any]:
    """What to trace in the place of a function: an encoder's own forward has another form."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, nn.TransformerEncoder) and getattr(function, "__func__", None) is FORWARD:
        return MethodType(encoder_forward, owner)
    return function
