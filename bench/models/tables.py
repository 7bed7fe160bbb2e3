"""Networks on tables and graphs: DeepFM-like, GCN-like, and a graph of thousands of small operators."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class DeepFM(nn.Module):
    """Embeddings of categories, their pairwise products, and a perceptron on the same embeddings."""

    def __init__(self, fields: int = 8, categories: int = 1000, width: int = 16) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(categories, width) for _ in range(fields))
        self.linear = nn.ModuleList(nn.Embedding(categories, 1) for _ in range(fields))
        self.deep = nn.Sequential(
            nn.Linear(fields * width, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, categories: torch.Tensor) -> torch.Tensor:
        """Give one score a row of categories."""
        columns = categories.unbind(1)
        vectors = torch.stack([table(column) for table, column in zip(self.embeddings, columns, strict=True)], dim=1)
        first = torch.cat([table(column) for table, column in zip(self.linear, columns, strict=True)], dim=1)
        square_of_sum = vectors.sum(dim=1).square()
        sum_of_squares = vectors.square().sum(dim=1)
        pairs = 0.5 * (square_of_sum - sum_of_squares).sum(dim=1, keepdim=True)
        return (first.sum(dim=1, keepdim=True) + pairs + self.deep(vectors.flatten(1))).squeeze(1)


class GraphLayer(nn.Module):
    """One round of messages along the edges of a graph."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels_in, channels, bias=False)
        self.bias = nn.Parameter(torch.randn(channels) * 0.1)

    def forward(self, features: torch.Tensor, edges: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Send each source's features along its edges and add them up where they arrive."""
        features = self.linear(features)
        messages = features.index_select(0, edges[0]) * weights.unsqueeze(1)
        places = edges[1].unsqueeze(1).expand_as(messages)
        return torch.zeros_like(features).scatter_add(0, places, messages) + self.bias


class Gcn(nn.Module):
    """A graph network of two rounds."""

    def __init__(self, features: int = 64, hidden: int = 64, classes: int = 8) -> None:
        super().__init__()
        self.first = GraphLayer(features, hidden)
        self.second = GraphLayer(hidden, classes)

    def forward(self, features: torch.Tensor, edges: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Give the scores of every node."""
        return self.second(functional.relu(self.first(features, edges, weights)), edges, weights)


def graph(nodes: int = 2000, edges: int = 8000, features: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Give a random graph: features of nodes, edges from and to, weights of edges."""
    return torch.randn(nodes, features), torch.randint(nodes, (2, edges)), torch.rand(edges)


class LongGraph(nn.Module):
    """A stack of blocks of eight operators, unlike enough that none can be shared: to measure compile time."""

    OPERATORS_A_BLOCK = 8

    def __init__(self, operators: int, width: int = 32) -> None:
        super().__init__()
        blocks = operators // self.OPERATORS_A_BLOCK
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.scales = nn.ParameterList(torch.rand(width) + 0.5 for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run linear, tanh, product, sigmoid, product, sum, mean and difference, block after block."""
        for linear, scale in zip(self.linears, self.scales, strict=True):
            y = torch.tanh(linear(x)) * scale
            x = torch.sigmoid(y) * x + y
            x = x - x.mean(dim=1, keepdim=True)
        return x
