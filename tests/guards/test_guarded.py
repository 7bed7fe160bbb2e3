"""A change that a program cannot know of is seen at the next call, and said in one sentence."""

from __future__ import annotations

import logging
import types
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.api.hybrid import MOST_PROGRAMS, Hybrid
from weft.guards.guarded import Guarded

pytestmark = pytest.mark.usefixtures("by_library")

SCALE = 2.0
SETTINGS = {"scale": 1.0, "names": ["a"]}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.factor = 1.0
        self.factors = [1.0, 2.0]
        self.options = types.SimpleNamespace(scale=1.0)
        self.table = torch.ones(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.second(self.first(x).relu()) * self.factor * self.factors[0] * self.table
        return self.scaled(hidden)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.options.scale * SCALE * SETTINGS["scale"]


def check(net: nn.Module, x: torch.Tensor) -> None:
    assert torch.equal(net(x), type(net).forward(net, x))


@pytest.fixture
def net() -> nn.Module:
    made = weft.hybridize(Net())
    check(made, torch.randn(5, 3))
    return made


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(5, 3)


# -- the same program, other numbers ----------------------------------------------------------------------------------


def optimizer_step(net: Any) -> None:
    net(torch.ones(5, 3)).sum().backward()
    torch.optim.SGD(net.parameters(), 0.5).step()


def loaded_state(net: Any) -> None:
    net.load_state_dict({name: torch.randn_like(value) for name, value in net.state_dict().items()})


def assigned_state(net: Any) -> None:
    net.load_state_dict({name: torch.randn_like(value) for name, value in net.state_dict().items()}, assign=True)


def written_data(net: Any) -> None:
    net.first.weight.data.copy_(torch.randn(4, 3))


def replaced_data(net: Any) -> None:
    net.first.weight.data = torch.randn(4, 3)


def written_through_numpy(net: Any) -> None:
    net.first.weight.detach().numpy()[:] = 3.0


def replaced_parameter(net: Any) -> None:
    net.first.weight = nn.Parameter(torch.randn(4, 3))


def written_table(net: Any) -> None:
    net.table.mul_(3)


def replaced_table(net: Any) -> None:
    net.table = torch.full((2,), 5.0)


@pytest.mark.parametrize(
    "change",
    [
        optimizer_step,
        loaded_state,
        assigned_state,
        written_data,
        replaced_data,
        written_through_numpy,
        replaced_parameter,
        written_table,
    ],
)
def test_new_elements_of_parameters_are_read_without_tracing_again(change: Any, net: Any, x: torch.Tensor) -> None:
    before = net(x).detach().clone()
    change(net)
    check(net, x)
    assert not torch.equal(net(x), before)
    assert net.forward.traces == 1


# -- another program, with the reason ---------------------------------------------------------------------------------


def set_attribute(net: Any) -> None:
    net.factor = 3.0


def set_flag(net: Any) -> None:
    net.factor = True


def set_item(net: Any) -> None:
    net.factors[0] = 5.0


def set_option(net: Any) -> None:
    net.options.scale = 4.0


def replace_submodule(net: Any) -> None:
    net.second = nn.Linear(4, 2)


def freeze(net: Any) -> None:
    net.first.weight.requires_grad_(False)


def add_hook(net: Any) -> None:
    net.second.register_forward_hook(lambda _module, _inputs, output: output + 1)


def remove_bias(net: Any) -> None:
    net.second.bias = None


def evaluate(net: Any) -> None:
    net.second.eval()


def transpose_weight(net: Any) -> None:
    net.first.weight.data = torch.randn(3, 4).t()


REASONS = [
    (set_attribute, "factor was 1.0, is 3.0"),
    (set_flag, "factor was 1.0, is True"),
    (set_item, "factors holds other things"),
    (set_option, "options.scale was 1.0, is 4.0"),
    (replace_submodule, "submodules holds other things"),
    (replaced_table, "table is another Tensor"),
    (freeze, "first.weight: requires_grad was of a parameter or leaf, is off"),
    (add_hook, "second.forward_hooks was missing, is <OrderedDict>"),
    (remove_bias, "second.parameters holds other things"),
    (evaluate, "second.training was True, is False"),
    (transpose_weight, "first.weight: strides was (3, 1), is (1, 4)"),
    (nn.Module.double, "argument x: element type was torch.float32, is torch.float64"),
]


@pytest.mark.parametrize(("change", "sentence"), REASONS, ids=lambda item: getattr(item, "__name__", ""))
def test_what_a_program_relies_on_is_compared_and_named(
    change: Any, sentence: str, net: Any, x: torch.Tensor, caplog: Any
) -> None:
    change(net)
    x = x.to(net.first.weight.dtype)
    with caplog.at_level(logging.INFO, "weft"):
        check(net, x)
        check(net, x)
    assert [record.getMessage() for record in caplog.records] == [f"weft: compiling Net again (program 2): {sentence}"]
    assert net.forward.misses == [sentence]


def test_an_old_program_is_found_again_when_a_change_is_undone(net: Any, x: torch.Tensor) -> None:
    for factor in (2.0, 1.0, 2.0):
        net.factor = factor
        check(net, x)
    net.second.eval()
    check(net, x)
    net.second.train()
    check(net, x)
    assert net.forward.traces == 3


def test_global_names_are_compared(net: Any, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SCALE", 7.0)
    check(net, x)
    monkeypatch.setitem(SETTINGS, "scale", 2.0)
    check(net, x)
    assert net.forward.misses == ["SCALE was 2.0, is 7.0", "SETTINGS holds other things"]


def test_closed_over_names_and_modules_are_compared() -> None:
    layer, factor = nn.Linear(3, 3), 1.0

    @weft.hybridize
    def function(x: torch.Tensor) -> torch.Tensor:
        return layer(x) * factor

    x = torch.randn(2, 3)
    assert torch.equal(function(x), layer(x))
    factor = 2.0
    assert torch.equal(function(x), layer(x) * 2)
    layer = nn.Linear(3, 3)
    assert torch.equal(function(x), layer(x) * 2)
    layer.weight = nn.Parameter(torch.ones(3, 3))
    assert torch.equal(function(x), layer(x) * 2)
    assert function.misses == ["factor was 1.0, is 2.0", "layer is another Linear"]


def test_a_captured_tensor_is_read_as_it_is() -> None:
    table = torch.ones(3)
    function = weft.hybridize(lambda x: x * table)
    x = torch.ones(3)
    function(x)
    table.fill_(4.0)
    assert function(x).tolist() == [4.0] * 3
    table = torch.full((3,), 5.0)
    assert function(x).tolist() == [5.0] * 3
    assert function.traces == 1


def test_minus_zero_is_another_value_than_zero() -> None:
    class Divide(nn.Module):
        by = 0.0

        def __init__(self) -> None:
            super().__init__()
            self.by = 0.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / self.by

    net = weft.hybridize(Divide())
    assert net(torch.ones(1)).item() == float("inf")
    net.by = -0.0
    assert net(torch.ones(1)).item() == float("-inf")


def test_a_fact_that_is_not_a_number_is_equal_to_itself() -> None:
    net = weft.hybridize(Net())
    net.factor = float("nan")
    for _ in range(3):
        net(torch.ones(1, 3))
    assert net.forward.traces == 1


# -- arguments and modes ----------------------------------------------------------------------------------------------


def double_argument(x: torch.Tensor) -> torch.Tensor:
    return x.double()


ARGUMENTS = [
    (lambda x: torch.randn(7, 3), "argument x: size of dim 0 was 5, is 7"),
    (lambda x: torch.randn(2, 5, 3), "argument x: sizes was (5, 3), is (2, 5, 3)"),
    (lambda x: torch.randn(3, 5).t(), "argument x: strides was (3, 1), is (1, 5)"),
    (double_argument, "argument x: element type was torch.float32, is torch.float64"),
    (
        lambda x: x.clone().requires_grad_(),
        "argument x: requires_grad was off, is of a parameter or leaf",
    ),
    (
        lambda x: x.clone().requires_grad_() * 1,
        "argument x: requires_grad was off, is of a computed tensor",
    ),
]


@pytest.mark.usefixtures("exact_sizes")
@pytest.mark.parametrize(("make", "sentence"), ARGUMENTS)
def test_what_differs_in_an_argument_is_named(make: Any, sentence: str, x: torch.Tensor) -> None:
    function = weft.hybridize(lambda x: x * 2)
    for argument in (x, make(x), make(x), x):
        assert torch.equal(function(argument), argument * 2)
    assert function.misses == [sentence]


def test_arguments_passed_in_another_way_are_named() -> None:
    function = weft.hybridize(lambda x, y=None, *, scale=1.0: x * scale if y is None else x + y)
    x = torch.ones(2)
    function(x)
    function(x, x)
    function(x, scale=2.0)
    function([x][0], x, scale=2.0)
    assert function.misses == [
        "was called with 1 argument, is called with 2 arguments",
        "was called with 1 argument, is called with 1 argument and scale=",
        "was called with 1 argument, is called with 2 arguments and scale=",
    ]


def test_modes_are_named(x: torch.Tensor) -> None:
    function = weft.hybridize(lambda x: x @ x.t())
    function(x)
    with torch.no_grad():
        function(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        function(x)
    torch.set_default_dtype(torch.float64)
    try:
        function(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert function.misses == [
        "grad mode was on, is off",
        "autocast was off, is cpu torch.bfloat16",
        "default dtype was torch.float32, is torch.float64",
    ]


@pytest.mark.usefixtures("exact_sizes")
def test_more_programs_than_the_limit_warn_once_and_drop_the_least_recently_used() -> None:
    function = weft.hybridize(lambda x: x * 2)
    sizes = range(1, MOST_PROGRAMS + 1)
    for size in sizes:
        function(torch.ones(size))
    function(torch.ones(1))  # so that the program for 2 is the one that was not used for longest
    with pytest.warns(UserWarning, match=f"more than {MOST_PROGRAMS} programs") as seen:
        function(torch.ones(100))
    assert str(seen[0].message) == (
        "weft: <lambda> has more than 32 programs; the oldest go. "
        "What changed: argument x: size of dim 0 (32 times). "
        "Pad to a few sizes, or see weft.explain"
    )
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(torch.ones(1))
        traces = function.traces
        function(torch.ones(2))
    assert function.traces == traces + 1
    assert sum(map(len, function.programs.values())) == MOST_PROGRAMS


def test_nested_arguments_are_found_by_the_native_comparison_too(monkeypatch) -> None:
    net = weft.hybridize(Decodes())
    cache = [(torch.ones(1, 2, 4), torch.ones(1, 2, 4)) for _ in range(2)]
    x = torch.ones(1, 4)
    for _ in range(2):
        expected = net(x, cache)
    compared: list[Guarded] = []
    monkeypatch.setattr(Guarded, "miss", lambda guarded, _: compared.append(guarded))
    assert torch.equal(net(x, cache), expected)
    assert compared == []


def test_nested_arguments_see_a_replaced_parameter() -> None:
    net = weft.hybridize(Decodes())
    cache = [(torch.ones(1, 2, 4), torch.ones(1, 2, 4)) for _ in range(2)]
    for _ in range(3):
        net(torch.ones(1, 4), cache)
    net.layer.weight = nn.Parameter(torch.zeros(4, 4))
    assert torch.equal(net(torch.ones(1, 4), cache), Decodes.forward(net, torch.ones(1, 4), cache))


def test_a_call_with_nested_arguments_like_the_one_before_makes_no_key(monkeypatch) -> None:
    net = weft.hybridize(Decodes())
    x = torch.ones(1, 4)
    net(x, decoded(2))
    monkeypatch.setattr(Hybrid, "_call", lambda *_: pytest.fail("a long call"))
    for _ in range(3):
        cache = [(torch.rand(1, 2, 4), torch.rand(1, 2, 4)) for _ in range(2)]
        torch.testing.assert_close(net(x, cache), Decodes.forward(net, x, cache))


def decoded(length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.rand(1, length, 4), torch.rand(1, length, 4)) for _ in range(2)]


def test_nested_arguments_that_look_otherwise_are_told_apart() -> None:
    net = weft.hybridize(Decodes())
    x = torch.ones(1, 4)
    first, second = decoded(2)
    calls: list[Any] = [
        [first, second],
        (first, second),
        [list(first), second],
        [first],
        [],
        decoded(3),
        [first, (second[0].double(), second[1])],
        [first, (second[0].transpose(1, 2).contiguous().transpose(1, 2), second[1])],
        [first, (second[0], 2.0)],
        [first, (second[0].clone().requires_grad_(), second[1])],
        [first, second],
    ]
    for cache in calls:
        for _ in range(2):
            found, expected = net(x, cache), Decodes.forward(net, x, cache)
            assert found.dtype == expected.dtype
            assert found.requires_grad == expected.requires_grad
            torch.testing.assert_close(found, expected)


def test_a_function_of_one_container_tells_its_tensors_from_arguments() -> None:
    @weft.hybridize
    def total(*parts: Any) -> torch.Tensor:
        flat = [part if isinstance(part, torch.Tensor) else 10 * sum(part) for part in parts]
        return sum(flat)

    one, two = torch.ones(3), torch.full((3,), 2.0)
    for _ in range(2):
        assert total((one, two)).tolist() == [30.0] * 3
        assert total(one, two).tolist() == [3.0] * 3
        assert total((one,), two).tolist() == [12.0] * 3
        assert total(one, (two,)).tolist() == [21.0] * 3
        assert total((one,), (two,)).tolist() == [30.0] * 3


class Decodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, cache: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        for keys, values in cache:
            x = self.layer(x) + (keys + values).sum(1)
        return x
