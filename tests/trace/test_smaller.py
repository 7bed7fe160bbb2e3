"""How large results lie, as small ones tell: the strides of operators that know only which sizes are equal."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch

from weft.trace.results import smaller as module
from weft.trace.results.smaller import Layout, smaller

SIZES = (1, 2, 3, 5, 8, 8, 40)
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def anyhow(drawn: random.Random, shape: Sequence[int]) -> torch.Tensor:
    """A tensor with dimensions in any order in memory, perhaps with gaps, perhaps repeated."""
    order = drawn.sample(range(len(shape)), len(shape))
    gap = drawn.choice((1, 1, 1, 3))
    sizes = [shape[place] for place in order]
    sizes[-1] *= gap
    tensor = torch.randn(sizes)[..., : sizes[-1] // gap].permute([order.index(place) for place in range(len(shape))])
    if drawn.random() < 0.1 and len(shape) > 1:
        tensor = tensor[:1].expand(shape)
    return tensor


def layout(tensor: torch.Tensor) -> Layout:
    return tuple(tensor.shape), tensor.stride()


def told(run: Callable[..., Sequence[torch.Tensor]], given: Sequence[torch.Tensor]) -> bool:
    """Whether small tensors tell how large results lie; they never tell otherwise."""
    right = run(*given)
    primes = smaller([tuple(one.shape) for one in right], list(map(layout, given)))
    if primes is None:
        return False
    small = []
    for one in given:
        strides = primes.strides(layout(one))
        assert strides is not None
        small.append(torch.empty_strided(tuple(map(primes.size, one.shape)), strides).fill_(1))
    found = [primes.large(one, tuple(large.shape)) for one, large in zip(run(*small), right, strict=True)]
    assert None in found or found == [one.stride() for one in right]
    return None not in found


RUNS: dict[str, Callable[..., Sequence[torch.Tensor]]] = {
    "one": lambda x, _: (x.exp(),),
    "two": lambda x, y: (x + y,),
    "three": lambda x, y: (torch.where(x > 0, x, y),),
    "number": lambda x, _: (x * 2.0,),
}


@pytest.mark.parametrize("name", RUNS)
def test_operators_on_each_element(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST", 1)
    drawn = random.Random(name)
    count = 0
    for _ in range(400):
        shape = [drawn.choice(SIZES) for _ in range(drawn.randint(2, 4))]
        other = [size if drawn.random() < 0.7 else 1 for size in shape][drawn.choice((0, 0, 1)) :]
        given = [anyhow(drawn, shape), anyhow(drawn, other)]
        count += told(RUNS[name], given[:1] * 2 if name in ("one", "number") else given)
    assert count > 300


def test_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST", 1)
    drawn = random.Random(1)
    count = 0
    for _ in range(200):
        batch, heads, rows, keys, width = (drawn.choice(SIZES) for _ in range(5))
        given = [anyhow(drawn, (batch, heads, length, width)) for length in (rows, keys, keys)]
        count += told(lambda q, k, v: ATTENTION(q, k, v, 0.0, False), given)
    assert count > 150


def test_what_is_small_or_overlaps_is_asked_as_it_is() -> None:
    assert smaller([(8, 8)], [((8, 8), (8, 1))]) is None
    assert smaller([(512, 512)], [((512, 512), (512, 1))]) is not None
    assert smaller([(512, 512)], [((512, 512), (3, 1))]) is None
    assert smaller([(0, 512, 512)], [((0, 512, 512), (512 * 512, 512, 1))]) is None
