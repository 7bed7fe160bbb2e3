"""Caches of keys and values that grow by one token at each call run few programs, and hold what eager puts there."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import weft
from weft.config import overrides

HEADS, WIDTH = 2, 8


class Layer:
    """A layer of a cache as libraries have it: nothing at first, then what was, with what is new."""

    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None
        self.is_initialized = False

    def update(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.keys, self.values = torch.tensor([], dtype=k.dtype), torch.tensor([], dtype=v.dtype)
            self.is_initialized = True
        self.keys = torch.cat([self.keys, k], dim=-2)
        self.values = torch.cat([self.values, v], dim=-2)
        return self.keys, self.values


class Cache:
    def __init__(self) -> None:
        self.layers = [Layer(), Layer()]

    def update(self, k, v, layer):
        return self.layers[layer].update(k, v)


@dataclass
class Both:
    keys: Any = None
    values: Any = None


class Dataclasses:
    def __init__(self) -> None:
        self.held = (Both(), Both())

    def update(self, k, v, layer):
        both = self.held[layer]
        both.keys = k if both.keys is None else torch.cat([both.keys, k], dim=-2)
        both.values = v if both.values is None else torch.cat([both.values, v], dim=-2)
        return both.keys, both.values


class Pairs:
    """A list of tuples."""

    def __init__(self) -> None:
        self.pairs: list[Any] = [None, None]

    def update(self, k, v, layer):
        past = self.pairs[layer]
        self.pairs[layer] = (k, v) if past is None else (torch.cat([past[0], k], 2), torch.cat([past[1], v], 2))
        return self.pairs[layer]


class Names:
    """A dictionary in an object."""

    def __init__(self) -> None:
        self.table: dict[str, torch.Tensor] = {}

    def update(self, k, v, layer):
        for name, new in (("k", k), ("v", v)):
            key = f"{name}{layer}"
            self.table[key] = torch.cat((self.table[key], new), dim=2) if key in self.table else new
        return self.table[f"k{layer}"], self.table[f"v{layer}"]


class Counting(Cache):
    """One that counts what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def update(self, k, v, layer):
        if layer == 0:
            self.seen += k.shape[-2]
        return super().update(k, v, layer)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, HEADS * WIDTH)
        self.qkv = nn.ModuleList([nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH) for _ in range(2)])
        self.head = nn.Linear(HEADS * WIDTH, 32)

    def forward(self, ids, cache, mask=None):
        x = self.embed(ids)
        for number, layer in enumerate(self.qkv):
            q, k, v = (part.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for part in layer(x).chunk(3, -1))
            k, v = cache.update(k, v, number)
            hidden = None if mask is None else mask[:, None, None, :].bool()
            mixed = scaled_dot_product_attention(q, k, v, attn_mask=hidden, is_causal=mask is None and q.shape[2] > 1)
            x = x + mixed.transpose(1, 2).flatten(-2)
        return self.head(x[:, -1])


def tensors(thing: Any) -> list[torch.Tensor]:
    if isinstance(thing, torch.Tensor):
        return [thing]
    if isinstance(thing, dict):
        return [tensor for item in thing.values() for tensor in tensors(item)]
    if isinstance(thing, (list, tuple)):
        return [tensor for item in thing for tensor in tensors(item)]
    return tensors(vars(thing)) if hasattr(thing, "__dict__") else []


