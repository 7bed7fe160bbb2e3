"""Facts of tensors that Python asks for are eager's, at every call, or refused with a line."""

# ruff: noqa: B023
from __future__ import annotations

import pytest
import torch
from tests.api.ways import WAYS, check
from torch import nn

CASES = {}


def case(run):
    """Add a case: it is called with what wraps functions, and gives a list of what is to be compared."""
    CASES[run.__name__.replace("_", " ")] = run
    return run


ones = torch.ones


def counting(n=4):
    return torch.arange(float(n))


@case
def is_args(wrap):
    f = wrap(lambda q, k: q + k if q is k else q - k)
    x = ones(2)
    y = ones(2)
    return [f(x, x), f(x, y), f(y, y), f(y, x), f(x, x)]


@case
def is_args_distinct_first(wrap):
    f = wrap(lambda q, k: q + k if q is k else q - k)
    x = ones(2)
    y = ones(2)
    return [f(x, y), f(x, x), f(x, y)]


@case
def is_three(wrap):
    f = wrap(lambda q, k, v: q + k + 3 * v if k is v and q is k else q - 2 * k + v if k is v else q * k - v)
    x, y, z = (counting(), counting() + 1, counting() + 2)
    return [f(x, y, z), f(x, y, y), f(x, x, x), f(x, x, y), f(y, x, y)]


@case
def is_in_list(wrap):
    f = wrap(lambda item: item[0] * 5 if item[0] is item[1] else item[0] - item[1])
    x, y = (counting(), counting() + 1)
    return [f([x, y]), f([x, x]), f([y, y]), f([x, y])]


@case
def is_in_dict(wrap):
    f = wrap(lambda d: d["a"] * 5 if d["a"] is d["b"] else d["a"] - d["b"])
    x, y = (counting(), counting() + 1)
    return [f({"a": x, "b": y}), f({"a": x, "b": x})]


@case
def is_kwarg(wrap):
    f = wrap(lambda q, k=None: q * 7 if k is q else q)
    x, y = (counting(), counting() + 1)
    return [f(x), f(x, k=x), f(x, k=y)]


@case
def id_args(wrap):
    f = wrap(lambda q, k: q + k if id(q) == id(k) else q - k)
    x = ones(2)
    y = ones(2)
    return [f(x, y), f(x, x), f(x, y)]


@case
def data_ptr_args(wrap):
    f = wrap(lambda q, k: q + k if q.data_ptr() == k.data_ptr() else q - k)
    x = ones(4)
    y = ones(4)
    return [f(x, y), f(x, x), f(x, x.view(4)), f(x, x[:])]


@case
def identity_param(wrap):
    m = nn.Linear(2, 2)
    torch.nn.init.ones_(m.weight)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.m = m

        def forward(self, w):
            return w * 3 if w is self.m.weight else w * 2

    f = wrap(M())
    o = ones(2, 2)
    return [f(o), f(m.weight), f(o)]


@case
def identity_captured(wrap):
    g = ones(2)
    f = wrap(lambda x: x * 3 if x is g else x * 2 + g)
    return [f(ones(2)), f(g), f(ones(2))]


@case
def identity_buffer(wrap):

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", ones(2))

        def forward(self, w):
            return w * 3 if w is self.b else w * 2 + self.b

    mm = M()
    f = wrap(mm)
    return [f(ones(2)), f(mm.b), f(ones(2))]


@case
def in_list_identity(wrap):
    g = [ones(1), ones(1) * 2]
    f = wrap(lambda x: x * 3 if any(x is t for t in g) else x * 2)
    return [f(ones(1)), f(g[0]), f(g[1]), f(ones(1))]


@case
def set_of_ids(wrap):
    f = wrap(lambda item: item[0] * len({id(t) for t in item}))
    x, y, z = (counting(), counting() + 1, counting() + 2)
    return [f([x, y, z]), f([x, x, y]), f([x, x, x]), f([x, y, x])]


