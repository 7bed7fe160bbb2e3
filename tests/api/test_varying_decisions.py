"""Where values decide and sizes vary, one program relies on what values have said, and checks it in each run."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from tests.api.test_varying_sizes import poisoned
from torch import Tensor, nn

import weft
from weft.api import hybrid as hybrids
from weft.api.varying import MOST_LEFT
from weft.compile import ahead
from weft.config import overrides
from weft.trace.request import Request
from weft.trace.traced import Traced, traced_once
from weft.trace.varying import trace_varying

__all__ = ["poisoned"]
SIZES = ((4, 16), (3, 9), (2, 2), (4, 15), (3, 16), (4, 12), (2, 13))


@pytest.fixture(autouse=True)
def values_decide(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What users have who say nothing, but that programs run whatever their calls need of them."""
    monkeypatch.setattr("weft.api.varying.VaryingProgram.is_too_large", lambda *_: False)
    monkeypatch.setattr("weft.api.varying.VaryingProgram.is_worth_less", lambda *_: False)
    with overrides(whole="off"):
        yield


class Masked(nn.Module):
    """As transformers has it: a mask of nothing but what is there is left out."""

    def __init__(self, drops: float = 0.0) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(8, 8), nn.Dropout(drops)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Something of each row, or what is there summed up."""
        found = self.dropout(self.layer(x))
        if mask.all():
            return found.relu()
        return (found * mask[..., None]).cumsum(1)


class Counting(Masked):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The same, which counts the rows that it has seen."""
        self.seen += x.shape[0]
        return super().forward(x, mask)


def batch(count: int, length: int, *, whole: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(count, length, dtype=torch.bool)
    mask[0, -1] = whole
    return torch.randn(count, length, 8, requires_grad=True), mask


def compare(net: nn.Module, plain: nn.Module, given: tuple[torch.Tensor, torch.Tensor]) -> None:
    ours, theirs = net(*given), plain(*given)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(found.sum(), given[0])[0] for found in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def pair(net: nn.Module) -> tuple[nn.Module, nn.Module]:
    return weft.hybridize(copy.deepcopy(net)), net


@pytest.mark.usefixtures("poisoned", "by_library")
@pytest.mark.parametrize("whole", [True, False])
def test_a_program_for_many_sizes_decides_as_calls_have_decided(whole: bool) -> None:
    net, plain = pair(Masked())
    for sizes in (*SIZES, *SIZES):
        compare(net, plain, batch(*sizes, whole=whole))
    assert net.forward.traces == 2
    assert [program.left for program in net.forward.varying] == [0]


@pytest.mark.usefixtures("by_library")
def test_calls_that_decide_otherwise_are_eager_s_and_programs_that_few_calls_end_are_dropped() -> None:
    net, plain = pair(Masked())
    for place, sizes in enumerate((*SIZES, *SIZES)):
        compare(net, plain, batch(*sizes, whole=place % 4 != 3))
    assert [program.left for program in net.forward.varying] == [2]  # the other is of the sizes of the first call
    for _ in range(MOST_LEFT):
        for sizes in SIZES:
            compare(net, plain, batch(*sizes, whole=False))
    assert not [*net.forward.varying]
    made = net.forward.traces
    for place, sizes in enumerate((*SIZES, *SIZES, *SIZES)):  # paths that read their sizes take all of them
        compare(net, plain, batch(*sizes, whole=place % 2 == 0))
    assert any(map(net.forward.varying.range_of, net.forward.programs))
    assert net.forward.traces <= made + 2


@pytest.mark.usefixtures("by_library")
@pytest.mark.parametrize("net", [Counting(), Masked(drops=0.5)], ids=["writes", "draws"])
def test_what_could_not_be_left_has_no_such_program(net: nn.Module) -> None:
    net, plain = pair(net)
    for place, sizes in enumerate(SIZES):
        given = batch(*sizes, whole=place % 2 == 0)
        torch.manual_seed(place)
        ours = net(*given)
        torch.manual_seed(place)
        torch.testing.assert_close(ours, plain(*given))
        assert torch.equal(net.seen, plain.seen)
    assert not [*net.forward.varying]


@pytest.mark.usefixtures("by_library")
def test_a_program_to_keep_is_whole() -> None:
    net, _ = pair(Masked())
    for sizes in SIZES[:3]:
        net(*batch(*sizes))
    assert [*net.forward.varying]
    with pytest.raises(weft.UnsupportedError, match="branches on the value"):
        weft.program(net, *batch(4, 11))


def test_ways_to_aliases_are_wrapped_before_code_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is put into PyTorch's classes later is noticed: code may ask which names they have."""
    order: list[str] = []
    find, notice = hybrids.find_state, ahead.notice_aliases
    monkeypatch.setattr(hybrids, "find_state", lambda *roots: order.append("find") or find(*roots))
    monkeypatch.setattr(ahead, "notice_aliases", lambda: order.append("notice") or notice())
    weft.hybridize(lambda x: x + 1)(torch.ones(2))
    assert order[0] == "notice"


class Twice(Masked):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Another decision behind the first, which catches what is raised at it."""
        found = self.layer(x)
        try:
            whole = bool(mask.all())
        except Exception:  # noqa: BLE001 - as users write it
            return found * 0
        return found.exp() if whole and (mask.sum() > 3) else found


@pytest.mark.parametrize(("kind", "ended"), [(Masked, [True]), (Twice, [True, False])])
def test_a_call_is_traced_no_further_than_to_what_it_is_asked_for(
    kind: type[Masked], ended: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, found = kind(), []

    def traced(request: Request) -> Traced:
        if not request.decides:
            return traced_once(request)
        found.append(True)
        result = traced_once(request)
        found[-1] = False
        return result

    monkeypatch.setattr("weft.trace.varying.traced_once", traced)
    fast = weft.hybridize(copy.deepcopy(net))
    with torch.no_grad():
        for count, length in SIZES:
            for whole in (True, length % 3 > 0):
                x, mask = batch(count, length, whole=whole)
                torch.testing.assert_close(fast(x, mask), net(x, mask))
    assert found == ended


class TableThatGrows(nn.Module):
    """As positions are kept: a table is made anew where a text is longer than all before."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if self.table is None or rows > self.table.shape[0]:
            self.table = torch.arange(rows).float()
        return x * self.table[:rows, None]


def test_sizes_that_paths_read_are_not_looked_at_again_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first size has a program of its own, which does not hold any more."""
    tried: list[object] = []
    monkeypatch.setattr(hybrids, "trace_varying", lambda *given: tried.append(given) or trace_varying(*given))
    ours, theirs = weft.hybridize(TableThatGrows()), TableThatGrows()
    for rows in (12, 33, *[12] * 6, 40, 12, 20, 12):
        x = torch.randn(rows, 4)
        assert torch.equal(ours(x), theirs(x))
        assert torch.equal(ours.table, theirs.table)
    assert len(tried) <= 2


@pytest.mark.usefixtures("by_library")
def test_a_call_that_a_program_does_not_end_draws_what_eager_draws() -> None:
    other = torch.randn(3, 2)

    def found(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.svd_lowrank(x @ other.T, q=2)  # of sizes that PyTorch's own rule does not tell

    hybrid = weft.hybridize(found)
    with torch.no_grad():
        for rows in (4, 7, 5, 6, 7):
            x = torch.randn(rows, 2)
            ends = []
            for run in (found, hybrid):
                torch.manual_seed(rows)
                torch.rand(3)
                ends.append((run(x), torch.get_rng_state()))
            torch.testing.assert_close(*ends)
