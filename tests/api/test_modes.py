"""Modes, hooks and settings do to programs what they do to eager PyTorch."""

# ruff: noqa: PLW0108, PLR0917, N806, PERF401
from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as fw
from tests.api.ways import WAYS, check
from torch import nn
from torch.nn import functional

import weft

CASES = {}


def case(run):
    """Add a case: it is called with what wraps functions, and gives a list of what is to be compared."""
    CASES[run.__name__.replace("_", " ")] = run
    return run


ones = torch.ones


def counting(n=4):
    return torch.arange(float(n))


def seq():
    return nn.Sequential(nn.Identity(), nn.ReLU())


def lin():
    m = nn.Linear(2, 2)
    nn.init.constant_(m.weight, 0.5)
    nn.init.zeros_(m.bias)
    return m


def flags(*t):
    return [x.requires_grad for x in t]


@case
def enable_in_no_grad(wrap):
    m = lin()

    def f0(x):
        with torch.enable_grad():
            return m(x)

    f = wrap(f0)
    with torch.no_grad():
        a = f(ones(1, 2))
    b = f(ones(1, 2))
    r = flags(a, b)
    a.sum().backward()
    g = m.weight.grad.clone()
    return [a, b, r, g]


@case
def enable_in_no_grad_first_outside(wrap):
    m = lin()

    def f0(x):
        with torch.enable_grad():
            return m(x)

    f = wrap(f0)
    b = f(ones(1, 2))
    with torch.no_grad():
        a = f(ones(1, 2))
        a2 = f(ones(1, 2))
    return [a, b, a2, flags(a, b)]


@case
def enable_deco(wrap):
    m = lin()

    @torch.enable_grad()
    def f0(x):
        return m(x)

    f = wrap(f0)
    with torch.no_grad():
        return [f(ones(1, 2)).requires_grad]


@case
def no_grad_inside(wrap):
    m = lin()

    def f0(x):
        with torch.no_grad():
            y = m(x)
        return (y, m(x))

    return flags(*wrap(f0)(ones(1, 2)))


@case
def no_grad_deco(wrap):
    m = lin()

    @torch.no_grad()
    def f0(x):
        return m(x)

    return flags(wrap(f0)(ones(1, 2)))


@case
def set_grad_inside(wrap):
    m = lin()

    def f0(x, on):
        with torch.set_grad_enabled(on):
            return m(x)

    f = wrap(f0)
    r = flags(f(ones(1, 2), True), f(ones(1, 2), False))
    with torch.no_grad():
        r += flags(f(ones(1, 2), True), f(ones(1, 2), False))
    return r


@case
def set_grad_leaks(wrap):

    def f0(x):
        torch.set_grad_enabled(False)
        return x * 2

    f = wrap(f0)
    try:
        f(ones(2))
        a = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        f(ones(2))
        return [a, torch.is_grad_enabled()]
    finally:
        torch.set_grad_enabled(True)


@case
def is_grad_enabled(wrap):
    f = wrap(lambda x: x * (2 if torch.is_grad_enabled() else 3))
    a = f(ones(2))
    with torch.no_grad():
        b = f(ones(2))
    return [a, b, f(ones(2))]


@case
def partial_no_grad(wrap):
    m = lin()
    n = lin()

    def f0(x):
        with torch.no_grad():
            h = m(x)
        return n(h)

    f = wrap(f0)
    f(ones(1, 2)).sum().backward()
    return [m.weight.grad is None, n.weight.grad]


@case
def partial_enable(wrap):
    m = lin()
    n = lin()

    def f0(x):
        h = m(x)
        with torch.enable_grad():
            h = n(h)
        return (h * 2, h)

    f = wrap(f0)
    with torch.no_grad():
        a, b = f(ones(1, 2))
    b.sum().backward()
    return [a.requires_grad, b.requires_grad, m.weight.grad is None, n.weight.grad]