@case
def set_of_tensors(wrap):
    f = wrap(lambda item: item[0] * len(set(item)))
    x, y, z = (counting(), counting() + 1, counting() + 2)
    return [f([x, y, z]), f([x, x, y]), f([x, x, x]), f([x, y, x])]


@case
def dict_by_tensor(wrap):

    def f0(item):
        d = {}
        for i, t in enumerate(item):
            d.setdefault(t, i)
        return item[0] * sum(d.values())

    f = wrap(f0)
    x, y, z = (counting(), counting() + 1, counting() + 2)
    return [f([x, y, z]), f([x, x, y]), f([x, x, x]), f([x, y, x])]


@case
def isinstance_param(wrap):
    f = wrap(lambda w: w * 2 if isinstance(w, nn.Parameter) else w * 3)
    p = nn.Parameter(ones(2))
    return [f(p), f(ones(2)), f(ones(2).requires_grad_()), f(p)]


@case
def isinstance_param_second(wrap):
    f = wrap(lambda w: w * 2 if isinstance(w, nn.Parameter) else w * 3)
    p = nn.Parameter(ones(2))
    return [f(ones(2)), f(p), f(ones(2).requires_grad_()), f(p)]


@case
def isinstance_buffer(wrap):
    f = wrap(lambda w: w * 2 if isinstance(w, nn.Buffer) else w * 3)
    p = nn.Buffer(ones(2))
    return [f(p), f(ones(2)), f(p)]


@case
def isinstance_param_captured(wrap):
    box = {"w": nn.Parameter(ones(2))}
    f = wrap(lambda x: x * 2 if isinstance(box["w"], nn.Parameter) else x * 3)
    a = f(ones(2))
    box["w"] = ones(2)
    b = f(ones(2))
    box["w"] = ones(2).requires_grad_()
    return [a, b, f(ones(2))]


@case
def isinstance_attr(wrap):

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(ones(2))
            self.t = ones(2)

        def forward(self, x):
            return (
                x
                + (10 if isinstance(self.w, nn.Parameter) else 1)
                + (100 if isinstance(self.t, nn.Parameter) else 2) * self.w
            )

    return [wrap(M())(ones(2))]


@case
def base_is_none(wrap):
    b = counting()
    f = wrap(lambda x: x + (x._base is None))
    return [f(ones(1)), f(b[:1]), f(ones(1)), f(b[1:2])]


@case
def is_view(wrap):
    b = counting()
    f = wrap(lambda x: x + (10 if x._is_view() else 1))
    return [f(ones(1)), f(b[:1]), f(ones(1)), f(b[1:2])]


@case
def is_leaf(wrap):
    f = wrap(lambda x: x + (10 if x.is_leaf else 1))
    p = ones(2, requires_grad=True)
    return [f(ones(2)), f(p), f(p * 1), f(p)]


@case
def offset(wrap):
    b = counting()
    f = wrap(lambda x: x + x.storage_offset())
    return [f(b[i : i + 1]) for i in (0, 1, 2, 3)]


@case
def offset_inside(wrap):
    b = counting()
    f = wrap(lambda x: x[1:] + x[1:].storage_offset())
    return [f(b[i : i + 2]) for i in (0, 1, 2)]


@case
def storage_nbytes(wrap):
    b = counting()
    f = wrap(lambda x: x + x.untyped_storage().nbytes())
    return [f(b[:1]), f(ones(1)), f(b[2:3]), f(torch.zeros(9)[:1])]


@case
def storage_size(wrap):
    b = counting()
    f = wrap(lambda x: x + x.untyped_storage().size())
    return [f(b[:1]), f(ones(1)), f(b[2:3])]


@case
def storage_len(wrap):
    b = counting()
    f = wrap(lambda x: x + len(x.untyped_storage()))
    return [f(b[:1]), f(ones(1))]


@case
def storage_ptr_equal(wrap):
    b = counting()
    f = wrap(lambda x, y: x + y if x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() else x - y)
    return [f(b[:1], ones(1)), f(b[:1], b[2:3]), f(ones(1), ones(1))]


