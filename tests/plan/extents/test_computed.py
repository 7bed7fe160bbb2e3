"""What kernels compute for calls of small sizes is known, and tiles beyond a call's images are not asked to run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import weft
from weft.api.hybrid import Hybrid
from weft.plan.extents.axes import tiles_of_first
from weft.plan.form.plan import KernelCall
from weft.plan.kernels.gemm import GemmKernel


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.LayerNorm(32)).eval()


def general(net: nn.Module, *shapes: tuple[int, ...]) -> Hybrid:
    found = weft.hybridize(net.forward)
    with torch.no_grad():
        for shape in shapes:
            found(torch.randn(shape))
    return found


def test_small_calls_need_all_that_kernels_compute_which_end_where_calls_do() -> None:
    [program] = general(layers(), (8, 60, 32), (6, 50, 32)).varying
    tops = tuple(program.range.tops[place][at] for place, at in program.places)
    for sizes in ((2, 3), (8, 60), (3, 100), tops):
        assert program.guarded.program.share_for(sizes, tops) > 0.75


@pytest.mark.usefixtures("no_kept_plans")
def test_small_calls_need_little_of_kernels_that_compute_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.plan.extents.needed._Needs.found", lambda self: list(self.plan.calls))
    [program] = general(layers(), (8, 60, 32), (6, 50, 32)).varying
    tops = tuple(program.range.tops[place][at] for place, at in program.places)
    assert program.range.tops[0] == (16, 64, 32), "one for sizes far beyond would take longer still"
    assert program.guarded.program.share_for((2, 3), tops) < 0.1
    assert program.guarded.program.share_for(tops, tops) == 1


def test_one_program_takes_sizes_well_beyond_those_that_came_and_the_next_all_of_its_sizes() -> None:
    net = general(layers(), (2, 20, 32), (3, 24, 32), (9, 30, 32), (15, 60, 32), (2, 5, 32))
    assert [one.range.tops[0] for one in net.varying] == [(16, 64, 32)]
    with torch.no_grad():
        net(torch.randn(3, 70, 32))
    assert [one.range.tops[0] for one in net.varying] == [(16, 64, 32), (16, 256, 32)]


def test_tiles_of_products_follow_each_other_by_texts() -> None:
    [program] = general(layers(), (8, 60, 32), (6, 50, 32)).varying
    calls: list[KernelCall] = [call for plan in program.guarded.program.plan.regions for call in plan.calls]
    products = [call for call in calls if type(call.kernel) is GemmKernel]
    assert products
    for call in products:
        count = tiles_of_first(call)
        assert count is not None
        assert call.kernel.tile_count == count * program.range.tops[0][0]
