"""Modules behind layouts, on tensors with dimensions of one element -> the sections over layouts."""

import functools
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from tests.conformance.cases import Contestant, Outcome, Player, Rule, Section, Trial
from torch import Tensor, nn
from torch.nn import functional

import weft

SEED = 1234
BOTH = ("library", "native")
RATE = 0.1

Build = Callable[[int], nn.Module]
Layout = Callable[[Tensor], Tensor]


class Attention(nn.Module):
    """Attention of all pixels to one another, as a model of images and tokens has it; the channels are the heads'."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels)

    def forward(self, x: Tensor) -> Tensor:
        """Give an image of what each pixel attends to."""
        tokens = x.flatten(2).transpose(1, 2)
        parts = self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return found.transpose(1, 2).flatten(2).transpose(1, 2).reshape(x.shape)


class CrossCovariance(nn.Module):
    """Attention of channels to one another, over normalised tokens, as XCiT has it."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Give an image of what each channel attends to."""
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 4, 1).unbind(0)
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        found = (q @ k.transpose(-2, -1) * self.temperature).softmax(-1) @ v
        return found.permute(0, 3, 1, 2).flatten(2).transpose(1, 2).reshape(x.shape)


class OverChannels(nn.Module):
    """A module of tokens, applied to images: their channels are put last for it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Give an image of what the module makes of each pixel's channels."""
        return self.inner(x.movedim(1, -1)).movedim(-1, 1)


class Lambda(nn.Module):
    """A function as a module."""

    def __init__(self, function: Layout) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Call the function."""
        return self.function(x)


class BilinearOfPixels(nn.Module):
    """Bilinear form of each pixel's channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Bilinear(channels, channels, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Call it."""
        tokens = x.movedim(1, -1)
        return self.inner(tokens, tokens).movedim(-1, 1)


class Residual(nn.Module):
    """A module that its input is added to."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Call it."""
        return x + self.inner(x)


class Squeezed(nn.Module):
    """Channels weighed by what the mean of each says, as EfficientNet has it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.gate = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Call it."""
        return x * self.gate(self.norm(x).mean((2, 3), keepdim=True)).sigmoid()


def two(channels: int) -> int:
    """Give two groups where the channels divide by two, else one."""
    return 2 if channels % 2 == 0 else 1


ACTIVATIONS: tuple[type[nn.Module], ...] = (
    *(nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid),
    *(nn.Mish, nn.PReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign),
    *(nn.Tanh, nn.Tanhshrink),
)

OF_ANY: Mapping[str, Build] = MappingProxyType(
    {
        **{kind.__name__: functools.partial(lambda kind, _channels: kind(), kind) for kind in ACTIVATIONS},
        "GroupNorm": lambda channels: nn.GroupNorm(two(channels), channels),
        "LayerNorm": lambda channels: OverChannels(nn.LayerNorm(channels)),
        "RMSNorm": lambda channels: OverChannels(nn.RMSNorm(channels)),
        "LocalResponseNorm": lambda _channels: nn.LocalResponseNorm(2),
        "Linear": lambda channels: OverChannels(nn.Linear(channels, 3)),
        "Linear to one": lambda channels: OverChannels(nn.Linear(channels, 1)),
        "PReLU of channels": nn.PReLU,
        "GLU": lambda _channels: Lambda(lambda x: functional.glu(torch.cat([x, x], 1), 1)),
        "Softmax of channels": lambda _channels: nn.Softmax(1),
        "LogSoftmax of columns": lambda _channels: nn.LogSoftmax(-1),
        "Dropout": lambda _channels: nn.Dropout().eval(),
        "Threshold": lambda _channels: nn.Threshold(0.1, 2.0),
        "Bilinear": BilinearOfPixels,
        "normalize": lambda _channels: Lambda(lambda x: functional.normalize(x, dim=1)),
        "cumsum": lambda _channels: Lambda(lambda x: x.cumsum(1)),
        "mean of all": lambda _channels: Lambda(lambda x: x - x.mean(tuple(range(2, x.dim())), keepdim=True)),
        "residual": lambda channels: Residual(nn.GroupNorm(1, channels)),
    }
)


def _of(name: str, dimensions: int) -> Callable[..., nn.Module]:
    found: Callable[..., nn.Module] = getattr(nn, f"{name}{dimensions}d")
    return found


