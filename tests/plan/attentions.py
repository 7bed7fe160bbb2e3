"""PyTorch's attention as tests call it: plain, causal, and with a mask."""

import torch
from torch.nn.functional import scaled_dot_product_attention


def by_pytorch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(query, key, value)


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def with_mask(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(query, key, value, attn_mask=mask)
