"""Numbers that code reads are sizes of what follows: one program runs for many of them, and gives what eager gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence

import weft
from weft.api.hybridize import hybrid_of
from weft.api.next_paths import NextPaths
from weft.api.pace import Pace
from weft.config import overrides
from weft.trace import several_traces
from weft.trace.several_traces import smaller_rooms

MOST = 24


@pytest.fixture(autouse=True)
def values_decide(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What users have who say nothing, but the clock gives no call to Python."""
    monkeypatch.setattr(Pace, "is_for_python", lambda self: False)
    monkeypatch.setattr(NextPaths, "is_steady", lambda self, found: True)
    with overrides(whole="off"):
        yield


def prefix(x: Tensor, n: Tensor) -> Any:
    return torch.tanh(x[: int(n)]).sum(0)


def prefix_by_item(x: Tensor, n: Tensor) -> Any:
    return x[: n.item()] * 2


def prefix_itself(x: Tensor, n: Tensor) -> Any:
    return torch.softmax(x[:n] @ x.t(), -1)


def narrowed(x: Tensor, n: Tensor) -> Any:
    return x.narrow(0, 0, int(n)).exp().sum(1)


def narrowed_columns(x: Tensor, n: Tensor) -> Any:
    return torch.tanh(x.t()[:, : int(n)]).sum(1)


def counted(x: Tensor, n: Tensor) -> Any:
    return torch.arange(int(n)) * 2.0 + x.sum()


def made(x: Tensor, n: Tensor) -> Any:
    return torch.cat([x, torch.ones(int(n), x.shape[1])]).sum(0)


