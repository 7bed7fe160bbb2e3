"""The places that are set in a mask are those that PyTorch finds, in the same order and the same memory."""

import pytest
import torch

from weft.runtime import found_places
from weft.runtime.found_places import nonzero

SHAPES = [(0,), (1,), (8,), (63,), (1000,), (0, 3), (3, 0), (1, 1), (7, 9), (64, 33), (5, 100), (3, 4, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_masks_have_the_places_that_pytorch_finds(
    shape: tuple[int, ...], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found_places, "WORTH", 0)
    generator = torch.Generator().manual_seed(3)
    mask = torch.rand(shape, generator=generator) < share
    for given in (mask, mask.to(torch.uint8) * 7):
        ours, theirs = nonzero(given), torch.nonzero(given)
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()


def test_masks_that_do_not_lie_in_rows_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_places, "WORTH", 0)
    mask = (torch.arange(12).reshape(3, 4) % 3 == 0).t()
    assert torch.equal(nonzero(mask), torch.nonzero(mask))
