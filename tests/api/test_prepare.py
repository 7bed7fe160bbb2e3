"""weft.prepare compiles all that calls like some examples need; nothing is compiled in a call after it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import weft
import weft.api.hybrid
import weft.codegen.objects.compiler

MODES: tuple[Callable[[], AbstractContextManager[Any]], ...] = (torch.inference_mode, torch.no_grad, nullcontext)
MADE = ((weft.api.hybrid, "trace"), (weft.api.hybrid, "trace_varying"), (weft.codegen.objects.compiler, "object_code"))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is traced, and what is compiled."""
    counts: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            counts[name] += 1
            return function(*arguments, **keywords)

        return wrapped

    for module, name in MADE:
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    return counts


class Texts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.layers = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layers(self.table(tokens)), -1).mean(1)


def tokens(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(50, (1, length), generator=torch.Generator().manual_seed(seed))


def call_in_all_modes(net: nn.Module, x: torch.Tensor, expected: torch.Tensor) -> None:
    for mode in MODES:
        for inside in (False, True):
            with mode():
                torch.testing.assert_close(net(x.clone() if inside else x).detach(), expected)


def test_nothing_is_compiled_in_calls_of_other_threads_and_modes(made: Counter[str]) -> None:
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.BatchNorm1d(4)).eval()
    plain = [torch.randn(3, 8) for _ in range(4)]
    with torch.no_grad():
        expected = [net(x) for x in plain]
    weft.prepare(weft.hybridize(net), torch.randn(3, 8))
    assert made["trace"]
    made.clear()
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            for x, result in zip(plain * 8, expected * 8, strict=True):
                call_in_all_modes(net, x, result)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not made, made


@pytest.mark.slow
def test_examples_of_two_sizes_prepare_all_sizes_between_them(made: Counter[str]) -> None:
    net = Texts().eval()
    with torch.no_grad():
        expected = {length: net(tokens(length, length)) for length in range(8, 65)}
    weft.prepare(weft.hybridize(net), tokens(8), tokens(64))
    made.clear()
    for length, result in expected.items():
        call_in_all_modes(net, tokens(length, length), result)
    assert not made, made
    assert "ran imperatively" not in weft.explain(net)


@pytest.mark.slow
def test_sizes_that_are_named_are_prepared_in_their_ranges(made: Counter[str]) -> None:
    net = Texts().eval()
    inputs = {
        (many, length): tokens(many * length).view(many, length) for many in (1, 2, 5) for length in (1, 2, 9, 33, 40)
    }
    with torch.no_grad():
        expected = {sizes: net(x) for sizes, x in inputs.items()}
    sizes = {"tokens": {0: ("batch", 1, 5), 1: ("length", 1, 40)}}
    weft.prepare(weft.hybridize(net), tokens(8).repeat(3, 1), sizes=sizes)
    made.clear()
    for place, x in inputs.items():
        call_in_all_modes(net, x, expected[place])
    assert not made, made
    with pytest.raises(weft.UsageError, match="length is 41"):
        net(tokens(41))


def test_other_signatures_are_run_by_python_and_counted(made: Counter[str]) -> None:
    net = weft.hybridize(nn.Linear(4, 2))
    weft.prepare(net, torch.ones(3, 4))
    made.clear()
    for _ in range(5):
        x = torch.randn(7, 4)
        torch.testing.assert_close(net(x), nn.functional.linear(x, net.weight, net.bias))
    assert not made, made
    assert "5 calls ran imperatively, their signatures not having been prepared" in weft.explain(net)


def test_what_calls_change_is_put_back() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            x.add_(1)
            return nn.functional.dropout(self.norm(x), 0.5)

    net, x = weft.hybridize(Counting(), whole=False), torch.randn(3, 4)
    before = {name: tensor.clone() for name, tensor in (*net.state_dict().items(), ("x", x))}
    stream = torch.get_rng_state()
    weft.prepare(net, x)
    assert net.calls == 0
    assert torch.equal(stream, torch.get_rng_state())
    for name, tensor in (*net.state_dict().items(), ("x", x)):
        assert torch.equal(tensor, before[name]), name


def test_an_example_is_one_argument_a_tuple_of_them_or_a_dictionary_by_name() -> None:
    @weft.hybridize
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + 2 * y

    x, y = torch.randn(3), torch.randn(3)
    weft.prepare(add, (x, y), {"x": x, "y": y})
    assert torch.equal(add(x, y), x + 2 * y)
    assert torch.equal(add(x=x, y=y), x + 2 * y)
    assert str(weft.explain(add)).startswith("add: 8 programs")


def test_parts_that_are_hybridized_are_prepared_by_calls_of_the_whole(made: Counter[str]) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    weft.hybridize(net[0])
    weft.prepare(net, torch.ones(2, 4))
    made.clear()
    call_in_all_modes(net, x := torch.randn(2, 4), torch.relu(nn.functional.linear(x, *net[0].parameters())).detach())
    assert not made, made


def test_code_that_no_program_can_be_made_of_is_named() -> None:
    @weft.hybridize(whole=False)
    def listed(x: torch.Tensor) -> torch.Tensor:
        return x * len(str(x.numpy()))

    assert "runs by Python at each call" in weft.prepare(listed, torch.ones(2))


def test_sizes_of_parts_are_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    weft.hybridize(net[0])
    with pytest.raises(weft.UsageError, match="sizes of parts"):
        weft.prepare(net, torch.ones(3, 2), sizes={"input": {0: ("batch", 1, 8)}})


@pytest.mark.parametrize(
    ("thing", "examples", "told"),
    [
        (lambda: nn.Linear(2, 2), (torch.ones(2),), "nothing of Linear is hybridized"),
        (lambda: weft.hybridize(nn.Linear(2, 2)), (), "weft.prepare has no example"),
        (
            lambda: weft.step(net := nn.Linear(2, 2), nn.functional.mse_loss, torch.optim.SGD(net.parameters(), 0.1)),
            (torch.ones(2),),
            "weft.prepare is given a step",
        ),
    ],
)
def test_what_cannot_be_prepared_is_refused(thing: Callable[[], Any], examples: tuple[Any, ...], told: str) -> None:
    with pytest.raises(weft.UsageError, match=told):
        weft.prepare(thing(), *examples)
