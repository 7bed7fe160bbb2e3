"""bench.unseen: what it calls a difference, how it makes models small, and a model that it tries from end to end."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import torch
from bench import unseen
from bench.models import unseen as models
from torch import nn


def test_roundings_are_no_difference_and_all_else_is() -> None:
    eager = {"a": torch.randn(4, 3), "b": (torch.arange(3), 2)}
    true = {"a": eager["a"].double(), "b": eager["b"]}
    rounded = {**eager, "a": eager["a"] * (1 + 2e-7)}
    assert not list(unseen.differences(eager, rounded, true))
    others: list[tuple[dict[str, Any], str]] = [
        ({**eager, "a": eager["a"] * 1.001}, "differs by"),
        ({**eager, "a": eager["a"].t().contiguous().t()}, "stride"),
        ({**eager, "a": eager["a"].double()}, "dtype"),
        ({**eager, "b": (torch.tensor([0, 1, 1]), 2)}, "whole numbers"),
        ({**eager, "b": (torch.arange(3), 3)}, "is 3"),
        ({**eager, "b": [torch.arange(3), 2]}, "is 'list'"),
        ({"a": eager["a"]}, "structure"),
        ({**eager, "a": eager["a"].where(eager["a"] < eager["a"].max(), torch.nan)}, "not finite"),
    ]
    for ours, said in others:
        assert said in " ".join(unseen.differences(eager, ours, true)), said


def test_sizes_of_configurations_are_made_small_by_their_names() -> None:
    inner = argparse.Namespace(hidden_size=768, to_dict=dict)
    config = argparse.Namespace(
        num_hidden_layers=12, n_head=8, vocab_size=50_000, eos_token_id=50_256, layer_types=["full"] * 12, text=inner
    )
    config.use_cache = True
    models._shrink(config)
    assert (config.num_hidden_layers, config.n_head, config.vocab_size, config.eos_token_id) == (2, 4, 1000, 3)
    assert config.layer_types == ["full"] * 2
    assert inner.hidden_size == 64
    assert config.use_cache is True


@pytest.mark.slow
def test_a_model_is_tried_from_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(_: str) -> models.Made:
        net = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.2), nn.GELU(), nn.Linear(5, 2))
        return net, lambda turn: {"input": torch.randn(models.BATCHES[turn], 6)}

    monkeypatch.setitem(models.MAKERS, "own", small)
    options = argparse.Namespace(stages=list(unseen.STAGES), seconds=0.01, every=5, offset=0)
    rows: list[dict[str, Any]] = []
    unseen.measure("own:small", options, rows.append)
    assert [row["stage"] for row in rows] == list(unseen.STAGES)
    for row in rows:
        assert not row.get("failed"), row
        assert not row["wrong"], row
    page = unseen.page(rows, options)
    assert "| own:small |" in page
    assert "WRONG" not in page
    monkeypatch.setitem(models.MAKERS, "own", lambda _: 1 / 0)
    unseen.measure("own:none", options, rows.append)
    assert "division by zero" in rows[-1]["not_made"]
    assert "own:none" in unseen.page(rows, options)
