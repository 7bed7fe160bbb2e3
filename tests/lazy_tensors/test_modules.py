"""Lazy modules are materialised by the first call, as eager PyTorch does it."""

# ruff: noqa: PLW0108
from __future__ import annotations

import copy

import pytest
import torch
from tests.api.ways import WAYS, check
from torch import nn
from torch.nn import functional

CASES = {}


def case(run):
    """Add a case: it is called with what wraps functions, and gives a list of what is to be compared."""
    CASES[run.__name__.replace("_", " ")] = run
    return run


ones = torch.ones


def state(m):
    return {k: v.detach().clone() for k, v in m.state_dict().items()}


def kinds(m):
    return [type(x).__name__ for x in m.modules()]


def common(build, *shape, calls=2, train=True):

    def c(wrap):
        torch.manual_seed(0)
        m = build()
        m.train(train)
        f = wrap(m)
        x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
        r = [f(x) for _ in range(calls)]
        return [[t.detach() for t in r], kinds(m), state(m), torch.rand(2), [t.requires_grad for t in r]]

    return c


for n, (b, s) in {
    "linear": (lambda: nn.LazyLinear(4), (2, 3)),
    "conv1d": (lambda: nn.LazyConv1d(4, 3), (2, 3, 8)),
    "conv2d": (lambda: nn.LazyConv2d(4, 3), (2, 3, 8, 8)),
    "conv3d": (lambda: nn.LazyConv3d(4, 3), (2, 3, 5, 5, 5)),
    "convt1": (lambda: nn.LazyConvTranspose1d(4, 3), (2, 3, 8)),
    "convt2": (lambda: nn.LazyConvTranspose2d(4, 3), (2, 3, 8, 8)),
    "convt3": (lambda: nn.LazyConvTranspose3d(4, 3), (2, 3, 4, 4, 4)),
    "bn1": (lambda: nn.LazyBatchNorm1d(), (4, 3)),
    "bn2": (lambda: nn.LazyBatchNorm2d(), (2, 3, 4, 4)),
    "bn3": (lambda: nn.LazyBatchNorm3d(), (2, 3, 2, 2, 2)),
    "in1": (lambda: nn.LazyInstanceNorm1d(), (2, 3, 4)),
    "in2": (lambda: nn.LazyInstanceNorm2d(), (2, 3, 4, 4)),
    "in3": (lambda: nn.LazyInstanceNorm3d(), (2, 3, 2, 2, 2)),
    "in2affine": (lambda: nn.LazyInstanceNorm2d(affine=True, track_running_stats=True), (2, 3, 4, 4)),
    "seq": (lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2)), (1, 3)),
    "nested": (
        lambda: nn.Sequential(
            nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU()), nn.Flatten(), nn.LazyLinear(2)
        ),
        (2, 3, 5, 5),
    ),
    "d2l_lenet": (
        lambda: nn.Sequential(
            nn.LazyConv2d(6, 5, padding=2),
            nn.Sigmoid(),
            nn.AvgPool2d(2, 2),
            nn.LazyConv2d(16, 5),
            nn.Sigmoid(),
            nn.AvgPool2d(2, 2),
            nn.Flatten(),
            nn.LazyLinear(12),
            nn.Sigmoid(),
            nn.LazyLinear(10),
        ),
        (2, 1, 28, 28),
    ),
    "nobias": (lambda: nn.LazyLinear(4, bias=False), (2, 3)),
    "dropout": (lambda: nn.Sequential(nn.LazyLinear(4), nn.Dropout(0.5)), (2, 3)),
    "mixed": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LazyLinear(2)), (2, 3)),
}.items():
    CASES[n] = common(b, *s)
    if n in ("bn2", "in2affine", "nested"):
        CASES[n + "_eval"] = common(b, *s, train=False)


def net():
    return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))


@case
def shared(wrap):
    torch.manual_seed(0)
    item = nn.LazyLinear(3)
    m = nn.Sequential(item, nn.ReLU(), item)
    f = wrap(m)
    return [f(ones(2, 3)).detach(), state(m), kinds(m)]


@case
def no_grad_first(wrap):
    torch.manual_seed(0)
    m = net()
    f = wrap(m)
    with torch.no_grad():
        a = f(ones(1, 3))
    b = f(ones(1, 3))
    return [a, b.detach(), b.requires_grad, state(m)]


@case
def inference_first(wrap):
    torch.manual_seed(0)
    m = net()
    f = wrap(m)
    with torch.inference_mode():
        a = f(ones(1, 3))
    return [a.is_inference(), [p.is_inference() for p in m.parameters()], state(m)]


@case
def eval_first(wrap):
    torch.manual_seed(0)
    m = net().eval()
    f = wrap(m)
    return [f(ones(1, 3)).detach(), state(m)]