@case
def create_graph(wrap):

    def g(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad((x**3).sum(), x, create_graph=True)[0]

    r = wrap(g)(ones(2))
    return [r, r.requires_grad]


@case
def create_graph_used(wrap):
    m = lin()

    def g(x):
        x = x.detach().requires_grad_()
        e = m(x).pow(2).sum()
        (f,) = torch.autograd.grad(e, x, create_graph=True)
        return f.pow(2).sum()

    r = wrap(g)(ones(1, 2))
    r.backward()
    return [r, m.weight.grad]


@case
def grad_inside_plain(wrap):

    def g(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad((x**3).sum(), x)[0]

    r = wrap(g)(ones(2))
    return [r, r.requires_grad]


@case
def grad_inside_no_grad(wrap):

    def g(x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            e = (x**3).sum()
        return torch.autograd.grad(e, x)[0]

    f = wrap(g)
    with torch.no_grad():
        return [f(ones(2))]


@case
def leaf_result(wrap):

    def g(x):
        return x.detach().requires_grad_()

    r = wrap(g)(ones(2))
    return [r, r.requires_grad, r.is_leaf]


@case
def leaf_created(wrap):

    def g(x):
        return torch.zeros(2, requires_grad=True) + x

    r = wrap(g)(ones(2))
    return [r, r.requires_grad]


@case
def leaf_created_int(wrap):

    def g(x):
        y = torch.zeros(2, requires_grad=True)
        return (y, x + 1)

    r, s = wrap(g)(ones(2))
    return [r, r.requires_grad, s.requires_grad]


@case
def nested_modes(wrap):
    m = lin()

    def f0(x):
        with torch.no_grad():
            a = m(x)
            with torch.enable_grad():
                b = m(x)
            c = m(x)
        return (a, b, c, m(x))

    f = wrap(f0)
    r = flags(*f(ones(1, 2)))
    with torch.no_grad():
        r += flags(*f(ones(1, 2)))
    return r


@case
def inference_forward(wrap):

    class M(nn.Module):
        @torch.inference_mode()
        def forward(self, x):
            return x + 1

    r = wrap(M())(ones(1))
    return [r, r.is_inference()]


@case
def inference_fn(wrap):
    m = lin()

    @torch.inference_mode()
    def f0(x):
        return m(x)

    f = wrap(f0)
    r = [f(ones(1, 2)), f(ones(1, 2))]
    return r + [t.is_inference() for t in r]


@case
def inference_with_inside(wrap):
    m = lin()

    def f0(x):
        with torch.inference_mode():
            return m(x)

    r = wrap(f0)(ones(1, 2))
    return [r, r.is_inference(), r.requires_grad]


@case
def inference_some(wrap):
    m = lin()

    def f0(x):
        with torch.inference_mode():
            y = m(x)
        return (y, x + 1)

    a, b = wrap(f0)(ones(1, 2))
    return [a.is_inference(), b.is_inference()]


@case
def inference_around(wrap):
    m = lin()
    f = wrap(m)
    a = f(ones(1, 2))
    with torch.inference_mode():
        b = f(ones(1, 2))
    c = f(ones(1, 2))
    return [a, b, c] + [t.is_inference() for t in (a, b, c)] + flags(a, b, c)


@case
def inference_around_first(wrap):
    m = lin()
    f = wrap(m)
    with torch.inference_mode():
        b = f(ones(1, 2))
        d = f(b)
    c = f(ones(1, 2))
    return [b, c, d] + [t.is_inference() for t in (b, c, d)] + flags(b, c)


@case
def inference_arg_outside(wrap):
    with torch.inference_mode():
        x = ones(1, 2)
    f = wrap(lambda x: x * 2)
    r = f(x)
    return [r, r.is_inference()]


@case
def inference_arg_with_param(wrap):
    with torch.inference_mode():
        x = ones(1, 2)
    m = lin()
    m.weight.requires_grad_(False)
    m.bias.requires_grad_(False)
    f = wrap(m)
    r = f(x)
    return [r, r.is_inference()]


@case
def inference_arg_saved(wrap):
    with torch.inference_mode():
        x = ones(1, 2)
    m = lin()
    return [wrap(m)(x)]


@case
def inference_arg_write(wrap):
    with torch.inference_mode():
        x = ones(1, 2)
    f = wrap(lambda x: x.add_(1))
    f(x)
    return [x.clone()]


@case
def inference_arg_view(wrap):
    with torch.inference_mode():
        x = ones(1, 2)
    r = wrap(lambda x: x[:, :1])(x)
    return [r, r.is_inference()]


@case
def inference_off_inside(wrap):
    lin()

    def f0(x):
        with torch.inference_mode(False):
            return torch.ones(1, 2) * 2

    f = wrap(f0)
    with torch.inference_mode():
        r = f(ones(1, 2))
    return [r, r.is_inference()]


@case
def is_inference_mode_enabled(wrap):
    f = wrap(lambda x: x * (2 if torch.is_inference_mode_enabled() else 3))
    a = f(ones(2))
    with torch.inference_mode():
        b = f(ones(2))
    return [a, b, f(ones(2))]


@case
def inference_result_arg(wrap):

    @torch.inference_mode()
    def f0(x):
        return x

    x = ones(2)
    r = wrap(f0)(x)
    return [r is x, r.is_inference()]


@case
def inference_result_view(wrap):

    @torch.inference_mode()
    def f0(x):
        return x[:1]

    x = ones(2)
    r = wrap(f0)(x)
    return [r, r.is_inference(), r.data_ptr() == x.data_ptr()]


@case
def inference_write_arg(wrap):

    @torch.inference_mode()
    def f0(x):
        x.add_(1)
        return x * 2

    f = wrap(f0)
    x = ones(2)
    r = [f(x), f(x)]
    return [*r, x]


def hook_case(register):

    def c(wrap):
        net = seq()
        m = wrap(net)
        x = ones(1)
        a = m(x)
        h = register(net)
        try:
            b = m(x)
            b2 = m(x)
        finally:
            h.remove()
        return [a, b, b2, m(x)]

    return c


modules = torch.nn.modules.module


CASES["global forward hook"] = hook_case(lambda n: modules.register_module_forward_hook(lambda mod, a, y: y + 10))


CASES["global pre hook"] = hook_case(lambda n: modules.register_module_forward_pre_hook(lambda mod, a: (a[0] + 10,)))


CASES["global forward hook kwargs"] = hook_case(
    lambda n: modules.register_module_forward_hook(lambda mod, a, k, y: y + 10, with_kwargs=True)
)


CASES["global forward always"] = hook_case(
    lambda n: modules.register_module_forward_hook(lambda mod, a, y: y + 10, always_call=True)
)


CASES["inner hook"] = hook_case(lambda n: n[0].register_forward_hook(lambda mod, a, y: y + 10))


CASES["inner pre hook"] = hook_case(lambda n: n[0].register_forward_pre_hook(lambda mod, a: (a[0] + 10,)))


CASES["inner pre kwargs"] = hook_case(
    lambda n: n[0].register_forward_pre_hook(lambda mod, a, k: ((a[0] + 10,), k), with_kwargs=True)
)


CASES["inner hook kwargs"] = hook_case(
    lambda n: n[0].register_forward_hook(lambda mod, a, k, y: y + 10, with_kwargs=True)
)


CASES["inner hook always"] = hook_case(lambda n: n[0].register_forward_hook(lambda mod, a, y: y + 10, always_call=True))


CASES["inner hook prepend"] = hook_case(lambda n: n[1].register_forward_hook(lambda mod, a, y: y + 10, prepend=True))


CASES["top hook"] = hook_case(lambda n: n.register_forward_hook(lambda mod, a, y: y + 10))


CASES["top pre hook"] = hook_case(lambda n: n.register_forward_pre_hook(lambda mod, a: (a[0] + 10,)))


def bhook_case(register):

    def c(wrap):
        net = nn.Sequential(lin(), nn.ReLU())
        m = wrap(net)
        out = []

        def once():
            x = ones(1, 2).requires_grad_()
            m(x).sum().backward()
            out.append(x.grad)

        once()
        h = register(net)
        try:
            once()
            once()
        finally:
            h.remove()
        once()
        return out

    return c


CASES["global full backward hook"] = bhook_case(
    lambda n: modules.register_module_full_backward_hook(
        lambda mod, gi, go: tuple(g * 10 if g is not None else None for g in gi)
    )
)


CASES["global full backward pre hook"] = bhook_case(
    lambda n: modules.register_module_full_backward_pre_hook(lambda mod, go: tuple(g * 10 for g in go))
)


CASES["inner full backward hook"] = bhook_case(
    lambda n: n[0].register_full_backward_hook(lambda mod, gi, go: tuple(g * 10 if g is not None else None for g in gi))
)


CASES["inner full backward pre hook"] = bhook_case(
    lambda n: n[0].register_full_backward_pre_hook(lambda mod, go: tuple(g * 10 for g in go))
)


CASES["top full backward hook"] = bhook_case(
    lambda n: n.register_full_backward_hook(lambda mod, gi, go: tuple(g * 10 if g is not None else None for g in gi))
)


CASES["inner backward hook fwd register"] = bhook_case(
    lambda n: n[0].register_forward_hook(lambda mod, a, y: y.register_hook(lambda g: g * 10) and None)
)


@case
def global_hook_before(wrap):
    h = modules.register_module_forward_hook(lambda mod, a, y: y + 10)
    try:
        net = seq()
        m = wrap(net)
        a = [m(ones(1)), m(ones(1))]
    finally:
        h.remove()
    return [*a, m(ones(1))]


@case
def global_hook_function(wrap):
    net = seq()
    f = wrap(lambda x: net(x) * 2)
    a = f(ones(1))
    h = modules.register_module_forward_hook(lambda mod, a, y: y + 10)
    try:
        b = f(ones(1))
    finally:
        h.remove()
    return [a, b, f(ones(1))]


@case
def global_hook_functional_only(wrap):
    f = wrap(lambda x: x * 2)
    a = f(ones(1))
    h = modules.register_module_forward_hook(lambda mod, a, y: y + 10)
    try:
        b = f(ones(1))
    finally:
        h.remove()
    return [a, b, f(ones(1))]


@case
def global_hook_other(wrap):
    net = seq()
    m = wrap(net)
    a = m(ones(1))
    h1 = modules.register_module_forward_hook(lambda mod, a, y: y + 10)
    b = m(ones(1))
    h1.remove()
    h2 = modules.register_module_forward_hook(lambda mod, a, y: y + 20)
    try:
        c = m(ones(1))
    finally:
        h2.remove()
    return [a, b, c]


@case
def global_hook_closure_changes(wrap):
    net = seq()
    m = wrap(net)
    k = [10]
    h = modules.register_module_forward_hook(lambda mod, a, y: y + k[0])
    try:
        a = m(ones(1))
        k[0] = 20
        b = m(ones(1))
    finally:
        h.remove()
    return [a, b]


@case
def load_state_hooks(wrap):
    net = lin()
    m = wrap(net)
    a = m(ones(1, 2))
    net.register_load_state_dict_post_hook(lambda m, k: None)
    net.load_state_dict({"weight": ones(2, 2), "bias": ones(2)})
    return [a, m(ones(1, 2))]


def enc(layers=2, **k):
    torch.manual_seed(0)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **k), layers)


PADDING = torch.tensor([[False, False, True, True], [False, False, False, True]])


def enc_case(train=False, grad=False, layers=2, mask=True, infer=False, build=enc, **k):

    def c(wrap):
        net = build(layers, **k)
        net.train(train)
        m = wrap(net)
        x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
        out = []
        for _ in range(2):
            with torch.inference_mode() if infer else torch.set_grad_enabled(grad):
                out.append(m(x, src_key_padding_mask=PADDING) if mask else m(x))
        return out + [o.mean(1) for o in out]

    return c


for name, kw in {
    "enc_eval_nograd": {},
    "enc_eval_grad": {"grad": True},
    "enc_train": {"train": True, "grad": True, "dropout": 0.0},
    "enc_train_nograd": {"train": True, "dropout": 0.0},
    "enc_nomask": {"mask": False},
    "enc_norm_first": {"norm_first": True},
    "enc_gelu": {"activation": "gelu"},
    "enc_gelu_fn": {"activation": functional.gelu},
    "enc_silu": {"activation": functional.silu},
    "enc_one_layer": {"layers": 1},
    "enc_infer": {"infer": True},
    "enc_nobias": {"bias": False},
}.items():
    CASES[name] = enc_case(**kw)


def enc_nonested(layers, **k):
    torch.manual_seed(0)
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **k), layers, enable_nested_tensor=False
    )


