"""Modules, functions and methods run as programs, and stay what they were to everybody who looks at them."""

from __future__ import annotations

import copy
import functools
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from tests.api.agreement import assert_same
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import weft
from weft.errors import UsageError

pytestmark = pytest.mark.usefixtures("by_library")


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Batch:
    x: torch.Tensor
    scale: float


pytree.register_dataclass(Batch)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))


def traces(thing: Any) -> int:
    hybrid = thing.forward if isinstance(thing, nn.Module) else thing
    return hybrid.traces


class Picklable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


# -- in place on modules --------------------------------------------------------------------------------------------


def test_hybridize_gives_back_the_same_object_with_the_same_keys() -> None:
    net = mlp()
    kind, keys = type(net), list(net.state_dict())
    assert weft.hybridize(net) is net
    assert type(net) is kind
    net(torch.randn(2, 6))
    assert list(net.state_dict()) == keys
    assert [name for name, _ in net.named_parameters()] == keys


def test_nothing_is_traced_before_the_first_call_and_once_after() -> None:
    runs = []

    class Counted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            runs.append(1)
            return x * 2

    net = weft.hybridize(Counted())
    assert runs == []
    for _ in range(3):
        net(torch.ones(2))
    assert traces(net) == 1
    assert runs == [1, 1, 1], "what Python does to objects it does at each call"


def test_hybridize_false_restores_the_imperative_module() -> None:
    net = mlp()
    weft.hybridize(net)
    net(torch.randn(2, 6))
    assert weft.hybridize(net, False) is net
    assert "forward" not in net.__dict__
    assert net.forward.__func__ is nn.Sequential.forward


def test_hybridizing_twice_starts_afresh() -> None:
    net = weft.hybridize(mlp())
    net(torch.randn(2, 6))
    assert traces(weft.hybridize(net)) == 0
    x = torch.randn(2, 6)
    assert torch.equal(net(x), mlp_by_hand(net, x))


