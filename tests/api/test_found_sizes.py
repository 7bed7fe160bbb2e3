"""Operators find out how large what follows is: one program runs for many such sizes, and gives what eager gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import weft
from weft.api.hybridize import hybrid_of
from weft.config import overrides

ROUNDS = 16


@pytest.fixture(autouse=True)
def values_decide() -> Iterator[None]:
    """What users have who say nothing."""
    with overrides(whole="off"):
        yield


def mask_mean(x: Tensor, y: Tensor) -> Any:
    return x[x > 0].mean()


def mask_rows(x: Tensor, y: Tensor) -> Any:
    return (x[x.sum(1) > 0] @ y.t()).relu().sum(0)


def mask_given(x: Tensor, y: Tensor) -> Any:
    return torch.tanh(x[y > 0]) * 2


def mask_rows_given(x: Tensor, y: Tensor) -> Any:
    return torch.tanh(x[y[:, 0] > 0]) @ y.t()


def where_add(x: Tensor, y: Tensor) -> Any:
    i, j = torch.where(x > 0.3)
    out = torch.zeros(x.shape[0])
    return out.index_add(0, i, x[i, j] * y[i, j])


def where_add_(x: Tensor, y: Tensor) -> Any:
    (i,) = torch.where(x[:, 0] > 0)
    out = torch.zeros_like(x)
    out.index_add_(0, i, torch.tanh(x[i]) @ torch.eye(x.shape[1]))
    return out


def selected(x: Tensor, y: Tensor) -> Any:
    return torch.masked_select(x, y > 0).exp().sum()


def nonzero_len(x: Tensor, y: Tensor) -> Any:
    n = torch.nonzero(x > 0).shape[0]
    return x / max(n, 1)


def uniq(x: Tensor, y: Tensor) -> Any:
    u, inv = torch.unique(x.round().detach(), return_inverse=True)
    return (torch.zeros(u.shape[0]).index_add(0, inv.reshape(-1), y.reshape(-1))).square().sum()


def mask_set(x: Tensor, y: Tensor) -> Any:
    z = x.clone()
    z[x > 0] = y[x > 0] * 2
    return z


def mask_norm(x: Tensor, y: Tensor) -> Any:
    v = x[y > 0]
    return (v - v.mean()) / (v.std() + 1e-5)


def bn_rows(x: Tensor, y: Tensor) -> Any:
    v = x[y[:, 0] > 0]
    return functional.batch_norm(v, None, None, training=True) if v.shape[0] > 1 else v


def layer_rows(x: Tensor, y: Tensor) -> Any:
    v = x[y[:, 1] > -0.3]
    return functional.layer_norm(v, (x.shape[1],)).softmax(-1)


def self_loops(x: Tensor, y: Tensor) -> Any:
    e = (x.detach().abs() * 3).long().clamp(max=5)[:2]
    m = e[0] != e[1]
    e = e[:, m]
    h = y[e[0] % y.shape[0]]
    return torch.zeros_like(y).index_add(0, e[1] % y.shape[0], h)


def concat_found(x: Tensor, y: Tensor) -> Any:
    return torch.cat([x[x > 0], y[y > 0]]).sum()


def two_masks(x: Tensor, y: Tensor) -> Any:
    a, b = x[x > 0], x[x <= 0]
    return a.sum() * 2 - b.mean() if b.numel() else a.sum()


def sorted_found(x: Tensor, y: Tensor) -> Any:
    return torch.sort(x[x > 0]).values.cumsum(0)


def mask_of_mask(x: Tensor, y: Tensor) -> Any:
    v = x[x > -0.5]
    w = v[v < 0.5]
    return w.square().sum()


def experts(x: Tensor, y: Tensor) -> Any:
    p = (x @ y.t()).softmax(-1)
    w, s = p.topk(2, -1)
    out = torch.zeros_like(x)
    for e in range(p.shape[1]):
        t, k = torch.where(s == e)
        if t.numel() == 0:
            continue
        out.index_add_(0, t, torch.tanh(x[t] * (e + 1)) * w[t, k, None])
    return out


def hit_experts(x: Tensor, y: Tensor) -> Any:
    """As public mixtures of experts have it: a loop over those that were chosen at all."""
    w, s = (x @ y[:4].t()).softmax(-1).topk(2, -1)
    chosen = nn.functional.one_hot(s, 4).permute(2, 1, 0)
    out = torch.zeros_like(x)
    for e in torch.greater(chosen.sum((-1, -2)), 0).nonzero():
        k, t = torch.where(chosen[e[0]])
        out.index_add_(0, t, torch.tanh(x[t] * (e[0] + 1)) * w[t, k, None])
    return out


def rows_one_by_one(x: Tensor, y: Tensor) -> Any:
    return sum((row.tanh().sum() for row in x[x[:, 0] > 0.8]), y.sum())


def pairs_of_rows(x: Tensor, y: Tensor) -> Any:
    return sum((rows.prod(0).sum() for rows in x[x[:, 0] > 0.5].split(2)), y.sum())


def chunks_of_rows(x: Tensor, y: Tensor) -> Any:
    return sum((rows.amax(1).sum() for rows in x[x[:, 0] > 0.5].chunk(3)), y.sum())


def count_loop(x: Tensor, y: Tensor) -> Any:
    r = 0
    while (x > 0).sum() > 3:
        x = x - 0.4
        r += 1
    return x[x > 0].sum() + r


def ret_index(x: Tensor, y: Tensor) -> Any:
    return torch.nonzero(x > 0), x[x > 0]


def dropout_found(x: Tensor, y: Tensor) -> Any:
    return functional.dropout(x[x > 0], 0.5, True).sum()


def bool_branch(x: Tensor, y: Tensor) -> Any:
    m = x > 0.5
    if m.any():
        return x[m].max()
    return x.sum()


def pairs(x: Tensor, y: Tensor) -> Any:
    i = torch.nonzero(x[:, 0] > 0).squeeze(1)
    v = y[i]
    d = (v[:, None] - v[None]).square().sum(-1)
    return d.sum()


def ell(x: Tensor, y: Tensor) -> Any:
    return x[..., x[0] > 0].sum(-1)


def setslice(x: Tensor, y: Tensor) -> Any:
    z = torch.zeros_like(x)
    m = x[0] > 0
    z[:, m] = x[:, m] * y[:, m]
    return z


def argw(x: Tensor, y: Tensor) -> Any:
    return x[tuple(torch.argwhere(x > 0).t())].prod()


def resh(x: Tensor, y: Tensor) -> Any:
    v = x[y[:, 0] > 0]
    return v.reshape(-1), v.t().contiguous()


def split_list(x: Tensor, y: Tensor) -> Any:
    n = (y[:, 0] > 0).sum().item()
    a, b = x[:n], x[n:]
    return a.sum(0) - b.sum(0)


def expand_found(x: Tensor, y: Tensor) -> Any:
    v = x[y[:, 0] > 0]
    return (v.unsqueeze(1).expand(-1, 3, -1) + 1).sum(1)


def pad_found(x: Tensor, y: Tensor) -> Any:
    v = x[y[:, 0] > 0]
    return torch.cat([v, v.new_zeros(x.shape[0] - v.shape[0], x.shape[1])])


def ones_found(x: Tensor, y: Tensor) -> Any:
    v = x[y[:, 0] > 0]
    return v * torch.arange(v.shape[0])[:, None] + torch.ones(v.shape[0], 1)


def bincnt(x: Tensor, y: Tensor) -> Any:
    b = (x.detach().abs() * 2).long().reshape(-1)
    return torch.bincount(b, minlength=8).float()[:8] @ torch.ones(8) + y.sum()


def repint(x: Tensor, y: Tensor) -> Any:
    r = (y.detach()[:, 0].abs() * 2).long()
    return torch.repeat_interleave(x, r, dim=0).sum(0)


def mm_found(x: Tensor, y: Tensor) -> Any:
    v = x[y[:, 0] > 0]
    return v.t() @ v


PROGRAMS: list[Callable[..., Any]] = [
    mask_mean,
    mask_rows,
    mask_given,
    mask_rows_given,
    where_add,
    where_add_,
    selected,
    nonzero_len,
    uniq,
    mask_set,
    mask_norm,
    bn_rows,
    layer_rows,
    self_loops,
    concat_found,
    two_masks,
    sorted_found,
    mask_of_mask,
    experts,
    hit_experts,
    rows_one_by_one,
    pairs_of_rows,
    chunks_of_rows,
    count_loop,
    ret_index,
    dropout_found,
    bool_branch,
    pairs,
    ell,
    setslice,
    argw,
    resh,
    split_list,
    expand_found,
    pad_found,
    ones_found,
    bincnt,
    repint,
    mm_found,
]


def given(seed: int) -> tuple[Tensor, Tensor]:
    """Random tensors; where nothing, or one thing, is to be found among them."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(12, 8, generator=generator), torch.randn(12, 8, generator=generator)
    if seed in (7, 8):
        x, y = -x.abs(), -y.abs()
    if seed == 8:
        x[0, 0] = y[0, 0] = 1.0
    return x, y


