"""Gradients of batch norms that PyTorch computes wrongly: machine code leaves to PyTorch all that are."""

import random

import torch

from weft.ir.types import type_of
from weft.trace.lift.norms import are_mistaken

SAMPLES = 1500
LEAST_MISTAKEN = 50
EPSILON = 1e-5


def laid_out(choose: random.Random, shape: tuple[int, ...]) -> torch.Tensor:
    """Make a tensor in some order of its dimensions, with any strides where these have one element."""
    order = list(range(len(shape)))
    kind = choose.choice(["rows", "pixels", "any"])
    if kind == "pixels":
        order = [0, *range(2, len(shape)), 1]
    elif kind == "any":
        choose.shuffle(order)
    back = [order.index(place) for place in range(len(shape))]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(choose.randrange(1 << 30)))
    x = x.permute(order).contiguous().permute(back)
    loose = [choose.choice([step, 0, 1, 2, 4, 7, 50]) for step in x.stride()]
    strides = [free if size == 1 else step for size, step, free in zip(x.shape, x.stride(), loose, strict=True)]
    return x.as_strided(x.shape, strides)


def gradients(gradient: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    others = [place for place in range(x.dim()) if place != 1]
    spread = x.var(others, unbiased=False)
    weight = torch.linspace(0.5, 1.5, x.shape[1])
    statistics = (x.mean(others), (spread + EPSILON).rsqrt())
    return torch.ops.aten.native_batch_norm_backward(
        gradient, x, weight, None, None, *statistics, True, EPSILON, [True] * 3
    )


def by_rows(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def test_every_gradient_that_pytorch_mistakes_is_known():
    choose = random.Random(0)
    mistaken = 0
    for _ in range(SAMPLES):
        shape = tuple(choose.choice([1, 1, 2, 3]) for _ in range(choose.choice([4, 5])))
        x, gradient = laid_out(choose, shape), laid_out(choose, shape)
        if x.numel() == shape[1]:
            continue
        found, expected = gradients(gradient, x), gradients(by_rows(gradient), by_rows(x))
        wrong = any(not torch.allclose(*pair, rtol=1e-3, atol=1e-4) for pair in zip(found, expected, strict=True))
        mistaken += wrong
        assert not wrong or are_mistaken(type_of(gradient), type_of(x)), (shape, gradient.stride(), x.stride())
    assert mistaken > LEAST_MISTAKEN


def test_gradients_that_lie_alike_are_no_mistake():
    x = torch.ones(1, 4, 3, 3)
    pixels = x.contiguous(memory_format=torch.channels_last)
    loose = pixels.as_strided(x.shape, (4, 1, 12, 4))
    assert not are_mistaken(type_of(x), type_of(x))
    assert not are_mistaken(type_of(pixels), type_of(x))
    assert not are_mistaken(type_of(pixels), type_of(loose))
    assert are_mistaken(type_of(x), type_of(loose))
    assert are_mistaken(type_of(loose), type_of(x))