@case
def typed_storage(wrap):
    b = counting()
    f = wrap(lambda x: x + x.storage().size())
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [f(b[:1]), f(ones(1))]


@case
def version(wrap):
    f = wrap(lambda x: x + x._version)
    y = torch.zeros(1)
    a = f(y)
    y.add_(0)
    b = f(y)
    y.add_(0)
    return [a, b, f(y)]


@case
def version_inside(wrap):

    def f0(x):
        y = x + 1
        v = y._version
        y.add_(1)
        return y + v * 10 + y._version * 100

    f = wrap(f0)
    return [f(ones(1)), f(ones(1))]


@case
def version_write(wrap):

    def f0(x):
        v = x._version
        x.add_(1)
        return x * (x._version - v)

    f = wrap(f0)
    x = ones(1)
    return [f(x), f(x), f(ones(1))]


@case
def grad_fn_none(wrap):
    f = wrap(lambda x: x * (1 if x.grad_fn is None else 2))
    p = ones(2, requires_grad=True)
    return [f(p), f(p * 1), f(ones(2))]


@case
def grad_fn_name(wrap):
    f = wrap(lambda x: x * len(x.grad_fn.name() if x.grad_fn is not None else ""))
    p = ones(2, requires_grad=True)
    return [f(p), f(p * 1), f(p.relu()), f(ones(2))]


@case
def grad_attr(wrap):
    f = wrap(lambda x: x * (2 if x.grad is None else x.grad))
    p = ones(2, requires_grad=True)
    a = f(p)
    p.grad = ones(2) * 5
    b = f(p)
    p.grad = ones(2) * 7
    return [a, b, f(p)]


@case
def grad_of_param(wrap):
    m = nn.Linear(2, 2)
    f = wrap(lambda x: x * (2 if m.weight.grad is None else m.weight.grad.sum()))
    a = f(ones(2))
    m.weight.grad = ones(2, 2)
    b = f(ones(2))
    m.weight.grad = ones(2, 2) * 3
    return [a, b, f(ones(2))]


@case
def output_nr(wrap):
    f = wrap(lambda x: x + x.output_nr)
    p = ones(4, requires_grad=True)
    a, b = p.split(2)
    return [f(a), f(b), f(p)]


@case
def shared(wrap):
    f = wrap(lambda x: x * (2 if x.is_shared() else 3))
    s = ones(2).share_memory_()
    return [f(ones(2)), f(s), f(ones(2))]


@case
def retains_grad(wrap):
    f = wrap(lambda x: x * (2 if x.retains_grad else 3))
    p = ones(2, requires_grad=True)
    q = p * 1
    q.retain_grad()
    return [f(p), f(q), f(p * 1)]


@case
def alignment(wrap):
    b = torch.zeros(64)
    o = -b.data_ptr() // 4 % 16
    f = wrap(lambda x: x + x.data_ptr() % 64)
    return [f(b[o : o + 2]), f(b[o + 1 : o + 3]), f(b[o + 4 : o + 6])]


@case
def attr_read(wrap):
    f = wrap(lambda x: x + getattr(x, "scale", 1))
    t = torch.zeros(1)
    t.scale = 3
    u = torch.zeros(1)
    u.scale = 4
    a = [f(t), f(u), f(torch.zeros(1)), f(t)]
    t.scale = 9
    return [*a, f(t)]


@case
def attr_hasattr(wrap):
    f = wrap(lambda x: x + (5 if hasattr(x, "scale") else 1))
    t = torch.zeros(1)
    t.scale = 3
    return [f(torch.zeros(1)), f(t), f(torch.zeros(1))]


@case
def attr_tensor(wrap):
    f = wrap(lambda x: x + x.mask)
    t = torch.zeros(1)
    t.mask = ones(1) * 3
    a = f(t)
    t.mask = ones(1) * 4
    b = f(t)
    t.mask.add_(1)
    return [a, b, f(t)]


