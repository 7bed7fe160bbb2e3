"""Layouts: strides of results and gradients are eager's, dimensions of one element included, whatever comes before."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import weft
from weft.config import overrides

CODEGENS = ("native", "library")
RELATIVE, ABSOLUTE = 2e-4, 2e-5


def by_pixels(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def loose(x: Tensor, step: int) -> Tensor:
    """Give dimensions of one element another stride."""
    return x.as_strided(
        x.shape, [step if size == 1 else stride for size, stride in zip(x.shape, x.stride(), strict=True)]
    )


def reversed_order(x: Tensor) -> Tensor:
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def norm(channels: int = 4, rank: int = 2) -> nn.Module:
    return (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[rank - 1](channels)


def check(net: nn.Module, x: Tensor, gradients: list[Callable[[Tensor], Tensor]], wrap=weft.hybridize) -> None:
    """Compare values, gradients and all strides, call after call, with eager's."""
    eager, ours = copy.deepcopy(net), copy.deepcopy(net)
    function = wrap(ours)
    for number, layout in enumerate(gradients):
        found = []
        for one, call in ((eager, eager), (ours, function)):
            leaf = x.detach().requires_grad_()
            result = call(leaf)
            gradient = layout(random(number + 2, *result.shape)[0])
            found.append((result, *torch.autograd.grad(result, [leaf, *one.parameters()], gradient)))
        for place, (expected, actual) in enumerate(zip(*found, strict=True)):
            assert actual.stride() == expected.stride(), (number, place, actual.shape)
            torch.testing.assert_close(actual, expected, rtol=RELATIVE, atol=ABSOLUTE)


class Then(nn.Module):
    """A module whose result is given to a function."""

    def __init__(self, inner: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.inner(x))


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def as_it_is(x: Tensor) -> Tensor:
    return x


def tokens(y: Tensor) -> Tensor:
    return y.flatten(2).transpose(1, 2)


def tokens_first(y: Tensor) -> Tensor:
    return y.flatten(2).permute(2, 0, 1)


CASES = {
    # the scripts that showed it
    "batch norm of one image, as tokens": lambda: (Then(norm(), tokens), random(1, 4, 3, 3)),
    "instance norm of two images, tokens first": lambda: (
        Then(nn.InstanceNorm2d(4), tokens_first),
        random(2, 4, 3, 3),
    ),
    "a convolution of one pixel of an image by pixels": lambda: (
        Then(nn.Conv2d(40, 16, 1), lambda y: y**2),
        by_pixels(random(1, 40, 8, 8)),
    ),
    # norms
    "batch norm in evaluation of one image, as tokens": lambda: (Then(norm().eval(), tokens), random(1, 4, 3, 3)),
    "batch norm of one image by pixels with a loose batch": lambda: (norm(), loose(by_pixels(random(1, 4, 3, 3)), 4)),
    "batch norm of one image whose batch is far": lambda: (Then(norm(), tokens), loose(random(1, 4, 3, 3), 999)),
    "batch norm of one volume, as tokens": lambda: (Then(norm(rank=3), tokens), random(1, 4, 2, 3, 2)),
    "batch norm of one channel": lambda: (Then(norm(1), tokens), random(4, 1, 3, 3)),
    "batch norm of images of one row": lambda: (Then(norm(), tokens), random(2, 4, 1, 5)),
    "batch norm of images of one column, reversed": lambda: (norm(), reversed_order(random(2, 4, 5, 1))),
    "batch norm of pixels": lambda: (Then(norm(), lambda y: y.flatten(1).t()), random(5, 4, 1, 1)),
    "batch norm of one sequence": lambda: (Then(norm(rank=1), lambda y: y.transpose(1, 2)), random(1, 4, 6)),
    "batch norm in another order": lambda: (norm(), reversed_order(random(2, 4, 3, 5))),
    "instance norm with parameters of one volume": lambda: (
        Then(nn.InstanceNorm3d(2, affine=True), tokens_first),
        random(1, 2, 2, 3, 2),
    ),
    "group norm of one image, as tokens": lambda: (Then(nn.GroupNorm(2, 4), tokens), random(1, 4, 3, 3)),
    "layer norm of one token in another order": lambda: (nn.LayerNorm(4), reversed_order(random(2, 1, 4))),
    "rms norm of images by pixels": lambda: (
        Then(nn.RMSNorm(4), lambda y: y.movedim(-1, 1)),
        by_pixels(random(2, 4, 1, 3)).movedim(1, -1),
    ),
    # convolutions
    "a convolution to one channel, by pixels": lambda: (
        nn.Conv2d(3, 1, 3, padding=1),
        by_pixels(random(1, 3, 5, 5)),
    ),
    "a depthwise convolution by pixels": lambda: (
        nn.Conv2d(4, 4, 3, groups=4, padding=1),
        by_pixels(random(1, 4, 5, 5)),
    ),
    "a transposed convolution of one pixel": lambda: (nn.ConvTranspose2d(4, 6, 1, groups=2), random(1, 4, 1, 1)),
    "a convolution of a column of a sequence": lambda: (nn.Conv1d(4, 6, 1), reversed_order(random(2, 4, 1))),
    # pools and upsampling
    "max pooling of one channel by pixels": lambda: (nn.MaxPool2d(2), by_pixels(random(2, 1, 4, 4))),
    "mean of one image by pixels": lambda: (nn.AdaptiveAvgPool2d(1), by_pixels(random(1, 4, 3, 3))),
    "pooling in one dimension of one channel": lambda: (nn.AvgPool1d(2), reversed_order(random(2, 1, 6))),
    "bicubic upsampling of one row": lambda: (
        nn.Upsample(scale_factor=2, mode="bicubic"),
        by_pixels(random(1, 2, 1, 4)),
    ),
    # elements
    "selu of a gradient in another order": lambda: (Then(nn.SELU(), tokens_first), random(1, 4, 4, 3)),
    "silu of one column, reversed": lambda: (Then(nn.SiLU(), lambda y: y * 2), reversed_order(random(1, 4, 4, 1))),
    "softsign, whose gradients meet": lambda: (nn.Softsign(), reversed_order(random(2, 4, 1, 1))),
    "prelu of one channel": lambda: (Then(nn.PReLU(4), tokens), loose(random(2, 4, 1, 3), 1)),
    "mish of one image by pixels": lambda: (nn.Mish(), by_pixels(random(1, 4, 3, 3))),
    "softplus, then a sum that is expanded": lambda: (
        Then(nn.Softplus(), lambda y: y.sum(1, keepdim=True).expand_as(y)),
        random(1, 1, 4, 3),
    ),
    "a gap from the mean, flipped": lambda: (
        Of(lambda x: (x - x.mean((2, 3), keepdim=True)).flip(-1)),
        loose(random(1, 4, 4, 3), 1000),
    ),
    "a residual around a norm": lambda: (
        Of(lambda x: x + functional.group_norm(x, 1)),
        reversed_order(random(2, 4, 1, 3)),
    ),
    "a softmax of columns of one": lambda: (Of(lambda x: x.softmax(-1)), reversed_order(random(2, 3, 1, 1))),
    "a running sum over one channel": lambda: (Of(lambda x: x.cumsum(1)), loose(random(2, 1, 3, 3), 5)),
    "columns of windows": lambda: (Then(nn.Unfold(2), lambda y: y.transpose(1, 2)), random(1, 2, 3, 3)),
    "shuffled pixels of one channel": lambda: (nn.PixelShuffle(2), by_pixels(random(1, 4, 1, 3))),
    "views of one element between": lambda: (
        Of(lambda x: (x.unsqueeze(0).transpose(0, 2).squeeze(2) * 2).narrow(0, 0, 1).movedim(0, -1)),
        random(3, 1, 4),
    ),
    "attention of one head of one image": lambda: (
        Of(lambda x: functional.scaled_dot_product_attention(x, x, x).transpose(1, 2).flatten(2)),
        random(1, 4, 1, 4).transpose(1, 2),
    ),
}
GRADIENTS: list[Callable[[Tensor], Tensor]] = [
    as_it_is,
    lambda g: g.flatten()[0].expand(g.shape),
    reversed_order,
    lambda g: loose(g, 0),
    lambda g: loose(reversed_order(g), 777),
]