def of_dimensions(dimensions: int) -> dict[str, Build]:
    """List the modules that are there for each number of dimensions beside batch and channels."""
    conv, transposed = _of("Conv", dimensions), _of("ConvTranspose", dimensions)
    batch_norm, instance_norm = _of("BatchNorm", dimensions), _of("InstanceNorm", dimensions)
    found: dict[str, Build] = {
        "BatchNorm": batch_norm,
        "BatchNorm in evaluation": lambda channels: batch_norm(channels).eval(),
        "BatchNorm without parameters": lambda channels: batch_norm(channels, affine=False, track_running_stats=False),
        "InstanceNorm": instance_norm,
        "InstanceNorm with parameters": lambda channels: instance_norm(channels, affine=True),
        "Conv": lambda channels: conv(channels, 6, 3, padding=1),
        "Conv of one": lambda channels: conv(channels, 6, 1),
        "Conv to one": lambda channels: conv(channels, 1, 3, padding=1),
        "Conv grouped": lambda channels: conv(channels, 6, 3, padding=1, groups=two(channels)),
        "Conv depthwise": lambda channels: conv(channels, channels, 3, padding=1, groups=channels),
        "Conv patches": lambda channels: nn.Sequential(conv(channels, 6, 2, 2, padding=1), batch_norm(6)),
        "ConvTranspose": lambda channels: transposed(channels, 6, 2, 2),
        "ConvTranspose of one": lambda channels: transposed(channels, 6, 1, groups=two(channels)),
        "MaxPool": lambda _channels: _of("MaxPool", dimensions)(3, 2, 1),
        "AvgPool": lambda _channels: _of("AvgPool", dimensions)(3, 2, 1),
        "AdaptiveAvgPool": lambda _channels: _of("AdaptiveAvgPool", dimensions)(2),
        "AdaptiveAvgPool to one": lambda _channels: _of("AdaptiveAvgPool", dimensions)(1),
        "AdaptiveMaxPool": lambda _channels: _of("AdaptiveMaxPool", dimensions)(1),
        "LPPool": lambda _channels: nn.Sequential(nn.Softplus(), _of("LPPool", dimensions)(2, 1)),
        "Upsample": lambda _channels: nn.Upsample(scale_factor=2),
    }
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[dimensions]
    found["Upsample smooth"] = lambda _channels: nn.Upsample(scale_factor=2, mode=linear)
    return found


OF_IMAGES: Mapping[str, Build] = MappingProxyType(
    {
        "FractionalMaxPool2d": lambda _channels: Lambda(_fractional),
        "Upsample bicubic": lambda _channels: nn.Upsample(scale_factor=2, mode="bicubic"),
        "PixelShuffle": lambda channels: nn.Sequential(nn.Conv2d(channels, 4, 1), nn.PixelShuffle(2)),
        "PixelUnshuffle": lambda _channels: nn.Sequential(nn.Upsample(scale_factor=2), nn.PixelUnshuffle(2)),
        "Unfold": lambda _channels: nn.Unfold(3, padding=1),
        "Fold": lambda _channels: Lambda(_folded),
        "ChannelShuffle": lambda channels: nn.ChannelShuffle(two(channels)),
        "ReflectionPad2d": lambda _channels: nn.ZeroPad2d(1),
        "Attention": lambda channels: Attention(channels, two(channels)),
        "Attention of one head": lambda channels: Attention(channels, 1),
        "CrossCovariance": lambda channels: CrossCovariance(channels, two(channels)),
        "patches of XCiT": lambda channels: nn.Sequential(
            nn.Conv2d(channels, 6, 3, padding=1), nn.BatchNorm2d(6), nn.GELU(), CrossCovariance(6, 2)
        ),
        "squeezed": Squeezed,
    }
)


def _fractional(x: Tensor) -> Tensor:
    samples = torch.full((x.shape[0], x.shape[1], 2), 0.3)
    return functional.fractional_max_pool2d(x, 1, output_size=1, _random_samples=samples)


def _folded(x: Tensor) -> Tensor:
    return functional.fold(functional.unfold(x, 3, padding=1), x.shape[2:], 3, padding=1)


MODULES: Mapping[str, tuple[int, Build]] = MappingProxyType(
    {
        f"{name} {dimensions}d": (dimensions, build)
        for dimensions in (1, 2, 3)
        for name, build in of_dimensions(dimensions).items()
    }
    | {name: (2, build) for name, build in (*OF_ANY.items(), *OF_IMAGES.items())}
)