@case
def attr_write(wrap):

    def f0(x):
        x.tag = 5
        return x + 1

    f = wrap(f0)
    t = ones(1)
    u = ones(1)
    return [f(t), t.tag, f(u), u.tag]


@case
def attr_write_tensor(wrap):

    def f0(x):
        x.h = x * 2
        return x + 1

    f = wrap(f0)
    t = ones(1)
    u = ones(1) * 4
    return [f(t), t.h, f(u), u.h]


@case
def attr_write_result(wrap):

    def f0(x):
        y = x + 1
        y.tag = 7
        return y

    f = wrap(f0)
    return [f(ones(1)).tag, f(ones(1)).tag]


@case
def attr_count(wrap):

    def f0(x):
        x.n = getattr(x, "n", 0) + 1
        return x * x.n

    f = wrap(f0)
    t = ones(1)
    return [f(t), f(t), f(t), t.n]


@case
def attr_param(wrap):
    m = nn.Linear(2, 2)
    m.weight.scale = 2
    f = wrap(lambda x: x * m.weight.scale)
    a = f(ones(2))
    m.weight.scale = 5
    return [a, f(ones(2))]


@case
def attr_param_missing(wrap):
    m = nn.Linear(2, 2)
    f = wrap(lambda x: x * getattr(m.weight, "scale", 1))
    a = f(ones(2))
    m.weight.scale = 5
    return [a, f(ones(2))]


@case
def attr_param_in_module(wrap):

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(ones(2))
            self.w.wd = 3

        def forward(self, x):
            return x * self.w * self.w.wd

    mm = M()
    f = wrap(mm)
    a = f(ones(2))
    mm.w.wd = 4
    return [a, f(ones(2))]


@case
def attr_write_param(wrap):
    m = nn.Linear(2, 2)

    def f0(x):
        m.weight.seen = True
        return x + 1

    f = wrap(f0)
    r = f(ones(2))
    s = m.weight.seen
    del m.weight.seen
    r2 = f(ones(2))
    return [r, s, r2, m.weight.seen]


@case
def attr_of_intermediate(wrap):

    def f0(x):
        y = x + 1
        y.k = 4
        return y * y.k

    return [wrap(f0)(ones(2))]


@case
def attr_subclass_property(wrap):
    f = wrap(lambda x: x * x.requires_grad)
    return [f(ones(2)), f(ones(2, requires_grad=True))]


@case
def neg_bit(wrap):
    z = torch.tensor([1 + 2j, 3 - 4j])
    x = z.conj().imag
    f = wrap(lambda x: x + 1)
    return [f(x), f(x.resolve_neg()), f(x), f(counting(2))]


@case
def neg_bit_second(wrap):
    z = torch.tensor([1 + 2j, 3 - 4j])
    x = z.conj().imag
    f = wrap(lambda x: x + 1)
    return [f(z.imag), f(x), f(z.imag)]


@case
def conj_imag(wrap):
    z = torch.tensor([1 + 2j, 3 - 4j])
    f = wrap(lambda z: z.imag * 1)
    return [f(z.conj()), f(z), f(z.conj())]


@case
def conj_second(wrap):
    z = torch.tensor([1 + 2j, 3 - 4j])
    f = wrap(lambda z: z.imag * 1)
    return [f(z), f(z.conj()), f(z)]


@case
def conj_mul(wrap):
    z = torch.tensor([1 + 2j, 3 - 4j])
    f = wrap(lambda z: z * 2)
    return [f(z), f(z.conj()), f(z)]


@case
def is_conj(wrap):
    z = torch.tensor([1 + 2j, 3 - 4j])
    f = wrap(lambda z: z * 2 if z.is_conj() else z * 3)
    return [f(z), f(z.conj()), f(z)]


@case
def is_neg(wrap):
    z = torch.tensor([1 + 2j, 3 - 4j])
    f = wrap(lambda z: z * 2 if z.is_neg() else z * 3)
    return [f(z.imag), f(z.conj().imag), f(z.imag)]


