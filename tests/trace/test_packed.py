"""Recurrent layers on packed sequences give eager's results and gradients, one program for all lengths."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

import weft
from weft.errors import UnsupportedError

BATCH, STEPS, FEATURES, SIZE = 4, 5, 3, 6
LENGTHS = ([5, 4, 2, 1], [5, 5, 5, 5], [5, 1, 1, 1])
KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
    "proj": lambda *sizes, **options: nn.LSTM(*sizes, proj_size=2, **options),
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bias": False},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
)


class Net(nn.Module):
    """What models of texts do with lengths."""

    def __init__(self, kind: str, *, is_sorted: bool = True, total: int | None = None, **options: Any) -> None:
        super().__init__()
        self.layer = KINDS[kind](FEATURES, SIZE, dtype=torch.float64, **options)
        self.is_sorted, self.total = is_sorted, total

    def forward(self, x: torch.Tensor, lengths: Any, first: Any = None) -> tuple[torch.Tensor, ...]:
        first_in = self.layer.batch_first
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=first_in, enforce_sorted=self.is_sorted)
        output, state = self.layer(packed, first)
        padded, long = rnn.pad_packed_sequence(output, first_in, padding_value=-2.5, total_length=self.total)
        return padded, long, *(state if isinstance(state, tuple) else (state,))


def batch(net: Net, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    sizes = (BATCH, STEPS) if net.layer.batch_first else (STEPS, BATCH)
    return torch.randn(*sizes, FEATURES, dtype=torch.float64)


def results(thing: nn.Module, *arguments: Any) -> list[Any]:
    """What a call gives, and all gradients."""
    x, *rest = arguments
    thing.zero_grad()
    given = x.clone().requires_grad_()
    found = thing(given, *rest)
    sum((part.sin().sum() for part in found if part.is_floating_point()), torch.zeros(())).backward()
    return [*found, given.grad, *(parameter.grad for parameter in thing.parameters())]


def assert_alike(hybrid: nn.Module, eager: nn.Module, *arguments: Any) -> None:
    for one, other in zip(results(hybrid, *arguments), results(eager, *arguments), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12, check_stride=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_one_program_does_for_all_lengths(kind: str, options: dict[str, Any]) -> None:
    eager = Net(kind, **options)
    hybrid = weft.hybridize(deepcopy(eager))
    for turn, lengths in enumerate(LENGTHS):
        assert_alike(hybrid, eager, batch(eager, turn), torch.tensor(lengths))
    assert hybrid.forward.traces == 1


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_in_any_order_with_states_and_room(kind: str) -> None:
    eager = Net(kind, is_sorted=False, total=STEPS + 2, bidirectional=True)
    hybrid = weft.hybridize(deepcopy(eager))
    state = torch.randn(2, BATCH, 2 if kind == "proj" else SIZE, dtype=torch.float64)
    cell = torch.randn(2, BATCH, SIZE, dtype=torch.float64)
    first = (state, cell) if kind in ("lstm", "proj") else state
    for lengths in ([2, 5, 1, 3], [1, 2, 2, 4]):
        assert_alike(hybrid, eager, batch(eager), torch.tensor(lengths), first)
    assert hybrid.forward.traces == 1


@pytest.mark.parametrize("lengths", [[5, 4, 2, 1], [3, 2, 2, 1]], ids=str)
def test_lengths_in_a_list_are_known(lengths: list[int]) -> None:
    eager = Net("lstm", batch_first=True)
    assert_alike(weft.hybridize(deepcopy(eager)), eager, batch(eager), lengths)


def test_what_lies_behind_the_ends_has_no_influence() -> None:
    eager = Net("gru", bidirectional=True)
    x = batch(eager)
    x[2:, 2:] = torch.nan
    assert_alike(weft.hybridize(deepcopy(eager)), eager, x, torch.tensor([5, 4, 2, 2]))


def test_a_step_trains_with_packed_sequences() -> None:
    eager = Net("lstm", batch_first=True)
    ours = deepcopy(eager)
    one, other = (torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (ours, eager))
    step = weft.step(ours, lambda found, target: (found[0].sum(1) - target).square().mean(), one)
    target = torch.randn(BATCH, SIZE, dtype=torch.float64)
    for turn, lengths in enumerate(LENGTHS):
        x = batch(eager, turn)
        other.zero_grad()
        (eager(x, torch.tensor(lengths))[0].sum(1) - target).square().mean().backward()
        other.step()
        step(x, torch.tensor(lengths), target)
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
    assert step.traces == 1


@pytest.mark.parametrize("lengths", [[5, 4, 2, 0], [6, 4, 2, 1], [4, 5, 2, 1]], ids=str)
@pytest.mark.parametrize("known", [True, False])
def test_wrong_lengths_are_eagers_errors(lengths: list[int], known: bool) -> None:
    eager = Net("gru", batch_first=True)
    hybrid = weft.hybridize(deepcopy(eager))
    x = batch(eager)
    if not known:
        hybrid(x, torch.tensor([5, 4, 2, 1]))
    given = lengths if known else torch.tensor(lengths)
    with pytest.raises(RuntimeError) as expected:
        eager(x, given)
    with pytest.raises(RuntimeError) as found:
        hybrid(x, given)
    assert str(expected.value).partition("\n")[0] in str(found.value)


def test_a_batch_longer_than_its_sequences_is_told_what_to_do() -> None:
    eager = Net("gru", batch_first=True)
    hybrid = weft.hybridize(deepcopy(eager))
    hybrid(batch(eager), torch.tensor([5, 4, 2, 1]))
    with pytest.raises(UnsupportedError, match="total_length"):
        hybrid(batch(eager), torch.tensor([4, 4, 2, 1]))
    assert_alike(hybrid, eager, batch(eager), torch.tensor([5, 1, 1, 1]))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_batch_longer_than_its_sequences_runs_as_python_does(kind: str) -> None:
    """Which length is the longest decides between paths; where there is one for many sizes, too."""
    eager = Net(kind, is_sorted=False, batch_first=True, bidirectional=True)
    hybrid = weft.hybridize(deepcopy(eager), whole=False)
    for turn in range(10):
        torch.manual_seed(turn)
        steps = 3 + turn % 5 if turn > 4 else STEPS
        x = torch.randn(BATCH - turn % 3, steps, FEATURES, dtype=torch.float64)
        assert_alike(hybrid, eager, x, torch.randint(1, steps + 1, (len(x),)))


def test_a_step_of_a_batch_longer_than_its_sequences_runs_as_python_does() -> None:
    eager = Net("gru", batch_first=True, is_sorted=False)
    ours = deepcopy(eager)

    def loss(found: tuple[torch.Tensor, ...], _target: torch.Tensor) -> torch.Tensor:
        return found[0].square().mean()

    sgd, own = (torch.optim.SGD(net.parameters(), 0.1) for net in (eager, ours))
    step = weft.step(ours, loss, own, whole=False)
    for longest in (5, 4, 5, 3):
        lengths = torch.tensor([1, longest, 2, 1])
        sgd.zero_grad()
        loss(eager(batch(eager), lengths), lengths).backward()
        sgd.step()
        step(batch(eager), lengths, lengths)
    for one, other in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def refused(function: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(UnsupportedError) as caught:
        weft.hybridize(function)(*arguments)
    return str(caught.value)


def test_rows_of_a_packed_batch_are_refused() -> None:
    def rows(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return rnn.pack_padded_sequence(x, lengths).data * 2

    def handed_out(x: torch.Tensor, lengths: torch.Tensor) -> rnn.PackedSequence:
        return rnn.pack_padded_sequence(x, lengths)

    x, lengths = torch.randn(STEPS, BATCH, FEATURES), torch.tensor([5, 4, 2, 1])
    assert "pad_packed_sequence" in refused(rows, x, lengths)
    assert "test_packed.py" in refused(handed_out, x, lengths)


def test_how_long_the_longest_sequence_is_goes_by_its_lengths() -> None:
    def steps(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x.sum() * rnn.pack_padded_sequence(x, lengths).batch_sizes.size(0)

    x, hybrid = torch.randn(STEPS, BATCH, FEATURES), weft.hybridize(steps, whole=False)
    for lengths in (torch.tensor([longest, 2, 2, 1]) for longest in (5, 3, 4)):
        torch.testing.assert_close(hybrid(x, lengths), steps(x, lengths))


def test_packed_batches_are_handed_out_where_values_may_decide() -> None:
    def packed(x: torch.Tensor, lengths: torch.Tensor) -> rnn.PackedSequence:
        rows = rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        rows.data.mul_(2)
        return rows._replace(data=rows.data + 1)

    hybrid = weft.hybridize(packed, whole=False)
    for longest in (5, 3, 4):
        x, lengths = torch.randn(STEPS, BATCH, FEATURES), torch.tensor([2, 1, longest, 2])
        for mine, theirs in zip(hybrid(x, lengths), packed(x, lengths), strict=True):
            torch.testing.assert_close(mine, theirs, check_stride=True)


def test_dropout_between_layers_is_refused_while_training() -> None:
    net = Net("lstm", num_layers=2, dropout=0.5)
    x, lengths = batch(net), torch.tensor([5, 4, 2, 1])
    assert "pad_packed_sequence" in refused(net, x, lengths)
    net.eval()
    assert_alike(weft.hybridize(deepcopy(net)), net, x, lengths)
