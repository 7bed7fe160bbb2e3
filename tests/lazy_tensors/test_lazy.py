"""Ordinary PyTorch in a lazy block gives what it gives outside, later."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from typing_extensions import Self

import weft
from weft.engine import Var
from weft.errors import ExecutionError
from weft.lazy_tensors import segment_plan
from weft.lazy_tensors.segment_plan import SegmentPlan
from weft.lazy_tensors.session import SESSION
from weft.lazy_tensors.tasks import engine
from weft.lazy_tensors.tensor import LazyTensor
from weft.train.models import LeNet, resnet18

pytestmark = pytest.mark.usefixtures("own_engine")


def often(function: Callable[[], Any], times: int = 4) -> list[Any]:
    """Run a function so often that its segments are learned, run by operators, and compiled."""
    return [function() for _ in range(times)]


class Gate:
    """Holds up the lane until it is opened."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.variable = Var("gate")

    def __enter__(self) -> Self:
        engine().push(lambda: self.event.wait(20), writes=[self.variable], device="cpu:0")
        return self

    def open(self) -> None:
        self.event.set()

    def __exit__(self, *error: object) -> None:
        self.event.set()


def check(function: Callable[..., Any], *args: Any) -> None:
    expected = function(*args)
    with weft.lazy():
        for found in often(lambda: function(*args)):
            torch.testing.assert_close(weft.wait(found), expected)


def test_the_chapters_first_example() -> None:
    with weft.lazy():
        a, b = torch.ones((1, 2)), torch.ones((1, 2))
        for c in often(lambda: a * b + 2):
            assert c.tolist() == [[3, 3]]


def test_calls_return_before_they_have_run() -> None:
    x = torch.ones(8, 8)
    with weft.lazy():
        often(lambda: (x + 1) @ x)
        weft.waitall()
        with Gate() as gate:
            y = (x + 1) @ x
            assert isinstance(y, LazyTensor)
            assert not weft.ready(y)
            assert y.shape == (8, 8)
            assert len(y) == 8
            assert y.dtype == torch.float32
            assert y.device.type == "cpu"
            assert y.dim() == 2
            assert not y.requires_grad
            gate.open()
            assert y[0, 0].item() == 16
            assert weft.ready(y)


def test_looking_at_a_value_waits_in_every_way() -> None:
    x = torch.ones(2, 2)
    looks: list[Callable[[torch.Tensor], object]] = [
        lambda t: t.tolist() == [[2, 2], [2, 2]],
        lambda t: bool((t == 2).all()),
        lambda t: float(t[0, 0]) == 2,
        lambda t: int(t[0, 0]) == 2,
        lambda t: "2." in repr(t),
        lambda t: f"{t[0, 0]:.1f}" == "2.0",
        lambda t: np.array_equal(t.numpy(), np.full((2, 2), 2.0)),
        lambda t: np.asarray(t).sum() == 8,
        lambda t: t.cpu().sum().item() == 8,
        lambda t: 2 in t,
        lambda t: torch.equal(t, torch.full((2, 2), 2.0)),
    ]
    with weft.lazy():
        for look in looks:
            for y in often(lambda: x + 1):
                assert look(y)


def test_who_waits_for_many_tensors_has_all_of_them_pushed_first_and_waits_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[int] = []
    gate = Gate()
    wait_on = type(SESSION).wait_on

    def noted(session: Any, *variables: Var) -> None:
        if any(not engine().ready(variable) for variable in variables):
            waits.append(len(session._recordings))
            gate.open()
        wait_on(session, *variables)

    x = torch.ones(20, 20)
    with weft.lazy():
        weft.wait(x + 1)
        monkeypatch.setattr(type(SESSION), "wait_on", noted)
        with gate:
            early = x + 1
            weft.ready(early)
            found = weft.wait([early, {"late": [x + number for number in range(20)]}])
    assert waits == [0]
    assert found[0][0, 0] == 2
    assert [y[0, 0] for y in found[1]["late"]] == list(range(1, 21))


def test_writes_views_and_outs_happen_in_order() -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        row = y[0]
        row.add_(1)
        z = y.t()
        y[1] = 7
        out = torch.empty(3, 3)
        torch.add(z, row, out=out)
        row.zero_()
        return torch.stack([y, z, out, row.expand(3, 3)])

    check(work, torch.randn(3, 3))


def test_a_write_into_an_ordinary_tensor_is_seen_by_its_views_and_after_the_block() -> None:
    base = torch.zeros(64, 64)
    view = base[0]
    with weft.lazy():
        for _ in range(4):
            base.add_(1)
        assert view.sum().item() == 4 * 64
        base.add_(1)
    assert base[0, 0] == 5


