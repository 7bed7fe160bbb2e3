"""What hooks and backwards of the user's read in Python is what is there when the backward runs, as in eager."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import weft
from weft.errors import UnsupportedError

Put = Callable[[float], None]
SETTINGS: dict[str, float] = {"scale": 1.0}
SCALE = 1.0


class Holder:
    scale = 1.0


class Scaled(torch.autograd.Function):
    """Reads a class attribute, a global name and an entry of a dictionary."""

    scale = 1.0

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context: Any, *tangents: Any) -> Any:
        (x,) = context.saved_tensors
        return tangents[0] * x * Scaled.scale * SCALE * SETTINGS["scale"]


class InContext(torch.autograd.Function):
    """Reads what its forward has put in the context."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, holder: Any) -> torch.Tensor:
        context.holder = holder
        return x * 2

    @staticmethod
    def backward(context: Any, *tangents: Any) -> Any:
        return tangents[0] * context.holder.scale, None


def function_with_class_attribute() -> tuple[Any, Put]:
    return lambda x: Scaled.apply(x).sum(), lambda scale: setattr(Scaled, "scale", scale)


def function_with_global_name() -> tuple[Any, Put]:
    return lambda x: Scaled.apply(x).sum(), lambda scale: globals().update(SCALE=scale)


def function_with_dictionary() -> tuple[Any, Put]:
    return lambda x: Scaled.apply(x).sum(), lambda scale: SETTINGS.update(scale=scale)


def function_with_context() -> tuple[Any, Put]:
    holder = Holder()
    return lambda x: InContext.apply(x, holder).sum(), lambda scale: setattr(holder, "scale", scale)


def hook_with_list() -> tuple[Any, Put]:
    scales = [1.0]

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * x
        y.register_hook(lambda gradient: gradient * scales[0])
        return y.sum()

    return function, lambda scale: scales.__setitem__(0, scale)


def hook_with_closed_over_name() -> tuple[Any, Put]:
    scale = 1.0

    def put(value: float) -> None:
        nonlocal scale
        scale = value

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * x
        y.register_hook(lambda gradient: gradient * scale)
        return y.sum()

    return function, put


def hook_of_a_node() -> tuple[Any, Put]:
    holder = Holder()

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * x
        y.grad_fn.register_prehook(lambda gradients: (gradients[0] * holder.scale,))  # type: ignore[union-attr]
        return y.sum()

    return function, lambda scale: setattr(holder, "scale", scale)


def method_as_hook() -> tuple[Any, Put]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 1.0

        def scaled(self, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * self.scale if self.training else gradient

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * x
            y.register_hook(self.scaled)
            return y.sum()

    net = Net()
    return net, lambda scale: setattr(net, "scale", scale)


def hook_of_a_module() -> tuple[Any, Put]:
    holder, net = Holder(), nn.Sequential(nn.Tanh(), nn.Softplus())
    net[1].register_full_backward_hook(lambda _module, inputs, _outputs: (inputs[0] * holder.scale,))
    return lambda x: net(x).sum(), lambda scale: setattr(holder, "scale", scale)


def unpacked_tensor() -> tuple[Any, Put]:
    holder = Holder()

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * holder.scale):
            y = x * x
        return y.sum()

    return function, lambda scale: setattr(holder, "scale", scale)


def checkpointed() -> tuple[Any, Put]:
    holder = Holder()

    def inner(x: torch.Tensor) -> torch.Tensor:
        return (x * holder.scale).sin()

    return (
        lambda x: checkpoint(inner, x, use_reentrant=False).sum(),  # type: ignore[union-attr]
        lambda scale: setattr(holder, "scale", scale),
    )


def environment() -> tuple[Any, Put]:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * x
        y.register_hook(lambda gradient: gradient * float(os.environ["WEFT_TEST_SCALE"]))
        return y.sum()

    return function, lambda scale: os.environ.update(WEFT_TEST_SCALE=str(scale))


def backward_itself() -> tuple[Any, Put]:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            del context
            return x * 2

        @staticmethod
        def backward(context: Any, *tangents: Any) -> Any:
            del context
            return tangents[0]

    def put(scale: float) -> None:
        Twice.backward = staticmethod(lambda _, tangent: tangent * scale)  # type: ignore[method-assign]

    return lambda x: Twice.apply(x).sum(), put