def mlp_by_hand(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.Sequential.forward(net, x)


def test_a_deep_copy_has_programs_and_parameters_of_its_own() -> None:
    net = weft.hybridize(mlp())
    x = torch.randn(2, 6)
    net(x)
    other = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(other(x), torch.zeros(2, 2))
    assert not torch.equal(net(x), torch.zeros(2, 2))
    assert other.forward is not net.forward


def test_a_pickled_module_comes_back_hybridized() -> None:
    net = weft.hybridize(Picklable())
    x = torch.randn(2, 3)
    expected = net(x)
    again = pickle.loads(pickle.dumps(net))
    assert torch.equal(again(x), expected)
    assert traces(again) == 1


def test_torch_save_and_load_keep_a_hybridized_module(tmp_path: Any) -> None:
    net = weft.hybridize(Picklable())
    x = torch.randn(2, 3)
    expected = net(x)
    torch.save(net, tmp_path / "net.pt")
    assert torch.equal(torch.load(tmp_path / "net.pt", weights_only=False)(x), expected)


def test_hooks_run_also_when_they_are_added_after_compilation() -> None:
    net = weft.hybridize(mlp())
    x = torch.randn(2, 6)
    plain = net(x)
    seen: list[str] = []
    outer = net.register_forward_hook(lambda _module, _inputs, output: seen.append("outer") or output + 1)
    before = net.register_forward_pre_hook(lambda _module, inputs: seen.append("before") or (inputs[0] * 2,))
    assert torch.equal(net(x), mlp_by_hand(net, x * 2) + 1)
    assert seen == ["before", "outer"]
    outer.remove()
    before.remove()
    inner = net[0].register_forward_hook(lambda _module, _inputs, output: output * 0)
    assert torch.equal(net(x), mlp_by_hand(net, x))
    assert not torch.equal(net(x), plain)
    inner.remove()
    assert torch.equal(net(x), plain)


def test_full_backward_hooks_see_the_gradients_of_a_hybridized_module() -> None:
    net, x = mlp(), torch.randn(2, 6, requires_grad=True)
    seen: list[torch.Tensor] = []
    net.register_full_backward_hook(lambda _module, _inputs, outputs: seen.append(outputs[0].clone()))
    net(x).sum().backward()
    weft.hybridize(net)
    net(x).sum().backward()
    assert len(seen) == 2
    assert torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("change", [nn.Module.double, nn.Module.half, nn.Module.bfloat16])
def test_a_change_of_element_type_after_compilation_is_followed(change: Any) -> None:
    net = weft.hybridize(mlp())
    net(torch.randn(2, 6))
    change(net)
    x = torch.randn(2, 6, dtype=net[0].weight.dtype)
    assert net(x).dtype is x.dtype
    assert torch.equal(net(x), mlp_by_hand(net, x))


def test_moving_to_channels_last_after_compilation_is_followed() -> None:
    net = weft.hybridize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    x = torch.randn(1, 3, 8, 8)
    net(x)
    net.to(memory_format=torch.channels_last)
    x = x.to(memory_format=torch.channels_last)
    expected = nn.Sequential.forward(net, x)
    assert torch.equal(net(x), expected)
    assert net(x).stride() == expected.stride()


def test_a_hybridized_module_inside_another_runs_as_part_of_it() -> None:
    inner = weft.hybridize(nn.Linear(6, 6))
    net = nn.Sequential(inner, nn.Tanh(), inner)
    x = torch.randn(2, 6)
    with torch.no_grad():
        expected = net(x)
        assert traces(inner) == 1
        weft.hybridize(net)
        assert torch.equal(net(x), expected)
    assert traces(net) == 1
    assert traces(inner) == 1


def test_a_module_whose_forward_was_replaced_is_refused() -> None:
    net = mlp()
    net.forward = lambda x: x
    with pytest.raises(UsageError, match="Sequential has a forward of its own instance"):
        weft.hybridize(net)


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (3, "3 cannot be hybridized"),
        (nn.Linear, "the class Linear cannot be hybridized"),
        (None, r"None cannot be hybridized[\s\S]*does what made it give it back"),
        (torch.ones(100, 100), "this Tensor cannot be hybridized"),
        ([mlp(), mlp()], r"this list cannot be hybridized[\s\S]*hybridize each"),
        (torch.compile(mlp(), backend="eager"), r"compiled this Sequential already[\s\S]*net\._orig_mod"),
    ],
    ids=["number", "class", "nothing", "tensor", "list", "compiled"],
)
def test_what_is_neither_a_module_nor_a_function_is_refused(thing: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        weft.hybridize(thing)


def test_an_example_behind_the_module_is_refused() -> None:
    with pytest.raises(UsageError, match=r"hybridize\(thing, Tensor\)[\s\S]*weft\.program\(net, x\)"):
        weft.hybridize(nn.Linear(2, 2), torch.ones(1, 2))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_what_torchscript_has_compiled_is_refused() -> None:
    with pytest.raises(UsageError, match=r"TorchScript[\s\S]*the module that it was made of"):
        weft.hybridize(torch.jit.script(mlp()))


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ({"fullgraph": True}, "whole=True"),
        ({"dynamic": True}, "sizes="),
        ({"mode": "max-autotune"}, "leave it out"),
        ({"static_alloc": True}, "leave it out"),
        ({"hole": True}, "did you mean whole"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_an_option_of_others_is_told_under_its_name_here(option: dict[str, Any], fix: str) -> None:
    with pytest.raises(UsageError, match=rf"no option[\s\S]*{fix}"):
        weft.hybridize(mlp(), **option)


def test_an_unknown_fallback_is_refused() -> None:
    with pytest.raises(UsageError, match="fallback is 'lazy'"):
        weft.hybridize(mlp(), fallback="lazy")


def test_a_class_method_and_a_property_are_hybridized_in_either_order() -> None:
    class Rates:
        rate = 2.0

        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        @weft.hybridize
        @classmethod
        def outer(cls, x: torch.Tensor) -> torch.Tensor:
            return x * cls.rate

        @classmethod
        @weft.hybridize
        def inner(cls, x: torch.Tensor) -> torch.Tensor:
            return x * cls.rate

        @weft.hybridize
        @property
        def twice(self) -> torch.Tensor:
            """Twice."""
            return self.x * 2

    x = torch.arange(3.0)
    for found in (Rates.outer(x), Rates(x).outer(x), Rates.inner(x), Rates(x).twice):
        assert torch.equal(found, x * 2)
    assert Rates.twice.__doc__ == "Twice."


def test_what_is_hybridized_tells_what_it_is() -> None:
    function = weft.hybridize(functional.relu)
    assert repr(function) == "<weft.hybridize(relu): programs traced: 0>"
    function(torch.ones(2))
    assert repr(function) == "<weft.hybridize(relu): programs traced: 1>"
    net = mlp()
    step = weft.step(net, functional.mse_loss, torch.optim.SGD(net.parameters(), 0.1))
    assert repr(step) == str(step) == "a step of Sequential: 0 programs, normal memory, peak of 0 bytes"


# -- functions, decorators, methods -----------------------------------------------------------------------------------


def test_a_function_is_replaced_and_keeps_its_name_and_documentation() -> None:
    def scaled(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
        """Scale."""
        return x * by

    hybrid = weft.hybridize(scaled)
    assert (hybrid.__name__, hybrid.__doc__) == ("scaled", "Scale.")
    assert torch.equal(hybrid(torch.ones(2)), torch.full((2,), 2.0))
    assert weft.hybridize(hybrid, False) is scaled


def test_the_decorator_takes_options_or_none() -> None:
    @weft.hybridize
    def first(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @weft.hybridize(fallback="eager")
    def second(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert torch.equal(first(torch.ones(2)), second(torch.ones(2)))
    assert (first.traces, second.traces) == (1, 1)


def test_methods_have_programs_for_each_object_and_see_their_attributes_change() -> None:
    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by
            self.shift = torch.zeros(2)

        @weft.hybridize
        def apply(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by + self.shift

    double, triple = Scale(2.0), Scale(3.0)
    x = torch.ones(2)
    assert double.apply(x).tolist() == [2.0, 2.0]
    assert triple.apply(x).tolist() == [3.0, 3.0]
    double.by = 5.0
    assert double.apply(x).tolist() == [5.0, 5.0]
    double.shift = torch.ones(2)
    assert double.apply(x).tolist() == [6.0, 6.0]
    assert double.apply.traces == 2
    assert triple.apply.traces == 1


def test_partial_functions_and_lambdas_are_functions() -> None:
    x = torch.randn(3)
    assert torch.equal(weft.hybridize(functools.partial(torch.add, alpha=3))(x, x), torch.add(x, x, alpha=3))
    assert torch.equal(weft.hybridize(lambda x: x.exp())(x), x.exp())


def test_keywords_defaults_and_variable_arguments_are_passed_as_python_does() -> None:
    def function(x: torch.Tensor, *more: torch.Tensor, by: float = 2.0, **named: torch.Tensor) -> torch.Tensor:
        return x * by + sum(more) - named.get("minus", 0)

    x = torch.randn(3)
    assert_same(function, x)
    assert_same(function, x, x, x)
    assert_same(function, x, x, by=3.0)
    assert_same(function, x, minus=x)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        weft.hybridize(function)()


# -- arguments and results --------------------------------------------------------------------------------------------


def test_nested_arguments_and_results_keep_their_structure() -> None:
    def function(batch: Any) -> Any:
        total = sum(batch["rows"]) * batch["batch"].scale
        return {"pair": Pair(total, [total + 1, None]), "batch": Batch(total * 2, 3.0), 4: OrderedDict(a="text")}

    x = torch.randn(2, 3)
    result = assert_same(function, {"rows": [x, x + 1], "batch": Batch(x, 2.0)})
    assert isinstance(result["pair"], Pair)
    assert isinstance(result["batch"], Batch)


def test_results_that_are_arguments_are_the_very_same_objects() -> None:
    x, y = torch.randn(3), torch.randn(3)
    hybrid = weft.hybridize(lambda x, y: (y, x, y * 2, x))
    for _ in range(2):
        first, second, _, again = hybrid(x, y)
        assert first is y
        assert second is x
        assert again is x


def test_one_tensor_returned_twice_is_one_tensor() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        return y, y, y.t()

    first, second, view = weft.hybridize(function)(torch.randn(2, 3))
    assert first is second
    view[0, 0] = 100.0
    assert first[0, 0] == 100.0


def test_views_of_inputs_share_their_memory() -> None:
    hybrid = weft.hybridize(lambda x: (x.view(-1), x[1:], x.t()))
    for _ in range(2):
        x = torch.zeros(2, 3)
        flat, rows, turned = hybrid(x)
        x[1, 2] = 5.0
        assert (flat[5], rows[0, 2], turned[2, 1]) == (5.0, 5.0, 5.0)
        assert flat._base is x


def test_arguments_that_share_memory_are_written_as_in_eager() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    hybrid = weft.hybridize(function)
    for first, second in ((slice(0, 4), slice(2, 6)), (slice(0, 4), slice(0, 4)), (slice(0, 3), slice(3, 6))):
        ours, theirs = torch.arange(6.0), torch.arange(6.0)
        assert torch.equal(hybrid(ours[first], ours[second]), function(theirs[first], theirs[second]))
        assert torch.equal(ours, theirs)


def test_writes_through_views_arrive_in_arguments() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x[0] = 5
        x.t()[1].mul_(2)
        x.view(-1)[3:5] += 1
        return x.sum()

    assert_same(function, torch.randn(3, 4))


def test_shapes_numbers_and_text_come_back_as_python_values() -> None:
    result = assert_same(lambda x: (x.shape, x.dim(), str(x.dtype), x.is_contiguous(), x.numel() / 2), torch.ones(2, 3))
    assert isinstance(result[0], torch.Size)


# -- state ------------------------------------------------------------------------------------------------------------


def test_batch_norm_keeps_its_statistics_and_counts() -> None:
    assert_same(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), torch.randn(2, 3, 8, 8), calls=4)


def test_counters_and_running_means_in_buffers_are_written() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            self.mean.lerp_(x, 1 / 2)
            return x - self.mean

    assert_same(Mean(), torch.randn(3), calls=4)


def test_train_and_eval_each_have_a_program() -> None:
    net = weft.hybridize(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.BatchNorm1d(6)))
    x = torch.randn(4, 6)
    for _ in range(2):
        for training in (True, False):
            net.train(training)
            torch.manual_seed(1)
            expected = nn.Sequential.forward(copy.deepcopy(net), x)
            torch.manual_seed(1)
            assert torch.equal(net(x), expected)
    assert traces(net) == 2


# -- random numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.dropout(x, 0.5),
        lambda x: x + torch.rand(6) + torch.randn(4, 1),
        lambda x: (x + torch.randn_like(x), torch.randint(0, 9, (3,)), torch.randperm(5)),
        lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: torch.multinomial(x.softmax(-1), 2),
        lambda x: x.clone().uniform_(-1, 1).normal_(),
    ],
)
def test_random_operators_draw_the_stream_of_eager(function: Any) -> None:
    assert_same(function, torch.randn(4, 6))


def test_seeding_and_forking_inside_a_program_is_repeated_at_each_call() -> None:
    def function(x: torch.Tensor) -> Any:
        first = torch.rand(3)
        with torch.random.fork_rng():
            torch.manual_seed(42)
            second = torch.rand(3)
        return first, second, torch.rand(3), x

    assert_same(function, torch.ones(1))


def test_a_generator_that_is_passed_or_captured_is_drawn_from() -> None:
    captured, mine = torch.Generator(), torch.Generator()
    hybrid = weft.hybridize(lambda given: (torch.rand(2, generator=given), torch.rand(2, generator=captured)))
    given = torch.Generator()
    for generator in (captured, mine, given):
        generator.manual_seed(3)
    for _ in range(3):
        first, second = hybrid(given)
        assert torch.equal(first, second)
        assert torch.equal(first, torch.rand(2, generator=mine))


# -- modes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16),
        functools.partial(torch.autocast, "cpu", dtype=torch.float16),
    ],
)
def test_modes_around_a_call_are_those_of_the_program(mode: Any) -> None:
    net, x = mlp(), torch.randn(2, 6)
    with mode():
        assert_same(net, x)
    net = weft.hybridize(net)
    net(x)
    with mode():
        assert torch.equal(net(x), mlp_by_hand(net, x))
        assert net(x).dtype is mlp_by_hand(net, x).dtype
        assert net(x).is_inference() == mlp_by_hand(net, x).is_inference()
    assert traces(net) == 2
    assert net(x).requires_grad


