"""Corrections of PyTorch's shape rules: strides of dimensions of one or no element are eager's."""

import pytest
import torch

import weft

CASES = {
    "a view that drops a dimension of one element": (
        lambda x: (x + 0).view(2, 1, 1, 4).permute(2, 0, 3, 1).view(1, 2, 4),
        (torch.ones(1, 2, 4),),
    ),
    "an empty product that broadcasts": (lambda x, y: x * y, (torch.ones(0, 1), torch.ones(1))),
    "a product of which one side has a dimension of one element": (
        lambda x: x * x.unsqueeze(-1).swapaxes(0, -1),
        (torch.ones(4, dtype=torch.int32),),
    ),
    "a row of a transposed matrix, twice changed": (lambda x: x[:1] * 2 + 1, (torch.ones(4, 3).t(),)),
    "a truth of two types, unsqueezed": (
        lambda x, z: torch.logical_or(z.double(), x).unsqueeze(-1),
        (torch.ones(4, 3).t(), torch.ones(4)),
    ),
    "an empty sum with a number that changes": (lambda x, y: x + y, (torch.ones(0, 1), 2.5)),
    "an einsum over a batch of one": (
        lambda x, y: torch.einsum("aij,ajk->aik", x, y),
        (torch.ones(1, 2, 3), torch.ones(1, 3, 4)),
    ),
    "the square of what has a stride of its own for a dimension of one element": (
        lambda x, y: (x[:, :, :, None] - y.permute(1, 2, 0)[:, :, None, :]).square(),
        (torch.ones(32, 1, 8), torch.ones(1, 32, 32).transpose(-1, 0)),
    ),
    "channels that are shuffled where they come last": (
        lambda x: torch.channel_shuffle(x, 2),
        (torch.ones(2, 4, 3, 5).contiguous(memory_format=torch.channels_last),),
    ),
    "a quotient that is rounded down, of which one side is repeated": (
        lambda x, y: torch.floor_divide(x.t(), y) * 2,
        (torch.ones(5, 10), torch.ones(10, 1)),
    ),
    "normal numbers of many means": (lambda x: torch.normal(x.t(), x.t()) * 2, (torch.ones(4, 3),)),
    "normal numbers of many deviations": (lambda x: torch.normal(0.5, x.t()) * 2, (torch.ones(4, 3),)),
    "numbers of events": (lambda x: torch.poisson(x.t()) * 2, (torch.ones(4, 3),)),
    "gamma numbers": (lambda x: torch.distributions.Gamma(x.t(), 2.0).sample() * 2, (torch.ones(4, 3),)),
    "slopes that are drawn": (lambda x: torch.rrelu(x.t(), training=True) * 2, (-torch.ones(4, 3),)),
    "rms_norm of nothing": (lambda x, w: torch.rms_norm(x, (1,), w), (torch.ones(0, 1), torch.ones(1))),
}


@pytest.mark.parametrize("name", CASES)
def test_the_strides_of_a_result_are_eagers(name):
    function, arguments = CASES[name]
    expected = function(*arguments)
    program = weft.hybridize(function)
    assert program(*arguments).stride() == expected.stride()
    assert program(*arguments).stride() == expected.stride()


def test_a_kernel_may_leave_out_what_its_rule_gives() -> None:
    norm = torch.nn.BatchNorm1d(4)
    x = torch.randn(4, 2).t()
    hybrid = weft.hybridize(lambda x: norm(x * 1.0), whole=True)
    norm.eval()
    expected = norm(x * 1.0)
    assert hybrid(x).stride() == expected.stride()
    norm.train()
    assert hybrid(x).stride() == norm(x * 1.0).stride()