CASES["enc no nested"] = enc_case(build=enc_nonested)


@case
def enc_layer_mask(wrap):
    torch.manual_seed(0)
    net = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    m = wrap(net)
    x = torch.randn(2, 4, 8)
    with torch.no_grad():
        return [
            m(x, src_key_padding_mask=PADDING),
            m(x),
            m(x, src_mask=torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)),
        ]


@case
def enc_mask_changes(wrap):
    m = wrap(enc().eval())
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    P2 = ~PADDING.flip(1)
    r = []
    with torch.no_grad():
        for p in (PADDING, P2, torch.zeros_like(PADDING), PADDING):
            if p[:, 0].any():
                continue
            r.append(m(x, src_key_padding_mask=p))
    return r


@case
def enc_full_then_pad(wrap):
    m = wrap(enc().eval())
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return [
            m(x, src_key_padding_mask=torch.zeros_like(PADDING)),
            m(x, src_key_padding_mask=PADDING),
            m(x, src_key_padding_mask=torch.tensor([[False, True, True, True]] * 2)),
        ]


@case
def enc_left_pad(wrap):
    m = wrap(enc().eval())
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return [m(x, src_key_padding_mask=PADDING.flip(1))]


@case
def enc_causal(wrap):
    m = wrap(enc().eval())
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    c = nn.Transformer.generate_square_subsequent_mask(4)
    with torch.no_grad():
        return [m(x, mask=c, is_causal=True), m(x, mask=c), m(x, mask=c == float("-inf"), src_key_padding_mask=PADDING)]


