"""Checked calls compare all that a program gives and changes with eager PyTorch, and say where both part."""

from __future__ import annotations

import collections
import copy
import pickle
import random
import threading
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as every program names it
from tests import ways
from tests.ways import Way, Work, assert_every_way, difference
from torch import nn

import weft
from weft.api import hybrid as hybrid_module
from weft.api.checks import first_value
from weft.api.hybrid import Hybrid
from weft.api.hybridize import checked as check_next_calls
from weft.api.step import Step
from weft.compile.pipeline import compile_graph
from weft.config import overrides
from weft.errors import InternalError, MismatchError, UnsupportedError, UsageError

pytestmark = pytest.mark.usefixtures("by_library")


def checked(calls: int) -> Way:
    return Way(lambda thing: weft.hybridize(thing, check=calls), lambda: overrides(codegen="library"), exact=True)


class Net(nn.Module):
    """Normalises, drops, keeps a list and a cache."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3))
        self.last: torch.Tensor | None = None
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        self.total += y.detach().mean(0)
        self.last = y.detach()
        return y


def plain() -> Work:
    return Work.repeated(lambda x: (x * 2).relu(), torch.randn(3))


def trained_layers() -> Work:
    net = Net()
    torch.manual_seed(1)
    return Work(net, [((torch.randn(5, 4),), {}) for _ in range(4)], backward=True)


def written_argument() -> Work:
    return Work.repeated(lambda x: x.add_(1).sum(), torch.ones(3), calls=4)


def argument_in_containers() -> Work:
    def function(batch, seen):
        batch["h"] = batch["x"] * 2
        seen.append(batch["h"])
        return batch

    return Work.repeated(function, {"x": torch.ones(2)}, [])


def views() -> Work:
    return Work.repeated(lambda x: (x[:1], x.t(), x), torch.ones(2, 2))


def gradients_of_arguments() -> Work:
    return Work(lambda x: (x**3).exp(), [((torch.randn(3, requires_grad=True),), {}) for _ in range(3)], backward=True)


def history_of_arguments() -> Work:
    leaf = torch.randn(3, requires_grad=True)
    return Work(lambda x: (x * 2).sin(), [((leaf * 2,), {}) for _ in range(3)], watched=leaf, backward=True)


def draws() -> Work:
    return Work.repeated(lambda x: F.dropout(x) + torch.rand(3), torch.ones(3))


def own_generator() -> Work:
    generator = torch.Generator().manual_seed(3)
    return Work.repeated(lambda x, g: x + torch.rand(3, generator=g), torch.ones(3), generator)


def keeps_globals_and_closures() -> Work:
    kept: dict[str, Any] = {}
    last = None

    def function(x):
        nonlocal last
        last = x * 2
        kept["x"] = last
        return last + 1

    return Work.repeated(function, torch.ones(3))


def given_objects() -> Work:
    def function(x, thing):
        thing.h = x * 2
        return thing.h

    return Work.repeated(function, torch.ones(3), types.SimpleNamespace(h=None, n=2))


def raising() -> Work:
    def function(x, k):
        if k == 3:
            raise ValueError(f"{k} is too many")
        return x * k

    return Work(function, [((torch.ones(2), k), {}) for k in (1, 3, 2)])


def without_gradients() -> Work:
    return Work.repeated(trained_layers().thing, torch.randn(5, 4), around=torch.no_grad)


def in_inference_mode() -> Work:
    return Work(lambda x: x * 2, [((torch.ones(3),), {})] * 3, around=torch.inference_mode)


def keywords() -> Work:
    return Work.repeated(
        lambda x, *more, scale=1.0, **rest: x * scale + more[0] + rest["b"], torch.ones(2), 1, b=2, scale=3
    )


def random_states_of_others() -> Work:
    def function(x, generator, own):
        return x * 2

    return Work.repeated(function, torch.ones(2), np.random.default_rng(0), random.Random(0))


def special_numbers() -> Work:
    return Work.repeated(lambda x: (x / x, x.log()), torch.tensor([0.0, -1.0, torch.inf, torch.nan]))


def containers_of_many_kinds() -> Work:
    held = {
        "o": collections.OrderedDict(a=torch.ones(1)),
        "q": collections.deque([torch.ones(1)]),
        "s": {1},
        "t": (1, [2]),
    }
    return Work.repeated(lambda x, c: x + c["o"]["a"] + c["q"][0], torch.ones(2), held)


FAITHFUL = (
    plain,
    trained_layers,
    written_argument,
    argument_in_containers,
    views,
    gradients_of_arguments,
    history_of_arguments,
    draws,
    own_generator,
    keeps_globals_and_closures,
    given_objects,
    raising,
    in_inference_mode,
    keywords,
    random_states_of_others,
    special_numbers,
    containers_of_many_kinds,
)


@pytest.mark.parametrize("make", FAITHFUL)
def test_a_checked_call_leaves_what_an_unchecked_one_leaves(make, monkeypatch):
    monkeypatch.setitem(ways.WAYS, "checked", checked(2))
    assert difference(make, "checked") is None


# -- faults: what a program does otherwise is told -----------------------------------------------------------------


def broken(change: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
    """Let programs do something else: `change(result, arguments)` gives the result."""
    right = Hybrid._by_program

    def wrong(self, call):
        return change(right(self, call), call.arguments)

    return mock.patch.object(Hybrid, "_by_program", wrong)


def noted(result, arguments):
    arguments[1]["new"] = 1
    return result


def popped(result, arguments):
    arguments[1]["l"].pop()
    return result


def replaced(result, arguments):
    arguments[1]["t"] = arguments[1]["t"].clone()
    return result


def written(result, arguments):
    arguments[0].data.add_(1)
    return result


def reordered(result, arguments):
    arguments[1]["n"] = arguments[1].pop("n")
    return result


def graded(result, arguments):
    arguments[1]["t"].grad = torch.ones(3)
    return result


def drawn(draw):
    def change(result, arguments):
        draw()
        return result

    return change


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * 2


FAULTS: dict[str, tuple[Callable[..., Any], str]] = {
    "values": (lambda r, a: r + 1, "the result differs"),
    "one value": (lambda r, a: r + torch.tensor([0, 0, 1e-2]), "differs in 1 of 3 elements; that at \\[2\\]"),
    "dtype": (lambda r, a: r.double(), "dtype"),
    "shape": (lambda r, a: r[None], "shape"),
    "strides": (lambda r, a: torch.stack([r, r], 1)[:, 0], "strides"),
    "history": (lambda r, a: r.detach(), "requires_grad"),
    "gradient": (lambda r, a: Doubled.apply(r), "the gradient of argument x"),
    "kind": (lambda r, a: [r], "is a list"),
    "nan": (lambda r, a: r * torch.nan, "differs"),
    "infinity": (lambda r, a: r / 0, "differs"),
    "argument": (written, "argument x differs"),
    "alias": (lambda r, a: a[0], "another object|history|differs"),
    "new key": (noted, "argument d holds"),
    "popped": (popped, "argument d\\['l'\\] holds"),
    "another tensor": (replaced, "argument d\\['t'\\] is another object"),
    "order": (reordered, "argument d holds"),
    "grad": (graded, "argument d\\['t'\\]"),
    "stream of torch": (drawn(lambda: torch.rand(1)), "the random stream of torch"),
    "stream of numpy": (drawn(np.random.rand), "the random stream of numpy"),
    "stream of python": (drawn(random.random), "the random stream of random"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_with_its_place(name):
    change, told = FAULTS[name]
    x, d = torch.rand(3, requires_grad=True), {"t": torch.ones(3), "n": 1, "l": [1, 2]}
    function = weft.hybridize(lambda x, d: (x + d["t"]).exp(), check=1)
    state = torch.get_rng_state()
    with broken(change), pytest.raises(MismatchError, match=told):
        function(x, d)
    assert [*d] == ["t", "n", "l"]
    assert d["l"] == [1, 2]
    assert torch.equal(d["t"], torch.ones(3))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(function(x, d), (x + d["t"]).exp())


def test_another_exception_and_none_are_told():
    def function(x):
        raise KeyError("k")

    def swallowed(self, *_):
        return torch.ones(1)

    with mock.patch.object(Hybrid, "_by_program", swallowed), pytest.raises(MismatchError, match="KeyError"):
        weft.hybridize(function, check=1)(torch.ones(1))
    with broken(lambda r, a: a[1]), pytest.raises(MismatchError, match="IndexError"):
        weft.hybridize(lambda x: x, check=1)(torch.ones(1))


def test_a_broken_value_of_machine_code_is_named_with_its_line(monkeypatch):
    def function(x):
        y = x + 1
        z = y.sin()
        return z * 2

    class Wrong:
        """Computes all from the sine on wrongly."""

        def __init__(self, graph, weights):
            self.graph, self.right = graph, compile_graph(graph, weights)

        def __call__(self, inputs):
            names = [str(result.value.attributes) for result in self.graph.results]
            first = next(place for place, name in enumerate(names) if "aten.sin" in name)
            return tuple(tensor + (place >= first) for place, tensor in enumerate(self.right(inputs)))

    monkeypatch.setattr(first_value, "compile_graph", Wrong)
    with broken(lambda r, a: r + 1), pytest.raises(MismatchError) as told:
        weft.hybridize(function, check=1)(torch.randn(3))
    assert "z = y.sin()" in str(told.value.where)
    assert "aten.sin" in str(told.value.why)


def test_a_value_that_a_trace_lost_is_named_with_its_line():
    count = 0

    def function(x):
        nonlocal count
        factor = count + 2.0
        y = x * factor
        return y + 10

    hybrid = weft.hybridize(function, check=2)
    hybrid(torch.ones(2))
    count = 1
    holds = mock.patch.object(hybrid_module.Guarded, "holds", return_value=True)
    with holds, pytest.raises(MismatchError) as told:
        hybrid(torch.ones(2))
    assert "y = x * factor" in str(told.value.where)
    assert "is 2.0, eager PyTorch's 3.0" in str(told.value.why)


def test_a_mismatch_is_wefts_own_fault_and_says_how_to_go_on():
    with broken(lambda r, a: r + 1), pytest.raises(InternalError) as told:
        weft.hybridize(lambda x: x, check=1)(torch.ones(1))
    assert isinstance(told.value, weft.MismatchError)
    assert "report" in str(told.value.fix)
    assert "hybridize(thing, False)" in str(told.value.fix)
    assert "test_check.py" in str(told.value.where)


def test_roundings_are_no_mismatch():
    with overrides(codegen="native"):
        net = weft.hybridize(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Softmax(-1)), check=2)
        for _ in range(2):
            net(torch.randn(8, 64))
    assert net.forward.check.left == 0


def test_a_gradient_that_is_nothing_but_roundings_is_no_mismatch():
    net = weft.hybridize(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)), check=2)
    with overrides(codegen="native"):
        for _ in range(2):
            net(torch.randn(32, 16)).sum().backward()


# -- how it is counted, copied, refused ----------------------------------------------------------------------------


def calls_of(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[int]]:
    seen: list[int] = []

    def counting(x):
        seen.append(1)
        return function(x)

    return counting, seen


def test_only_the_first_calls_are_checked():
    net = weft.hybridize(nn.Linear(2, 2), check=3)
    left = []
    for _ in range(5):
        net(torch.ones(1, 2))
        left.append(net.forward.check.left)
    assert left == [2, 1, 0, 0, 0]


def test_without_checks_there_is_nothing_to_ask():
    net = weft.hybridize(nn.Linear(2, 2))
    assert net.forward.check is None
    assert weft.hybridize(lambda x: x, check=0).check is None


def test_after_its_checks_a_call_takes_the_quick_way():
    hybrid = weft.hybridize(lambda x: x * 2, check=1)
    hybrid(torch.ones(2))
    long = mock.patch.object(Hybrid, "_call", side_effect=AssertionError("the long way"))
    with long, pytest.raises(AssertionError, match="the long way"):
        hybrid(torch.ones(2))
    hybrid(torch.ones(2))
    with mock.patch.object(Hybrid, "_call", side_effect=AssertionError("the long way")):
        assert torch.equal(hybrid(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "3", None])
def test_what_is_no_number_of_calls_is_refused(wrong):
    with pytest.raises(UsageError, match="check"):
        weft.hybridize(nn.Linear(2, 2), check=wrong)
    net = nn.Linear(2, 2)
    with pytest.raises(UsageError, match="check"):
        weft.step(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1), check=wrong)


def test_a_refusal_passes_a_check_and_leaves_nothing_behind():
    def function(x, seen):
        seen.append(1)
        return x if x.sum() > 0 else -x

    hybrid, seen = weft.hybridize(function, check=2), []
    with pytest.raises(UnsupportedError):
        hybrid(torch.ones(2), seen)
    assert seen == []


def test_code_that_falls_back_is_checked_without_a_mismatch():
    def function(x):
        return x if x.sum() > 0 else -x

    hybrid = weft.hybridize(function, fallback="eager", check=2)
    with pytest.warns(UserWarning, match="imperatively"):
        hybrid(torch.ones(2))
    assert torch.equal(hybrid(-torch.ones(2)), torch.ones(2))


def test_what_cannot_be_put_back_runs_by_eager_pytorch_and_is_said():
    source = iter([1.0, 2.0, 3.0])
    hybrid = weft.hybridize(lambda x, it: x * next(it), check=1)
    with pytest.warns(UserWarning, match="cannot be put back"):
        assert torch.equal(hybrid(torch.ones(1), source), torch.ones(1))
    assert next(source) == 2.0


def test_an_argument_whose_history_changes_in_place_is_said():
    hybrid = weft.hybridize(lambda x: x.mul_(2), check=1)
    x = torch.ones(2, requires_grad=True) * 3
    with pytest.warns(UserWarning, match="history"):
        hybrid(x)
    assert torch.equal(x, torch.full((2,), 6.0))


def test_copies_and_pickles_check_anew():
    net = weft.hybridize(nn.Linear(2, 2), check=1)
    net(torch.ones(1, 2))
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other.forward.check.left == 1
        other(torch.ones(1, 2))
        assert other.forward.check.left == 0


def test_methods_are_checked_for_each_object():
    class Thing:
        def __init__(self, scale):
            self.scale = scale

        @weft.hybridize(check=1)
        def go(self, x):
            return x * self.scale

    one, other = Thing(2.0), Thing(3.0)
    one.go(torch.ones(1))
    assert one.go.check.left == 0
    assert other.go.check.left == 1


def test_checked_modules_in_checked_modules_work():
    inner = weft.hybridize(nn.Linear(2, 2), check=2)
    outer = weft.hybridize(nn.Sequential(inner, nn.ReLU()), check=2)
    for _ in range(3):
        outer(torch.ones(1, 2))
    assert outer.forward.check.left == 0


def test_threads_check_one_at_a_time():
    net = weft.hybridize(Net().eval(), check=8)
    x = torch.randn(4, 4)
    failed: list[Exception] = []
    start = threading.Barrier(4)

    def work():
        start.wait(30)
        try:
            for _ in range(4):
                with torch.no_grad():
                    net(x)
        except Exception as error:  # noqa: BLE001 - told below
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert net.forward.check.left == 0


def test_lazy_code_is_checked_too():
    net = weft.hybridize(nn.Linear(4, 4), check=2)
    with weft.lazy():
        for _ in range(3):
            y = net(torch.ones(2, 4) * 2).relu()
    assert torch.equal(weft.wait(y), F.linear(torch.ones(2, 4) * 2, net.weight, net.bias).relu())
    assert net.forward.check.left == 0


def test_a_check_adds_nothing_to_gradients_and_lets_backward_run():
    net = weft.hybridize(nn.Linear(4, 4), check=2)
    for _ in range(3):
        net.zero_grad()
        y = net(torch.ones(2, 4))
        assert net.weight.grad is None
        y.sum().backward()
        assert torch.equal(net.weight.grad, torch.full((4, 4), 2.0))


def test_a_lazy_module_is_checked_from_its_second_call_on():
    net = weft.hybridize(nn.Sequential(nn.LazyLinear(3)), check=2)
    left = []
    for _ in range(3):
        net(torch.ones(1, 2))
        left.append(net.forward.check.left)
    assert left == [2, 1, 0]


# -- training steps ------------------------------------------------------------------------------------------------


def stepping(make: Callable[..., torch.optim.Optimizer], **options: Any) -> tuple[nn.Module, Step]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    return net, weft.step(net, F.cross_entropy, make(net.parameters()), **options)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "radam": torch.optim.RAdam,
}


@pytest.mark.parametrize(
    "options", [{}, {"accumulate": 2}, {"clip_norm": 0.5}, {"clip_value": 0.01}, {"memory": "low"}]
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_checked_steps_train_as_unchecked_ones(name, options):
    losses = []
    for check in (0, 4):
        net, step = stepping(OPTIMIZERS[name], check=check, **options)
        torch.manual_seed(1)
        losses.append([float(step(torch.randn(6, 4), torch.arange(6) % 3)) for _ in range(6)])
        losses.append([float(tensor.double().sum()) for tensor in net.state_dict().values()])
        assert check == 0 or step.check.left == 0
    assert losses[0] == losses[2]
    assert losses[1] == losses[3]


def broken_step(change: Callable[[Step], Any]) -> Any:
    right = Step._trained

    def wrong(self, arguments, keywords):
        found = right(self, arguments, keywords)
        with torch.no_grad():
            change(self)
        return found

    return mock.patch.object(Step, "_trained", wrong)


def first(step: Step) -> torch.Tensor:
    return next(step._parameters())


STEP_FAULTS = {
    "parameter": (lambda step: first(step).add_(0.1), "weight"),
    "gradient": (lambda step: first(step).grad.mul_(2), "grad"),
    "no gradient": (lambda step: setattr(first(step), "grad", None), "weight"),
    "state": (lambda step: step.optimizer.state[first(step)]["exp_avg"].add_(1), "exp_avg"),
    "count": (lambda step: step.optimizer.state[first(step)]["step"].add_(1), "step"),
    "group": (lambda step: step.optimizer.param_groups[0].update(lr=0.5), "lr"),
    "buffer": (lambda step: step.task.net[1].running_mean.add_(1), "running_mean"),
    "mode": (lambda step: step.task.net.eval(), "training"),
}


@pytest.mark.parametrize("name", STEP_FAULTS)
def test_a_fault_of_a_step_is_told(name):
    change, told = STEP_FAULTS[name]
    net, step = stepping(torch.optim.Adam, check=1)
    before = copy.deepcopy(net.state_dict())
    with broken_step(change), pytest.raises(MismatchError, match=told):
        step(torch.randn(6, 4), torch.arange(6) % 3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert not step.optimizer.state
    assert net.training


def test_steps_of_an_optimizer_that_searches_are_not_checked_and_that_is_said():
    with pytest.warns(UserWarning, match="LBFGS are not checked"):
        _, step = stepping(torch.optim.LBFGS, check=2)
    assert step.check is None


def test_a_step_that_has_found_its_short_way_is_checked_where_that_is_asked_for():
    net, step = stepping(OPTIMIZERS["sgd"])
    net.eval()
    for _ in range(6):
        step(torch.randn(6, 4), torch.arange(6) % 3)
    assert step._steady is not None
    assert check_next_calls(step, 2) is step
    with broken_step(lambda step: first(step).add_(0.1)), pytest.raises(MismatchError, match="weight"):
        step(torch.randn(6, 4), torch.arange(6) % 3)
    for _ in range(4):
        step(torch.randn(6, 4), torch.arange(6) % 3)
    assert step.check.left == 0


def test_a_method_that_has_an_entry_is_checked_where_that_is_asked_for():
    class Scaled:
        @weft.hybridize
        def go(self, x):
            return x * 2

    method = Scaled().go
    for _ in range(4):
        method(torch.ones(2))
    assert check_next_calls(method, 2).check.left == 2
    for left in (1, 0, 0):
        method(torch.ones(2))
        assert method.check.left == left


def test_copies_of_a_step_check_anew():
    _, step = stepping(OPTIMIZERS["sgd"], check=2)
    assert copy.deepcopy(step).check.left == 2


def test_every_way_still_agrees_where_checks_are_on():
    assert assert_every_way(trained_layers, "hybridize", "library") == {}