def last(x: Tensor) -> Tensor:
    """Lay channels out last, as `channels_last` does for every number of dimensions."""
    order = (0, *range(2, x.dim()), 1)
    back = (0, x.dim() - 1, *range(1, x.dim() - 1))
    return x.permute(order).contiguous().permute(back)


def _as_rows(x: Tensor) -> Tensor:
    whole = x.contiguous()
    strides = [math.prod(whole.shape[place + 1 :]) for place in range(x.dim())]
    return whole.as_strided(whole.shape, strides)


LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "as it is": lambda y: y,
        "flatten": lambda y: y.flatten(2),
        "tokens": lambda y: y.flatten(2).transpose(1, 2),
        "tokens first": lambda y: y.flatten(2).permute(2, 0, 1),
        "transpose": lambda y: y.transpose(0, -1),
        "permute": lambda y: y.permute(*reversed(range(y.dim()))),
        "movedim": lambda y: y.movedim(1, -1),
        "expand": lambda y: y.unsqueeze(0).expand(2, *y.shape),
        "expand one": lambda y: y[:, :1].expand(-1, 3, *[-1] * (y.dim() - 2)).sum(-1),
        "flip": lambda y: y.flip(-1),
        "last": lambda y: last(y) * 2,
        "slice": lambda y: y[..., :1],
        "step": lambda y: y[..., ::2],
        "squeeze": lambda y: y.unsqueeze(1).squeeze(0),
        "narrow": lambda y: y.narrow(1, 0, 1) * 2,
        "as_strided": _as_rows,
        "unfold": lambda y: y.unfold(-1, 1, 1),
        "stack": lambda y: torch.stack([y, y.flip(0)], 1).transpose(0, 1),
        "reshape": lambda y: y.movedim(1, -1).reshape(y.shape[0], -1),
        "select": lambda y: y[0].unsqueeze(0),
        "rows": lambda y: y.transpose(1, 2).flatten(2).permute(1, 0, 2),
        "sum": lambda y: y.sum(1, keepdim=True).expand_as(y),
    }
)


def _loose(x: Tensor, step: int) -> Tensor:
    """Give dimensions of one element another stride."""
    strides = [step if size == 1 else stride for size, stride in zip(x.shape, x.stride(), strict=True)]
    return x.as_strided(x.shape, strides)


GIVEN: Mapping[str, Layout] = MappingProxyType(
    {
        "rows": lambda x: x,
        "last": last,
        "loose": lambda x: _loose(x, 1),
        "loose and last": lambda x: _loose(last(x), 1),
        "far": lambda x: _loose(x, 1000),
        "reversed": lambda x: x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim()))),
    }
)
GRADIENTS: tuple[Layout, ...] = (
    lambda g: g,
    lambda g: g.flatten()[0].expand(g.shape),
    GIVEN["reversed"],
    lambda g: last(g) if g.dim() > 1 else g,
    lambda g: _loose(g, 0),
    lambda g: _loose(GIVEN["reversed"](g), 777),
)


def shapes(dimensions: int) -> list[tuple[int, ...]]:
    """List sizes with one element in each position, and in several."""
    sizes = (4, 3, 5)[:dimensions] if dimensions > 1 else (6,)
    ones = (1,) * dimensions
    return [
        (1, 4, *sizes),
        (2, 4, *sizes),
        (2, 1, *sizes),
        (1, 1, *sizes),
        (2, 4, 1, *sizes[1:]),
        (2, 4, *sizes[:-1], 1),
        (1, 4, *sizes[:-1], 1),
        (2, 4, *ones),
        (1, 4, *ones),
    ]


@dataclass(frozen=True)
class Case:
    """One module behind one layout, given a tensor of some sizes in some layout."""

    module: str
    layout: str
    shape: tuple[int, ...]
    given: str

    @property
    def seed(self) -> int:
        """The same number in every process."""
        return zlib.crc32(repr((self.module, self.layout, self.shape, self.given)).encode())

    def net(self) -> nn.Module:
        """Build the module from the fixed seed."""
        torch.manual_seed(SEED)
        _, build = MODULES[self.module]
        return Behind(build(self.shape[1]), LAYOUTS[self.layout])

    def input(self) -> Tensor:
        """Make the tensor that is given."""
        generator = torch.Generator().manual_seed(self.seed)
        return GIVEN[self.given](torch.randn(self.shape, generator=generator))


class Behind(nn.Module):
    """A module whose result is given in another layout."""

    def __init__(self, inner: nn.Module, layout: Layout) -> None:
        super().__init__()
        self.inner = inner
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        """Give what the module gives in that layout."""
        return self.layout(self.inner(x))


