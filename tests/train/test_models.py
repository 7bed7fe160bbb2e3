"""The chapter's networks have its sizes, and run hybridized as they do imperatively."""

from __future__ import annotations

import pytest
import torch

import weft

SIZES = {
    "mlp": (weft.models.mlp, (1, 512), (1, 2), 164_482),
    "lenet": (weft.models.LeNet, (2, 1, 28, 28), (2, 10), 129_068),
    "resnet18": (weft.models.resnet18, (2, 1, 28, 28), (2, 10), 11_175_818),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_a_network_has_the_sizes_of_the_chapter(name: str) -> None:
    make, given, result, parameters = SIZES[name]
    net, x = make(), torch.randn(given)
    assert sum(parameter.numel() for parameter in net.parameters()) == parameters
    with torch.no_grad():
        expected = net.eval()(x)
        assert expected.shape == result
        torch.testing.assert_close(weft.hybridize(net)(x), expected, rtol=1e-3, atol=1e-4)
