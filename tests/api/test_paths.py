"""Code that values decide in runs as paths, and does what eager does: forty programs, over many random inputs."""

from __future__ import annotations

import logging
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

ROUNDS = 24


@pytest.fixture(autouse=True)
def values_decide() -> Iterator[None]:
    """What users have who say nothing."""
    with overrides(whole="off"):
        yield


def newton(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.abs() + 1, y.abs() + 1
    for _ in range(12):
        step = (x * x - y) / (2 * x)
        x = x - step
        if step.abs().max() < 1e-3:
            break
    return x


def newton_by_numbers(x: Tensor, y: Tensor) -> Tensor:
    x, y, rounds = x.abs() + 1, y.abs() + 1, 0
    while True:
        step = (x * x - y) / (2 * x)
        x, rounds = x - step, rounds + 1
        if step.abs().max().item() < 1e-3 or rounds == 12:
            return x * rounds


def power_iteration(x: Tensor, y: Tensor) -> Tensor:
    vector = torch.ones(4)
    for _ in range(6):
        new = (x @ x.t())[:4, :4] @ vector
        new = new / new.norm()
        if torch.allclose(new, vector, atol=1e-2):
            break
        vector = new
    return vector * y.sum()


def early_exit(x: Tensor, y: Tensor) -> Tensor:
    for layer in range(4):
        x = torch.tanh(x @ y.t() + layer)
        if functional.softmax(x, -1).max() > 0.6:
            return x * 2
    return x


def adaptive_depth(x: Tensor, y: Tensor) -> Tensor:
    halted = torch.zeros(())
    while halted < 1:
        x = x + torch.tanh(y)
        halted = halted + torch.sigmoid(x.mean()) / 2 + 0.2
    return x


def clipped(x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    norm = (x * y).norm().item()
    return (x / norm if norm > 3 else x * y), norm


def scaled(x: Tensor, y: Tensor) -> Tensor:
    return x * (2.0 / (float(y.detach().abs().max()) + 1))


def sign(x: Tensor, y: Tensor) -> Tensor:
    return x if x.sum() > y.sum() else -y


def nested(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2 if y.sum() > 0 else x * 3
    return y * 5 if y[0, 0] > 0 else x + y


def written_before(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z[0] = 1
    if z.sum() > 0:
        z[1] += y[0]
        return z
    z.mul_(2)
    return z.t()


def argument_written(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        y.mul_(0.5)
        if y.sum() > 0:
            y.add_(1)
    return x * 2


def views(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    first = (x * 2).view(-1)
    if first.sum() > 0:
        return first, first.view(3, 4)
    return first[:6], y.t()


def draws(x: Tensor, y: Tensor) -> Tensor:
    x = functional.dropout(x, 0.3)
    if x.sum() > 0:
        return x + torch.rand(3, 4)
    return torch.bernoulli(torch.sigmoid(y)) * x


def any_item(x: Tensor, y: Tensor) -> Tensor:
    masked = (x > 1.5).any().item()
    return x.masked_fill(x > 1.5, 0.0) if masked else x * y


def counted(x: Tensor, y: Tensor) -> Tensor:
    return x * (y > 0).sum().item()


def divided(x: Tensor, y: Tensor) -> Tensor:
    count = int((x > 0).sum())
    return y.sum() / count if count else y.sum()


def by_index(x: Tensor, y: Tensor) -> Tensor:
    parts = [x, x * 2, x * 3, x * 4]
    return parts[int(y[0].argmax())] + y


def by_rows(x: Tensor, y: Tensor) -> Tensor:
    return y[: int((x[:, 0] > 0).sum())].sum() * x


def ragged(x: Tensor, y: Tensor) -> Tensor:
    lengths = ((x > 0).sum(1) % 3 + 1).tolist()
    return torch.stack([y[row, :length].mean() for row, length in enumerate(lengths)])


def greedy(x: Tensor, y: Tensor) -> Tensor:
    state, total = x[0], torch.zeros(())
    for _ in range(5):
        scores = functional.log_softmax(y.t() @ y @ state, 0)
        token = scores.argmax()
        total = total + scores.max()
        if token == 0:
            break
        state = state + torch.eye(4)[token]
    return total + state.sum()


def beam(x: Tensor, y: Tensor) -> Tensor:
    scores = torch.zeros(2)
    for step in range(3):
        scores, _ = (scores[:, None] + functional.log_softmax(x[:2] + step * y[:2], 1)).view(-1).topk(2)
        if scores[0] - scores[1] > 1:
            break
    return scores


def nucleus(x: Tensor, y: Tensor) -> Tensor:
    probabilities, order = functional.softmax(x[0], 0).sort(descending=True)
    kept = probabilities.cumsum(0) < 0.8
    if not kept.any():
        return probabilities[:1] * y.sum()
    return (probabilities * kept).sum() + y[0, order[0]]


def suppressed(x: Tensor, y: Tensor) -> Tensor:
    kept: list[int] = []
    for row in range(3):
        if all((x[row] - x[other]).abs().sum() > 3 for other in kept):
            kept.append(row)
    return y[kept].sum() * x


def masks(x: Tensor, y: Tensor) -> Tensor:
    return x[y > 0].mean()


def loops_removed(x: Tensor, y: Tensor) -> Tensor:
    edges = torch.tensor([[0, 1, 2, 0], [0, 2, 1, 1]])
    kept = edges[:, edges[0] != edges[1]]
    return torch.zeros(3, 4).index_add(0, kept[0], x[kept[1]]) + y


def experts(x: Tensor, y: Tensor) -> Tensor:
    chosen, result = x.argmax(1), torch.zeros_like(x)
    for expert in range(4):
        rows = torch.where(chosen == expert)[0]
        if rows.numel():
            result = result.index_add(0, rows, x[rows] * y[:, expert].sum())
    return result


def penalty(x: Tensor, y: Tensor) -> Tensor:
    leaf = (x * 1).detach().requires_grad_()
    (gradient,) = torch.autograd.grad((leaf * y).pow(3).sum(), leaf, create_graph=True)
    return gradient.pow(2).sum() if gradient.norm() > 1 else gradient.sum()


def caught(x: Tensor, y: Tensor) -> Tensor:
    index = (x[0, 0] > 0).long() * 7
    try:
        found = y[index]
    except IndexError:
        found = y[0] * 9
    return found if y.sum() > 0 else found * 2


def asserted(x: Tensor, y: Tensor) -> Tensor:
    assert torch.isfinite(x).all()
    return x * y


def bisected(x: Tensor, y: Tensor) -> Tensor:
    low, high = -2.0, 2.0
    for _ in range(3):
        middle = (low + high) / 2
        low, high = (middle, high) if x.mean() > middle else (low, middle)
    return y * (low + high)


def compared(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 if torch.equal(x > 0, y > 0) else y


def largest_first(x: Tensor, y: Tensor) -> Tensor:
    return max(x.sum(), y.sum()) * min(x.mean(), y.mean())


def in_order(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack(sorted([x.sum(), y.sum(), (x * y).sum()]))


def chained(x: Tensor, y: Tensor) -> Tensor:
    return x if -1 < x.sum() < 1 else y


def filtered(x: Tensor, y: Tensor) -> Tensor:
    rows = [row * 2 for row in x if row.sum() > 0]
    return torch.stack(rows).sum(0) * y if rows else y


def kept_in_a_list(x: Tensor, y: Tensor) -> list[float]:
    return [x.sum().item(), y.max().item() * 2]


def damped(x: Tensor, y: Tensor) -> Tensor:
    rate, best = 1.0, (x - y).pow(2).sum()
    for _ in range(4):
        loss = (x - rate * y).pow(2).sum()
        if loss < best:
            best = loss
        else:
            rate = rate / 2
    return best * rate


def logged(x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, float]]:
    loss = (x - y).pow(2).mean()
    return loss, {"loss": loss.item(), "double": loss.item() * 2}


def normalised(x: Tensor, y: Tensor) -> Tensor:
    mean = torch.zeros(4)
    result = functional.batch_norm(x, mean, torch.ones(4), training=True)
    return result if mean.sum() > 0 else y


def exploded(x: Tensor, y: Tensor) -> Tensor:
    loss = (x * y).exp().sum()
    if torch.isnan(loss) or loss > 30:
        return x * 0
    return loss


PROGRAMS = [
    newton, newton_by_numbers, power_iteration, early_exit, adaptive_depth, clipped, scaled, sign, nested,
    written_before, argument_written, views, draws, any_item, counted, divided, by_index, by_rows, ragged, greedy,
    beam, nucleus, suppressed, masks, loops_removed, experts, penalty, caught, asserted, bisected, compared,
    largest_first, in_order, chained, filtered, kept_in_a_list, damped, logged, normalised, exploded,
]  # fmt: skip


def flat(thing: Any) -> list[Any]:
    return torch.utils._pytree.tree_flatten(thing)[0]


def outcome(function: Callable[..., Any], seed: int, *, grad: bool) -> list[Any]:
    """All that a call leaves: results, gradients, what was written, where the random stream is."""
    torch.manual_seed(seed)
    given = [torch.randn(3, 4).requires_grad_(grad), torch.randn(3, 4).requires_grad_(grad)]
    taken = [one * 1 for one in given] if grad else given
    try:
        result = flat(function(*taken))
    except Exception as error:  # noqa: BLE001 - whatever it is, both have to raise it
        return [type(error), str(error)]
    left = [*result, *(one.detach().clone() for one in taken), torch.rand(1)]
    carrying = [one for one in result if isinstance(one, Tensor) and one.requires_grad]
    if carrying:
        sum(one.square().sum() for one in carrying).backward()
    return [*left, *(one.grad for one in given)]


def assert_alike(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(other, Tensor):
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
            assert one.requires_grad == other.requires_grad
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)
        elif isinstance(other, float):
            assert type(one) is float
            assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
        else:
            assert one == other


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_values_decide_as_in_eager(function: Callable[..., Any], *, grad: bool) -> None:
    ours = weft.hybridize(function)
    for seed in range(ROUNDS):
        assert_alike(outcome(ours, seed, grad=grad), outcome(function, seed, grad=grad))
    hybrid = hybrid_of(ours)
    assert sum(map(len, hybrid.programs.values())) <= 16
    assert len(hybrid.segments) <= 96


@pytest.mark.parametrize("function", [newton, nested, clipped, any_item], ids=lambda function: function.__name__)
def test_four_threads_decide_each_for_itself(function: Callable[..., Any]) -> None:
    ours = weft.hybridize(function)
    given = [(torch.randn(3, 4), torch.randn(3, 4)) for _ in range(40)]
    theirs = [flat(function(*pair)) for pair in given]
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for number in range(first, 4 * len(given), 4):
                assert_alike(flat(ours(*given[number % len(given)])), theirs[number % len(given)])
        except BaseException as error:  # noqa: BLE001 - it is told below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures


def test_rounds_of_a_loop_are_one_program() -> None:
    @weft.hybridize
    def rounds(x: Tensor) -> Tensor:
        while x.norm() > 1:
            x = x * 0.5
        return x

    for size in (1.5, 3.0, 6.0, 12.0, 24.0):
        for _ in range(3):
            rounds(torch.tensor([size, 0.0]))
    hybrid = hybrid_of(rounds)
    assert sum(map(len, hybrid.programs.values())) >= 4
    assert len(hybrid.segments) <= 6


def test_a_path_is_told_with_what_was_decided() -> None:
    ours = weft.hybridize(sign)
    ours(torch.ones(3, 4), torch.zeros(3, 4))
    assert "a path of" in str(weft.explain(ours))
    assert "decided: True" in str(weft.explain(ours))


def test_ever_other_ways_are_run_by_python() -> None:
    @weft.hybridize
    def sizes(x: Tensor, count: Tensor) -> Tensor:
        return x[: int(count)].sum()

    x = torch.randn(200)
    for count in [*range(60), *range(60)]:
        for _ in range(3):
            torch.testing.assert_close(sizes(x, torch.tensor(count)), x[:count].sum())
    assert sum(map(len, hybrid_of(sizes).programs.values())) <= 16


def test_a_module_with_parts_of_its_own_decides_and_trains() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
            self.register_buffer("used", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            if x.mean() > 0:
                self.used[0] += 1
                return self.one(x)
            self.used[1] += 1
            return self.other(x)

    nets = [Gated(), Gated()]
    nets[1].load_state_dict(nets[0].state_dict())
    weft.hybridize(nets[1])
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in nets]
    for _ in range(30):
        x = torch.randn(2, 4)
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            net(x).square().sum().backward()
            optimizer.step()
    for one, other in zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_path_that_takes_over_has_the_numbers_that_were_read_of_arguments() -> None:
    """Nothing is computed for these, so that no segment runs before the decisions that read them."""

    def function(x: Tensor, factor: Tensor, level: Tensor) -> Tensor:
        count = int(factor)
        return x * count * (2 if int(level) > 3 else 3)

    ours = weft.hybridize(function)
    for factor, level in ((5, 1), (6, 5), (7, 1), (8, 1), (9, 7)):
        given = torch.ones(3), torch.tensor(factor), torch.tensor(level)
        torch.testing.assert_close(ours(*given), function(*given))


def test_nothing_is_logged_of_numbers_that_do_not_flow_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch logs what is raised where something decides by symbols; the trace with numbers written in stands."""
    told: list[logging.LogRecord] = []
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    monkeypatch.setattr(log, "handle", lambda record: told.append(record) if log.filter(record) else None)

    def function(x: Tensor, count: Tensor) -> Tensor:
        return x.topk(min(int(count) + 1, 6), dim=1).values.sum(1)

    ours = weft.hybridize(function)
    for count in (3, 4, 2):
        x = torch.randn(8, 6, requires_grad=True)
        torch.testing.assert_close(ours(x, torch.tensor(count)), function(x, torch.tensor(count)))
    assert not told