CASES = (
    function_with_class_attribute, function_with_global_name, function_with_dictionary, function_with_context,
    hook_with_list, hook_with_closed_over_name, hook_of_a_node, method_as_hook, hook_of_a_module, unpacked_tensor,
    checkpointed, environment, backward_itself,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    yield
    SETTINGS["scale"] = Scaled.scale = 1.0
    globals().update(SCALE=1.0)
    os.environ.pop("WEFT_TEST_SCALE", None)


def gradients(function: Any, put: Put, sizes: Any = (3,) * 6) -> list[torch.Tensor]:
    found = []
    for call, size in enumerate(sizes):
        put(1.0)
        x = torch.linspace(0.5, 1.5, size, requires_grad=True)
        result = function(x)
        put(2.0 + call // 2)
        result.backward()
        assert x.grad is not None
        found.append(x.grad)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_changes_between_a_forward_and_its_backward_is_read_anew(case: Any) -> None:
    expected = gradients(*case())
    function, put = case()
    for ours, theirs in zip(gradients(weft.hybridize(function), put), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
def test_it_is_read_anew_by_the_one_program_of_many_sizes() -> None:
    sizes = (3, 4, 5, 6, 4)
    expected = gradients(*hook_with_list(), sizes)
    function, put = hook_with_list()
    for ours, theirs in zip(gradients(weft.hybridize(function), put, sizes), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_backward_that_was_made_for_what_is_there_again_serves_again() -> None:
    scales, ran = [1.0], []

    def scaled(gradient: torch.Tensor) -> torch.Tensor:
        ran.append(None)
        return gradient * scales[0]

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * x
        y.register_hook(scaled)
        return y.sum()

    hybrid = weft.hybridize(function, whole=False)

    def trained(scale: float) -> list[float]:
        x = torch.ones(3, requires_grad=True)
        result = hybrid(x)
        scales[0] = scale
        result.backward()
        scales[0] = 1.0
        assert x.grad is not None
        return x.grad.tolist()

    for scale in (2.0, 3.0):
        trained(scale)
    before = weft.explain(hybrid)
    for scale in (2.0, 3.0, 2.0):
        assert trained(scale) == [2 * scale] * 3
    assert weft.explain(hybrid) == before


def test_gradients_of_gradients_read_anew() -> None:
    def run(function: Any, put: Put) -> list[torch.Tensor]:
        found = []
        for call in range(4):
            put(1.0)
            x = torch.linspace(0.5, 1.5, 3, requires_grad=True)
            result = function(x)
            put(2.0 + call)
            (first,) = torch.autograd.grad(result, x, create_graph=True)
            (first * first).sum().backward()
            assert x.grad is not None
            found += [first.detach(), x.grad]
        return found

    expected = run(*hook_with_list())
    function, put = hook_with_list()
    for ours, theirs in zip(run(weft.hybridize(function), put), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_an_argument_that_a_hook_reads_may_change_before_the_backward() -> None:
    def function(x: torch.Tensor, scales: list[float]) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda gradient: gradient * scales[0])
        return y.sum()

    hybrid = weft.hybridize(function, whole=False)
    for call in range(4):
        x, scales = torch.ones(3, requires_grad=True), [1.0]
        result = hybrid(x, scales)
        scales[0] = 2.0 + call
        result.backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2 * scales[0]] * 3


def test_an_object_that_is_returned_may_change_before_the_backward() -> None:
    def function(x: torch.Tensor) -> Any:
        found = {"scale": 1.0}
        y = x * 2
        y.register_hook(lambda gradient: gradient * found["scale"])
        return y.sum(), found

    hybrid = weft.hybridize(function, whole=False)
    for call in range(4):
        x = torch.ones(3, requires_grad=True)
        result, found = hybrid(x)
        found["scale"] = 2.0 + call
        result.backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2 * found["scale"]] * 3


class ScaledByCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = x * 2
        y.register_hook(lambda gradient: gradient * self.calls)
        return y.sum()


def test_a_hook_reads_what_the_forward_has_counted() -> None:
    net = ScaledByCalls()
    weft.hybridize(net, whole=False)
    for call in range(1, 5):
        x = torch.ones(3, requires_grad=True)
        net(x).backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2.0 * call] * 3


def test_whole_programs_refuse_hooks_that_read_what_each_call_counts() -> None:
    net = ScaledByCalls()
    weft.hybridize(net, whole=True)
    with pytest.raises(UnsupportedError, match="runs code that reads what each call has another of"):
        net(torch.ones(3, requires_grad=True)).backward()


class Product(torch.autograd.Function):
    """Its backward runs under the autocast of whoever calls it."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x, y)
        return x.detach().float() @ y.detach().float()

    @staticmethod
    def backward(context: Any, *tangents: Any) -> Any:
        x, y = context.saved_tensors
        return (tangents[0].float() @ y.t()).float(), (x.t() @ tangents[0].float()).float()


@pytest.mark.parametrize("kind", ["of the user's", "of a layer"])
def test_a_backward_runs_under_the_autocast_that_it_is_called_in(kind: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    function = (lambda x: Product.apply(x, layer.weight).sum()) if kind == "of the user's" else lambda x: layer(x).sum()
    hybrid = weft.hybridize(lambda x: function(1 * x))
    for outside, inside in ((False, True), (True, False), (True, True), (False, False)) * 2:
        found = []
        for one in (function, hybrid):
            layer.zero_grad()
            x = torch.linspace(0, 1, 8).reshape(2, 4).requires_grad_()
            with torch.autocast("cpu", enabled=outside):
                result = one(x)
            with torch.autocast("cpu", enabled=inside):
                result.backward()
            found.append((x.grad, layer.weight.grad))
        for theirs, ours in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_program_for_many_sizes_never_differentiates_around_the_backward_of_a_function() -> None:
    hybrid = weft.hybridize(lambda x: 1 * Scaled.apply(x))
    for size in (3, 4, 5, 6, 7):
        x = torch.ones(size, requires_grad=True)
        result = hybrid(x).sum()
        try:
            (found,) = torch.autograd.grad(result, x, create_graph=True)
        except UnsupportedError:
            continue
        assert found.tolist() == [1.0] * size  # and not 2, which is the derivative of x * x


def test_a_hook_in_a_checkpoint_runs_in_gradients_of_gradients() -> None:
    layer, seen = nn.Linear(3, 3), []

    def inner(x: torch.Tensor) -> torch.Tensor:
        hidden = layer(x).tanh()
        hidden.register_hook(lambda gradient: seen.append(gradient.detach().sum()))
        return hidden * hidden

    def run(function: Any) -> list[torch.Tensor]:
        seen.clear()
        x = torch.full((2, 3), 0.1, requires_grad=True)
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        first.pow(2).sum().backward()
        return [*seen, x.grad]  # type: ignore[list-item]

    def function(x: torch.Tensor) -> Any:
        return checkpoint(inner, x, use_reentrant=False).sum()  # type: ignore[union-attr]

    torch.testing.assert_close(run(weft.hybridize(function)), run(function))


def test_what_is_collected_meanwhile_is_not_what_a_backward_runs() -> None:
    class Foreign:
        """Has an answer for every name, as wrappers of libraries of C have."""

        def __getattr__(self, name: str) -> Any:
            return Foreign() if name == "__dict__" or not name.startswith("__") else self.__getattribute__(name)

    class Ending:
        def __init__(self) -> None:
            self.foreign, self.itself = Foreign(), self

        def __del__(self) -> None:
            self.foreign = None  # type: ignore[assignment]

    class Collecting(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            del context
            return x * 2

        @staticmethod
        def backward(context: Any, *tangents: Any) -> Any:
            del context
            gc.collect()
            return tangents[0] * 3

    hybrid = weft.hybridize(lambda x: Collecting.apply(x).sum())
    for _ in range(3):
        Ending()
        x = torch.ones(2, requires_grad=True)
        hybrid(x).backward()
        assert x.grad is not None
        assert x.grad.tolist() == [3, 3]


def test_steps_notice_what_the_backward_of_a_function_reads_and_another_backward() -> None:
    class Weighted(torch.autograd.Function):
        weight = 1.0

        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            del context
            return x * 2

        @staticmethod
        def backward(context: Any, *tangents: Any) -> Any:
            del context
            return tangents[0] * Weighted.weight

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Weighted.apply(self.layer(x))  # type: ignore[no-any-return, no-untyped-call]

    first = vars(Weighted)["backward"]

    def train(step: Callable[..., Any]) -> list[float]:
        Weighted.weight, losses = 1.0, []
        Weighted.backward = first  # type: ignore[method-assign]
        for call in range(8):
            if call == 3:
                Weighted.weight = 2.0
            if call == 5:
                Weighted.backward = staticmethod(lambda _, tangent: tangent * 3)  # type: ignore[method-assign]
            losses.append(float(step(torch.ones(2, 3), torch.zeros(2, 2))))
        return losses

    def made(*, ours: bool) -> Callable[..., Any]:
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), 0.01)

        def eager(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return weft.step(net, nn.functional.mse_loss, optimizer) if ours else eager

    assert train(made(ours=True)) == pytest.approx(train(made(ours=False)), rel=1e-4)