@case
def enc_inside_module(wrap):

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = enc()
            self.h = nn.Linear(8, 3)

        def forward(self, x, p):
            return self.h(self.e(x, src_key_padding_mask=p).mean(1))

    m = wrap(M().eval())
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return [m(x, PADDING), m(x, PADDING)]


@case
def enc_mode_switch(wrap):
    net = enc(dropout=0.0).eval()
    m = wrap(net)
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    r = []
    with torch.no_grad():
        r.append(m(x, src_key_padding_mask=PADDING))
    r.append(m(x, src_key_padding_mask=PADDING))
    net.train()
    r.append(m(x, src_key_padding_mask=PADDING))
    net.eval()
    with torch.no_grad():
        r.append(m(x, src_key_padding_mask=PADDING))
    return r


def mha_case(train, grad, need, pad, avg=True):

    def c(wrap):
        torch.manual_seed(0)
        net = nn.MultiheadAttention(8, 2, batch_first=True)
        net.train(train)
        m = wrap(net)
        x = torch.randn(2, 4, 8)
        r = []
        with torch.set_grad_enabled(grad):
            for _ in range(2):
                r.append(
                    list(
                        m(
                            x,
                            x,
                            x,
                            need_weights=need,
                            key_padding_mask=PADDING if pad else None,
                            average_attn_weights=avg,
                        )
                    )
                )
        y = x * 2
        with torch.set_grad_enabled(grad):
            r.append(list(m(x, y, y, need_weights=need, key_padding_mask=PADDING if pad else None)))
        return r

    return c


