"""Public families of sequence networks at a small size: an LSTM, BERT-like, GPT-like and WaveNet-like stacks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def encoder_layer(dropout: float = 0.0) -> nn.TransformerEncoderLayer:
    """One transformer encoder layer: 256 wide, four heads, 1024 in the middle."""
    return nn.TransformerEncoderLayer(256, 4, dim_feedforward=1024, dropout=dropout, batch_first=True)


class LastStep(nn.Module):
    """A two-layer LSTM of 128, with a linear layer on its last step: what is trained."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.lstm = nn.LSTM(128, 128, num_layers=2)
        self.head = nn.Linear(128, classes)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """Classify a sequence by where it ends."""
        return self.head(self.lstm(steps)[0][-1])


class Attention(nn.Module):
    """Attention of several heads, each position to all or to those before it."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.all_three = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix positions."""
        batch, length, width = x.shape
        parts = self.all_three(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.causal)
        return self.join(mixed.transpose(1, 2).reshape(batch, length, width))


class BertBlock(nn.Module):
    """Attention, then two linear layers with GELU, each followed by layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal=False)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise after each addition."""
        x = self.first(x + self.attention(x))
        return self.second(x + self.narrow(functional.gelu(self.wide(x))))


class Bert(nn.Module):
    """Embeddings of tokens and positions, blocks, and a pooled first position."""

    def __init__(self, width: int = 256, heads: int = 4, blocks: int = 4, vocabulary: int = 8000) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(1, 128, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(BertBlock(width, heads) for _ in range(blocks)))
        self.pool = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Give every position, and the pooled first one."""
        x = self.norm(self.tokens(tokens) + self.positions[:, : tokens.shape[1]])
        x = self.blocks(x)
        return x, torch.tanh(self.pool(x[:, 0]))


class GptBlock(nn.Module):
    """Causal attention, then two linear layers with GELU by tanh, each after layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal=True)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise before each addition."""
        x = x + self.attention(self.first(x))
        return x + self.narrow(functional.gelu(self.wide(self.second(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Embeddings, causal blocks, and scores of the next token by the same embedding."""

    def __init__(self, width: int = 256, heads: int = 4, blocks: int = 4, vocabulary: int = 4000) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(1, 128, width) * 0.02)
        self.blocks = nn.Sequential(*(GptBlock(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Give the scores of the next token at every position."""
        x = self.blocks(self.tokens(tokens) + self.positions[:, : tokens.shape[1]])
        return functional.linear(self.norm(x), self.tokens.weight)


class GatedLayer(nn.Module):
    """WaveNet's layer: a dilated causal convolution, gated, with a residual and a skip."""

    def __init__(self, channels: int, skipped: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.filter = nn.Conv1d(channels, channels, 2, dilation=dilation)
        self.gate = nn.Conv1d(channels, channels, 2, dilation=dilation)
        self.residual = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, skipped, 1)

    def forward(self, wave: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Give what goes on to the next layer and what goes to the end."""
        padded = functional.pad(wave, (self.dilation, 0))
        gated = torch.tanh(self.filter(padded)) * torch.sigmoid(self.gate(padded))
        return wave + self.residual(gated), self.skip(gated)


class WaveNet(nn.Module):
    """Layers of doubling dilation, their skips added up."""

    def __init__(self, channels: int = 32, skipped: int = 64, layers: int = 8, levels: int = 64) -> None:
        super().__init__()
        self.start = nn.Conv1d(1, channels, 1)
        self.layers = nn.ModuleList(GatedLayer(channels, skipped, 2**index) for index in range(layers))
        self.end = nn.Sequential(nn.ReLU(), nn.Conv1d(skipped, skipped, 1), nn.ReLU(), nn.Conv1d(skipped, levels, 1))

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        """Give the scores of the next sample at every position."""
        wave = self.start(wave)
        total = None
        for layer in self.layers:
            wave, skip = layer(wave)
            total = skip if total is None else total + skip
        return self.end(total)