@case
def conj_result(wrap):
    z = torch.tensor([1 + 2j, 3 - 4j])
    f = wrap(lambda z: z.conj())
    r = f(z)
    return [r, r.is_conj(), f(z.conj()), f(z.conj()).is_conj()]


@case
def neg_result(wrap):
    z = torch.tensor([1 + 2j, 3 - 4j])
    f = wrap(lambda z: z.conj().imag)
    r = f(z)
    return [r, r.is_neg()]


@case
def neg_param(wrap):
    z = torch.tensor([1 + 2j, 3 - 4j])
    x = z.conj().imag
    box = [x]
    f = wrap(lambda y: y + box[0])
    a = f(ones(2))
    box[0] = z.imag
    return [a, f(ones(2))]


@case
def neg_write(wrap):
    z = torch.tensor([1 + 2j, 3 - 4j])
    x = z.conj().imag

    def f0(x):
        x.add_(1)
        return x * 2

    f = wrap(f0)
    return [f(x), x.clone(), z.clone(), f(x), z.clone()]


@case
def neg_out_real(wrap):
    z = torch.tensor([1 + 2j, 3 - 4j])
    f = wrap(lambda z: torch.view_as_real(z.conj().resolve_conj()) + 1)
    return [f(z), f(z.conj())]


@case
def is_inference(wrap):
    f = wrap(lambda x: x * (2 if x.is_inference() else 3))
    with torch.inference_mode():
        i = ones(2)
    return [f(ones(2)), f(i), f(ones(2))]


@case
def element_size(wrap):
    f = wrap(lambda x: x * x.element_size())
    return [f(ones(2)), f(ones(2).double()), f(ones(2).half())]


@case
def layout(wrap):
    f = wrap(lambda x: x * (2 if x.layout == torch.strided else 3))
    return [f(ones(2))]


@case
def hook_on_input(wrap):

    def f0(x):
        x.register_hook(lambda g: g * 10)
        return (x * 2).sum()

    f = wrap(f0)
    r = []
    for _ in range(3):
        p = ones(2, requires_grad=True)
        f(p).backward()
        r.append(p.grad)
    return r


@case
def hook_before(wrap):
    f = wrap(lambda x: (x * 2).sum())
    r = []
    for k in (None, 3, 5):
        p = ones(2, requires_grad=True)
        if k:
            p.register_hook(lambda g: g * k)
        f(p).backward()
        r.append(p.grad)
    return r


@case
def hook_on_param(wrap):
    m = nn.Linear(2, 2)
    nn.init.ones_(m.weight)
    seen = []
    m.weight.register_hook(lambda g: g * 3)
    m.weight.register_post_accumulate_grad_hook(lambda p: seen.append(1))
    f = wrap(m)
    f(ones(2)).sum().backward()
    f(ones(2)).sum().backward()
    return [m.weight.grad, len(seen)]


@case
def hook_inside_intermediate(wrap):

    def f0(x):
        y = x * 2
        y.register_hook(lambda g: g * 10)
        return (y * 3).sum()

    f = wrap(f0)
    r = []
    for _ in range(3):
        p = ones(2, requires_grad=True)
        f(p).backward()
        r.append(p.grad)
    return r


@case
def hook_len(wrap):
    f = wrap(lambda x: x * (1 if x._backward_hooks is None else 2))
    p = ones(2, requires_grad=True)
    a = f(p)
    p.register_hook(lambda g: g)
    return [a, f(p)]


@case
def retain_grad_inside(wrap):

    def f0(x):
        y = x * 2
        y.retain_grad()
        return ((y * 3).sum(), y)

    f = wrap(f0)
    p = ones(2, requires_grad=True)
    s, y = f(p)
    s.backward()
    return [p.grad, y.grad]


@case
def requires_grad_inside(wrap):

    def f0(x):
        y = x.detach().requires_grad_()
        return (y.requires_grad, y.is_leaf, y * 2)

    f = wrap(f0)
    a, b, c = f(ones(2))
    return [a, b, c.requires_grad]