def found(function: Callable[..., Any], seed: int, *, grad: bool) -> Any:
    """What a function gives and its gradients, or what it raises."""
    x, y = (tensor.requires_grad_(grad) for tensor in given(seed))
    torch.manual_seed(seed)
    try:
        result = function(x, y)
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error)
    results = result if isinstance(result, tuple) else (result,)
    differentiable = [one for one in results if one.requires_grad]
    tangents = [torch.linspace(-1, 1, one.numel()).reshape(one.shape) for one in differentiable]
    gradients = torch.autograd.grad(differentiable, (x, y), tangents, allow_unused=True) if differentiable else ()
    return [one.detach() for one in results], gradients, [one.stride() for one in results]


@pytest.mark.parametrize("grad", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
@pytest.mark.filterwarnings("ignore:std")
def test_found_sizes_are_as_in_eager(function: Callable[..., Any], *, grad: bool) -> None:
    ours = weft.hybridize(function)
    for seed in range(ROUNDS):
        mine, theirs = found(ours, seed, grad=grad), found(function, seed, grad=grad)
        if mine is not theirs:
            torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=3e-5, atol=1e-5)


@pytest.mark.parametrize("grad", [False, True], ids=["values", "gradients"])
def test_one_program_runs_for_many_found_sizes(*, grad: bool) -> None:
    ours = weft.hybridize(where_add)
    counts = set()
    for seed in range(20, 50):
        found(ours, seed, grad=grad)
        counts.add(int((given(seed)[0] > 0.3).sum()))
    [paths] = hybrid_of(ours).programs.values()
    assert len(counts) > 10
    assert len(paths) == 1