def test_modes_inside_a_program_are_kept() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> Any:
        with torch.no_grad():
            first = x @ weight
        with torch.autocast("cpu", dtype=torch.bfloat16):
            second = x @ weight
        return first, second, (x @ weight).detach()

    assert_same(function, torch.randn(2, 3), torch.randn(3, 4, requires_grad=True))


def test_inference_tensors_go_in_outside_of_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.randn(2, 6)
    assert_same(lambda x: x * 2, x)


# -- element types and sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64],
)
def test_every_element_type_runs(dtype: torch.dtype) -> None:
    x = (torch.randn(4, 6) * 3).to(dtype)
    assert_same(lambda x: (x * x, x.t() == x.t(), torch.cat([x, x]), x[1:].clone()), x)


def test_conjugated_and_negated_tensors_keep_their_bits() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    assert_same(lambda x: (x.conj(), x.conj().imag, x * 2), x)
    assert_same(lambda x: x * 2, x.conj())
    assert_same(lambda x: x + 1, x.conj().imag)


@pytest.mark.parametrize("shape", [(), (0,), (0, 6), (3, 0), (1, 1)])
def test_empty_and_zero_dimensional_tensors_run(shape: tuple[int, ...]) -> None:
    assert_same(lambda x: (x + 1, x.sum(), x.reshape(-1), x.unsqueeze(0)), torch.randn(shape))