@case
def inner_in_function(wrap):
    torch.manual_seed(0)
    m = net()
    f = wrap(lambda x: m(x) * 2)
    return [f(ones(1, 3)).detach(), f(ones(1, 3)).detach(), state(m), kinds(m)]


@case
def module_with_lazy_attr(wrap):

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.LazyLinear(4)
            self.b = nn.LazyLinear(2)

        def forward(self, x, flag=True):
            return self.b(functional.relu(self.a(x))) if flag else self.a(x)

    torch.manual_seed(0)
    m = M()
    f = wrap(m)
    a = f(ones(1, 3), False)
    k = kinds(m)
    b = f(ones(1, 3), True)
    return [a.detach(), k, b.detach(), kinds(m), state(m)]


@case
def wrong_shape_then_right(wrap):
    m = nn.Sequential(nn.LazyLinear(4), nn.Linear(5, 2))
    torch.manual_seed(0)
    f = wrap(m)
    try:
        f(ones(1, 3))
        e = None
    except RuntimeError:
        e = True
    return [e, kinds(m), m[0].weight.shape]


@case
def second_shape_fails(wrap):
    torch.manual_seed(0)
    m = net()
    f = wrap(m)
    a = f(ones(1, 3)).detach()
    try:
        f(ones(1, 5))
        e = False
    except RuntimeError:
        e = True
    return [a, e]


@case
def backward(wrap):
    torch.manual_seed(0)
    m = net()
    f = wrap(m)
    f(ones(1, 3)).sum().backward()
    f(ones(1, 3)).sum().backward()
    return [[p.grad for p in m.parameters()]]


@case
def optimizer_before(wrap):
    torch.manual_seed(0)
    m = net()
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    f = wrap(m)
    r = []
    for _ in range(3):
        o.zero_grad()
        item = f(ones(1, 3)).pow(2).sum()
        item.backward()
        o.step()
        r.append(item.detach())
    return [*r, state(m)]


@case
def param_identity(wrap):
    torch.manual_seed(0)
    m = nn.LazyLinear(2)
    p = m.weight
    f = wrap(m)
    f(ones(1, 3))
    return [p is m.weight, type(p).__name__, p.shape]


@case
def deepcopy_before(wrap):
    torch.manual_seed(0)
    m = net()
    n = copy.deepcopy(m)
    f, g = (wrap(m), wrap(n))
    return [f(ones(1, 3)).detach(), g(ones(1, 5)).detach(), state(m), state(n)]


@case
def deepcopy_after_hybridize(wrap):
    torch.manual_seed(0)
    m = net()
    f = wrap(m)
    n = copy.deepcopy(f if isinstance(f, nn.Module) else m)
    a = f(ones(1, 3)).detach()
    b = n(ones(1, 3)).detach()
    return [a, b]


@case
def load_state_before(wrap):
    torch.manual_seed(0)
    s = nn.Linear(3, 2).state_dict()
    m = nn.LazyLinear(2)
    m.load_state_dict(s)
    f = wrap(m)
    return [f(ones(1, 3)).detach(), kinds(m)]


@case
def state_dict_before(wrap):
    m = nn.LazyLinear(2)
    wrap(m)
    return [list(m.state_dict())]


@case
def init_apply_after(wrap):
    torch.manual_seed(0)
    m = net()
    f = wrap(m)
    f(ones(1, 3))
    for p in m.parameters():
        nn.init.ones_(p)
    return [f(ones(1, 3)).detach()]


@case
def to_double_before(wrap):
    torch.manual_seed(0)
    m = net().double()
    f = wrap(m)
    return [f(ones(1, 3, dtype=torch.float64)).detach()]


@case
def hook_on_lazy(wrap):
    torch.manual_seed(0)
    m = nn.LazyLinear(2)
    m.register_forward_hook(lambda mod, a, y: y + 10)
    f = wrap(m)
    return [f(ones(1, 3)).detach(), f(ones(1, 3)).detach()]


@case
def prehook_on_lazy(wrap):
    torch.manual_seed(0)
    seen = []
    m = nn.LazyLinear(2)
    m.register_forward_pre_hook(lambda mod, a: seen.append(type(mod).__name__))
    f = wrap(m)
    f(ones(1, 3))
    return [seen]