def test_memory_shared_with_numpy_is_never_read_or_written_late() -> None:
    array = np.zeros((64, 64), dtype=np.float32)
    x = torch.from_numpy(array)
    with weft.lazy():
        often(lambda: x + 1)
        y = x + 1
        array[:] = 5
        assert y[0, 0].item() == 1
        for _ in range(3):
            x.add_(1)
        assert array[0, 0] == 8
        z = torch.ones(64, 64) * 3
        shared = z.numpy()
        z.add_(1)
        assert shared[0, 0] == 4


def test_what_depends_on_values_runs_at_once() -> None:
    x = torch.tensor([0.0, 1.0, 2.0, 0.0] * 8)
    check(lambda t: (t + 1)[t > 0], x)
    check(lambda t: torch.nonzero(t * 2), x)
    check(lambda t: torch.unique(t + 0), x)
    check(lambda t: torch.where(t * 1), x)


def test_random_operators_keep_their_order() -> None:
    x = torch.ones(40, 40)

    def work() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [functional.dropout(x + 1, 0.5), torch.rand(3) + 1, (x * 2).bernoulli_(0.3), torch.randn(2)]

    check(work)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_dropout_draws_as_eager_does(p: float, layout: torch.memory_format) -> None:
    x = torch.randn(4, 3, 8, 8).to(memory_format=layout)

    def work() -> list[torch.Tensor]:
        torch.manual_seed(5)
        leaf = x.clone().requires_grad_()
        y = functional.dropout(leaf * 2, p)
        z = functional.dropout(y + 1, p, training=False)
        y.square().sum().backward()
        assert leaf.grad is not None
        return [y, z, leaf.grad, torch.rand(2)]

    check(work)


@pytest.mark.parametrize("options", [{"training": 1}, {"training": None}, {"p": 2.0}, {"p": "a"}, {"rate": 0.5}])
def test_dropout_refuses_what_eager_does(options: dict[str, Any]) -> None:
    x = torch.ones(3)
    with pytest.raises((TypeError, ValueError)) as expected:
        functional.dropout(x, **options)
    with weft.lazy(), pytest.raises(expected.type):
        functional.dropout(x * 2, **options)


def test_dropout_does_not_wait() -> None:
    x = torch.ones(30, 30)
    with weft.lazy():
        often(lambda: functional.dropout(x * 2, 0.5) + 1)
        y = x * 2
        z = functional.dropout(y, 0.5)
        assert type(z) is LazyTensor
        assert y.value.real is None


def test_numbers_that_change_are_no_new_segments() -> None:
    x = torch.ones(16, 16)
    with weft.lazy():
        sums = []
        for number in range(12):
            y = (x * (number + 0.5) + number) / 2
            sums.append(y.sum())
        assert [total.item() for total in sums] == [256 * ((n + 0.5) + n) / 2 for n in range(12)]


def test_errors_of_shape_are_raised_at_the_call() -> None:
    x = torch.ones(3, 4)
    with weft.lazy():
        often(lambda: x + 1)
        y = x + 1
        with pytest.raises(RuntimeError, match="size of tensor"):
            y + torch.ones(5)
        assert y.sum().item() == 24


def test_an_error_while_running_is_raised_by_who_waits_and_spares_the_rest() -> None:
    table = torch.ones(40, 4)
    good = torch.zeros(8, dtype=torch.long)
    with weft.lazy():
        often(lambda: (functional.embedding(good, table) * 2, table * 3, table + 0))
        bad = torch.full((8,), 99)
        x = functional.embedding(bad, table)
        y = x * 2
        z = table * 3
        with pytest.raises(ExecutionError, match=r"(?s)embedding failed.*test_lazy.py:\d+.*functional.embedding\(bad"):
            y.sum().item()
        assert z.sum().item() == 480
        with pytest.raises(ExecutionError):
            x.tolist()
    with pytest.raises(ExecutionError):
        weft.wait(x)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> list[torch.Tensor]:
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


class Last(nn.LSTM):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        found: torch.Tensor = super().forward(x)[0]
        return found[:, -1]


NETS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5)),
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 5),
    ),
    "dropout": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.4), nn.Linear(32, 5)),
    "residual": lambda: nn.Sequential(weft.models.ResidualBlock(1, 4, stride=2), nn.Flatten(), nn.Linear(64, 5)),
    "transformer": lambda: nn.Sequential(
        nn.Flatten(1, 2),
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        nn.Flatten(),
        nn.Linear(64, 5),
    ),
    "lstm": lambda: nn.Sequential(nn.Flatten(1, 2), Last(8, 6), nn.Linear(6, 5)),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01),
}