def test_layouts_are_kept() -> None:
    x = torch.randn(4, 6)
    assert_same(lambda x: (x * 2, x.relu()), x.t())
    assert_same(lambda x: (x * 2, x.relu()), x[:, ::2])
    assert_same(lambda x: (x * 2, x.sum(0)), x[0].expand(5, 6))
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    assert_same(nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)), image)


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.LSTM(6, 5, 2), torch.randn(3, 2, 6)),
        (nn.GRU(6, 5), torch.randn(3, 2, 6)),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 5, 8)),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 5, 8)),
        (nn.Embedding(10, 4), torch.tensor([[1, 2], [9, 0]])),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4), nn.AdaptiveAvgPool2d(1)), torch.randn(2, 1, 9, 9)),
    ],
)
def test_library_modules_run(module: nn.Module, x: torch.Tensor) -> None:
    assert_same(module, x)


# -- other tracers ----------------------------------------------------------------------------------------------------


def test_hybridized_code_inside_other_transforms_runs_imperatively_and_right() -> None:
    hybrid = weft.hybridize(lambda x: (x * x).sum())
    x = torch.randn(3, 4)
    hybrid(x[0])
    assert torch.equal(torch.func.grad(hybrid)(x[0]), 2 * x[0])
    assert torch.equal(torch.func.vmap(hybrid)(x), (x * x).sum(1))
    assert torch.allclose(torch.func.jacrev(weft.hybridize(lambda x: x.sin()))(x[0]), torch.diag(x[0].cos()))
    assert hybrid.traces == 1