def cases(module: str, layout: str) -> list[Case]:
    """List some sizes and layouts of the input for a module and a layout, others for each of them."""
    every = [Case(module, layout, shape, given) for given in GIVEN for shape in shapes(MODULES[module][0])]
    start = zlib.crc32(f"{module} {layout}".encode())
    others = [every[(start + 17 * number) % len(every)] for number in range(CASES - 1)]
    return list(dict.fromkeys([every[0], *others]))


CASES = 3  # of each module behind each layout


def entries() -> list[str]:
    """Name the layouts."""
    return list(LAYOUTS)


def trials(entry: str) -> list[Trial]:
    """Make the trials of a layout: values and gradients, which come in another layout at each call."""
    return [gradient_trial(case) for module in MODULES for case in cases(module, entry)]


def gradient_trial(case: Case) -> Trial:
    """Make the trial of one case."""

    def start(contestant: Contestant, dtype: torch.dtype = torch.float32) -> Player:
        net = case.net().to(dtype)
        wrapped = contestant(net)

        def player(number: int) -> Outcome:
            net.zero_grad()
            x = case.input().to(dtype).requires_grad_()
            return played(wrapped, net, x, number)

        return player

    return Trial(start, Rule.CLOSE, calls=len(GRADIENTS), gradient_strides=True)


def played(function: Callable[..., Tensor], net: nn.Module, x: Tensor, number: int) -> Outcome:
    """Call a net and send back a gradient in the layout of this number."""
    error, result, of_input = None, None, None
    torch.manual_seed(SEED)
    try:
        result = function(x)
        generator = torch.Generator().manual_seed(SEED + number)
        gradient = GRADIENTS[number](torch.randn(result.shape, generator=generator).to(result.dtype))
        parameters = tuple(net.parameters())
        of_input, *_ = torch.autograd.grad(result, [x, *parameters], gradient, retain_graph=True, allow_unused=True)
        result.backward(gradient)
    except Exception as raised:  # noqa: BLE001  whatever eager raises is what the contestant must raise
        error = raised
    state = (*net.parameters(), *net.buffers())
    gradients = (of_input, x.grad, *(parameter.grad for parameter in net.parameters()))
    return Outcome(error, result, (x,), state, gradients, torch.get_rng_state())


def step_trials(entry: str) -> list[Trial]:
    """Make the trials of a layout in a training step."""
    return [step_trial(cases(module, entry)[-1]) for module in MODULES]


def step_trial(case: Case) -> Trial:
    """Make the trial of a few steps of training; what it leaves are parameters, gradients and momenta."""

    def start(contestant: Contestant) -> Player:
        net = nn.ModuleList([nn.PReLU(case.shape[1]), case.net()])
        net = nn.Sequential(*net)
        optimizer = torch.optim.SGD(net.parameters(), RATE, momentum=0.9)

        def loss_of(y: Tensor, target: Tensor) -> Tensor:
            # Weights that differ: gradients of a norm would cancel out, and only roundings be left of them.
            weights = torch.linspace(-1, 2, y.numel()).view(y.shape)
            return ((y - target.expand_as(y)) ** 2 * weights).mean()

        def eagerly(x: Tensor, target: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(net(x), target)
            loss.backward()
            optimizer.step()
            return loss.detach()

        # Who leaves a function as it is is eager itself.
        step = eagerly if contestant(loss_of) is loss_of else weft.step(net, loss_of, optimizer)

        def player(_number: int) -> Outcome:
            error, result = None, None
            torch.manual_seed(SEED)
            try:
                result = step(case.input(), torch.ones(1)).detach()
            except Exception as raised:  # noqa: BLE001  whatever eager raises is what the contestant must raise
                error = raised
            momenta = [optimizer.state[parameter].get("momentum_buffer") for parameter in net.parameters()]
            state = (*net.parameters(), *net.buffers())
            return Outcome(error, result, (), state, tuple(momenta), torch.get_rng_state())

        return player

    return Trial(start, Rule.CLOSE, calls=3, gradient_strides=True)


def sections() -> tuple[Section, ...]:
    """List the sections over layouts."""
    return (
        Section("layouts", "modules behind layouts, with dimensions of one element", entries, trials, codegens=BOTH),
        Section("layout-steps", "the same in a training step", entries, step_trials, codegens=BOTH),
    )