for t in (0, 1):
    for g in (0, 1):
        for n in (0, 1):
            for p in (0, 1):
                CASES[f"mha train{t} grad{g} need{n} pad{p}"] = mha_case(bool(t), bool(g), bool(n), bool(p), avg=not p)


@case
def mha_fastpath_off(wrap):
    torch.manual_seed(0)
    m = wrap(enc().eval())
    x = torch.randn(2, 4, 8)
    r = []
    with torch.no_grad():
        r.append(m(x, src_key_padding_mask=PADDING))
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            r.append(m(x, src_key_padding_mask=PADDING))
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        r.append(m(x, src_key_padding_mask=PADDING))
    return r


@case
def nested_arg(wrap):
    n = torch.nested.nested_tensor([ones(2, 3), ones(4, 3)])
    m = wrap(nn.Linear(3, 2).eval())
    with torch.no_grad():
        return [m(n).unbind()[0].shape]


@case
def nested_inside(wrap):

    def f0(x, y):
        return torch.nested.nested_tensor([x, y]).to_padded_tensor(0.0)

    return [wrap(f0)(ones(2, 3), ones(4, 3))]


@case
def nested_as(wrap):

    def f0(x, y):
        return torch.nested.as_nested_tensor([x, y]).to_padded_tensor(0.0) * 2

    f = wrap(f0)
    return [f(ones(2, 3), ones(4, 3)), f(ones(2, 3), ones(4, 3) * 2)]


@case
def nested_jagged(wrap):

    def f0(x, y):
        return torch.nested.as_nested_tensor([x, y], layout=torch.jagged).sum(1) * 2

    f = wrap(f0)
    return [f(ones(2, 3), ones(4, 3))]


@case
def forward_ad_around(wrap):
    m = wrap(lin())
    m(ones(1, 2))
    with fw.dual_level():
        return [fw.unpack_dual(m(fw.make_dual(ones(1, 2), ones(1, 2)))).tangent]


@case
def forward_ad_first(wrap):
    m = wrap(lin())
    with fw.dual_level():
        return [fw.unpack_dual(m(fw.make_dual(ones(1, 2), ones(1, 2)))).tangent]


@case
def forward_ad_no_dual(wrap):
    m = wrap(lin())
    a = m(ones(1, 2))
    with fw.dual_level():
        return [a, m(ones(1, 2))]


@case
def forward_ad_inside(wrap):
    m = lin()

    def f0(x):
        with fw.dual_level():
            return fw.unpack_dual(m(fw.make_dual(x, ones(1, 2)))).tangent

    return [wrap(f0)(ones(1, 2))]


@case
def forward_ad_param(wrap):
    m = lin()
    f = wrap(m)
    f(ones(1, 2))
    w = m.weight.detach()
    del m.weight
    with fw.dual_level():
        m.weight = fw.make_dual(w, ones(2, 2))
        return [fw.unpack_dual(f(ones(1, 2))).tangent]


@case
def forward_ad_no_grad(wrap):
    m = wrap(lin())
    m(ones(1, 2))
    with fw.dual_level(), torch.no_grad():
        t = fw.unpack_dual(m(fw.make_dual(ones(1, 2), ones(1, 2)))).tangent
        return [t]


@case
def functorch_jvp_around(wrap):
    f = wrap(lambda x: x**2)
    f(ones(2))
    return list(torch.func.jvp(f, (ones(2),), (ones(2),)))


@case
def functorch_grad_around(wrap):
    f = wrap(lambda x: (x**2).sum())
    f(ones(2))
    return [torch.func.grad(f)(ones(2))]


@case
def functorch_vmap_around(wrap):
    f = wrap(lambda x: (x**2).sum())
    f(ones(2))
    return [torch.vmap(f)(ones(3, 2))]


@case
def functorch_inside(wrap):
    f = wrap(lambda x: torch.func.grad(lambda y: (y**3).sum())(x))
    return [f(ones(2)), f(counting(2))]