@pytest.mark.parametrize("net_name", NETS)
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.slow
def test_training_equals_eager(net_name: str, optimizer_name: str) -> None:
    # In float64: where a gradient is nothing but rounding, Adam makes steps of it as large as any other.
    batches = [(torch.randn(16, 1, 8, 8, dtype=torch.float64), torch.randint(5, (16,))) for _ in range(6)]
    results = []
    for lazily in (False, True):
        torch.manual_seed(1)
        net = NETS[net_name]().double()
        optimizer = OPTIMIZERS[optimizer_name](net.parameters())
        weft.lazy(lazily)
        losses = train(net, optimizer, batches)
        weft.lazy(False)
        results.append((weft.wait(losses), [value.clone() for value in net.state_dict().values()]))
    torch.testing.assert_close(results[1], results[0], rtol=1e-7, atol=1e-8)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.layers(x).mean(1))
        return found


WHOLE_NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "LeNet": (LeNet, (16, 1, 28, 28), 8),
    "ResNet-18": (resnet18, (4, 1, 16, 16), 4),
    "transformer": (Encoder, (8, 12, 32), 8),
    "LSTM": (lambda: nn.Sequential(Last(24, 32, 2, batch_first=True), nn.Linear(32, 10)), (8, 10, 24), 8),
}


@pytest.mark.parametrize("name", WHOLE_NETS)
@pytest.mark.slow
@pytest.mark.timeout(240)  # a ResNet-18 is compiled in it
def test_networks_of_the_chapter_train_lazily_as_in_eager(name: str) -> None:
    make, shape, steps = WHOLE_NETS[name]
    batches = [(torch.randn(shape), torch.randint(10, shape[:1])) for _ in range(steps)]

    def trained(dtype: torch.dtype, *, lazily: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """The losses, and how far all that is saved of the network has come from where it began."""
        torch.manual_seed(1)
        net = make().to(dtype)
        before = [value.clone() for value in net.state_dict().values()]
        optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
        weft.lazy(lazily)
        losses = train(net, optimizer, [(x.to(dtype), y) for x, y in batches])
        weft.lazy(False)
        moved = [(now - then).flatten().double() for now, then in zip(net.state_dict().values(), before, strict=True)]
        return torch.stack(weft.wait(losses)).double(), torch.cat(moved)

    exact, eager = trained(torch.float64, lazily=False), trained(torch.float32, lazily=False)
    pushed = weft.engine_statistics().pushed
    lazy = trained(torch.float32, lazily=True)
    assert weft.engine_statistics().pushed > pushed
    for found, usual, right in zip(lazy, eager, exact, strict=True):
        allowed = 4 * (usual - right).norm() + 1e-6 * right.norm()  # roundings grow from step to step
        assert (found - right).norm() <= allowed


def test_gradients_accumulate_and_can_be_looked_at() -> None:
    weight = torch.randn(8, 8, requires_grad=True)
    x = torch.randn(8, 8)
    expected = torch.autograd.grad((x @ weight).square().sum(), weight)[0]
    with weft.lazy():
        for count in range(1, 5):
            (x @ weight).square().sum().backward()
            assert weight.grad is not None
            torch.testing.assert_close(weft.wait(weight.grad * 1), expected * count, rtol=1e-4, atol=1e-4)
        weight.grad = None
        assert weight.grad is None
        torch.testing.assert_close(
            torch.autograd.grad((x @ weight).square().sum(), weight)[0], expected, rtol=1e-4, atol=1e-4
        )
    assert weight.grad is None


def test_a_custom_function_gets_finished_tensors() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 2

    weight = torch.ones(4, 4, requires_grad=True)
    with weft.lazy():
        for _ in range(3):
            weight.grad = None
            Double.apply(weight * 3).sum().backward()
            assert weight.grad is not None
            assert weight.grad.sum().item() == 6 * 16


def test_a_decorated_function_is_a_lazy_block() -> None:
    @weft.lazy()
    def work(x: torch.Tensor) -> torch.Tensor:
        return (x + 1) * 2

    x = torch.zeros(20)
    for y in often(lambda: work(x)):
        assert (y * 1).sum() == 40


def test_lazy_tensors_may_be_used_outside_and_by_other_threads() -> None:
    x = torch.ones(20)
    with weft.lazy():
        y = often(lambda: x + 1)[-1]
    assert (y * 2).sum().item() == 80
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(float((y + 1).sum())))
    thread.start()
    thread.join(20)
    assert found == [60.0]


