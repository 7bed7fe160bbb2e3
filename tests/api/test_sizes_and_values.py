"""Code that looks at values, called with tensors of many sizes: paths read the sizes, and are the same for all."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from tests.conformance.compare import form_difference
from torch import nn
from torch.utils import _pytree as pytree

import weft
from weft.api import rare_calls
from weft.config import overrides

SIZES = (10, 20, 33, 12, 64, 5, 17)
MOST_TRACES = 5  # the first call's, and for up to 32, 64 and 128, one of which may be for two kinds of counts


@pytest.fixture(autouse=True)
def values_decide(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What users have who say nothing, on a machine that is quick however busy it is."""
    monkeypatch.setattr(rare_calls, "QUICK", 60.0)
    with overrides(whole="off"):
        yield


def pooled(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(int(b.max()) + 1, 4).index_add(0, b, x).relu()


def averaged(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    groups = int(b.max()) + 1
    return pooled(x, b) / torch.bincount(b, minlength=groups).clamp(min=1)[:, None]


def dense(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    counts = torch.bincount(b)
    longest, groups = int(counts.max()), int(b.max()) + 1
    first = torch.cat([counts.new_zeros(1), counts.cumsum(0)])[b]
    return torch.zeros(longest * groups, 4).index_copy(0, b * longest + torch.arange(b.numel()) - first, x)


def without_loops(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    edges = torch.cat([edges[:, edges[0] != edges[1]], torch.arange(x.shape[0]).expand(2, -1)], 1)
    return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])


def parts(x: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    return [part.mean(0) for part in x.split(torch.bincount(b, minlength=3).tolist())]


def by_size(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].exp() if x.shape[0] > 20 else x[x < 0] * x.shape[0]


def changed(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[y > 0] = y[y > 0] * 2
    return y


def halves(x: torch.Tensor) -> torch.Tensor:
    while x.numel() > 4:
        x = x[x > x.mean()]
    return x


def loss(x: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    known = classes != 3
    return F.cross_entropy(x[known], classes[known]) if known.any() else x.sum() * 0


def nodes(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 4), torch.randint(0, 3, (size,)).sort()[0]


def edges(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 4), torch.randint(0, size, (2, 3 * size + 1))


def rows(size: int) -> tuple[torch.Tensor]:
    return (torch.randn(size, 3),)


Case = tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]
CASES: dict[str, Case] = {
    "groups of nodes": (pooled, nodes),
    "means of groups": (averaged, nodes),
    "a batch of groups": (dense, nodes),
    "no loops in a graph": (without_loops, edges),
    "split by values": (parts, nodes),
    "a mask": (lambda x: x[x > 0].exp(), rows),
    "a mask of rows": (lambda x: x[x.sum(1) > 0].softmax(1), rows),
    "masked_select": (lambda x: torch.masked_select(x, x[:, :1] > 0).exp(), rows),
    "places": (lambda x: (torch.nonzero(x > 0), torch.where(x < 0)), rows),
    "written by a mask": (changed, rows),
    "a number": (lambda x: x / x.abs().max().item() * int(x.abs().max() * 3), rows),
    "a prefix": (lambda x, k: x[: int(k)].cumsum(0), lambda size: (*rows(size), torch.tensor(size // 2))),
    "padded": (lambda x, k: F.pad(x, (0, 0, 0, int(k))).sum(1), lambda size: (*rows(size), torch.tensor(size // 2))),
    "repeated": (lambda x, k: x.repeat_interleave(k, 0), lambda size: (*rows(size), torch.arange(size) % 3)),
    "different ones": (lambda i: i.unique(return_counts=True)[1] * 2, lambda size: (torch.arange(size) % 7,)),
    "classes": (loss, nodes),
    "branches by size": (by_size, rows),
    "a loop": (halves, lambda size: (torch.randn(size),)),
    "sizes given back": (lambda x: (x.shape[0], x[x > 0].shape, x.numel() * 2.5), rows),
    "a dictionary": (lambda d: {"h": d["x"][d["m"]]}, lambda n: ({"x": rows(n)[0], "m": torch.arange(n) > 2},)),
    "two sizes": (lambda x, y: (x[:, None] * y)[x > 0].sum(1), lambda size: (torch.randn(size), torch.randn(2 * size))),
}  # fmt: skip


def of_float(tree: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def compare(hybrid: Callable[..., Any], eager: Callable[..., Any], given: tuple[Any, ...], *, grad: bool) -> None:
    """One call of both: results, their form, gradients of what is given."""
    ours = copy.deepcopy(given)
    for leaf in of_float((given, ours)) if grad else ():
        leaf.requires_grad_()
    with torch.set_grad_enabled(grad):
        right, found = eager(*given), hybrid(*ours)
    rights, founds = pytree.tree_leaves(right), pytree.tree_leaves(found)
    assert len(rights) == len(founds)
    for wanted, one in zip(rights, founds, strict=True):
        if isinstance(wanted, torch.Tensor):
            assert form_difference(wanted, one) is None
            torch.testing.assert_close(one, wanted, equal_nan=True)
        else:
            assert one == wanted
            assert type(one) is type(wanted)
    carrying = [(one, other) for one, other in zip(founds, rights, strict=True) if getattr(other, "grad_fn", None)]
    if carrying:
        sum(one.sum() for one, _ in carrying).backward()
        sum(other.sum() for _, other in carrying).backward()
        for one, other in zip(of_float(ours), of_float(given), strict=True):
            assert (one.grad is None) == (other.grad is None)
            if other.grad is not None and one.grad is not None:
                torch.testing.assert_close(one.grad, other.grad, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("grad", [False, True], ids=["no gradients", "gradients"])
def test_paths_that_read_sizes_take_all_of_them(name: str, *, grad: bool) -> None:
    function, make = CASES[name]
    hybrid = weft.hybridize(function)
    torch.manual_seed(1)
    for size in SIZES:
        compare(hybrid, function, make(size), grad=grad)
    most = 4 * MOST_TRACES if name in ("a loop", "branches by size") else MOST_TRACES + (name == "classes")
    assert hybrid.traces <= most, weft.explain(hybrid)
    assert not hybrid.rare.calls or name == "a loop"
    assert any(map(hybrid.varying.range_of, hybrid.programs))


@pytest.mark.parametrize(
    "name", ["groups of nodes", "a mask", "a mask of rows", "sizes given back", "written by a mask"]
)
def test_no_rows_and_one_and_none_that_are_found_are_eagers(name: str) -> None:
    function, make = CASES[name]
    hybrid = weft.hybridize(function)
    for size in (10, 20, 1, 12, 0, 1, 17, 2, 0, 30):
        if size or name != "groups of nodes":
            compare(hybrid, function, make(size), grad=False)
            compare(
                hybrid,
                function,
                tuple(-thing.abs() if thing.is_floating_point() else thing for thing in make(size)),
                grad=False,
            )


def test_sizes_that_were_equal_by_chance_are_told_apart() -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sum() * y[y > 0].sum()

    hybrid = weft.hybridize(both)
    for one, other in ((10, 10), (20, 20), (20, 31), (12, 7), (9, 30)):
        compare(hybrid, both, (torch.randn(one), torch.randn(other)), grad=False)
    assert hybrid.traces <= MOST_TRACES


class Watched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.rows = nn.Linear(3, 3), nn.BatchNorm1d(3), 0
        self.last: torch.Tensor | None = None
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What is positive, which is counted and kept."""
        self.rows += x.shape[0]
        self.seen += x.shape[0]
        found = self.norm(self.layer(x[x.sum(1) > 0]))
        self.last = found.detach()
        return F.dropout(found, 0.3).sum(0)


def test_what_a_module_counts_and_keeps_is_eagers_at_every_size() -> None:
    torch.manual_seed(0)
    eager = Watched()
    hybrid = weft.hybridize(copy.deepcopy(eager))
    for size in SIZES:
        x = torch.randn(size, 3)
        torch.manual_seed(size)
        right = eager(x)
        torch.manual_seed(size)
        torch.testing.assert_close(hybrid(x), right)
        assert hybrid.rows == eager.rows
        torch.testing.assert_close(hybrid.last, eager.last)
        torch.testing.assert_close(hybrid.state_dict(), eager.state_dict())
    assert hybrid.forward.traces <= MOST_TRACES


class Keeping(nn.Module):
    """Looks at no value, and does more than to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rows, self.lengths = nn.Linear(3, 3), 0, []
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """Each pair of rows where there are pairs, added to a total."""
        self.rows += x.shape[0]
        self.lengths.append(x.shape[0])
        self.last = self.layer(x)
        total.add_(self.last.detach())
        return self.last.view(-1, 2, 3).sum(1) if x.shape[0] % 2 == 0 else self.last * 2


@pytest.mark.parametrize("grad", [False, True], ids=["no gradients", "gradients"])
def test_paths_read_sizes_wherever_there_is_no_program_for_all_of_them(*, grad: bool) -> None:
    torch.manual_seed(0)
    eager = Keeping()
    hybrid = weft.hybridize(copy.deepcopy(eager))
    for size in SIZES:
        x, totals = torch.randn(size, 3), (torch.ones(size, 3), torch.ones(size, 3))
        with torch.set_grad_enabled(grad):
            right, found = eager(x, totals[0]), hybrid(x, totals[1])
        torch.testing.assert_close(found, right)
        torch.testing.assert_close(totals[1], totals[0])
        torch.testing.assert_close(hybrid.last, eager.last)
        assert found.requires_grad == grad
        assert (hybrid.rows, hybrid.lengths) == (eager.rows, eager.lengths)
    assert not hybrid.forward.rare.calls
    assert hybrid.forward.traces <= 2 * MOST_TRACES


def test_a_whole_program_of_one_size_is_run_for_no_other() -> None:
    kept: dict[str, Any] = {"by": 1.0}

    def function(x: torch.Tensor) -> torch.Tensor:
        kept["last"] = x * 2
        return kept["last"].softmax(0) * kept["by"]

    hybrid = weft.hybridize(function)
    with torch.no_grad():
        for size in (10, 13, 12):
            hybrid(torch.randn(size, 3))
        assert any(map(hybrid.varying.range_of, hybrid.programs))
        kept["by"] = 2.0
        assert "f32[8,3]" in str(weft.program(hybrid, torch.randn(8, 3)))
        for size in (14, 8, 6, 12):
            x = torch.randn(size, 3)
            torch.testing.assert_close(hybrid(x), (x * 2).softmax(0) * 2)


def test_a_program_for_all_sizes_comes_before_paths_that_read_them() -> None:
    hybrid = weft.hybridize(lambda x: x.softmax(0) * x.shape[0])
    for size in SIZES:
        hybrid(torch.randn(size, 3))
    assert [*hybrid.varying]
    assert not any(map(hybrid.varying.range_of, hybrid.programs))


def test_a_size_that_the_code_makes_a_number_of_does_not_vary() -> None:
    def told(x: torch.Tensor) -> tuple[str, torch.Tensor]:
        return f"{x.shape[0]} of {x.shape[1]}", x[x > 0]

    hybrid = weft.hybridize(told)
    for size in SIZES:
        compare(hybrid, told, rows(size), grad=False)


def test_elements_of_a_tensor_whose_size_varies_are_not_known_beforehand() -> None:
    def counted(x: torch.Tensor) -> torch.Tensor:
        return x * torch.ones(x.shape[0]).sum().item()

    def pairs(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.t())[torch.ones(x.shape[0], x.shape[0]).triu(1).bool()]

    for function in (counted, pairs):
        hybrid = weft.hybridize(function)
        for size in SIZES:
            compare(hybrid, function, rows(size), grad=False)


def test_an_index_beyond_is_eagers_error_and_what_follows_is_right() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i] * int(i.max())

    hybrid = weft.hybridize(function)
    for size in SIZES:
        compare(hybrid, function, (torch.randn(size), torch.randint(0, size, (4,))), grad=False)
        with pytest.raises(IndexError):
            hybrid(torch.randn(size), torch.tensor([0, size, 1, 2]))


def test_calls_of_several_threads_are_right() -> None:
    hybrid, failures = weft.hybridize(pooled), []

    def work(seed: int) -> None:
        made = torch.Generator().manual_seed(seed)
        for _ in range(20):
            size = int(torch.randint(2, 70, (), generator=made))
            x, b = torch.randn(size, 4, generator=made), torch.randint(0, 5, (size,), generator=made)
            if not torch.allclose(hybrid(x, b), pooled(x, b), atol=1e-5):
                failures.append(size)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


class Experts(nn.Module):
    """Each of which takes the tokens that choose it, as transformers has it."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.gate = nn.Linear(4, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the two likeliest experts make of each token."""
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        mask = F.one_hot(chosen, 3).permute(2, 1, 0)
        found = torch.zeros_like(x)
        for number in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            place, token = torch.where(mask[number].squeeze(0))
            found.index_add_(0, token, self.experts[number](x[token]) * weights[token, place, None])
        return found


def test_a_loop_over_experts_is_one_path_for_batches_of_all_sizes() -> None:
    torch.manual_seed(0)
    eager = Experts()
    hybrid = weft.hybridize(copy.deepcopy(eager))
    for size in (30, 60, 45, 50, 41, 63, 38, 33):
        compare(hybrid, eager, (torch.randn(size, 4),), grad=size > 40)
    assert hybrid.forward.traces <= 4, weft.explain(hybrid)


def test_training_by_steps_reads_sizes_too() -> None:
    class Pools(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            """The sum of squares of groups."""
            return pooled(self.layer(x), b).square().mean()

    torch.manual_seed(0)
    nets = [Pools()]
    nets.append(copy.deepcopy(nets[0]))
    optimizers = [torch.optim.SGD(net.parameters(), 0.05, momentum=0.9) for net in nets]
    step = weft.step(nets[0], None, optimizers[0])
    for number in range(40):
        x, b = nodes(SIZES[number % len(SIZES)] + number // 10)
        ours = step(x, b)
        optimizers[1].zero_grad()
        right = nets[1](x, b)
        right.backward()
        optimizers[1].step()
        torch.testing.assert_close(ours, right.detach())
    torch.testing.assert_close(nets[0].state_dict(), nets[1].state_dict())


def test_it_says_which_sizes_paths_are_for() -> None:
    hybrid = weft.hybridize(pooled)
    for size in (10, 20, 12):
        hybrid(*nodes(size))
    assert "x: float32[2 to 32, 4], b: int64[2 to 32]" in weft.explain(hybrid)
    assert "size of dim 0 was 10, is 2 to 32" in weft.explain(hybrid)


def numbered(x: torch.Tensor, k: int, q: torch.Tensor) -> torch.Tensor:
    x = x * (k * 0.1) + x.shape[0] * int(q)
    return x / max(x.shape[0], 1)


def repeated_or_not(x: torch.Tensor, k: int, q: torch.Tensor) -> torch.Tensor:
    return x.repeat(2 if k > 3 else 1, 1) * int(q) + x.shape[0]


@pytest.mark.parametrize("function", [numbered, repeated_or_not])
@pytest.mark.parametrize("seed", range(4))
def test_numbers_among_arguments_vary_beside_sizes_that_paths_read(function: Callable[..., Any], seed: int) -> None:
    hybrid = weft.hybridize(function)
    chance = random.Random(seed)
    for _ in range(30):
        x, k, q = torch.randn(chance.randint(2, 40), 2), chance.randint(0, 5), torch.tensor(chance.randint(0, 12))
        torch.testing.assert_close(hybrid(x, k, q), function(x, k, q))


NUMBERED: dict[str, tuple[Callable[..., Any], int]] = {
    "a mask": (lambda x, k: x[x[:, 0] > 0] * k, 8),
    "a decision": (lambda x, k: x * k if x.sum() > 0 else x - k, 8),
    "different ones": (lambda x, k: (x * 4).long().unique() * k, 8),
}


@pytest.mark.parametrize("name", NUMBERED)
def test_numbers_that_vary_beside_sizes_need_no_paths_of_their_own(name: str) -> None:
    function, most = NUMBERED[name]
    hybrid, chance = weft.hybridize(function), random.Random(1)
    with torch.no_grad():
        for _ in range(40):
            x, k = torch.randn(chance.randint(2, 40), 4), chance.randint(2, 12)
            found, expected = hybrid(x, k), function(x, k)
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()
    assert hybrid.traces <= most, weft.explain(hybrid)