@case
def functorch_vmap_inside(wrap):
    f = wrap(lambda x: torch.vmap(lambda y: y.sum() * y)(x))
    return [f(ones(3, 2)), f(ones(3, 2))]


@case
def functorch_jvp_inside(wrap):
    f = wrap(lambda x: torch.func.jvp(lambda y: y**3, (x,), (ones(2),))[1])
    return [f(ones(2)), f(counting(2))]


@case
def functorch_jacrev_inside(wrap):
    f = wrap(lambda x: torch.func.jacrev(lambda y: y**3)(x))
    return [f(ones(2)), f(counting(2))]


@case
def functorch_jacfwd_inside(wrap):
    f = wrap(lambda x: torch.func.jacfwd(lambda y: y**3)(x))
    return [f(ones(2)), f(counting(2))]


@case
def functorch_hessian_inside(wrap):
    f = wrap(lambda x: torch.func.hessian(lambda y: (y**3).sum())(x))
    return [f(ones(2)), f(counting(2))]


@case
def functional_call_inside(wrap):
    m = lin()
    f = wrap(lambda x, w: torch.func.functional_call(m, {"weight": w}, (x,)))
    return [f(ones(1, 2), ones(2, 2)), f(ones(1, 2), ones(2, 2) * 2), m(ones(1, 2))]