@pytest.mark.parametrize("megabytes", [1, 3])
def test_a_loop_that_never_waits_holds_no_more_than_the_limit(megabytes: int) -> None:
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 5))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    with weft.lazy():
        weft.limit(bytes=megabytes << 20)
        train(net, optimizer, [(torch.randn(256, 64), torch.randint(5, (256,))) for _ in range(40)])
        weft.waitall()
    assert 0 < weft.engine_statistics().most_bytes_in_flight <= megabytes << 20


def test_batches_that_only_the_queue_holds_count_as_memory() -> None:
    weight = torch.randn(100, 1)
    with weft.lazy():
        often(lambda: torch.ones(1000, 100) @ weight)
        weft.waitall()
        with Gate():
            products = [torch.ones(1000, 100) @ weight for _ in range(3)]
            weft.ready(products[-1])
            assert weft.engine_statistics().bytes_in_flight >= 3 * 1000 * 100 * 4


def test_a_timeline_of_a_block_has_all_that_was_called_in_it(tmp_path: Path) -> None:
    x = torch.ones(20, 20)
    with weft.lazy():
        often(lambda: (x + 1).sum().item())
        with weft.trace_to(tmp_path / "run.json") as timeline:
            y = (x + 1) @ x
    assert "no task" not in timeline.verdict
    assert json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert y[0, 0].item() == 40


def test_a_segment_that_is_compiled_leaves_the_random_numbers_of_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[torch.Tensor] = []
    trace = segment_plan.trace_program

    def drawing_meanwhile(request: Any) -> Any:
        function = request.function
        before = torch.get_rng_state()

        def run(*args: Any) -> Any:
            torch.set_rng_state(torch.manual_seed(5).get_state())  # as another thread's draw would leave it
            return function(*args)

        try:
            found = trace(replace(request, function=run))
            traced.append(torch.get_rng_state())
        finally:
            torch.set_rng_state(before)
        return found

    monkeypatch.setattr(segment_plan, "trace_program", drawing_meanwhile)
    x = torch.ones(20, 20, requires_grad=True)
    with weft.lazy():
        for _ in range(4):
            weft.wait(((x * 3).sum() + 1).tanh())
    seeded = torch.Generator().manual_seed(5).get_state()
    assert traced
    assert all(torch.equal(state, seeded) for state in traced)


def test_a_missing_attribute_is_told_as_by_an_ordinary_tensor() -> None:
    with weft.lazy():
        often(lambda: torch.ones(20, 20) + 1)
        with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'nope'"):
            _ = (torch.ones(20, 20) + 1).nope


def noted_runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[SegmentPlan, bool]]:
    """What runs from now on, and whether PyTorch's operators run it."""
    runs: list[tuple[SegmentPlan, bool]] = []
    run = SegmentPlan.run

    def noting(plan: SegmentPlan, *args: Any) -> Any:
        runs.append((plan, plan.by_operators()))
        return run(plan, *args)

    monkeypatch.setattr(SegmentPlan, "run", noting)
    return runs


def test_dead_work_is_never_done_and_what_nobody_holds_is_never_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def fancy(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        e = a + b
        f = c + d
        return e + f

    given = [torch.full((21, 27), float(number)) for number in range(1, 5)]
    with weft.lazy():
        often(lambda: weft.wait([fancy(*given), given[0] + 1]))
        runs = noted_runs(monkeypatch)
        for _ in range(100):
            y = given[0] + 1
        assert weft.wait(y)[0, 0] == 2
        assert weft.wait(fancy(*given))[0, 0] == 10
    dead, chapter = runs[0][0], next(plan for plan, _ in runs if len(plan.steps) >= 3)
    assert (len(dead.all_steps), len(dead.steps)) == (100, 1)
    assert len(chapter.results) == 1  # e and f are nobody's


def test_a_segment_runs_by_operators_at_first_and_as_a_program_from_the_second_time_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(23, 29)  # no other test has it: the operators are new
    with weft.lazy():
        weft.wait((x * 3 - 1) * 2 + x)
        runs = noted_runs(monkeypatch)
        for _ in range(4):
            weft.wait((x * 3 - 1) * 2 + x)
    assert [by_operators for plan, by_operators in runs if len(plan.steps) == 4] == [True, False, False, False]
