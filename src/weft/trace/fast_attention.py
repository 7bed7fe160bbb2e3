"""Compute attention, and encoder layers, as eager PyTorch's kernels do that evaluation takes without gradients.

In evaluation and where nothing needs gradients, eager's modules give all their weights to one kernel each. Code that is
intercepted does not get that way. The kernels are not only faster: a query to which all keys are masked gets NaN, where
other code gives zeros; any number in the float mask of a layer but zero masks its key; the result lies row by row; and
what a subclass does in parts of a layer is not called.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from weft.trace.interception.modes import has_function_modes

ATTENTION = nn.MultiheadAttention.forward
LAYER = nn.TransformerEncoderLayer.forward
DEVICES = ("cpu", "cuda", "xpu")
GELU = 2
Masks = tuple[torch.Tensor | None, torch.Tensor | None]
"""Masks of truth: of queries and keys (for each head of each sample, or all), and of padded keys of each sample."""


def fast_attention(
    self: nn.MultiheadAttention, x: torch.Tensor, masks: Masks, *, need_weights: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Give what the kernel of attention gives, with the weights of each head if they are wanted."""
    of_parts = functional.linear(x, self.in_proj_weight, self.in_proj_bias).unflatten(-1, (3, self.num_heads, -1))
    query, key, value = of_parts.permute(2, 0, 3, 1, 4)
    masked, weights = _masked(masks, x.shape[0], self.num_heads), None
    if masked is None and not need_weights:
        heads = functional.scaled_dot_product_attention(query, key, value)
    else:
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
        weights = (scores if masked is None else scores.masked_fill(masked, -math.inf)).softmax(-1)
        heads = weights @ value
    return functional.linear(heads.transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias), weights


def _masked(masks: Masks, batch: int, heads: int) -> torch.Tensor | None:
    """Tell which keys are masked to which queries, of each sample and each head."""
    attn_mask, key_padding_mask = masks
    padded = None if key_padding_mask is None else key_padding_mask[:, None, None, :]
    if attn_mask is None:
        return padded
    of_heads = attn_mask[None, None] if attn_mask.dim() == 2 else attn_mask.unflatten(0, (batch, heads))
    return of_heads if padded is None else of_heads | padded


def attention_forward(  # noqa: PLR0913, PLR0917 - PyTorch's
    self: nn.MultiheadAttention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_padding_mask: torch.Tensor | None = None,
    need_weights: bool = True,
    attn_mask: torch.Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What stands in the place of an attention's forward while it is traced."""
    if has_function_modes() and query is key is value and is_fast_attention(self, query, (attn_mask, key_padding_mask)):
        output, weights = fast_attention(self, query, (attn_mask, key_padding_mask), need_weights=need_weights)
        if weights is None or not need_weights:
            return output, None
        return output, weights.mean(1) if average_attn_weights else weights
    return ATTENTION(
        self, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
    )


def is_fast_attention(attention: nn.MultiheadAttention, query: torch.Tensor, masks: Masks) -> bool:
    """Whether eager gives an attention to its kernel."""
    weights = (attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias)
    return (
        torch.backends.mha.get_fastpath_enabled()
        and not any(mask is not None and mask.dtype is not torch.bool for mask in masks)
        and query.dim() == 3
        and not (attention.training or attention.num_heads % 2)
        and attention.batch_first
        and attention.bias_k is None
        and attention.bias_v is None
        and not attention.add_zero_attn
        and _are_plain((query, *weights))
        and query.dtype == attention.in_proj_weight.dtype == attention.in_proj_bias.dtype
    )


def layer_forward(
    self: nn.TransformerEncoderLayer,
    src: torch.Tensor,
    src_mask: torch.Tensor | None = None,
    src_key_padding_mask: torch.Tensor | None = None,
    is_causal: bool = False,
) -> torch.Tensor:
    """What stands in the place of an encoder layer's forward while it is traced."""
    if not (has_function_modes() and is_fast_layer(self, src)):
        return LAYER(self, src, src_mask, src_key_padding_mask, is_causal)
    masks = _masks_of_truth(self.self_attn, src, src_mask, src_key_padding_mask)

    def attended(x: torch.Tensor) -> torch.Tensor:
        return fast_attention(self.self_attn, x, masks)[0]

    def fed(x: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(x, self.linear1.weight, self.linear1.bias)
        hidden = functional.gelu(hidden) if self.activation_relu_or_gelu == GELU else functional.relu(hidden)
        return functional.linear(hidden, self.linear2.weight, self.linear2.bias)

    def normed(norm: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    if self.norm_first:
        x = src + attended(normed(self.norm1, src))
        return x + fed(normed(self.norm2, x))
    x = normed(self.norm1, src + attended(src))
    return normed(self.norm2, x + fed(x))


def is_fast_layer(layer: nn.TransformerEncoderLayer, src: torch.Tensor) -> bool:
    """Whether eager gives an encoder layer to its kernel."""
    attention: Any = layer.self_attn
    return (
        torch.backends.mha.get_fastpath_enabled()
        and src.dim() == 3
        and not (layer.training or attention.num_heads % 2)
        and attention.batch_first
        and bool(layer.activation_relu_or_gelu)
        and layer.norm1.eps == layer.norm2.eps
        and not any(module._forward_hooks or module._forward_pre_hooks for module in layer.modules())
        and _are_plain((src, attention.in_proj_weight, attention.in_proj_bias))
        and _are_plain(
            entry
            for part in (attention.out_proj, layer.norm1, layer.norm2, layer.linear1, layer.linear2)
            for entry in (part.weight, part.bias)
        )
    )


def _are_plain(tensors: Any) -> bool:
    """Whether all of these are tensors that kernels take, and nothing needs their gradients."""
    return not torch.is_autocast_enabled() and all(
        isinstance(tensor, torch.Tensor)
        and tensor.device.type in DEVICES
        and not (torch.is_grad_enabled() and tensor.requires_grad)
        for tensor in tensors
    )


def _masks_of_truth(
    attention: nn.MultiheadAttention, src: torch.Tensor, mask: torch.Tensor | None, padding: torch.Tensor | None
) -> Masks:
    """Give the masks of a layer as its kernel takes them, with eager's errors."""
    other = functional._none_or_dtype(mask)
    numbers = functional._canonical_mask(padding, "src_key_padding_mask", other, "src_mask", src.dtype)
    of_queries = functional._canonical_mask(mask, "src_mask", None, "", src.dtype, check_other=False)
    if all(one is None or one.dtype is torch.bool for one in (mask, padding)):
        return mask, padding
    merged, kind = attention.merge_masks(of_queries, numbers, src)
    masks = None if merged is None else torch.ne(merged, 0)
    if masks is None or kind == 1:
        return None, masks
    return (masks if kind == 0 else masks.flatten(0, 1)), None
