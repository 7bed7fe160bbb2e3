"""Models of transformers generate the tokens that eager does, by a few programs, with every kind of cache."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import weft
from weft.config import overrides

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def nets() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=None,
        pad_token_id=0,
    )
    net = transformers.LlamaForCausalLM(config).eval()
    net.generation_config.eos_token_id = None
    net.generation_config.pad_token_id = 0
    return net, weft.hybridize(copy.deepcopy(net))


WAYS: dict[str, dict[str, Any]] = {
    "a cache that grows": {"do_sample": False},
    "a cache that is written in place": {"do_sample": False, "cache_implementation": "static"},
    "beams": {"do_sample": False, "num_beams": 4},
    "samples": {"do_sample": True, "top_k": 8},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("padded", [False, True])
def test_tokens_are_those_of_eager(nets: Any, way: str, padded: bool) -> None:
    net, fast = nets
    ids = torch.randint(2, 64, (2, 6))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :3] = 0
    for _ in range(2):
        found = []
        for model in (fast, net):
            torch.manual_seed(1)
            with overrides(whole="off"):  # masks are looked at: whether they hide something
                found.append(model.generate(ids, attention_mask=mask, max_new_tokens=10, **WAYS[way]).tolist())
        assert found[0] == found[1]
    assert "by Python" not in weft.explain(fast)
