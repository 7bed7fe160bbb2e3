"""Sums of gradients: where PyTorch's engine adds in place, the sum lies in memory as the first gradient does."""

import pytest
import torch
from tests.api.test_layouts import loose, reversed_order

import weft
from weft.config import overrides


def residual(x):
    return x + x.sin()


SUMS = {
    "two uses": lambda x: x.sin() + x.cos(),
    "three uses": lambda x: x.sin() * x.cos() + x,
    "the same tensor twice": lambda x: x * x,
    "a gradient that goes on to two": lambda x: x + x,
    "a view and a value": lambda x: x.transpose(0, -1).transpose(0, -1) * 3 + x * 2,
    "a gap from the mean": lambda x: x - x.mean(-1, keepdim=True),
    "an expanded gradient": lambda x: x * 2 + x.sum(1, keepdim=True),
    "a chain of residuals": lambda x: residual(residual(x)),
    "uses of a part": lambda x: x[:, :1] * x,
}
OF_SEVERAL_DIMENSIONS = ("uses of a part", "an expanded gradient")
SHAPES = [(1, 4, 3), (2, 1, 3), (2, 4, 1, 1), (1, 1, 3, 3), (1,)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("layout", [lambda x: x, reversed_order, lambda x: loose(x, 0)], ids=["rows", "back", "loose"])
def test_a_sum_of_gradients_has_eagers_strides(name, layout):
    function = SUMS[name]
    for shape in SHAPES:
        if len(shape) == 1 and name in OF_SEVERAL_DIMENSIONS:
            continue
        program = weft.hybridize(function)
        for other in (lambda g: g, reversed_order, lambda g: loose(g, 9)):
            found = []
            for call in (function, program):
                leaf = layout(torch.rand(shape, generator=torch.Generator().manual_seed(0))).requires_grad_()
                result = call(leaf)
                gradient = other(torch.rand(result.shape, generator=torch.Generator().manual_seed(1)))
                found.append(torch.autograd.grad(result, leaf, gradient)[0])
            expected, actual = found
            assert actual.stride() == expected.stride(), shape
            torch.testing.assert_close(actual, expected)


def test_a_sum_in_library_calls_has_eagers_strides():
    def function(x):
        return x.softmax(-1).cumsum(-1) - x.mean(-1, keepdim=True)

    x = reversed_order(torch.rand(2, 4, 1, 3))
    gradient = loose(reversed_order(torch.rand(2, 4, 1, 3)), 777)
    with overrides(codegen="library"):
        found = [
            torch.autograd.grad(call(leaf), leaf, gradient)[0].stride()
            for call, leaf in ((one, x.detach().requires_grad_()) for one in (function, weft.hybridize(function)))
        ]
    assert found[0] == found[1]