def test_gradients_of_gradients_go_through_found_sizes() -> None:
    def penalty(x: Tensor, y: Tensor) -> Tensor:
        return functional.dropout(torch.tanh(x[y > 0] * 2).square(), 0.3).sum()

    ours = weft.hybridize(penalty)
    for seed in range(6):
        rows = []
        for function in (penalty, ours):
            x, y = given(seed)
            x.requires_grad_(True)
            torch.manual_seed(seed)
            [first] = torch.autograd.grad(function(x, y), x, create_graph=True)
            rows.append((first.detach(), torch.autograd.grad(first.square().sum(), x)[0], torch.rand(1)))
        torch.testing.assert_close(*rows, rtol=1e-4, atol=1e-5)


def test_threads_find_sizes_of_their_own() -> None:
    ours, wrong = weft.hybridize(where_add), []

    def run(first: int) -> None:
        for seed in range(first, first + 12):
            x, y = given(seed)
            if not torch.allclose(ours(x, y), where_add(x, y), rtol=1e-4, atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=run, args=(place * 100,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not wrong


class Experts(nn.Module):
    """Each token goes to two of four."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = functional.softmax(self.gate(x), -1).topk(2, -1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            if token.numel() == 0:
                continue
            result.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return result


def test_experts_that_are_chosen_train_as_in_eager() -> None:
    torch.manual_seed(0)
    nets = [Experts(), Experts()]
    nets[1].load_state_dict(nets[0].state_dict())
    weft.hybridize(nets[1])
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in nets]
    for _ in range(12):
        x = torch.randn(40, 16)
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close([*nets[0].parameters()], [*nets[1].parameters()], rtol=1e-4, atol=1e-5)
    [paths] = hybrid_of(nets[1]).programs.values()
    assert len(paths) <= 2