@case
def uninit_param_own(wrap):

    class M(nn.modules.lazy.LazyModuleMixin, nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.UninitializedParameter()

        def initialize_parameters(self, x):
            if self.has_uninitialized_params():
                with torch.no_grad():
                    self.w.materialize((x.shape[-1],))
                    self.w.fill_(3)

        def forward(self, x):
            return x * self.w

    m = M()
    f = wrap(m)
    return [f(ones(2)).detach(), f(ones(2)).detach(), m.w.detach()]


@case
def uninit_buffer_own(wrap):

    class M(nn.modules.lazy.LazyModuleMixin, nn.Module):
        cls_to_become = None

        def __init__(self):
            super().__init__()
            self.register_buffer("b", nn.UninitializedBuffer())

        def initialize_parameters(self, x):
            if self.has_uninitialized_params():
                with torch.no_grad():
                    self.b.materialize((x.shape[-1],))
                    self.b.fill_(3)

        def forward(self, x):
            return x * self.b

    m = M()
    f = wrap(m)
    return [f(ones(2)).detach(), f(ones(2)).detach(), m.b.detach()]


@case
def materialize_inside_forward(wrap):

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.UninitializedParameter()

        def forward(self, x):
            if isinstance(self.w, nn.UninitializedParameter):
                with torch.no_grad():
                    self.w.materialize((2,))
                    self.w.fill_(3.0)
            return x * self.w

    m = M()
    f = wrap(m)
    return [f(ones(2)).detach(), f(ones(2)).detach()]


@case
def parameter_made_in_forward(wrap):

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = None

        def forward(self, x):
            if self.w is None:
                self.w = nn.Parameter(torch.ones(x.shape[-1]) * 3)
            return x * self.w

    m = M()
    f = wrap(m)
    return [f(ones(2)).detach(), f(ones(2)).detach(), len(list(m.parameters()))]


@case
def layer_made_in_forward(wrap):

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = None

        def forward(self, x):
            if self.l is None:
                self.l = nn.Linear(x.shape[-1], 2)
            return self.l(x)

    torch.manual_seed(0)
    m = M()
    f = wrap(m)
    return [f(ones(1, 2)).detach(), f(ones(1, 2)).detach(), len(list(m.parameters())), torch.rand(1)]


@case
def module_dict_list(wrap):

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.ModuleList([nn.LazyLinear(4) for _ in range(3)])
            self.d = nn.ModuleDict({"a": nn.LazyLinear(2)})

        def forward(self, x):
            for item in self.l:
                x = item(x)
            return self.d["a"](x)

    torch.manual_seed(0)
    m = M()
    f = wrap(m)
    return [f(ones(1, 3)).detach(), f(ones(1, 3)).detach(), state(m), kinds(m)]


@case
def kwargs_call(wrap):
    torch.manual_seed(0)
    m = nn.LazyLinear(2)
    f = wrap(m)
    return [f(input=ones(1, 3)).detach()]


@case
def batch_sizes(wrap):
    torch.manual_seed(0)
    m = net()
    f = wrap(m)
    return [f(ones(b, 3)).detach() for b in (1, 2, 5, 1)]


@case
def captured_by_two(wrap):
    torch.manual_seed(0)
    m = net()
    f = wrap(lambda x: m(x))
    g = wrap(lambda x: m(x) * 2)
    return [f(ones(1, 3)).detach(), g(ones(1, 3)).detach()]


@case
def partly_initialised(wrap):
    torch.manual_seed(0)
    m = net()
    m[0](ones(1, 3))
    f = wrap(m)
    return [f(ones(1, 3)).detach(), kinds(m), state(m)]


@case
def seed_between(wrap):
    torch.manual_seed(0)
    m = net()
    f = wrap(m)
    torch.manual_seed(5)
    f(ones(1, 3))
    return [state(m), torch.rand(1)]


@case
def random_before_lazy(wrap):

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.LazyLinear(2)

        def forward(self, x):
            return self.l(x + torch.rand(3)) + torch.rand(2)

    torch.manual_seed(0)
    m = M()
    f = wrap(m)
    return [f(ones(1, 3)).detach(), f(ones(1, 3)).detach(), state(m), torch.rand(1)]


@case
def effect_before_lazy(wrap):

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.LazyLinear(2)
            self.register_buffer("n", torch.zeros(1))

        def forward(self, x):
            self.n.add_(1)
            return self.l(x) + self.n

    torch.manual_seed(0)
    m = M()
    f = wrap(m)
    return [f(ones(1, 3)).detach(), f(ones(1, 3)).detach(), m.n.clone()]


@case
def batchnorm_counts(wrap):
    torch.manual_seed(0)
    m = nn.Sequential(nn.LazyConv2d(2, 1), nn.LazyBatchNorm2d())
    f = wrap(m)
    x = torch.arange(16.0).view(1, 1, 4, 4)
    f(x)
    f(x)
    return [state(m)]


MAY_REFUSE = ["layer made in forward", "parameter made in forward"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_gives_what_eager_gives(name, way):
    check(CASES[name], way, may_refuse=name in MAY_REFUSE)