def test_torch_func_inside_hybridized_code_is_part_of_the_program() -> None:
    table = torch.randn(4)
    assert_same(torch.func.vmap(lambda row: row * table + row.sum()), torch.randn(3, 4))
    assert_same(torch.func.grad(lambda y: (y.sin() * table).sum()), torch.randn(4))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # PyTorch's own use of it
def test_forward_mode_gradients_inside_hybridized_code_are_part_of_the_program() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))  # a product asks the device meta for looks
    assert_same(torch.func.jacfwd(net), torch.randn(4))
    assert_same(torch.func.hessian(lambda y: net(y).square().sum()), torch.randn(4))


def test_a_gradient_taken_inside_is_part_of_the_program() -> None:
    def force(x: torch.Tensor) -> torch.Tensor:
        inner = x.detach().requires_grad_()
        return torch.autograd.grad((inner**3).sum(), inner)[0]

    assert_same(force, torch.randn(4))


def test_make_fx_traces_through_a_hybridized_module() -> None:
    net = weft.hybridize(mlp())
    x = torch.randn(2, 6)
    expected = net(x)
    traced = torch.fx.experimental.proxy_tensor.make_fx(net)(x)
    assert torch.equal(traced(x), expected)


def test_a_misspelt_option_is_told_with_the_one_that_was_meant() -> None:
    with pytest.raises(weft.UsageError, match="hybridize has no option 'fallbck'") as caught:
        weft.hybridize(nn.Linear(2, 2), fallbck="eager")  # type: ignore[call-overload]
    assert caught.value.fix == "did you mean fallback?"