@case
def requires_grad_arg(wrap):

    def f0(x):
        x.requires_grad_()
        return x * 2

    f = wrap(f0)
    x = ones(2)
    r = f(x)
    return [x.requires_grad, r.requires_grad]


@case
def subclass(wrap):

    class S(torch.Tensor):
        pass

    f = wrap(lambda x: x + 1)
    s = ones(2).as_subclass(S)
    r = f(s)
    return [r, type(r).__name__]


@case
def subclass_isinstance(wrap):

    class S(torch.Tensor):
        pass

    f = wrap(lambda x: x + 1 if isinstance(x, S) else x + 2)
    s = ones(2).as_subclass(S)
    return [f(ones(2)), f(s).as_subclass(torch.Tensor)]


@case
def param_subclass(wrap):

    class P(nn.Parameter):
        pass

    p = P(ones(2))
    f = wrap(lambda x: x + 1 if isinstance(x, P) else x + 2)
    return [f(ones(2)), f(p)]


@case
def two_params_same(wrap):

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(ones(2))
            self.b = self.a

        def forward(self, x):
            return x * 3 if self.a is self.b else x * 2

    mm = M()
    f = wrap(mm)
    a = f(ones(2))
    mm.b = nn.Parameter(ones(2))
    return [a, f(ones(2))]


@case
def captured_is_attribute(wrap):

    class M(nn.Module):
        def __init__(self, w):
            super().__init__()
            self.a = w
            self.other = [w]

        def forward(self, x):
            return x * 3 if self.a is self.other[0] else x * 2

    mm = M(ones(2))
    f = wrap(mm)
    a = f(ones(2))
    mm.other[0] = ones(2)
    return [a, f(ones(2))]


@case
def is_set_to(wrap):
    f = wrap(lambda x, y: x + 1 if x.is_set_to(y) else x + 2)
    b = counting()
    return [f(b, b), f(b, counting()), f(b, b.view(4))]


@case
def result_is_arg(wrap):
    f = wrap(lambda x: x)
    x = ones(2)
    return [f(x) is x]


@case
def result_is_relu_arg(wrap):
    f = wrap(lambda x: x.contiguous())
    x = ones(2)
    return [f(x) is x, f(ones(2, 2).t()).is_contiguous()]


@case
def to_same(wrap):
    f = wrap(lambda x: x * 2 if x.to(torch.float32) is x else x * 3)
    return [f(ones(2)), f(ones(2).double())]


@case
def contiguous_is_self(wrap):
    f = wrap(lambda x: x * 2 if x.contiguous() is x else x * 3)
    return [f(ones(2, 2)), f(counting().view(2, 2).t())]


@case
def inplace_is_self(wrap):
    f = wrap(lambda x: x * 2 if x.add_(1) is x else x * 3)
    return [f(ones(2, 2))]


@case
def detach_ptr(wrap):
    f = wrap(lambda x: x * 2 if x.detach().data_ptr() == x.data_ptr() else x * 3)
    return [f(ones(2, 2))]


@case
def data_is(wrap):
    f = wrap(lambda x: x * 2 if x.data is x else x * 3)
    return [f(ones(2, 2))]


@case
def expanded(wrap):
    f = wrap(lambda x: x * 2 if x.stride(0) == 0 else x * 3)
    return [f(ones(1).expand(3)), f(ones(3))]


@case
def is_contig_mf(wrap):
    f = wrap(lambda x: x * (2 if x.is_contiguous(memory_format=torch.channels_last) else 3))
    return [f(ones(1, 2, 3, 3)), f(ones(1, 2, 3, 3).to(memory_format=torch.channels_last))]


@case
def resize(wrap):

    def f0(x):
        x.resize_(3)
        return x * 0 + x.numel()

    f = wrap(f0)
    x = ones(4)
    return [f(x), x.shape == (3,)]


@case
def storage_is(wrap):
    f = wrap(lambda x: x * (2 if x.untyped_storage().is_shared() else 3))
    return [f(ones(2)), f(ones(2).share_memory_())]