def longer(x: Tensor, n: Tensor) -> Any:
    size = int(n)
    return x[: size // 2 + 1].sum(0) * size


def masked(x: Tensor, n: Tensor) -> Any:
    rows = torch.arange(x.shape[0]) < int(n)
    return (x * rows[:, None]).sum(0) / int(n)


def texts(x: Tensor, n: Tensor) -> Any:
    first, second = torch.stack([n, MOST - n]).tolist()
    return x[:first].mean(0) + x[:second].amax(0)


def divided(x: Tensor, n: Tensor) -> Any:
    first, second = (x.detach()[0, :2] + 2).tolist()
    return x / first + second


def normalised(x: Tensor, n: Tensor) -> Any:
    part = x[: int(n)]
    return torch.nn.functional.layer_norm(part, (x.shape[1],)) if part.shape[0] > 1 else part


def written(x: Tensor, n: Tensor) -> Any:
    z = x * 1
    z[: int(n)] = 0
    return z + 1


def suffix(x: Tensor, n: Tensor) -> Any:
    return torch.tanh(x[int(n) :]).sum(0)


def suffix_of_columns(x: Tensor, n: Tensor) -> Any:
    return torch.softmax(x.t()[:, int(n) :], -1).square().sum()


def middle(x: Tensor, n: Tensor) -> Any:
    return x[int(n) // 2 : int(n)].exp().sum(0)


def narrowed_behind(x: Tensor, n: Tensor) -> Any:
    return torch.tanh(x.narrow(0, int(n), x.shape[0] - int(n))).sum(0)


def written_behind(x: Tensor, n: Tensor) -> Any:
    z = x * 1
    z[int(n) :] = 0
    z[:, 1:][int(n) :] = x[:1, 1:]
    return torch.tanh(z)


def moved_behind(x: Tensor, n: Tensor) -> Any:
    z = torch.zeros_like(x)
    z[int(n) :] = torch.tanh(x[int(n) :]) * x[0]
    return z + 1


def split_in_two(x: Tensor, n: Tensor) -> Any:
    first, second = x.split([int(n), x.shape[0] - int(n)])
    return first.tanh().sum(0) - torch.logsumexp(second, 0)


def changed_order(x: Tensor, n: Tensor) -> Any:
    return torch.cat([x[int(n) :], x[: int(n)]]).cumsum(0)


def picked(x: Tensor, n: Tensor) -> Any:
    return torch.tanh(x[int(n)]) * x[0]


def window(x: Tensor, n: Tensor) -> Any:
    return x[int(n) : int(n) + 3].sum(0)


def written_before(x: Tensor, n: Tensor) -> Any:
    z = x * 1
    z[: int(n)] = 0
    z[1:, : int(n) // 5] = x[:1, :1]
    return torch.tanh(z)


def by_tensors(x: Tensor, n: Tensor) -> Any:
    mask = torch.zeros(x.shape[0], dtype=torch.bool)
    mask[:n] = True
    return torch.tanh(x[n // 2 : n]).sum(0) + (x * mask[:, None]).sum(0)


def padded(x: Tensor, n: Tensor) -> Any:
    return functional.pad(x, (0, int(n))).exp().sum(1)


def padded_together(x: Tensor, n: Tensor) -> Any:
    parts = [x[: int(n)], x[int(n) :]]
    return pad_sequence(parts, batch_first=True, padding_value=2.0).tanh().sum(1)


def counts_compared(x: Tensor, n: Tensor) -> Any:
    """Numbers that are no sizes, however they compare."""
    counts = [int((torch.arange(x.shape[0]) < n - k).sum()) for k in range(3)]
    return x[: counts[0]].sum(0) if counts[1] < counts[0] < 99 else x.sum(0) * counts[2]


def counted_rows(x: Tensor, n: Tensor) -> Any:
    part = x[: int(n)]
    return part.sum(0) / max(len(part), 1) + min(len(part), 9)


def longest(x: Tensor, n: Tensor) -> Any:
    size = max(half + 1 for half in [int(n), 5, int(n) // 2])
    return (torch.arange(size)[:, None] < n) * x[:size]


def made_of_numbers(x: Tensor, n: Tensor) -> Any:
    first = x.detach()[0, 0].item()
    return x[torch.tensor([[int(n)], [2]])] * torch.as_tensor([first, 1.0])[:, None, None]


def numbered_places(x: Tensor, n: Tensor) -> Any:
    row, column = divmod(int(n), 6)
    z = x * 2
    z[row, column] = 0
    return z.sum(0) * x[column, row]


def equal_distances(x: Tensor, n: Tensor) -> Any:
    return torch.linspace(0, 2, int(n))[:, None] * x[: int(n)]


def parts_of_a_part(x: Tensor, n: Tensor) -> Any:
    return torch.stack([one.tanh().sum(0) for one in x[: int(n)].split([2, int(n) - 2])])


def fewer(x: Tensor, n: Tensor) -> Any:
    count = 26 - int(n)
    return torch.zeros(count, x.shape[1]) + x[:count].tanh() * torch.arange(count)[:, None]


def fewer_of_two(x: Tensor, n: Tensor) -> Any:
    return (x[: x.shape[0] - int(n)] * x[int(n) :]).cumsum(0)


def equal_parts(x: Tensor, n: Tensor) -> Any:
    parts = x.split(int(n) + 1)
    return torch.cat([part.tanh() * (at + 1) for at, part in enumerate(parts)]).cumsum(0)


def packed(x: Tensor, n: Tensor) -> Any:
    lengths = torch.stack([n // 2, 7 + 0 * n])
    rows = pack_padded_sequence(x[:24].view(2, 12, 6), lengths, batch_first=True, enforce_sorted=False)
    found, lengths = pad_packed_sequence(rows._replace(data=torch.tanh(rows.data)), batch_first=True)
    return found.cumsum(1) / lengths[:, None, None]


def packed_together(x: Tensor, n: Tensor) -> Any:
    rows = pack_sequence([x[: int(n)], x[: int(n) // 2]])
    return pad_packed_sequence(rows)[0] + rows.data.mean() * rows.batch_sizes.max()


ONE_PATH = [prefix, prefix_by_item, narrowed, narrowed_columns, longer, masked, divided, normalised]
PARTS = [
    *(suffix, suffix_of_columns, middle, narrowed_behind, written_behind, moved_behind, split_in_two, changed_order),
    *(picked, window, written_before, by_tensors, padded, padded_together, counts_compared, counted_rows, longest),
    *(made_of_numbers, numbered_places, equal_distances, parts_of_a_part, packed, packed_together),
    *(fewer, fewer_of_two),
]
PROGRAMS: list[Callable[..., Any]] = [*ONE_PATH, prefix_itself, counted, made, texts, written, equal_parts]


def result(function: Callable[..., Any], size: int, *, grad: bool, rows: int = MOST) -> Any:
    """What a function gives, and its gradient, or what it raises."""
    x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(size)).requires_grad_(grad)
    try:
        found = function(x, torch.tensor(size))
    except (RuntimeError, ZeroDivisionError, IndexError) as error:
        return type(error)
    tangent = torch.linspace(-1, 1, found.numel()).reshape(found.shape)
    gradient = torch.autograd.grad(found, x, tangent)[0] if found.requires_grad else None
    return found.detach(), gradient, found.stride()


@pytest.mark.parametrize("grad", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize(
    ("function", "first"), [*((one, first) for one in PROGRAMS for first in (7, 1, MOST)), *((one, 7) for one in PARTS)]
)
def test_sizes_that_are_read_are_as_in_eager(function: Callable[..., Any], first: int, *, grad: bool) -> None:
    ours = weft.hybridize(function)
    for size in (first, *range(MOST + 2), -1, -3, 5, 5):
        mine, theirs = result(ours, size, grad=grad), result(function, size, grad=grad)
        if mine is not theirs:
            torch.testing.assert_close(mine, theirs, rtol=3e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("grad", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("function", [*ONE_PATH, *PARTS], ids=lambda function: function.__name__)
def test_one_program_is_for_all_sizes_that_are_read(function: Callable[..., Any], *, grad: bool) -> None:
    ours = weft.hybridize(function)
    # Of rows of its own: where a slice was seen to be whole, as beyond the last row, sizes are learnt to stay numbers.
    for size in (6, *range(2 if function in ONE_PATH else 4, MOST - 1)):
        result(ours, size, grad=grad, rows=MOST + 2)
    [[_]] = hybrid_of(ours).programs.values()  # `assert len(...)` would be code of this module that asks what `len` is


def lengths_of(size: int) -> Tensor:
    """Lengths of parts, one of which may be one, or nothing."""
    first = torch.randint(2, 6, (4,), generator=torch.Generator().manual_seed(size))
    first[size % 4] = (1, 0, 7, 3)[size // 4 % 4]
    return torch.cat([first, MOST - first.sum(0, keepdim=True)])


def split_by_list(x: Tensor, lengths: Tensor) -> Any:
    return torch.stack([part.tanh().sum(0) for part in x.split(lengths.tolist())])


def one_after_the_other(x: Tensor, lengths: Tensor) -> Any:
    found, begun = [], 0
    for length in lengths.tolist():
        found.append(x[begun : begun + length].tanh().sum(0))
        begun += length
    return torch.stack(found) * begun


def spans(x: Tensor, lengths: Tensor) -> Any:
    ends = lengths.cumsum(0)
    pairs = torch.stack([ends - lengths, ends], 1).tolist()
    return torch.stack([x[first:last].exp().sum(0) for first, last in pairs])


@pytest.mark.parametrize("grad", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("function", [split_by_list, one_after_the_other, spans], ids=lambda one: one.__name__)
def test_parts_of_lengths_that_are_read_are_as_in_eager(function: Callable[..., Any], *, grad: bool) -> None:
    ours = weft.hybridize(function)
    for size in (2, 6, 0, 1, 10, 3, 8, 9, 14):
        _check_parts(ours, function, size, grad=grad)
    # One program of all lengths, and one for each place of a length that is none or one.
    assert all(len(paths) <= 1 + 5 for paths in hybrid_of(ours).programs.values())


def test_what_is_known_of_results_is_of_no_other_lengths() -> None:
    for ours in (weft.hybridize(split_by_list), weft.hybridize(split_by_list)):
        for size in (2, 6, 10):
            _check_parts(ours, split_by_list, size, grad=False)


def _check_parts(ours: Callable[..., Any], function: Callable[..., Any], size: int, *, grad: bool) -> None:
    x = torch.randn(MOST, 6, generator=torch.Generator().manual_seed(size)).requires_grad_(grad)
    mine, theirs = ours(x, lengths_of(size)), function(x, lengths_of(size))
    torch.testing.assert_close(mine, theirs, rtol=3e-5, atol=1e-5)
    if grad:
        gradients = (torch.autograd.grad(one.square().sum(), x)[0] for one in (mine, theirs))
        torch.testing.assert_close(*gradients, rtol=3e-5, atol=1e-5)


def test_a_part_that_is_no_view_where_that_shows_is_as_in_eager() -> None:
    def function(x: Tensor, n: Tensor) -> Any:
        z = x * 2
        part, row = z[int(n) :], z[int(n)]
        z.add_(1)
        return part.sum(), row

    ours = weft.hybridize(function)
    for size in (3, 5, 3, 7, 0):
        x = torch.randn(9, 4)
        torch.testing.assert_close(ours(x, torch.tensor(size)), function(x, torch.tensor(size)))


def scaled(x: Tensor, n: Tensor) -> Any:
    return x / float(x.detach().abs().max()) + n.float()  # a method of the same name


def test_float_is_followed_beside_methods_of_its_name() -> None:
    ours = weft.hybridize(scaled)
    for size in range(2, 9):
        mine, theirs = result(ours, size, grad=True), result(scaled, size, grad=True)
        torch.testing.assert_close(mine, theirs)
    [[_]] = hybrid_of(ours).programs.values()  # `assert len(...)` would be code of this module that asks what `len` is


def turned_by_remainder(x: Tensor, n: Tensor) -> Any:
    return x.roll(int(n) * 8 % 7, 0)


@pytest.mark.parametrize("grad", [False, True], ids=["values", "gradients"])
def test_parts_that_get_smaller_as_a_number_grows_are_whole(*, grad: bool) -> None:
    """The rule of `roll` cuts at a remainder, which is not largest where the number is."""
    ours = weft.hybridize(turned_by_remainder)
    for size in (5, 4, 6, 3, 12):
        mine, theirs = result(ours, size, grad=grad), result(turned_by_remainder, size, grad=grad)
        torch.testing.assert_close(mine, theirs)


def sums_of_overlapping_parts(x: Tensor, n: Tensor, m: Tensor) -> Any:
    a, b = int(n), int(m)
    y = x + (a - b if 10 // b > 3 else 1)
    y = y + torch.arange(len(y))[:, None] * divmod(a, 3)[1]
    y = torch.cat([y, torch.zeros(10 // b, 4)])
    return y, y.narrow(0, 0, min(a - b, len(y))).sum()


def test_results_in_memory_of_a_size_that_is_read_have_backwards_of_their_own() -> None:
    ours = weft.hybridize(sums_of_overlapping_parts)
    for pair in ((7, 5), (7, 7), (9, 4), (8, 5), (9, 2), (6, 3)):
        found = []
        for function in (ours, sums_of_overlapping_parts):
            x = torch.ones(10, 4, requires_grad=True)
            whole, part = function(x, *map(torch.tensor, pair))
            whole.sum().backward(retain_graph=True)
            part.backward()
            found.append((whole.detach(), part.detach(), x.grad))
        torch.testing.assert_close(*found)


def first_rows(x: Tensor, counts: Tensor) -> Tensor:
    """Eight sizes that are read, each with a largest one of its own."""
    total = x.new_zeros(4)
    for number in range(8):
        count = counts[number].item()
        rows = x[:count]
        total = total + (rows.sum(0) if count < 10 + number else rows.mean(0))
    return total


def test_all_that_sizes_are_limited_by_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[object] = []
    monkeypatch.setattr(several_traces, "smaller_rooms", lambda traced: runs.append(traced) or smaller_rooms(traced))
    ours, x = weft.hybridize(first_rows), torch.randn(64, 4)
    for seed in range(6):
        counts = torch.randint(2, 9, (8,), generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(ours(x, counts), first_rows(x, counts), rtol=1e-5, atol=1e-5)
    assert hybrid_of(ours).traces == 1
    assert not runs[3:]