def assert_alike(ours: Any, theirs: Any) -> None:
    for one, other in zip(tensors(ours), tensors(theirs), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
        assert one.stride() == other.stride()


def generate(net, cache, ids, steps: int, mask=None) -> list[int]:
    found = []
    for _ in range(steps):
        logits = net(ids, cache) if mask is None else net(ids, cache, mask)
        ids = logits.argmax(-1, keepdim=True)
        mask = None if mask is None else torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
        found += ids.flatten().tolist()
    return found


def programs(net: Any) -> int:
    hybrid = net.forward
    return sum(map(len, hybrid.programs.values())) + len([*hybrid.varying])


@pytest.fixture
def nets():
    torch.manual_seed(0)
    net = Decoder().eval()
    other = Decoder().eval()
    other.load_state_dict(net.state_dict())
    return net, weft.hybridize(other)


@pytest.mark.parametrize("kind", [Cache, Dataclasses, Pairs, Names])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_few_programs_generate_what_eager_does(nets, kind, batch):
    net, fast = nets
    with torch.no_grad():
        for length in (5, 5):
            ours, theirs, ids = kind(), kind(), torch.randint(32, (batch, length))
            assert generate(fast, ours, ids, 24) == generate(net, theirs, ids, 24)
            assert_alike(ours, theirs)
    assert programs(fast) <= 4
    assert fast.forward.rare.calls <= 2


def test_prompts_with_padding_hide_it(nets):
    net, fast = nets
    with torch.no_grad():
        for _ in range(2):
            ours, theirs, ids = Cache(), Cache(), torch.randint(32, (3, 6))
            mask = torch.ones_like(ids)
            mask[0, :3] = mask[1, :1] = 0
            assert generate(fast, ours, ids, 12, mask) == generate(net, theirs, ids, 12, mask)
            assert_alike(ours, theirs)


def test_how_a_text_begins_gets_a_program_when_another_text_begins(nets):
    net, fast = nets
    with torch.no_grad(), overrides(whole="off"):
        for count, made in ((1, 0), (2, 1), (3, 1)):
            ours, theirs, ids = Cache(), Cache(), torch.randint(32, (1, 6))
            assert generate(fast, ours, ids, 1) == generate(net, theirs, ids, 1)
            assert_alike(ours, theirs)
            assert (fast.forward.rare.calls, programs(fast)) == (1, made), count


def test_an_object_without_room_gets_a_program_at_once():
    fast = weft.hybridize(lambda x, options: x * options.scale)
    with torch.no_grad(), overrides(whole="off"):
        torch.testing.assert_close(fast(torch.ones(3), SimpleNamespace(scale=2.0)), torch.full((3,), 2.0))
    assert (fast.rare.calls, len(fast.programs)) == (0, 1)


class Deciding(Decoder):
    def forward(self, ids, cache, mask=None):
        """A mask that hides nothing is left out, as transformers has it."""
        return super().forward(ids, cache, None if mask is None or mask.all() else mask)


def test_a_cache_grows_in_place_where_values_decide_too():
    torch.manual_seed(0)
    net, other = Deciding().eval(), Deciding().eval()
    other.load_state_dict(net.state_dict())
    with torch.no_grad(), overrides(whole="off"):
        fast = weft.hybridize(other)
        for hidden in (False, False, True):
            if hidden:
                plans = [one.guarded.program._forward().planned for one in fast.forward.varying]
            ours, theirs, ids = Cache(), Cache(), torch.randint(32, (2, 6))
            mask = torch.ones_like(ids)
            mask[0, 0] = not hidden
            assert generate(fast, ours, ids, 12, mask) == generate(net, theirs, ids, 12, mask)
            assert_alike(ours, theirs)
    # Else each call would copy the memory of all tokens that may come.
    assert 4 in [sum(len(region.replaced) for region in plan.regions) for plan in plans]


def test_what_somebody_kept_stays_what_it_was(nets):
    net, fast = nets
    with torch.no_grad():
        ours, theirs, ids = Cache(), Cache(), torch.randint(32, (1, 4))
        generate(fast, ours, ids, 4)
        generate(net, theirs, ids, 4)
        before = [tensor.clone() for tensor in tensors(theirs)]
        kept = tensors(ours)
        fork = Cache()
        for layer, source in zip(fork.layers, ours.layers, strict=True):
            layer.keys, layer.values, layer.is_initialized = source.keys, source.values, True
        one = generate(fast, ours, torch.tensor([[3]]), 4)
        other = generate(fast, fork, torch.tensor([[7]]), 4)
        for tensor, was in zip(kept, before, strict=True):
            torch.testing.assert_close(tensor, was)
        assert one == generate(net, theirs, torch.tensor([[3]]), 4)
        assert_alike(ours, theirs)
        assert other


def test_a_cache_that_is_cut_and_written_in_between_is_read_as_it_is(nets):
    net, fast = nets
    with torch.no_grad():
        caches = Cache(), Cache()
        ids = torch.randint(32, (1, 9))
        for model, cache in zip((fast, net), caches, strict=True):
            generate(model, cache, ids, 5)
            for layer in cache.layers:
                layer.keys = layer.keys[:, :, :-3]
                layer.values = layer.values[:, :, :-3]
            generate(model, cache, torch.tensor([[1]]), 3)
            for layer in cache.layers:
                layer.keys[:, :, 0] = 0.5
                layer.values.data[:, :, 1] = 0.25
            generate(model, cache, torch.tensor([[2]]), 3)
        assert_alike(*caches)


def test_not_a_number_of_an_earlier_text_is_not_seen_by_another(nets):
    net, fast = nets
    with torch.no_grad():
        for poisoned in (True, False):
            ours, theirs, ids = Cache(), Cache(), torch.randint(32, (1, 12 if poisoned else 4))
            for model, cache in ((fast, ours), (net, theirs)):
                generate(model, cache, ids, 3)
                if poisoned:
                    cache.layers[0].values[:, :, -2:] = torch.nan
                generate(model, cache, torch.tensor([[2]]), 3)
            assert_alike(ours, theirs)


def test_a_count_beside_a_cache_is_counted(nets):
    net, fast = nets
    with torch.no_grad():
        for _ in range(3):
            ours, theirs, ids = Counting(), Counting(), torch.randint(32, (1, 5))
            assert generate(fast, ours, ids, 12) == generate(net, theirs, ids, 12)
            assert ours.seen == theirs.seen == 16
            assert_alike(ours, theirs)


def test_functions_that_give_the_new_cache_back_run_one_program_for_all_lengths():
    def grow(x, past):
        k = torch.cat([past.k, x], dim=1)
        return SimpleNamespace(k=k, total=k.sum(1))

    fast = weft.hybridize(grow)
    with torch.no_grad():
        ours = theirs = SimpleNamespace(k=torch.ones(2, 4, 3), total=None)
        for _ in range(20):
            x = torch.randn(2, 1, 3)
            ours, theirs = fast(x, ours), grow(x, theirs)
            assert_alike(ours, theirs)
    assert len([*fast.varying]) <= 2


def test_a_count_that_is_as_long_as_a_cache_grows_with_it(nets):
    net, fast = nets
    with torch.no_grad():
        ours, theirs, ids = Counting(), Counting(), torch.randint(32, (1, 5))
        assert generate(fast, ours, ids, 12) == generate(net, theirs, ids, 12)
        assert ours.seen == theirs.seen == 16
        before = fast.forward.rare.calls
        ours, theirs = Counting(), Counting()
        assert generate(fast, ours, ids, 12) == generate(net, theirs, ids, 12)
        assert ours.seen == theirs.seen == 16
        assert fast.forward.rare.calls <= before + 1


def test_a_number_that_follows_from_sizes_is_that_of_each_call():
    @weft.hybridize
    def describe(x, held):
        held.length = x.shape[0] * 2 + 1
        return x + 1, x.shape[0]

    with torch.no_grad():
        for length in (3, 4, 5, 6, 9):
            held = SimpleNamespace(length=0)
            result, given = describe(torch.ones(length, 2), held)
            assert (result.shape[0], given, held.length) == (length, length, 2 * length + 1)
    assert len([*describe.varying]) == 1


def test_tensors_of_one_size_that_lie_otherwise_are_read_as_they_lie():
    @weft.hybridize
    def product(x, w):
        return x @ w + w.sum(0)

    w = torch.randn(4, 4)
    with torch.no_grad():
        for length in (3, 5, 7, 9):
            torch.testing.assert_close(product(torch.ones(length, 4), w), torch.ones(length, 4) @ w + w.sum(0))
        for length in (4, 6, 8):
            torch.testing.assert_close(
                product(torch.ones(length, 4), w.t()), torch.ones(length, 4) @ w.t() + w.t().sum(0)
            )


def test_a_constant_mask_beside_a_size_that_varies_is_read():
    hidden = torch.ones(6, 6).tril().bool()

    @weft.hybridize
    def masked(x):
        return torch.where(hidden, x, torch.zeros(()))

    with torch.no_grad():
        for rows in (2, 3, 4, 5):
            x = torch.randn(rows, 6, 6)
            torch.testing.assert_close(masked(x), torch.where(hidden, x, torch.zeros(())))