@case
def storage_identity_param(wrap):
    m = nn.Linear(2, 2)
    f = wrap(lambda x: x * (2 if m.weight.data_ptr() == m.bias.data_ptr() else 3))
    return [f(ones(2))]


@case
def param_ptr_changed(wrap):
    m = nn.Linear(2, 2, bias=False)
    n = nn.Linear(2, 2, bias=False)
    f = wrap(lambda x: x * (2 if m.weight.data_ptr() == n.weight.data_ptr() else 3))
    a = f(ones(2))
    n.weight.data = m.weight.data
    return [a, f(ones(2))]


@case
def grad_dtype(wrap):
    f = wrap(lambda x: x * (2 if x.grad_fn is not None and x.requires_grad else 3))
    p = ones(2, requires_grad=True)
    return [f(p), f(p * 2)]


@case
def tensor_eq_none(wrap):
    f = wrap(lambda x, y=None: x * 2 if y is None else x * y)
    return [f(ones(2)), f(ones(2), counting(2)), f(ones(2), None)]


@case
def sizes_via_storage(wrap):
    f = wrap(lambda x: x.as_strided((2,), (1,), x.storage_offset() + 1))
    b = counting(8)
    return [f(b[:3]), f(b[2:5])]


@case
def as_strided_offset(wrap):
    f = wrap(lambda x: x.as_strided((2,), (1,), 3) * 1)
    b = counting(8)
    return [f(b[:3]), f(b[2:5])]


@case
def as_strided_beyond(wrap):
    f = wrap(lambda x: x.as_strided((2,), (2,)) * 1)
    b = counting(8)
    return [f(b[:3]), f(b[2:5])]


@case
def set_data(wrap):

    def f0(x, y):
        x.data = y
        return x * 2

    f = wrap(f0)
    x, y = (ones(2), counting(2))
    return [f(x, y), x.clone()]


@case
def dlpack_device(wrap):
    f = wrap(lambda x: x * x.__dlpack_device__()[0])
    return [f(ones(2))]


@case
def numpy_inside(wrap):
    f = wrap(lambda x: x + float(x.numpy().sum()))
    return [f(ones(2)), f(counting(2))]


@case
def weakref(wrap):
    import weakref

    f = wrap(lambda x, y: x * 2 if weakref.ref(x)() is y else x * 3)
    x = ones(2)
    return [f(x, x), f(x, ones(2))]


@case
def view_base_is_arg(wrap):
    f = wrap(lambda x, y: x * 2 if y._base is x else x * 3 + y.sum())
    x = counting(4)
    return [f(x, x[:2]), f(x, counting(2)), f(x, counting(4)[:2])]


@case
def grad_fn_next(wrap):
    f = wrap(lambda x: x * (2 if (x * 2).grad_fn is not None else 3))
    return [f(ones(2)), f(ones(2, requires_grad=True))]


@case
def requires_grad_result(wrap):
    f = wrap(lambda x: (x * 2).requires_grad)
    return [f(ones(2)), f(ones(2, requires_grad=True))]


@case
def is_leaf_inside(wrap):
    f = wrap(lambda x: ((x * 2).is_leaf, x.detach().is_leaf))
    return [f(ones(2)), f(ones(2, requires_grad=True))]


@case
def base_inside(wrap):
    f = wrap(lambda x: (x[:1]._base is x, (x + 1)[:1]._base is not None, (x + 1)._base is None, x[:1]._is_view()))
    return [f(ones(2)), f(ones(4)[:2]), f(ones(2, requires_grad=True))]


@case
def torch_equal_self(wrap):
    f = wrap(lambda q, k: q * 2 if q is k else q * 3)
    p = nn.Parameter(ones(2))
    return [f(p, p), f(p, p.data), f(p.data, p)]


@case
def same_in_module_args(wrap):
    m = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    torch.manual_seed(0)
    for p in m.parameters():
        nn.init.normal_(p)
    f = wrap(m)
    x = torch.arange(24.0).view(2, 3, 4) / 24
    y = x.flip(1)
    return [f(x, x, x)[0], f(x, y, y)[0], f(x, y, x)[0], f(x, x, x)[0]]


