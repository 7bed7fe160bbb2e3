"""Code that is called with tensors of many sizes: what it computes, how its arguments are made, with which sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

TEXTS = ((2, 5), (3, 7), (4, 9), (16, 33), (2, 2), (5, 64))
IMAGES = ((2, 8, 9), (3, 12, 16), (2, 17, 20), (4, 7, 7))


@dataclass(frozen=True)
class Case:
    """A function, what makes its arguments for some sizes, and these."""

    function: Callable[..., Any]
    make: Callable[..., tuple[Any, ...]]
    sizes: tuple[tuple[int, ...], ...]


def of_text(function: Callable[..., Any], make: Callable[..., tuple[Any, ...]] | None = None) -> Case:
    return Case(function, make or (lambda batch, length: (torch.randn(batch, length, 8),)), TEXTS)


def of_places(function: Callable[..., Any], most: int = 40) -> Case:
    return Case(function, lambda batch, length: (torch.randint(0, most, (batch, length)),), TEXTS)


def of_images(function: Callable[..., Any]) -> Case:
    return Case(function, lambda count, height, width: (torch.randn(count, 3, height, width),), IMAGES)


def written_flat(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.view(-1, 4)[1:].relu_()
    return y.mT


def divided(x: torch.Tensor) -> torch.Tensor:
    rows = x.flatten(1)
    rows.div_(rows.sum(1, keepdim=True))
    return x.flatten(0, 1)[1:].mul_(3).mT


def scores_by_distance(x: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
    """As Transformer-XL moves each row of scores to where its distances begin."""
    scores = x @ distances.mT
    count, rows, columns = scores.shape
    return scores.view(count, columns, rows)[:, 1:].view(count, rows, columns - 1).relu()


def rolled_windows(x: torch.Tensor) -> torch.Tensor:
    count, _, height, width = x.shape
    x = F.pad(x, (0, (4 - width % 4) % 4, 0, -height % 4)).roll((-2, -2), (2, 3))
    rows, columns = x.shape[2] // 4, math.ceil(width / 4)
    windows = x.view(count, 3, rows, 4, columns, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, 3)
    windows = (windows @ windows.mT).softmax(-1) @ windows
    x = windows.view(count, rows, columns, 4, 4, 3).permute(0, 1, 3, 2, 4, 5).reshape(count, rows * 4, columns * 4, 3)
    return x[:, :height, :width]


def longer(more: int) -> Callable[[int, int], tuple[Any, ...]]:
    return lambda batch, length: (torch.randn(batch, length, 8), torch.randn(batch, length + more, 8))


def with_places(most: int | None) -> Callable[[int, int], tuple[Any, ...]]:
    def make(batch: int, length: int) -> tuple[Any, ...]:
        return torch.randn(batch, length, 8), torch.randint(0, most or length, (batch, length, 8))

    return make


def with_truth(batch: int, length: int) -> tuple[Any, ...]:
    return torch.randn(batch, length, 8), torch.rand(batch, length) > 0.3


def with_numbers(batch: int, length: int) -> tuple[Any, ...]:
    return torch.randn(batch, length, 8), torch.where(torch.rand(batch, length) > 0.3, 0.0, -1e9)


def with_lengths(batch: int, length: int) -> tuple[Any, ...]:
    return torch.randn(batch, length, 8), torch.randint(1, length + 1, (batch,))


def graph(batch: int, length: int) -> tuple[Any, ...]:
    return torch.randn(batch * 4, 8), torch.randint(0, batch * 4, (2, batch * length))


torch.manual_seed(0)
WEIGHT, TABLE = torch.randn(8, 16), torch.randn(70, 8)
CONV = nn.Conv2d(3, 6, 3, padding=1, stride=2)
CONV1D = nn.Conv1d(8, 8, 5, padding=2)
TRANSPOSED = nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1)
NORM = nn.BatchNorm2d(6).eval()
ENCODER = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()


LSTM = nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True).eval()
GRU = nn.GRU(8, 6, batch_first=True).eval()
RNN = nn.RNN(8, 6).eval()
ATTENTION = nn.MultiheadAttention(8, 2, batch_first=True).eval()
SAME = nn.Conv1d(8, 4, 3, padding="same")
LOOK = torch.tensor([[[0.9, 0.1, 0.0], [0.0, 1.1, 0.1]]])


def grouped(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    heads = x.unflatten(2, (4, 2)).transpose(1, 2)
    return heads, heads[:, :2], heads[:, 2:]


def with_a_view(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x + 1
    return y, y[:, y.shape[1] // 2 :]


def largest_pixels(x: torch.Tensor) -> torch.Tensor:
    rows = F.relu(CONV(x)).flatten(2).transpose(1, 2)
    _, places = rows[..., 4].topk(10, 1)
    return rows.gather(1, places[..., None].expand(-1, -1, 6))


def packed(x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows, (hidden, cells) = LSTM(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    return (*nn.utils.rnn.pad_packed_sequence(rows, batch_first=True, total_length=x.shape[1]), hidden, cells)


def written(x: torch.Tensor, part: slice) -> torch.Tensor:
    y = x.clone()
    y[:, part] = 0.0
    return y


def attended(x: torch.Tensor, y: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    query, key = x[:, None], x[:, None] if y is None else y[:, None]
    return F.scaled_dot_product_attention(query, key, key, **options)


CASES: dict[str, Case] = {
    "elementwise": of_text(lambda x: torch.relu(x) + 1),
    "linear": of_text(lambda x: x @ WEIGHT),
    "mean of a dimension": of_text(lambda x: x.mean(1)),
    "mean of all": of_text(lambda x: x.mean()),
    "sum of two dimensions": of_text(lambda x: x.sum((0, 1))),
    "variance": of_text(lambda x: x.var(1)),
    "deviation of two dimensions": of_text(lambda x: x.std((0, 1))),
    "product": of_text(lambda x: torch.where(x > 0, x, torch.ones_like(x)).prod(1)),
    "softmax": of_text(lambda x: x.softmax(1)),
    "logsumexp": of_text(lambda x: x.logsumexp(1)),
    "largest and where": of_text(lambda x: x.max(1)),
    "smallest of two dimensions": of_text(lambda x: x.amin((0, 1))),
    "argmax": of_text(lambda x: x.argmax(1)),
    "any and all": of_text(lambda x: ((x > 1).any(1), (x > -3).all(1))),
    "merged dimensions": of_text(lambda x: x.flatten(0, 1) * 2),
    "all in one row": of_text(lambda x: x.flatten() * 2),
    "heads": of_text(lambda x: x.view(*x.shape[:2], 2, 4).transpose(1, 2).reshape(x.shape[0], 2, -1)),
    "last": of_text(lambda x: x[:, -1] * 2),
    "first": of_text(lambda x: x[:, 0] * 2),
    "neighbours": of_text(lambda x: x[:, 1:] - x[:, :-1]),
    "second half": of_text(lambda x: x[:, x.shape[1] // 2 :] * 2),
    "sum of the first half": of_text(lambda x: x[:, : x.shape[1] // 2].sum(1)),
    "every second": of_text(lambda x: x[:, ::2] * 3),
    "reversed": of_text(lambda x: x.flip(1) + 0),
    "rolled": of_text(lambda x: x.roll(1, 1) + 0),
    "joined with a fixed one": of_text(lambda x: torch.cat([x, x[:1, :1].expand(x.shape[0], 3, 8)], 1) * 2),
    "joined with a longer one": of_text(lambda x, y: torch.cat([x, y], 1) * 2, longer(1)),
    "mean of what is joined": of_text(lambda x: torch.cat([x, x + 1], 0).mean(0)),
    "stacked": of_text(lambda x: torch.stack([x, x + 1], 1).amax(2)),
    "repeated": of_text(lambda x: x.repeat(1, 2, 1)),
    "each repeated": of_text(lambda x: x.repeat_interleave(2, 1)),
    "padded": of_text(lambda x: F.pad(x, (0, 0, 2, 3)) * 2),
    "padded to a multiple": of_text(lambda x: F.pad(x, (0, 0, 0, -x.shape[1] % 8)) * 2),
    "padded to at least so many": of_text(lambda x: F.pad(x, (0, 0, 0, max(16, x.shape[1]) - x.shape[1])) * 2),
    "scores by distance": of_text(
        scores_by_distance, lambda batch, length: (torch.randn(batch, length, 8), torch.randn(batch, 2 * length, 8))
    ),
    "windows of padded images": of_images(rolled_windows),
    "a part of padded images": of_images(lambda x: F.relu(F.pad(x, (0, 3, 0, 3)))[..., : x.shape[2], : x.shape[3]]),
    "a part of one padded image": Case(
        lambda x: F.relu(F.pad(x, (0, 3, 0, 3)))[..., : x.shape[2], : x.shape[3]],
        lambda height, width: (torch.randn(1, 3, height, width),),
        ((20, 20), (17, 23), (12, 16), (7, 30)),
    ),
    "rows of what is divided": of_text(lambda x: F.pad(x, (0, 0, 0, sum(divmod(x.shape[1], 4)))) * 2),
    "every second of a result": of_text(lambda x: (x * 2)[:, ::2]),
    "one for all places": of_text(lambda x: (x[:, :1] * 2).expand(-1, x.shape[1], -1)),
    "padded by reflection": of_text(lambda x: F.pad(x.transpose(1, 2), (1, 1), mode="reflect")),
    "positions": of_text(lambda x: x + torch.arange(x.shape[1])[:, None]),
    "positions of a table": of_text(lambda x: x + TABLE[: x.shape[1]]),
    "divided by a size": of_text(lambda x: x / x.shape[1]),
    "divided by the root of a size": of_text(lambda x: x / math.sqrt(x.shape[1])),
    "sizes as numbers": of_text(lambda x: x * x.shape[1] + x.shape[0]),
    "ones of a size": of_text(lambda x: torch.ones(x.shape[0], x.shape[1]).sum(1) + x.sum((1, 2))),
    "products of rows": of_text(lambda x: x @ x.transpose(1, 2)),
    "products of columns": of_text(lambda x: x.transpose(1, 2) @ x),
    "products over all rows": of_text(lambda x: x.flatten(0, 1).T @ x.flatten(0, 1)),
    "einsum": of_text(lambda x, y: torch.einsum("btd,bsd->bts", x, y), longer(2)),
    "distances": of_text(lambda x: (x[:, :, None] - x[:, None]).pow(2).sum(-1).sqrt()),
    "triangle": of_text(lambda x: torch.tril(x @ x.transpose(1, 2)).sum(-1)),
    "attention": of_text(attended),
    "causal attention": of_text(lambda x: attended(x, is_causal=True)),
    "cross attention": of_text(attended, longer(3)),
    "attention with a mask": of_text(lambda x, mask: attended(x, attn_mask=mask[:, None, None]), with_truth),
    "attention with numbers": of_text(lambda x, mask: attended(x, attn_mask=mask[:, None, None]), with_numbers),
    "attention by hand": of_text(lambda x, m: (x @ x.transpose(1, 2) / 3 + m[:, None]).softmax(-1) @ x, with_numbers),
    "encoder": of_text(ENCODER),
    "embedding": of_places(lambda i: TABLE[i].mean(1)),
    "embedding at computed places": of_places(lambda i: F.embedding(i + 20, TABLE).sum(1)),
    "gather": of_text(lambda x, i: x.gather(1, i), with_places(None)),
    "scatter_add": of_text(lambda x, i: torch.zeros(x.shape[0], 70, 8).scatter_add(1, i, x), with_places(70)),
    "graph": of_text(lambda x, edges: torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]), graph),
    "lengths": of_text(
        lambda x, n: (x * (torch.arange(x.shape[1])[None] < n[:, None])[..., None]).sum(1) / n[:, None], with_lengths
    ),
    "cross entropy": of_text(
        lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten()),
        lambda batch, length: (torch.randn(batch, length, 8), torch.randint(0, 8, (batch, length))),
    ),
    "square error": of_text(F.mse_loss, longer(0)),
    "a branch on a size": of_text(lambda x: x * 2 if x.shape[1] > 8 else x * 3),
    "an argument and a size": of_text(lambda x: (x, x + 1, x.shape[1])),
    "a view of an argument": of_text(lambda x: x[:, 1:]),
    "numbers of elements and bytes": of_text(lambda x: x * x.nbytes + x.nelement()),
    "whole numbers": of_places(lambda x: x.sum(1) // x.shape[1]),
    "double precision": of_text(lambda x: x.double().norm(dim=1)),
    "running sum": of_text(lambda x: x.cumsum(1)),
    "sorted": of_text(lambda x: x.sort(1)[0]),
    "largest two": of_text(lambda x: x.topk(2, 1)),
    "windows": of_text(lambda x: x.unfold(1, 2, 1).sum(-1)),
    "convolution of a row": of_text(lambda x: CONV1D(x.transpose(1, 2))),
    "convolution": of_images(CONV),
    "convolution and norm": of_images(lambda x: F.relu(NORM(CONV(x))).mean((2, 3))),
    "largest of windows": of_images(lambda x: F.max_pool2d(CONV(x), 3, 2, 1)),
    "mean of windows": of_images(lambda x: F.avg_pool2d(CONV(x), 2)),
    "mean of images": of_images(lambda x: F.adaptive_avg_pool2d(CONV(x), 1).flatten(1)),
    "transposed convolution": of_images(TRANSPOSED),
    "larger images": of_images(lambda x: F.interpolate(x, scale_factor=2)),
    "instance norm": of_images(F.instance_norm),
    "group norm": of_images(lambda x: F.group_norm(CONV(x), 3)),
    "batch norm of this batch": of_images(lambda x: F.batch_norm(x, None, None, training=True)),
    "layer norm of whole images": of_images(lambda x: F.layer_norm(x, x.shape[1:])),
    "lstm": of_text(LSTM),
    "packed sequences": Case(packed, lambda length: with_lengths(3, length), ((5,), (7,), (9,), (33,), (2,), (64,))),
    "gru": of_text(GRU),
    "recurrent net": of_text(lambda x: RNN(x.transpose(0, 1))),
    "attention of a module": of_text(
        lambda x, mask: ATTENTION(x, x, x, key_padding_mask=~mask, need_weights=False)[0].sum(-1),
        lambda batch, length: (torch.randn(batch, length, 8), torch.arange(length).expand(batch, length) < 2),
    ),
    "grouped queries": of_text(lambda x: F.scaled_dot_product_attention(*grouped(x), is_causal=True, enable_gqa=True)),
    "largest places": of_text(lambda x: x.topk(x.shape[1] // 2, 1)),
    "median": of_text(lambda x: x.median(1)),
    "running product": of_text(lambda x: x.cumprod(0)),
    "tiled": of_text(lambda x: x.tile(2, 3, 1)),
    "repeated as often as there are": of_text(lambda x: x[:, 0].repeat(x.shape[1], 1)),
    "same padding": of_text(lambda x: SAME(x.transpose(1, 2))),
    "a kernel of a size": of_text(lambda x: F.conv_transpose1d(x.mT, x[:1].mT.transpose(0, 1) + 0, stride=2)),
    "pixels of the largest places": of_images(largest_pixels),
    "bags": of_places(lambda i: F.embedding_bag(i, TABLE)),
    "codes": of_places(lambda i: F.one_hot(i, 40).float().sum(1)),
    "means of classes": of_text(
        lambda x, i: torch.zeros(x.shape[0], 70, 8).scatter_reduce(1, i, x, "mean"), with_places(70)
    ),
    "pairs of places": of_text(lambda x: torch.triu(torch.ones(x.shape[1], x.shape[1]), 1) * (x @ x.mT)),
    "unit matrix": of_text(lambda x: torch.eye(x.shape[1]) + x @ x.mT),
    "evenly spaced": of_text(lambda x: torch.linspace(0, 1, x.shape[1])[:, None] * x),
    "sorted places": of_text(lambda x: torch.searchsorted(x.sort(-1)[0], x)),
    "spectrum": of_text(lambda x: torch.fft.rfft(x, dim=1).abs()),
    "solved": of_text(lambda x: torch.linalg.solve(x.mT @ x + torch.eye(8), x.mT)),
    "last of each length": of_text(lambda x, n: x[torch.arange(x.shape[0]), n - 1], with_lengths),
    "written in the first half": of_text(lambda x: written(x, slice(0, x.shape[1] // 2))),
    "written in the second half": of_text(lambda x: written(x, slice(x.shape[1] // 2, None))),
    "written through a view of all rows": of_text(written_flat),
    "norm of each image, written": of_images(lambda x: F.instance_norm(x).relu_() * 2),
    "divided by sums of rows, in place": of_images(lambda x: divided(x.exp())),
    "written through a view of computed sizes": of_text(lambda x: (x * 2).view(x.shape[0], -1, 4).relu_().sum(1)),
    "a transposed argument": of_text(lambda x: x.transpose(1, 2)),
    "half of an argument": of_text(lambda x: x[:, x.shape[1] // 2 :]),
    "a result and a view of it": of_text(with_a_view),
    "larger smooth images": of_images(lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear")),
    "images of a fixed size": of_images(lambda x: F.interpolate(x, size=(6, 6), mode="bicubic")),
    "wrapped around": of_images(lambda x: F.pad(x, (1, 2, 1, 0), mode="circular")),
    "less and more": of_images(lambda x: F.pad(x, (-1, 2, 0, 0)) * 2),
    "largest of parts": of_images(lambda x: F.adaptive_max_pool2d(x, (2, 3))),
    "windows over a border": of_images(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)),
    "places of the largest": of_images(lambda x: F.max_pool2d(x, 2, return_indices=True)),
    "patches": of_images(lambda x: F.unfold(x, 3)),
    "shuffled channels": of_images(lambda x: F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2)),
    "sampled": of_images(
        lambda x: F.grid_sample(x, F.affine_grid(LOOK.expand(x.shape[0], 2, 3), x.shape, False), align_corners=False)
    ),
}