@case
def autocast_inside(wrap):
    m = lin()

    def f0(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = m(x)
        return (y, m(x))

    f = wrap(f0)
    return [*f(ones(1, 2)), *f(ones(1, 2))]


@case
def autocast_around(wrap):
    m = lin()
    f = wrap(m)
    a = f(ones(1, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        b = f(ones(1, 2))
    with torch.autocast("cpu", dtype=torch.float16):
        c = f(ones(1, 2))
    with torch.autocast("cpu", enabled=False):
        d = f(ones(1, 2))
    return [a, b, c, d]


@case
def autocast_enabled_asked(wrap):
    f = wrap(lambda x: x * (2 if torch.is_autocast_enabled("cpu") else 3))
    a = f(ones(2))
    with torch.autocast("cpu"):
        b = f(ones(2))
    return [a, b]


@case
def default_dtype_inside(wrap):

    def f0(x):
        torch.set_default_dtype(torch.float64)
        try:
            return x + torch.zeros(2)
        finally:
            torch.set_default_dtype(torch.float32)

    f = wrap(f0)
    return [f(ones(2)), f(ones(2))]


@case
def default_dtype_leaks(wrap):

    def f0(x):
        torch.set_default_dtype(torch.float64)
        return x + 1

    f = wrap(f0)
    r = []
    try:
        for _ in range(2):
            torch.set_default_dtype(torch.float32)
            f(ones(2, dtype=torch.float32))
            r.append(torch.get_default_dtype())
    finally:
        torch.set_default_dtype(torch.float32)
    return r


@case
def default_dtype_around(wrap):
    f = wrap(lambda x: x + torch.zeros(2))
    a = f(ones(2))
    torch.set_default_dtype(torch.float64)
    try:
        b = f(ones(2, dtype=torch.float32))
    finally:
        torch.set_default_dtype(torch.float32)
    return [a, b, f(ones(2))]


@case
def default_device_meta(wrap):
    f = wrap(lambda x: torch.zeros(2))
    a = f(ones(2))
    torch.set_default_device("meta")
    try:
        b = f(ones(2, device="cpu"))
    finally:
        torch.set_default_device(None)
    return [a, b.device.type]


@case
def device_context_inside(wrap):

    def f0(x):
        with torch.device("cpu"):
            return x + torch.zeros(2)

    return [wrap(f0)(ones(2))]


@case
def device_context_meta_inside(wrap):

    def f0(x):
        with torch.device("meta"):
            y = torch.zeros(2)
        return x + y.shape[0]

    return [wrap(f0)(ones(2))]


@case
def deterministic(wrap):
    f = wrap(lambda x: x * (2 if torch.are_deterministic_algorithms_enabled() else 3))
    a = f(ones(2))
    torch.use_deterministic_algorithms(True)
    try:
        b = f(ones(2))
    finally:
        torch.use_deterministic_algorithms(False)
    return [a, b, f(ones(2))]


@case
def deterministic_inside_leaks(wrap):

    def f0(x):
        torch.use_deterministic_algorithms(True)
        return x + 1

    f = wrap(f0)
    r = []
    try:
        for _ in range(2):
            torch.use_deterministic_algorithms(False)
            f(ones(2))
            r.append(torch.are_deterministic_algorithms_enabled())
    finally:
        torch.use_deterministic_algorithms(False)
    return r


@case
def anomaly_inside(wrap):

    def f0(x):
        with torch.autograd.set_detect_anomaly(True):
            return (x * 2).sum()

    f = wrap(f0)
    return [f(ones(2)), f(ones(2))]


@case
def saved_tensors_hooks_around(wrap):
    f = wrap(lambda x: x.exp().sum())
    p = ones(2).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        r = f(p)
    r.backward()
    return [p.grad]


@case
def saved_tensors_hooks_second(wrap):
    f = wrap(lambda x: x.exp().sum())
    p = ones(2).requires_grad_()
    f(p).backward()
    p.grad = None
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        r = f(p)
    r.backward()
    return [p.grad]


@case
def saved_tensors_hooks_inside(wrap):

    def f0(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
            return x.exp().sum()

    f = wrap(f0)
    r = []
    for _ in range(2):
        p = ones(2).requires_grad_()
        f(p).backward()
        r.append(p.grad)
    return r


@case
def save_on_cpu_inside(wrap):

    def f0(x):
        with torch.autograd.graph.save_on_cpu():
            return x.exp().sum()

    p = ones(2).requires_grad_()
    wrap(f0)(p).backward()
    return [p.grad]


@case
def function_mode_around(wrap):
    from torch.overrides import TorchFunctionMode

    class Mo(TorchFunctionMode):
        def __torch_function__(self, f, t, a=(), k=None):
            r = f(*a, **k or {})
            return r + 1 if f is torch.mul or f is torch.Tensor.mul else r

    f = wrap(lambda x: torch.mul(x, 2))
    a = f(ones(2))
    with Mo():
        b = f(ones(2))
    return [a, b, f(ones(2))]


@case
def function_mode_inside(wrap):
    from torch.overrides import TorchFunctionMode

    class Mo(TorchFunctionMode):
        def __torch_function__(self, f, t, a=(), k=None):
            r = f(*a, **k or {})
            return r + 1 if f is torch.mul or f is torch.Tensor.mul else r

    def f0(x):
        with Mo():
            y = torch.mul(x, 2)
        return y + torch.mul(x, 2)

    f = wrap(f0)
    return [f(ones(2)), f(ones(2))]


@case
def dispatch_mode_around(wrap):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mo(TorchDispatchMode):
        def __torch_dispatch__(self, f, t, a=(), k=None):
            return f(*a, **k or {}) + (1 if f is torch.ops.aten.mul.Tensor else 0)

    f = wrap(lambda x: torch.mul(x, 2))
    a = f(ones(2))
    with Mo():
        b = f(ones(2))
    return [a, b, f(ones(2))]


@case
def dispatch_mode_inside(wrap):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mo(TorchDispatchMode):
        def __torch_dispatch__(self, f, t, a=(), k=None):
            return f(*a, **k or {})

    def f0(x):
        with Mo():
            return torch.mul(x, 2)

    return [wrap(f0)(ones(2))]


@case
def flush_denormal(wrap):
    f = wrap(lambda x: x * 0.5)
    x = torch.tensor([1e-38])
    a = f(x)
    torch.set_flush_denormal(True)
    try:
        b = f(x)
        b = b == 0
    finally:
        torch.set_flush_denormal(False)
    return [a, b, f(x)]


@case
def num_threads_asked(wrap):
    f = wrap(lambda x: x * torch.get_num_threads())
    n = torch.get_num_threads()
    a = f(ones(2))
    torch.set_num_threads(n + 1)
    try:
        b = f(ones(2))
    finally:
        torch.set_num_threads(n)
    return [a, b, f(ones(2))]


@case
def is_tracing(wrap):
    return [wrap(lambda x: x * (2 if torch.jit.is_tracing() or torch.jit.is_scripting() else 3))(ones(2))]


@case
def debug_flag(wrap):
    return [wrap(lambda x: x * (2 if __debug__ else 3))(ones(2))]


@case
def matmul_precision(wrap):
    f = wrap(lambda x: x * (2 if torch.get_float32_matmul_precision() == "highest" else 3))
    a = f(ones(2))
    torch.set_float32_matmul_precision("high")
    try:
        b = f(ones(2))
    finally:
        torch.set_float32_matmul_precision("highest")
    return [a, b]


@case
def backends_flag(wrap):
    f = wrap(lambda x: x * (2 if torch.backends.mkldnn.enabled else 3))
    a = f(ones(2))
    with torch.backends.mkldnn.flags(enabled=False):
        b = f(ones(2))
    return [a, b]


@case
def sdpa_kernel_inside(wrap):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def f0(x):
        with sdpa_kernel(SDPBackend.MATH):
            return functional.scaled_dot_product_attention(x, x, x)

    f = wrap(f0)
    x = torch.arange(16.0).view(1, 1, 4, 4) / 16
    return [f(x), f(x)]


@case
def manual_seed_inside(wrap):

    def f0(x):
        torch.manual_seed(3)
        return x + torch.rand(2)

    f = wrap(f0)
    return [f(ones(2)), f(ones(2)), torch.rand(2)]


@case
def fork_rng_inside(wrap):

    def f0(x):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return x + torch.rand(2)

    f = wrap(f0)
    return [f(ones(2)), f(ones(2)), torch.rand(2)]


@case
def checkpoint_inside(wrap):
    from torch.utils.checkpoint import checkpoint

    m = lin()
    f = wrap(lambda x: checkpoint(m, x, use_reentrant=False).sum())
    p = ones(1, 2).requires_grad_()
    f(p).backward()
    return [p.grad, m.weight.grad]


@case
def checkpoint_reentrant(wrap):
    from torch.utils.checkpoint import checkpoint

    m = lin()
    f = wrap(lambda x: checkpoint(m, x, use_reentrant=True).sum())
    p = ones(1, 2).requires_grad_()
    f(p).backward()
    return [p.grad, m.weight.grad]


@case
def parametrization_cached(wrap):
    from torch.nn.utils import parametrize

    m = lin()

    class P(nn.Module):
        def forward(self, w):
            return w * 2

    parametrize.register_parametrization(m, "weight", P())

    def f0(x):
        with parametrize.cached():
            return m(x) + m(x)

    f = wrap(f0)
    r = f(ones(1, 2))
    r.sum().backward()
    return [r, m.parametrizations.weight.original.grad]


@case
def inference_train_loop(wrap):
    m = lin()
    f = wrap(m)
    r = []
    for _i in range(3):
        f(ones(1, 2)).sum().backward()
        with torch.inference_mode():
            r.append(f(ones(1, 2)).is_inference())
    return [*r, m.weight.grad]


@case
def no_grad_param_update(wrap):
    m = lin()

    def f0(x):
        y = m(x).sum()
        with torch.no_grad():
            m.weight.mul_(0.5)
        return y

    f = wrap(f0)
    return [f(ones(1, 2)).detach(), f(ones(1, 2)).detach(), m.weight.detach().clone()]


@case
def module_training_global(wrap):
    m = nn.Dropout(0.5)
    f = wrap(lambda x: m(x) if m.training else x * 3)
    m.eval()
    a = f(ones(2))
    m.train()
    torch.manual_seed(0)
    b = f(ones(2))
    return [a, b]


@case
def grad_mode_generator(wrap):
    m = lin()

    @torch.no_grad()
    def gen(x):
        yield m(x)
        yield (m(x) * 2)

    return flags(*wrap(lambda x: list(gen(x)))(ones(1, 2)))


@case
def autograd_function_inside(wrap):

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 10

    f = wrap(lambda x: Fn.apply(x).sum())
    p = ones(2).requires_grad_()
    f(p).backward()
    return [p.grad]


@case
def backward_inside(wrap):

    def f0(x):
        y = x.detach().requires_grad_()
        (y**2).sum().backward()
        return y.grad * 2

    return [wrap(f0)(ones(2))]


@case
def backward_inside_enable(wrap):

    def f0(x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (g,) = torch.autograd.grad((y**2).sum(), y, create_graph=True)
        return g

    f = wrap(f0)
    with torch.no_grad():
        r = f(ones(2))
    return [r, r.requires_grad]


@case
def results_graph_of_made_leaf(wrap):

    def f0(x):
        y = x.detach().requires_grad_()
        return (y, (y * 3).sum())

    y, s = wrap(f0)(ones(2))
    r = flags(y, s)
    s.backward()
    return [*r, y.grad]


MAY_REFUSE = [
    "inference result view",
    "backward inside",
    "checkpoint reentrant",
    "default dtype leaks",
    "deterministic inside leaks",
    "forward ad around",
    "forward ad first",
    "forward ad no grad",
    "forward ad param",
    "leaf created int",
    "leaf result",
    "nested arg",
    "nested as",
    "nested inside",
    "nested jagged",
    "results graph of made leaf",
    "set grad leaks",
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_gives_what_eager_gives(name, way):
    check(CASES[name], way, may_refuse=name in MAY_REFUSE)


@pytest.fixture
def deterministic_algorithms():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic_algorithms")
def test_deterministic_memory_is_filled_with_what_stands_out():
    def function(x):
        kinds = (torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)
        own = [x.new_empty(3), torch.empty_like(x), torch.empty_strided((2, 3), (1, 2)), x + torch.empty(())]
        return [torch.empty(2), *(torch.empty(2, dtype=kind) for kind in kinds), *own]

    x = torch.ones(2)
    expected = function(x)
    assert expected[0].isnan().all()
    torch.testing.assert_close(weft.hybridize(function, whole=True)(x), expected, equal_nan=True)