@case
def same_mutated(wrap):

    def f0(a, b):
        a.add_(1)
        return a * 2 + b

    f = wrap(f0)
    x, y = (ones(2), ones(2))
    return [f(x, y), f(x, x), x.clone()]


@case
def same_backward(wrap):
    f = wrap(lambda a, b: (a * 2 + b * 3 if a is b else a * b).sum())
    p = counting(2).requires_grad_()
    q = counting(2).requires_grad_()
    f(p, p).backward()
    f(p, q).backward()
    return [p.grad, q.grad]


@case
def neg_bit_after_many(wrap):
    z = torch.tensor([1 + 2j, 3 - 4j])
    f = wrap(lambda x: x + 1)
    r = [f(z.imag) for _ in range(6)]
    return [*r, f(z.conj().imag), f(z.imag), f(z.conj().imag)]


@case
def same_after_many(wrap):
    f = wrap(lambda q, k: q + k if q is k else q - k)
    x, y = (ones(2), ones(2))
    r = [f(x, y) for _ in range(6)]
    return r + [f(x, x), f(y, x), f(y, y)] + [f(x, x) for _ in range(6)] + [f(x, y)]


@case
def parameter_after_many(wrap):
    f = wrap(lambda w: w * 2 if isinstance(w, nn.Parameter) else w * 3)
    x, p = (ones(2).requires_grad_(), nn.Parameter(ones(2)))
    with torch.no_grad():
        r = [f(x) for _ in range(6)]
        return r + [f(p)] + [f(p) for _ in range(5)] + [f(x)]


@case
def offset_after_many(wrap):
    b = counting(8)
    f = wrap(lambda x: x + x.storage_offset())
    return [f(b[0:1]) for _ in range(6)] + [f(b[1:2]), f(b[1:2]), f(b[0:1])]


@case
def attribute_after_many(wrap):
    f = wrap(lambda x: x + getattr(x, "scale", 1))
    t = ones(1)
    u = ones(1)
    u.scale = 5
    return [f(t) for _ in range(6)] + [f(u), f(t), f(u)]


@case
def attributes_named_as_ours(wrap):
    f = wrap(lambda x: x * x.missing + x.real_class if hasattr(x, "missing") else x.put(torch.tensor([1]), ones(1)))
    t = counting()
    u = counting()
    u.missing, u.real_class = 2, 3
    return [f(t), f(u), f(t), f(u)]


@case
def inference_after_many(wrap):
    f = wrap(lambda x: x * (2 if x.is_inference() else 3))
    with torch.inference_mode():
        i = ones(2)
    return [f(ones(2)) for _ in range(6)] + [f(i), f(ones(2))]


@case
def captured_neg(wrap):
    z = torch.tensor([1 + 2j, 3 - 4j])
    x = z.conj().imag
    f = wrap(lambda y: y + x)
    r = [f(ones(2)), f(ones(2))]
    z.mul_(2)
    return [*r, f(ones(2))]


@case
def conj_grad(wrap):
    f = wrap(lambda z: (z * 2).abs().sum())
    r = []
    for _ in range(2):
        z = torch.tensor([1 + 2j, 3 - 4j], requires_grad=True)
        f(z.conj()).backward()
        r.append(z.grad)
    return r


MAY_REFUSE = [
    "alignment",
    "attr count",
    "attr write",
    "attr write result",
    "attr write tensor",
    "conj result",
    "data ptr args",
    "detach ptr",
    "grad attr",
    "grad of param",
    "is set to",
    "neg write",
    "numpy inside",
    "param ptr changed",
    "param subclass",
    "requires grad arg",
    "resize",
    "retain grad inside",
    "set data",
    "storage identity param",
    "storage ptr equal",
    "subclass",
    "subclass isinstance",
    "version",
    "version write",
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_gives_what_eager_gives(name, way):
    check(CASES[name], way, may_refuse=name in MAY_REFUSE)
