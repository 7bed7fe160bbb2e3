"""torch.compile(net, backend="weft"): Dynamo breaks graphs where it must, Weft runs the pieces."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from tests.api.agreement import gradients
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from weft.api.dynamo import backend
from weft.api.hybrid_function import HybridFunction
from weft.errors import UsageError

keeps_products = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
pytestmark = [
    pytest.mark.usefixtures("by_library"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Dynamo's own imports warn of what they deprecate
]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(("reentrant", "selective"), [(False, False), (True, False), (False, True)])
def test_what_is_computed_again_drops_the_same_elements(reentrant: bool, selective: bool) -> None:
    own = {"context_fn": keeps_products} if selective else {}
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 8))

    def part(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(net, x, use_reentrant=reentrant, **own) * 2

    compiled, x = torch.compile(part, backend="weft"), torch.randn(4, 8, requires_grad=True)
    for _ in range(2):
        found = []
        for function in (part, compiled):
            torch.manual_seed(3)
            total = function(x).square().sum()
            torch.rand(2)
            net.zero_grad()
            x.grad = None
            total.backward()  # reentrant ones know no other way
            found.append([x.grad, *[each.grad for each in net.parameters()], torch.rand(1)])
        torch.testing.assert_close(found[1], found[0])


def test_the_backend_is_found_by_name_and_gives_the_answers_of_eager() -> None:
    assert "weft" in torch.compiler.list_backends()
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.BatchNorm1d(3))
    x = torch.randn(5, 4)
    expected = gradients(net(x).sum(), list(net.parameters()))
    compiled = torch.compile(net, backend="weft")
    for _ in range(2):
        assert torch.equal(compiled(x), net(x))
    for ours, theirs in zip(gradients(compiled(x).sum(), list(net.parameters())), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_code_that_weft_alone_refuses_runs_with_a_graph_break() -> None:
    @torch.compile(backend="weft")
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    for x in (torch.ones(3), -torch.ones(3)):
        assert torch.equal(function(x), x * 2 + x.sign())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[HybridFunction]:
    """What the backend makes, a graph each."""
    found: list[HybridFunction] = []

    def make(*given: Any) -> HybridFunction:
        found.append(HybridFunction(*given))
        return found[-1]

    monkeypatch.setattr("weft.api.dynamo.HybridFunction", make)
    return found


def test_sizes_that_dynamo_leaves_open_vary_in_one_program(made: list[HybridFunction]) -> None:
    function = torch.compile(lambda x: x.sin() + x.shape[0], backend="weft", dynamic=True)
    for size in (3, 5, 9, 16):
        x = torch.randn(size)
        torch.testing.assert_close(function(x), x.sin() + size)
    assert [hybrid.traces for hybrid in made] == [1]


def test_floats_that_dynamo_leaves_open_are_numbers_of_a_program(made: list[HybridFunction]) -> None:
    net = nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 2)).eval()
    compiled = torch.compile(net, backend="weft", dynamic=True)
    with torch.no_grad():
        for shape in ((3, 5), (4, 9), (7, 2)):
            words = torch.randint(9, shape)
            torch.testing.assert_close(compiled(words), net(words))
    (hybrid,) = made
    assert hybrid.imperative is None
    assert hybrid.traces == 1


def test_equal_sizes_and_ranges_are_those_that_dynamo_knows(made: list[HybridFunction]) -> None:
    compiled = torch.compile(lambda x, y: (x + y).sum(-1), backend="weft")
    x, y = torch.randn(6, 3), torch.randn(6, 3)
    for tensor in (x, y):
        torch._dynamo.mark_dynamic(tensor, 0, min=2, max=20)
    torch.testing.assert_close(compiled(x, y), (x + y).sum(-1))
    x, y = torch.randn(18, 3), torch.randn(18, 3)
    torch.testing.assert_close(compiled(x, y), (x + y).sum(-1))
    (hybrid,) = made
    assert [max(shape[0] for shape in program.range.tops.values() if len(shape) > 1) for program in hybrid.varying] == [
        16,
        20,
    ]


@pytest.mark.parametrize("dynamic", [True, False, None])
@pytest.mark.parametrize(
    "given",
    [{"mode": "reduce-overhead"}, {"mode": "max-autotune"}, {"options": {"max_autotune": True, "check": 1}}],
    ids=str,
)
def test_modes_and_options_of_torch_compile_are_taken(dynamic: bool | None, given: dict[str, Any]) -> None:
    compiled = torch.compile(lambda x: x.cos(), backend="weft", dynamic=dynamic, **given)
    for rows in (3, 5):
        x = torch.randn(rows)
        torch.testing.assert_close(compiled(x), x.cos())


def test_options_that_nobody_knows_are_refused(made: list[HybridFunction]) -> None:
    module = torch.fx.symbolic_trace(nn.ReLU())
    with pytest.raises(UsageError, match="no option 'speed'"):
        backend(module, [torch.ones(2)], options={"speed": 1})
    with pytest.raises(UsageError, match="mode is 'fast'"):
        backend(module, [torch.ones(2)], mode="fast")
    backend(module, [torch.ones(2)], options={"precision": "bfloat16"})
    assert made[0].options.precision == "bfloat16"


def test_the_backend_makes_a_hybrid_function_that_falls_back() -> None:
    module: Any = torch.fx.symbolic_trace(nn.ReLU())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = backend(module, [torch.ones(2)])
    assert isinstance(made, HybridFunction)
    assert made.options.fallback == "eager"
    assert torch.equal(made(torch.tensor([-1.0, 1.0])), torch.tensor([0.0, 1.0]))


def test_a_gradient_that_needs_other_operators_for_other_sizes_has_exact_programs() -> None:
    net = nn.Sequential(nn.Linear(1, 4), nn.SiLU(), nn.Linear(4, 1))

    def energy(positions: torch.Tensor) -> torch.Tensor:
        steps, apart = positions[:, None] - positions[None], 1 - torch.eye(len(positions))
        distances = (steps.square().sum(-1) + torch.eye(len(positions))).sqrt().unsqueeze(-1)
        return (net(distances).squeeze(-1) * apart).sum()  # type: ignore[no-any-return]

    compiled = torch.compile(energy, backend="weft")
    for atoms in (4, 4, 5, 4, 6):
        positions = torch.randn(atoms, 3, requires_grad=True)
        found = torch.autograd.grad(compiled(positions), positions)
        torch.testing.assert_close(found, torch.autograd.grad(energy(positions), positions))


def test_gradients_inside_of_what_dynamo_compiles_are_those_of_eager() -> None:
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def flow(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return torch.stack([slope[:, 1], -slope[:, 0]], 1)

    compiled = torch.compile(flow, backend="weft")
    for _ in range(3):
        x = torch.randn(5, 2)
        found = gradients(compiled(x).square().sum(), [net[0].weight])
        torch.testing.assert_close(found, gradients(flow(x).square().sum(), [net[0].weight]))


def test_whole_numbers_that_dynamo_leaves_open_may_be_negative_too() -> None:
    def function(x: torch.Tensor, number: int) -> torch.Tensor:
        return x[:number] * number

    compiled = torch.compile(function, backend="weft", dynamic=True)
    for number in (3, 4, -2, 0, 1, 7):
        x = torch.randn(9, 3)
        torch.testing.assert_close(compiled(x, number), function(x, number))


def test_the_version_of_memory_that_dynamos_graphs_ask_for_is_todays() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + x._version  # type: ignore[attr-defined]

    compiled = torch.compile(function, backend="weft")
    x = torch.zeros(1)
    for _ in range(3):
        assert torch.equal(compiled(x), function(x))
        x.add_(0)
