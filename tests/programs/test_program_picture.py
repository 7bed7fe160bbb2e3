"""A program shows itself in a notebook, and its plan and a measured call become pictures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import weft
from weft.document.blocks import Document, Heading, Paragraph, Picture
from weft.document.html import fragment
from weft.plan.memory.arena import bytes_in_use
from weft.programs import picture as program_picture
from weft.programs.picture import program_blocks


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([tower(x) for tower in self.towers]).sum(0)


def program() -> weft.programs.program.Program:
    with torch.no_grad():
        return weft.program(Towers(), torch.randn(16, 32))


def test_a_notebook_is_shown_the_graph_the_lanes_and_the_text() -> None:
    shown = program()._repr_html_()
    assert "data:image/svg+xml;base64," in shown
    assert "graph Towers" in shown
    assert "pieces of work" in shown
    assert "<script" not in shown


def test_a_report_has_the_call_the_lanes_and_the_memory() -> None:
    made = program()
    blocks = program_blocks(made.plan.regions, made.timeline())
    assert [block.text for block in blocks if isinstance(block, Heading)] == [
        "One call, lane by lane",
        "The program as a graph, by lanes",
        "Memory over one call",
    ]
    (plan,) = made.plan.regions
    assert f"{len(plan.calls)} kernels" in fragment(Document(tuple(blocks)))
    assert "lane 0 |" in str(Document(tuple(blocks)))


def test_memory_in_use_never_exceeds_the_arena_of_one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_THREADS", "1")
    with weft.config.overrides(threads=1):
        (plan,) = program().plan.regions
    assert 0 < max(bytes_in_use(plan)) <= plan.arena_bytes


def test_a_program_of_one_kernel_has_nothing_between_and_one_too_long_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with torch.no_grad():
        made = weft.program(lambda x: x + 1, torch.ones(4))
    texts = [block.text for block in program_blocks(made.plan.regions, made.timeline()) if isinstance(block, Paragraph)]
    assert any("nothing lies between" in text for text in texts)
    monkeypatch.setattr(program_picture, "MOST_PIECES", 0)
    monkeypatch.setattr(program_picture, "MOST_VALUES", 0)
    shown = made._repr_html_()
    assert "too many to draw" in shown
    assert "data:image" not in shown


def test_what_runs_by_pytorch_alone_has_a_timeline_and_no_lanes() -> None:
    with weft.config.overrides(codegen="library"):
        made = weft.program(torch.relu, torch.ones(3))
        blocks = program_blocks(made.plan.regions, made.timeline())
    assert len([block for block in blocks if isinstance(block, Picture)]) == 1