@pytest.mark.slow
@pytest.mark.parametrize("codegen", CODEGENS)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_lie_in_memory_as_eagers_do(name, codegen):
    torch.manual_seed(0)
    net, x = CASES[name]()
    with overrides(codegen=codegen):
        check(net, x, GRADIENTS)


@pytest.mark.parametrize("codegen", CODEGENS)
@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (2, 3, 8, 8)])
def test_a_training_step_takes_the_layouts_of_eager(shape, codegen):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8))
    eager = copy.deepcopy(net)
    x, classes = random(*shape), torch.arange(4 * shape[0]) % 8

    def loss_of(y: Tensor, classes: Tensor) -> Tensor:
        return functional.cross_entropy(tokens(y).reshape(-1, 8), classes)

    ours = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    theirs = torch.optim.SGD(eager.parameters(), 0.1, momentum=0.9)
    with overrides(codegen=codegen):
        step = weft.step(net, loss_of, ours)
        for _ in range(3):
            step(x, classes)
            theirs.zero_grad()
            loss_of(eager(x), classes).backward()
            theirs.step()
    for one, other in zip(net.parameters(), eager.parameters(), strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=RELATIVE, atol=ABSOLUTE)
        torch.testing.assert_close(ours.state[one]["momentum_buffer"], theirs.state[other]["momentum_buffer"])


def test_torch_compile_gives_the_gradients_of_eager_for_one_image():
    torch.manual_seed(0)
    check(Then(norm(), tokens), random(1, 4, 3, 3), GRADIENTS[:2], lambda net: torch.compile(net, backend="weft"))


def test_lazy_code_gives_the_gradients_of_eager_for_one_image():
    torch.manual_seed(0)
    net, x, factor = Then(norm(), tokens), random(1, 4, 3, 3), random(1, 9, 4)
    eager = copy.deepcopy(net)
    (eager(x) * factor).sum().backward()
    for _ in range(3):
        net.zero_grad()
        with weft.lazy():
            (net(x) * factor).sum().backward()
        weft.wait([parameter.grad for parameter in net.parameters()])
        for one, other in zip(net.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=RELATIVE, atol=ABSOLUTE)
            assert one.grad.stride() == other.grad.stride()


def test_an_argument_with_another_stride_of_one_element_is_told_apart():
    function = weft.hybridize(lambda x: x * 2)
    for step in (12, 1, 0, 777):
        x = loose(random(1, 4, 3), step)
        assert function(x).stride() == (x * 2).stride()
        y = loose(by_pixels(random(1, 4, 3, 3)), step)
        assert function(y).stride() == (y * 2).stride()
