"""Lazy code may make parameters, transform functions, trace, and call programs: all of them get ordinary tensors."""

import copy
import threading
from collections.abc import Callable
from queue import Queue

import pytest
import torch
from tests.api.agreement import assert_lazily_same
from torch import nn
from torch.nn import functional

import weft
from weft.lazy_tensors.intercept import behind_class_method

pytestmark = pytest.mark.usefixtures("own_engine", "by_library")


def test_a_class_method_is_called_with_its_class_whether_python_or_c_has_it() -> None:
    class Written:
        @classmethod
        def made(cls) -> type:
            return cls

    assert behind_class_method(Written, "made")(Written) is Written
    assert behind_class_method(dict, "fromkeys")(dict, "a") == {"a": None}  # as `Function.apply` since PyTorch 2.14


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def test_parameters_and_copies_of_modules_can_be_made_of_lazy_tensors() -> None:
    def work() -> list[torch.Tensor]:
        made = nn.Parameter(torch.randn(8, 8) * 2)
        copied = copy.deepcopy(net())
        (copied(torch.ones(3, 8)) @ torch.ones(4, 8) @ made).sum().backward()
        assert made.grad is not None
        return [made, made.grad, *copied.parameters()]

    assert_lazily_same(work)


def test_a_parameter_shares_the_memory_of_the_lazy_tensor_it_was_made_of() -> None:
    with weft.lazy():
        tensor = torch.ones(8, 8) * 2
        parameter = nn.Parameter(tensor)
        tensor.add_(1)
        assert parameter[0, 0].item() == 3


def test_transforms_take_lazy_tensors() -> None:
    def work() -> list[torch.Tensor]:
        parameters, _ = torch.func.stack_module_state([net(), net()])  # type: ignore[no-untyped-call]
        base, x = net(), torch.randn(5, 8) * 2
        both = torch.func.vmap(lambda given: torch.func.functional_call(base, given, (x,)))(parameters)
        return [both.detach(), torch.func.grad(lambda y: (y.sin() * x).sum())(x * 2)]

    assert_lazily_same(work)


@pytest.mark.parametrize("whole", [False, True])
def test_what_torch_compile_made_runs_as_lazy_code(whole: bool) -> None:
    def unused(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        raise AssertionError("nothing is compiled inside lazy code")

    module = net()
    compiled = torch.compile(module, backend=unused, fullgraph=whole)

    def work() -> list[torch.Tensor]:
        return [compiled(torch.ones(6, 8) * 2).detach()]

    with weft.lazy():
        found = work()[0]
    assert torch.equal(weft.wait(found), module(torch.ones(6, 8) * 2))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated:DeprecationWarning")
def test_a_trace_by_torch_jit_sees_its_example_and_not_a_stand_in() -> None:
    with weft.lazy():
        for _ in range(3):
            traced = torch.jit.trace(lambda x: x * 2 + 1, torch.ones(30) * 2)  # type: ignore[no-untyped-call]
            assert weft.wait(traced(torch.full((30,), 4.0)))[0].item() == 9


def test_programs_take_lazy_tensors_and_see_what_was_queued_before() -> None:
    program, state = weft.hybridize(net()), torch.ones(6, 8)

    def work() -> list[torch.Tensor]:
        state.fill_(1)
        made = []
        for _ in range(3):
            state.add_(1)  # an ordinary tensor, whose write is queued
            made += [program(state), program(state * 2)]
        return [result.detach() for result in made]

    assert_lazily_same(work)


def test_a_step_trains_on_lazy_batches() -> None:
    def work() -> list[torch.Tensor]:
        module = net()
        step = weft.step(module, functional.mse_loss, torch.optim.SGD(module.parameters(), 0.1))
        losses = [step(torch.ones(6, 8) * index, torch.ones(6, 4) * 2) for index in range(3)]
        return [*losses, *(parameter.detach() for parameter in module.parameters())]

    assert_lazily_same(work)


class Shifted(nn.Module):
    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(30))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.shift


def test_a_program_sees_a_lazy_tensor_that_became_a_buffer_inside_the_block_and_behind_it() -> None:
    module, x = weft.hybridize(Shifted()), torch.ones(30)
    with weft.lazy():
        for index in range(4):
            module.shift = module.shift + index
            assert weft.wait(module(x))[0].item() == 1 - sum(range(index + 1))
        module.shift = module.shift * 2
    assert module(x)[0].item() == 1 - 12


def test_another_thread_may_look_at_what_this_one_still_adds_to() -> None:
    tensors: Queue[torch.Tensor | None] = Queue()
    seen: list[float] = []

    def look() -> None:
        while (tensor := tensors.get(timeout=60)) is not None:
            seen.append(tensor.sum().item())

    thread = threading.Thread(target=look)
    thread.start()
    with weft.lazy():
        for index in range(100):
            tensors.put(torch.full((30,), float(index)) * 2 + torch.ones(30))
    tensors.put(None)
    thread.join()
    assert seen == [30.0 * (2 * index + 1) for index in range(100)]


class Shown(torch.Tensor):
    calls: list[str] = []  # noqa: RUF012  # of all

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_is_shown_the_calls_of_the_user_and_no_others() -> None:
    shown = torch.randn(30).as_subclass(Shown)
    Shown.calls.clear()
    with weft.lazy():
        _ = (shown * 2) + torch.ones(30)
    assert Shown.calls == ["mul", "add"]
